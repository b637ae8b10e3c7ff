//! A non-blocking socket with its connection machine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use forebay_client::machine::{Failed, Machine, Options};
use forebay_client::{Event, Tls, TlsStream, connect_tcp};
use forebay_wire::AmqpUri;

/// Bytes taken by one read.
pub(crate) const READ_BYTES: usize = 256 * 1024;
/// Bytes of the shared read buffer: one read, and the part of a frame that the last one left.
pub(crate) const SHARED_BYTES: usize = READ_BYTES + 160 * 1024;
/// Bytes that may wait to be sent on one connection.
pub(crate) const OUTGOING_BYTES_MAX: usize = 256 * 1024;

/// Plaintext that one TLS record may bring, and what is left of another.
const TLS_ROOM_BYTES: usize = 32 * 1024;
/// How long a broker may take to shake hands.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// Where connections lead, and how.
#[derive(Debug)]
pub(crate) struct Host {
    uri: AmqpUri,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
}

#[derive(Debug)]
pub(crate) struct Peer {
    stream: Stream,
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

impl Host {
    /// Of a URL; an `amqps` one's certificates are read.
    pub(crate) fn of(url: &str) -> Result<Host, String> {
        let uri = AmqpUri::parse(url).map_err(|error| format!("cannot read the URL: {error}"))?;
        let tls = uri.tls.then(|| Tls::from_uri(&uri)).transpose();
        Ok(Host { tls: tls.map_err(|error| error.to_string())?, uri })
    }

    /// A connection to it, which nobody has begun to open.
    pub(crate) fn connect(&self, name: &str) -> io::Result<Peer> {
        let (host, tcp) = self.dial()?;
        tcp.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Stream::Tcp(tcp),
            Some(tls) => {
                tcp.set_read_timeout(Some(HANDSHAKE_PATIENCE))?;
                let stream = tls.connect(host, tcp).map_err(io::Error::other)?;
                Stream::Tls(Box::new(stream))
            }
        };
        Peer::over(stream, &self.uri, name)
    }

    /// The first of its hosts that answers.
    fn dial(&self) -> io::Result<(&str, TcpStream)> {
        let mut last = io::Error::other("the host has no address");
        for (host, port) in self.uri.hosts() {
            let addresses = match (host, port).to_socket_addrs() {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            for address in addresses {
                match connect_tcp(address, HANDSHAKE_PATIENCE) {
                    Ok(stream) => return Ok((host, stream)),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Tcp(tcp) => tcp,
            Stream::Tls(tls) => tls.tcp(),
        }
    }

    /// Reads what is there. Of TLS nothing is left behind that a poller would not tell.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let tls = match self {
            Stream::Tcp(tcp) => return tcp.read(into),
            Stream::Tls(tls) => tls,
        };
        let mut count = tls.read(into)?;
        while count > 0 && into.len() - count >= TLS_ROOM_BYTES {
            match tls.read(&mut into[count..]) {
                // The next read finds that out, too.
                Ok(0) | Err(_) => break,
                Ok(more) => count += more,
            }
        }
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => tcp.write(bytes),
            Stream::Tls(tls) if bytes.is_empty() => tls.flush().map(|()| 0),
            Stream::Tls(tls) => tls.write(bytes),
        }
    }

    /// What it took is still on its way to the socket.
    fn has_unsent(&self) -> bool {
        match self {
            Stream::Tcp(_) => false,
            Stream::Tls(tls) => tls.has_unsent(),
        }
    }
}

impl Peer {
    fn over(stream: Stream, uri: &AmqpUri, name: &str) -> io::Result<Peer> {
        stream.socket().set_nonblocking(true)?;
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

    /// To wait for, and to ask for addresses.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.socket()
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
        // What comes brings acknowledgements, and the kernel does not tell of room until a third of the socket is free.
        self.writable = true;
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
        while self.writable && (!self.machine.outgoing().is_empty() || self.stream.has_unsent()) {
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn of_several_hosts_the_first_that_answers_is_taken() {
        let [gone, there] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [nobody, port] = [&gone, &there].map(|bound| bound.local_addr().unwrap().port());
        drop(gone);
        let host = Host::of(&format!("amqp://127.0.0.1:{nobody},127.0.0.1:{port}")).unwrap();
        let peer = host.connect("test").unwrap();
        assert_eq!(peer.socket().peer_addr().unwrap().port(), port);
    }
}
