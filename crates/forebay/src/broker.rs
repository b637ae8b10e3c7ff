//! The embedded broker.

use crate::in_process::InProcess;
use forebay_client::blocking::{self, Lost, OpenError};
use forebay_client::{ByteStream, Connection, ConnectionBuilder, Options};
use forebay_server::{
    Config, Data, DurabilitySetting, InProcessStream, Server, ServerFailed, Snapshot, StartError,
    UserSetting,
};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// How long a full or empty pipe holds up a client before it looks at the other direction: a broker
/// that takes no more bytes may be waiting for its own to be read.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long clients may take to close when the broker does. Those inside this process are often
/// waited for by the very thread that closes the broker, so it is short.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A broker inside this process. Dropping it stops it as [`Broker::close`] does.
///
/// Its threads (one for connections and queues, and unless it is [in memory](Broker::in_memory) three for the disk) are the
/// only cost beside memory; nothing listens on the network until [`Broker::listen`] is called.
#[derive(Debug)]
pub struct Broker {
    server: Server,
}

impl Broker {
    /// Opens the store in `dir`, which is made if it does not exist, and starts.
    ///
    /// # Errors
    /// `dir` is in use by another broker, cannot be written, is of a newer format or damaged.
    pub fn open(dir: impl AsRef<Path>) -> Result<Broker, StartError> {
        Broker::builder().data_dir(dir).start()
    }

    /// Starts with nothing on disk; everything is gone when the broker is closed.
    ///
    /// # Errors
    /// The system gives no thread or no descriptor.
    pub fn in_memory() -> Result<Broker, StartError> {
        Broker::builder().start()
    }

    /// A broker with options; in memory unless [`BrokerBuilder::data_dir`] is called.
    pub fn builder() -> BrokerBuilder {
        let config = Config {
            data: Data::Memory,
            amqp: Vec::new(),
            http: None,
            drain_timeout: DRAIN_TIMEOUT,
            ..Config::default()
        };
        BrokerBuilder { config }
    }

    /// A connection that needs no socket, as `guest` in the virtual host `/`. Needs a tokio runtime.
    ///
    /// # Errors
    /// The broker has stopped, or there is no user `guest` (see [`Broker::connect_with`]).
    pub async fn connect(&self) -> Result<Connection, OpenError> {
        self.connect_with(Connection::builder(), Options::default()).await
    }

    /// A connection that needs no socket, with a user, a virtual host and options of your choice. It does not
    /// keep the broker alive: when the broker stops, the connection is lost for good.
    ///
    /// # Errors
    /// The broker has stopped, or refuses the login.
    pub async fn connect_with(
        &self,
        builder: ConnectionBuilder,
        options: Options,
    ) -> Result<Connection, OpenError> {
        // No wire that could fall silent, so nobody has to prove that he lives.
        let options = Options { heartbeat_s: 0, ..options };
        let connector = self.server.connector();
        let make = move || {
            let stream = connector();
            async move { Ok(Box::new(InProcess(stream)) as Box<dyn ByteStream>) }
        };
        builder.without_recovery().over("in-process", options, make).await
    }

    /// A connection for programs that wait, without a socket, as `guest` in the virtual host `/`.
    ///
    /// # Errors
    /// The broker has stopped, or there is no user `guest` (see [`Broker::connect_blocking_with`]).
    pub fn connect_blocking(&self) -> Result<blocking::Connection, OpenError> {
        self.connect_blocking_with(Options::default())
    }

    /// A connection for programs that wait, without a socket, with a user and a virtual host of your choice.
    ///
    /// # Errors
    /// The broker has stopped, or refuses the login.
    pub fn connect_blocking_with(
        &self,
        options: Options,
    ) -> Result<blocking::Connection, OpenError> {
        let lost = |error: io::Error| OpenError::Lost(Lost::Io(error.to_string()));
        let mut writer = self.stream();
        writer.set_write_timeout(Some(PATIENCE)).map_err(lost)?;
        let mut reader = writer.try_clone().map_err(lost)?;
        reader.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        blocking::Connection::over(reader, writer, options)
    }

    /// A bare byte stream to the broker, for an AMQP client of your own.
    pub fn stream(&self) -> InProcessStream {
        self.server.connect()
    }

    /// Lets other processes connect to `address` (`host:port`; port 0 picks a free one); returns the
    /// real address.
    ///
    /// # Errors
    /// The address is taken or not of this machine.
    pub fn listen(&self, address: &str) -> io::Result<SocketAddr> {
        self.server.listen(address)
    }

    /// What the broker counts, and its queues. `None` when it has stopped by itself.
    pub fn status(&self) -> Option<Snapshot> {
        self.server.status()
    }

    /// Stops: tells all connections, writes what is open to disk, ends the threads.
    ///
    /// # Errors
    /// The disk failed. What was confirmed is on disk all the same.
    pub fn close(self) -> Result<(), ServerFailed> {
        self.server.stop()
    }
}

/// Options of a [`Broker`].
#[derive(Clone, Debug)]
pub struct BrokerBuilder {
    config: Config,
}

impl BrokerBuilder {
    /// Keep messages and topology in this directory; without it they are in memory.
    #[must_use]
    pub fn data_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.config.data = Data::Dir(dir.as_ref().to_owned());
        self
    }

    /// What messages in memory may take together, in bytes; at least 16 MiB.
    #[must_use]
    pub fn memory_budget_bytes(mut self, bytes: u64) -> Self {
        self.config.memory_budget_bytes = bytes;
        self
    }

    /// When a confirmed message is synced. Anything but `Always` may lose it with the power.
    #[must_use]
    pub fn durability(mut self, durability: DurabilitySetting) -> Self {
        self.config.durability = durability;
        self
    }

    /// Largest message body, in bytes; 16 MiB unless set.
    #[must_use]
    pub fn message_max_bytes(mut self, bytes: u64) -> Self {
        self.config.message_max_bytes = bytes;
        self
    }

    /// One more user. `guest` stays, from this machine only.
    #[must_use]
    pub fn user(mut self, user: UserSetting) -> Self {
        self.config.users.push(user);
        self
    }

    /// One more virtual host beside `/`.
    #[must_use]
    pub fn vhost(mut self, name: &str) -> Self {
        self.config.vhosts.push(name.to_owned());
        self
    }

    /// Also accept connections from outside, from the start; may be repeated.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.config.amqp.push(address.to_owned());
        self
    }

    /// Recovers the store and starts.
    ///
    /// # Errors
    /// An option makes no sense, an address is taken, or the store cannot be opened.
    pub fn start(self) -> Result<Broker, StartError> {
        Ok(Broker { server: Server::start(self.config)? })
    }
}
