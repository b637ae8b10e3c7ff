//! How long a delivery may be in work before it goes to somebody else, if the program set a limit.
//!
//! A broker that grants leases lets a delivery stay for as long as its client answers, and a client answers
//! although one of its workers is stuck. Only the program knows how long its work takes at most.

use std::collections::BTreeMap;

use super::DeliveryKey;

/// The deliveries in work, by tap and tag; none are kept without a limit.
#[derive(Debug)]
pub(super) struct WorkLimit {
    limit_us: Option<u64>,
    /// When each is overdue. Taken in their order, so the first is overdue first.
    overdue_us: BTreeMap<(u64, u64), u64>,
}

impl WorkLimit {
    pub(super) fn new(limit_us: Option<u64>) -> WorkLimit {
        WorkLimit { limit_us, overdue_us: BTreeMap::new() }
    }

    /// A worker has it.
    pub(super) fn started(&mut self, key: DeliveryKey, now_us: u64) {
        if let Some(limit_us) = self.limit_us {
            self.overdue_us.insert((key.tap, key.tag), now_us.saturating_add(limit_us));
        }
    }

    /// Its worker is done. False: too late.
    pub(super) fn done(&mut self, key: DeliveryKey) -> bool {
        self.limit_us.is_none() || self.overdue_us.remove(&(key.tap, key.tag)).is_some()
    }

    /// The next delivery whose worker takes too long; it is forgotten here.
    pub(super) fn next_overdue(&mut self, now_us: u64) -> Option<DeliveryKey> {
        let first = self.overdue_us.first_entry().filter(|first| *first.get() <= now_us)?;
        let (tap, tag) = first.remove_entry().0;
        Some(DeliveryKey { tap, tag })
    }

    /// When there will be one.
    pub(super) fn next_us(&self) -> Option<u64> {
        self.overdue_us.first_key_value().map(|(_, at_us)| *at_us)
    }

    /// The tap is gone, and its deliveries with it.
    pub(super) fn clear(&mut self) {
        self.overdue_us.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: u64) -> DeliveryKey {
        DeliveryKey { tap: 1, tag }
    }

    #[test]
    fn what_takes_too_long_is_named_once_and_done_too_late() {
        let mut work = WorkLimit::new(Some(100));
        work.started(key(1), 0);
        work.started(key(2), 10);
        assert!(work.done(key(1)));
        assert_eq!((work.next_us(), work.next_overdue(109)), (Some(110), None));
        assert_eq!(work.next_overdue(110), Some(key(2)));
        assert_eq!((work.next_us(), work.next_overdue(110)), (None, None));
        assert!(!work.done(key(2)));
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let mut work = WorkLimit::new(None);
        work.started(key(1), 0);
        assert_eq!(work.next_us(), None);
        assert!(work.done(key(1)));
    }
}
