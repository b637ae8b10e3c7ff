//! A RabbitMQ of our own to measure beside: loopback only, free ports, its own directory, its own epmd.
//!
//! The distribution's wrapper insists on a system user and system directories; the scripts behind it do not. Nothing
//! is set that an administrator would not find as installed.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::broker::Ground;
use crate::own_directory::OwnDirectory;
use crate::slow_disk::SlowDisk;

const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// How long it may take to start.
const START_PATIENCE: Duration = Duration::from_secs(90);
/// And to stop, before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// A node that runs. Dropped, it is stopped and its directory removed.
#[derive(Debug)]
pub(crate) struct RabbitMq {
    pub(crate) url: String,
    /// Of the Erlang virtual machine.
    pub(crate) pid: u32,
    disk: Option<SlowDisk>,
    _node: Node,
}

#[derive(Debug)]
struct Node {
    launcher: Child,
    /// Removed when both are gone.
    directory: OwnDirectory,
    epmd_port: u16,
}

impl RabbitMq {
    /// Whether there is one to start.
    pub(crate) fn is_installed() -> bool {
        Path::new(SERVER).exists()
    }

    /// Starts it on that ground, its data in a new directory below `parent`; returns when it takes clients.
    pub(crate) fn start(parent: &Path, ground: Ground) -> Result<RabbitMq, String> {
        if !RabbitMq::is_installed() {
            return Err(
                "there is no RabbitMQ to start here (Debian's package rabbitmq-server has one)"
                    .into(),
            );
        }
        let told = |error: std::io::Error| format!("{SERVER}: {error}");
        let directory = parent.join(format!("forebay-bench-rabbitmq-{}", std::process::id()));
        // From here on it goes whatever fails.
        let directory = OwnDirectory::make(directory).map_err(told)?;
        let [port, dist_port, epmd_port] = free_ports().map_err(told)?;
        fs::write(directory.join("enabled_plugins"), "[].\n").map_err(told)?;
        let (address, users) = match ground.far {
            true => ("0.0.0.0", "loopback_users = none\n"),
            false => ("127.0.0.1", ""),
        };
        // Two thousand connections at once, on few cores, take longer than the 10 s that it gives each.
        let settings = format!(
            "listeners.tcp.default = {address}:{port}\n\
             {users}\
             tcp_listen_options.backlog = 4096\n\
             handshake_timeout = 60000\n"
        );
        fs::write(directory.join("rabbitmq.conf"), settings).map_err(told)?;
        let output = File::create(directory.join("stdout")).map_err(told)?;
        let at = |name: &str| directory.join(name);
        // One of before would name a process that is somebody else's by now.
        let _ = fs::remove_file(at("pid"));
        let mut command = Command::new(SERVER);
        let disk = ground.flush_us.map(|us| SlowDisk::build(directory.path(), us)).transpose()?;
        if let Some(disk) = &disk {
            disk.apply(&mut command);
        }
        let launcher = command
            .env("HOME", directory.path())
            .env("ERL_EPMD_PORT", epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("bench{port}@localhost"))
            .env("RABBITMQ_NODE_PORT", port.to_string())
            .env("RABBITMQ_NODE_IP_ADDRESS", address)
            .env("RABBITMQ_DIST_PORT", dist_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_LOG_BASE", at("log"))
            .env("RABBITMQ_PID_FILE", at("pid"))
            .env("RABBITMQ_CONFIG_FILE", at("rabbitmq"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
            .env("RABBITMQ_CONF_ENV_FILE", at("no-env"))
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}",
            )
            // Otherwise schedulers spin on the cores that the generator needs.
            .env("RABBITMQ_SCHEDULER_BIND_TYPE", "u")
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(told)?)
            .stderr(output)
            .spawn()
            .map_err(told)?;
        let mut node = Node { launcher, directory, epmd_port };
        let pid = node.wait_until_ready(port)?;
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        Ok(RabbitMq { url, pid, disk, _node: node })
    }

    /// From now on each flush of its disk takes so many microseconds longer, if its [`Ground`] lets that change.
    pub(crate) fn set_flush(&self, flush_us: u32) -> Result<(), String> {
        let disk = self.disk.as_ref().ok_or("its disk is what it is")?;
        disk.set(flush_us)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Node {
    fn wait_until_ready(&mut self, port: u16) -> Result<u32, String> {
        let began = Instant::now();
        while began.elapsed() < START_PATIENCE {
            let pid = self.pid();
            // Listeners come last in its start, so an open port means that it is ready.
            if let (Some(pid), Ok(_)) = (pid, TcpStream::connect(("127.0.0.1", port))) {
                return Ok(pid);
            }
            if let Ok(Some(status)) = self.launcher.try_wait() {
                let said = fs::read_to_string(self.directory.join("stdout")).unwrap_or_default();
                let last = said.lines().rev().find(|line| !line.trim().is_empty());
                return Err(format!(
                    "RabbitMQ ended while starting ({status}): {}",
                    last.unwrap_or("")
                ));
            }
            sleep(POLL);
        }
        Err(format!("RabbitMQ was not ready after {} s", START_PATIENCE.as_secs()))
    }

    /// Of the Erlang virtual machine, once it has one.
    fn pid(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.directory.join("pid")).ok()?;
        pid.trim().parse().ok()
    }

    /// Also one that is not ready yet: the machine would outlive a launcher that is killed. Before it has a process
    /// the launcher is told, which stops what it has begun.
    fn stop(&mut self) {
        let launched = matches!(self.launcher.try_wait(), Ok(None)).then(|| self.launcher.id());
        let pid = self.pid().or(launched).and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            // It may be gone already; so may it be below.
            let _ = kill_process(pid, Signal::TERM);
            let began = Instant::now();
            while began.elapsed() < STOP_PATIENCE && test_kill_process(pid).is_ok() {
                // The launcher may be the process itself, and then is only gone once it is waited for.
                let _ = self.launcher.try_wait();
                sleep(POLL);
            }
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        let epmd = Command::new("epmd")
            .args(["-port", &self.epmd_port.to_string(), "-kill"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        drop(epmd); // without it there is nothing to stop
    }
}

/// Held together, so that they differ.
fn free_ports() -> std::io::Result<[u16; 3]> {
    let held = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    Ok([port(&held[0])?, port(&held[1])?, port(&held[2])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_not_ready_is_stopped_with_its_virtual_machine() {
        let path = std::env::temp_dir().join(format!("forebay-not-ready-{}", std::process::id()));
        let directory = OwnDirectory::make(path.clone()).unwrap();
        // As the distribution's launcher does: the machine is its child, and it waits for it.
        let script = "sleep 60 & echo $! > new; mv new pid; wait";
        let mut launcher = Command::new("sh");
        launcher.args(["-c", script]).current_dir(&path);
        // What should live on holds nothing of the tests open.
        launcher.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let launcher = launcher.spawn().unwrap();
        let node = Node { launcher, directory, epmd_port: 1 };
        let machine = loop {
            if let Some(pid) = node.pid() {
                break Pid::from_raw(pid as i32).unwrap();
            }
            std::thread::yield_now();
        };
        drop(node);
        assert!(test_kill_process(machine).is_err(), "it lives on");
        assert!(!path.exists());
    }
}
