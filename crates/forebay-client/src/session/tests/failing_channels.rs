//! Channels that answer wrongly or not at all, as those of RabbitMQ may when a quorum queue's leader goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_flow::{CommitTime, Load, Pfw, PfwOptions, Sample, Together, Window, WindowState};
use forebay_wire::{channel, forebay};

use super::*;

const SECOND_US: u64 = 1_000_000;

struct Rig {
    session: Session,
    seen: Seen,
    key: usize,
    now_us: u64,
    cx: Context<'static>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(|| Box::new(Fixed::new(Amount::new(50, u64::MAX))))
    }

    fn with(window: impl Fn() -> Box<dyn Window + Send> + Send + 'static) -> Rig {
        let now_us = SECOND_US;
        let mut session = Session::new(Options::default());
        connect(&mut session, now_us);
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let key = session.add_ledger(Ledger::new(target, "t-", Box::new(window)), now_us);
        let mut seen = Seen::default();
        seen.read(&mut session, now_us);
        Rig { session, seen, key, now_us, cx: Context::from_waker(Waker::noop()) }
    }

    fn publish(&mut self, body: &[u8]) -> usize {
        match self.session.publish(self.key, Message::new(body.to_vec()), None, self.now_us) {
            Published::Admitted(entry) => {
                self.seen.read(&mut self.session, self.now_us);
                entry
            }
            other => panic!("{other:?}"),
        }
    }

    fn hear(&mut self, method: &impl WireMethod) {
        let channel = self.seen.channel;
        feed(&mut self.session, &bytes(channel, method), self.now_us);
        self.seen.read(&mut self.session, self.now_us);
    }

    fn reject(&mut self, delivery_tag: u64) {
        self.hear(&basic::Nack { delivery_tag, multiple: false, requeue: false });
    }

    fn tick(&mut self) -> Result<(), Lost> {
        let outcome = self.session.tick(self.now_us);
        self.seen.read(&mut self.session, self.now_us);
        outcome
    }

    fn outcome(&mut self, entry: usize) -> Poll<crate::session::ledger::Outcome> {
        self.session.ledger(self.key).0.poll_outcome(entry, &mut self.cx)
    }

    fn replaced(&mut self) -> u64 {
        self.session.ledger(self.key).0.metrics().channels_replaced
    }
}

#[test]
fn a_channel_that_rejects_everything_is_left_when_all_on_it_is_answered() {
    let mut rig = Rig::new();
    let (first, mut outcomes) = (rig.seen.channel, Vec::new());
    for number in 1..=3 {
        outcomes.push(rig.publish(b"rejected"));
        if number < 3 {
            rig.reject(number);
        }
        rig.now_us += SECOND_US;
    }
    let answered_late = rig.publish(b"rejected as well");
    rig.reject(3);
    // From here on nothing more goes out on it.
    let waiting = rig.publish(b"taken");
    assert_eq!(rig.seen.bodies.len(), 4);
    assert_eq!((rig.seen.channel, rig.replaced()), (first, 0));
    rig.reject(4);
    assert_eq!(rig.replaced(), 1);
    assert_ne!(rig.seen.channel, first);
    assert_eq!(rig.seen.bodies, [b"taken"], "what has its outcome is not sent again");
    assert_eq!(rig.seen.marked, [false]);
    rig.hear(&basic::Ack { delivery_tag: 1, multiple: false });
    for entry in outcomes.into_iter().chain([answered_late]) {
        assert_eq!(rig.outcome(entry), Poll::Ready(Err(crate::Unconfirmed::Rejected)));
    }
    let confirmed = crate::Confirmed { republished: false };
    assert_eq!(rig.outcome(waiting), Poll::Ready(Ok(confirmed)));
}

