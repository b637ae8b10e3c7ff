//! A disk in memory that breaks on demand: for tests and simulations of the store and of the broker.
//!
//! The fault model:
//! - **Kill** ([`MemDisk::kill`]): the process is gone, what it wrote is not.
//! - **Power loss** ([`MemDisk::power_loss`]): of every file, each 512-byte sector written since the last
//!   successful sync is independently old, new or garbage; a file that grew has some length between. Of
//!   the directory, each creation, rename and removal since the last directory sync independently
//!   happened or not.
//! - **Errors** ([`MemDisk::fail`]): a call fails with an error of choice; a failed write may leave a part
//!   of its bytes; a failed sync drops what it was to make durable, as Linux does with dirty pages.
//! - **Full disk** ([`MemDisk::set_capacity`]): writes that grow a file beyond it fail with `StorageFull`.
//! - **Stop** ([`MemDisk::stop_after`]): after so many more calls that change something, every call fails,
//!   the last write being cut short somewhere: a crash at any point of any request.
//! - **Rot** ([`MemDisk::flip_bit`]): a bit of the durable and of the present bytes changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;

use crate::disk::Disk;

/// The size of what a disk writes as a whole, in bytes.
const SECTOR: usize = 512;

/// Which kind of call [`MemDisk::fail`] is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Disk::create`]
    Create,
    /// [`Disk::write_at`]
    Write,
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

/// A directory in memory. Cheap enough to make one per test case.
#[derive(Debug, Default)]
pub struct MemDisk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    locked: bool,
    files: Vec<MemFile>,
    /// Names as the process sees them.
    names: BTreeMap<String, usize>,
    /// Names as they survive a power loss.
    durable_names: BTreeMap<String, usize>,
    /// What happened to names since the last directory sync, in order.
    changes: Vec<Change>,
    capacity_bytes: Option<u64>,
    failures: Vec<(Call, u64, io::ErrorKind)>,
    stop_after: Option<u64>,
    stopped: bool,
    /// Calls that changed something, so far.
    mutations: u64,
}

#[derive(Debug, Default, Clone)]
struct MemFile {
    /// As the process sees it.
    bytes: Vec<u8>,
    /// As of the last sync.
    durable: Vec<u8>,
    /// Sectors written since.
    dirty: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
enum Change {
    Name(String, usize),
    Rename(String, String, usize),
    Remove(String),
}

/// The generator of SplitMix64: enough for choosing sectors.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }
}

impl MemDisk {
    /// An empty disk without faults.
    pub fn new() -> MemDisk {
        MemDisk::default()
    }

    /// The process was killed: its lock is free, its stop is over, everything it wrote is there.
    pub fn kill(&self) {
        let mut state = self.lock_state();
        state.revive();
    }

    /// The power went: see the module's documentation. The choices follow from `seed`.
    pub fn power_loss(&self, seed: u64) {
        let mut state = self.lock_state();
        let mut random = Random(seed);
        let mut names = state.durable_names.clone();
        for change in std::mem::take(&mut state.changes) {
            if random.below(2) == 0 {
                continue;
            }
            match change {
                Change::Name(name, file) => {
                    names.insert(name, file);
                }
                Change::Rename(from, to, file) => {
                    names.remove(&from);
                    names.insert(to, file);
                }
                Change::Remove(name) => {
                    names.remove(&name);
                }
            }
        }
        state.names.clone_from(&names);
        state.durable_names = names;
        for file in &mut state.files {
            file.lose_power(&mut random);
        }
        state.revive();
    }

    /// After `calls` more calls that change something, every call fails; the last write of them is cut
    /// short at a place that follows from `calls`. [`kill`](MemDisk::kill) or
    /// [`power_loss`](MemDisk::power_loss) bring the disk back.
    pub fn stop_after(&self, calls: u64) {
        self.lock_state().stop_after = Some(calls);
    }

    /// Whether the disk has stopped.
    pub fn is_stopped(&self) -> bool {
        self.lock_state().stopped
    }

    /// Calls that changed something, so far.
    pub fn mutations(&self) -> u64 {
        self.lock_state().mutations
    }

    /// The call of this kind after `skip` successful ones fails.
    pub fn fail(&self, call: Call, skip: u64, kind: io::ErrorKind) {
        self.lock_state().failures.push((call, skip, kind));
    }

