//! A part of a segment's file in memory, which moves on to where it is read.

use std::io;

use crate::disk::Disk;
use crate::error::OpenError;

/// Most bytes of a segment in memory at a time, unless one batch or record is larger.
const WINDOW_BYTES: usize = 4 << 20;

/// Reads a segment from front to back.
pub(crate) struct Window<'a> {
    disk: &'a dyn Disk,
    name: &'a str,
    file_bytes: u64,
    /// Where in the file `bytes` begin.
    begins: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(crate) fn open(disk: &'a dyn Disk, name: &'a str) -> Result<Window<'a>, OpenError> {
        let file_bytes = disk.len(name).map_err(OpenError::reading(format!("read {name}")))?;
        Ok(Window { disk, name, file_bytes, begins: 0, bytes: Vec::new() })
    }

    /// How long the file was when it was opened, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// What the file holds from `offset` on: `wanted_bytes` and perhaps more, and less only if it ends before.
    pub(crate) fn from(&mut self, offset: u64, wanted_bytes: usize) -> Result<&[u8], OpenError> {
        let left = self.file_bytes.saturating_sub(offset);
        let at_most = usize::try_from(left).unwrap_or(usize::MAX);
        let wanted = wanted_bytes.min(at_most);
        let at = offset.checked_sub(self.begins).and_then(|at| usize::try_from(at).ok());
        if let Some(at) = at
            && at.checked_add(wanted).is_some_and(|end| end <= self.bytes.len())
        {
            return Ok(&self.bytes[at..]);
        }
        let what = || format!("read {}", self.name);
        let len = wanted.max(WINDOW_BYTES).min(at_most);
        if len > self.bytes.capacity() {
            // Growing would keep both until one is copied.
            drop(std::mem::take(&mut self.bytes));
            let room = self.bytes.try_reserve_exact(len);
            room.map_err(|_| OpenError::reading(what())(io::ErrorKind::OutOfMemory.into()))?;
        }
        self.bytes.resize(len, 0);
        self.begins = offset;
        let read = self.disk.read_at(self.name, offset, &mut self.bytes);
        self.bytes.truncate(read.map_err(OpenError::reading(what()))?);
        Ok(&self.bytes)
    }
}
