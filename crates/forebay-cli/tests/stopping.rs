//! SIGTERM: everybody is told, everything confirmed is kept, and a restart knows what was delivered.

mod support;

use std::time::{Duration, Instant};

use forebay_client::blocking::{ChannelFault, ConsumeOptions, DeclareQueue, Lost, Publication};
use forebay_wire::Properties;
use rustix::process::Signal;
use support::PATIENCE;
use support::broker::Start;
use support::dir::Dir;
use support::peer::Peer;

fn durable() -> DeclareQueue {
    DeclareQueue { durable: true, ..DeclareQueue::default() }
}

fn persistent<'a>(queue: &'a str, body: &'a [u8]) -> Publication<'a> {
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    Publication { routing_key: queue, properties, body, ..Publication::default() }
}

#[test]
fn only_what_was_delivered_is_flagged_after_a_clean_stop() {
    let dir = Dir::new("stopping");
    // Nobody reads our connection while we wait, so nobody answers the farewell.
    let start = Start::on_disk(dir.path()).line("drain_timeout_ms = 300");
    let broker = start.ready();
    let mut channel = broker.connect().channel().unwrap();
    channel.declare_queue("q", durable()).unwrap();
    channel.confirm_select(100).unwrap();
    for number in 0..1000u32 {
        channel.publish(&persistent("q", &number.to_be_bytes())).unwrap();
    }
    channel.wait_settled().unwrap();
    // Of a hundred deliveries the first twenty are acked, the others are in hand at the stop.
    for number in 0..100 {
        let (message, _) = channel.get("q", false).unwrap().unwrap();
        if number < 20 {
            channel.ack(message.delivery_tag(), false).unwrap();
        }
    }
    channel.flush().unwrap();
    let ended = broker.stop();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    match channel.get("q", true) {
        Err(ChannelFault::Lost(Lost::Closed(refusal))) => {
            assert_eq!(refusal.code, 320);
            assert!(refusal.text.starts_with("CONNECTION_FORCED"), "{refusal}");
        }
        other => panic!("{other:?}"),
    }

    let broker = start.ready();
    let mut channel = broker.connect().channel().unwrap();
    for number in 20..1000u32 {
        let (message, left) = channel.get("q", true).unwrap().expect("it was confirmed");
        assert_eq!(message.body(), number.to_be_bytes());
        assert_eq!(message.redelivered(), number < 100, "message {number}");
        assert_eq!(left, 999 - number);
    }
    assert!(channel.get("q", true).unwrap().is_none());
    assert_eq!(broker.stop().code, Some(0));
}

#[test]
fn a_stop_under_load_keeps_what_was_confirmed_in_order() {
    let dir = Dir::new("stopping");
    // Our consumer waits for messages one by one and does not answer the farewell meanwhile.
    let start = Start::on_disk(dir.path()).line("drain_timeout_ms = 300");
    for round in 0..5 {
        let broker = start.ready();
        let url = broker.url();
        let queue = format!("q{round}");
        let mut channel = broker.connect().channel().unwrap();
        channel.declare_queue(&queue, durable()).unwrap();
        channel.confirm_select(200).unwrap();
        let publisher = std::thread::spawn({
            let queue = queue.clone();
            move || {
                let mut last = 0u32;
                let fault = loop {
                    if let Err(fault) = channel.publish(&persistent(&queue, &last.to_be_bytes())) {
                        break fault;
                    }
                    last += 1;
                };
                let confirmed: Vec<u64> = channel
                    .take_settled()
                    .iter()
                    .flat_map(|settled| {
                        assert!(settled.acked);
                        settled.first..=settled.last
                    })
                    .collect();
                (confirmed, last, fault)
            }
        });
        // Some load before the stop: as soon as a hundred have passed.
        let mut consumer_channel =
            forebay_client::blocking::Connection::open(&url).unwrap().channel().unwrap();
        let mut consumer = consumer_channel.consume(&queue, ConsumeOptions::default()).unwrap();
        for _ in 0..100 {
            consumer.next_message(Some(PATIENCE)).unwrap().expect("a message");
        }
        let ended = broker.stop();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let (confirmed, published, fault) = publisher.join().unwrap();
        assert!(matches!(&fault, ChannelFault::Lost(Lost::Closed(r)) if r.code == 320), "{fault}");

        let broker = start.ready();
        let mut channel = broker.connect().channel().unwrap();
        let mut found = std::iter::from_fn(|| channel.get(&queue, true).unwrap())
            .map(|(m, _)| (u32::from_be_bytes(m.body().try_into().unwrap()), m.redelivered()));
        let mut next = 0;
        for (number, redelivered) in found.by_ref() {
            assert!(number >= next && number <= published, "{number} after {next}");
            for missing in next..number {
                assert!(!confirmed.contains(&(u64::from(missing) + 1)), "{missing} is lost");
            }
            assert!(redelivered || number >= 100, "{number} was delivered before");
            next = number + 1;
        }
        assert!(u64::from(next) >= confirmed.last().copied().unwrap_or(0), "the end is lost");
        assert_eq!(broker.stop().code, Some(0));
    }
}

#[test]
fn whoever_ignores_the_farewell_is_cut_after_the_drain_timeout() {
    let dir = Dir::new("stopping");
    let broker = Start::on_disk(dir.path()).line("drain_timeout_ms = 200").ready();
    let mut deaf = Peer::open(broker.amqp, 0);
    let ended = broker.stop();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    deaf.expect("connection.close");
    deaf.rest();
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dir = Dir::new("stopping");
    let broker = Start::on_disk(dir.path()).line("drain_timeout_ms = 600000").ready();
    let mut deaf = Peer::open(broker.amqp, 0);
    broker.signal_stop();
    deaf.expect("connection.close");
    let began = Instant::now();
    let ended = broker.stop();
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(ended.code.is_some_and(|code| code != 101), "{ended:?}");
    // What it left is sound.
    assert_eq!(Start::on_disk(dir.path()).ready().stop().code, Some(0));
}

#[test]
fn a_terminal_that_goes_is_a_stop_like_any_other() {
    let dir = Dir::new("stopping");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    let mut peer = Peer::open(broker.amqp, 0);
    broker.signal(Signal::HUP);
    peer.expect("connection.close");
    drop(peer);
    assert_eq!(broker.ended().code, Some(0));
    let said = start.ready().stop().stderr;
    assert!(!said.contains("not a clean one"), "{said}");
}

#[test]
fn an_idle_stop_and_start_keep_an_empty_store_small() {
    let dir = Dir::new("stopping");
    let start = Start::on_disk(dir.path());
    for _ in 0..10 {
        assert_eq!(start.ready().stop().code, Some(0));
    }
    let bytes: u64 = std::fs::read_dir(dir.join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 1 << 20, "{bytes} bytes for nothing");
}
