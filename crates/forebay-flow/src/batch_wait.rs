//! How long messages may wait so that many are worked on at once.
//!
//! ```text
//!   our broker   0.3 ms + max(0, 0.3 us * mean size / B - net) + 0.25 s / V
//!   RabbitMQ     what it should have to do together, [crate::rabbitmq_work]; 15 ms / W^(1/6) while nobody tells what it carries;
//!                less s, and 1 ms at least
//!   others       2.4 s / V, 1 ms at least
//!   narrow link  100 ms / V^(1/4), 1 ms at least (2.4 s / V, 1 to 100 ms, if the broker does not tell its visits)
//!
//!   V = W * (1 + mean size / 500 B), and 20 ms at most but where the link is narrow
//! ```
//!
//! - **A visit.** What a visit to a publisher costs (the wake-ups, the system calls, the confirm) is shared by the
//!   messages it brings. A window twice as large halves the visit's share of each message and doubles the
//!   wait in the queue, so the total is least where the wait allowed is in inverse proportion to the
//!   window: the square-root law of economic lot sizes (Harris, 1913). A publisher alone is allowed a
//!   millisecond or two, each of twenty some more, and smaller windows more than larger ones, which makes them
//!   equal (Swift's flow scaling, Kumar et al., SIGCOMM 2020). Large messages outweigh a visit sooner.
//! - **Our broker** spends little on a visit, and what is left of the law is there to make windows equal. Beside it large
//!   messages want some time, it is supposed for their commits, which are larger then and fewer: one publisher of 5 kB carries a
//!   sixth more with 700 in flight than with 400. What is on a long way fills commits meanwhile.
//! - **RabbitMQ** is quick when it has enough to do. It is the latency as a whole that depends on the window, and not what is added to `s`: of twenty who share one
//!   queue each sees another quickest moment, and who sees the slowest would be allowed the most. With a large window
//!   that is its own doing.

use crate::broker_kind::BrokerKind;
use crate::delay_target::ALLOWANCE_MAX_US;
use crate::network_rtt::DISTANT_MIN_US;
use crate::rabbitmq_work::{self, RabbitMqWork};

/// Microseconds of waiting times messages of window: what a visit costs, weighed against the wait.
const OURS_VISIT_US: f64 = 250_000.0;
/// Beside it on our broker: whatever the window, and for each byte of a message.
const OURS_US: f64 = 300.0;
const OURS_BYTE_US: f64 = 0.3;
/// Before a narrow link small windows, too, may wait the less the larger they are, or one of eight stays beside those of one.
const NARROW_ROOT: f64 = 0.25;
/// Of brokers that do not tell their visits; a message costs more there, and so does what is done for many at once.
const BATCH_SILENT_US: f64 = 2_400_000.0;
const BATCH_MIN_US: f64 = 1_000.0;
const BATCH_MAX_US: f64 = 20_000.0;
/// A message of so many bytes costs twice what an empty one does.
pub(crate) const BATCH_BYTES: f64 = 500.0;
/// RabbitMQ's service time and what waits there, together, for a window of one message; and for larger ones a part of it.
const RABBITMQ_US: f64 = 15_000.0;

/// With this round trip and service time, window in messages and mean size; `narrow`: what they wait for is a link that carries
/// little; `work`: where it is told what a RabbitMQ carries.
pub(crate) fn batch_wait_us(
    broker: BrokerKind,
    narrow: bool,
    network_us: f64,
    service_us: f64,
    window: f64,
    size_bytes: f64,
    work: Option<RabbitMqWork>,
) -> f64 {
    let visits = window * (1.0 + size_bytes / BATCH_BYTES);
    let batch_us = match broker {
        BrokerKind::RabbitMq if !narrow => {
            // Next door the kernel reads milliseconds, too, where RabbitMQ is late to read.
            let far = network_us >= DISTANT_MIN_US as f64 && network_us > service_us;
            let unknown_us = RABBITMQ_US / window.powf(rabbitmq_work::ROOT);
            let together_us = work.map_or(unknown_us, |work| work.together_us(far, window));
            return (together_us - service_us).max(BATCH_MIN_US);
        }
        BrokerKind::FairVisits { .. } if !narrow => {
            let bytes_us = (OURS_BYTE_US * size_bytes - network_us).max(0.0);
            let wait_us = OURS_US + bytes_us + OURS_VISIT_US / visits;
            return wait_us.min(BATCH_MAX_US);
        }
        BrokerKind::FairVisits { .. } => {
            return (ALLOWANCE_MAX_US / visits.powf(NARROW_ROOT)).max(BATCH_MIN_US);
        }
        BrokerKind::RabbitMq | BrokerKind::Unknown => BATCH_SILENT_US,
    };
    let most_us = if narrow { ALLOWANCE_MAX_US } else { BATCH_MAX_US };
    (batch_us / visits).clamp(BATCH_MIN_US, most_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: BrokerKind = BrokerKind::FairVisits { bytes: 65_536 };

    fn wait_us(broker: BrokerKind, window: f64, size_bytes: f64) -> f64 {
        batch_wait_us(broker, false, 0.0, 100.0, window, size_bytes, None)
    }

    #[test]
    fn a_smaller_window_may_wait_longer_for_its_batch() {
        assert!((wait_us(OURS, 1_000.0, 0.0) - 550.0).abs() < 1.0);
        assert!((wait_us(OURS, 250.0, 0.0) - 1_300.0).abs() < 1.0);
        for window in [300.0, 600.0] {
            let wait_us = wait_us(BrokerKind::Unknown, window, 0.0);
            assert!((wait_us - 2_400_000.0 / window).abs() < 1.0, "{wait_us}");
        }
        for broker in [OURS, BrokerKind::Unknown] {
            assert!((wait_us(broker, 1.0, 0.0) - BATCH_MAX_US).abs() < 1.0, "{broker:?}");
        }
        assert!((wait_us(BrokerKind::Unknown, 20_000.0, 0.0) - BATCH_MIN_US).abs() < 1.0);
    }

    #[test]
    fn before_a_rabbitmq_who_has_more_in_flight_waits_for_less_of_its_work() {
        let work = RabbitMqWork::new(0.05, 0.0, 0.0, 0.0);
        let wait_us = |net_us, window| {
            batch_wait_us(BrokerKind::RabbitMq, false, net_us, 0.0, window, 0.0, Some(work))
        };
        assert!((wait_us(0.0, 1.0) - 17_000.0).abs() < 1.0);
        assert!((wait_us(0.0, 64.0) - 8_500.0).abs() < 1.0);
        assert!((wait_us(10_000.0, 1.0) - 34_000.0).abs() < 1.0);
    }

    #[test]
    fn large_messages_need_smaller_batches() {
        let wait_us = |size_bytes| wait_us(BrokerKind::Unknown, 300.0, size_bytes);
        assert!(wait_us(5_000.0) < wait_us(200.0) / 5.0);
    }

    /// What is on a long way fills commits meanwhile.
    #[test]
    fn a_commit_of_large_messages_may_take_longer_on_our_broker_unless_the_way_does() {
        let wait_us = |net_us, bytes| batch_wait_us(OURS, false, net_us, 100.0, 1e9, bytes, None);
        for (net_us, more_us) in [(0.0, 1_500.0), (500.0, 1_000.0), (10_000.0, 0.0)] {
            let added_us = wait_us(net_us, 5_000.0) - wait_us(net_us, 0.0);
            assert!((added_us - more_us).abs() < 1.0, "{added_us}");
        }
    }
}
