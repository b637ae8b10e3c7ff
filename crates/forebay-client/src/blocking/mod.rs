//! A connection for programs that like to wait.
//!
//! One connection belongs to one thread at a time: its handles may move between threads, but while
//! one of them waits the others wait for it. Use a connection a thread.

mod channel;
mod consumer;
mod link;
mod message;
mod transport;

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_wire::AmqpUri;

use crate::machine::{Limits, Machine, Options, Server};
use crate::tcp::connect_tcp;
use crate::tls::Tls;
use link::{Life, Link};
use transport::{OverTls, Pair, Tcp, Transport};

pub use crate::channel::{DeclareExchange, DeclareQueue, QueueInfo};
pub use crate::error::{ChannelFault, ConsumeError, Lost, OpenError, Refusal};
pub use crate::received::Received as Message;
pub use crate::returns::{RETURNS_BYTES_MAX, RETURNS_KEPT_MAX, ReturnedMessage};
pub use channel::Channel;
pub use consumer::{ConsumeOptions, Consumer};
pub use link::DELIVERIES_BYTES_MAX;
pub use message::Publication;

/// How long a server may take to accept, and then to complete the login.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);
/// How long a server may take to agree to our close, and to take what is sent before; it is over afterwards in any case.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a full socket may hold up a write before we look for incoming bytes.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// A handle on an open connection. It stays open until [`Connection::close`] or until the last handle
/// on it and on its channels is gone.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Mutex<Link>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to `uri`, for instance `amqp://guest:guest@127.0.0.1:5672/%2f`, over TCP or (`amqps`) TLS. Of several
    /// hosts the first that lets us in is taken.
    pub fn open(uri: &str) -> Result<Connection, OpenError> {
        Connection::open_named(uri, None)
    }

    /// The same with a name that brokers show beside the connection.
    pub fn open_named(uri: &str, name: Option<&str>) -> Result<Connection, OpenError> {
        let parsed: AmqpUri = uri.parse().map_err(|error: forebay_wire::UriError| {
            OpenError::Uri { uri: AmqpUri::shown(uri), reason: error.to_string() }
        })?;
        let tls = parsed.tls.then(|| Tls::from_uri(&parsed)).transpose()?;
        let options =
            Options { connection_name: name.map(str::to_owned), ..Options::from_uri(&parsed) };
        let timeout = parsed
            .connection_timeout_ms
            .map_or(OPEN_PATIENCE, |ms| Duration::from_millis(u64::from(ms.max(1))));
        let mut last = None;
        for (host, port) in parsed.hosts() {
            let opened = connect(host, port, timeout)
                .and_then(|tcp| transport(tls.as_ref(), host, tcp, timeout))
                .and_then(|transport| Connection::start(transport, options.clone()));
            match opened {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a URI names at least one host"))
    }

    /// Opens a connection over any pair of byte streams, such as an in-process pipe. As these cannot
    /// time out there are no heartbeats, and timeouts of operations are not kept to.
    pub fn over(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        options: Options,
    ) -> Result<Connection, OpenError> {
        let options = Options { heartbeat_s: 0, ..options };
        Connection::start(Box::new(Pair { reader, writer }), options)
    }

    fn start(transport: Box<dyn Transport>, options: Options) -> Result<Connection, OpenError> {
        let mut link = Link::new(Machine::new(options), transport);
        link.open(OPEN_PATIENCE).map_err(|lost| match lost {
            Lost::Closed(refusal) => OpenError::Refused(refusal),
            lost => OpenError::Lost(lost),
        })?;
        Ok(Connection { link: Arc::new(Mutex::new(link)) })
    }

    /// Opens a channel.
    pub fn channel(&self) -> Result<Channel, ChannelFault> {
        let mut link = lock(&self.link);
        let place = link.open_channel()?;
        let opened = link.reply(place);
        drop(link);
        let life = Life::begin(self.link.clone(), place);
        opened.map(|_| Channel::new(self.link.clone(), life))
    }

    /// What the broker says about itself.
    pub fn server(&self) -> Server {
        lock(&self.link).machine.server().clone()
    }

    /// What was agreed on with the broker.
    pub fn limits(&self) -> Limits {
        lock(&self.link).machine.limits()
    }

    /// Why the broker takes no publishes at the moment, as of the last bytes read.
    pub fn blocked(&self) -> Option<String> {
        lock(&self.link).blocked.clone()
    }

    /// Sends what waits, closes the connection and waits for the broker's agreement, 5 s at most.
    /// All other handles on it find it closed.
    ///
    /// # Errors
    /// The connection was lost before, or the broker has not agreed in time: what was sent last may not have reached it.
    pub fn close(self) -> Result<(), Lost> {
        lock(&self.link).close(CLOSE_PATIENCE)
    }
}

/// The link. A panic of another holder left it usable: each operation leaves it consistent.
fn lock(link: &Arc<Mutex<Link>>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, OpenError> {
    let no_address = |reason: String| OpenError::NoAddress { host: host.to_owned(), reason };
    let addresses =
        (host, port).to_socket_addrs().map_err(|error| no_address(error.to_string()))?;
    let mut last = no_address("it has no address".into());
    for address in addresses {
        match connect_tcp(address, timeout) {
            Ok(tcp) => return Ok(tcp),
            Err(error) => {
                let (address, reason) = (address.to_string(), error.to_string());
                last = OpenError::NotConnected { address, reason };
            }
        }
    }
    Err(last)
}

/// What carries the bytes over `tcp`; a hand that is not shaken within `timeout` is given up.
fn transport(
    tls: Option<&Tls>,
    host: &str,
    tcp: TcpStream,
    timeout: Duration,
) -> Result<Box<dyn Transport>, OpenError> {
    let lost = |error: std::io::Error| OpenError::Lost(Lost::Io(error.to_string()));
    let Some(tls) = tls else { return Ok(Box::new(Tcp::new(tcp, WRITE_TIMEOUT).map_err(lost)?)) };
    tcp.set_read_timeout(Some(timeout)).map_err(lost)?;
    let stream = tls.connect(host, tcp)?;
    Ok(Box::new(OverTls::new(stream, WRITE_TIMEOUT).map_err(lost)?))
}
