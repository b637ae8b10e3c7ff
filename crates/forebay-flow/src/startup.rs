//! The first rounds of a window, and those after its route became longer: it doubles until something waits.
//!
//! ```text
//!   r <= target, limited            W *= 2; over a distance, r <= 1.25 base: to 16 KiB at once if that is more
//!   r > target                      as it is; in a second round in a row the end: W *= max(1/4, target / r)
//!     over a distance               in a third one, and while r falls by a tenth from one to the next as it is
//!   r <= target for the sake of a visit, or of a part of a commit, that W fills; not over a distance: the end, W as it is
//! ```
//!
//! - **A second round** above the target: one slow commit is not a queue.
//! - **A third one, while it falls.** TCP starts slowly as well, and doubles what it lets go about as fast as we do, so over a
//!   distance what waits may wait for it alone. A round later it waits no more, and a broker's queue does. Ended there, one
//!   publisher over 100 ms stood still for four rounds.
//! - **What fills a visit** is allowed however long the others make it wait ([`DelayTarget`]), so the target is that of the very
//!   round it is compared with. With the least of three for it five hundred publishers that began together on a slow host, with rounds of 13,
//!   16 and 81 ms, cut their windows from 54 to 13 and took two seconds to come back; a thousand took more than four.
//! - **16 KiB** leave at once on a new connection (RFC 6928). Before anything was confirmed nobody knows that the way is long;
//!   next door a thousand publishers may begin together.

use crate::delay_target::{DelayTarget, OVERHEAD_BYTES};
use crate::round::Round;

/// What TCP sends before it hears of the peer, about (RFC 6928).
pub(crate) const INITIAL_BYTES: f64 = 16_384.0;
/// Up to here the first messages of other publishers are not in the way.
const UNDISTURBED: f64 = 1.25;
const CUT_MIN: f64 = 0.25;
/// So much shorter than the one before is a round for which TCP has grown.
const FALLS: f64 = 0.9;

/// What a round calls for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// The window is what it was.
    Stay,
    /// It becomes so much larger.
    Grow(f64),
    /// It was too much: this factor is left, and startup is over.
    End(f64),
}

/// Rounds of which some may have been above the target.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Startup {
    over_rounds: u32,
    last_us: f64,
}

impl Startup {
    /// A round of this mean latency is over, for which the target was set; `bytes`: of a message.
    pub(crate) fn after(
        &mut self,
        mean_us: f64,
        round: &Round,
        delay: &DelayTarget,
        window: f64,
        bytes: f64,
    ) -> Step {
        let last_us = std::mem::replace(&mut self.last_us, mean_us);
        let over = mean_us > delay.us();
        self.over_rounds = if over { self.over_rounds + 1 } else { 0 };
        let tcp_grows = delay.is_distant()
            && !delay.is_narrow()
            && (self.over_rounds == 2 || mean_us <= FALLS * last_us);
        if self.over_rounds >= 2 && !tcp_grows {
            Step::End((delay.us() / mean_us).max(CUT_MIN))
        } else if over || !round.limited() || round.stalled() {
            Step::Stay
        } else if !delay.is_distant() && window >= delay.window_max() {
            Step::End(1.0)
        } else if delay.is_distant() && mean_us <= UNDISTURBED * delay.base_us() {
            Step::Grow((INITIAL_BYTES / bytes.max(OVERHEAD_BYTES) / window).max(2.0))
        } else {
            Step::Grow(2.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_reading::KernelReading;

    const NEAR: u64 = 100;
    const FAR: u64 = 100_000;

    /// Of a publisher whose route takes `network_us` and whose broker takes a millisecond, so many messages of 200 bytes.
    fn target(network_us: u64, mean_us: f64, window: f64) -> DelayTarget {
        let mut target = DelayTarget::new(false, u64::MAX);
        target.set_network(
            0,
            Some(KernelReading::of(network_us)),
            8.0,
            (network_us + 1_000) as f64,
        );
        target.add(0, network_us + 1_000);
        target.set(mean_us, mean_us, window, 200.0);
        target
    }

    fn limited() -> Round {
        let mut round = Round::new(0);
        round.set_limited();
        round
    }

    /// What rounds of these latencies call for, in turn.
    fn steps(network_us: u64, window: f64, means_us: &[f64]) -> Vec<Step> {
        let mut startup = Startup::default();
        let mut after = |&mean_us| {
            let delay = target(network_us, mean_us, window);
            startup.after(mean_us, &limited(), &delay, window, 200.0)
        };
        means_us.iter().map(&mut after).collect()
    }

    #[test]
    fn it_doubles_until_a_second_round_is_too_long() {
        let steps = steps(NEAR, 200.0, &[1_100.0, 30_000.0, 1_100.0, 30_000.0, 25_000.0]);
        let [Step::Grow(2.0), Step::Stay, Step::Grow(2.0), Step::Stay, Step::End(factor)] =
            steps[..]
        else {
            panic!("{steps:?}")
        };
        assert!((CUT_MIN..0.5).contains(&factor), "{factor}");
    }

    #[test]
    fn a_window_that_is_not_used_says_nothing() {
        let delay = target(NEAR, 1_100.0, 200.0);
        let idle = Round::new(0);
        assert_eq!(Startup::default().after(1_100.0, &idle, &delay, 200.0, 200.0), Step::Stay);
    }

    #[test]
    fn over_a_distance_what_waits_for_tcp_goes_and_a_queue_stays() {
        let tcp = [127_000.0, 160_000.0, 110_000.0];
        assert_eq!(steps(FAR, 1_000.0, &tcp), [Step::Stay, Step::Stay, Step::Grow(2.0)]);
        let falling = [170_000.0, 170_000.0, 150_000.0, 130_000.0, 110_000.0];
        assert_eq!(steps(FAR, 1_000.0, &falling)[..4], [Step::Stay; 4]);
        let queue = steps(FAR, 1_000.0, &[170_000.0, 170_000.0, 165_000.0]);
        assert!(matches!(queue[..], [Step::Stay, Step::Stay, Step::End(_)]), "{queue:?}");
    }

    #[test]
    fn over_a_distance_the_first_messages_of_a_quiet_route_are_followed_by_what_tcp_sends_at_once()
    {
        let grown = |network_us, mean_us, window| {
            let Step::Grow(factor) = steps(network_us, window, &[mean_us])[0] else {
                panic!("nothing waits")
            };
            factor * window
        };
        assert!((grown(FAR, 101_000.0, 8.0) - INITIAL_BYTES / 200.0).abs() < 1e-6);
        assert!((grown(FAR, 101_000.0, 100.0) - 200.0).abs() < 1e-6);
        assert!((grown(FAR, 130_000.0, 8.0) - 16.0).abs() < 1e-6, "others wait there");
        assert!((grown(NEAR, 1_100.0, 8.0) - 16.0).abs() < 1e-6);
    }
}
