//! TCP's congestion control between two ends on one machine.
//!
//! There is no path to find out about, and no link to share. BBR, the default of many a server, looks for one all the
//! same: a timer for each connection paces what it sends, and every ten seconds it sends next to nothing for 200 ms, to
//! measure a way that has no length. Up to a fifth of what could be carried goes into that
//! (docs/decisions/0033-no-pacing-on-one-machine.md). A socket that began with BBR is paced for good, so what is accepted
//! begins with Reno, and gets the system's own choice if its peer is far.

use socket2::Socket;
use std::net::{SocketAddr, TcpStream};

/// For a socket that will listen. Systems that do not pace are left as they are.
pub(crate) fn begin_unpaced(listener: &Socket) {
    #[cfg(target_os = "linux")]
    if linux::pacing().is_some() {
        // Reno is in every Linux and open to everybody; who closed it to us keeps what there is.
        let _ = listener.set_tcp_congestion(b"reno");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = listener;
}

/// For a connection that such a socket accepted.
pub(crate) fn pace_if_far(stream: &TcpStream, peer: SocketAddr) {
    #[cfg(target_os = "linux")]
    if let Some(pacing) = linux::pacing()
        && !linux::is_here(stream, peer)
    {
        // Fails only if the system's administrator took away the default meanwhile.
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(pacing);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, peer);
}

#[cfg(target_os = "linux")]
mod linux {
    use socket2::{Domain, Protocol, Socket, Type};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::OnceLock;

    /// What the system's sockets begin with, if that is BBR.
    pub(super) fn pacing() -> Option<&'static [u8]> {
        static PACING: OnceLock<Option<Vec<u8>>> = OnceLock::new();
        let begins_with = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).ok()?;
            let name = socket.tcp_congestion().ok()?;
            let name: Vec<u8> = name.into_iter().take_while(|&byte| byte != 0).collect();
            name.starts_with(b"bbr").then_some(name)
        };
        PACING.get_or_init(begins_with).as_deref()
    }

    pub(super) fn is_here(stream: &TcpStream, peer: SocketAddr) -> bool {
        let peer = peer.ip().to_canonical();
        peer.is_loopback()
            || stream.local_addr().is_ok_and(|local| local.ip().to_canonical() == peer)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use socket2::SockRef;

    #[test]
    fn a_connection_on_one_machine_is_not_paced_and_one_to_far_away_as_the_system_wishes() {
        let listener = crate::listener::listen("127.0.0.1:0", &[]).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        pace_if_far(&stream, peer);
        let congestion = || SockRef::from(&stream).tcp_congestion().unwrap();
        assert!(!congestion().starts_with(b"bbr"));
        pace_if_far(&stream, "192.0.2.1:5672".parse().unwrap());
        assert!(linux::pacing().is_none_or(|pacing| congestion().starts_with(pacing)));
    }
}
