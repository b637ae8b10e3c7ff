//! A consumer against a broker that cannot change a live consumer's credit: whatever is in flight when, messages
//! come in the queue's order, each once.

use std::collections::BTreeSet;

use forebay_wire::{ShortStr, channel, queue, write_body_frame, write_properties_frame};

use super::*;

/// Deliveries of one consumer that leave together, as RabbitMQ's quorum queues send them: grouped by consumer.
#[derive(Default)]
struct Consumer {
    tag: String,
    prefetch: usize,
    unacked: BTreeSet<u64>,
    cancelled: bool,
    /// Assigned by the queue, not sent yet.
    assigned: Vec<u32>,
    /// Lost on their way to the channel; the queue believes that they are in work.
    lost: Vec<u32>,
}

/// A queue of numbers and one channel.
#[derive(Default)]
pub(super) struct Broker {
    from_client: Vec<u8>,
    to_client: Vec<u8>,
    channel: u16,
    qos: u16,
    consumers: Vec<Consumer>,
    next_message: u32,
    pub(super) messages: u32,
    last_tag: u64,
    pub(super) acked: u32,
    most_consumers: usize,
    deleted: bool,
    /// Times the queue was asked for.
    pub(super) asked: u32,
}

impl Broker {
    pub(super) fn with(messages: u32) -> Broker {
        Broker { messages, ..Broker::default() }
    }

    pub(super) fn hear(&mut self, session: &mut Session, now_us: u64) {
        let mut out = Vec::new();
        session.machine.take_outgoing(&mut out);
        session.drained(now_us);
        self.from_client.extend_from_slice(&out);
    }

    /// Works off one frame. False: there is none.
    pub(super) fn work(&mut self) -> bool {
        let input = std::mem::take(&mut self.from_client);
        let Some(frame) = read_frame(&input, 1 << 20).unwrap() else {
            self.from_client = input;
            return false;
        };
        if frame.channel != 0 && frame.kind == FrameKind::Method {
            self.channel = frame.channel;
            self.method(Method::parse(frame.payload).unwrap());
        }
        self.from_client = input[frame.size_bytes()..].to_vec();
        true
    }

    fn method(&mut self, method: Method<'_>) {
        match method {
            Method::ChannelOpen(_) => self.answer(&channel::OpenOk::default()),
            Method::BasicQos(qos) => {
                assert!(!qos.global, "it said nothing of live credit");
                self.qos = qos.prefetch_count;
                self.answer(&basic::QosOk::default());
            }
            Method::BasicConsume(consume) => {
                let tag = consume.consumer_tag.to_string();
                self.answer(&basic::ConsumeOk { consumer_tag: ShortStr::truncated(&tag) });
                let prefetch = usize::from(self.qos);
                self.consumers.push(Consumer { tag, prefetch, ..Consumer::default() });
                let live = self.consumers.iter().filter(|consumer| !consumer.cancelled).count();
                self.most_consumers = self.most_consumers.max(live);
            }
            Method::BasicCancel(cancel) => {
                let tag = cancel.consumer_tag.to_string();
                let at = self.consumers.iter().position(|consumer| consumer.tag == tag).unwrap();
                self.send(at);
                self.consumers[at].cancelled = true;
                self.answer(&basic::CancelOk { consumer_tag: ShortStr::truncated(&tag) });
                let live = self.consumers.iter().any(|consumer| !consumer.cancelled);
                assert!(live, "an auto-delete queue would be gone");
            }
            Method::BasicAck(basic::Ack { delivery_tag, multiple }) => {
                for consumer in &mut self.consumers {
                    let before = consumer.unacked.len();
                    consumer
                        .unacked
                        .retain(|&tag| tag != delivery_tag && !(multiple && tag < delivery_tag));
                    self.acked += (before - consumer.unacked.len()) as u32;
                }
            }
            Method::QueueDeclare(declare) => {
                assert!(declare.passive);
                self.asked += 1;
                if self.deleted {
                    let gone = channel::Close { reply_code: 404, ..Default::default() };
                    self.answer(&gone);
                } else {
                    let message_count = self.messages - self.next_message;
                    self.answer(&queue::DeclareOk { message_count, ..Default::default() });
                }
            }
            Method::ChannelClose(_) => {
                // What it believed to be in work is next.
                let lost = self.consumers.drain(..).flat_map(|consumer| consumer.lost);
                self.next_message = lost.min().unwrap_or(self.next_message);
                self.last_tag = 0;
                self.answer(&channel::CloseOk::default());
            }
            other => panic!("{}", other.name()),
        }
    }

