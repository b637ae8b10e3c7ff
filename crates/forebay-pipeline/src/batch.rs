//! Messages that are worked on together.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use forebay_flow::explain::Mark;

use crate::batcher::Limits;
use crate::collector::Working;
use crate::concurrency::Concurrency;
use crate::item::Item;
use crate::outcome::{Handled, Step, Verdict};
use crate::policy::{Burial, DeadLetters};
use crate::source::Receipt;

/// Messages that a batcher holds unless told otherwise: this, or twice a full batch for each of its workers if
/// that is more.
pub const HELD_MAX: usize = 10_000;

/// Sends a value to a batcher: what a handler returns, alone or in a `Result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToBatch<V> {
    batcher: Option<&'static str>,
    value: V,
}

impl<V> ToBatch<V> {
    /// To the only batcher.
    pub fn new(value: V) -> ToBatch<V> {
        ToBatch { batcher: None, value }
    }

    /// To the batcher of this name.
    pub fn named(batcher: &'static str, value: V) -> ToBatch<V> {
        ToBatch { batcher: Some(batcher), value }
    }
}

impl<V: Send> Handled for ToBatch<V> {
    type Value = V;

    fn handled(self) -> Result<Step<V>, String> {
        Ok(Step::Batch { batcher: self.batcher, value: self.value })
    }
}

/// Values of several messages, by `Deref` to a slice, in the order in which they came.
///
/// What the handler returns is the outcome of all that were not settled one by one before.
pub struct Batch<V> {
    values: Arc<Vec<V>>,
    messages: Arc<dyn Messages>,
    /// Of both; a part of them where the whole has failed.
    range: Range<usize>,
    /// At the whole.
    attempts: u32,
}

impl<V> Batch<V> {
    pub(crate) fn new<T: Send + Sync + 'static>(
        entries: Vec<(V, Item<T>)>,
        dead_letters: Option<DeadLetters<T>>,
    ) -> Batch<V> {
        let (values, items): (Vec<V>, Vec<Item<T>>) = entries.into_iter().unzip();
        let (range, values) = (0..values.len(), Arc::new(values));
        Batch { values, messages: Arc::new(Behind { items, dead_letters }), range, attempts: 0 }
    }

    /// Its halves after so many attempts at it, without those that are settled; none of a single message.
    pub(crate) fn halves(&self, attempts: u32) -> impl Iterator<Item = Batch<V>> {
        let middle = self.range.start + self.range.len() / 2;
        let halves = [self.range.start..middle, middle..self.range.end];
        let open = |half: &Range<usize>| !self.messages.is_settled(half.clone());
        let several = self.range.len() > 1;
        halves.into_iter().filter(move |half| several && open(half)).map(move |range| {
            let (values, messages) = (self.values.clone(), self.messages.clone());
            Batch { values, messages, range, attempts }
        })
    }

    /// Attempts at the batch of which it is a part.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Settles one of its messages now. False if that was done before.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn settle(&self, index: usize, verdict: Verdict) -> bool {
        assert!(index < self.range.len(), "{index} of a batch of {}", self.range.len());
        self.messages.settle(self.range.start + index, verdict)
    }

    /// Sends those that are not settled to where dead letters go, one by one.
    pub(crate) fn bury(&self, reason: String) -> Burial {
        self.messages.clone().bury(self.range.clone(), reason)
    }

    /// Each of its messages was settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.messages.is_settled(self.range.clone())
    }

    /// It is tried again after so long.
    pub(crate) fn put_off(&self, pause: Duration) {
        self.messages.put_off(self.range.clone(), pause);
    }

    /// Its messages passed a point of their way.
    pub(crate) fn passed(&self, mark: Mark) {
        self.messages.passed(self.range.clone(), mark);
    }

    /// Its span.
    #[cfg(feature = "opentelemetry")]
    pub(crate) fn span(&self, batcher: &'static str) -> opentelemetry::trace::SpanBuilder {
        self.messages.span(self.range.clone(), batcher)
    }

    pub(crate) fn receipt(&self, working: Option<Working>) -> BatchReceipt {
        let (messages, range) = (self.messages.clone(), self.range.clone());
        BatchReceipt { messages, range, _working: working }
    }
}

