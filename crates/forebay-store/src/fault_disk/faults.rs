//! What is to go wrong: faults that wait for their call.

use std::io;

#[cfg(doc)]
use crate::disk::Disk;

/// Which kind of call [`MemDisk::fail`](super::MemDisk::fail) is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Disk::create`]
    Create,
    /// [`Disk::write_at`]
    Write,
    /// [`Disk::allocate`]
    Allocate,
    /// [`Disk::read_at`]
    Read,
    /// [`Disk::sync_data`]
    Sync,
    /// [`Disk::sync_dir`]
    SyncDir,
    /// [`Disk::rename`]
    Rename,
    /// [`Disk::remove`]
    Remove,
}

/// Where the bytes of a write go that do not go where they should; see [`MemDisk::stray_write`](super::MemDisk::stray_write).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stray {
    /// Nowhere.
    Lost,
    /// Onto the sectors of this file from this offset in bytes (rounded down to a sector) on, as far as
    /// the file reaches; nowhere, if there is no such file.
    To(String, u64),
    /// Some sectors of the write go nowhere or to some sectors of some file, the rest where they should:
    /// which and where follows from the seed.
    Seeded(u64),
}

/// Faults that are still to come, and where the disk stands.
#[derive(Debug, Default, Clone)]
pub(super) struct Faults {
    failures: Vec<(Call, u64, io::ErrorKind)>,
    strays: Vec<(u64, Stray)>,
    stop_after: Option<u64>,
    pub(super) stopped: bool,
    /// Calls that changed something, so far.
    pub(super) mutations: u64,
    /// Syncs report success and do nothing.
    pub(super) lying: bool,
}

/// What becomes of a call that is not refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Passage {
    Whole,
    /// The disk stops in the middle of it.
    Stops,
}

impl Faults {
    pub(super) fn fail(&mut self, call: Call, skip: u64, kind: io::ErrorKind) {
        self.failures.push((call, skip, kind));
    }

    pub(super) fn stray(&mut self, skip: u64, stray: Stray) {
        self.strays.push((skip, stray));
    }

    pub(super) fn strays(&self) -> usize {
        self.strays.len()
    }

    pub(super) fn stop_after(&mut self, calls: u64) {
        self.stop_after = Some(calls);
    }

    /// The machine is started again; what was to happen to the last life will not happen to this one.
    /// A disk that lies goes on lying.
    pub(super) fn revive(&mut self) {
        self.failures.clear();
        self.strays.clear();
        self.stop_after = None;
        self.stopped = false;
    }

    /// Whether the call goes through.
    pub(super) fn enter(&mut self, call: Call) -> io::Result<Passage> {
        if self.stopped {
            return Err(stopped());
        }
        let mut failed = None;
        for (index, (kind, skip, error)) in self.failures.iter_mut().enumerate() {
            if *kind == call {
                if *skip == 0 {
                    failed = Some((index, *error));
                    break;
                }
                *skip -= 1;
            }
        }
        if let Some((index, error)) = failed {
            self.failures.remove(index);
            return Err(error.into());
        }
        if call == Call::Read {
            return Ok(Passage::Whole);
        }
        self.mutations += 1;
        match &mut self.stop_after {
            Some(0) => {
                self.stopped = true;
                Ok(Passage::Stops)
            }
            Some(left) => {
                *left -= 1;
                Ok(Passage::Whole)
            }
            None => Ok(Passage::Whole),
        }
    }

    /// Where this write, which goes through, goes instead.
    pub(super) fn take_stray(&mut self) -> Option<Stray> {
        for index in 0..self.strays.len() {
            let (skip, _) = &mut self.strays[index];
            if *skip == 0 {
                return Some(self.strays.remove(index).1);
            }
            *skip -= 1;
        }
        None
    }
}

pub(super) fn stopped() -> io::Error {
    io::Error::other("the disk has stopped")
}
