//! A slow disk where there is none: a few lines of C, preloaded into the broker, that make each flush
//! longer. Works for any dynamically linked broker and needs a C compiler, as building Forebay does.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("slow_disk.c");

/// A library that adds time to each flush of the program it is preloaded into.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    library: PathBuf,
    flush_us: u64,
}

impl SlowDisk {
    /// Builds it in `directory`; each flush takes `flush_us` more.
    pub(crate) fn build(directory: &Path, flush_us: u64) -> Result<SlowDisk, String> {
        let (source, library) = (directory.join("slow_disk.c"), directory.join("slow_disk.so"));
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .output()
            .map_err(|error| format!("a slow disk needs a C compiler, cc: {error}"))?;
        match built.status.success() {
            true => Ok(SlowDisk { library, flush_us }),
            false => Err(format!("cc: {}", String::from_utf8_lossy(&built.stderr).trim())),
        }
    }

    /// Makes the disk of a program that is to be started slow.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("FOREBAY_SLOW_DISK_US", self.flush_us.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_flush_takes_as_long_as_it_is_told_to() {
        let directory =
            std::env::temp_dir().join(format!("forebay-slow-disk-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let slow = SlowDisk::build(&directory, 50_000).unwrap();
        let file = directory.join("file");
        std::fs::write(&file, "bytes").unwrap();
        let mut sync = Command::new("sync");
        slow.apply(sync.arg("--data").arg(&file));
        let began = Instant::now();
        assert!(sync.status().unwrap().success());
        let elapsed_ms = began.elapsed().as_millis();
        std::fs::remove_dir_all(&directory).unwrap();
        // A lower bound holds on the busiest machine.
        assert!(elapsed_ms >= 50, "{elapsed_ms} ms");
    }
}