impl<V> Deref for Batch<V> {
    type Target = [V];

    fn deref(&self) -> &[V] {
        &self.values[self.range.clone()]
    }
}

impl<V: fmt::Debug> fmt::Debug for Batch<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

/// The messages behind a batch's values, whatever they carry.
trait Messages: Send + Sync {
    fn settle(&self, index: usize, verdict: Verdict) -> bool;
    fn settle_all(&self, range: Range<usize>, verdict: Verdict);
    fn is_settled(&self, range: Range<usize>) -> bool;
    /// All of them come again.
    fn is_void(&self, range: Range<usize>) -> bool;
    fn put_off(&self, range: Range<usize>, pause: Duration);
    fn passed(&self, range: Range<usize>, mark: Mark);
    fn bury(self: Arc<Self>, range: Range<usize>, reason: String) -> Burial;
    #[cfg(feature = "opentelemetry")]
    fn span(&self, range: Range<usize>, batcher: &'static str)
    -> opentelemetry::trace::SpanBuilder;
}

struct Behind<T> {
    items: Vec<Item<T>>,
    dead_letters: Option<DeadLetters<T>>,
}

impl<T: Send + Sync + 'static> Messages for Behind<T> {
    fn settle(&self, index: usize, verdict: Verdict) -> bool {
        self.items[index].settle(verdict)
    }

    fn settle_all(&self, range: Range<usize>, verdict: Verdict) {
        for item in &self.items[range] {
            item.settle(verdict);
        }
    }

    fn is_settled(&self, range: Range<usize>) -> bool {
        self.items[range].iter().all(Item::is_settled)
    }

    fn is_void(&self, range: Range<usize>) -> bool {
        // One that was acknowledged early does not, and is still to be worked on.
        self.items[range].iter().all(Item::is_void)
    }

    fn put_off(&self, range: Range<usize>, pause: Duration) {
        for item in &self.items[range] {
            item.put_off(pause);
        }
    }

    fn passed(&self, range: Range<usize>, mark: Mark) {
        for item in &self.items[range] {
            item.passed(mark);
        }
    }

    fn bury(self: Arc<Self>, range: Range<usize>, reason: String) -> Burial {
        Box::pin(async move {
            let Some(dead_letters) = &self.dead_letters else {
                self.settle_all(range, Verdict::Reject);
                return Ok(());
            };
            let (of, mut lost) = (range.len(), 0);
            for item in &self.items[range] {
                lost += usize::from(dead_letters.take(item, &reason).await == Some(false));
            }
            if lost == 0 { Ok(()) } else { Err(format!("{lost} of a batch of {of} went back")) }
        })
    }

    #[cfg(feature = "opentelemetry")]
    fn span(
        &self,
        range: Range<usize>,
        batcher: &'static str,
    ) -> opentelemetry::trace::SpanBuilder {
        let items = &self.items[range];
        let described = items.iter().filter_map(Item::described);
        crate::spans::of_batch(batcher, items.len(), described)
    }
}

/// Settles what is left of a batch.
pub struct BatchReceipt {
    messages: Arc<dyn Messages>,
    range: Range<usize>,
    /// Until then more may come of it.
    _working: Option<Working>,
}

impl Receipt for BatchReceipt {
    fn is_void(&self) -> bool {
        self.messages.is_void(self.range.clone())
    }

    fn settle(self, verdict: Verdict) {
        self.messages.settle_all(self.range.clone(), verdict);
    }
}

/// Tells something of a value.
type Of<V, A> = Box<dyn Fn(&V) -> A + Send + Sync>;

/// How a batcher makes batches. What comes first ends one: messages, bytes, time, or [`Batching::ends_with`].
pub struct Batching<V> {
    pub(crate) name: &'static str,
    pub(crate) concurrency: Concurrency,
    messages: usize,
    bytes: usize,
    delay: Duration,
    held_max: Option<usize>,
    pub(crate) bisects: bool,
    size_of: Option<Of<V, usize>>,
    ends_with: Option<Of<V, bool>>,
    key_of: Option<Of<V, u128>>,
}