    fn answer(&mut self, method: &impl WireMethod) {
        write_method(&mut self.to_client, self.channel, method);
    }

    /// Gives the next message to one of those that may have one.
    pub(super) fn assign(&mut self, which: usize) -> bool {
        let free = |consumer: &&mut Consumer| {
            let held = consumer.unacked.len() + consumer.assigned.len() + consumer.lost.len();
            !consumer.cancelled && held < consumer.prefetch
        };
        let mut able: Vec<&mut Consumer> = self.consumers.iter_mut().filter(free).collect();
        if able.is_empty() || self.next_message == self.messages {
            return false;
        }
        let count = able.len();
        able[which % count].assigned.push(self.next_message);
        self.next_message += 1;
        true
    }

    /// What one consumer was given leaves.
    pub(super) fn send(&mut self, which: usize) {
        if self.consumers.is_empty() {
            return;
        }
        let at = which % self.consumers.len();
        let consumer = &mut self.consumers[at];
        for number in std::mem::take(&mut consumer.assigned) {
            self.last_tag += 1;
            consumer.unacked.insert(self.last_tag);
            let deliver = basic::Deliver {
                consumer_tag: ShortStr::truncated(&consumer.tag),
                delivery_tag: self.last_tag,
                ..Default::default()
            };
            let out = &mut self.to_client;
            write_method(out, self.channel, &deliver);
            write_properties_frame(out, self.channel, 60, 4, &Default::default());
            write_body_frame(out, self.channel, &number.to_be_bytes());
        }
    }

    /// What was given to consumers never reaches their channel.
    pub(super) fn lose(&mut self) {
        for consumer in &mut self.consumers {
            consumer.lost.append(&mut consumer.assigned);
        }
    }

    /// So many bytes arrive, or all there are.
    pub(super) fn tell(
        &mut self,
        session: &mut Session,
        unread: &mut Vec<u8>,
        bytes: usize,
        now_us: u64,
    ) {
        unread.extend(self.to_client.drain(..bytes.min(self.to_client.len())));
        let mut rest = unread.as_slice();
        session.receive(&mut rest, now_us).unwrap();
        *unread = rest.to_vec();
    }
}

pub(super) fn how(sole: bool) -> How {
    How {
        queue: "q".into(),
        tag: "t".into(),
        exclusive: false,
        work_limit_us: None,
        occupancy: None,
        stall_us: None,
        sole,
        arguments: Default::default(),
        marks: false,
    }
}

fn consumer(session: &mut Session, now_us: u64, credit_max: u32, sole: bool) -> usize {
    let credit = Credit::new(now_us, 1, credit_max, None);
    session.add_intake(Intake::new(how(sole), credit), now_us)
}

pub(super) fn number(message: &crate::Received) -> u32 {
    u32::from_be_bytes(message.body().try_into().unwrap())
}

#[derive(Debug, Clone)]
enum Move {
    Hear,
    Work,
    Assign(usize),
    Send(usize),
    Tell(usize),
    Take,
    /// Settles some delivery in work.
    Settle(usize),
    Starve,
    Pass(u64),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => Just(Move::Hear),
        6 => Just(Move::Work),
        8 => any::<usize>().prop_map(Move::Assign),
        4 => any::<usize>().prop_map(Move::Send),
        5 => (0..400_usize).prop_map(Move::Tell),
        4 => Just(Move::Take),
        4 => any::<usize>().prop_map(Move::Settle),
        2 => Just(Move::Starve),
        2 => (1..300_000_u64).prop_map(Move::Pass),
    ]
}

