//! A non-blocking socket with its connection machine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

use forebay_client::Event;
use forebay_client::machine::{Failed, Machine, Options};
use forebay_wire::AmqpUri;

/// Bytes taken by one read.
pub(crate) const READ_BYTES: usize = 256 * 1024;
/// Bytes of the shared read buffer: one read, and the part of a frame that the last one left.
pub(crate) const SHARED_BYTES: usize = READ_BYTES + 160 * 1024;
/// Bytes that may wait to be sent on one connection.
pub(crate) const OUTGOING_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) machine: Machine,
    /// Part of a frame, less than `frame_bytes_max`.
    leftover: Vec<u8>,
    /// The socket took all we had; false: wait for the poller to say that it is writable.
    pub(crate) writable: bool,
    /// The poller watches for writability.
    pub(crate) watched_for_writing: bool,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum PeerLost {
    Io(io::Error),
    Failed(Failed),
    HungUp,
}

impl std::fmt::Display for PeerLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerLost::Io(error) => write!(f, "the connection was lost: {error}"),
            PeerLost::Failed(failed) => write!(f, "the connection was lost: {failed}"),
            PeerLost::HungUp => f.write_str("the broker hung up"),
        }
    }
}

impl Peer {
    pub(crate) fn connect(uri: &AmqpUri, name: &str) -> io::Result<Peer> {
        let mut last = io::Error::other("the host has no address");
        for address in (uri.host.as_str(), uri.port).to_socket_addrs()? {
            match TcpStream::connect(address) {
                Ok(stream) => return Peer::over(stream, uri, name),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn over(stream: TcpStream, uri: &AmqpUri, name: &str) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let options = Options {
            // A generator that falls silent is broken; that shall be seen, not hidden.
            heartbeat_s: 0,
            outgoing_bytes_max: OUTGOING_BYTES_MAX,
            ..Options::from_uri(uri)
        };
        Ok(Peer {
            stream,
            machine: Machine::new(options.named(name)),
            leftover: Vec::new(),
            writable: true,
            watched_for_writing: false,
        })
    }

    /// Reads once and hands out what came. False: nothing was there.
    pub(crate) fn receive(
        &mut self,
        shared: &mut [u8],
        mut each: impl FnMut(Event<'_>),
    ) -> Result<bool, PeerLost> {
        let kept = self.leftover.len();
        shared[..kept].copy_from_slice(&self.leftover);
        let count = match self.stream.read(&mut shared[kept..kept + READ_BYTES]) {
            Ok(0) => return Err(PeerLost::HungUp),
            Ok(count) => count,
            Err(error) if is_momentary(&error) => return Ok(false),
            Err(error) => return Err(PeerLost::Io(error)),
        };
        let mut input = &shared[..kept + count];
        while let Some(event) = self.machine.poll_event(&mut input).map_err(PeerLost::Failed)? {
            each(event);
        }
        self.leftover.clear();
        self.leftover.extend_from_slice(input);
        Ok(true)
    }

    /// Sends what waits, as far as the socket takes it.
    pub(crate) fn send(&mut self) -> Result<(), PeerLost> {
        while self.writable && !self.machine.outgoing().is_empty() {
            match self.stream.write(self.machine.outgoing()) {
                Ok(count) => self.machine.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(PeerLost::Io(error)),
            }
        }
        Ok(())
    }
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
