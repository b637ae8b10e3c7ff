//! How late the machine is when something is to happen: what no program on it can be better than.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::idle::Interval;

/// How often each thread asks.
const NAP: Duration = Duration::from_millis(1);
/// A thread of a machine that has nothing else to do is less late than this.
const LATE: Duration = Duration::from_micros(200);

/// Threads that do nothing but sleep and look at the clock, as many as there are processors.
pub(super) struct BareThreads {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Interval>>>,
}

impl BareThreads {
    /// They tell their times since `began`.
    pub(super) fn start(began: Instant) -> Result<BareThreads, String> {
        let over = Arc::new(AtomicBool::new(false));
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..count).map(|_| {
            let over = over.clone();
            thread::Builder::new().name("bare".into()).spawn(move || late(began, &over))
        });
        let threads =
            threads.collect::<Result<_, _>>().map_err(|error| format!("no threads: {error}"))?;
        Ok(BareThreads { over, threads })
    }

    /// From when one of them was to wake until it did, in microseconds, where that was late.
    pub(super) fn late(self) -> Vec<Interval> {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    }
}

fn late(began: Instant, over: &AtomicBool) -> Vec<Interval> {
    let us = |at: Instant| at.saturating_duration_since(began).as_micros() as u64;
    let mut late = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let due = Instant::now() + NAP;
        thread::sleep(NAP);
        let woke = Instant::now();
        if woke.saturating_duration_since(due) > LATE {
            late.push((us(due), us(woke)));
        }
    }
    late
}
