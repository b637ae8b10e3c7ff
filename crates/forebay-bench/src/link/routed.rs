//! A link of IP packets: TCP runs end to end over it, so that the round trip the kernel measures is the
//! link's, which no proxy can give. `wan.py` carries the packets over a tun device.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

const SCRIPT: &str = include_str!("wan.py");
/// By this name the machine reaches itself the long way.
const FAR: &str = "198.19.0.2";

/// A long way to the ports of this machine. Dropped, it ends.
#[derive(Debug)]
pub struct RoutedLink {
    child: Child,
    commands: Mutex<ChildStdin>,
}

impl RoutedLink {
    /// A round trip in microseconds, and bytes a second in each direction, `None` = as fast as they come. A
    /// bandwidth has a queue of a tenth of a second before it, or 64 KiB if that is more; beyond it packets
    /// are lost, and TCP hears of it.
    ///
    /// Needs Python 3, `ip`, root, and a network namespace of its own: `unshare --net PROGRAM`. Where
    /// there are routes already the link would be in somebody's way, so it is not made.
    ///
    /// # Errors
    /// If one of them is missing.
    pub fn start(rtt_us: u64, bytes_per_s: Option<u64>) -> io::Result<RoutedLink> {
        let routes = std::fs::read_to_string("/proc/self/net/route")?;
        // A line of titles, and perhaps our own device's from before.
        if routes.lines().skip(1).any(|line| !line.starts_with("wan0")) {
            return Err(io::Error::other(
                "a routed link needs a network namespace of its own: unshare --net PROGRAM",
            ));
        }
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT, &bytes_per_s.unwrap_or(0).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("pipes were asked for"));
        };
        let link = RoutedLink { child, commands: Mutex::new(commands) };
        let mut ready = String::new();
        BufReader::new(output).read_line(&mut ready)?;
        if ready != "ready\n" {
            return Err(io::Error::other("the routed link did not start: is this root?"));
        }
        link.set_rtt(rtt_us)?;
        Ok(link)
    }

    /// Where a port of this machine is, by way of the link.
    pub fn address(&self, port: u16) -> String {
        format!("{FAR}:{port}")
    }

    /// A new network namespace has a loopback that is down, and brokers listen there before there is a link.
    ///
    /// # Errors
    /// Without `ip`, or root.
    pub fn raise_loopback() -> io::Result<()> {
        let raised = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        match raised.success() {
            true => Ok(()),
            false => Err(io::Error::other("ip link set lo up failed: is this root?")),
        }
    }

    /// Another length, in microseconds there and back.
    ///
    /// # Errors
    /// If the link has ended.
    pub fn set_rtt(&self, rtt_us: u64) -> io::Result<()> {
        self.tell(&format!("rtt {rtt_us}\n"))
    }

    /// Nothing passes for so long; it waits.
    ///
    /// # Errors
    /// If the link has ended.
    pub fn stall(&self, time: Duration) -> io::Result<()> {
        self.tell(&format!("stall {}\n", time.as_micros()))
    }

    fn tell(&self, line: &str) -> io::Result<()> {
        let mut commands = self.commands.lock().map_err(|_| io::Error::other("a panic before"))?;
        commands.write_all(line.as_bytes())?;
        commands.flush()
    }
}

impl Drop for RoutedLink {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
