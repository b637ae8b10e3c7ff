//! Takes, publishes, waits for the confirm, acks: in this order for each message, for many at a time.
//!
//! Memory: messages held are at most the consumer's credit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_client::{Delivery, Outcome, Unconfirmed, UnknownReason};
use tokio::time::{self, MissedTickBehavior, interval, sleep_until};

use super::Args;
use super::report::Report;
use super::source::Source;
use super::target::Target;
use crate::happening::Happenings;
use crate::stop_signal::{StopSignal, say_waiting};

/// How soon a signal is noticed while nothing arrives, and how often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// How long to wait for a message before asking whether the queue is empty.
const EMPTY_PATIENCE: Duration = Duration::from_millis(20);
/// How often it is asked again with `--idle-seconds`.
const IDLE_PATIENCE: Duration = Duration::from_millis(500);
/// How long confirms are waited for after a signal.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Why it ended before the queue was empty, if it was that.
pub(super) const SIGNAL: &str = "a signal asked for it";

/// Why no more messages are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The queue is empty, as far as it told.
    Empty,
    /// As many as were asked for are moved.
    Counted,
    /// A signal came.
    Signal,
    /// Something failed; the report says what.
    Failed,
}

/// A message between the brokers.
struct InFlight {
    delivery: Delivery,
    outcome: Outcome,
}

pub(super) struct Carrier<'a> {
    args: &'a Args,
    source: &'a mut Source,
    target: &'a Target,
    target_happenings: Happenings,
    report: &'a mut Report,
    in_flight: VecDeque<InFlight>,
    /// Confirmed, and acked at the end: see `ack_ahead_max`.
    held: VecDeque<Delivery>,
    taken: u64,
    acked: u64,
    /// How many to take.
    most: u64,
    /// Acks beyond it wait for the end: each ack lets the broker send one more, and it shall never have
    /// sent more than `--count`.
    ack_ahead_max: u64,
}