    /// Bounds the sum of all files' sizes, in bytes; `None`: no bound.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.lock_state().capacity_bytes = capacity_bytes;
    }

    /// Sum of all files' sizes, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.lock_state().used_bytes()
    }

    /// Changes one bit of a file, durably.
    ///
    /// # Panics
    /// When there is no such bit.
    pub fn flip_bit(&self, name: &str, bit: usize) {
        let mut state = self.lock_state();
        let file = state.names[name];
        let file = &mut state.files[file];
        file.bytes[bit / 8] ^= 1 << (bit % 8);
        if let Some(byte) = file.durable.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// The bytes of a file.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock_state();
        state.names.get(name).map(|&file| state.files[file].bytes.clone())
    }

    /// Puts a file with these bytes, durably.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.lock_state();
        let file = state.files.len();
        state.files.push(MemFile {
            bytes: bytes.to_vec(),
            durable: bytes.to_vec(),
            dirty: BTreeSet::new(),
        });
        state.names.insert(name.to_owned(), file);
        state.durable_names.insert(name.to_owned(), file);
    }

    /// A disk with the same files, all durable.
    pub fn copy(&self) -> MemDisk {
        let state = self.lock_state();
        let copy = MemDisk::new();
        for (name, &file) in &state.names {
            copy.put(name, &state.files[file].bytes);
        }
        copy
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl MemFile {
    fn lose_power(&mut self, random: &mut Random) {
        let shortest = self.durable.len().min(self.bytes.len());
        let longest = self.durable.len().max(self.bytes.len());
        let len = match random.below(3) {
            0 => self.durable.len(),
            1 => self.bytes.len(),
            _ => shortest + random.below((longest - shortest) as u64 + 1) as usize,
        };
        let mut after = self.durable.clone();
        after.resize(len, 0);
        for &sector in &self.dirty {
            let from = (sector * SECTOR).min(len);
            let to = (from + SECTOR).min(len);
            match random.below(3) {
                0 => {}
                1 => {
                    let until = to.min(self.bytes.len()).max(from);
                    let written =
                        &self.bytes[from.min(self.bytes.len())..until.min(self.bytes.len())];
                    after[from..from + written.len()].copy_from_slice(written);
                }
                _ => after[from..to].fill_with(|| random.next() as u8),
            }
        }
        self.bytes.clone_from(&after);
        self.durable = after;
        self.dirty.clear();
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / SECTOR..=(end - 1) / SECTOR);
    }
}

impl State {
    fn revive(&mut self) {
        self.locked = false;
        self.stopped = false;
        self.stop_after = None;
        self.failures.clear();
    }

    fn used_bytes(&self) -> u64 {
        self.names.values().map(|&file| self.files[file].bytes.len() as u64).sum()
    }

    /// Whether the call goes through; `Ok(true)` if it is the last one before a stop.
    fn enter(&mut self, call: Call) -> io::Result<bool> {
        if self.stopped {
            return Err(io::Error::other("the disk has stopped"));
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
            return Ok(false);
        }
        self.mutations += 1;
        match &mut self.stop_after {
            Some(0) => {
                self.stopped = true;
                Ok(true)
            }
            Some(left) => {
                *left -= 1;
                Ok(false)
            }
            None => Ok(false),
        }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn stopped<T>() -> io::Result<T> {
    Err(io::Error::other("the disk has stopped"))
}

impl Disk for MemDisk {
    fn lock(&self) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.locked = true;
        Ok(())
    }

    fn unlock(&self) {
        self.lock_state().locked = false;
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.lock_state();
        if state.stopped { stopped() } else { Ok(state.names.keys().cloned().collect()) }
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        let state = self.lock_state();
        let file = state.find(name)?;
        Ok(state.files[file].bytes.len() as u64)
    }

    fn create(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.enter(Call::Create)? {
            return stopped();
        }
        if let Ok(file) = state.find(name) {
            let file = &mut state.files[file];
            let sectors = file.bytes.len().div_ceil(SECTOR);
            file.dirty.extend(0..sectors);
            file.bytes.clear();
            return Ok(());
        }
        let file = state.files.len();
        state.files.push(MemFile::default());
        state.names.insert(name.to_owned(), file);
        state.changes.push(Change::Name(name.to_owned(), file));
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock_state();
        let file = state.find(name)?;
        let offset = usize::try_from(offset).expect("test files fit into memory");
        let grows = (offset + bytes.len()).saturating_sub(state.files[file].bytes.len()) as u64;
        if grows > 0 && state.capacity_bytes.is_some_and(|most| state.used_bytes() + grows > most) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let cut = bytes.len() / 2;
        match state.enter(Call::Write) {
            Ok(false) => {
                state.files[file].write(offset, bytes);
                Ok(())
            }
            Ok(true) => {
                // Anywhere, not only at sector borders: a killed process stops between any two copies.
                let cut = (state.mutations as usize).wrapping_mul(7919) % (bytes.len() + 1);
                state.files[file].write(offset, &bytes[..cut]);
                stopped()
            }
            Err(error) => {
                if !state.stopped {
                    state.files[file].write(offset, &bytes[..cut]);
                }
                Err(error)
            }
        }
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.lock_state();
        let file = state.find(name)?;
        state.enter(Call::Read)?;
        let bytes = &state.files[file].bytes;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn sync_data(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        let file = state.find(name)?;
        match state.enter(Call::Sync) {
            Ok(false) => {
                let file = &mut state.files[file];
                file.durable.clone_from(&file.bytes);
                file.dirty.clear();
                Ok(())
            }
            Ok(true) => stopped(),
            Err(error) => {
                if !state.stopped {
                    // The pages are clean now, and nowhere.
                    let file = &mut state.files[file];
                    file.bytes.clone_from(&file.durable);
                    file.dirty.clear();
                }
                Err(error)
            }
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.enter(Call::SyncDir)? {
            return stopped();
        }
        state.durable_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        let file = state.find(from)?;
        if state.enter(Call::Rename)? {
            return stopped();
        }
        state.names.remove(from);
        state.names.insert(to.to_owned(), file);
        state.changes.push(Change::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        state.find(name)?;
        if state.enter(Call::Remove)? {
            return stopped();
        }
        state.names.remove(name);
        state.changes.push(Change::Remove(name.to_owned()));
        Ok(())
    }
}
