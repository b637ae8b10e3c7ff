//! Getting a stream to a broker: names to addresses, addresses to sockets, TLS on top where asked for.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::AmqpUri;

use super::kept_full::KeptFull;
use super::stream::{ByteStream, Stream};
use crate::error::OpenError;
use crate::tls::Tls;

/// How long each address of a host may take to accept unless `connection_timeout` says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A future of a stream that the user makes.
pub type StreamFuture = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// Where streams come from.
#[derive(Clone)]
pub(crate) enum Dialer {
    Hosts {
        hosts: Vec<(String, u16)>,
        timeout: Duration,
        tls: Option<Tls>,
    },
    /// `make` is told to which of the addresses; there is one, but in tests.
    Made {
        addresses: Vec<String>,
        make: Arc<dyn Fn(usize) -> StreamFuture + Send + Sync>,
    },
}

impl Dialer {
    pub(crate) fn from_uri(uri: &AmqpUri) -> Result<Dialer, OpenError> {
        Ok(Dialer::Hosts {
            hosts: uri.hosts().map(|(host, port)| (host.to_owned(), port)).collect(),
            timeout: uri
                .connection_timeout_ms
                .map_or(CONNECT_TIMEOUT, |ms| Duration::from_millis(u64::from(ms.max(1)))),
            tls: uri.tls.then(|| Tls::from_uri(uri)).transpose()?,
        })
    }

    /// How many places there are to try.
    pub(crate) fn places(&self) -> usize {
        match self {
            Dialer::Hosts { hosts, .. } => hosts.len(),
            Dialer::Made { addresses, .. } => addresses.len(),
        }
    }

    /// For people.
    pub(crate) fn address(&self, place: usize) -> String {
        match self {
            Dialer::Hosts { hosts, .. } => {
                let (host, port) = &hosts[place % hosts.len()];
                format!("{host}:{port}")
            }
            Dialer::Made { addresses, .. } => addresses[place % addresses.len()].clone(),
        }
    }

    /// Opens a stream to one of them.
    pub(crate) async fn dial(&self, place: usize) -> Result<Stream, OpenError> {
        match self {
            Dialer::Made { make, .. } => match make(place).await {
                Ok(stream) => Ok(Stream::Other(stream)),
                Err(error) => Err(OpenError::NotConnected {
                    address: self.address(place),
                    reason: error.to_string(),
                }),
            },
            Dialer::Hosts { hosts, timeout, tls } => {
                let (host, port) = &hosts[place % hosts.len()];
                connect(host, *port, tls.as_ref(), *timeout).await
            }
        }
    }
}

/// Tries the host's addresses one after the other, for `timeout` each: one that lets packets vanish leaves the others their chance.
async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Tls>,
    timeout: Duration,
) -> Result<Stream, OpenError> {
    let no_address = |reason: String| OpenError::NoAddress { host: host.to_owned(), reason };
    let silent = || format!("no answer within {} ms", timeout.as_millis());
    let found = tokio::time::timeout(timeout, tokio::net::lookup_host((host, port))).await;
    let found = found.map_err(|_| no_address(silent()))?;
    let addresses = found.map_err(|error| no_address(error.to_string()))?;
    let mut last = no_address("it has no address".into());
    for address in addresses {
        let attempt = tokio::time::timeout(timeout, connect_to(address, host, tls)).await;
        match attempt {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => {
                let address = address.to_string();
                last = OpenError::NotConnected { address, reason: silent() };
            }
        }
    }
    Err(last)
}

async fn connect_to(
    address: SocketAddr,
    host: &str,
    tls: Option<&Tls>,
) -> Result<Stream, OpenError> {
    let tcp = crate::tcp::connect(address).await.map_err(|error| OpenError::NotConnected {
        address: address.to_string(),
        reason: error.to_string(),
    })?;
    // We write in batches already; waiting for more would only delay acks and confirms. A narrow link changes that:
    // Stream::set_full_packets.
    let _ = tcp.set_nodelay(true);
    let tcp = KeptFull::new(tcp);
    match tls {
        Some(tls) => Ok(Stream::Tls(Box::new(tls.connect_async(host, tcp).await?))),
        None => Ok(Stream::Tcp(tcp)),
    }
}
