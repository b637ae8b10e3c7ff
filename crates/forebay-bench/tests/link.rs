//! The link between real sockets. What it does to bytes over time is tested where it is decided, without a
//! clock; here, that the sockets do what was decided.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use forebay_bench::link::{Conditions, LinkProxy};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of a connection through a link.
fn connected(conditions: Conditions) -> (LinkProxy, TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = LinkProxy::start(listener.local_addr().unwrap(), conditions).unwrap();
    let (client, broker) = connect(&proxy, &listener);
    (proxy, listener, client, broker)
}

fn connect(proxy: &LinkProxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(proxy.address()).unwrap();
    let (broker, _) = listener.accept().unwrap();
    for end in [&client, &broker] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, broker)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn bytes_pass_both_ways_and_ends_follow_them() {
    let conditions = Conditions { rtt_us: 2_000, jitter_us: 500, bytes_per_s: Some(50_000_000) };
    let (proxy, _listener, mut client, mut broker) = connected(conditions);
    let sent = pattern(3_000_000);
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        broker.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == sent, "{} of {} bytes, or other ones", received.len(), sent.len());
    // Half closed: the other way is still open.
    broker.write_all(b"thanks").unwrap();
    drop(broker);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"thanks");
    assert!(within_patience(|| proxy.connections() == 0), "a connection is left");
}

#[test]
fn nothing_is_faster_than_the_link_is_long() {
    let rtt = Duration::from_millis(30);
    let conditions = Conditions { rtt_us: rtt.as_micros() as u64, ..Conditions::default() };
    let (_proxy, _listener, mut client, mut broker) = connected(conditions);
    let began = Instant::now();
    client.write_all(b"?").unwrap();
    let mut byte = [0];
    broker.read_exact(&mut byte).unwrap();
    broker.write_all(b"!").unwrap();
    client.read_exact(&mut byte).unwrap();
    assert!(began.elapsed() >= rtt);
}

#[test]
fn a_receiver_that_does_not_read_holds_its_sender_back() {
    let conditions = Conditions { bytes_per_s: Some(100_000), ..Conditions::default() };
    let (_proxy, _listener, mut client, _broker) = connected(conditions);
    client.set_nonblocking(true).unwrap();
    let chunk = vec![0; 64 << 10];
    let mut sent = 0;
    // Ends by itself only if the link and the kernel hold everything that is sent.
    let held_back = loop {
        match client.write(&chunk) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
        if sent > 64 << 20 {
            break false;
        }
    };
    assert!(held_back, "{sent} bytes were taken");
}

#[test]
fn a_cut_resets_both_ends_and_the_next_connection_is_sound() {
    let (proxy, listener, mut client, mut broker) = connected(Conditions::default());
    client.write_all(b"x").unwrap();
    broker.read_exact(&mut [0]).unwrap();
    assert_eq!(proxy.cut(), 1);
    for end in [&mut client, &mut broker] {
        assert_eq!(end.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    proxy.refuse(true);
    let refused = TcpStream::connect(proxy.address()).and_then(|mut refused| {
        refused.set_read_timeout(Some(PATIENCE))?;
        refused.read(&mut [0])
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.refuse(false);
    let (mut client, mut broker) = connect(&proxy, &listener);
    broker.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_broker_that_is_not_there_resets_the_client() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = LinkProxy::start(gone, Conditions::default()).unwrap();
    let mut client = TcpStream::connect(proxy.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn impossible_links_are_refused() {
    let (proxy, ..) = connected(Conditions::default());
    let nothing = Conditions { bytes_per_s: Some(0), ..Conditions::default() };
    assert!(proxy.set(nothing).is_err());
    assert_eq!(
        LinkProxy::start("127.0.0.1:1", nothing).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

fn within_patience(mut question: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if question() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}
