//! How a TCP connection begins.
//!
//! On one machine there is no path to find out about. BBR, the default of many a server, looks for one all the same: it
//! paces what is sent by a timer for each connection, and every ten seconds sends next to nothing for 200 ms. A socket that
//! began with it is paced for good, so one that shall connect to this machine begins with Reno
//! (docs/decisions/0033-no-pacing-on-one-machine.md). The kernel may have chosen something else than BBR; then that stays.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// A socket that may connect to `address`.
fn socket_for(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    #[cfg(target_os = "linux")]
    if address.ip().to_canonical().is_loopback()
        && socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr"))
    {
        // Who closed Reno to us keeps what there is.
        let _ = socket.set_tcp_congestion(b"reno");
    }
    Ok(socket)
}

/// Connects, unpaced if `address` is a loopback one; for programs that drive a [machine](crate::machine) themselves. Fails as
/// the system says, and with [`io::ErrorKind::TimedOut`] after `timeout`, which must not be zero.
pub fn connect_tcp(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = socket_for(address)?;
    socket.connect_timeout(&address.into(), timeout)?;
    Ok(socket.into())
}

/// Connects.
pub(crate) async fn connect(address: SocketAddr) -> io::Result<tokio::net::TcpStream> {
    let socket = socket_for(address)?;
    socket.set_nonblocking(true)?;
    tokio::net::TcpSocket::from_std_stream(socket.into()).connect(address).await
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::TcpListener;

    fn is_paced(socket: SockRef<'_>) -> bool {
        socket.tcp_congestion().unwrap().starts_with(b"bbr")
    }

    #[tokio::test]
    async fn to_this_machine_nothing_is_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let blocking = connect_tcp(address, Duration::from_secs(20)).unwrap();
        assert!(!is_paced(SockRef::from(&blocking)));
        assert!(!is_paced(SockRef::from(&connect(address).await.unwrap())));
    }

    #[test]
    fn to_another_machine_it_is_as_the_system_wishes() {
        let far = socket_for("192.0.2.1:5672".parse().unwrap()).unwrap();
        let any = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        assert_eq!(is_paced(SockRef::from(&far)), is_paced(SockRef::from(&any)));
    }
}
