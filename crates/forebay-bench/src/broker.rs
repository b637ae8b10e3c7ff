//! A broker of our own: `forebay serve` as a process, for as long as something is measured.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::own_directory::OwnDirectory;
use crate::slow_disk::SlowDisk;

/// What a broker stands on. `Default`: this machine's disk and its loopback.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ground {
    /// Each flush of its disk takes so many microseconds longer, which may be changed; `None`: it is what it is.
    pub(crate) flush_us: Option<u32>,
    /// It is reached by a [`RoutedLink`](crate::link::RoutedLink), from addresses that are not loopback's.
    pub(crate) far: bool,
}

/// A process that serves. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) url: String,
    child: Child,
    disk: Option<SlowDisk>,
    /// Removed when the process is gone.
    _directory: OwnDirectory,
}

impl Served {
    /// `program serve` with default settings on a free port of the loopback, its data in a new directory below
    /// `parent`; returns when it takes clients.
    pub(crate) fn start(program: &Path, parent: &Path) -> Result<Served, String> {
        Served::start_on(program, parent, Ground::default())
    }

    /// The same, on that ground.
    pub(crate) fn start_on(
        program: &Path,
        parent: &Path,
        ground: Ground,
    ) -> Result<Served, String> {
        let told = |error: std::io::Error| format!("{}: {error}", program.display());
        let directory = parent.join(format!("forebay-bench-{}", std::process::id()));
        let directory = (0..u32::MAX)
            .map(|number| directory.with_extension(number.to_string()))
            .find(|directory| !directory.exists())
            .ok_or("there is no free name for a directory")?;
        let told_of = |error| format!("cannot make {}: {error}", directory.display());
        // From here on it goes whatever fails.
        let directory = OwnDirectory::make(directory.clone()).map_err(told_of)?;
        let log_path = directory.join("log");
        let log = File::create(&log_path).map_err(told)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--http", "off", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(directory.join("data"))
            // A setting of the caller's shell must not change what is measured.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if ground.far {
            let configuration = directory.join("forebay.toml");
            std::fs::write(&configuration, "loopback_users = []\n").map_err(told)?;
            command.args(["--amqp", "0.0.0.0:0", "--config"]).arg(configuration);
        } else {
            command.args(["--amqp", "127.0.0.1:0"]);
        }
        let disk = ground.flush_us.map(|us| SlowDisk::build(directory.path(), us)).transpose()?;
        if let Some(disk) = &disk {
            disk.apply(&mut command);
        }
        let child = command.spawn().map_err(told)?;
        let mut served = Served { url: String::new(), child, disk, _directory: directory };
        let mut ready = String::new();
        if let Some(stdout) = served.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut ready).map_err(told)?;
        }
        let Some(address) = address_of(&ready) else {
            let said = std::fs::read_to_string(&log_path).unwrap_or_default();
            let last = said.lines().last().unwrap_or("it says nothing");
            return Err(format!("{} serve did not start: {last}", program.display()));
        };
        let address = address.replace("0.0.0.0", "127.0.0.1");
        served.url = format!("amqp://guest:guest@{address}/%2f");
        Ok(served)
    }

    /// From now on each flush of its disk takes so many microseconds longer, if its [`Ground`] lets that change.
    pub(crate) fn set_flush(&self, flush_us: u32) -> Result<(), String> {
        let disk = self.disk.as_ref().ok_or("its disk is what it is")?;
        disk.set(flush_us)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself, which the load has noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first AMQP address of a line like `forebay ready amqp=ADDR,ADDR http=… data=…`.
fn address_of(ready: &str) -> Option<&str> {
    let addresses = ready.strip_prefix("forebay ready amqp=")?;
    addresses.split([' ', ',', '\n']).next().filter(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_address() {
        assert_eq!(address_of("forebay ready amqp=127.0.0.1:7 data=x\n"), Some("127.0.0.1:7"));
        assert_eq!(address_of("forebay ready amqp=[::1]:7,127.0.0.1:8 data=x\n"), Some("[::1]:7"));
        assert_eq!(address_of(""), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_named_and_leaves_nothing() {
        let parent = std::env::temp_dir().join(format!("forebay-nowhere-{}", std::process::id()));
        let parent = OwnDirectory::make(parent).unwrap();
        let error = Served::start(Path::new("/nowhere/forebay"), parent.path()).unwrap_err();
        assert!(error.starts_with("/nowhere/forebay: "), "{error}");
        let left = std::fs::read_dir(parent.path()).unwrap().count();
        assert_eq!(left, 0, "nothing is left of it");
    }
}
