//! A backlog of a million persistent messages of 1 KB: memory stays within its budget, a restart in
//! the middle of it loses nothing, and it is drained in order.

mod support;

use std::time::{Duration, Instant};

use forebay_client::blocking::{Connection, ConsumeOptions, DeclareQueue, Message, Publication};
use forebay_wire::Properties;
use support::broker::{Broker, Start};
use support::dir::Dir;
use support::random::Random;
use support::{PATIENCE, scaled};

const BODY_BYTES: usize = 1024;
const BUDGET_MIB: u64 = 256;
/// What may come on top of the budget for a moment, a tenth: what the process grew by before publishers stopped. Mostly
/// all of it stays within the budget.
const OVERHEAD_MIB: u64 = BUDGET_MIB / 10;

/// Bodies that differ and say where they belong.
struct Bodies {
    noise: Vec<u8>,
}

impl Bodies {
    fn new() -> Bodies {
        let mut random = Random::new(1);
        Bodies { noise: (0..1024).flat_map(|_| random.bits().to_le_bytes()).collect() }
    }

    fn write(&self, number: u64, body: &mut Vec<u8>) {
        let offset = (number % 7000) as usize;
        body.clear();
        body.extend(number.to_be_bytes());
        body.extend(&self.noise[offset..offset + BODY_BYTES - 8]);
    }

    fn number(&self, message: &Message) -> u64 {
        let body = message.body();
        let number = u64::from_be_bytes(body[..8].try_into().expect("eight bytes"));
        let offset = (number % 7000) as usize;
        assert!(body[8..] == self.noise[offset..offset + BODY_BYTES - 8], "{number} is damaged");
        number
    }
}

fn fill(broker: &Broker, bodies: &Bodies, messages: u64) {
    let mut channel = broker.connect().channel().unwrap();
    channel.declare_queue("backlog", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    channel.confirm_select(5_000).unwrap();
    let mut body = Vec::new();
    for number in 0..messages {
        bodies.write(number, &mut body);
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        let message =
            Publication { routing_key: "backlog", properties, body: &body, ..Default::default() };
        channel.publish(&message).unwrap();
    }
    channel.wait_settled().unwrap();
    let settled = channel.take_settled();
    assert_eq!(settled.iter().map(|s| if s.acked { s.count() } else { 0 }).sum::<u64>(), messages);
}

/// Takes and acks the messages from `first` until (not including) `end`, then makes sure the acks are
/// on disk.
fn drain(broker: &Broker, bodies: &Bodies, first: u64, end: u64) {
    let mut channel = Connection::open(&broker.url()).unwrap().channel().unwrap();
    let options = ConsumeOptions { prefetch: 2_000, ..ConsumeOptions::default() };
    let mut consumer = channel.consume("backlog", options).unwrap();
    for number in first..end {
        let message = consumer.next_message(Some(PATIENCE)).unwrap().expect("a message");
        assert_eq!(bodies.number(&message), number);
        if number % 200 == 199 || number + 1 == end {
            consumer.ack(&message, true).unwrap();
        }
    }
    channel.declare_queue("marker", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    channel.confirm_select(1).unwrap();
    support::load::confirm_marker(&mut channel).unwrap();
}

fn per_second(count: u64, time: Duration) -> u64 {
    (count as f64 / time.as_secs_f64()) as u64
}

fn assert_bounded(broker: &Broker, during: &str) {
    let (now_kib, highest_kib) = broker.resident_kib();
    println!(
        "  resident after {during}: {} MiB, at most {} MiB",
        now_kib / 1024,
        highest_kib / 1024
    );
    assert!(highest_kib <= (BUDGET_MIB + OVERHEAD_MIB) * 1024, "{highest_kib} KiB in {during}");
}

#[test]
fn a_million_messages_fit_the_budget_survive_a_kill_and_drain_in_order() {
    let dir = Dir::new("backlog");
    let start = Start::on_disk(dir.path()).flag("--memory-budget", &format!("{BUDGET_MIB}MiB"));
    let bodies = Bodies::new();
    let messages = scaled(1_000_000, 40_000);

    let broker = start.ready();
    let began = Instant::now();
    fill(&broker, &bodies, messages);
    let filled = began.elapsed();
    println!(
        "filled: {messages} in {filled:?}, {} confirmed a second",
        per_second(messages, filled)
    );
    assert_bounded(&broker, "the fill");
    broker.kill();

    let broker = start.ready();
    println!("restarted after a kill: ready in {:?}", broker.ready_after);
    let mut channel = broker.connect().channel().unwrap();
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    let there = channel.declare_queue("backlog", passive).unwrap();
    assert_eq!(u64::from(there.message_count), messages);
    drop(channel);
    assert_bounded(&broker, "the restart");
    let half = messages / 2;
    let began = Instant::now();
    drain(&broker, &bodies, 0, half);
    let drained = began.elapsed();
    println!("drained: {half} in {drained:?}, {} acked a second", per_second(half, drained));
    assert_bounded(&broker, "half of the drain");
    let stopping = Instant::now();
    assert_eq!(broker.stop().code, Some(0));
    println!("stopped in {:?}", stopping.elapsed());

    let broker = start.ready();
    println!("restarted after a stop: ready in {:?}", broker.ready_after);
    let began = Instant::now();
    drain(&broker, &bodies, half, messages);
    let drained = began.elapsed();
    println!("drained: {half} in {drained:?}, {} acked a second", per_second(half, drained));
    assert_bounded(&broker, "the drain");
    let mut channel = broker.connect().channel().unwrap();
    assert!(channel.get("backlog", true).unwrap().is_none(), "there is more than was published");
    // Killed with everything acked: nothing comes back.
    broker.kill();
    let broker = start.ready();
    let mut channel = broker.connect().channel().unwrap();
    assert!(channel.get("backlog", true).unwrap().is_none(), "acked messages came back");
    assert_eq!(broker.stop().code, Some(0));
}
