//! The workloads that have names. Where they come from: the published experiences with RabbitMQ's quorum queues
//! under stress ("stress-1" to "stress-5"), and what people ask of a broker beside that.

use super::flags::own_name;
use crate::plan::Plan;
use crate::setting::{Credit, Window};
use crate::stamp::Mark;

/// A workload by name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// One line for people.
    pub(crate) about: &'static str,
    /// What a good broker shows.
    pub(crate) look_at: &'static str,
    /// Of the measured capacity, where the rate is scaled to it; the rate as it was published otherwise.
    pub(crate) share_of_capacity: Option<f64>,
    /// Round trip in milliseconds and megabits a second of the emulated link, unless flags say otherwise.
    pub(crate) link: Option<(f64, f64)>,
    shape: fn(&mut Plan),
    /// What happens before the measurement, in the same queues.
    before: Option<fn(&mut Plan)>,
}

/// One run of the generator: a workload has one, or two on the same queues.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) plan: Plan,
}

impl Phase {
    /// Of a run, with queues of its own unless somebody gave them names: what publishers of the run before have written and
    /// the broker has not read yet goes nowhere.
    pub(super) fn of_run(&self, mark: Mark) -> Phase {
        let mut plan = Plan { mark, ..self.plan.clone() };
        if !plan.new_queues_only && !plan.predeclared {
            plan.queue_prefix = own_name(mark);
        }
        Phase { name: self.name, plan }
    }
}

pub(crate) const WORKLOADS: [Workload; 9] = [
    Workload {
        name: "stress-1",
        about: "20 publishers, 10 queues, 20 consumers; half of what the broker can carry",
        look_at: "every setting carries the load; small windows have the lowest latency",
        share_of_capacity: Some(0.5),
        link: None,
        shape: |plan| stress(plan, 20, 1000.0, 10, 20),
        before: None,
    },
    Workload {
        name: "stress-2",
        about: "20 publishers, 10 queues, 20 consumers; as much as the broker can carry",
        look_at: "larger windows add latency and no throughput; without confirms queues fill",
        share_of_capacity: Some(1.0),
        link: None,
        shape: |plan| stress(plan, 20, 2000.0, 10, 20),
        before: None,
    },
    Workload {
        name: "stress-3",
        about: "500 publishers, 100 queues, 500 consumers; half of what the broker can carry",
        look_at: "latency creeps up with the window",
        share_of_capacity: Some(0.5),
        link: None,
        shape: |plan| stress(plan, 500, 30.0, 100, 500),
        before: None,
    },
    Workload {
        name: "stress-4",
        about: "500 publishers, 100 queues, 500 consumers; a tenth more than the broker can carry",
        look_at: "without confirms latency grows by minutes; windows hold it",
        share_of_capacity: Some(1.1),
        link: None,
        shape: |plan| stress(plan, 500, 60.0, 100, 500),
        before: None,
    },
    Workload {
        name: "stress-5",
        about: "1000 publishers, 200 queues, 1000 consumers; five times what the broker can carry",
        look_at: "throughput stays where it was: no collapse, no saw-tooth",
        share_of_capacity: Some(5.0),
        link: None,
        shape: |plan| stress(plan, 1000, 100.0, 200, 1000),
        before: None,
    },
    Workload {
        name: "backlog",
        about: "a million messages lie in a queue, then consumers come while publishers go on",
        look_at: "the backlog shrinks, publishers still get a tenth of the rate or more, memory stays bounded",
        share_of_capacity: None,
        link: None,
        shape: |plan| persistent(plan, 10, 1, 10),
        before: Some(|plan| {
            plan.consumers = 0;
            plan.messages = 1_000_000;
        }),
    },
    Workload {
        name: "fanout",
        about: "one publisher, ten queues that each get every message, a consumer each",
        look_at: "ten times as much comes out as goes in",
        share_of_capacity: None,
        link: None,
        shape: |plan| {
            persistent(plan, 1, 10, 10);
            plan.persistent = false;
            plan.fanout = true;
        },
        before: None,
    },
    Workload {
        name: "distance",
        about: "one publisher of 512 bytes behind a link of 33 ms and 10 Mbit/s (--rtt and --mbit say otherwise)",
        look_at: "as much as the best fixed window gets through the link, and no latency beside it",
        share_of_capacity: None,
        link: Some((33.0, 10.0)),
        shape: |plan| {
            persistent(plan, 1, 1, 1);
            plan.size = 512;
        },
        before: None,
    },
    Workload {
        name: "rpc",
        about: "ten callers, one call at a time each, by direct reply-to; two servers",
        look_at: "the round trip of a call, in the columns of confirms",
        share_of_capacity: None,
        link: None,
        shape: |plan| {
            persistent(plan, 10, 1, 2);
            plan.persistent = false;
            plan.rpc = true;
            plan.size = 100;
            plan.window = Window::Fixed(1);
            plan.prefetch = Credit::Fixed(100);
        },
        before: None,
    },
];