proptest! {
    #[test]
    fn order_is_kept_while_the_credit_changes(moves in prop::collection::vec(moves(), 0..600)) {
        const MESSAGES: u32 = 150;
        const CREDIT_MAX: u32 = 12;
        let mut cx = Context::from_waker(Waker::noop());
        let (mut now_us, mut unread) = (1, Vec::new());
        let mut session = Session::new(Options::default());
        connect(&mut session, now_us);
        let mut broker = Broker::with(MESSAGES);
        session.machine.take_outgoing(&mut Vec::new());
        let key = consumer(&mut session, now_us, CREDIT_MAX, false);
        let (mut taken, mut held) = (Vec::new(), Vec::new());
        for step in moves {
            match step {
                Move::Hear => broker.hear(&mut session, now_us),
                Move::Work => drop(broker.work()),
                Move::Assign(which) => drop(broker.assign(which)),
                Move::Send(which) => broker.send(which),
                Move::Tell(bytes) => broker.tell(&mut session, &mut unread, bytes, now_us),
                Move::Take => {
                    let (intake, machine) = session.intake(key);
                    if let Some(ready) = intake.take_ready(machine, now_us) {
                        taken.push(number(&ready.message));
                        held.push(ready.key);
                    }
                }
                Move::Settle(which) if !held.is_empty() => {
                    let delivery = held.remove(which % held.len());
                    let (intake, machine) = session.intake(key);
                    prop_assert!(intake.settle(machine, delivery, Verdict::Ack, 10, now_us));
                }
                Move::Settle(_) => {}
                Move::Starve => {
                    let (intake, machine) = session.intake(key);
                    match intake.poll_next(machine, now_us, &mut cx) {
                        Poll::Ready(Ok(Some(ready))) => {
                            taken.push(number(&ready.message));
                            held.push(ready.key);
                        }
                        Poll::Ready(other) => panic!("{other:?}"),
                        Poll::Pending => {}
                    }
                }
                Move::Pass(us) => {
                    now_us += us;
                    session.tick(now_us).unwrap();
                }
            }
            let metrics = session.intake(key).0.metrics();
            prop_assert!(metrics.ready + metrics.in_work <= CREDIT_MAX);
        }
        // Everything gets its turn: whatever was begun is ended, and nothing is stuck or lost.
        for turn in 0.. {
            prop_assert!(turn < 10_000, "stuck after {} messages", taken.len());
            let (intake, machine) = session.intake(key);
            while let Some(ready) = intake.take_ready(machine, now_us) {
                taken.push(number(&ready.message));
                held.push(ready.key);
            }
            for delivery in held.drain(..) {
                prop_assert!(intake.settle(machine, delivery, Verdict::Ack, 10, now_us));
            }
            now_us += 10_000;
            session.tick(now_us).unwrap();
            broker.hear(&mut session, now_us);
            while broker.work() {}
            if broker.acked == MESSAGES {
                break;
            }
            while broker.assign(turn) {}
            (0..broker.consumers.len()).for_each(|at| broker.send(at));
            broker.tell(&mut session, &mut unread, usize::MAX, now_us);
        }
        prop_assert_eq!(taken, (0..MESSAGES).collect::<Vec<_>>());
        prop_assert!(broker.most_consumers <= 2);
        let live = broker.consumers.iter().filter(|consumer| !consumer.cancelled).count();
        prop_assert_eq!(live, 1);
    }
}

/// Works through messages that cost nothing, over a line of 10 ms; returns the credit at the end, and how often the
/// consumer was replaced.
fn fast_work(messages: u32, sole: bool) -> (u32, u64) {
    let (mut now_us, mut unread) = (1, Vec::new());
    let mut session = Session::new(Options::default());
    connect(&mut session, now_us);
    let mut broker = Broker::with(messages);
    session.machine.take_outgoing(&mut Vec::new());
    let key = consumer(&mut session, now_us, 1000, sole);
    let mut cx = Context::from_waker(Waker::noop());
    while broker.acked < messages {
        broker.hear(&mut session, now_us);
        now_us += 5_000;
        while broker.work() {}
        while broker.assign(0) {}
        (0..broker.consumers.len()).for_each(|at| broker.send(at));
        now_us += 5_000;
        broker.tell(&mut session, &mut unread, usize::MAX, now_us);
        let reading = KernelReading::of(10_000);
        session.network(now_us, Some(reading));
        loop {
            let (intake, machine) = session.intake(key);
            let Poll::Ready(taken) = intake.poll_next(machine, now_us, &mut cx) else { break };
            let delivery = taken.unwrap().unwrap().key;
            assert!(intake.settle(machine, delivery, Verdict::Ack, 10, now_us));
        }
        session.tick(now_us).unwrap();
    }
    let metrics = session.intake(key).0.metrics();
    (metrics.credit, metrics.reconsumed)
}

