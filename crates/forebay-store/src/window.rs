//! A part of a segment's file in memory, which moves on to where it is read.
//!
//! What the medium does not give back (`EIO`) is zeros here, block by block: their checksums are wrong, as those of other damage are.
//! Who has to know it asks, or [refuses it](Window::refusing).

use std::io;
use std::ops::Range;

use crate::disk::Disk;
use crate::error::{OpenError, is_bad_sector};
use crate::segment::BLOCK;

/// Most bytes of a segment in memory at a time, unless one batch or record is larger.
const WINDOW_BYTES: usize = 4 << 20;

/// Why bytes are none.
pub(crate) const UNREADABLE: &str = "the medium does not give back what is there (EIO)";

/// Reads a segment from front to back.
pub(crate) struct Window<'a> {
    disk: &'a dyn Disk,
    name: &'a str,
    file_bytes: u64,
    /// Where in the file `bytes` begin.
    begins: u64,
    bytes: Vec<u8>,
    /// What of these cannot be read, in order.
    unreadable: Vec<Range<u64>>,
    /// What was asked for and cannot be read, in the order in which it was asked for.
    missed: Vec<Range<u64>>,
    refuses: bool,
}

impl<'a> Window<'a> {
    pub(crate) fn open(disk: &'a dyn Disk, name: &'a str) -> Result<Window<'a>, OpenError> {
        let file_bytes = disk.len(name).map_err(OpenError::reading(format!("read {name}")))?;
        Ok(Window {
            disk,
            name,
            file_bytes,
            begins: 0,
            bytes: Vec::new(),
            unreadable: Vec::new(),
            missed: Vec::new(),
            refuses: false,
        })
    }

    /// The same, and it is an error to ask for what cannot be read, if that is so.
    pub(crate) fn refusing(self, refuses: bool) -> Window<'a> {
        Window { refuses, ..self }
    }

    /// How long the file was when it was opened, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// What was asked for and could not be read.
    pub(crate) fn missed(&self) -> &[Range<u64>] {
        &self.missed
    }

    /// What the file holds from `offset` on: `wanted_bytes` and perhaps more, and less only if it ends before.
    pub(crate) fn from(&mut self, offset: u64, wanted_bytes: usize) -> Result<&[u8], OpenError> {
        let left = self.file_bytes.saturating_sub(offset);
        let at_most = usize::try_from(left).unwrap_or(usize::MAX);
        let wanted = wanted_bytes.min(at_most);
        let at = offset.checked_sub(self.begins).and_then(|at| usize::try_from(at).ok());
        let at = match at {
            Some(at) if at.checked_add(wanted).is_some_and(|end| end <= self.bytes.len()) => at,
            _ => {
                self.move_to(offset, wanted.max(WINDOW_BYTES).min(at_most))?;
                0
            }
        };
        if !self.unreadable.is_empty() {
            self.miss(offset..offset + wanted as u64)?;
        }
        Ok(&self.bytes[at..])
    }

    fn move_to(&mut self, offset: u64, len: usize) -> Result<(), OpenError> {
        let what = || format!("read {}", self.name);
        if len > self.bytes.capacity() {
            // Growing would keep both until one is copied.
            drop(std::mem::take(&mut self.bytes));
            let room = self.bytes.try_reserve_exact(len);
            room.map_err(|_| OpenError::reading(what())(io::ErrorKind::OutOfMemory.into()))?;
        }
        self.bytes.resize(len, 0);
        self.begins = offset;
        self.unreadable.clear();
        let read = match self.disk.read_at(self.name, offset, &mut self.bytes) {
            Err(error) if is_bad_sector(&error) => self.read_blocks(),
            read => read,
        };
        self.bytes.truncate(read.map_err(OpenError::reading(format!("read {}", self.name)))?);
        Ok(())
    }

    /// Reads again, so that no more is missing than has to be.
    fn read_blocks(&mut self) -> io::Result<usize> {
        let mut at = 0;
        while at < self.bytes.len() {
            let offset = self.begins + at as u64;
            // To the end of its block in the file.
            let len = BLOCK - (offset % BLOCK as u64) as usize;
            let end = (at + len).min(self.bytes.len());
            let block = &mut self.bytes[at..end];
            match self.disk.read_at(self.name, offset, block) {
                Ok(read) if read < block.len() => return Ok(at + read),
                Ok(_) => {}
                Err(error) if is_bad_sector(&error) => {
                    block.fill(0);
                    add(&mut self.unreadable, offset..self.begins + end as u64);
                }
                Err(error) => return Err(error),
            }
            at = end;
        }
        Ok(at)
    }

    /// Notes what of these bytes cannot be read.
    fn miss(&mut self, wanted: Range<u64>) -> Result<(), OpenError> {
        for range in &self.unreadable {
            if range.start >= wanted.end || range.end <= wanted.start {
                continue;
            }
            if self.refuses {
                return Err(OpenError::damaged(self.name, range.start, UNREADABLE));
            }
            add(&mut self.missed, range.clone());
        }
        Ok(())
    }
}

/// Adds a range to those that are there, of which it may be one, or go on with the last.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    if ranges.iter().any(|there| there.start <= range.start && range.end <= there.end) {
        return;
    }
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
