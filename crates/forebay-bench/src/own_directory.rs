//! Directories of brokers of our own.

use std::path::{Path, PathBuf};

/// A new directory. Dropped, it is removed with everything in it.
#[derive(Debug)]
pub(crate) struct OwnDirectory(PathBuf);

impl OwnDirectory {
    /// Makes it, with all above it.
    pub(crate) fn make(path: PathBuf) -> std::io::Result<OwnDirectory> {
        std::fs::create_dir_all(&path)?;
        Ok(OwnDirectory(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        // Whatever is in the way, nothing better can be done here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
