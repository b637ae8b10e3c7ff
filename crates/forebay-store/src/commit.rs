//! Group commit: when the open batch goes to the disk.
//!
//! ```text
//!   lane busy ──────────────► wait; what arrives meanwhile shares the next sync
//!     and the batch is full ► hand it over behind the one in flight: the lane goes on at once
//!   lane idle, nothing ─────► after 10 ms without work: one seal batch
//!   lane idle, acks only ───► 10 ms after the first acknowledgement
//!   lane idle, one waiter ──► at once: a lone publisher waits for one flush and no more
//!   lane idle, a crowd ─────► gather for min(¼ · flush time, 500 µs) or until 256 KiB
//! ```
//!
//! Space that commits overwrite is faster than space that they fill for the first time, but it has to be filled once
//! before: it is worth that while commits are small, and in no hurry (`commits_are_small`).
//!
//! A crowd is what the last batch held: at least 8 messages and at least 2 channels waiting. When it was
//! one, the others' next messages are on their way, and a flush for the first of them alone would make
//! all others wait for it. A quarter of a flush is what gathering may cost at most. Measured on one
//! disk: 256 KiB reach 84 % of the peak rate, and beyond 1 MiB only latency grows.
//!
//! The seal carries `durable upto` of the last real batch: it tells rot of that batch from a torn tail.

/// Acknowledgements alone wait this long, in microseconds: losing them means redelivery, nobody waits.
const ACK_DELAY_US: u64 = 10_000;
/// The log is idle after this long, in microseconds.
const SEAL_DELAY_US: u64 = 10_000;
/// Longest gathering, in microseconds.
const GATHER_MAX_US: u64 = 500;
/// Gathering ends at this size, in bytes.
const GATHER_BYTES: usize = 256 << 10;
/// A crowd: messages and waiters of the last batch.
const CROWD_PUBLISHES: u32 = 8;
const CROWD_WAITERS: u32 = 2;

/// Mean size of commits, in bytes, above which space is not pre-written for them. `docs/decisions/0037`.
const PREWRITE_COMMIT_BYTES: u64 = 64 << 10;

/// What the open batch holds, as far as pacing cares.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pending {
    /// Size of the batch, in bytes.
    pub(crate) bytes: usize,
    /// Holds something somebody may wait for.
    pub(crate) urgent: bool,
    /// Holds acknowledgements.
    pub(crate) acks: bool,
}

/// What to do with an idle log lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Hand over the open batch.
    Submit,
    /// Hand over an empty batch.
    Seal,
    /// Ask again then.
    WaitUntil(u64),
    /// Nothing to do until something is appended.
    Idle,
}

/// What commits take and bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commits {
    /// Moving average of a commit's time on its lane, in microseconds.
    pub mean_us: u64,
    /// Time that the last one took, in microseconds.
    pub last_us: u64,
    /// Bytes since the start, of those that are done.
    pub written_bytes: u64,
    /// Channels that waited for the last one.
    pub last_waiters: u32,
}

/// The pace of commits. Time is monotonic microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pacing {
    flush_ewma_us: u64,
    flush_last_us: u64,
    /// Moving average of what they wrote, and what the last one did.
    bytes_ewma: u64,
    bytes_last: u64,
    last_publishes: u32,
    last_waiters: u32,
    gather_since_us: Option<u64>,
    acks_since_us: Option<u64>,
    /// Since when a real batch has been the newest and nothing followed.
    unsealed_since_us: Option<u64>,
}

impl Pacing {
    /// Moving average of the time a commit takes on its lane, in microseconds.
    pub(crate) fn flush_us(&self) -> u64 {
        self.flush_ewma_us
    }

    /// Of commits that have written so much.
    pub(crate) fn commits(&self, written_bytes: u64) -> Commits {
        Commits {
            mean_us: self.flush_ewma_us,
            last_us: self.flush_last_us,
            written_bytes,
            last_waiters: self.last_waiters,
        }
    }

    /// Whether commits are so small that what they wait for is not their bytes: of late, and the last one.
    pub(crate) fn commits_are_small(&self) -> bool {
        self.bytes_ewma.max(self.bytes_last) <= PREWRITE_COMMIT_BYTES
    }

    /// Whether nothing was committed since the last seal.
    pub(crate) fn is_sealed(&self) -> bool {
        self.unsealed_since_us.is_none()
    }

    /// An acknowledgement was appended; `now_us` is the newest time known.
    pub(crate) fn acked(&mut self, now_us: u64) {
        self.acks_since_us.get_or_insert(now_us);
    }

