//! A batcher at work: handlers put in, the workers of its batches take out.
//!
//! The batches are the source of a stage of their own, so their workers ask for one when they are idle, as all
//! workers do.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::batch::{Batch, BatchReceipt, Batching};
use crate::batcher::{Batcher, Entry};
use crate::item::Item;
use crate::let_go;
use crate::outcome::Verdict;
use crate::policy::DeadLetters;
use crate::source::{Source, Taken};

/// See the module's documentation.
pub(crate) struct Collector<T, V> {
    pub(crate) batching: Batching<V>,
    dead_letters: Option<DeadLetters<T>>,
    begun: Instant,
    inside: Mutex<Inside<T, V>>,
    /// Something was taken out.
    room: Notify,
}

struct Inside<T, V> {
    batcher: Batcher<u128, (V, Item<T>)>,
    /// Halves of batches that failed: of so many at a time as there are workers, since they come first.
    halves: VecDeque<Batch<V>>,
    /// Batches that were taken and may come back in halves.
    working: usize,
    /// Who asked for a batch last.
    taker: Option<Waker>,
    /// No more messages come.
    closed: bool,
    /// Nobody takes batches any more.
    abandoned: bool,
}

impl<T, V> Inside<T, V> {
    /// There is no batch, and there will be none.
    fn is_over(&self) -> bool {
        let empty = self.batcher.held() == 0 && self.halves.is_empty();
        self.closed && self.working == 0 && empty
    }
}

impl<T, V> Collector<T, V> {
    pub(crate) fn new(
        batching: Batching<V>,
        dead_letters: Option<DeadLetters<T>>,
    ) -> Collector<T, V> {
        let batcher = Batcher::new(batching.limits());
        let inside = Inside {
            batcher,
            halves: VecDeque::new(),
            working: 0,
            taker: None,
            closed: false,
            abandoned: false,
        };
        Collector {
            batching,
            dead_letters,
            begun: Instant::now(),
            inside: Mutex::new(inside),
            room: Notify::new(),
        }
    }

    /// Puts a message into its batch, when there is room.
    pub(crate) async fn put(&self, value: V, item: Item<T>) {
        let key = self.batching.key(&value);
        let bytes = self.batching.size(&value);
        let last = self.batching.is_last(&value);
        let mut entry = Entry { key, message: (value, item), bytes, last };
        loop {
            let room = self.room.notified();
            match self.try_put(entry) {
                Ok(()) => return,
                Err(back) => entry = back,
            }
            room.await;
        }
    }

    fn try_put(&self, entry: Entry<u128, (V, Item<T>)>) -> Result<(), Entry<u128, (V, Item<T>)>> {
        let mut inside = self.inside();
        if inside.abandoned {
            drop(inside);
            return Ok(()); // and with the entry the message goes back to its source
        }
        let room = inside.batcher.has_room();
        let untimed = inside.batcher.next_due_us().is_none();
        let result = if room {
            Ok(inside.batcher.push(entry, self.now_us()))
        } else {
            Err(entry) // and a batch is ready
        };
        // Something is ready, or there is a time to wait for where there was none.
        let news = untimed || !matches!(result, Ok(false));
        let taker = if news { inside.taker.take() } else { None };
        drop(inside);
        taker.into_iter().for_each(Waker::wake);
        result.map(|_| ())
    }

    /// No more messages come: what is open is ready.
    pub(crate) fn close(&self) {
        let mut inside = self.inside();
        inside.closed = true;
        inside.batcher.flush();
        let taker = inside.taker.take();
        drop(inside);
        taker.into_iter().for_each(Waker::wake);
    }

    /// Takes a batch back in halves, after so many attempts at it. False: it has none.
    pub(crate) fn bisect(&self, batch: &Batch<V>, attempts: u32) -> bool {
        let halves: Vec<Batch<V>> = batch.halves(attempts).collect();
        if halves.is_empty() {
            return false;
        }
        let mut inside = self.inside();
        if inside.abandoned {
            return true; // and its messages go back to their source
        }
        for half in halves.into_iter().rev() {
            inside.halves.push_front(half);
        }
        let taker = inside.taker.take();
        drop(inside);
        taker.into_iter().for_each(Waker::wake);
        true
    }

    fn inside(&self) -> MutexGuard<'_, Inside<T, V>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A batch that may come back: until this is dropped there may be more of them, though no more messages come.
pub(crate) struct Working(Box<dyn Fn() + Send + Sync>);

impl Working {
    fn of<T: Send + Sync + 'static, V: Send + Sync + 'static>(
        collector: &Arc<Collector<T, V>>,
        inside: &mut Inside<T, V>,
    ) -> Working {
        inside.working += 1;
        let collector = collector.clone();
        Working(Box::new(move || {
            let mut inside = collector.inside();
            inside.working -= 1;
            let taker = if inside.closed { inside.taker.take() } else { None };
            drop(inside);
            taker.into_iter().for_each(Waker::wake);
        }))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The batches of a collector as a source.
pub(crate) struct Batches<T, V> {
    collector: Arc<Collector<T, V>>,
    /// Until the time of the oldest open batch is up.
    timer: Pin<Box<Sleep>>,
}

impl<T, V> Batches<T, V> {
    pub(crate) fn new(collector: Arc<Collector<T, V>>) -> Batches<T, V> {
        Batches { collector, timer: Box::pin(sleep_until(Instant::now())) }
    }
}

impl<T: Send + Sync + 'static, V: Send + Sync + 'static> Source for Batches<T, V> {
    type Value = Batch<V>;
    type Receipt = BatchReceipt;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        loop {
            let mut inside = self.collector.inside();
            let mut void = Vec::new();
            let next = inside.halves.pop_front().or_else(|| {
                let mut entries = inside.batcher.take(self.collector.now_us())?;
                // What came again may be in it, too.
                void.extend(entries.extract_if(.., |(_, item)| item.is_void()));
                Some(Batch::new(entries, self.collector.dead_letters.clone()))
            });
            if let Some(batch) = next {
                let bisects = self.collector.batching.bisects;
                let working = bisects.then(|| Working::of(&self.collector, &mut inside));
                drop(inside);
                if !void.is_empty() {
                    let_go::warn(void.len() as u64);
                }
                for (_, item) in void {
                    item.settle(Verdict::Requeue);
                }
                self.collector.room.notify_waiters();
                if batch.is_empty() {
                    continue;
                }
                let receipt = batch.receipt(working);
                return Poll::Ready(Ok(Some((batch, receipt))));
            }
            if inside.is_over() {
                return Poll::Ready(Ok(None));
            }
            inside.taker = Some(cx.waker().clone());
            let Some(due_us) = inside.batcher.next_due_us() else { return Poll::Pending };
            drop(inside);
            let due = self.collector.begun.checked_add(Duration::from_micros(due_us));
            let Some(due) = due else { return Poll::Pending };
            if self.timer.deadline() != due {
                self.timer.as_mut().reset(due);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.collector.inside();
        if inside.is_over() {
            return Poll::Ready(());
        }
        inside.taker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T, V> Drop for Batches<T, V> {
    /// What is left goes back to its source.
    fn drop(&mut self) {
        let mut inside = self.collector.inside();
        inside.abandoned = true;
        inside.batcher.flush();
        let left: Vec<_> = std::iter::from_fn(|| inside.batcher.take(u64::MAX)).collect();
        let halves = std::mem::take(&mut inside.halves);
        drop(inside);
        drop((left, halves));
        self.collector.room.notify_waiters();
    }
}
