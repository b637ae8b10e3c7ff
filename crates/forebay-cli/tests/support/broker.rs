//! `forebay serve` as a process: started, awaited, killed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_client::blocking::Connection;
use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// All it said on standard error.
    pub stderr: String,
}

impl Ended {
    /// The sentence for the operator: the last line, which `forebay: ` begins.
    pub fn sentence(&self) -> &str {
        let last = self.stderr.lines().last().unwrap_or_default();
        last.strip_prefix("forebay: ").unwrap_or_else(|| panic!("no sentence in: {}", self.stderr))
    }
}

/// How to start a broker.
#[derive(Clone, Debug)]
pub struct Start {
    arguments: Vec<String>,
    config: String,
    logs: PathBuf,
    file_size_max_bytes: Option<u64>,
    variables: Vec<(String, String)>,
}

impl Start {
    /// On a data directory inside `home`, where its configuration and log files go, too.
    pub fn on_disk(home: &Path) -> Start {
        let data = home.join("data");
        Start::bare(home).flag("--data-dir", data.to_str().expect("a path in UTF-8"))
    }

    /// With nothing on disk.
    pub fn in_memory(home: &Path) -> Start {
        let mut start = Start::bare(home);
        start.arguments.push("--in-memory".to_owned());
        start
    }

    /// With free ports and without a place for data.
    pub fn bare(home: &Path) -> Start {
        let arguments = ["--amqp", "127.0.0.1:0", "--http", "off"].map(str::to_owned).to_vec();
        Start {
            arguments,
            config: String::new(),
            logs: home.to_owned(),
            file_size_max_bytes: None,
            variables: Vec::new(),
        }
    }

    /// With nothing said at all.
    pub fn silent(home: &Path) -> Start {
        Start { arguments: Vec::new(), ..Start::bare(home) }
    }

    /// Adds a flag with its value.
    pub fn flag(mut self, name: &str, value: &str) -> Start {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Adds a flag without a value.
    pub fn switch(mut self, name: &str) -> Start {
        self.arguments.push(name.to_owned());
        self
    }

    /// Sets an environment variable; there are no others.
    pub fn variable(mut self, name: &str, value: &str) -> Start {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a line to the configuration file.
    pub fn line(mut self, line: &str) -> Start {
        self.config.push_str(line);
        self.config.push('\n');
        self
    }

    /// Lets no file of the broker grow beyond this (RLIMIT_FSIZE): a full disk for poor people.
    pub fn file_size_max(mut self, bytes: u64) -> Start {
        self.file_size_max_bytes = Some(bytes);
        self
    }

    fn command(&self) -> Command {
        let forebay = super::forebay();
        let mut command = match self.file_size_max_bytes {
            None => Command::new(forebay),
            // The shell ignores SIGXFSZ for us, so that a write fails with EFBIG instead of killing.
            Some(bytes) => {
                let blocks = bytes / 512;
                let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
                let mut command = Command::new("sh");
                command.arg("-c").arg(script).arg(forebay);
                command
            }
        };
        command.arg("serve").args(&self.arguments).env_clear();
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if !self.config.is_empty() {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let file = self.logs.join(format!("forebay-{number}.toml"));
            std::fs::write(&file, &self.config).expect("the configuration is written");
            command.arg("--config").arg(file);
        }
        command
    }

    /// Starts the process without waiting for anything.
    pub fn spawn(&self) -> Starting {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = self.logs.join(format!("stderr-{number}.log"));
        let stderr = File::create(&log).expect("a file for standard error");
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary starts");
        Starting { process: Process { child, log }, since: Instant::now() }
    }

    /// Starts it and waits until it is ready.
    pub fn ready(&self) -> Broker {
        match self.spawn().ready() {
            Ok(broker) => broker,
            Err(ended) => panic!("the broker did not start: {ended:?}"),
        }
    }

    /// Starts it and waits for its end; it must not become ready.
    pub fn refused(&self) -> Ended {
        match self.spawn().ready() {
            Ok(_) => panic!("the broker started"),
            Err(ended) => ended,
        }
    }
}

/// A child process that does not outlive the test.
#[derive(Debug)]
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }

    fn ended(&self, status: ExitStatus) -> Ended {
        let stderr = std::fs::read_to_string(&self.log).unwrap_or_default();
        Ended { code: status.code(), stderr }
    }

    fn wait(&mut self) -> Ended {
        match super::ended(&mut self.child) {
            Some(status) => self.ended(status),
            None => {
                let stderr = std::fs::read_to_string(&self.log).unwrap_or_default();
                panic!("the broker does not end; it said: {stderr}");
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            let from = said.len().saturating_sub(4000);
            eprintln!("the broker said: {}", said.get(from..).unwrap_or(&said));
        }
    }
}

/// A broker that may not be ready yet.
#[derive(Debug)]
pub struct Starting {
    process: Process,
    since: Instant,
}

impl Starting {
    /// Waits for the ready line, or for the end.
    pub fn ready(mut self) -> Result<Broker, Ended> {
        let stdout = self.process.child.stdout.take().expect("piped");
        let (sender, receiver) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let line = receiver.recv_timeout(PATIENCE).expect("ready or ended in good time");
        let ready_after = self.since.elapsed();
        if line.is_empty() {
            return Err(self.process.wait());
        }
        let amqp = line
            .strip_prefix("forebay ready amqp=")
            .and_then(|rest| rest.split([' ', ',']).next())
            .and_then(|address| address.parse().ok())
            .unwrap_or_else(|| panic!("not a ready line: {line}"));
        Ok(Broker { process: self.process, amqp, ready_after, line })
    }

    /// SIGKILL, wherever it has come to.
    pub fn kill(mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
    }
}

/// A broker that serves.
#[derive(Debug)]
pub struct Broker {
    process: Process,
    /// Where it speaks AMQP.
    pub amqp: SocketAddr,
    /// From the start of the process to its ready line.
    pub ready_after: Duration,
    /// The ready line.
    pub line: String,
}

impl Broker {
    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.amqp)
    }

    /// HOST:PORT of its HTTP endpoint.
    pub fn http(&self) -> String {
        let address = self.line.split("http=").nth(1).and_then(|rest| rest.split(' ').next());
        address.expect("the ready line names it").to_owned()
    }

    /// A logged-in connection.
    pub fn connect(&self) -> Connection {
        Connection::open(&self.url()).expect("login")
    }

    /// SIGKILL: no last words, no flush, nothing.
    pub fn kill(mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
    }

    /// The killing part alone, for whoever wants others to notice before the process is collected.
    pub fn signal_kill(&self) {
        self.process.signal(Signal::KILL);
    }

    /// Any other signal, without waiting.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGTERM without waiting.
    pub fn signal_stop(&self) {
        self.process.signal(Signal::TERM);
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(self) -> Ended {
        self.signal_stop();
        self.ended()
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Ended {
        self.process.wait()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.process.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Resident memory now and at its highest, in KiB, as the kernel counts.
    pub fn resident_kib(&self) -> (u64, u64) {
        let path = format!("/proc/{}/status", self.process.child.id());
        let status = std::fs::read_to_string(path).expect("the process runs");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("a known field");
            let number = line.split_whitespace().nth(1).expect("a number");
            number.parse::<u64>().expect("a number")
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}
