//! A consumer that is refused for a while after its connection was lost. One that has its queue alone, after its connection was lost: the broker may still have the consumer of before, until
//! it notices the loss by its heartbeats.
//!
//! ```text
//!   consuming ──lost──▶ asks ──403──▶ waits a second ──▶ asks …      until the broker lets it in, or for 200 s
//!                         └────404───▶ the same                      until the node of its queue is back
//! ```
//! A node of a RabbitMQ cluster says 404 also of a queue that is there, on a node that is down: the client has just come from that
//! one, and its queue is as it was when it is back.

/// How long the broker may take to notice: three heartbeats of 60 s, which is what RabbitMQ offers, and some.
const PATIENCE_US: u64 = 200_000_000;
const PAUSE_US: u64 = 1_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Exclusion {
    since_us: Option<u64>,
    again_at_us: Option<u64>,
    /// The queue is on a node that is down.
    is_away: bool,
}

impl Exclusion {
    /// The broker refused. True: it is asked again.
    pub(super) fn refused(&mut self, now_us: u64) -> bool {
        let since_us = *self.since_us.get_or_insert(now_us);
        let asks = now_us.saturating_sub(since_us) < PATIENCE_US;
        self.again_at_us = asks.then_some(now_us + PAUSE_US);
        asks
    }

    /// The queue is on a node that is down, which may take hours. True: it was not before.
    pub(super) fn away(&mut self, now_us: u64) -> bool {
        self.again_at_us = Some(now_us + PAUSE_US);
        !std::mem::replace(&mut self.is_away, true)
    }

    /// The broker let it consume, or there is no connection any more.
    pub(super) fn over(&mut self) {
        *self = Exclusion::default();
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        self.again_at_us
    }

    /// Whether it is time to ask again; said once.
    pub(super) fn take_due(&mut self, now_us: u64) -> bool {
        self.again_at_us.take_if(|at_us| *at_us <= now_us).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_every_second_and_gives_up_in_the_end() {
        let mut exclusion = Exclusion::default();
        let mut now_us = 7;
        let mut times = 0;
        while exclusion.refused(now_us) {
            assert!(!exclusion.take_due(now_us));
            now_us = exclusion.next_us().unwrap();
            assert!(exclusion.take_due(now_us));
            times += 1;
        }
        assert_eq!((times, exclusion.next_us()), (200, None));
        exclusion.over();
        assert!(exclusion.refused(now_us), "another loss has its own patience");
    }
}
