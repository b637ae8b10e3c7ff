//! Whether a broker-side consumer still gets what its queue has.
//!
//! ```text
//!            nothing came and nothing is held
//!   Quiet ───────── for the stall timeout ────────▶ Asked ◀────── a second later ──────┐
//!    ▲ ▲                                             │ │ messages wait, for the first  │
//!    │ └──────── no message waits there ─────────────┘ └───── time ───▶ Suspected ─────┘
//!    │                                                 │
//!    └── a message came (from anywhere)                └─ for the second time ──▶ Stuck: another channel
//! ```
//! A consumer with all its credit free is given what waits within moments. RabbitMQ's quorum queues lose deliveries
//! between nodes when one of these is away for a while, and count them as held by the consumer for ever; a new
//! consumer gets them. Where another channel does no better, because somebody else's turn it is
//! (`x-single-active-consumer`), the next is tried twice as late.

/// Between the two questions: what was on its way at the first is here at the second.
const ASK_AGAIN_US: u64 = 1_000_000;
/// The stall timeout grows up to this while no channel gets anything, unless it is longer itself.
const STALL_US_MAX: u64 = 600_000_000;

/// See the module's documentation. Times are microseconds of the caller's clock.
#[derive(Debug)]
pub(super) struct ConsumerHealth {
    stall_us: Option<u64>,
    /// Times another channel was tried and nothing has come since.
    tries: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Quiet { since_us: u64 },
    Asked { suspected: bool },
    Suspected { ask_at_us: u64 },
    Stuck,
}

impl ConsumerHealth {
    /// `None`: it is never asked.
    pub(super) fn new(stall_us: Option<u64>) -> ConsumerHealth {
        ConsumerHealth { stall_us, tries: 0, state: State::Quiet { since_us: 0 } }
    }

    /// A message came.
    pub(super) fn came(&mut self, now_us: u64) {
        self.tries = 0;
        self.state = State::Quiet { since_us: now_us };
    }

    /// The broker had a reason to send nothing until now: there was no consumer, or it held messages.
    pub(super) fn began(&mut self, now_us: u64) {
        self.state = State::Quiet { since_us: now_us };
    }

    /// When the broker should be asked how many messages wait, if nothing is held until then.
    pub(super) fn asks_at_us(&self) -> Option<u64> {
        let stall_us = self.stall_us?;
        match self.state {
            State::Quiet { since_us } => {
                let longer_us = stall_us.saturating_mul(1 << self.tries.min(10));
                Some(since_us.saturating_add(longer_us.min(STALL_US_MAX.max(stall_us))))
            }
            State::Suspected { ask_at_us } => Some(ask_at_us),
            State::Asked { .. } | State::Stuck => None,
        }
    }

    /// The broker was asked.
    pub(super) fn asked(&mut self) {
        self.state = State::Asked { suspected: matches!(self.state, State::Suspected { .. }) };
    }

    /// It says that so many messages wait.
    pub(super) fn answered(&mut self, ready_messages: u32, now_us: u64) {
        let State::Asked { suspected } = self.state else { return };
        self.state = match (ready_messages, suspected) {
            (0, _) => State::Quiet { since_us: now_us },
            (_, false) => State::Suspected { ask_at_us: now_us + ASK_AGAIN_US },
            (_, true) => State::Stuck,
        };
    }

    /// Whether another channel should be tried.
    pub(super) fn is_stuck(&self) -> bool {
        self.state == State::Stuck
    }

    /// Another channel is tried.
    pub(super) fn replaced(&mut self, now_us: u64) {
        self.tries = self.tries.saturating_add(1);
        self.began(now_us);
    }
}
