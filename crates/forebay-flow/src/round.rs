//! One round of a window: from the end of the one before until a message that was sent since then is
//! confirmed. All that a round needs is sums, so its memory is constant.

#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    started_us: u64,
    sum_us: u64,
    least_us: u64,
    samples: u32,
    peak_messages: u32,
    limited: bool,
    stalled: bool,
}

impl Round {
    pub(crate) fn new(started_us: u64) -> Round {
        Round {
            started_us,
            sum_us: 0,
            least_us: u64::MAX,
            samples: 0,
            peak_messages: 0,
            limited: false,
            stalled: false,
        }
    }

    pub(crate) fn add(&mut self, rtt_us: u64, stalled: bool) {
        self.sum_us = self.sum_us.saturating_add(rtt_us);
        self.least_us = self.least_us.min(rtt_us);
        self.samples += 1;
        self.stalled |= stalled;
    }

    pub(crate) fn lasts_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.started_us)
    }

    /// So much was in flight.
    pub(crate) fn set_in_flight(&mut self, messages: u32) {
        self.peak_messages = self.peak_messages.max(messages);
    }

    /// The most that was in flight.
    pub(crate) fn peak_messages(&self) -> f64 {
        f64::from(self.peak_messages)
    }

    /// Whether a message sent at `sent_us`, confirmed now, ends the round.
    pub(crate) fn ends_with(&self, sent_us: u64) -> bool {
        sent_us >= self.started_us
    }

    /// The window, not the program, held messages back.
    pub(crate) fn set_limited(&mut self) {
        self.limited = true;
    }

    pub(crate) fn limited(&self) -> bool {
        self.limited
    }

    /// Some of its messages waited for a broker that stood still.
    pub(crate) fn stalled(&self) -> bool {
        self.stalled
    }

    pub(crate) fn least_us(&self) -> u64 {
        self.least_us
    }

    pub(crate) fn samples(&self) -> u32 {
        self.samples
    }

    pub(crate) fn mean_us(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.sum_us as f64 / f64::from(self.samples))
    }
}
