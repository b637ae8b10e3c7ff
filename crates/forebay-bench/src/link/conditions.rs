//! What a link is like: delay, jitter, bandwidth.

use std::fmt;

/// Bytes that a link without a bandwidth holds for each connection and direction.
const UNPACED_BYTES: u64 = 4 << 20;
/// The least that a link holds for each connection and direction: one full TCP window of old.
const HELD_BYTES_MIN: u64 = 64 << 10;
/// What its slowest hop queues, as the time it takes to send that.
const QUEUED_US: u64 = 100_000;
/// A day: enough for any link, and sums of such times do not overflow.
const TIME_US_MAX: u64 = 86_400_000_000;

/// How a link behaves. Both directions are alike; the bandwidth is that of each direction, shared by all
/// connections. `Default` is a link of no length and any bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions {
    /// There and back, in microseconds, without jitter, queueing and sending.
    pub rtt_us: u64,
    /// Up to so much more each way, in microseconds, differently for each read; bytes stay in order.
    pub jitter_us: u64,
    /// Bytes a second in each direction; `None` = as fast as they come.
    pub bytes_per_s: Option<u64>,
}

/// No link can be like this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionsError(String);

impl fmt::Display for ConditionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConditionsError {}

impl Conditions {
    /// Whether there can be such a link.
    ///
    /// # Errors
    /// No bandwidth at all, or more than a terabyte a second, or times beyond a day.
    pub fn check(&self) -> Result<(), ConditionsError> {
        if self.bytes_per_s.is_some_and(|rate| !(1..=1 << 40).contains(&rate)) {
            return Err(ConditionsError(
                "a bandwidth is from 1 byte to 1 TiB a second; leave it out for none".to_owned(),
            ));
        }
        if self.rtt_us.max(self.jitter_us) > TIME_US_MAX {
            return Err(ConditionsError("delays are a day at most".to_owned()));
        }
        Ok(())
    }

    /// The delay of each direction without jitter.
    pub(super) fn one_way_us(&self) -> u64 {
        self.rtt_us / 2
    }

    /// Bytes that are on the way or queued in each direction of one connection at most; when so many are,
    /// nothing more is read, and TCP holds the sender back. What a pipe of this length and width holds, and
    /// a queue of a tenth of a second before its narrowest point; 4 MiB without a bandwidth.
    pub fn held_bytes_max(&self) -> usize {
        let Some(rate) = self.bytes_per_s else { return UNPACED_BYTES as usize };
        let held = u128::from(rate) * u128::from(self.one_way_us() + QUEUED_US) / 1_000_000;
        held.clamp(HELD_BYTES_MIN.into(), 1 << 30) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_holds_what_its_length_and_width_say() {
        let link = |rtt_us, bytes_per_s| Conditions { rtt_us, bytes_per_s, jitter_us: 0 };
        assert_eq!(link(100_000, Some(12_500_000)).held_bytes_max(), 1_875_000);
        assert_eq!(link(0, Some(1_000)).held_bytes_max(), 64 << 10);
        assert_eq!(link(100_000, None).held_bytes_max(), 4 << 20);
    }

    #[test]
    fn impossible_links_are_refused() {
        assert!(Conditions { bytes_per_s: Some(0), ..Default::default() }.check().is_err());
        assert!(Conditions { rtt_us: u64::MAX, ..Default::default() }.check().is_err());
        assert_eq!(Conditions::default().check(), Ok(()));
    }
}
