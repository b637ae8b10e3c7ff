//! A disk in memory that breaks on demand: for tests and simulations of the store and of the broker.
//!
//! The fault model:
//! - **Kill** ([`MemDisk::kill`]): the process is gone, what it wrote is not.
//! - **Power loss** ([`MemDisk::power_loss`]): of every file, each 512-byte sector written since the last
//!   successful sync is independently old, new or garbage; a file that grew has some length between. Of
//!   the directory, each creation, rename and removal since the last directory sync independently
//!   happened or not.
//! - **Errors** ([`MemDisk::fail`]): a call fails with an error of choice; a failed write may leave a part
//!   of its bytes; a failed sync drops what it was to make durable, as Linux does with dirty pages: at once, or, if
//!   so asked ([`MemDisk::set_shows_lost`]), for the medium only: it is read until the power goes, and no sync is about it.
//! - **Full disk** ([`MemDisk::set_capacity`]): writes that grow a file beyond it fail with `StorageFull`.
//! - **Stop** ([`MemDisk::stop_after`]): after so many more calls that change something, every call fails,
//!   the last write being cut short somewhere: a crash at any point of any request.
//! - **A bad sector** ([`MemDisk::set_unreadable`]): reads that come across it fail.
//! - **Rot** ([`MemDisk::flip_bit`]): a bit of the durable and of the present bytes changes.
//! - **Lost and misdirected writes** ([`MemDisk::stray_write`]): a write is reported done, and all or some
//!   of its sectors keep what they held, or land on sectors of another place or another file, durably.
//!   The file gets the length the write would have given it: that is metadata, written by itself.
//! - **Lying syncs** ([`MemDisk::set_lying`]): syncs report success and make nothing durable. No software
//!   survives this together with a power loss; it shows that a checker of durability can see.
//!
//! [`RecordingDisk`] gives a [`MemDisk`] for every moment of what was done to any other disk, and
//! [`MemDisk::torn`] what a power loss can leave of it.
//!
//! Not here: latency and a disk that hangs, which are matters of whoever owns the time and calls
//! [`perform`](crate::perform). Everything follows from the calls and their seeds.

mod directory;
mod faults;
mod file;
mod random;
mod recording;
mod torn;

use std::io;
use std::sync::Mutex;

use crate::disk::Disk;
use directory::Directory;
pub use directory::{Fate, Unsynced};
pub use faults::{Call, Stray};
use faults::{Faults, Passage, stopped};
use random::Random;
pub use recording::{Recorded, RecordingDisk};
pub use torn::Torn;

/// A directory in memory. Cheap enough to make one per test case.
#[derive(Debug, Default)]
pub struct MemDisk {
    state: Mutex<State>,
}

#[derive(Debug, Clone)]
struct State {
    locked: bool,
    directory: Directory,
    capacity_bytes: Option<u64>,
    /// Whether room can be had without writing.
    allocates: bool,
    /// Whether what a failed sync lost is read until the power goes.
    shows_lost: bool,
    /// The file and the byte of it that cannot be read.
    unreadable: Option<(String, u64)>,
    random: u64,
    faults: Faults,
}

impl Default for State {
    fn default() -> State {
        State {
            locked: false,
            directory: Directory::default(),
            capacity_bytes: None,
            allocates: true,
            shows_lost: false,
            unreadable: None,
            random: 0,
            faults: Faults::default(),
        }
    }
}

impl State {
    /// Whether so many bytes at this place of a file fit on the disk.
    fn room_for(&self, name: &str, offset: u64, bytes: u64) -> io::Result<()> {
        let grows = (offset + bytes).saturating_sub(self.directory.file(name)?.len() as u64);
        let most = self.capacity_bytes.unwrap_or(u64::MAX);
        if grows > 0 && self.directory.used_bytes() + grows > most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn revive(&mut self) {
        self.locked = false;
        self.faults.revive();
    }
}

impl MemDisk {
    /// An empty disk without faults.
    pub fn new() -> MemDisk {
        MemDisk::default()
    }

    /// The process was killed: its lock is free, its stop is over, everything it wrote is there. Faults
    /// that were to come do not come any more, but for the capacity and the lying.
    pub fn kill(&self) {
        self.lock_state().revive();
    }

    /// The power went: see the module's documentation; then as [`kill`](MemDisk::kill). The choices follow
    /// from `seed`.
    pub fn power_loss(&self, seed: u64) {
        let mut random = Random::new(seed);
        self.lose_power(|unsynced| {
            let fates = if matches!(unsynced, Unsynced::Name(_)) { 2 } else { 3 };
            match random.below(fates) {
                0 => Fate::Old,
                1 => Fate::New,
                _ => Fate::Garbage(random.next()),
            }
        });
    }

