//! Who publishes and who takes messages: futures that are polled when they are woken, and never otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use forebay_flow::{Amount, Fixed, WaiterId};
use forebay_wire::TableBuf;

use super::dice::Random;
use super::rabbit::{Fate, Rabbit, Said};
use crate::Message;
use crate::error::ConsumeError;
use crate::outcome::{NotPublishedReason, Unconfirmed, UnknownReason};
use crate::session::ledger::{NotAdmitted, Outcome};
use crate::session::{
    Credit, DeliveryKey, How, Intake, Ledger, Published, Session, Target, Verdict,
};

/// Whether a task is to run.
#[derive(Debug)]
pub(super) struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Woken {
    pub(super) fn new() -> Arc<Woken> {
        Arc::new(Woken(AtomicBool::new(true)))
    }

    /// True once after each time it was woken.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

pub(super) struct Publisher {
    pub(super) key: usize,
    name: String,
    next: u32,
    messages: u32,
    bytes: u64,
    limit_us: Option<u64>,
    waiting: Vec<(WaiterId, String, Arc<Woken>)>,
    open: Vec<(usize, String, Arc<Woken>)>,
    /// Its handle is gone.
    pub(super) dropped: bool,
}

/// What publishers were told, by the names of messages.
#[derive(Default)]
pub(super) struct Told {
    pub(super) outcomes: BTreeMap<String, Outcome>,
    /// They came back before they were sent.
    pub(super) unsent: Vec<String>,
}

impl Publisher {
    pub(super) fn new(
        session: &mut Session,
        number: usize,
        random: &mut Random,
        now_us: u64,
    ) -> Publisher {
        let exchange = if random.in_percent(25) { "x" } else { "" };
        let target = Target {
            exchange: exchange.into(),
            routing_key: format!("q{}", random.below(3)),
            mandatory: random.in_percent(80),
        };
        let messages = [1, 3, 10, 50][random.below(4)];
        let bytes = [2_000, 20_000, u64::MAX][random.below(3)];
        let window = move || Box::new(Fixed::new(Amount::new(messages, bytes))) as Box<_>;
        let name = format!("p{number}");
        let mut ledger = Ledger::new(target, &format!("{name}-"), Box::new(window));
        let limit_us = random.in_percent(30).then_some(5_000_000 << random.below(4));
        ledger.set_limit_us(limit_us);
        ledger.set_ordered(random.in_percent(80));
        if random.in_percent(20) {
            ledger.set_stall_us(None);
        }
        let key = session.add_ledger(ledger, now_us);
        Publisher {
            key,
            name,
            next: 0,
            messages,
            bytes,
            limit_us,
            waiting: Vec::new(),
            open: Vec::new(),
            dropped: false,
        }
    }

    pub(super) fn publish(
        &mut self,
        session: &mut Session,
        told: &mut Told,
        random: &mut Random,
        now_us: u64,
    ) {
        self.next += 1;
        let name = format!("{}-{}", self.name, self.next);
        let size = [0, 10, 300, 3000, 9000][random.below(5)];
        let mut message = Message::new(format!("{name}|{}", "-".repeat(size)).into_bytes());
        if random.in_percent(20) {
            message = message.message_id(format!("own {name}"));
        }
        if random.in_percent(15) {
            message = message.routing_key(["nowhere", "q0", "q1"][random.below(3)]);
        }
        match session.publish(self.key, message, None, now_us) {
            Published::Admitted(entry) => self.open.push((entry, name, Woken::new())),
            Published::Waiting(id) => self.waiting.push((id, name, Woken::new())),
            Published::Refused(NotPublishedReason::Lost(_), _) => told.unsent.push(name),
            Published::Refused(reason, _) => panic!("{reason:?}"),
        }
    }

    /// Runs the tasks that were woken. True: somebody learned something.
    pub(super) fn run(&mut self, session: &mut Session, told: &mut Told, rabbit: &Rabbit) -> bool {
        let before = self.waiting.len() + told.outcomes.len();
        for (id, name, woken) in std::mem::take(&mut self.waiting) {
            if !woken.take() {
                self.waiting.push((id, name, woken));
                continue;
            }
            let waker = Waker::from(woken.clone());
            match session.ledger(self.key).0.poll_admitted(id, &mut Context::from_waker(&waker)) {
                Poll::Pending => self.waiting.push((id, name, woken)),
                Poll::Ready(Ok(entry)) => self.open.push((entry, name, Woken::new())),
                Poll::Ready(Err(NotAdmitted::Never(NotPublishedReason::Lost(_), _)))
                | Poll::Ready(Err(NotAdmitted::Elsewhere(_))) => told.unsent.push(name),
                Poll::Ready(Err(other)) => panic!("{other:?}"),
            }
        }
        for (entry, name, woken) in std::mem::take(&mut self.open) {
            let waker = Waker::from(woken.clone());
            let asks = woken.take();
            let mut context = Context::from_waker(&waker);
            match asks.then(|| session.ledger(self.key).0.poll_outcome(entry, &mut context)) {
                Some(Poll::Ready(outcome)) => self.hear(told, rabbit, name, outcome),
                _ => self.open.push((entry, name, woken)),
            }
        }
        before != self.waiting.len() + told.outcomes.len()
    }

    fn hear(&self, told: &mut Told, rabbit: &Rabbit, name: String, outcome: Outcome) {
        let arrivals = rabbit.arrivals.get(&name).map_or(&[][..], Vec::as_slice);
        let answered = |fate: Fate| arrivals.iter().any(|it| it.answered && it.fate == fate);
        let true_so_far = match &outcome {
            Ok(_) => answered(Fate::Taken),
            Err(Unconfirmed::Rejected) => answered(Fate::Rejected),
            Err(Unconfirmed::Returned(_)) => answered(Fate::Returned),
            Err(Unconfirmed::Withdrawn) => self.limit_us.is_some() && arrivals.is_empty(),
            Err(Unconfirmed::Unknown(why)) => match why {
                UnknownReason::TimeOver => self.limit_us.is_some(),
                UnknownReason::ChannelClosed(_) => rabbit.channels_closed > 0,
                UnknownReason::ConnectionsEnded { times, .. } => *times >= 3,
                UnknownReason::Lost(_) => true,
            },
        };
        assert!(true_so_far, "{name} is {outcome:?}, and there were {arrivals:?}");
        assert!(told.outcomes.insert(name, outcome).is_none(), "an outcome twice");
    }

    /// One who waits waits no longer.
    pub(super) fn leave(
        &mut self,
        session: &mut Session,
        told: &mut Told,
        random: &mut Random,
        now_us: u64,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let (id, name, _) = self.waiting.swap_remove(random.below(self.waiting.len()));
        if random.in_percent(50) {
            match session.withdraw(self.key, id, now_us) {
                Ok(entry) => self.open.push((entry, name, Woken::new())),
                Err(_) => told.unsent.push(name),
            }
        } else if session.stop_waiting(self.key, id, now_us).is_some() {
            told.unsent.push(name);
        }
    }

    pub(super) fn abandon(&mut self, session: &mut Session, random: &mut Random) {
        if !self.open.is_empty() {
            let (entry, _, _) = self.open.swap_remove(random.below(self.open.len()));
            session.abandon_outcome(self.key, entry);
        }
    }

    /// Everybody lets go of it.
    pub(super) fn drop(&mut self, session: &mut Session, now_us: u64) {
        for (id, _, _) in std::mem::take(&mut self.waiting) {
            session.stop_waiting(self.key, id, now_us);
        }
        for (entry, _, _) in std::mem::take(&mut self.open) {
            session.abandon_outcome(self.key, entry);
        }
        session.drop_ledger(self.key);
        self.dropped = true;
    }

    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.open.is_empty()
    }

    pub(super) fn check(&self, session: &mut Session) {
        let over = session.over().is_some();
        let ledger = session.ledger(self.key).0;
        assert!(over || ledger.knows_first_open());
        let metrics = ledger.metrics();
        let (messages, bytes) = (metrics.in_flight_messages, metrics.in_flight_bytes);
        assert!(messages <= self.messages, "{messages} in flight");
        assert!(bytes <= self.bytes || messages == 1, "{bytes} bytes in flight");
    }
}

