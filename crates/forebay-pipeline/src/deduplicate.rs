//! Messages that come twice, worked on once.
//!
//! At least once is what brokers promise: an acknowledgement may be lost with its connection, and a publisher that does not
//! know the outcome publishes again. A handler that cannot bear that needs the last keys it was done with. They are in
//! memory, as many as were asked for, and gone with the process: who needs more writes the key in the transaction
//! that does the work.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use crate::handler::{Failure, Handler, caught};
use crate::item::Item;
use crate::outcome::{Handled, Outcome, Step};

/// The last keys, `remembered` at most.
#[derive(Debug)]
struct Keys<K> {
    remembered: usize,
    known: HashSet<K>,
    /// The same, oldest first.
    order: VecDeque<K>,
}

impl<K: Hash + Eq + Clone> Keys<K> {
    fn new(remembered: usize) -> Keys<K> {
        Keys { remembered, known: HashSet::new(), order: VecDeque::new() }
    }

    fn add(&mut self, key: K) {
        if self.remembered == 0 || !self.known.insert(key.clone()) {
            return;
        }
        if self.order.len() == self.remembered
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(key);
    }
}

/// What finds a message's key; `None`: it has none, and is worked on however often it comes.
type KeyOf<T, K> = Box<dyn Fn(&T) -> Option<K> + Send + Sync>;

/// A handler that is not called again for what it was done with. Made by
/// [`Process::deduplicate`](crate::Process::deduplicate).
pub struct Deduplicated<T, H, K> {
    handler: H,
    key_of: KeyOf<T, K>,
    keys: Arc<Mutex<Keys<K>>>,
}

impl<T, H, K: Hash + Eq + Clone> Deduplicated<T, H, K> {
    pub(crate) fn new(handler: H, remembered: usize, key_of: KeyOf<T, K>) -> Self {
        Deduplicated { handler, key_of, keys: Arc::new(Mutex::new(Keys::new(remembered))) }
    }
}

impl<T, H, K> fmt::Debug for Deduplicated<T, H, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deduplicated").finish_non_exhaustive()
    }
}

/// What a handler returned, or that it need not be called.
#[derive(Debug)]
pub struct Once<V>(Result<Step<V>, String>);

impl<V: Send> Handled for Once<V> {
    type Value = V;

    fn handled(self) -> Result<Step<V>, String> {
        self.0
    }
}

impl<T, H, K> Handler<T> for Deduplicated<T, H, K>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    K: Hash + Eq + Clone + Send + 'static,
{
    type Output = Once<<H::Output as Handled>::Value>;

    async fn handle(&self, item: Item<T>) -> Result<Self::Output, Failure> {
        let key = (self.key_of)(&item);
        let lock = || self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if key.as_ref().is_some_and(|key| lock().known.contains(key)) {
            return Ok(Once(Ok(Step::Settle(Outcome::Ack))));
        }
        let output = self.handler.handle(item).await?;
        // An error tells what it is in code of its own.
        let handled = caught(|| output.handled())?;
        // What goes to a batch is not done yet, and may still fail there.
        if let (Ok(Step::Settle(Outcome::Ack)), Some(key)) = (&handled, key) {
            lock().add(key);
        }
        Ok(Once(handled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_makes_room() {
        let mut keys = Keys::new(2);
        for key in [1, 2, 2, 1, 3] {
            keys.add(key);
        }
        assert_eq!([1, 2, 3].map(|key| keys.known.contains(&key)), [false, true, true]);
        assert_eq!(keys.order, [2, 3]);
        let mut none = Keys::new(0);
        none.add(1);
        assert!(none.known.is_empty());
    }
}