#[test]
fn a_channel_that_rejects_everything_slowly_is_not_waited_for() {
    let mut rig = Rig::new();
    let entries: Vec<usize> = (0..8).map(|_| rig.publish(b"slowly rejected")).collect();
    for tag in 1..=3 {
        rig.now_us += 5 * SECOND_US;
        rig.reject(tag);
    }
    assert_eq!(rig.replaced(), 0);
    rig.now_us = rig.session.next_tick_us().unwrap();
    rig.tick().unwrap();
    assert_eq!((rig.replaced(), rig.seen.bodies.len()), (1, 5));
    assert!(rig.seen.marked.iter().all(|&marked| marked), "they may be there");
    rig.hear(&basic::Ack { delivery_tag: 5, multiple: true });
    for (number, entry) in entries.into_iter().enumerate() {
        let expected = match number {
            0..3 => Err(crate::Unconfirmed::Rejected),
            _ => Ok(crate::Confirmed { republished: true }),
        };
        assert_eq!(rig.outcome(entry), Poll::Ready(expected));
    }
}

#[test]
fn a_full_queue_costs_a_channel_now_and_then() {
    let mut rig = Rig::new();
    let mut tag = 0;
    for _ in 0..600 {
        let (channel, entry) = (rig.seen.channel, rig.publish(b"too much"));
        tag = if rig.seen.bodies.len() == 1 { 1 } else { tag + 1 };
        assert_eq!(rig.seen.channel, channel);
        rig.reject(tag);
        assert_eq!(rig.outcome(entry), Poll::Ready(Err(crate::Unconfirmed::Rejected)));
        rig.now_us += SECOND_US;
    }
    assert!((60..=85).contains(&rig.replaced()), "{} times in 10 minutes", rig.replaced());
}

#[test]
fn now_and_then_a_rejection_is_no_reason() {
    let mut rig = Rig::new();
    for tag in 1..=100 {
        let entry = rig.publish(b"x");
        if tag % 3 == 0 {
            rig.hear(&basic::Ack { delivery_tag: tag, multiple: false });
        } else {
            rig.reject(tag);
        }
        assert!(rig.outcome(entry).is_ready());
        rig.now_us += SECOND_US;
    }
    assert_eq!(rig.replaced(), 0);
}