#[test]
fn fast_work_gets_more_credit_by_another_consumer() {
    let (credit, replaced) = fast_work(20_000, false);
    assert!(credit >= 500, "{credit}");
    assert!((1..=10).contains(&replaced), "{replaced}");
}

#[test]
fn a_consumer_that_has_its_queue_alone_keeps_its_place() {
    assert_eq!(fast_work(20_000, true), (1000, 0));
}

#[test]
fn a_deletion_that_nobody_told_is_found_out() {
    for deleted in [true, false] {
        let (mut now_us, mut unread) = (1, Vec::new());
        let mut session = Session::new(Options::default());
        connect(&mut session, now_us);
        let mut broker = Broker { messages: 0, deleted, ..Broker::default() };
        session.machine.take_outgoing(&mut Vec::new());
        let key = consumer(&mut session, now_us, 10, false);
        while broker.asked == 0 {
            broker.hear(&mut session, now_us);
            while broker.work() {}
            broker.tell(&mut session, &mut unread, usize::MAX, now_us);
            now_us = session.next_tick_us().unwrap_or(now_us);
            session.tick(now_us).unwrap();
        }
        broker.tell(&mut session, &mut unread, usize::MAX, now_us);
        let (intake, machine) = session.intake(key);
        let mut cx = Context::from_waker(Waker::noop());
        match intake.poll_next(machine, now_us, &mut cx) {
            Poll::Ready(Err(crate::ConsumeError::Cancelled)) => assert!(deleted),
            Poll::Pending => assert!(!deleted),
            other => panic!("{other:?}"),
        }
        assert!(session.next_tick_us().is_none(), "it is asked once");
    }
}

#[test]
fn what_was_finished_while_acks_were_held_is_acknowledged_when_the_broker_ends_the_consumer() {
    let (mut now_us, mut unread) = (1, Vec::new());
    let mut session = Session::new(Options::default());
    connect(&mut session, now_us);
    session.machine.take_outgoing(&mut Vec::new());
    let mut broker = Broker::with(1_000);
    let credit = Credit::new(now_us, 3, 100, None);
    let key = session.add_intake(Intake::new(how(false), credit), now_us);
    let mut talk = |session: &mut Session, broker: &mut Broker, now_us| {
        broker.hear(session, now_us);
        while broker.work() {}
        broker.tell(session, &mut unread, usize::MAX, now_us);
    };
    talk(&mut session, &mut broker, now_us);
    // Quick work, far away: more credit is wanted some time, and acks are held for that. What comes one by one never uses
    // the present one up, so they stay where they are.
    let reading = KernelReading::of(10_000);
    session.network(now_us, Some(reading));
    let mut finished = 0;
    while broker.acked == finished {
        assert!(broker.assign(0), "they are never held");
        broker.send(0);
        talk(&mut session, &mut broker, now_us);
        session.tick(now_us).unwrap();
        let (intake, machine) = session.intake(key);
        let taken = intake.take_ready(machine, now_us).unwrap().key;
        assert!(intake.settle(machine, taken, Verdict::Ack, 10, now_us));
        finished += 1;
        talk(&mut session, &mut broker, now_us);
        now_us += 10_000;
    }
    let consumer_tag = broker.consumers[0].tag.clone();
    let consumer_tag = ShortStr::truncated(&consumer_tag);
    broker.answer(&basic::Cancel { consumer_tag, ..Default::default() });
    talk(&mut session, &mut broker, now_us);
    talk(&mut session, &mut broker, now_us);
    assert_eq!(broker.acked, finished, "nothing is waited for any more");
}
