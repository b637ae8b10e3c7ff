//! The broker that is measured: one that we start, or anybody's at a URL; its queue, and who empties it.

use std::ffi::OsString;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_client::{Connection, DeclareQueue};
use forebay_wire::{AmqpUri, TableBuf, Value};

/// How long a broker may take to start.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Deliveries that the one who empties a queue may hold.
const DRAIN_PREFETCH: u16 = 1_000;

/// A broker. Dropped, one that we started ends, and its directory goes.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) url: String,
    own: Option<(Child, PathBuf)>,
}

impl Broker {
    /// One that runs already.
    pub(super) fn at(url: &str) -> Broker {
        Broker { url: url.to_owned(), own: None }
    }

    /// `program serve` with default settings, its data below `directory`.
    pub(super) async fn start(program: &Path, directory: &Path) -> Result<Broker, String> {
        let told = |error: std::io::Error| format!("{}: {error}", program.display());
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.map_err(told)?.port();
        let directory = directory.join(format!("broker-{port}"));
        std::fs::create_dir_all(&directory).map_err(told)?;
        let log = File::create(directory.join("log")).map_err(told)?;
        let child = Command::new(program)
            .args(["serve", "--http", "off", "--log-level", "warn", "--amqp"])
            .arg(format!("127.0.0.1:{port}"))
            .arg("--data-dir")
            .arg(directory.join("data"))
            // A setting of the caller's shell must not change what is measured.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(told)?;
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let mut broker = Broker { url, own: Some((child, directory)) };
        let began = Instant::now();
        loop {
            match Connection::builder().without_recovery().open(&broker.url).await {
                Ok(connection) => {
                    let _ = connection.close().await; // it was only a question
                    return Ok(broker);
                }
                Err(error) if began.elapsed() > START_PATIENCE => return Err(error.to_string()),
                Err(_) => {}
            }
            if let Some((child, _)) = &mut broker.own
                && let Some(status) = child.try_wait().map_err(told)?
            {
                return Err(format!("{} ended at once: {status}", program.display()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its process, if it is ours.
    pub(super) fn pid(&self) -> Option<u32> {
        self.own.as_ref().map(|(child, _)| child.id())
    }

    /// `product version`, as it introduces itself.
    pub(super) async fn introduces_itself(&self) -> Result<String, String> {
        let connection = Connection::open(&self.url).await.map_err(|error| error.to_string())?;
        let server = connection.server();
        Ok(format!("{} {}", server.product, server.version))
    }

    /// Its address, for a link to lead to.
    pub(super) fn address(&self) -> Result<String, String> {
        let uri: AmqpUri = self.url.parse().map_err(|error| format!("{error}"))?;
        Ok(format!("{}:{}", uri.host, uri.port))
    }

    /// Its URL by way of another address.
    pub(super) fn url_through(&self, address: &str) -> String {
        // The authority ends where the virtual host or the query begins.
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("amqp", &self.url));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
        format!("{scheme}://{user}{address}{path}")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some((child, directory)) = &mut self.own {
            // It may have ended by itself, which the load has noticed.
            let _ = child.kill();
            let _ = child.wait();
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// A durable, empty queue, and perhaps a process that empties it.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: String,
    kind: Option<String>,
    drain: Option<Child>,
}

impl Queue {
    /// Declares `PREFIX.0`, emptied, of an `x-queue-type`.
    pub(super) async fn declare(
        broker: &Broker,
        prefix: &str,
        kind: Option<&str>,
        drain: bool,
    ) -> Result<Queue, String> {
        let mut queue =
            Queue { name: format!("{prefix}.0"), kind: kind.map(str::to_owned), drain: None };
        queue.delete(broker).await?;
        queue.messages(broker, false).await?;
        if drain {
            queue.drain = Some(start_drain(broker, prefix, kind)?);
        }
        Ok(queue)
    }

    /// Messages ready in it.
    pub(super) async fn messages(&self, broker: &Broker, passive: bool) -> Result<u32, String> {
        let connection = Connection::open(&broker.url).await.map_err(|error| error.to_string())?;
        let channel = connection.channel().await.map_err(|error| error.to_string())?;
        let mut arguments = TableBuf::new();
        if let Some(kind) = &self.kind {
            arguments.push(b"x-queue-type", Value::LongStr(kind.as_bytes()));
        }
        let how = DeclareQueue { passive, durable: true, arguments, ..DeclareQueue::default() };
        let declared = channel.declare_queue(&self.name, how).await;
        declared.map(|info| info.message_count).map_err(|error| error.to_string())
    }

    /// Ends its drain and deletes it.
    pub(super) async fn delete(&mut self, broker: &Broker) -> Result<(), String> {
        self.end_drain();
        let connection = Connection::open(&broker.url).await.map_err(|error| error.to_string())?;
        let channel = connection.channel().await.map_err(|error| error.to_string())?;
        channel
            .delete_queue(&self.name, false, false)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn end_drain(&mut self) {
        if let Some(mut drain) = self.drain.take() {
            let _ = drain.kill(); // gone already is as good
            let _ = drain.wait();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end_drain();
    }
}

/// `forebay-load` beside us, which consumes over no link and in a process of its own, so that neither its
/// acks nor its CPU time disturb the publishers.
fn start_drain(broker: &Broker, prefix: &str, kind: Option<&str>) -> Result<Child, String> {
    let program = beside_us("forebay-load")?;
    let prefetch = DRAIN_PREFETCH.to_string();
    let mut arguments: Vec<OsString> =
        ["-p", "0", "-c", "1", "--persistent", "--keep", "-t", "86400"]
            .map(OsString::from)
            .to_vec();
    arguments.extend(["--prefetch", &prefetch, "--queue-prefix", prefix].map(OsString::from));
    if let Some(kind) = kind {
        arguments.extend(["--queue-type", kind].map(OsString::from));
    }
    let mut command = Command::new(&program);
    // The URL may hold a password, which others could read in an argument.
    command.args(arguments).env("FOREBAY_URL", &broker.url);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map_err(|error| format!("{}: {error}", program.display()))
}

/// A program in the directory of this one.
pub(super) fn beside_us(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("where are we? {error}"))?;
    let program = own.with_file_name(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!(
            "{} is not there: build it the same way (cargo build -p forebay-bench -p forebay-cli)",
            program.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_its_user_and_virtual_host_on_a_detour() {
        let through = |url| Broker::at(url).url_through("127.0.0.1:7");
        assert_eq!(through("amqp://a:b@host:5672/%2f"), "amqp://a:b@127.0.0.1:7/%2f");
        assert_eq!(through("amqp://host?heartbeat=5"), "amqp://127.0.0.1:7?heartbeat=5");
        assert_eq!(through("amqp://host"), "amqp://127.0.0.1:7");
    }

    #[test]
    fn the_address_of_a_url_has_a_port() {
        assert_eq!(Broker::at("amqp://somewhere").address(), Ok("somewhere:5672".to_owned()));
    }
}
