//! From an exchange, a key and headers to the queues that get the message.
//!
//! ```text
//!   publish ──► exchange ──► bindings that match ──► queues          (each once)
//!                  │                     └─────────► exchanges ──┐   (each asked once,
//!                  └─ nothing matched ──► alternate exchange ────┤    so cycles end)
//!                  ▲                                             │
//!                  └─────────────────────────────────────────────┘
//! ```

use forebay_wire::{RawProperties, Table};

use super::destination::{Destination, ExchangeKey};
use super::exchange::Routing;
use super::headers::SortedHeaders;
use super::route_set::RouteSet;
use super::vhost::VhostTopology;

/// What of a message some exchanges look at beside its keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoutedBy<'a> {
    pub(crate) headers: Table<'a>,
    pub(crate) properties: Option<RawProperties<'a>>,
}

impl<'a> From<Table<'a>> for RoutedBy<'a> {
    fn from(headers: Table<'a>) -> Self {
        RoutedBy { headers, properties: None }
    }
}

impl<'a> From<RawProperties<'a>> for RoutedBy<'a> {
    fn from(properties: RawProperties<'a>) -> Self {
        let headers = properties.headers().unwrap_or_default();
        RoutedBy { headers, properties: Some(properties) }
    }
}

impl VhostTopology {
    /// Fills `out` with the queues for a message, each once; none if it cannot be routed.
    ///
    /// `more_keys` come from `CC` and `BCC` and count like `routing_key`. An alternate exchange is
    /// asked when nothing matched at its exchange, whether or not it exists is seen only then. The
    /// work is at most one pass over each exchange reached.
    pub fn route<'a>(
        &self,
        exchange: ExchangeKey,
        routing_key: &[u8],
        more_keys: &[&[u8]],
        by: impl Into<RoutedBy<'a>>,
        out: &mut RouteSet,
    ) {
        out.begin();
        let RouteSet { reached, topic, looked_at_headers } = out;
        reached.add(Destination::Exchange(exchange));
        let by = by.into();
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
                    let headers =
                        sorted_headers.get_or_insert_with(|| SortedHeaders::new(by.headers));
                    bindings.route(headers, &mut found);
                }
                Routing::ConsistentHash(hash) => {
                    *looked_at_headers |= hash.looks_beyond_the_key();
                    hash.route(routing_key, &by, &mut found);
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