#[test]
fn what_is_never_confirmed_is_sent_again_on_another_channel() {
    let mut rig = Rig::new();
    let (first, entry, other) = (rig.seen.channel, rig.publish(b"one"), rig.publish(b"two"));
    rig.now_us += 20 * SECOND_US;
    rig.hear(&basic::Ack { delivery_tag: 2, multiple: false });
    // Any answer shows that the channel lives.
    assert_eq!(rig.session.next_tick_us(), Some(rig.now_us + 30 * SECOND_US));
    rig.now_us += 29 * SECOND_US;
    rig.tick().unwrap();
    assert_eq!(rig.replaced(), 0);
    rig.now_us += SECOND_US;
    rig.tick().unwrap();
    assert_eq!(rig.replaced(), 1);
    assert_ne!(rig.seen.channel, first);
    assert_eq!(
        (rig.seen.bodies.as_slice(), rig.seen.marked.as_slice()),
        (&[b"one".to_vec()][..], &[true][..])
    );
    // The old one answers after all, too late to count.
    let late = bytes(first, &basic::Nack { delivery_tag: 1, multiple: false, requeue: false });
    feed(&mut rig.session, &late, rig.now_us);
    assert_eq!(rig.outcome(entry), Poll::Pending);
    rig.hear(&basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(rig.outcome(entry), Poll::Ready(Ok(crate::Confirmed { republished: true })));
    assert_eq!(rig.outcome(other), Poll::Ready(Ok(crate::Confirmed { republished: false })));
}

#[test]
fn a_broker_that_does_not_even_end_a_channel_is_left() {
    let mut rig = Rig::new();
    rig.publish(b"one");
    let first = rig.seen.channel;
    for ended in [true, false] {
        rig.now_us += 30 * SECOND_US;
        rig.tick().unwrap();
        if ended {
            feed(&mut rig.session, &bytes(first, &channel::CloseOk::default()), rig.now_us);
        }
    }
    rig.now_us += 30 * SECOND_US;
    assert!(matches!(rig.tick(), Err(Lost::Io(_))));
}

#[test]
fn a_channel_that_has_ended_is_not_taken_for_another_one_with_its_number() {
    let mut rig = Rig::new();
    rig.publish(b"one");
    let first = rig.seen.channel;
    rig.now_us += 30 * SECOND_US;
    rig.tick().unwrap();
    feed(&mut rig.session, &bytes(first, &channel::CloseOk::default()), rig.now_us);
    let (user, number, _) = rig.session.open_user_channel().unwrap();
    assert_eq!((number, rig.replaced()), (first, 1));
    rig.now_us += 30 * SECOND_US;
    rig.session.drop_user_channel(user, number);
    rig.tick().unwrap();
    assert_eq!(rig.replaced(), 2);
}

#[test]
fn no_answer_is_due_while_the_broker_takes_nothing() {
    let mut rig = Rig::new();
    rig.publish(b"one");
    feed(&mut rig.session, &bytes(0, &connection::Blocked::default()), rig.now_us);
    rig.now_us += 100 * SECOND_US;
    assert_eq!(rig.session.next_tick_us(), None);
    rig.tick().unwrap();
    feed(&mut rig.session, &bytes(0, &connection::Unblocked::default()), rig.now_us);
    rig.now_us += 29 * SECOND_US;
    rig.tick().unwrap();
    // Nor while bytes of ours have not left yet.
    rig.session.still_busy(rig.now_us);
    rig.now_us += 29 * SECOND_US;
    rig.tick().unwrap();
    assert_eq!(rig.replaced(), 0);
    rig.session.ledger(rig.key).0.set_stall_us(None);
    rig.now_us += 1000 * SECOND_US;
    rig.tick().unwrap();
    assert_eq!(rig.replaced(), 0, "it was told to wait for ever");
}

/// What a window hears of kernel and broker.
#[derive(Debug, Default)]
struct Heard {
    commit_us: AtomicU32,
    publishers: AtomicU32,
    unsent_bytes: AtomicU64,
    carried: AtomicU64,
}

/// Of a fixed size.
struct Listening(Fixed, Arc<Heard>);

impl Listening {
    /// A session whose windows write down what they hear.
    fn rig() -> (Rig, Arc<Heard>) {
        let heard = Arc::new(Heard::default());
        let ears = heard.clone();
        let window = move || {
            ears.commit_us.store(0, Ordering::Relaxed);
            Box::new(Listening(Fixed::new(Amount::new(50, 1_000)), ears.clone())) as _
        };
        (Rig::with(window), heard)
    }
}

impl Window for Listening {
    fn sent(&mut self, _now_us: u64, _load: Load) -> bool {
        false
    }

    fn confirmed(&mut self, _now_us: u64, _sample: Sample, _load: Load) {}

    fn rejected(&mut self, _now_us: u64, _load: Load) {}

    fn network(&mut self, _now_us: u64, reading: Option<KernelReading>) -> bool {
        let unsent_bytes = reading.map_or(0, |reading| reading.unsent_bytes);
        self.1.unsent_bytes.store(unsent_bytes, Ordering::Relaxed);
        false
    }

    fn wants_full_packets(&self) -> bool {
        self.1.unsent_bytes.load(Ordering::Relaxed) > 0
    }

    fn together(&mut self, _now_us: u64, told: Together) {
        self.1.carried.store(told.messages, Ordering::Relaxed);
    }

    fn service_us(&self) -> Option<u64> {
        Some(700)
    }

    fn commit_time(&mut self, told: CommitTime) {
        self.1.commit_us.store(told.us as u32, Ordering::Relaxed);
        self.1.publishers.store(told.publishers, Ordering::Relaxed);
    }

    fn blocked(&mut self, _now_us: u64) {}

    fn unblocked(&mut self, _now_us: u64) {}

    fn window(&self) -> Amount {
        self.0.window()
    }

    fn state(&self) -> WindowState {
        self.0.state()
    }
}

#[test]
fn a_window_hears_what_the_kernel_tells() {
    let (mut rig, heard) = Listening::rig();
    rig.publish(b"one");
    for unsent_bytes in [7_000, 0] {
        let reading = KernelReading { unsent_bytes, ..KernelReading::of(33_000) };
        rig.session.network(rig.now_us, Some(reading));
        assert_eq!(heard.unsent_bytes.load(Ordering::Relaxed), unsent_bytes);
        assert_eq!(rig.session.wants_full_packets(), unsent_bytes > 0, "and has its way");
    }
}

#[test]
fn what_was_confirmed_is_told_once_and_a_window_hears_of_all() {
    let (mut rig, heard) = Listening::rig();
    rig.publish(b"one");
    rig.publish(b"two");
    assert_eq!(rig.session.take_confirmed(), 0);
    rig.hear(&basic::Ack { delivery_tag: 2, multiple: true });
    assert_eq!([rig.session.take_confirmed(), rig.session.take_confirmed()], [2, 0]);
    assert_eq!(rig.session.service_us(), Some(700));
    rig.session.together(rig.now_us, Together { messages: 40_002, least_service_us: None });
    assert_eq!(heard.carried.load(Ordering::Relaxed), 40_002);
}

#[test]
fn a_publisher_of_large_messages_begins_with_few_of_them() {
    let mut rig = Rig::with(|| Box::new(Pfw::new(PfwOptions::default())));
    for _ in 0..3 {
        rig.publish(&[0; 5_000]);
    }
    let fourth = Message::new(vec![0; 5_000]);
    let published = rig.session.publish(rig.key, fourth, None, rig.now_us);
    assert!(matches!(published, Published::Waiting(_)), "{published:?}");
}

#[test]
fn a_window_hears_what_the_brokers_commits_take_and_so_does_the_one_after_it() {
    let (mut rig, heard) = Listening::rig();
    rig.publish(b"one");
    let first = rig.seen.channel;
    feed(
        &mut rig.session,
        &bytes(0, &forebay::CommitTime { commit_us: 8_000, publishers: 3, part_permille: 1_000 }),
        rig.now_us,
    );
    assert_eq!(heard.commit_us.load(Ordering::Relaxed), 8_000);
    assert_eq!(heard.publishers.load(Ordering::Relaxed), 3);
    rig.now_us += 30 * SECOND_US; // no answer: another channel
    rig.tick().unwrap();
    feed(&mut rig.session, &bytes(first, &channel::CloseOk::default()), rig.now_us);
    assert_eq!(rig.replaced(), 1);
    assert_eq!(heard.commit_us.load(Ordering::Relaxed), 8_000);
    feed(
        &mut rig.session,
        &bytes(0, &forebay::CommitTime { commit_us: 0, publishers: 3, part_permille: 1_000 }),
        rig.now_us,
    );
    assert_eq!(heard.commit_us.load(Ordering::Relaxed), 0);
}

/// It keeps confirms on purpose, while the consumers of a queue get on with what is there.
#[test]
fn a_broker_of_ours_may_be_silent_for_as_long_as_it_holds_confirms() {
    let mut session = Session::new(Options::default());
    let capabilities = forebay_wire::TableBuf::new()
        .with(forebay_flow::FAIR_VISITS, forebay_wire::Value::Bool(true));
    let properties = forebay_wire::TableBuf::new()
        .with("capabilities", forebay_wire::Value::Table(capabilities.as_table()));
    let options = Options { heartbeat_s: 0, ..Options::default() };
    connect_to(&mut session, options, properties.as_table(), &Default::default(), SECOND_US);
    let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
    let window = || Box::new(Fixed::new(Amount::new(50, u64::MAX))) as Box<_>;
    let key = session.add_ledger(Ledger::new(target, "t-", Box::new(window)), SECOND_US);
    let published = session.publish(key, Message::new("m"), None, SECOND_US);
    assert!(matches!(published, Published::Admitted(_)));
    assert_eq!(session.next_tick_us(), None);
    session.tick(3_600 * SECOND_US).unwrap();
    assert_eq!(session.ledger(key).0.metrics().channels_replaced, 0);
}
