//! Where messages go and how many, with the flags that PerfTest's users know.

use crate::plan::{ExchangePlan, Plan};

/// What `forebay bench run` is told beside rates, sizes and windows.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Where to, and how many")]
pub(crate) struct PerfTest {
    /// Each publisher publishes so many messages; the run ends when all have, after --seconds at the latest
    #[arg(long, short = 'C', value_name = "N", conflicts_with = "messages")]
    pmessages: Option<u64>,
    /// The run ends when consumers have taken so many each, on average, after --seconds at the latest
    #[arg(long, short = 'D', value_name = "N")]
    cmessages: Option<u64>,
    /// Queues are called so, %d being a number, and deleted afterwards; what is there already is refused, unless
    /// --predeclared
    #[arg(long, value_name = "PATTERN", requires = "queue_pattern_to", conflicts_with = "queue")]
    queue_pattern: Option<String>,
    /// The first of these numbers
    #[arg(long, value_name = "N", default_value_t = 1, requires = "queue_pattern")]
    queue_pattern_from: usize,
    /// The last of them
    #[arg(long, value_name = "N", requires = "queue_pattern", conflicts_with = "queues")]
    queue_pattern_to: Option<usize>,
    /// The same as --queue-type quorum
    #[arg(long, conflicts_with = "queue_type")]
    pub(super) quorum_queue: bool,
    /// Publish to this exchange, to which the queues are bound; it goes with them
    #[arg(long, short = 'e', value_name = "NAME")]
    exchange: Option<String>,
    /// Its type: direct, fanout, topic, …
    #[arg(
        long = "type",
        short = 't',
        value_name = "TYPE",
        default_value = "direct",
        requires = "exchange"
    )]
    exchange_type: String,
    /// The routing key of all messages and bindings, so that every queue gets every message; without it each queue's
    /// own name
    #[arg(long, short = 'k', value_name = "KEY", requires = "exchange")]
    routing_key: Option<String>,
    /// Queues and exchange are there: nothing is declared, bound, emptied or deleted, and consumers take what is in them.
    /// A single queue is called as
    /// --queue says, without a number
    #[arg(long, short = 'p')]
    pub(super) predeclared: bool,
}

impl PerfTest {
    /// Changes a plan, whose publishers, consumers and queues are known.
    pub(super) fn apply(&self, plan: &mut Plan) {
        if let Some(each) = self.pmessages {
            plan.messages = each.saturating_mul(plan.publishers as u64);
        }
        if let Some(each) = self.cmessages {
            plan.consumed_messages = each.saturating_mul(plan.consumers.max(1) as u64);
        }
        if let (Some(pattern), Some(to)) = (&self.queue_pattern, self.queue_pattern_to) {
            plan.queue_pattern = Some(pattern.clone());
            plan.queue_from = self.queue_pattern_from;
            // None at all, if it ends before it begins: the plan's check says so.
            plan.queues = to.saturating_add(1).saturating_sub(self.queue_pattern_from);
        } else if self.predeclared && plan.queues == 1 {
            plan.queue_pattern = Some(plan.queue_prefix.clone());
        }
        let kind = self.exchange_type.clone();
        plan.own_exchange = self.exchange.clone().map(|name| ExchangePlan { name, kind });
        plan.routing_key.clone_from(&self.routing_key);
        plan.predeclared = self.predeclared;
    }

    /// Whether it says what queues are called.
    pub(super) fn names_queues(&self) -> bool {
        self.queue_pattern.is_some()
    }

    /// Whether the numbers of queues come to an end before the first.
    pub(super) fn ends_before_it_begins(&self) -> bool {
        self.queue_pattern_to.is_some_and(|to| to < self.queue_pattern_from)
    }

    /// Whether it says how many messages there are.
    pub(super) fn counts(&self) -> bool {
        self.pmessages.is_some() || self.cmessages.is_some()
    }

    /// Of those that only loads understand, whether each was given.
    pub(super) fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("--pmessages", self.pmessages.is_some()),
            ("--cmessages", self.cmessages.is_some()),
            ("--queue-pattern", self.queue_pattern.is_some()),
            ("--exchange", self.exchange.is_some()),
            ("--predeclared", self.predeclared),
        ]
    }
}
