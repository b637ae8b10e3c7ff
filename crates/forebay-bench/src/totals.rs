//! What all publishers and consumers counted, at a moment and over time.

use crate::actor::{Actor, Role};
use crate::latency::{Timing, curve};
use crate::plan::Plan;
use crate::process;
use crate::report::{Report, Sample, fairness, variation};

/// Of a number of messages the last ones may be under way for so long after they were due, and not be late.
const LAST_WAY_S: f64 = 0.1;

/// Totals at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) at_us: u64,
    pub(crate) published: u64,
    pub(crate) consumed: u64,
    confirmed: u64,
    rejected: u64,
    returned: u64,
    strange: u64,
    /// When the first delivery came.
    first_us: Option<u64>,
    own_cpu_s: f64,
    own_wait_s: f64,
    broker_cpu_s: Option<f64>,
    broker_bytes: Option<u64>,
    depth: Option<u64>,
    unconfirmed: u64,
    unacked: u64,
    /// Since they began, and of it what is not published: what waits at its source.
    due: u64,
    behind: u64,
    /// When the last of them became due.
    due_until_us: u64,
    /// Publishers whose next message is not due yet.
    early: u64,
    window: u64,
}

impl Totals {
    pub(crate) fn of(actors: &[Actor], at_us: u64) -> Totals {
        let mut totals = Totals { at_us, ..Totals::default() };
        for actor in actors {
            match &actor.role {
                Role::Publisher(publisher) => {
                    totals.published += publisher.published;
                    totals.confirmed += publisher.confirmed;
                    totals.rejected += publisher.rejected;
                    totals.returned += publisher.returned;
                    totals.unconfirmed += publisher.unanswered();
                    let due = publisher.due_by(at_us).unwrap_or(publisher.published);
                    totals.due += due;
                    let until_us = publisher.due_until_us(at_us).unwrap_or(0);
                    totals.due_until_us = totals.due_until_us.max(until_us);
                    totals.early += u64::from(publisher.is_early(at_us));
                    totals.behind += due.saturating_sub(publisher.published);
                    totals.window += publisher.window().unwrap_or(0);
                }
                Role::Consumer(consumer) => {
                    totals.consumed += consumer.consumed;
                    totals.strange += consumer.strange;
                    let first_us = totals.first_us.into_iter().chain(consumer.first_us);
                    totals.first_us = first_us.min();
                    totals.unacked += consumer.unacked();
                }
                Role::Depth(_) => {}
            }
        }
        totals
    }

    /// Of this run and the phase before it, taken by a queue and not consumed, where somebody publishes and somebody consumes.
    pub(crate) fn left_over(&self, plan: &Plan) -> u64 {
        if plan.consumers.min(plan.publishers) == 0 {
            return 0;
        }
        let refused = self.rejected + self.returned;
        let taken = self.published.saturating_sub(refused) * plan.copies();
        (plan.lying + taken).saturating_sub(self.consumed - self.strange)
    }

    /// Whether all is through that was due, and more will be: nothing moves, and nothing is wrong.
    pub(crate) fn are_early(&self) -> bool {
        self.early > 0 && self.behind + self.unconfirmed == 0
    }

    /// Where a number of messages is counted from: one of messages to be consumed from the first delivery, which may have
    /// come before everybody was there. Then processes count from `before`, when nobody was.
    pub(crate) fn counted_from(self, plan: &Plan, before: Totals) -> Totals {
        match self.first_us {
            Some(at_us) if plan.to_consume() > 0 => Totals {
                at_us,
                consumed: 0,
                own_cpu_s: before.own_cpu_s,
                own_wait_s: before.own_wait_s,
                broker_cpu_s: before.broker_cpu_s,
                ..self
            },
            _ => self,
        }
    }

