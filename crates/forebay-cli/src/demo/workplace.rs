//! A directory for the time of the demo.

use std::path::{Path, PathBuf};

/// Removed with all in it when dropped.
#[derive(Debug)]
pub(super) struct Workplace(PathBuf);

impl Workplace {
    /// A new one among the system's temporary files.
    pub(super) fn new() -> Result<Workplace, String> {
        let dir = std::env::temp_dir().join(format!("forebay-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        Ok(Workplace(dir))
    }

    pub(super) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            say!("forebay: cannot remove {}: {error}", self.0.display());
        }
    }
}
