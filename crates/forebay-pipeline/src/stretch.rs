//! How long handlers keep the thread on which they begin.
//!
//! Each thread of a runtime keeps the task that was woken on it last to itself. Who takes a message wakes the worker who
//! looks for the next one, and what acknowledged the message before may have woken the client: if the handler now computes
//! for milliseconds, both wait for its thread, and messages with them, though other threads have nothing to do. So where
//! handlers were seen to do that, a worker lets the others go first and begins behind them, on whichever thread is free.

use std::future::poll_fn;
use std::mem::replace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

/// Beyond this, letting the others go first costs little beside it.
const LONG: Duration = Duration::from_micros(100);
/// One that was twice as long is remembered for some 180 quick ones, one of 10 ms for 1200.
const FORGETS: u64 = 256;
/// Where none was long of late, the clock is asked for one message in so many.
const SAMPLED: u64 = 8;

/// The longest of late. Written without a lock: what two write at a time, one of them says.
pub(crate) struct Stretch {
    longest_ns: AtomicU64,
}

impl Stretch {
    /// Long until it is known.
    pub(crate) fn new() -> Stretch {
        Stretch { longest_ns: AtomicU64::new(nanos(2 * LONG)) }
    }

    fn is_long(&self) -> bool {
        self.longest_ns.load(Ordering::Relaxed) > nanos(LONG)
    }

    fn saw(&self, took: Duration) {
        let longest_ns = self.longest_ns.load(Ordering::Relaxed);
        let now_ns = (longest_ns - longest_ns / FORGETS).max(nanos(took));
        if now_ns != longest_ns {
            self.longest_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Before a message is begun.
    pub(crate) async fn after_others(&self) {
        if !self.is_long() {
            return;
        }
        // Woken while it runs, a task goes to the end of a line from which other threads take. A yield of the runtime's own
        // comes back on this thread only.
        let mut went = false;
        poll_fn(|cx| {
            if replace(&mut went, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Whether message number `number` is measured. Which of the quick ones are has no period that theirs could have.
    fn measures(&self, number: u64) -> bool {
        self.is_long() || number.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / SAMPLED
    }

    /// The work on message number `number`, whose first stretch is measured.
    pub(crate) async fn measured<W: Future>(&self, number: u64, work: W) -> W::Output {
        let mut work = std::pin::pin!(work);
        let mut begun = !self.measures(number);
        poll_fn(|cx| {
            if replace(&mut begun, true) {
                return work.as_mut().poll(cx);
            }
            let began = Instant::now();
            let polled = work.as_mut().poll(cx);
            self.saw(began.elapsed());
            polled
        })
        .await
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_long_until_known_and_for_some_time_after_a_long_one() {
        let stretch = Stretch::new();
        let quick_ones = |stretch: &Stretch| {
            (0..10_000)
                .take_while(|_| {
                    stretch.saw(Duration::from_nanos(50));
                    stretch.is_long()
                })
                .count()
        };
        assert!(stretch.is_long());
        assert_eq!(quick_ones(&stretch), 177);
        stretch.saw(LONG);
        assert!(!stretch.is_long());
        let measured = (0..8_000).filter(|number| stretch.measures(*number)).count();
        let odd = (0..8_000).filter(|number| stretch.measures(2 * number + 1)).count();
        assert!(
            (990..1_010).contains(&measured) && (990..1_010).contains(&odd),
            "{measured} {odd}"
        );
        stretch.saw(Duration::from_millis(10));
        assert!((1_000..1_300).contains(&quick_ones(&stretch)));
    }
}