/// 1 KB messages, nothing set by hand.
fn persistent(plan: &mut Plan, publishers: usize, queues: usize, consumers: usize) {
    plan.publishers = publishers;
    plan.queues = queues;
    plan.consumers = consumers;
    plan.size = 1000;
    plan.persistent = true;
    plan.window = Window::Auto;
    plan.prefetch = Credit::Auto;
}

fn stress(plan: &mut Plan, publishers: usize, rate: f64, queues: usize, consumers: usize) {
    persistent(plan, publishers, queues, consumers);
    plan.rate = rate;
}

impl Workload {
    /// By its name.
    pub(crate) fn named(name: &str) -> Option<&'static Workload> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }

    /// What it asks for, before flags change it.
    pub(crate) fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        (self.shape)(&mut plan);
        plan
    }

    /// Its phases, after flags have made `plan` of [`Workload::plan`].
    pub(crate) fn phases(&self, plan: &Plan) -> Vec<Phase> {
        let Some(before) = self.before else { return vec![Phase { name: "", plan: plan.clone() }] };
        let mut filling = plan.clone();
        before(&mut filling);
        if plan.messages > 0 {
            filling.messages = plan.messages;
        }
        // Nobody consumes yet, and filling takes as long as it takes.
        filling.consumed_messages = 0;
        filling.seconds = filling.seconds.max(3600.0);
        filling.steps.clear();
        let draining = Plan { messages: 0, warm_up: 0.0, ..plan.clone() };
        vec![
            Phase { name: "fill", plan: filling }, //
            Phase { name: "drain", plan: draining },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_makes_sense_and_sets_nothing_by_hand_but_calls() {
        for workload in &WORKLOADS {
            let plan = workload.plan();
            assert_eq!(plan.check(), Ok(()), "{}", workload.name);
            assert!(plan.rpc || (plan.window, plan.prefetch) == (Window::Auto, Credit::Auto));
            assert_eq!(Workload::named(workload.name).map(|found| found.name), Some(workload.name));
            assert_eq!(workload.share_of_capacity.is_some(), plan.rate > 0.0, "{}", workload.name);
        }
        assert!(Workload::named("stress-6").is_none());
    }

    #[test]
    fn stress_is_what_was_published() {
        let totals = ["stress-1", "stress-2", "stress-3", "stress-4", "stress-5"]
            .map(|name| Workload::named(name).unwrap().plan().target_per_s().unwrap());
        assert_eq!(totals, [20_000.0, 40_000.0, 15_000.0, 30_000.0, 100_000.0]);
    }

    #[test]
    fn a_backlog_is_filled_without_consumers_and_drained_with_them() {
        let workload = Workload::named("backlog").unwrap();
        let phases = workload.phases(&Plan { messages: 5_000, ..workload.plan() });
        let told = |phase: &Phase| (phase.name, phase.plan.consumers, phase.plan.messages);
        assert_eq!(
            phases.iter().map(told).collect::<Vec<_>>(),
            [("fill", 0, 5_000), ("drain", 10, 0)]
        );
        let until = workload.phases(&Plan { consumed_messages: 7, ..workload.plan() });
        assert!(until.iter().all(|phase| phase.plan.check().is_ok()), "{until:?}");
        assert_eq!(until.iter().map(|phase| phase.plan.consumed_messages).next_back(), Some(7));
    }
}
