//! A slow disk where there is none: a few lines of C, preloaded into the broker, that make each flush
//! longer. Works for any dynamically linked broker and needs a C compiler, as building Forebay does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("slow_disk.c");

/// A library that adds time to each flush of the program it is preloaded into.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    library: PathBuf,
    /// Holds the time, which the library maps.
    more_us: PathBuf,
}

impl SlowDisk {
    /// Builds it in `directory`; each flush takes `flush_us` more, until that is [`set`](SlowDisk::set) anew.
    pub(crate) fn build(directory: &Path, flush_us: u32) -> Result<SlowDisk, String> {
        let (source, library) = (directory.join("slow_disk.c"), directory.join("slow_disk.so"));
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let disk = SlowDisk { library, more_us: directory.join("slow_disk.us") };
        File::create(&disk.more_us).map_err(|error| disk.told(&error))?;
        disk.set(flush_us)?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&disk.library, &source])
            .output()
            .map_err(|error| format!("a slow disk needs a C compiler, cc: {error}"))?;
        match built.status.success() {
            true => Ok(disk),
            false => Err(format!("cc: {}", String::from_utf8_lossy(&built.stderr).trim())),
        }
    }

    /// From now on each flush takes so much more.
    pub(crate) fn set(&self, flush_us: u32) -> Result<(), String> {
        // In place: the library has mapped these bytes.
        let file = File::options().write(true).open(&self.more_us);
        let set = file.and_then(|file| file.write_all_at(&flush_us.to_ne_bytes(), 0));
        set.map_err(|error| self.told(&error))
    }

    /// Makes the disk of a program that is to be started slow.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("FOREBAY_SLOW_DISK", &self.more_us);
    }

    fn told(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.more_us.display())
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
        slow.set(120_000).unwrap();
        let began = Instant::now();
        assert!(sync.status().unwrap().success());
        let slower_ms = began.elapsed().as_millis();
        std::fs::remove_dir_all(&directory).unwrap();
        // A lower bound holds on the busiest machine.
        assert!(elapsed_ms >= 50 && slower_ms >= 120, "{elapsed_ms} and {slower_ms} ms");
    }
}
