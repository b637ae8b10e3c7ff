//! Listening sockets: how they are made, and what a failed accept means.

use crate::congestion::{begin_unpaced, pace_if_far};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

/// Connections the kernel may hold for us between two turns.
const BACKLOG: i32 = 1024;

/// Binds and listens, non-blocking. `address` is `host:port`; port 0 lets the system choose.
pub(crate) fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for the old connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    begin_unpaced(&socket);
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// What one accept gave.
pub(crate) enum Accepted {
    Stream(TcpStream, SocketAddr),
    /// Nobody is waiting.
    Nobody,
    /// No descriptor or memory for another one: leave the peers in the backlog for a while.
    Exhausted(io::Error),
}

/// Takes one connection, ready for the shard.
pub(crate) fn accept(listener: &TcpListener) -> Accepted {
    loop {
        let error = match listener.accept() {
            Ok((stream, peer)) => {
                // Both fail only on a socket whose peer has gone again; take the next one.
                if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                    pace_if_far(&stream, peer);
                    return Accepted::Stream(stream, peer);
                }
                continue;
            }
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::WouldBlock => return Accepted::Nobody,
            // The peer gave up while it was in the backlog.
            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
            _ => return Accepted::Exhausted(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_zero_picks_a_free_one_and_a_taken_one_is_refused() {
        let first = listen("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        let error = listen(&address.to_string()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn nobody_waiting_is_an_ordinary_answer() {
        let listener = listen("127.0.0.1:0").unwrap();
        assert!(matches!(accept(&listener), Accepted::Nobody));
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = loop {
            match accept(&listener) {
                Accepted::Nobody => std::thread::yield_now(),
                other => break other,
            }
        };
        assert!(matches!(accepted, Accepted::Stream(..)));
    }
}
