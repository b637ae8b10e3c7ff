//! Exchanges, bindings and the names of queues: where a message goes.
//!
//! ```text
//!   VhostTopology
//!   ├── exchanges ── Exchange ── Routing: direct | fanout | topic | headers | hash | by queue name
//!   ├── bindings  ── Binding: exchange ─(key, arguments)─► queue or exchange
//!   └── queues    ── name ─► QueueKey (the broker's own table has the rest)
//!
//!   route(exchange, key, headers) ──► RouteSet: each queue once
//!   declare, delete, bind, unbind ──► Vec<Change> ──► records for the store (record.rs)
//! ```
//!
//! Pure data: nothing here knows connections, messages or the store.

mod arguments;
mod binding;
mod change;
mod consistent_hash;
mod destination;
mod direct;
mod exchange;
mod fanout;
mod headers;
mod policy;
mod queue_arguments;
mod record;
mod resource;
mod route;
mod route_set;
mod routing_keys;
mod topic;
mod vhost;

pub use arguments::{
    ALTERNATE_EXCHANGE, alternate_exchange, check_arguments_equivalent, check_property_equivalent,
};
pub use change::{Change, MetaWrite};
pub use destination::{Destination, ExchangeKey, QueueKey};
pub use exchange::{Exchange, ExchangeKind};
pub use policy::{Policy, PolicyError, QUEUE_POLICY_KEYS};
pub use queue_arguments::{QueueDeclaration, check_queue_arguments, check_queue_equivalent};
pub use record::{BindingRecord, ExchangeRecord, QueueRecord, RECORD_VERSION, Record, RecordError};
pub use resource::{Lossy, RESERVED_PREFIX, Resource, ResourceKind, is_reserved, stripped};
pub use route::RoutedBy;
pub use route_set::RouteSet;
pub use routing_keys::{extra_routing_keys, names_extra_keys, without_bcc};
pub use vhost::{Bind, BindTo, ExchangeDeclaration, TRACE_EXCHANGE, VhostTopology};

/// Keyed by what clients choose, so hashed with a random seed; never iterated where order shows.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
