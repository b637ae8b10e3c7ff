//! The broker of the demo: one of its own on a temporary directory, or any other by URL.

use std::path::PathBuf;

use forebay_client::blocking::{ChannelFault, Connection, DeclareExchange, DeclareQueue};
use forebay_server::{Config, Data, Server};

use super::gauges::Gauges;
use super::station::{EXCHANGE, REGIONS, pattern_of, queue_of};
use crate::figures::thousands;

/// The broker under the demo.
pub(super) struct DemoBroker {
    pub(super) url: String,
    embedded: Option<Embedded>,
}

struct Embedded {
    server: Server,
    dir: PathBuf,
}

impl DemoBroker {
    /// Starts a durable broker in this process, on a free loopback port and a new directory.
    pub(super) fn embedded() -> Result<DemoBroker, String> {
        let dir = std::env::temp_dir().join(format!("forebay-demo-{}", std::process::id()));
        let config = Config {
            data: Data::Dir(dir.clone()),
            amqp: vec!["127.0.0.1:0".to_owned()],
            http: None,
            ..Config::default()
        };
        let server = match Server::start(config) {
            Ok(server) => server,
            Err(error) => {
                // What it left behind is of no use; the start's own error is what matters.
                let _ = std::fs::remove_dir_all(&dir);
                return Err(error.to_string());
            }
        };
        let address = server.addresses().amqp[0];
        let url = format!("amqp://guest:guest@{address}/%2f");
        Ok(DemoBroker { url, embedded: Some(Embedded { server, dir }) })
    }

    /// Uses a broker that runs already.
    pub(super) fn other(url: &str) -> DemoBroker {
        DemoBroker { url: url.to_owned(), embedded: None }
    }

    /// Where it is and what it keeps, for people.
    pub(super) fn describe(&self) -> String {
        match &self.embedded {
            Some(embedded) => format!(
                "durable broker in this process at {}, data in {}",
                embedded.server.addresses().amqp[0],
                embedded.dir.display()
            ),
            None => "broker given by --url".into(),
        }
    }

    /// Declares a topic exchange and a durable queue a region.
    pub(super) fn set_up(&self) -> Result<(), String> {
        self.with_channel(|channel| {
            let durable = DeclareExchange { durable: true, ..Default::default() };
            channel.declare_exchange(EXCHANGE, "topic", durable)?;
            for region in REGIONS {
                let durable = DeclareQueue { durable: true, ..Default::default() };
                channel.declare_queue(&queue_of(region), durable)?;
                // An earlier demo on the same broker may have been killed.
                channel.purge_queue(&queue_of(region))?;
                channel.bind_queue(&queue_of(region), EXCHANGE, &pattern_of(region))?;
            }
            Ok(())
        })
    }

    /// Deletes what was declared; returns the messages that were still in the queues.
    pub(super) fn tear_down(&self) -> Result<u64, String> {
        self.with_channel(|channel| {
            let mut left = 0;
            for region in REGIONS {
                left += u64::from(channel.delete_queue(&queue_of(region))?);
            }
            channel.delete_exchange(EXCHANGE)?;
            Ok(left)
        })
    }

    fn with_channel<T>(
        &self,
        work: impl FnOnce(&mut forebay_client::blocking::Channel) -> Result<T, ChannelFault>,
    ) -> Result<T, String> {
        let connection = Connection::open_named(&self.url, Some("forebay demo"))
            .map_err(|error| error.to_string())?;
        let mut channel = connection.channel().map_err(|fault| fault.to_string())?;
        let done = work(&mut channel).map_err(|fault| fault.to_string())?;
        connection.close().map_err(|lost| lost.to_string())?;
        Ok(done)
    }

    /// Depth of each queue, for the view.
    pub(super) fn queues(&self, gauges: &Gauges) -> String {
        let snapshot = self.embedded.as_ref().and_then(|embedded| embedded.server.status());
        let Some(snapshot) = snapshot else {
            return format!("{} messages under way", thousands(gauges.under_way()));
        };
        let depth = |region: &str| {
            let name = queue_of(region);
            let queue = snapshot.broker.queues.iter().find(|queue| queue.name == name);
            queue.map_or(0, |queue| queue.ready + queue.unacked)
        };
        let depths = REGIONS.map(|region| format!("{region} {}", thousands(depth(region))));
        depths.join("   ")
    }

    /// Memory of messages in the embedded broker.
    pub(super) fn message_bytes(&self) -> Option<u64> {
        let snapshot = self.embedded.as_ref()?.server.status()?;
        Some(snapshot.broker.memory_bytes)
    }

    /// Stops the embedded broker and removes its data.
    pub(super) fn stop(self) -> Result<(), String> {
        let Some(Embedded { server, dir }) = self.embedded else { return Ok(()) };
        let stopped = server.stop().map_err(|failed| failed.to_string());
        let removed = std::fs::remove_dir_all(&dir)
            .map_err(|error| format!("cannot remove {}: {error}", dir.display()));
        stopped.and(removed)
    }
}
