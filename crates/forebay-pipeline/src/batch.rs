//! Messages that are worked on together.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_flow::explain::Mark;

use crate::batcher::Limits;
use crate::concurrency::Concurrency;
use crate::item::Item;
use crate::outcome::{Handled, Step, Verdict};
use crate::policy::DeadLetters;
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
    values: Vec<V>,
    messages: Arc<dyn Messages>,
}

impl<V> Batch<V> {
    pub(crate) fn new<T: Send + Sync + 'static>(
        entries: Vec<(V, Item<T>)>,
        dead_letters: Option<DeadLetters<T>>,
    ) -> Batch<V> {
        let (values, items): (Vec<V>, Vec<Item<T>>) = entries.into_iter().unzip();
        Batch { values, messages: Arc::new(Behind { items, dead_letters }) }
    }

    /// Settles one of its messages now. False if that was done before.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn settle(&self, index: usize, verdict: Verdict) -> bool {
        self.messages.settle(index, verdict)
    }

    /// Sends those that are not settled to where dead letters go, one by one.
    pub(crate) fn bury(&self, reason: String) -> impl Future<Output = ()> + Send + use<V> {
        self.messages.clone().bury(reason)
    }

    /// It is tried again after so long.
    pub(crate) fn put_off(&self, pause: Duration) {
        self.messages.put_off(pause);
    }

    /// Its messages passed a point of their way.
    pub(crate) fn passed(&self, mark: Mark) {
        self.messages.passed(mark);
    }

    /// Its span.
    #[cfg(feature = "opentelemetry")]
    pub(crate) fn span(&self, batcher: &'static str) -> opentelemetry::trace::SpanBuilder {
        self.messages.span(batcher)
    }

    pub(crate) fn receipt(&self) -> BatchReceipt {
        BatchReceipt(self.messages.clone())
    }
}

impl<V> Deref for Batch<V> {
    type Target = [V];

    fn deref(&self) -> &[V] {
        &self.values
    }
}

impl<V: fmt::Debug> fmt::Debug for Batch<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.values).finish()
    }
}

/// The messages behind a batch's values, whatever they carry.
trait Messages: Send + Sync {
    fn settle(&self, index: usize, verdict: Verdict) -> bool;
    fn settle_all(&self, verdict: Verdict);
    fn put_off(&self, pause: Duration);
    fn passed(&self, mark: Mark);
    fn bury(self: Arc<Self>, reason: String) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    #[cfg(feature = "opentelemetry")]
    fn span(&self, batcher: &'static str) -> opentelemetry::trace::SpanBuilder;
}

struct Behind<T> {
    items: Vec<Item<T>>,
    dead_letters: Option<DeadLetters<T>>,
}

impl<T: Send + Sync + 'static> Messages for Behind<T> {
    fn settle(&self, index: usize, verdict: Verdict) -> bool {
        self.items[index].settle(verdict)
    }

    fn put_off(&self, pause: Duration) {
        for item in &self.items {
            item.put_off(pause);
        }
    }

    fn passed(&self, mark: Mark) {
        for item in &self.items {
            item.passed(mark);
        }
    }

    #[cfg(feature = "opentelemetry")]
    fn span(&self, batcher: &'static str) -> opentelemetry::trace::SpanBuilder {
        let described = self.items.iter().filter_map(Item::described);
        crate::spans::of_batch(batcher, self.items.len(), described)
    }

    fn settle_all(&self, verdict: Verdict) {
        for item in &self.items {
            item.settle(verdict);
        }
    }

    fn bury(self: Arc<Self>, reason: String) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let Some(dead_letters) = &self.dead_letters else {
                return self.settle_all(Verdict::Reject);
            };
            for item in &self.items {
                dead_letters.take(item, &reason).await;
            }
        })
    }
}

/// Settles what is left of a batch.
pub struct BatchReceipt(Arc<dyn Messages>);

impl Receipt for BatchReceipt {
    fn settle(self, verdict: Verdict) {
        self.0.settle_all(verdict);
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
            size_of: None,
            ends_with: None,
            key_of: None,
        }
    }

    /// So many batches in work at a time, at least 1; 1 unless set.
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

    /// Messages held in all its batches together, at least one batch full; [`HELD_MAX`] unless set. When they
    /// are that many the fullest batch is handed on as it is, and handlers wait with what they have for it.
    #[must_use]
    pub fn held_max(mut self, messages: usize) -> Self {
        self.held_max = Some(messages);
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
