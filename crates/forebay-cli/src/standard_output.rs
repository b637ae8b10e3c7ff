//! Standard output: what was asked for, or all that is left of what a command takes. What is lost there has failed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{OFlags, fcntl_getfl};

/// Writes what was asked for. Who closes a pipe has read enough.
///
/// # Errors
/// A sentence.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of something that was written there.
///
/// # Errors
/// A sentence, unless a pipe was closed.
pub(crate) fn written(outcome: io::Result<()>) -> Result<(), String> {
    match outcome {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Refuses a standard output that was closed when we were started: what is written there goes nowhere, and nothing says so.
///
/// # Errors
/// A sentence.
pub(crate) fn must_be_open() -> Result<(), String> {
    // What cannot be looked at is no reason to do nothing.
    if !was_closed().unwrap_or(false) {
        return Ok(());
    }
    Err("standard output is closed (or /dev/null opened for reading as well), and all that is written there would be lost; to \
         lose it on purpose: >/dev/null"
        .into())
}

/// In place of what is closed Rust's runtime opens /dev/null, before anybody could look, for reading and writing. A shell's
/// `>/dev/null` is for writing alone.
fn was_closed() -> io::Result<bool> {
    let stdout = io::stdout();
    if fcntl_getfl(&stdout)? & OFlags::RWMODE != OFlags::RDWR {
        return Ok(false);
    }
    let meta = File::from(stdout.as_fd().try_clone_to_owned()?).metadata()?;
    let null = fs::metadata("/dev/null")?;
    Ok(meta.file_type().is_char_device() && meta.rdev() == null.rdev())
}
