//! The link of IP packets. It needs a network namespace of its own, so what is tested runs in one: this program, once
//! more, by `unshare`. Times are only bounded from below, which no slow machine can break.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_bench::link::RoutedLink;

const INSIDE: &str = "FOREBAY_TEST_INSIDE";
const RTT: Duration = Duration::from_millis(10);
const BYTES_PER_S: u64 = 1_250_000;

/// Whether we are in a namespace of our own; otherwise runs that test there, to its end.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let outcome = Command::new("unshare")
        .args(["--map-root-user", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare, of util-linux");
    let said = [outcome.stdout, outcome.stderr].concat();
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&said));
    false
}

/// Both ends of a connection over the link.
fn connect(link: &RoutedLink, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(link.address(listener.local_addr().unwrap().port())).unwrap();
    let (broker, _) = listener.accept().unwrap();
    for end in [&client, &broker] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    }
    (client, broker)
}

#[test]
fn packets_take_half_a_round_trip_and_a_bandwidth_is_not_exceeded() {
    if !inside("packets_take_half_a_round_trip_and_a_bandwidth_is_not_exceeded") {
        return;
    }
    RoutedLink::raise_loopback().unwrap();
    let link = RoutedLink::start(RTT.as_micros() as u64, Some(BYTES_PER_S)).unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let (mut client, mut broker) = connect(&link, &listener);

    let began = Instant::now();
    client.write_all(b"?").unwrap();
    broker.read_exact(&mut [0]).unwrap();
    broker.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert!(began.elapsed() >= RTT, "{:?}", began.elapsed());

    // More than the queue before the narrowest point holds: what it loses, TCP sends again.
    let sent: Vec<u8> =
        (0..1_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let began = Instant::now();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        broker.read_exact(&mut received).unwrap();
        received
    });
    let least = Duration::from_secs_f64(sent.len() as f64 / BYTES_PER_S as f64);
    assert!(began.elapsed() >= least, "{:?} for what takes {least:?}", began.elapsed());
    assert!(received == sent, "other bytes than were sent");
}
