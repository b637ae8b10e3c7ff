//! When a queue that nobody uses goes (`x-expires`).
//!
//! ```text
//!   declared, declared again, asked by a passive declare, basic.get, last consumer gone ──► the time begins anew
//!   with consumers, and while a basic.get waits for the disk, it does not pass; a restart begins it anew, too
//! ```
//! Like RabbitMQ's: messages in it do not keep a queue, and are not dead-lettered.

/// Of one queue. Times are in microseconds of one monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueExpiry {
    after_us: u64,
    used_us: u64,
}

impl QueueExpiry {
    /// After so long without use.
    pub(crate) fn after_ms(now_us: u64, ms: u64) -> QueueExpiry {
        QueueExpiry { after_us: ms.saturating_mul(1_000), used_us: now_us }
    }

    /// Somebody uses it.
    pub(crate) fn used(&mut self, now_us: u64) {
        self.used_us = now_us;
    }

    /// When it goes, if nobody uses it and it has no consumers.
    pub(crate) fn due_us(self) -> u64 {
        self.used_us.saturating_add(self.after_us)
    }
}