    /// The power went, and the caller says what became of each thing that was not synced. It is asked
    /// about names first, in the order of their changes, then file by file about length and sectors.
    pub fn lose_power(&self, mut fate: impl FnMut(Unsynced<'_>) -> Fate) {
        let mut state = self.lock_state();
        state.directory.lose_power(&mut fate);
        state.revive();
    }

    /// How many things a power loss would ask about, and decide.
    pub fn unsynced(&self) -> usize {
        self.lock_state().directory.unsynced()
    }

    /// After `calls` more calls that change something, every call fails; the last write of them is cut
    /// short at a place that follows from `calls`. [`kill`](MemDisk::kill) or
    /// [`power_loss`](MemDisk::power_loss) bring the disk back.
    pub fn stop_after(&self, calls: u64) {
        self.lock_state().faults.stop_after(calls);
    }

    /// Whether the disk has stopped.
    pub fn is_stopped(&self) -> bool {
        self.lock_state().faults.stopped
    }

    /// Calls that changed something, so far.
    pub fn mutations(&self) -> u64 {
        self.lock_state().faults.mutations
    }

    /// The call of this kind after `skip` successful ones fails.
    pub fn fail(&self, call: Call, skip: u64, kind: io::ErrorKind) {
        self.lock_state().faults.fail(call, skip, kind);
    }

    /// The write after `skip` others succeeds and goes astray.
    pub fn stray_write(&self, skip: u64, stray: Stray) {
        self.lock_state().faults.stray(skip, stray);
    }

    /// Strays that are still to come.
    pub fn strays(&self) -> usize {
        self.lock_state().faults.strays()
    }

    /// From now on syncs report success and do nothing, or are honest again.
    pub fn set_lying(&self, lying: bool) {
        self.lock_state().faults.lying = lying;
    }

    /// Whether what a failed sync was to make durable is read until the power goes, as the pages that Linux keeps; if not,
    /// which is so from the start, it is gone at once.
    pub fn set_shows_lost(&self, shows: bool) {
        self.lock_state().shows_lost = shows;
    }

    /// What [`Disk::random`] answers from now on; 0 until then.
    pub fn set_random(&self, random: u64) {
        self.lock_state().random = random;
    }

    /// Bounds the sum of all files' sizes, in bytes; `None`: no bound.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.lock_state().capacity_bytes = capacity_bytes;
    }

    /// Whether room can be had without writing to it, as on most file systems. It can unless this says otherwise.
    pub fn set_allocates(&self, allocates: bool) {
        self.lock_state().allocates = allocates;
    }

    /// From now on no read gives back this byte.
    pub fn set_unreadable(&self, name: &str, at: u64) {
        self.lock_state().unreadable = Some((name.to_owned(), at));
    }

    /// Sum of all files' sizes, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.lock_state().directory.used_bytes()
    }

    /// Changes one bit of a file, durably.
    ///
    /// # Panics
    /// When there is no such bit.
    pub fn flip_bit(&self, name: &str, bit: usize) {
        let mut state = self.lock_state();
        let file = state.directory.file_mut(name).expect("there is such a file");
        assert!(bit / 8 < file.len(), "{name} has no bit {bit}");
        file.change_medium(bit / 8, |byte| byte ^ 1 << (bit % 8));
    }

