//! Disk work as data: what a lane is to do, and what came of it.

use std::io;
use std::ops::Range;

use crate::disk::Disk;
use crate::home::{RunId, Seq};
use crate::run::{self, RunDamage};
use crate::segment::{segment_file, spare_file};
use crate::sync::sync_written;

/// Which thread carries requests out, [a few](Lane::requests_max) at most and in the order in which it gets them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Commits: nothing slow may stand before them.
    Log,
    /// Blocks of runs: a consumer waits, and what is written may take a flush, or several.
    Read,
    /// Writing run files, pre-writing, recycling, unlinking.
    Background,
}

impl Lane {
    /// All of them.
    pub const ALL: [Lane; 3] = [Lane::Log, Lane::Read, Lane::Background];

    /// Requests that it may have at a time, with the one that is being carried out.
    #[must_use]
    pub const fn requests_max(self) -> usize {
        match self {
            Lane::Log => 2,
            Lane::Read | Lane::Background => 1,
        }
    }
}

/// One piece of disk work, from [`Store::poll`](crate::Store::poll), for [`perform`].
#[derive(Debug)]
pub struct Request {
    pub(crate) work: Work,
}

/// What came of a [`Request`]; goes back into [`Store::complete`](crate::Store::complete).
#[derive(Debug)]
pub struct Completion {
    pub(crate) work: Work,
    pub(crate) result: Result<Output, WorkError>,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// Write one batch (with the segment's header before it, if it is the first) and sync the segment, in which what was
    /// not synced begins there.
    Commit { epoch: u64, offset: u64, bytes: Vec<u8>, begin: Option<Begin>, sync: Option<u64> },
    /// Sync a segment that was written without syncing.
    Sync(Unsynced),
    /// Write a run file; `durable`: sync it and its name.
    WriteRun { run: RunId, bytes: Vec<u8>, durable: bool },
    /// Read records of a run from a record boundary on, up to about [`run::BLOCK_BYTES`] of payload.
    ReadRun { run: RunId, from_offset: u64, records_end: u64, from_seq: Seq },
    /// Create a spare with room for a segment.
    Allocate { spare: u32, segment_bytes: u64 },
    /// Fill a slice of a spare with zeros and sync it; `create` it before.
    Prewrite { spare: u32, create: bool, offset: u64, slice_bytes: u64 },
    /// Turn a dead segment into a spare.
    Recycle { epoch: u64, spare: u32, written_bytes: u64 },
    /// Unlink what was pre-written of a spare.
    RemoveSpare { spare: u32 },
    /// Unlink a dead segment.
    RemoveSegment { epoch: u64 },
    /// Unlink a dead run, or what was written of one.
    RemoveRun { run: RunId },
}

/// A commit that begins a segment.
#[derive(Debug)]
pub(crate) struct Begin {
    /// The pre-written or recycled file to take; `None`: create one.
    pub(crate) spare: Option<u32>,
    /// The segment before, if it has bytes that were not synced.
    pub(crate) sync_first: Option<Unsynced>,
}

/// Bytes of a segment that are written and not synced.
#[derive(Debug)]
pub(crate) struct Unsynced {
    pub(crate) epoch: u64,
    pub(crate) bytes: Range<u64>,
}

impl Unsynced {
    fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        sync_written(disk, &segment_file(self.epoch), self.bytes.clone())
    }
}

#[derive(Debug)]
pub(crate) enum Output {
    Done,
    Block { messages: Vec<(Seq, bool, Vec<u8>)>, next_offset: u64 },
}

#[derive(Debug)]
pub(crate) enum WorkError {
    Io(io::Error),
    Damaged(RunDamage),
}

impl From<io::Error> for WorkError {
    fn from(error: io::Error) -> WorkError {
        WorkError::Io(error)
    }
}

impl Request {
    /// The lane this request belongs to.
    pub fn lane(&self) -> Lane {
        self.work.lane()
    }

    /// Bytes this request writes, for pacing in a simulator and for statistics.
    pub fn write_bytes(&self) -> u64 {
        match &self.work {
            Work::Commit { bytes, .. } | Work::WriteRun { bytes, .. } => bytes.len() as u64,
            Work::Prewrite { slice_bytes, .. } => *slice_bytes,
            _ => 0,
        }
    }
}

impl Completion {
    /// The lane that is free again.
    pub fn lane(&self) -> Lane {
        self.work.lane()
    }

