//! A sync, and what is left of one that fails.
//!
//! ```text
//!   written ─► dirty pages ─► fdatasync ─┬─► on the medium
//!                  ▲                     └─► error: clean pages, and nothing on the medium
//!                  └─────── written again ──────────┘
//! ```
//!
//! Linux reports a failed write to one sync only, and may then keep the pages, marked clean, for everybody to read. The
//! process ends ([decision 12](../../../docs/decisions/0012-a-failed-sync-ends-the-process.md)), and the next start would read
//! them, sync nothing, be told that this went well, and free the older copies of what is in them. Where each batch is synced a
//! start carries the last one on ([`Tail`](crate::tail::Tail)); this is for the logs in which it may be many.

use std::io;
use std::ops::Range;

use crate::disk::Disk;

/// What is written again at a time, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Syncs a file; if that fails, these bytes are written once more, as many of them as can be read, and the next start's sync is
/// about them: on a disk that is broken it fails, too.
pub(crate) fn sync_written(disk: &dyn Disk, name: &str, written: Range<u64>) -> io::Result<()> {
    let synced = disk.sync_data(name);
    if synced.is_err() {
        // Where this fails as well, there is nothing left to try; the caller has the error that counts.
        let _ = write_again(disk, name, written);
    }
    synced
}

/// As far as the file reaches: what a file system has thrown away need not be written again.
fn write_again(disk: &dyn Disk, name: &str, written: Range<u64>) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = written.start;
    while at < written.end {
        let wanted = usize::try_from(written.end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let read = disk.read_at(name, at, &mut piece[..wanted])?;
        if read == 0 {
            break;
        }
        disk.write_at(name, at, &piece[..read])?;
        at += read as u64;
    }
    Ok(())
}
