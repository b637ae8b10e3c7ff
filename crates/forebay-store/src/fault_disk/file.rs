//! One file of a [`MemDisk`](super::MemDisk): what the process sees, and what a power loss leaves.
//!
//! Only one copy of the bytes is kept, and for every sector written since the last sync what it held
//! then; so a write and a sync cost what was written, not what the file holds.

use std::collections::BTreeMap;

use super::Fate;
use super::random::Random;

/// The size of what a disk writes as a whole, in bytes.
pub(super) const SECTOR: usize = 512;

#[derive(Debug, Default, Clone)]
pub(super) struct MemFile {
    /// As the process sees it.
    bytes: Vec<u8>,
    /// Length as of the last sync.
    durable_len: usize,
    /// What the sectors written since then held, cut at `durable_len`; all others are as they were.
    old: BTreeMap<usize, Box<[u8]>>,
    /// Likewise what those hold on the medium whose sync failed; for the process they are as they were written, and
    /// synced.
    lost: BTreeMap<usize, Box<[u8]>>,
}

impl MemFile {
    /// A file whose bytes are durable.
    pub(super) fn durable(bytes: Vec<u8>) -> MemFile {
        MemFile { durable_len: bytes.len(), bytes, ..MemFile::default() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sectors written since the last sync.
    pub(super) fn dirty(&self) -> usize {
        self.old.len()
    }

    /// As of the last sync, in bytes.
    pub(super) fn durable_len(&self) -> usize {
        self.durable_len
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.remember(offset / SECTOR..(end - 1) / SECTOR + 1);
        self.grow(end);
        self.bytes[offset..end].copy_from_slice(bytes);
    }

    pub(super) fn empty(&mut self) {
        self.remember(0..self.durable_len.min(self.bytes.len()).div_ceil(SECTOR));
        self.bytes.clear();
    }

    pub(super) fn grow(&mut self, len: usize) {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
    }

    pub(super) fn sync(&mut self) {
        self.old.clear();
        self.durable_len = self.bytes.len();
    }

    /// What was written since the last sync is there as long as the power is, and no later sync is about it.
    pub(super) fn lose_unsynced(&mut self) {
        self.lost.append(&mut self.old);
    }

    /// Everything written since the last sync is gone.
    pub(super) fn forget_unsynced(&mut self) {
        self.settle(self.durable_len, |_| Fate::Old);
    }

    /// Gives each unsynced sector its fate and the file its length; all of it is durable then.
    pub(super) fn settle(&mut self, len: usize, mut fate: impl FnMut(usize) -> Fate) {
        let present = self.bytes.len();
        self.bytes.resize(len, 0);
        let lost = std::mem::take(&mut self.lost).into_iter();
        let lost: Vec<_> = lost.map(|(sector, old)| (sector, old, Fate::Old)).collect();
        let unsynced = std::mem::take(&mut self.old).into_iter();
        let unsynced = unsynced.map(|(sector, old)| (sector, old, fate(sector)));
        for (sector, old, fate) in lost.into_iter().chain(unsynced) {
            let from = (sector * SECTOR).min(len);
            let place = &mut self.bytes[from..(from + SECTOR).min(len)];
            match fate {
                Fate::New if from < present => {}
                Fate::New | Fate::Old => {
                    let kept = old.len().min(place.len());
                    place[..kept].copy_from_slice(&old[..kept]);
                    place[kept..].fill(0);
                }
                Fate::Garbage(seed) => {
                    let mut random = Random::new(seed);
                    place.fill_with(|| random.next() as u8);
                }
            }
        }
        self.durable_len = len;
    }

    /// The medium changes bytes by itself, as far as the file reaches: what is there now and what would
    /// be there after a power loss.
    pub(super) fn overwrite_medium(&mut self, offset: usize, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            self.change_medium(offset + index, |_| byte);
        }
    }

    pub(super) fn change_medium(&mut self, at: usize, change: impl Fn(u8) -> u8) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte = change(*byte);
        }
        let kept = self.old.get_mut(&(at / SECTOR)).or(self.lost.get_mut(&(at / SECTOR)));
        if let Some(old) = kept
            && let Some(byte) = old.get_mut(at % SECTOR)
        {
            *byte = change(*byte);
        }
    }

    /// Keeps what these sectors hold, where it is durable and not kept already.
    fn remember(&mut self, sectors: std::ops::Range<usize>) {
        for sector in sectors {
            let (bytes, durable_len) = (&self.bytes, self.durable_len);
            let lost = self.lost.remove(&sector);
            self.old.entry(sector).or_insert_with(|| {
                if let Some(lost) = lost {
                    return lost;
                }
                let from = (sector * SECTOR).min(durable_len);
                let to = (from + SECTOR).min(durable_len);
                bytes.get(from..to).unwrap_or_default().into()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> MemFile {
        let mut file = MemFile::durable(vec![1; 3 * SECTOR]);
        file.write(SECTOR + 10, &[2; SECTOR]);
        file.write(4 * SECTOR, &[3; 10]);
        file
    }

    #[test]
    fn what_was_not_synced_is_forgotten_and_nothing_else() {
        let mut file = written();
        assert_eq!(file.dirty(), 3);
        file.forget_unsynced();
        assert_eq!(file.bytes(), [1; 3 * SECTOR]);
        let mut file = written();
        let seen = file.bytes().to_vec();
        file.sync();
        file.write(0, b"later");
        file.forget_unsynced();
        assert_eq!(file.bytes(), seen);
    }

    #[test]
    fn what_a_failed_sync_lost_is_read_until_the_power_goes_unless_it_is_written_again() {
        for again in [false, true] {
            let mut file = written();
            let seen = file.bytes().to_vec();
            file.lose_unsynced();
            assert_eq!((file.bytes(), file.dirty()), (&seen[..], 0));
            if again {
                file.write(SECTOR, &seen[SECTOR..2 * SECTOR]);
            }
            file.sync();
            file.forget_unsynced();
            let mut expected = vec![1; 4 * SECTOR + 10];
            expected[3 * SECTOR..].fill(0);
            if again {
                expected[SECTOR..2 * SECTOR].copy_from_slice(&seen[SECTOR..2 * SECTOR]);
            }
            assert_eq!(file.bytes(), expected);
        }
    }

    #[test]
    fn sectors_meet_their_fates_one_by_one() {
        let mut file = written();
        let seen = file.bytes().to_vec();
        file.settle(seen.len(), |sector| if sector == 1 { Fate::Old } else { Fate::New });
        assert_eq!(file.bytes()[..2 * SECTOR], [1; 2 * SECTOR]);
        assert_eq!(file.bytes()[2 * SECTOR..], seen[2 * SECTOR..]);
        let mut file = written();
        file.settle(4 * SECTOR + 5, |_| Fate::Garbage(7));
        assert_eq!(file.bytes()[..SECTOR], [1; SECTOR]);
        assert_eq!(file.bytes()[3 * SECTOR..4 * SECTOR], [0; SECTOR], "never written");
        assert!(file.bytes()[4 * SECTOR..] != [3; 5]);
    }

    #[test]
    fn an_emptied_file_is_whole_again_if_that_was_not_synced() {
        let mut file = written();
        file.sync();
        let durable = file.bytes().to_vec();
        file.empty();
        file.write(0, &[9; 20]);
        let mut other = file.clone();
        file.forget_unsynced();
        assert_eq!(file.bytes(), durable);
        other.settle(20, |_| Fate::New);
        assert_eq!(other.bytes(), [9; 20]);
    }

    #[test]
    fn rot_reaches_what_is_there_and_what_is_durable() {
        let mut file = written();
        file.overwrite_medium(SECTOR, &[8; 20]);
        assert_eq!(file.bytes()[SECTOR..SECTOR + 20], [8; 20]);
        file.forget_unsynced();
        assert_eq!(file.bytes()[SECTOR..SECTOR + 20], [8; 20]);
        file.overwrite_medium(3 * SECTOR - 1, &[8; 20]);
        assert_eq!(file.len(), 3 * SECTOR, "the medium does not make files longer");
    }
}