    /// The bytes of a file.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock_state();
        Some(state.directory.file(name).ok()?.bytes().to_vec())
    }

    /// Puts a file with these bytes, durably.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        self.lock_state().directory.put(name, bytes.to_vec());
    }

    /// A disk with the same files, all durable.
    pub fn copy(&self) -> MemDisk {
        let state = self.lock_state();
        let copy = MemDisk::new();
        for name in state.directory.names() {
            let file = state.directory.file(name).expect("it was listed");
            copy.put(name, file.bytes());
        }
        copy
    }

    /// A disk in the same state: what is not durable here is not durable there, and the same faults are
    /// to come.
    pub fn fork(&self) -> MemDisk {
        MemDisk { state: Mutex::new(self.lock_state().clone()) }
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

fn offset_of(offset: u64) -> usize {
    usize::try_from(offset).expect("test files fit into memory")
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

    fn random(&self) -> u64 {
        self.lock_state().random
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.lock_state();
        if state.faults.stopped {
            Err(stopped())
        } else {
            Ok(state.directory.names().cloned().collect())
        }
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(self.lock_state().directory.file(name)?.len() as u64)
    }

    fn create(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.faults.enter(Call::Create)? == Passage::Stops {
            return Err(stopped());
        }
        state.directory.create(name);
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock_state();
        state.room_for(name, offset, bytes.len() as u64)?;
        let offset = offset_of(offset);
        match state.faults.enter(Call::Write) {
            Ok(Passage::Whole) => {
                match state.faults.take_stray() {
                    Some(stray) => state.directory.write_astray(name, offset, bytes, stray),
                    None => state.directory.file_mut(name)?.write(offset, bytes),
                }
                Ok(())
            }
            Ok(Passage::Stops) => {
                // Anywhere, not only at sector borders: a killed process stops between any two copies.
                let cut = (state.faults.mutations as usize).wrapping_mul(7919) % (bytes.len() + 1);
                state.directory.file_mut(name)?.write(offset, &bytes[..cut]);
                Err(stopped())
            }
            Err(error) => {
                if !state.faults.stopped {
                    state.directory.file_mut(name)?.write(offset, &bytes[..bytes.len() / 2]);
                }
                Err(error)
            }
        }
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let mut state = self.lock_state();
        if !state.allocates {
            return Err(io::ErrorKind::Unsupported.into());
        }
        state.room_for(name, 0, bytes)?;
        if state.faults.enter(Call::Allocate)? == Passage::Stops {
            return Err(stopped());
        }
        state.directory.file_mut(name)?.grow(offset_of(bytes));
        Ok(())
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.lock_state();
        state.directory.find(name)?;
        state.faults.enter(Call::Read)?;
        if let Some((bad, at)) = &state.unreadable
            && bad == name
            && (offset..offset + buffer.len() as u64).contains(at)
        {
            return Err(io::Error::from_raw_os_error(crate::error::EIO));
        }
        let bytes = state.directory.file(name)?.bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn sync_data(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        state.directory.find(name)?;
        match state.faults.enter(Call::Sync) {
            Ok(Passage::Whole) => {
                if !state.faults.lying {
                    state.directory.file_mut(name)?.sync();
                }
                Ok(())
            }
            Ok(Passage::Stops) => Err(stopped()),
            Err(error) => {
                if !state.faults.stopped {
                    // The pages are clean now, and nowhere.
                    let shows_lost = state.shows_lost;
                    let file = state.directory.file_mut(name)?;
                    if shows_lost { file.lose_unsynced() } else { file.forget_unsynced() }
                }
                Err(error)
            }
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.faults.enter(Call::SyncDir)? == Passage::Stops {
            return Err(stopped());
        }
        if !state.faults.lying {
            state.directory.sync();
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        state.directory.find(from)?;
        if state.faults.enter(Call::Rename)? == Passage::Stops {
            return Err(stopped());
        }
        state.directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        state.directory.find(name)?;
        if state.faults.enter(Call::Remove)? == Passage::Stops {
            return Err(stopped());
        }
        state.directory.remove(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> MemDisk {
        let disk = MemDisk::new();
        disk.put("a", &[b'a'; 2048]);
        disk.put("b", &[b'b'; 2048]);
        disk
    }

    #[test]
    fn a_lost_write_is_reported_done_and_leaves_what_was_there() {
        let disk = disk();
        disk.stray_write(1, Stray::Lost);
        disk.write_at("a", 0, &[1; 512]).unwrap();
        disk.write_at("a", 1536, &[2; 1024]).unwrap();
        disk.write_at("a", 512, &[3; 512]).unwrap();
        let mut expected = vec![b'a'; 2560];
        expected[..512].fill(1);
        expected[512..1024].fill(3);
        expected[2048..].fill(0);
        assert_eq!(disk.bytes("a").unwrap(), expected, "only the length came");
    }

    #[test]
    fn a_misdirected_write_lands_durably_where_it_should_not() {
        let disk = disk();
        disk.stray_write(0, Stray::To("b".to_owned(), 1600));
        disk.write_at("a", 0, &[1; 1024]).unwrap();
        disk.power_loss(3);
        assert_eq!(disk.bytes("a").unwrap(), [b'a'; 2048]);
        assert_eq!(disk.bytes("b").unwrap()[..1536], [b'b'; 1536]);
        assert_eq!(disk.bytes("b").unwrap()[1536..], [1; 512], "as far as the file reaches");
    }

    #[test]
    fn a_seeded_stray_is_the_same_each_time_and_differs_from_seed_to_seed() {
        let after = |seed| {
            let disk = disk();
            disk.stray_write(0, Stray::Seeded(seed));
            disk.write_at("a", 0, &[1; 2048]).unwrap();
            (disk.bytes("a"), disk.bytes("b"))
        };
        let outcomes: Vec<_> = (0..64).map(after).collect();
        assert_eq!(outcomes, (0..64).map(after).collect::<Vec<_>>());
        let distinct: std::collections::BTreeSet<_> = outcomes.iter().collect();
        assert!(distinct.len() > 10, "{} outcomes", distinct.len());
        assert!(outcomes.iter().all(|(a, _)| a.as_deref() != Some(&[1; 2048])));
    }

    #[test]
    fn a_lying_disk_keeps_nothing_and_an_honest_one_everything() {
        for lying in [false, true] {
            let disk = disk();
            disk.set_lying(lying);
            disk.create("c").unwrap();
            disk.write_at("a", 0, &[1; 2048]).unwrap();
            disk.sync_data("a").unwrap();
            disk.sync_dir().unwrap();
            let lost = (0..8).any(|seed| {
                let copy = disk.fork();
                copy.power_loss(seed);
                copy.bytes("a").unwrap() != [1; 2048] || copy.bytes("c").is_none()
            });
            assert_eq!(lost, lying);
        }
    }
}
