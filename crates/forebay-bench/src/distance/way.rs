//! The way to the broker: loopback as it is, a proxy with a length, or packets that take their time.

use std::time::Duration;

use super::broker::Broker;
use crate::link::{Conditions, LinkProxy, RoutedLink};

/// How clients reach the broker.
#[derive(Debug)]
pub(super) enum Way {
    /// Loopback.
    Direct,
    /// Its round trip is not the kernel's.
    Proxy(LinkProxy),
    /// Its round trip is the kernel's.
    Routed(RoutedLink),
}

impl Way {
    /// One of so many milliseconds there and back; 0 and no bandwidth are loopback.
    pub(super) fn to(broker: &Broker, rtt_ms: f64, mbit: f64, routed: bool) -> Result<Way, String> {
        let rtt_us = (rtt_ms * 1e3) as u64;
        let bytes_per_s = (mbit > 0.0).then_some(((mbit * 125_000.0) as u64).max(1));
        match (rtt_ms > 0.0 || mbit > 0.0, routed) {
            (false, _) => Ok(Way::Direct),
            (true, true) => {
                let link = RoutedLink::start(rtt_us, bytes_per_s);
                link.map(Way::Routed).map_err(|error| error.to_string())
            }
            (true, false) => {
                let conditions = Conditions { rtt_us, jitter_us: 0, bytes_per_s };
                let link = LinkProxy::start(broker.address()?, conditions);
                link.map(Way::Proxy).map_err(|error| error.to_string())
            }
        }
    }

    /// The broker's URL this way.
    pub(super) fn url(&self, broker: &Broker) -> Result<String, String> {
        match self {
            Way::Direct => Ok(broker.url.clone()),
            Way::Proxy(link) => Ok(broker.url_through(&link.address().to_string())),
            Way::Routed(link) => {
                let address = broker.address()?;
                let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
                let port = port.ok_or_else(|| format!("{address} has no port"))?;
                Ok(broker.url_through(&link.address(port)))
            }
        }
    }

    /// Whether what the kernel says of the client's sockets is true of the whole way.
    pub(super) fn is_the_kernels(&self) -> bool {
        !matches!(self, Way::Proxy(_))
    }

    /// Another length, in milliseconds.
    pub(super) fn set_rtt(&self, rtt_ms: f64) -> Result<(), String> {
        let rtt_us = (rtt_ms * 1e3) as u64;
        match self {
            Way::Direct => Err("loopback has its own length".to_owned()),
            Way::Proxy(link) => {
                let conditions = Conditions { rtt_us, ..Conditions::default() };
                link.set(conditions).map_err(|error| error.to_string())
            }
            Way::Routed(link) => link.set_rtt(rtt_us).map_err(|error| error.to_string()),
        }
    }

    /// Nothing passes for so long.
    pub(super) fn stall(&self, time: Duration) -> Result<(), String> {
        match self {
            Way::Direct => Err("loopback does not stall".to_owned()),
            Way::Proxy(link) => {
                link.stall(time);
                Ok(())
            }
            Way::Routed(link) => link.stall(time).map_err(|error| error.to_string()),
        }
    }
}
