//! What can go wrong, in sentences for an operator.

use std::fmt;
use std::io;

/// What to do about bytes that are wrong: there is one copy of them here.
pub(crate) const DAMAGE_CURE: &str = "Restore the data directory from a copy, or start with \
                                      --salvage to go on without what is missing";

/// What the operating system says of a medium that does not give back what it has; the same on every Unix, and the standard library
/// has no kind for it.
pub(crate) const EIO: i32 = 5;

/// Whether that was said. Trying again will not help, as it may where somebody else has taken what a read needs.
pub(crate) fn is_bad_sector(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// Why a store could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process holds the data directory.
    Locked,
    /// The data directory cannot be written.
    NotWritable {
        /// What the operating system said.
        source: io::Error,
    },
    /// The data was written by a newer version of Forebay.
    NewerFormat {
        /// Version of the data.
        found: u32,
        /// Newest version this program reads.
        supported: u32,
    },
    /// Data that was durable is missing or does not match its checksum.
    Damaged {
        /// File, relative to the data directory.
        file: String,
        /// Offset of the first damaged byte range, in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Reading or writing failed.
    Io {
        /// What was attempted, with the file.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
        let what = what.into();
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                OpenError::NotWritable { source }
            }
            _ => OpenError::Io { what, source },
        }
    }

    /// Of what changes nothing, which nobody needs to be allowed to write for.
    pub(crate) fn reading(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
        let what = what.into();
        move |source| OpenError::Io { what, source }
    }

    pub(crate) fn damaged(file: &str, offset: u64, what: impl Into<String>) -> OpenError {
        OpenError::Damaged { file: file.to_owned(), offset, what: what.into() }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked => f.write_str(
                "the data directory is in use by another process (its LOCK file is held)",
            ),
            OpenError::NotWritable { source } => {
                write!(f, "the data directory cannot be written: {source}")
            }
            OpenError::NewerFormat { found, supported } => write!(
                f,
                "the data directory has format {found}, this program reads up to {supported}: \
                 use the newer Forebay that wrote it"
            ),
            OpenError::Damaged { file, offset, what } => {
                write!(f, "the store is damaged: {file} at byte {offset}: {what}. {DAMAGE_CURE}")
            }
            OpenError::Io { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::NotWritable { source } | OpenError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The store failed for good: a write or a sync did not succeed, or a run file is damaged. A failed
/// `fdatasync` may have dropped dirty pages, so trying again could report as durable what is not: the
/// only safe way on is to stop, and to recover from what the disk really holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailed {
    /// What was attempted, and what the operating system or the checksum said.
    pub what: String,
}

impl fmt::Display for StoreFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store failed and accepts nothing more: {}", self.what)
    }
}

impl std::error::Error for StoreFailed {}
