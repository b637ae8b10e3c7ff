//! Whether a publisher's channel still works, from the answers it gets and from those it does not.
//!
//! ```text
//!   all that was answered for a while was rejected   the channel is bad, or the queue is full
//!   nothing was answered for a while                 the channel is bad, or the queue's leader hangs
//! ```
//! Both happen to channels of RabbitMQ 3.10 that meet a quorum queue while its leader goes; another channel is
//! sound then. If it is not, it is the queue, and the next try is made later.

/// As few rejections in a row may be chance.
const REJECTIONS_MIN: u32 = 3;
/// A channel is replaced once all was rejected for so long, ...
const REJECTING_US: u64 = 1_000_000;
/// ... twice as long each time another channel did no better, up to this: a channel too early is bad again.
const REJECTING_US_MAX: u64 = 8_000_000;
/// The stall timeout unless set.
pub(crate) const STALL_US: u64 = 30_000_000;

/// See the module's documentation. Times are microseconds of the caller's clock.
#[derive(Debug)]
pub(super) struct ChannelHealth {
    stall_us: Option<u64>,
    /// Since when an answer is due, if one is.
    quiet_since_us: u64,
    rejections: u32,
    rejecting_since_us: u64,
    rejecting_us: u64,
}

impl Default for ChannelHealth {
    fn default() -> ChannelHealth {
        ChannelHealth {
            stall_us: Some(STALL_US),
            quiet_since_us: 0,
            rejections: 0,
            rejecting_since_us: 0,
            rejecting_us: REJECTING_US,
        }
    }
}

impl ChannelHealth {
    pub(super) fn set_stall_us(&mut self, stall_us: Option<u64>) {
        self.stall_us = stall_us;
    }

    /// There is another channel.
    pub(super) fn begin(&mut self, now_us: u64) {
        self.quiet_since_us = now_us;
        if self.rejections >= REJECTIONS_MIN {
            self.rejecting_us = (self.rejecting_us * 2).min(REJECTING_US_MAX);
        }
        self.rejections = 0;
    }

    /// No answer was due until now.
    pub(super) fn alive(&mut self, now_us: u64) {
        self.quiet_since_us = now_us;
    }

    /// A message was confirmed or rejected.
    pub(super) fn answered(&mut self, acked: bool, now_us: u64) {
        self.quiet_since_us = now_us;
        if acked {
            self.rejections = 0;
            self.rejecting_us = REJECTING_US;
            return;
        }
        if self.rejections == 0 {
            self.rejecting_since_us = now_us;
        }
        self.rejections = self.rejections.saturating_add(1);
    }

    /// Whether another channel should be tried.
    pub(super) fn rejects_everything(&self, now_us: u64) -> bool {
        self.rejections >= REJECTIONS_MIN
            && now_us.saturating_sub(self.rejecting_since_us) >= self.rejecting_us
    }

    /// When it counts as stalled, if messages wait for their answers.
    pub(super) fn stalls_at_us(&self) -> Option<u64> {
        self.stall_us.map(|stall_us| self.quiet_since_us.saturating_add(stall_us))
    }
}