    /// Adds what the system and the broker say, which costs more than counting.
    pub(crate) fn with_processes(mut self, plan: &Plan, actors: &mut [Actor]) -> Totals {
        self.own_cpu_s = process::own_thread_cpu_seconds();
        self.own_wait_s = process::own_thread_wait_seconds();
        let usage = plan.broker_pid.and_then(process::usage_of_tree);
        self.broker_cpu_s = usage.map(|usage| usage.cpu_s);
        self.broker_bytes = usage.map(|usage| usage.resident_bytes);
        if let Some(Actor { role: Role::Depth(depth), .. }) = actors.last_mut() {
            self.depth = depth.take();
        }
        self
    }
}

/// A measurement as it grows.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) first: Totals,
    pub(crate) last: Totals,
    pub(crate) samples: Vec<Sample>,
    confirm: Timing,
    end_to_end: Timing,
}

impl Measured {
    pub(crate) fn new(plan: &Plan, first: Totals) -> Measured {
        Measured {
            first,
            last: first,
            samples: Vec::new(),
            confirm: Timing::new(plan.is_paced()),
            end_to_end: Timing::new(plan.is_paced()),
        }
    }

    /// A second is over; takes what it showed.
    pub(crate) fn sample(
        &mut self,
        now: Totals,
        confirm: &mut Timing,
        end_to_end: &mut Timing,
    ) -> Sample {
        let last = std::mem::replace(&mut self.last, now);
        let seconds = (now.at_us - last.at_us).max(1) as f64 / 1e6;
        let sample = Sample {
            seconds,
            published: (now.published - last.published) as f64 / seconds,
            confirmed: (now.confirmed - last.confirmed) as f64 / seconds,
            consumed: (now.consumed - last.consumed) as f64 / seconds,
            broker_bytes: now.broker_bytes,
            broker_cores: spent(now, last).map(|cpu_s| cpu_s / seconds),
            generator_cores: (now.own_cpu_s - last.own_cpu_s) / seconds,
            confirm: confirm.report_called(),
            confirm_intended: confirm.report_intended(),
            end_to_end: end_to_end.report_called(),
            end_to_end_intended: end_to_end.report_intended(),
            depth: now.depth,
            unconfirmed: now.unconfirmed,
            unacked: now.unacked,
            behind: now.behind,
            window: now.window,
        };
        self.confirm.take(confirm);
        self.end_to_end.take(end_to_end);
        self.samples.push(sample);
        sample
    }

