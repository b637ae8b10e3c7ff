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

    /// What removes it where nothing is dropped any more: the broker in it has gigabytes, and may be at work.
    pub(super) fn clearing(&self) -> impl FnOnce() + Send + use<> {
        let dir = self.0.clone();
        move || clear(&dir)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        clear(&self.0);
    }
}

fn clear(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir) {
        say!("forebay: cannot remove {}: {error}", dir.display());
    }
}
