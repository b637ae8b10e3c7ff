//! When a resource is so short that its users are told, and when that is over.
//!
//! ```text
//!             taken whole for a while             below 80 %, and raised for 1 s at least
//!   quiet ─────────────────────────────► raised ─────────────────────────────────────────► quiet
//! ```
//! Between 80 and 100 % it stays what it is, so a level that swings there tells nobody anything.

/// A level below this ends an alarm, in percent.
pub const CLEAR_PERCENT: u64 = 80;
/// An alarm lasts at least so long, in microseconds.
pub const LEAST_US: u64 = 1_000_000;

/// The alarm of one resource.
#[derive(Debug, Clone)]
pub struct Alarm {
    after_us: u64,
    /// Since when the resource has been taken whole, while quiet.
    short_since_us: Option<u64>,
    raised_us: Option<u64>,
}

impl Alarm {
    /// One that is raised once all looks for `after_us` microseconds (so two at least, unless that is 0) have
    /// found the resource taken whole.
    #[must_use]
    pub fn new(after_us: u64) -> Alarm {
        Alarm { after_us, short_since_us: None, raised_us: None }
    }

    /// A look at how much of the resource is taken, in percent of what there is. Returns whether the alarm is
    /// raised from now on.
    pub fn look(&mut self, now_us: u64, percent: u64) -> bool {
        match self.raised_us {
            Some(raised_us) => {
                if percent < CLEAR_PERCENT && now_us >= raised_us.saturating_add(LEAST_US) {
                    self.raised_us = None;
                }
            }
            None if percent >= 100 => {
                let since_us = *self.short_since_us.get_or_insert(now_us);
                if now_us >= since_us.saturating_add(self.after_us) {
                    (self.raised_us, self.short_since_us) = (Some(now_us), None);
                }
            }
            None => self.short_since_us = None,
        }
        self.is_raised()
    }

    /// Whether it is raised.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised_us.is_some()
    }

    /// When time alone may change it, if the resource stays as the last look found it.
    #[must_use]
    pub fn due_us(&self, now_us: u64) -> Option<u64> {
        let due_us = match (self.raised_us, self.short_since_us) {
            (Some(raised_us), _) => raised_us.saturating_add(LEAST_US),
            (None, Some(since_us)) => since_us.saturating_add(self.after_us),
            (None, None) => return None,
        };
        (due_us > now_us).then_some(due_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_raised_after_a_second_of_shortage_and_not_by_a_shorter_one() {
        let mut alarm = Alarm::new(1_000_000);
        assert!(!alarm.look(0, 100));
        assert_eq!(alarm.due_us(0), Some(1_000_000));
        assert!(!alarm.look(900_000, 99));
        assert_eq!(alarm.due_us(900_000), None);
        assert!(!alarm.look(1_000_000, 250));
        assert!(!alarm.look(1_999_999, 100));
        assert!(alarm.look(2_000_000, 100));
    }

    #[test]
    fn it_ends_below_four_fifths_and_not_before_a_second() {
        let mut alarm = Alarm::new(0);
        assert!(alarm.look(5, 100));
        assert!(alarm.look(1_000_004, 0));
        assert_eq!(alarm.due_us(1_000_004), Some(1_000_005));
        assert!(alarm.look(1_000_005, 80));
        assert_eq!(alarm.due_us(1_000_005), None);
        assert!(!alarm.look(1_000_006, 79));
    }

    #[test]
    fn a_single_look_after_a_long_sleep_raises_nothing() {
        let mut alarm = Alarm::new(1);
        assert!(!alarm.look(9_000_000, 900));
        assert!(!alarm.look(9_000_001, 0));
    }

    proptest! {
        #[test]
        fn whatever_the_level_does_there_is_one_change_a_second_at_most_and_none_without_its_cause(
            after_us in prop_oneof![Just(0u64), Just(10_000), Just(1_000_000)],
            looks in prop::collection::vec((0..400_000u64, 0..130u64), 1..200),
        ) {
            let mut alarm = Alarm::new(after_us);
            let (mut now_us, mut before, mut raised_at) = (0, false, None::<u64>);
            for (passed_us, percent) in looks {
                now_us += passed_us;
                let raised = alarm.look(now_us, percent);
                if raised && !before {
                    prop_assert!(percent >= 100);
                    prop_assert!(raised_at.is_none_or(|at| now_us >= at + LEAST_US));
                    raised_at = Some(now_us);
                }
                if before && !raised {
                    prop_assert!(percent < CLEAR_PERCENT);
                    prop_assert!(raised_at.is_some_and(|at| now_us >= at + LEAST_US));
                }
                prop_assert!(alarm.due_us(now_us).is_none_or(|due_us| due_us > now_us));
                before = raised;
            }
        }
    }
}
