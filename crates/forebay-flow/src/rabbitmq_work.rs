//! How much a RabbitMQ should have to do at a time.
//!
//! ```text
//!   work      the time of 850 / (1 + mean size / 500 B)^(1/5) messages at the rate that all publishers of the process have it carry
//!   t         the least time that it took for a message of any of them in the last 5 to 10 s, without the network's; of a slow
//!             disk what it usually takes: [crate::slow_disk]
//!   share     the part of what it carries that is this publisher's
//!   together  for one with W messages in flight min(work, 40 ms) / W^(1/6), over a distance twice that,
//!             or if that is more (2.3 + 0.6 share) t / W^(1/24)
//!   s         work / 2 or t at most; what is more waits in a queue
//! ```
//!
//! - **Work.** RabbitMQ is quick when some 300 messages are in flight, of one publisher or of twenty, of large ones fewer, on a
//!   quick machine and on a slow one: about 5 to 10 ms on the one, 10 to 30 on the other. Over a distance it wants twice as many
//!   beside those that are on the way. One alone in its process among many others would wait for as much of each of
//!   them, hence the 40 ms.
//! - **A slow disk** wants more of them: what comes while it writes is in the next write but one. Its time is no queue, and nobody
//!   can make it shorter: with a flush that takes 8 ms more, a message takes 17 to 18 ms, and as long again beside it is what keeps it busy. On a
//!   quick disk somebody has always seen a queue that was short, of 1 to 3 ms, and `work` is more.
//! - **One alone** fills the disk by itself. With 230 messages of 5 kB it has 38 ms and two thirds of the rate, and with 400
//!   35 ms and all of it, so it has to get over that hump. Twenty have one another for it, and with as much they wait twice as long for
//!   no more rate.

use crate::batch_wait::BATCH_BYTES;

/// The time of so many messages of no size, of large ones the less,
const MESSAGES: f64 = 850.0;
const SIZE_ROOT: f64 = 0.2;
/// of one that has more in flight the less,
pub(crate) const ROOT: f64 = 1.0 / 6.0;
/// at most this, as nobody tells what the publishers of other processes have it carry.
const WORK_MAX_US: f64 = 40_000.0;
/// And so many times that over a distance.
const FAR: f64 = 2.0;
/// So many of the time that a message takes, if that is more,
const SERVICES: f64 = 2.3;
/// for one alone so many more, and of one that has more in flight the less.
const SERVICES_ALONE: f64 = 0.6;
const SERVICES_ROOT: f64 = 1.0 / 24.0;
/// Its service time is not longer than this part of the work.
const SERVICE_OF_WORK: f64 = 0.5;

/// What makes it quick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RabbitMqWork {
    work_us: f64,
    least_service_us: f64,
    /// The part of what it carries that is one's own.
    share: f64,
}

impl RabbitMqWork {
    /// It carries so many messages of this size a microsecond, of which so many are one's own, and takes so long for one of them; 0:
    /// nobody knows.
    pub(crate) fn new(
        per_us: f64,
        own_per_us: f64,
        size_bytes: f64,
        least_service_us: f64,
    ) -> RabbitMqWork {
        let messages = MESSAGES / (1.0 + size_bytes / BATCH_BYTES).powf(SIZE_ROOT);
        let per_us = per_us.max(own_per_us);
        RabbitMqWork { work_us: messages / per_us, least_service_us, share: own_per_us / per_us }
    }

    /// How long all that it has to do may take, at the broker and in its queues, for one with so many messages in flight.
    pub(crate) fn together_us(&self, far: bool, window: f64) -> f64 {
        let times = if far { FAR } else { 1.0 };
        let work_us = times * self.work_us.min(WORK_MAX_US) / window.powf(ROOT);
        let services = (SERVICES + SERVICES_ALONE * self.share) / window.powf(SERVICES_ROOT);
        work_us.max(services * self.least_service_us)
    }

    /// What it may take for a message; what is more waits in a queue.
    pub(crate) fn service_max_us(&self) -> f64 {
        (SERVICE_OF_WORK * self.work_us).max(self.least_service_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1.0
    }

    #[test]
    fn it_has_about_as_many_messages_to_do_whether_it_is_quick_or_slow() {
        for per_us in [0.025, 0.05, 0.1] {
            let messages = |size_bytes, far| {
                per_us * RabbitMqWork::new(per_us, 0.0, size_bytes, 1_000.0).together_us(far, 1.0)
            };
            assert!(close(messages(0.0, false), 850.0) && close(messages(0.0, true), 1_700.0));
            assert!((1.4..1.6).contains(&(messages(200.0, false) / messages(5_000.0, false))));
        }
        // One that others keep busy seems to be as slow as this.
        let slow = RabbitMqWork::new(0.001, 0.0, 0.0, 1_000.0);
        let together_us = |far| slow.together_us(far, 1.0);
        assert!(close(together_us(false), 40_000.0) && close(together_us(true), 80_000.0));
    }

    #[test]
    fn who_has_more_in_flight_waits_for_less_of_it() {
        let work = RabbitMqWork::new(0.05, 0.0, 0.0, 0.0);
        assert!(close(work.together_us(false, 64.0), 8_500.0));
        let slow = RabbitMqWork::new(0.05, 0.0, 0.0, 20_000.0);
        let part = slow.together_us(false, 400.0) / slow.together_us(false, 25.0);
        assert!((part - 16f64.powf(-1.0 / 24.0)).abs() < 1e-6, "{part}");
    }

    #[test]
    fn a_slow_disk_may_have_more_to_do() {
        let together_us =
            |own_us, far| RabbitMqWork::new(0.05, 0.0, 0.0, own_us).together_us(far, 1.0);
        assert!(close(together_us(3_000.0, false), 17_000.0));
        assert!(close(together_us(18_000.0, false), 41_400.0));
        assert!(close(together_us(18_000.0, true), 41_400.0), "not twice that far away");
    }

    #[test]
    fn a_slow_disk_is_kept_busy_by_one_alone_with_more_than_by_each_of_many() {
        let together_us =
            |own_per_us| RabbitMqWork::new(0.04, own_per_us, 0.0, 20_000.0).together_us(false, 1.0);
        assert!(close(together_us(0.04), 58_000.0));
        assert!(close(together_us(0.004), 47_200.0));
        // What it has by itself is carried, whatever was told.
        assert!(close(together_us(0.08), 58_000.0));
    }

    #[test]
    fn what_is_a_queue_is_not_its_own_time_unless_all_see_it() {
        let most_us = |least_us| RabbitMqWork::new(0.034, 0.0, 0.0, least_us).service_max_us();
        assert!(close(most_us(2_000.0), 12_500.0));
        assert!(close(most_us(16_000.0), 16_000.0));
    }
}
