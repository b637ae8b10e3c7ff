//! From an exchange, a key and headers to the queues that get the message.
//!
//! ```text
//!   publish ──► exchange ──► bindings that match ──► queues          (each once)
//!                  │                     └─────────► exchanges ──┐   (each asked once,
//!                  └─ nothing matched ──► alternate exchange ────┤    so cycles end)
//!                  ▲                                             │
//!                  └─────────────────────────────────────────────┘
//! ```

use forebay_wire::Table;

use super::destination::{Destination, ExchangeKey};
use super::exchange::Routing;
use super::headers::SortedHeaders;
use super::route_set::RouteSet;
use super::vhost::VhostTopology;

impl VhostTopology {
    /// Fills `out` with the queues for a message, each once; none if it cannot be routed.
    ///
    /// `more_keys` come from `CC` and `BCC` and count like `routing_key`. An alternate exchange is
    /// asked when nothing matched at its exchange, whether or not it exists is seen only then. The
    /// work is at most one pass over each exchange reached.
    pub fn route(
        &self,
        exchange: ExchangeKey,
        routing_key: &[u8],
        more_keys: &[&[u8]],
        headers: Table<'_>,
        out: &mut RouteSet,
    ) {
        out.begin();
        let RouteSet { reached, topic, looked_at_headers } = out;
        reached.add(Destination::Exchange(exchange));
        let mut sorted_headers = None;
        while let Some(key) = reached.next_exchange() {
            let Some(exchange) = self.exchange_at(key) else { continue };
            let keys = std::iter::once(routing_key).chain(more_keys.iter().copied());
            let mut matched = false;
            let mut found = |destination| {
                matched = true;
                reached.add(destination);
            };
            match &exchange.routing {
                Routing::QueueName => {
                    keys.filter_map(|key| self.queue(key))
                        .for_each(|queue| found(Destination::Queue(queue)));
                }
                Routing::Direct(direct) => keys.for_each(|key| direct.route(key, &mut found)),
                Routing::Fanout(fanout) => fanout.route(&mut found),
                Routing::Topic(trie) => keys.for_each(|key| trie.route(key, topic, &mut found)),
                Routing::Headers(bindings) => {
                    *looked_at_headers = true;
                    let headers = sorted_headers.get_or_insert_with(|| SortedHeaders::new(headers));
                    bindings.route(headers, &mut found);
                }
            }
            if !matched
                && let Some(alternate) = exchange.alternate()
                && let Some(alternate) = self.exchange_key(alternate)
            {
                reached.add(Destination::Exchange(alternate));
            }
        }
    }
}
