//! Files and their names: those that the process sees, and those that a power loss leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::faults::Stray;
use super::file::{MemFile, SECTOR};
use super::random::Random;

/// What a power loss makes of one thing that was not synced.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It did not happen.
    Old,
    /// It happened.
    New,
    /// A sector holds bytes that follow from the seed, a length is between the two; a name is old.
    Garbage(u64),
}

/// One thing that was not synced when the power went; see [`MemDisk::lose_power`](super::MemDisk::lose_power).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unsynced<'a> {
    /// A creation, rename or removal; the name that it made or took away.
    Name(&'a str),
    /// The length of this file.
    Length(&'a str),
    /// This sector of this file, counted from 0.
    Sector(&'a str, usize),
}

/// A file, whatever its names are.
type FileId = u64;

#[derive(Debug, Default, Clone)]
pub(super) struct Directory {
    /// Those that have a name, or may have one after a power loss.
    files: BTreeMap<FileId, MemFile>,
    next_file: FileId,
    /// As the process sees them.
    names: BTreeMap<String, FileId>,
    /// As they survive a power loss.
    durable_names: BTreeMap<String, FileId>,
    /// What happened to names since the last directory sync, in order.
    changes: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Name(String, FileId),
    Rename(String, String, FileId),
    Remove(String),
}

impl Directory {
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names.values().map(|file| self.files[file].len() as u64).sum()
    }

    pub(super) fn find(&self, name: &str) -> io::Result<FileId> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn file(&self, name: &str) -> io::Result<&MemFile> {
        Ok(&self.files[&self.find(name)?])
    }

    pub(super) fn file_mut(&mut self, name: &str) -> io::Result<&mut MemFile> {
        let file = self.find(name)?;
        Ok(self.files.get_mut(&file).expect("names lead to files"))
    }

    /// Puts a file with these bytes, durably.
    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>) {
        let file = self.add(MemFile::durable(bytes));
        self.names.insert(name.to_owned(), file);
        self.durable_names.insert(name.to_owned(), file);
    }

    pub(super) fn create(&mut self, name: &str) {
        if let Ok(file) = self.file_mut(name) {
            file.empty();
            return;
        }
        let file = self.add(MemFile::default());
        self.names.insert(name.to_owned(), file);
        self.changes.push(Change::Name(name.to_owned(), file));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let file = self.find(from)?;
        self.names.remove(from);
        self.names.insert(to.to_owned(), file);
        self.changes.push(Change::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.names.remove(name);
        self.changes.push(Change::Remove(name.to_owned()));
    }

    pub(super) fn sync(&mut self) {
        self.durable_names.clone_from(&self.names);
        self.changes.clear();
        self.drop_nameless();
    }

    /// How many things a power loss decides.
    pub(super) fn unsynced(&self) -> usize {
        let of_file = |file: &MemFile| file.dirty() + usize::from(file.durable_len() != file.len());
        self.changes.len() + self.files.values().map(of_file).sum::<usize>()
    }

    /// Asks about names first, in the order of their changes, then file by file about length and sectors.
    pub(super) fn lose_power(&mut self, fate: &mut dyn FnMut(Unsynced<'_>) -> Fate) {
        for change in std::mem::take(&mut self.changes) {
            let (Change::Name(name, _) | Change::Rename(_, name, _) | Change::Remove(name)) =
                &change;
            if fate(Unsynced::Name(name)) != Fate::New {
                continue;
            }
            match change {
                Change::Name(name, file) => {
                    self.durable_names.insert(name, file);
                }
                Change::Rename(from, to, file) => {
                    self.durable_names.remove(&from);
                    self.durable_names.insert(to, file);
                }
                Change::Remove(name) => {
                    self.durable_names.remove(&name);
                }
            }
        }
        self.names.clone_from(&self.durable_names);
        self.drop_nameless();
        let names: BTreeMap<FileId, &str> =
            self.names.iter().map(|(name, &file)| (file, name.as_str())).collect();
        for (id, file) in &mut self.files {
            let name = names[id];
            let (old, new) = (file.durable_len(), file.len());
            let len = if old == new {
                new
            } else {
                match fate(Unsynced::Length(name)) {
                    Fate::Old => old,
                    Fate::New => new,
                    Fate::Garbage(seed) => {
                        old.min(new) + Random::new(seed).below(old.abs_diff(new) + 1)
                    }
                }
            };
            file.settle(len, |sector| fate(Unsynced::Sector(name, sector)));
        }
    }

    /// A write that goes elsewhere; the file it was for exists.
    pub(super) fn write_astray(&mut self, name: &str, offset: usize, bytes: &[u8], stray: Stray) {
        let (lost, target) = match stray {
            Stray::Lost => (0..bytes.len(), None),
            Stray::To(target, at) => (0..bytes.len(), Some((target, at as usize / SECTOR))),
            Stray::Seeded(seed) => {
                let mut random = Random::new(seed);
                let sectors = bytes.len().div_ceil(SECTOR);
                let from = random.below(sectors);
                let to = from + 1 + random.below(sectors - from);
                let lost = (from * SECTOR).min(bytes.len())..(to * SECTOR).min(bytes.len());
                let names = self.names.keys();
                let target = names.clone().nth(random.below(names.len())).expect("one is written");
                let at = random.below(self.files[&self.names[target]].len() / SECTOR);
                let home = target == name && at == offset / SECTOR + from;
                let target = (random.below(3) > 0 && !home).then(|| (target.clone(), at));
                (lost, target)
            }
        };
        let file = self.file_mut(name).expect("the caller found it");
        file.write(offset, &bytes[..lost.start]);
        file.grow(offset + lost.end);
        file.write(offset + lost.end, &bytes[lost.end..]);
        if let Some((target, sector)) = target
            && let Ok(file) = self.file_mut(&target)
        {
            file.overwrite_medium(sector * SECTOR, &bytes[lost]);
        }
    }

    fn add(&mut self, file: MemFile) -> FileId {
        self.next_file += 1;
        self.files.insert(self.next_file, file);
        self.next_file
    }

    /// A file is gone for good when no power loss can give it a name any more.
    fn drop_nameless(&mut self) {
        let named: BTreeSet<_> = self.names.values().chain(self.durable_names.values()).collect();
        self.files.retain(|file, _| named.contains(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_no_power_loss_brings_back_are_freed() {
        let mut directory = Directory::default();
        directory.put("a", vec![1]);
        directory.put("b", vec![2]);
        directory.remove("a");
        assert_eq!((directory.files.len(), directory.unsynced()), (2, 1));
        directory.rename("b", "c").unwrap();
        directory.lose_power(&mut |unsynced| {
            if unsynced == Unsynced::Name("a") { Fate::New } else { Fate::Old }
        });
        assert_eq!(directory.names().collect::<Vec<_>>(), ["b"]);
        assert_eq!((directory.files.len(), directory.unsynced()), (1, 0));
    }
}