    /// What came out; `actors` count the whole run. Of what was left over at its end some came in the drain.
    pub(crate) fn report(
        self,
        plan: &Plan,
        actors: &[Actor],
        blocked: u64,
        (left_over, drained): (u64, u64),
    ) -> Report {
        let (first, last) = (self.first, self.last);
        let seconds = ((last.at_us - first.at_us) as f64 / 1e6).max(1e-6);
        let (mut shares, mut rejected, mut returned) = (Vec::new(), 0, 0);
        let (mut redelivered, mut strange) = (0, 0);
        for actor in actors {
            match &actor.role {
                Role::Publisher(publisher) => {
                    shares.push(publisher.published);
                    rejected += publisher.rejected;
                    returned += publisher.returned;
                }
                Role::Consumer(consumer) => {
                    redelivered += consumer.redelivered;
                    strange += consumer.strange;
                }
                Role::Depth(_) => {}
            }
        }
        let published = last.published - first.published;
        let confirmed = last.confirmed - first.confirmed;
        let consumed = last.consumed - first.consumed;
        let of_interest =
            |sample: &Sample| if plan.consumers > 0 { sample.consumed } else { sample.published };
        let whole = self.samples.iter().filter(|sample| sample.is_whole());
        let rates: Vec<f64> = whole.map(of_interest).collect();
        let broker_cpu_s = spent(last, first);
        // Of none there is no cost of each.
        let messages = Some(published.max(consumed)).filter(|messages| *messages > 0);
        let us_each = |(cpu_s, messages): (f64, u64)| cpu_s * 1e6 / messages as f64;
        // A measurement sees a part of a profile, and who has published all is asked for no more.
        let evenly = plan.profile.is_empty() && !plan.is_counted();
        // Of a number of messages all are due after some time, however long they took.
        let due_us = last.due_until_us.saturating_sub(first.at_us);
        let due_s = (due_us as f64 / 1e6 + LAST_WAY_S).min(seconds);
        // Without consumers the curve is that of confirms.
        let timing = match plan.consumers > 0 && !plan.rpc {
            true => &self.end_to_end,
            false => &self.confirm,
        };
        Report {
            plan: plan.clone(),
            broker: String::new(),
            seconds,
            published,
            confirmed,
            rejected,
            returned,
            consumed,
            redelivered,
            strange,
            published_per_s: published as f64 / seconds,
            confirmed_per_s: confirmed as f64 / seconds,
            consumed_per_s: consumed as f64 / seconds,
            variation: variation(&rates),
            fairness: fairness(&shares),
            confirm: self.confirm.report_intended(),
            confirm_from_call: self.confirm.report_called(),
            end_to_end: self.end_to_end.report_intended(),
            end_to_end_from_call: self.end_to_end.report_called(),
            curve: curve(timing.intended()),
            curve_from_call: curve(timing.called()),
            target_per_s: plan.target_per_s().map(|mean_per_s| match evenly {
                true => mean_per_s,
                false => (last.due - first.due) as f64 / due_s,
            }),
            shares,
            generator_cores: (last.own_cpu_s - first.own_cpu_s) / seconds,
            generator_waited: (last.own_wait_s - first.own_wait_s) / seconds,
            broker_cores: broker_cpu_s.map(|cpu_s| cpu_s / seconds),
            broker_cpu_us_per_message: broker_cpu_s.zip(messages).map(us_each),
            broker_bytes_max: self.samples.iter().filter_map(|sample| sample.broker_bytes).max(),
            blocked,
            left_over,
            drained,
            samples: self.samples,
        }
    }
}

