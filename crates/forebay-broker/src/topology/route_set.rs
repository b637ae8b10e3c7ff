//! The queues that one message goes to, and the room in which they are found.

use super::destination::{Destination, ExchangeKey, QueueKey};
use super::topic::TopicScratch;

/// Filled by [`VhostTopology::route`](super::VhostTopology::route) and used again for the next
/// message, so that routing allocates only when it meets more queues than ever before.
///
/// Memory: 8 bytes per queue key, exchange and topic node of the largest virtual host routed.
#[derive(Clone, Debug, Default)]
pub struct RouteSet {
    pub(crate) reached: Reached,
    pub(crate) topic: TopicScratch,
    pub(crate) looked_at_headers: bool,
}

/// What has been found so far, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached {
    queues: Vec<QueueKey>,
    /// Exchanges that are still to be asked.
    pending: Vec<ExchangeKey>,
    /// Per queue and per exchange, the last message that reached it.
    queue_marks: Vec<u64>,
    exchange_marks: Vec<u64>,
    message: u64,
}

impl RouteSet {
    /// A set with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The queues found, each once, in no order that means anything.
    pub fn queues(&self) -> &[QueueKey] {
        &self.reached.queues
    }

    /// Whether an exchange was asked that looks at headers or properties, so that another message with the same exchange and key
    /// may go elsewhere and the queues must not be remembered for it.
    pub fn depends_on_headers(&self) -> bool {
        self.looked_at_headers
    }

    pub(crate) fn begin(&mut self) {
        self.looked_at_headers = false;
        self.reached.queues.clear();
        self.reached.pending.clear();
        self.reached.message += 1;
    }
}

impl Reached {
    pub(crate) fn add(&mut self, destination: Destination) {
        match destination {
            Destination::Queue(queue) => {
                if mark(&mut self.queue_marks, queue.0, self.message) {
                    self.queues.push(queue);
                }
            }
            Destination::Exchange(exchange) => {
                if mark(&mut self.exchange_marks, exchange.0, self.message) {
                    self.pending.push(exchange);
                }
            }
        }
    }

    pub(crate) fn next_exchange(&mut self) -> Option<ExchangeKey> {
        self.pending.pop()
    }
}

/// Whether this message marks the place for the first time.
fn mark(marks: &mut Vec<u64>, at: u32, message: u64) -> bool {
    let at = at as usize;
    if at >= marks.len() {
        marks.resize(at + 1, 0);
    }
    std::mem::replace(&mut marks[at], message) != message
}
