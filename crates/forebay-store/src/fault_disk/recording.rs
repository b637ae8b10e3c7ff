//! A disk that remembers what was done to it, so that a test can stand at every moment of a history.

use std::io;
use std::sync::{Arc, Mutex};

use super::MemDisk;
use crate::disk::Disk;

/// One call that changed something, and succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// [`Disk::create`]
    Create(String),
    /// [`Disk::write_at`]: file, offset, bytes.
    Write(String, u64, Vec<u8>),
    /// [`Disk::allocate`]: file, bytes.
    Allocate(String, u64),
    /// [`Disk::sync_data`]
    SyncData(String),
    /// [`Disk::sync_dir`]
    SyncDir,
    /// [`Disk::rename`]: from, to.
    Rename(String, String),
    /// [`Disk::remove`]
    Remove(String),
}

impl Recorded {
    /// Does the same to another disk.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn repeat(&self, disk: &dyn Disk) -> io::Result<()> {
        match self {
            Recorded::Create(name) => disk.create(name),
            Recorded::Write(name, offset, bytes) => disk.write_at(name, *offset, bytes),
            Recorded::Allocate(name, bytes) => disk.allocate(name, *bytes),
            Recorded::SyncData(name) => disk.sync_data(name),
            Recorded::SyncDir => disk.sync_dir(),
            Recorded::Rename(from, to) => disk.rename(from, to),
            Recorded::Remove(name) => disk.remove(name),
        }
    }
}

/// A [`Disk`] over another one, a real one or not, that records every successful call that changes
/// something. Calls of several threads are recorded in the order in which they were made: each waits for
/// the one before.
///
/// Bound: it holds everything that was ever written; for short histories.
pub struct RecordingDisk {
    inner: Arc<dyn Disk>,
    /// What was there at the beginning, durable.
    base: MemDisk,
    calls: Mutex<Vec<Recorded>>,
}

impl RecordingDisk {
    /// Begins a recording; what the disk holds already counts as durable.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn new(inner: Arc<dyn Disk>) -> io::Result<RecordingDisk> {
        let base = MemDisk::new();
        for name in inner.list()? {
            let mut bytes = vec![0; inner.len(&name)? as usize];
            let read = inner.read_at(&name, 0, &mut bytes)?;
            base.put(&name, &bytes[..read]);
        }
        Ok(RecordingDisk { inner, base, calls: Mutex::default() })
    }

    /// Calls recorded so far. What was promised before this was asked rests on these calls alone.
    pub fn calls(&self) -> usize {
        self.calls.lock().expect("no holder of this lock panics").len()
    }

    /// These calls.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.calls.lock().expect("no holder of this lock panics").clone()
    }

    /// The disk as it was before the first call, after it, after the second, up to the last: as many and
    /// one more than there are [`calls`](RecordingDisk::calls). On each, what was synced by then is
    /// durable and nothing else.
    ///
    /// # Panics
    /// When a call that succeeded on the recorded disk fails on one in memory.
    pub fn prefixes(&self) -> impl Iterator<Item = MemDisk> + use<> {
        let calls = self.recorded();
        let disk = self.base.fork();
        (0..=calls.len()).map(move |count| {
            if let Some(call) = count.checked_sub(1).map(|last| &calls[last]) {
                call.repeat(&disk).unwrap_or_else(|error| panic!("{call:?}: {error}"));
            }
            disk.fork()
        })
    }

    fn record(
        &self,
        call: impl FnOnce() -> Recorded,
        perform: impl FnOnce(&dyn Disk) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut calls = self.calls.lock().expect("no holder of this lock panics");
        perform(&*self.inner)?;
        calls.push(call());
        Ok(())
    }
}

impl Disk for RecordingDisk {
    fn lock(&self) -> io::Result<()> {
        self.inner.lock()
    }

    fn unlock(&self) {
        self.inner.unlock();
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        self.inner.len(name)
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.record(|| Recorded::Create(name.to_owned()), |disk| disk.create(name))
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.record(
            || Recorded::Write(name.to_owned(), offset, bytes.to_vec()),
            |disk| disk.write_at(name, offset, bytes),
        )
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let call = || Recorded::Allocate(name.to_owned(), bytes);
        self.record(call, |disk| disk.allocate(name, bytes))
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(name, offset, buffer)
    }

    fn sync_data(&self, name: &str) -> io::Result<()> {
        self.record(|| Recorded::SyncData(name.to_owned()), |disk| disk.sync_data(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.record(|| Recorded::SyncDir, |disk| disk.sync_dir())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let call = || Recorded::Rename(from.to_owned(), to.to_owned());
        self.record(call, |disk| disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.record(|| Recorded::Remove(name.to_owned()), |disk| disk.remove(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_what_had_been_done_and_keeps_what_had_been_synced() {
        let inner = Arc::new(MemDisk::new());
        inner.put("old", b"before");
        let disk = RecordingDisk::new(inner).unwrap();
        disk.create("new").unwrap();
        disk.sync_dir().unwrap();
        disk.write_at("new", 0, b"bytes").unwrap();
        disk.sync_data("new").unwrap();
        disk.remove("old").unwrap();
        assert!(disk.remove("never").is_err());
        assert_eq!(disk.calls(), 5);
        let prefixes: Vec<_> = disk.prefixes().collect();
        assert_eq!(prefixes.len(), 6);
        assert_eq!(prefixes[0].bytes("new"), None);
        assert_eq!(prefixes[5].bytes("old"), None);
        let unsynced: Vec<_> = prefixes.iter().map(MemDisk::unsynced).collect();
        assert_eq!(unsynced, [0, 1, 0, 2, 0, 1], "a name, nothing, length and sector, …");
        for seed in 0..20 {
            prefixes[4].fork().power_loss(seed);
            assert_eq!(prefixes[4].bytes("new").unwrap(), b"bytes");
        }
    }
}
