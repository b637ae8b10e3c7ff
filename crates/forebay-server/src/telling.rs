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

#[cfg(test)]
mod tests {
    use super::*;

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