pub(super) struct Taker {
    pub(super) key: usize,
    pub(super) queue: String,
    pub(super) tag: String,
    credit_max: u32,
    limited: bool,
    woken: Arc<Woken>,
    held: Vec<(DeliveryKey, u64, u64)>,
    last: u64,
    stopped: bool,
    pub(super) ended: Option<ConsumeError>,
    pub(super) taken: u64,
}

impl Taker {
    pub(super) fn new(
        session: &mut Session,
        number: usize,
        random: &mut Random,
        now_us: u64,
    ) -> Taker {
        let (queue, tag) = (format!("q{}", random.below(3)), format!("c{number}"));
        let credit_max = [1, 4, 30][random.below(3)];
        let fixed = random.in_percent(30).then_some(credit_max);
        let work_limit_us = random.in_percent(20).then_some(300_000);
        let how = How {
            queue: queue.clone(),
            tag: tag.clone(),
            exclusive: false,
            sole: random.in_percent(20),
            arguments: TableBuf::new(),
            marks: false,
            work_limit_us,
            occupancy: None,
            stall_us: random.in_percent(50).then_some(10_000_000),
        };
        let credit = Credit::new(now_us, 1, credit_max, fixed);
        let key = session.add_intake(Intake::new(how, credit), now_us);
        Taker {
            key,
            queue,
            tag,
            credit_max,
            limited: work_limit_us.is_some(),
            woken: Woken::new(),
            held: Vec::new(),
            last: 0,
            stopped: false,
            ended: None,
            taken: 0,
        }
    }

