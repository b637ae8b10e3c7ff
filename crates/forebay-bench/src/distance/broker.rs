//! The broker that is measured: one that we start, or anybody's at a URL; its queue, and who empties it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_client::{Connection, DeclareQueue};
use forebay_wire::{TableBuf, Value};

use crate::broker::{Ground, Served};
use crate::link::{address_of, url_through};
use crate::rabbitmq::RabbitMq;

/// Deliveries that the one who empties a queue may hold: more than are delivered while it waits for a processor. With 1000 it carried
/// 0.9 to 1.5 million messages a second beside twenty publishers, and what they published above that was the queue's.
const DRAIN_PREFETCH: u16 = 5_000;

/// How often a lost connection is tried again, with pauses that double.
const RECOVERY_ROUNDS: u32 = 3;
/// Nothing takes so long beside what is measured.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A broker. Dropped, one that we started ends, and its directory goes.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) url: String,
    own: Option<Own>,
}

/// One that we started.
#[derive(Debug)]
enum Own {
    Forebay(Served),
    RabbitMq(RabbitMq),
}

impl Broker {
    /// One that runs already.
    pub(super) fn at(url: &str) -> Broker {
        Broker { url: url.to_owned(), own: None }
    }

    /// `program serve` with default settings, its data below `directory`.
    pub(super) fn start(
        program: &Path,
        directory: &Path,
        ground: Ground,
    ) -> Result<Broker, String> {
        let served = Served::start_on(program, directory, ground)?;
        Ok(Broker { url: served.url.clone(), own: Some(Own::Forebay(served)) })
    }

    /// RabbitMQ as Debian installs it, its data below `directory`.
    pub(super) fn start_rabbitmq(directory: &Path, ground: Ground) -> Result<Broker, String> {
        let node = RabbitMq::start(directory, ground)?;
        Ok(Broker { url: node.url.clone(), own: Some(Own::RabbitMq(node)) })
    }

    /// Its process, if it is ours.
    pub(super) fn pid(&self) -> Option<u32> {
        self.own.as_ref().map(|own| match own {
            Own::Forebay(served) => served.pid(),
            Own::RabbitMq(node) => node.pid,
        })
    }

    /// From now on each flush of its disk takes so many milliseconds longer, if it is ours.
    pub(super) fn set_flush(&self, flush_ms: f64) -> Result<(), String> {
        let flush_us = (flush_ms * 1e3) as u32;
        match &self.own {
            Some(Own::Forebay(served)) => served.set_flush(flush_us),
            Some(Own::RabbitMq(node)) => node.set_flush(flush_us),
            None => Err("only the disk of a broker of our own is made slow".to_owned()),
        }
    }

    /// `product version`, as it introduces itself.
    pub(super) async fn introduces_itself(&self) -> Result<String, String> {
        let connection = Connection::open(&self.url).await.map_err(|error| error.to_string())?;
        let server = connection.server();
        Ok(format!("{} {}", server.product, server.version))
    }

    /// A connection that gives up when the broker is gone: what waits for it ends.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let builder = Connection::builder().recovery_rounds(RECOVERY_ROUNDS);
        builder.open(&self.url).await.map_err(|error| error.to_string())
    }

    /// Its address, for a link to lead to.
    pub(super) fn address(&self) -> Result<String, String> {
        address_of(&self.url)
    }

    /// Its URL by way of another address.
    pub(super) fn url_through(&self, address: &str) -> String {
        url_through(&self.url, address)
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
