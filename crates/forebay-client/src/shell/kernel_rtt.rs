//! The round trip that the kernel measures for a TCP connection, in microseconds.
//!
//! It is `tcpi_rtt` of `TCP_INFO`. No safe crate that we know reads that socket option, and unsafe code is
//! forbidden here, so the same record is asked for over netlink: `sock_diag(7)`, one request for one
//! connection, which any user may ask about. Offsets are those of `linux/inet_diag.h` and `linux/tcp.h`;
//! both only ever grow at the end.
//!
//! ```text
//!   request   nlmsghdr 16 | inet_diag_req_v2 56
//!   answer    nlmsghdr 16 | inet_diag_msg 72 | attributes: { len u16, type u16, tcp_info … }
//! ```

use std::net::{IpAddr, SocketAddr};

/// One open question and answer socket for one connection; what the windows of [publishers](crate::Publisher)
/// hear, also for those who drive a [machine](crate::machine) themselves.
#[derive(Debug)]
pub struct KernelRtt {
    #[cfg(target_os = "linux")]
    socket: rustix::fd::OwnedFd,
    request: [u8; REQUEST_BYTES],
}

const REQUEST_BYTES: usize = 72;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 72;
/// `INET_DIAG_INFO`.
const ATTRIBUTE_TCP_INFO: u16 = 2;
/// Of `tcpi_rtt` in `struct tcp_info`.
const RTT_OFFSET: usize = 68;

impl KernelRtt {
    /// `None` where the kernel has no such interface.
    pub fn new(local: SocketAddr, peer: SocketAddr) -> Option<KernelRtt> {
        #[cfg(target_os = "linux")]
        {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
            let socket = socket_with(
                AddressFamily::NETLINK,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                Some(netlink::SOCK_DIAG),
            )
            .ok()?;
            rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0)).ok()?;
            Some(KernelRtt { socket, request: request(local, peer) })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (local, peer, request);
            None
        }
    }

    /// The smoothed round trip as of now; `None` if the kernel does not say.
    pub fn read_us(&self) -> Option<u64> {
        #[cfg(target_os = "linux")]
        {
            use rustix::net::{RecvFlags, SendFlags, recv, send};
            send(&self.socket, &self.request, SendFlags::empty()).ok()?;
            let mut answer = [0_u8; 1024];
            // The kernel answers before `send` returns.
            let (count, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty()).ok()?;
            rtt_us(answer.get(..count)?)
        }
        #[cfg(not(target_os = "linux"))]
        None
    }
}

fn request(local: SocketAddr, peer: SocketAddr) -> [u8; REQUEST_BYTES] {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    const IPPROTO_TCP: u8 = 6;
    let mut bytes = [0_u8; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes[16] = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes[17] = IPPROTO_TCP;
    bytes[18] = 1 << (ATTRIBUTE_TCP_INFO - 1);
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    bytes[24..26].copy_from_slice(&local.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&peer.port().to_be_bytes());
    put_address(&mut bytes[28..44], local.ip());
    put_address(&mut bytes[44..60], peer.ip());
    // Interface 0: any. Cookie all ones: any.
    bytes[64..72].fill(0xff);
    bytes
}

fn put_address(place: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => place[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => place.copy_from_slice(&address.octets()),
    }
}

fn rtt_us(answer: &[u8]) -> Option<u64> {
    let mut rest = answer.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    loop {
        let size = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        if kind == ATTRIBUTE_TCP_INFO {
            let info = rest.get(4..size)?;
            let rtt = u32::from_ne_bytes(*info.get(RTT_OFFSET..)?.first_chunk()?);
            return (rtt > 0).then_some(u64::from(rtt));
        }
        rest = rest.get(size.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_knows_the_round_trip_of_a_connection_that_was_used() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        for _ in 0..10 {
            ours.write_all(b"ping").unwrap();
            theirs.read_exact(&mut [0; 4]).unwrap();
            theirs.write_all(b"pong").unwrap();
            ours.read_exact(&mut [0; 4]).unwrap();
        }
        let asked = KernelRtt::new(ours.local_addr().unwrap(), ours.peer_addr().unwrap());
        let rtt_us = asked.expect("netlink").read_us().expect("a round trip");
        assert!((1..1_000_000).contains(&rtt_us), "{rtt_us} us on loopback");
    }

    #[test]
    fn nonsense_is_no_round_trip() {
        for answer in [&[][..], &[0; 16], &[0; 88], &[0xff; 100], &[0; 1024]] {
            assert_eq!(rtt_us(answer), None);
        }
    }
}
