//! Listening sockets: how they are made, and what a failed accept means.

use crate::congestion::{begin_unpaced, pace_if_far};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

/// Connections the kernel may hold for us between two turns.
const BACKLOG: i32 = 1024;

/// Binds and listens, non-blocking. `address` is `host:port`; port 0 lets the system choose. `beside` are all that the same server
/// listens on.
pub(crate) fn listen(address: &str, beside: &[String]) -> io::Result<TcpListener> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match listen_on(address, is_for_ipv6_alone(address, beside)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// `[::]` takes IPv4 too, unless somebody asks for an address of that on the same port: the system would let only one of them have it.
fn is_for_ipv6_alone(address: SocketAddr, beside: &[String]) -> bool {
    let mut others = beside.iter().filter_map(|other| other.parse::<SocketAddr>().ok());
    address.ip() == Ipv6Addr::UNSPECIFIED
        && address.port() != 0
        && others.any(|other| other.is_ipv4() && other.port() == address.port())
}

fn listen_on(address: SocketAddr, ipv6_alone: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if ipv6_alone {
        socket.set_only_v6(true)?;
    }
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
    fn ipv4_and_all_of_ipv6_share_a_port() {
        for ipv4 in ["0.0.0.0", "127.0.0.1"] {
            let v4 = listen(&format!("{ipv4}:0"), &[]).unwrap();
            let port = v4.local_addr().unwrap().port();
            let [of_ipv4, all] = [format!("{ipv4}:{port}"), format!("[::]:{port}")];
            let both = [of_ipv4.clone(), all.clone()];
            let _v6 = match listen(&all, &both) {
                Ok(v6) => v6,
                // A system without IPv6.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return,
                Err(error) => panic!("{error}"),
            };
            drop(v4);
            let _v4_again = listen(&of_ipv4, &both).unwrap();
        }
    }

    #[test]
    fn all_of_ipv6_takes_ipv4_too_where_nobody_else_does() {
        let alone = |beside: &[&str]| {
            let beside: Vec<String> = beside.iter().map(|other| (*other).to_owned()).collect();
            is_for_ipv6_alone("[::]:5672".parse().unwrap(), &beside)
        };
        assert!(alone(&["[::]:5672", "0.0.0.0:5672"]));
        assert!(alone(&["[::]:5672", "127.0.0.1:5672"]));
        assert!(!alone(&["[::]:5672", "0.0.0.0:5673", "localhost:5672", "[::1]:5672"]));
        for other in ["[::1]:5672", "[::]:0", "0.0.0.0:5672"] {
            let beside = ["0.0.0.0:5672".to_owned(), "0.0.0.0:0".to_owned()];
            assert!(!is_for_ipv6_alone(other.parse().unwrap(), &beside), "{other}");
        }
    }

    #[test]
    fn port_zero_picks_a_free_one_and_a_taken_one_is_refused() {
        let first = listen("127.0.0.1:0", &[]).unwrap();
        let address = first.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        let error = listen(&address.to_string(), &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn nobody_waiting_is_an_ordinary_answer() {
        let listener = listen("127.0.0.1:0", &[]).unwrap();
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
