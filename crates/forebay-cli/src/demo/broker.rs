//! The broker of the demo: one of its own on a temporary directory, or any other by URL.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_client::{Binding, ChannelFault, Connection, Exchange, Queue, Topology};
use forebay_server::{Config, Data, Server};

use super::gauges::Gauges;
use super::station::{EXCHANGE, REGIONS, pattern_of, queue_of};
use crate::exit::Failure;
use crate::figures::thousands;

/// The broker under the demo.
pub(super) struct DemoBroker {
    pub(super) url: String,
    embedded: Option<Server>,
    /// Of the exchange and the queues, in this order, how many may be there by our declaration.
    declared: AtomicUsize,
}

impl DemoBroker {
    /// Starts a durable broker in this process, on a free loopback port, with its data in `dir`.
    pub(super) fn embedded(dir: &Path) -> Result<DemoBroker, String> {
        let config = Config {
            data: Data::Dir(dir.to_owned()),
            amqp: vec!["127.0.0.1:0".to_owned()],
            http: None,
            ..Config::default()
        };
        let server = Server::start(config).map_err(|error| error.to_string())?;
        let address = server.addresses().amqp[0];
        let url = format!("amqp://guest:guest@{address}/%2f");
        Ok(DemoBroker { url, embedded: Some(server), declared: AtomicUsize::new(0) })
    }

    /// Uses a broker that runs already.
    pub(super) fn other(url: &str) -> DemoBroker {
        DemoBroker { url: url.to_owned(), embedded: None, declared: AtomicUsize::new(0) }
    }

    /// Where it is, for people.
    pub(super) fn describe(&self) -> String {
        match &self.embedded {
            Some(server) => format!("a broker in this process at {}", server.addresses().amqp[0]),
            None => "the broker given by --url".into(),
        }
    }

    /// Declares a durable topic exchange and a durable queue a region, all empty.
    pub(super) async fn set_up(&self) -> Result<(), String> {
        let exchange = Topology::new().exchange(Exchange::durable(EXCHANGE, "topic"));
        let queues = REGIONS.map(|region| Topology::new().queue(Queue::durable(queue_of(region))));
        let bindings = REGIONS.into_iter().fold(Topology::new(), |topology, region| {
            topology.binding(Binding::new(queue_of(region), EXCHANGE, pattern_of(region)))
        });
        let connection = self.connect().await?;
        for (before, topology) in [exchange].into_iter().chain(queues).enumerate() {
            // It may be so though no answer comes. What is refused is somebody else's.
            self.declared.store(before + 1, Ordering::Relaxed);
            connection.declare(topology).await.map_err(|error| {
                if matches!(error.fault, ChannelFault::Refused(_)) {
                    self.declared.store(before, Ordering::Relaxed);
                }
                error.to_string()
            })?;
        }
        connection.declare(bindings).await.map_err(|error| error.to_string())?;
        // An earlier demo on the same broker may have been killed.
        let purge = async {
            let channel = connection.channel().await?;
            for region in REGIONS {
                channel.purge_queue(&queue_of(region)).await?;
            }
            channel.close().await
        };
        purge.await.map_err(|fault: ChannelFault| fault.to_string())?;
        connection.close().await.map_err(|lost| lost.to_string())
    }

    /// Deletes what was declared; returns the messages that were still in the queues.
    pub(super) async fn tear_down(&self) -> Result<u64, String> {
        let Some(queues) = self.declared.load(Ordering::Relaxed).checked_sub(1) else {
            return Ok(0);
        };
        let connection = self.connect().await?;
        let delete = async {
            let channel = connection.channel().await?;
            let mut left = 0;
            for region in REGIONS.into_iter().take(queues) {
                left += u64::from(channel.delete_queue(&queue_of(region), false, false).await?);
            }
            channel.delete_exchange(EXCHANGE, false).await?;
            channel.close().await?;
            Ok(left)
        };
        let left = delete.await.map_err(|fault: ChannelFault| fault.to_string())?;
        connection.close().await.map_err(|lost| lost.to_string())?;
        Ok(left)
    }

    /// A connection that is lost for good if it is lost.
    async fn connect(&self) -> Result<Connection, String> {
        let builder = Connection::builder().name("forebay demo").without_recovery();
        let opened = builder.open(&self.url).await;
        opened.map_err(|error| Failure::opening(&error, "`--url`").1)
    }

    /// Depth of each queue, for the view.
    pub(super) fn queues(&self, gauges: &Gauges) -> String {
        let snapshot = self.embedded.as_ref().and_then(Server::status);
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
        let snapshot = self.embedded.as_ref()?.status()?;
        Some(snapshot.broker.memory_bytes)
    }

    /// Stops the embedded broker.
    pub(super) fn stop(self) -> Result<(), String> {
        let Some(server) = self.embedded else { return Ok(()) };
        server.stop().map_err(|failed| failed.to_string())
    }
}
