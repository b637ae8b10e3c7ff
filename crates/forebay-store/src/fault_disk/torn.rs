//! Everything a power loss can leave.

use super::{Fate, MemDisk, Unsynced};

/// The disks that a power loss can make of one, see [`MemDisk::torn`].
pub struct Torn<'a> {
    disk: &'a MemDisk,
    walk: Walk,
    left: usize,
}

enum Walk {
    /// Every combination: the fate of each thing, in the order of asking; it is counted up like a number.
    All {
        digits: Vec<u8>,
        fates: u8,
    },
    Some {
        seed: u64,
    },
}

impl MemDisk {
    /// What a power loss can leave of this disk, which stays as it is. If the things that are not synced
    /// have at most `most` combinations of old, new and (sectors, lengths) garbage, all of them; else if
    /// they have at most that many of old and new, these; else `most` seeded choices.
    pub fn torn(&self, most: usize) -> Torn<'_> {
        let things = u32::try_from(self.unsynced()).unwrap_or(u32::MAX);
        let all = |fates: usize| fates.checked_pow(things).is_some_and(|count| count <= most);
        let walk = if all(3) {
            Walk::All { digits: Vec::new(), fates: 3 }
        } else if all(2) {
            Walk::All { digits: Vec::new(), fates: 2 }
        } else {
            Walk::Some { seed: 0 }
        };
        Torn { disk: self, walk, left: most }
    }
}

impl Iterator for Torn<'_> {
    type Item = MemDisk;

    fn next(&mut self) -> Option<MemDisk> {
        self.left = self.left.checked_sub(1)?;
        let disk = self.disk.fork();
        match &mut self.walk {
            Walk::Some { seed } => {
                *seed += 1;
                disk.power_loss(*seed);
            }
            Walk::All { digits, fates } => {
                let (mut asked, mut radix) = (0, Vec::new());
                disk.lose_power(|thing| {
                    if asked == digits.len() {
                        digits.push(0);
                    }
                    asked += 1;
                    radix.push(if matches!(thing, Unsynced::Name(_)) { 2 } else { *fates });
                    match digits[asked - 1] {
                        0 => Fate::Old,
                        1 => Fate::New,
                        _ => Fate::Garbage(asked as u64),
                    }
                });
                // The next number: the last digit that can grow grows, those behind it are asked afresh.
                while let Some(digit) = digits.pop() {
                    if digit + 1 < radix[digits.len()] {
                        digits.push(digit + 1);
                        break;
                    }
                }
                if digits.is_empty() {
                    self.left = 0;
                }
            }
        }
        Some(disk)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::disk::Disk;

    fn outcomes(disk: &MemDisk, most: usize) -> (usize, BTreeSet<Option<Vec<u8>>>) {
        let all: Vec<_> = disk.torn(most).map(|disk| disk.bytes("a")).collect();
        (all.len(), all.into_iter().collect())
    }

    #[test]
    fn short_histories_are_torn_in_every_way() {
        let disk = MemDisk::new();
        disk.put("a", &[b'o'; 1024]);
        assert_eq!(outcomes(&disk, 100), (1, [Some(vec![b'o'; 1024])].into()));
        disk.write_at("a", 0, &[b'n'; 1024]).unwrap();
        let (count, distinct) = outcomes(&disk, 100);
        assert_eq!((count, distinct.len()), (9, 9));
        let (count, distinct) = outcomes(&disk, 8);
        assert_eq!((count, distinct.len()), (4, 4), "without garbage");
        disk.remove("a").unwrap();
        let (count, distinct) = outcomes(&disk, 100);
        assert_eq!((count, distinct.len()), (10, 10), "gone, or there in nine ways");
        assert_eq!(outcomes(&disk, 3).0, 3, "three choices of many");
    }
}