impl<'a> Carrier<'a> {
    pub(super) fn new(
        args: &'a Args,
        source: &'a mut Source,
        target: &'a Target,
        report: &'a mut Report,
    ) -> Carrier<'a> {
        let most = report.left(args.count);
        let ack_ahead_max = match args.count {
            Some(_) => most.saturating_sub(u64::from(source.credit_max)),
            None => u64::MAX,
        };
        Carrier {
            args,
            target_happenings: target.happenings(),
            source,
            target,
            report,
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            taken: 0,
            acked: 0,
            most,
            ack_ahead_max,
        }
    }

    /// Moves messages until there is a reason to end.
    pub(super) async fn run(mut self, stop: &StopSignal) -> End {
        let mut end = None;
        let mut last_until: Option<Instant> = None;
        let mut empty_since: Option<Instant> = None;
        let mut ask_at = time::Instant::now() + EMPTY_PATIENCE;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if end.is_none() {
                end = self.reason_to_end(stop);
                if end.is_some() {
                    // What we hold in reserve goes back; the rest is brought to its outcome.
                    self.source.stop();
                }
            }
            if end.is_some() && self.in_flight.is_empty() {
                break;
            }
            if end.is_some() && stop.came() {
                let until = *last_until.get_or_insert_with(|| {
                    let count = self.in_flight.len() as u64;
                    say_waiting(LAST_PATIENCE, count, ["confirm", "confirms"]);
                    Instant::now() + LAST_PATIENCE
                });
                if Instant::now() >= until {
                    self.abandon("no answer within 5 s after a signal");
                    break;
                }
            }
            let taking = end.is_none();
            tokio::select! {
                biased;
                outcome = first_outcome(&mut self.in_flight), if !self.in_flight.is_empty() => {
                    let delivery = self.in_flight.pop_front().expect("it was the first").delivery;
                    self.settle(delivery, outcome);
                }
                next = self.source.next(), if taking => match next {
                    Ok(delivery) => {
                        empty_since = None;
                        self.publish(delivery, stop).await;
                        ask_at = time::Instant::now() + EMPTY_PATIENCE;
                    }
                    Err(sentence) => {
                        self.report.stopped.get_or_insert(sentence);
                    }
                },
                _ = tick.tick() => self.show(),
                () = sleep_until(ask_at), if taking && !self.args.follow && self.in_flight.is_empty() => {
                    match stop.or(self.empty()).await.flatten() {
                        Some(true) => {
                            // Twice, as a delivery may be on its way.
                            if empty_since.is_some_and(|since| since.elapsed() >= self.args.idle()) {
                                end = Some(End::Empty);
                                self.source.stop();
                            }
                            empty_since.get_or_insert_with(Instant::now);
                        }
                        Some(false) => empty_since = None,
                        None => {}
                    }
                    let patience = match empty_since {
                        Some(_) => EMPTY_PATIENCE.max(self.args.idle().min(IDLE_PATIENCE)),
                        None => EMPTY_PATIENCE,
                    };
                    ask_at = time::Instant::now() + patience;
                }
            }
        }
        self.ack_all();
        self.show();
        end.unwrap_or(End::Failed)
    }

    fn reason_to_end(&mut self, stop: &StopSignal) -> Option<End> {
        if self.report.stopped.is_some() {
            return Some(End::Failed);
        }
        if self.taken >= self.most {
            return Some(End::Counted);
        }
        if stop.came() {
            if !self.args.follow {
                self.report.stopped = Some(SIGNAL.to_owned());
            }
            return Some(End::Signal);
        }
        None
    }

    /// Whether nothing waits at the source; `None` while the source cannot tell.
    async fn empty(&mut self) -> Option<bool> {
        match self.source.ready().await {
            Ok(ready) => Some(ready == 0 && !self.source.has_ready()),
            // Being connected again, or refused, or gone: the consumer tells, or it passes.
            Err(_) => None,
        }
    }

    /// Publishes once the window has room; given up when a signal comes.
    async fn publish(&mut self, delivery: Delivery, stop: &StopSignal) {
        self.taken += 1;
        let mut tick = interval(TICK);
        let published = {
            let mut publishing = std::pin::pin!(self.target.publish(&delivery));
            loop {
                tokio::select! {
                    biased;
                    published = &mut publishing => break Some(published),
                    _ = tick.tick() => {
                        if stop.came() {
                            break None;
                        }
                        show(
                            self.report,
                            self.source,
                            self.target,
                            &mut self.target_happenings,
                            self.in_flight.len(),
                        );
                    }
                }
            }
        };
        match published {
            Some(Ok(outcome)) => self.in_flight.push_back(InFlight { delivery, outcome }),
            Some(Err(sentence)) => {
                self.report.not_confirmed += 1;
                self.report.stopped.get_or_insert(sentence);
                delivery.requeue();
            }
            // Not sent: back to the source.
            None => drop(delivery.requeue()),
        }
    }

    fn settle(
        &mut self,
        delivery: Delivery,
        outcome: Result<forebay_client::Confirmed, Unconfirmed>,
    ) {
        match outcome {
            Ok(confirmed) => {
                self.report.moved += 1;
                let marked = delivery.redelivered() || confirmed.republished;
                self.report.marked += u64::from(marked);
                if self.acked < self.ack_ahead_max {
                    self.ack(delivery);
                } else {
                    self.held.push_back(delivery);
                }
            }
            Err(unconfirmed) => {
                self.report.not_confirmed += 1;
                self.report.stopped.get_or_insert_with(|| why(&unconfirmed));
                delivery.requeue();
            }
        }
    }

    fn ack(&mut self, delivery: Delivery) {
        self.acked += 1;
        self.report.late += u64::from(delivery.ack().in_time().is_err());
    }

    fn ack_all(&mut self) {
        while let Some(delivery) = self.held.pop_front() {
            self.ack(delivery);
        }
    }

    fn abandon(&mut self, why: &str) {
        self.report.not_confirmed += self.in_flight.len() as u64;
        self.report.stopped = Some(why.to_owned());
        // Unsettled deliveries go back to their queue.
        self.in_flight.clear();
    }

    fn show(&mut self) {
        let in_flight = self.in_flight.len();
        show(self.report, self.source, self.target, &mut self.target_happenings, in_flight);
    }
}

fn show(
    report: &mut Report,
    source: &mut Source,
    target: &Target,
    target_happenings: &mut Happenings,
    in_flight: usize,
) {
    for (which, happenings) in
        [("the source", &mut source.happenings), ("the target", target_happenings)]
    {
        while let Some(sentence) = happenings.next() {
            report.happened(which, &sentence);
        }
    }
    report.show(in_flight, target.blocked());
}

async fn first_outcome(
    in_flight: &mut VecDeque<InFlight>,
) -> Result<forebay_client::Confirmed, Unconfirmed> {
    match in_flight.front_mut() {
        Some(first) => (&mut first.outcome).await,
        None => std::future::pending().await,
    }
}

fn why(unconfirmed: &Unconfirmed) -> String {
    match unconfirmed {
        Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal))
            if refusal.text.contains("user_id") =>
        {
            format!(
                "{unconfirmed}; to move messages with the user-id of others, log in at the target as a \
                 user with the tag impersonator"
            )
        }
        _ => unconfirmed.to_string(),
    }
}