    /// Asks for the next message, if it was woken or `asks` without that. True: it got one.
    pub(super) fn take(
        &mut self,
        session: &mut Session,
        rabbit: &mut Rabbit,
        asks: bool,
        now_us: u64,
    ) -> bool {
        if !self.woken.take() && !asks || self.ended.is_some() {
            return false;
        }
        let waker = Waker::from(self.woken.clone());
        let (intake, machine) = session.intake(self.key);
        match intake.poll_next(machine, now_us, &mut Context::from_waker(&waker)) {
            Poll::Pending => return false,
            Poll::Ready(Ok(None)) => {
                assert!(self.stopped, "it was not asked to stop");
                return false;
            }
            Poll::Ready(Err(error)) => {
                self.ended = Some(error);
                return false;
            }
            Poll::Ready(Ok(Some(ready))) => {
                assert!(!self.stopped, "it was asked for no more");
                let body = String::from_utf8_lossy(ready.message.body()).into_owned();
                let delivery: u64 = body.rsplit('#').next().unwrap().parse().unwrap();
                assert!(delivery > self.last, "{delivery} after {}", self.last);
                self.last = delivery;
                let said = if self.limited { Said::Overdue } else { Said::InWork };
                assert_eq!(rabbit.said.insert(delivery, said), None, "handed out twice");
                self.held.push((ready.key, delivery, now_us));
                self.taken += 1;
                self.woken.wake_by_hand();
            }
        }
        true
    }

    pub(super) fn settle(
        &mut self,
        session: &mut Session,
        rabbit: &mut Rabbit,
        at: usize,
        said: Said,
        now_us: u64,
    ) {
        let (key, delivery, since_us) = self.held.remove(at);
        let verdict = match said {
            Said::Ack => Verdict::Ack,
            said => Verdict::Refuse { requeue: said == Said::Requeue },
        };
        let (intake, machine) = session.intake(self.key);
        if intake.settle(machine, key, verdict, now_us - since_us, now_us) {
            rabbit.said.insert(delivery, said);
        }
    }

    pub(super) fn holds(&self) -> usize {
        self.held.len()
    }

    pub(super) fn stop(&mut self, session: &mut Session) {
        let (intake, machine) = session.intake(self.key);
        intake.stop(machine);
        self.stopped = true;
    }

    pub(super) fn is_live(&self) -> bool {
        !self.stopped && self.ended.is_none()
    }

    /// The handle and its deliveries are let go.
    pub(super) fn drop(mut self, session: &mut Session, rabbit: &mut Rabbit, now_us: u64) {
        self.stop(session);
        while !self.held.is_empty() {
            self.settle(session, rabbit, 0, Said::Requeue, now_us);
        }
        session.drop_intake(self.key);
    }

    pub(super) fn check(&self, session: &mut Session) {
        let metrics = session.intake(self.key).0.metrics();
        assert!(metrics.ready + metrics.in_work <= self.credit_max, "{metrics:?}");
    }
}

impl Woken {
    fn wake_by_hand(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
