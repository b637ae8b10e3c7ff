//! How many notices of one kind the log is told: whoever fails by the thousand does not fill it by that.

use forebay_broker::Notice;
use forebay_flow::TokenBucket;

/// Told each second; what comes beyond is counted and told with the next ones.
const TOLD_PER_S: u64 = 1;

/// Notices of one kind, as many as are told.
pub(crate) struct Telling {
    bucket: TokenBucket,
    left_out: u64,
}

impl Telling {
    /// So many are told at once before they become rare.
    pub(crate) fn new(at_once: u64) -> Telling {
        Telling { bucket: TokenBucket::new(0, TOLD_PER_S, at_once), left_out: 0 }
    }

    /// What to tell now that there is one more: nothing, or it and how many were left out before it.
    pub(crate) fn told(&mut self, now_us: u64, notice: Notice) -> Vec<Notice> {
        if self.bucket.take(now_us, 1).is_err() {
            self.left_out += 1;
            return Vec::new();
        }
        let left_out = std::mem::take(&mut self.left_out);
        let more = (left_out > 0).then_some(Notice::More(left_out));
        more.into_iter().chain([notice]).collect()
    }
}

/// How often it is told that something still goes on, in microseconds.
const STILL_EVERY_US: u64 = 60_000_000;

/// Something that may go on for hours and comes up many times a second: it is told once a minute.
#[derive(Default)]
pub(crate) struct Ongoing {
    told_us: Option<u64>,
}

impl Ongoing {
    /// Whether to tell it, now that it has come up again.
    pub(crate) fn is_told(&mut self, now_us: u64) -> bool {
        let is_told = self.told_us.is_none_or(|told_us| now_us >= told_us + STILL_EVERY_US);
        if is_told {
            self.told_us = Some(now_us);
        }
        is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_told_once_a_minute() {
        let mut ongoing = Ongoing::default();
        let told: Vec<u64> =
            (0..=1_200).map(|tenth| tenth * 100_000).filter(|us| ongoing.is_told(*us)).collect();
        assert_eq!(told, [0, 60_000_000, 120_000_000]);
    }

    #[test]
    fn of_too_many_notices_their_number_is_told() {
        let mut telling = Telling::new(8);
        let refused =
            || Notice::LoginRefused { address: "a".into(), user: "u".into(), why: "no".into() };
        for _ in 0..8 {
            assert_eq!(telling.told(0, refused()), [refused()]);
        }
        for _ in 0..3 {
            assert_eq!(telling.told(0, refused()), []);
        }
        assert_eq!(telling.told(1_000_000, refused()), [Notice::More(3), refused()]);
        assert_eq!(telling.told(1_000_000, refused()), []);
    }
}