    /// Whether it ends the store, as a commit failed: the lane must not carry out what it has behind it, which says that this
    /// one is synced.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.lane() == Lane::Log && self.result.is_err()
    }
}

impl Work {
    fn lane(&self) -> Lane {
        match self {
            Work::Commit { .. } | Work::Sync(_) => Lane::Log,
            Work::ReadRun { .. } => Lane::Read,
            _ => Lane::Background,
        }
    }

    /// The work in words, for an error message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Work::Commit { epoch, offset, bytes, .. } => format!(
                "write {} bytes at {offset} of {} and sync them",
                bytes.len(),
                segment_file(*epoch)
            ),
            Work::Sync(unsynced) => format!("sync {}", segment_file(unsynced.epoch)),
            Work::WriteRun { run, .. } => format!("write {}", run::run_file(*run)),
            Work::ReadRun { run, from_offset, .. } => {
                format!("read {} from byte {from_offset}", run::run_file(*run))
            }
            Work::Allocate { spare, .. } => format!("allocate {}", spare_file(*spare)),
            Work::Prewrite { spare, .. } => format!("pre-write {}", spare_file(*spare)),
            Work::Recycle { epoch, .. } => format!("recycle {}", segment_file(*epoch)),
            Work::RemoveSpare { spare } => format!("remove {}", spare_file(*spare)),
            Work::RemoveSegment { epoch } => format!("remove {}", segment_file(*epoch)),
            Work::RemoveRun { run } => format!("remove {}", run::run_file(*run)),
        }
    }
}

/// What spares are pre-written with, piece by piece.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Carries a request out, blocking; on a lane's thread, or in a simulator.
pub fn perform(disk: &dyn Disk, request: Request) -> Completion {
    let result = carry_out(disk, &request.work);
    Completion { work: request.work, result }
}

fn carry_out(disk: &dyn Disk, work: &Work) -> Result<Output, WorkError> {
    match work {
        Work::Commit { epoch, offset, bytes, begin, sync } => {
            let name = segment_file(*epoch);
            if let Some(begin) = begin {
                if let Some(previous) = &begin.sync_first {
                    previous.sync(disk)?;
                }
                match begin.spare {
                    Some(spare) => disk.rename(&spare_file(spare), &name)?,
                    None => disk.create(&name)?,
                }
                // The name before the bytes: a synced batch in a file nobody can find is lost.
                disk.sync_dir()?;
            }
            disk.write_at(&name, *offset, bytes)?;
            match sync {
                None => {}
                // Of one batch the next start takes care.
                Some(from) if from == offset => disk.sync_data(&name)?,
                Some(from) => sync_written(disk, &name, *from..*offset + bytes.len() as u64)?,
            }
        }
        Work::Sync(unsynced) => unsynced.sync(disk)?,
        Work::WriteRun { run, bytes, durable } => {
            let name = run::run_file(*run);
            disk.create(&name)?;
            disk.write_at(&name, 0, bytes)?;
            if *durable {
                disk.sync_data(&name)?;
                disk.sync_dir()?;
            }
        }
        Work::ReadRun { run, from_offset, records_end, from_seq } => {
            return run::read_block(disk, *run, *from_offset, *records_end, *from_seq);
        }
        Work::Allocate { spare, segment_bytes } => {
            let name = spare_file(*spare);
            disk.create(&name)?;
            disk.allocate(&name, *segment_bytes)?;
            disk.sync_data(&name)?;
        }
        Work::Prewrite { spare, create, offset, slice_bytes } => {
            let name = spare_file(*spare);
            if *create {
                disk.create(&name)?;
            }
            for at in (0..*slice_bytes).step_by(ZEROS.len()) {
                let part = (*slice_bytes - at).min(ZEROS.len() as u64) as usize;
                disk.write_at(&name, *offset + at, &ZEROS[..part])?;
            }
            disk.sync_data(&name)?;
        }
        Work::Recycle { epoch, spare, .. } => {
            disk.rename(&segment_file(*epoch), &spare_file(*spare))?;
            // Before anything else may free the next segment: the log loses segments oldest first.
            disk.sync_dir()?;
        }
        Work::RemoveSpare { spare } => remove_if_there(disk, &spare_file(*spare))?,
        Work::RemoveSegment { epoch } => {
            remove_if_there(disk, &segment_file(*epoch))?;
            disk.sync_dir()?;
        }
        Work::RemoveRun { run } => remove_if_there(disk, &run::run_file(*run))?,
    }
    Ok(Output::Done)
}

fn remove_if_there(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
