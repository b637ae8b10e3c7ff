//! The round trip that the kernel measures for a TCP connection, in microseconds, and the bytes that wait for the link.
//!
//! They are `tcpi_rtt`, `tcpi_min_rtt`, `tcpi_notsent_bytes` and `tcpi_rwnd_limited` of `TCP_INFO`. No safe crate that we know reads
//! that socket option, and unsafe code is forbidden here, so the same record is asked for over netlink:
//! `sock_diag(7)`, one request for one connection, which any user may ask about. Offsets are those of
//! `linux/inet_diag.h` and `linux/tcp.h`; both only ever grow at the end.
//!
//! ```text
//!   request   nlmsghdr 16 | inet_diag_req_v2 56
//!   answer    nlmsghdr 16 | inet_diag_msg 72 | attributes: { len u16, type u16, tcp_info … }
//! ```

use std::net::{IpAddr, SocketAddr};

use forebay_flow::KernelReading;

/// One open question and answer socket for one connection; what the windows of [publishers](crate::Publisher)
/// hear, also for those who drive a [machine](crate::machine) themselves.
#[derive(Debug)]
pub struct KernelRtt {
    #[cfg(target_os = "linux")]
    socket: rustix::fd::OwnedFd,
    request: [u8; REQUEST_BYTES],
    same_machine: bool,
    /// In all, until the reading before; `None` before the first one.
    peer_full_us: Option<u64>,
}

const REQUEST_BYTES: usize = 72;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 72;
/// `INET_DIAG_INFO`.
const ATTRIBUTE_TCP_INFO: u16 = 2;
/// Of `tcpi_rtt`, `tcpi_notsent_bytes`, `tcpi_min_rtt` and `tcpi_rwnd_limited` in `struct tcp_info`; all but the first since Linux 4.9.
const RTT_OFFSET: usize = 68;
const NOT_SENT_OFFSET: usize = 144;
const LEAST_RTT_OFFSET: usize = 148;
const PEER_FULL_OFFSET: usize = 176;

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
            let same_machine = is_same_machine(local, peer);
            Some(KernelRtt {
                socket,
                request: request(local, peer),
                same_machine,
                peer_full_us: None,
            })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (local, peer, request);
            None
        }
    }

    /// As of now; `None` if the kernel does not say.
    pub fn read(&mut self) -> Option<KernelReading> {
        #[cfg(target_os = "linux")]
        {
            use rustix::net::{RecvFlags, SendFlags, recv, send};
            send(&self.socket, &self.request, SendFlags::empty()).ok()?;
            let mut answer = [0_u8; 1024];
            // The kernel answers before `send` returns.
            let (count, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty()).ok()?;
            let told = told(answer.get(..count)?)?;
            let before_us = self.peer_full_us.replace(told.peer_full_us);
            let had_room = before_us == Some(told.peer_full_us);
            let unsent_bytes = if had_room { told.not_sent_bytes.into() } else { 0 };
            Some(KernelReading {
                rtt_us: told.rtt_us,
                least_rtt_us: told.least_rtt_us,
                unsent_bytes,
                same_machine: self.same_machine,
            })
        }
        #[cfg(not(target_os = "linux"))]
        None
    }
}

/// By their addresses: a tunnel or a container on this machine has one of its own, and counts as another.
fn is_same_machine(local: SocketAddr, peer: SocketAddr) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || peer == local.ip().to_canonical()
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    rtt_us: u64,
    /// 0: not told.
    least_rtt_us: u64,
    not_sent_bytes: u32,
    /// How long the peer's receive buffer was full, in all.
    peer_full_us: u64,
}

fn told(answer: &[u8]) -> Option<Told> {
    let mut rest = answer.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    loop {
        let size = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        if kind == ATTRIBUTE_TCP_INFO {
            let info = rest.get(4..size)?;
            let rtt_us = u64::from(u32::from_ne_bytes(*info.get(RTT_OFFSET..)?.first_chunk()?));
            let least = info.get(LEAST_RTT_OFFSET..).and_then(<[u8]>::first_chunk);
            let not_sent = info.get(NOT_SENT_OFFSET..).and_then(<[u8]>::first_chunk);
            let peer_full = info.get(PEER_FULL_OFFSET..).and_then(<[u8]>::first_chunk);
            return (rtt_us > 0).then_some(Told {
                rtt_us,
                // All bits are set before any round trip was measured.
                least_rtt_us: match least.map_or(0, |bytes| u32::from_ne_bytes(*bytes)) {
                    u32::MAX => 0,
                    us => us.into(),
                },
                not_sent_bytes: not_sent.map_or(0, |bytes| u32::from_ne_bytes(*bytes)),
                peer_full_us: peer_full.map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
            });
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
        let told = asked.expect("netlink").read().expect("a round trip");
        assert!((1..1_000_000).contains(&told.rtt_us), "{told:?} on loopback");
        assert!((1..=told.rtt_us).contains(&told.least_rtt_us), "{told:?}");
        assert_eq!(told.unsent_bytes, 0);
        assert!(told.same_machine);
    }

    #[test]
    fn what_waits_for_a_peer_that_does_not_read_does_not_wait_for_the_link() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_theirs, _) = listener.accept().unwrap();
        let mut asked =
            KernelRtt::new(ours.local_addr().unwrap(), ours.peer_addr().unwrap()).expect("netlink");
        asked.read().expect("a round trip");
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 65_536]).is_ok() {}
        // The kernel counts in ticks: it takes one until it has counted any.
        let began = std::time::Instant::now();
        while asked.read().expect("a round trip").unsent_bytes > 0 {
            assert!(began.elapsed().as_secs() < 20, "it is the peer that has no room");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_peer_with_our_own_address_is_on_this_machine() {
        let is_same = |local: &str, peer: &str| {
            let with_port = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 5672);
            is_same_machine(with_port(local), with_port(peer))
        };
        assert!(is_same("127.0.0.1", "127.0.0.2"));
        assert!(is_same("::1", "::1"));
        assert!(is_same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!is_same("192.0.2.1", "192.0.2.2"));
        assert!(!is_same("2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn nonsense_is_no_round_trip() {
        for answer in [&[][..], &[0; 16], &[0; 88], &[0xff; 100], &[0; 1024]] {
            assert_eq!(told(answer), None);
        }
    }
}