impl<V> Batching<V> {
    /// Batches of `messages`, at least 1, or of what has come within `delay` of the first one. While no worker
    /// is free to take a batch it goes on growing.
    #[must_use]
    pub fn new(name: &'static str, messages: usize, delay: Duration) -> Batching<V> {
        Batching {
            name,
            concurrency: 1.into(),
            messages: messages.max(1),
            bytes: usize::MAX,
            delay,
            held_max: None,
            bisects: false,
            size_of: None,
            ends_with: None,
            key_of: None,
        }
    }

    /// So many batches in work at a time, at least 1; 1 unless set. With several, a batch may end before those that
    /// were begun before it, also one [of the same key](Batching::by_key).
    #[must_use]
    pub fn concurrency(mut self, concurrency: impl Into<Concurrency>) -> Self {
        self.concurrency = concurrency.into();
        self
    }

    /// A batch ends with the message that brings it to `bytes`, by what `size_of` says about each.
    #[must_use]
    pub fn bytes(
        mut self,
        bytes: usize,
        size_of: impl Fn(&V) -> usize + Send + Sync + 'static,
    ) -> Self {
        self.bytes = bytes;
        self.size_of = Some(Box::new(size_of));
        self
    }

    /// A batch ends with a message of which this is true.
    #[must_use]
    pub fn ends_with(mut self, last: impl Fn(&V) -> bool + Send + Sync + 'static) -> Self {
        self.ends_with = Some(Box::new(last));
        self
    }

    /// A batch has messages of one key only.
    #[must_use]
    pub fn by_key<K: Hash>(mut self, key: impl Fn(&V) -> K + Send + Sync + 'static) -> Self {
        self.key_of = Some(Box::new(move |value| wide_hash(&key(value))));
        self
    }

    /// Messages held in all its batches that are not in work yet, at least one batch full; [`HELD_MAX`] unless set. When
    /// they are that many the fullest batch is handed on as it is, and handlers wait with what they have for it.
    #[must_use]
    pub fn held_max(mut self, messages: usize) -> Self {
        self.held_max = Some(messages);
        self
    }

    /// A batch whose last attempt failed is worked on in halves, and each of these that fails in halves of its own, until the
    /// message that is to blame is alone: only that has failed. A half has one attempt, without a pause, and comes before other
    /// batches. It contains messages that were settled one by one before, as another attempt at the whole does, unless all
    /// of its messages were.
    ///
    /// One bad message among `n` costs about 2 log₂ `n` calls more. Where all of them are bad, or what the handler
    /// needs is down, it is 2 `n` calls: let [`Process::retries`](crate::Process::retries) last longer than it is down.
    #[must_use]
    pub fn bisect_failures(mut self) -> Self {
        self.bisects = true;
        self
    }

    pub(crate) fn limits(&self) -> Limits {
        let full = self.messages.saturating_mul(self.concurrency.most().saturating_mul(2));
        Limits {
            messages: self.messages,
            bytes: self.bytes,
            delay_us: u64::try_from(self.delay.as_micros()).unwrap_or(u64::MAX),
            held_max: self.held_max.unwrap_or(HELD_MAX.max(full)).max(self.messages),
        }
    }

    pub(crate) fn size(&self, value: &V) -> usize {
        self.size_of.as_ref().map_or(0, |size_of| size_of(value))
    }

    pub(crate) fn is_last(&self, value: &V) -> bool {
        self.ends_with.as_ref().is_some_and(|last| last(value))
    }

    pub(crate) fn key(&self, value: &V) -> u128 {
        self.key_of.as_ref().map_or(0, |key_of| key_of(value))
    }
}

impl<V> fmt::Debug for Batching<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Batching");
        debug.field("name", &self.name).field("limits", &self.limits()).finish_non_exhaustive()
    }
}

/// Wide enough that two keys of a running system are never taken for one.
fn wide_hash(key: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        key.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}