    /// The lane is idle: what now?
    pub(crate) fn decide(&mut self, now_us: u64, pending: Pending) -> Decision {
        if pending.urgent {
            if self.last_publishes < CROWD_PUBLISHES
                || self.last_waiters < CROWD_WAITERS
                || pending.bytes >= GATHER_BYTES
            {
                return Decision::Submit;
            }
            let since = *self.gather_since_us.get_or_insert(now_us);
            return due(
                now_us,
                since + (self.flush_ewma_us / 4).min(GATHER_MAX_US),
                Decision::Submit,
            );
        }
        if pending.acks {
            let since = *self.acks_since_us.get_or_insert(now_us);
            return due(now_us, since + ACK_DELAY_US, Decision::Submit);
        }
        match self.unsealed_since_us {
            Some(since) => due(now_us, since + SEAL_DELAY_US, Decision::Seal),
            None => Decision::Idle,
        }
    }

    /// A batch was handed over.
    pub(crate) fn submitted(&mut self) {
        self.gather_since_us = None;
        self.acks_since_us = None;
        self.unsealed_since_us = None;
    }

    /// A batch with something in it was committed.
    pub(crate) fn committed(
        &mut self,
        now_us: u64,
        took_us: u64,
        bytes: usize,
        publishes: u32,
        waiters: u32,
    ) {
        self.bytes_last = bytes as u64;
        self.bytes_ewma = (self.bytes_ewma * 7 + self.bytes_last) / 8;
        self.flush_ewma_us = match self.flush_ewma_us {
            0 => took_us,
            average => (average * 7 + took_us) / 8,
        };
        self.flush_last_us = took_us;
        self.last_publishes = publishes;
        self.last_waiters = waiters;
        self.unsealed_since_us = Some(now_us);
    }
}

fn due(now_us: u64, at_us: u64, decision: Decision) -> Decision {
    if now_us >= at_us { decision } else { Decision::WaitUntil(at_us) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Pending = Pending { bytes: 0, urgent: false, acks: false };
    const ACKS: Pending = Pending { bytes: 20, urgent: false, acks: true };
    const MESSAGES: Pending = Pending { bytes: 1000, urgent: true, acks: false };

    #[test]
    fn a_lone_publisher_never_waits() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.decide(5, MESSAGES), Decision::Submit);
        pacing.submitted();
        pacing.committed(105, 100, 4096, 1, 1);
        assert_eq!(pacing.decide(106, MESSAGES), Decision::Submit);
        pacing.submitted();
        pacing.committed(105, 100, 4096, 1000, 1);
        assert_eq!(pacing.decide(106, MESSAGES), Decision::Submit, "one channel is no crowd");
    }

    #[test]
    fn a_crowd_is_gathered_for_a_quarter_of_a_flush() {
        let mut pacing = Pacing::default();
        pacing.committed(1000, 400, 4096, 8, 2);
        assert_eq!(pacing.decide(1000, MESSAGES), Decision::WaitUntil(1100));
        assert_eq!(pacing.decide(1099, MESSAGES), Decision::WaitUntil(1100));
        assert_eq!(pacing.decide(1100, MESSAGES), Decision::Submit);
        let full = Pending { bytes: GATHER_BYTES, ..MESSAGES };
        assert_eq!(pacing.decide(1001, full), Decision::Submit);
    }

    #[test]
    fn gathering_on_a_slow_disk_is_bounded() {
        let mut pacing = Pacing::default();
        pacing.committed(0, 50_000, 4096, 100, 10);
        assert_eq!(pacing.decide(0, MESSAGES), Decision::WaitUntil(GATHER_MAX_US));
    }

    #[test]
    fn acknowledgements_alone_wait_ten_milliseconds_from_the_first() {
        let mut pacing = Pacing::default();
        pacing.acked(100);
        pacing.acked(5000);
        assert_eq!(pacing.decide(200, ACKS), Decision::WaitUntil(10_100));
        assert_eq!(pacing.decide(10_100, ACKS), Decision::Submit);
    }

    #[test]
    fn commits_are_small_as_long_as_their_mean_is() {
        let mut pacing = Pacing::default();
        assert!(pacing.commits_are_small() && pacing.is_sealed());
        for _ in 0..100 {
            pacing.committed(0, 100, 64 << 10, 1, 1);
        }
        assert!(pacing.commits_are_small() && !pacing.is_sealed());
        pacing.committed(0, 100, 65 << 10, 1, 1);
        assert!(!pacing.commits_are_small());
        pacing.submitted();
        assert!(pacing.is_sealed() && !pacing.commits_are_small());
        for _ in 0..2 {
            pacing.committed(0, 100, 4096, 1, 1);
        }
        assert!(pacing.commits_are_small());
        pacing.committed(0, 100, 65 << 10, 1, 1);
        assert!(!pacing.commits_are_small(), "the first of many, perhaps");
    }

    #[test]
    fn an_idle_log_is_sealed_once() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.decide(0, NOTHING), Decision::Idle);
        pacing.committed(500, 100, 4096, 1, 1);
        assert_eq!(pacing.decide(600, NOTHING), Decision::WaitUntil(10_500));
        assert_eq!(pacing.decide(10_500, NOTHING), Decision::Seal);
        pacing.submitted();
        assert_eq!(pacing.decide(20_000, NOTHING), Decision::Idle);
    }
}