/// CPU seconds of the broker between two moments.
fn spent(now: Totals, before: Totals) -> Option<f64> {
    now.broker_cpu_s.zip(before.broker_cpu_s).map(|(now, before)| now - before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::SentAt;

    #[test]
    fn what_somebody_else_left_is_not_what_this_run_published() {
        let plan = Plan::default();
        let totals = Totals { published: 100, consumed: 250, strange: 240, ..Totals::default() };
        assert_eq!(totals.left_over(&plan), 90, "of a hundred ten came");
        let rejecting = Totals { rejected: 60, ..totals };
        assert_eq!(rejecting.left_over(&plan), 30, "what is rejected will never come");
        let after_a_fill = Plan { lying: 1_000, ..plan };
        assert_eq!(Totals { strange: 0, ..totals }.left_over(&after_a_fill), 850);
        assert_eq!(totals.left_over(&Plan { consumers: 0, ..after_a_fill }), 0);
    }

    #[test]
    fn a_silence_between_due_times_is_no_standstill() {
        let early = Totals { early: 1, published: 9, ..Totals::default() };
        assert!(early.are_early());
        assert!(!Totals { unconfirmed: 1, ..early }.are_early(), "the broker does not answer");
        assert!(!Totals { behind: 1, ..early }.are_early(), "it does not take them");
        assert!(!Totals { early: 0, ..early }.are_early(), "all are published, and not consumed");
    }

    #[test]
    fn only_what_is_to_be_consumed_counts_before_everybody_is_there() {
        let at = |at_us, cpu_s| Totals { at_us, broker_cpu_s: Some(cpu_s), ..Totals::default() };
        let before = at(1, 0.5);
        let ready = Totals { first_us: Some(4), consumed: 70, ..at(9, 2.0) };
        let from = |ready: Totals, plan: Plan| {
            let totals = ready.counted_from(&plan, before);
            (totals.at_us, totals.consumed, totals.broker_cpu_s)
        };
        let published = Plan { messages: 100, ..Plan::default() };
        let consumed = Plan { publishers: 0, ..published.clone() };
        let from_now = (9, 70, Some(2.0));
        assert_eq!(from(ready, published.clone()), from_now, "publishers begin when all are there");
        assert_eq!(from(ready, consumed.clone()), (4, 0, Some(0.5)));
        assert_eq!(from(ready, Plan { consumed_messages: 5, ..published }), (4, 0, Some(0.5)));
        let none_came = Totals { first_us: None, consumed: 0, ..ready };
        assert_eq!(from(none_came, consumed), (9, 0, Some(2.0)), "connecting is no part of it");
    }

    #[test]
    fn where_nothing_went_through_no_message_cost_anything() {
        let plan = Plan::default();
        let us = |published| {
            let [first, last] = [1.0, 2.0].map(|cpu_s| {
                let broker_cpu_s = Some(cpu_s);
                Totals { at_us: (cpu_s * 1e6) as u64, broker_cpu_s, ..Totals::default() }
            });
            let mut measured = Measured::new(&plan, first);
            let last = Totals { published, ..last };
            measured.sample(last, &mut Timing::new(false), &mut Timing::new(false));
            measured.report(&plan, &[], 0, (0, 0)).broker_cpu_us_per_message
        };
        assert_eq!((us(0), us(1_000)), (None, Some(1_000.0)));
    }

    #[test]
    fn a_load_is_asked_for_what_was_due_while_it_was_measured() {
        let report = |plan: &Plan, due_until_us: u64| {
            let first = Totals { due: 300, published: 300, consumed: 300, ..Totals::default() };
            let mut measured = Measured::new(plan, first);
            let last = Totals { at_us: 10_000_000, due: 16_300, due_until_us, ..first };
            let last = Totals { published: 4_300, consumed: 4_300, ..last };
            measured.sample(last, &mut Timing::new(true), &mut Timing::new(true));
            measured.report(plan, &[], 0, (0, 0))
        };
        // A minute of it is 16,520 messages, and its first seconds hold nearly all of them.
        let profile = ["2000:8", "10:52"].map(|piece| piece.parse().unwrap()).to_vec();
        let burst = report(&Plan { profile, ..Plan::default() }, 10_000_000);
        assert_eq!(burst.target_per_s, Some(1_600.0));
        assert!(!burst.carried(), "400 a second came out of 1600");
        let rate = Plan { rate: 9_000.0, ..Plan::default() };
        assert_eq!(report(&rate, 10_000_000).target_per_s, Some(9_000.0));
        let counted = Plan { messages: 16_300, ..rate };
        let target_per_s = |due_until_us| report(&counted, due_until_us).target_per_s;
        assert_eq!(target_per_s(1_900_000), Some(8_000.0), "it took five times as long");
        assert_eq!(target_per_s(9_950_000), Some(1_600.0), "the last were under way");
        assert_eq!(report(&Plan::default(), 0).target_per_s, None);
    }

    #[test]
    fn each_second_counts_from_due_times_and_from_the_call() {
        let plan = Plan { rate: 10.0, ..Plan::default() };
        let (mut confirm, mut end_to_end) = (Timing::new(true), Timing::new(true));
        confirm.record(SentAt { intended_us: 0, called_us: 900 }, 1_000, 1);
        end_to_end.record(SentAt { intended_us: 0, called_us: 1_800 }, 2_000, 1);
        let mut measured = Measured::new(&plan, Totals::default());
        let second = Totals { at_us: 1_000_000, ..Totals::default() };
        let sample = measured.sample(second, &mut confirm, &mut end_to_end);
        assert_eq!((sample.confirm.max_us, sample.confirm_intended.max_us), (100, 1_000));
        assert_eq!((sample.end_to_end.max_us, sample.end_to_end_intended.max_us), (200, 2_000));
    }
}
