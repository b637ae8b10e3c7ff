//! An exchange: its properties, and the routing structure of its type.

use std::collections::BTreeSet;
use std::fmt;

use forebay_wire::{Table, TableBuf};

use super::binding::{Binding, BindingKey};
use super::consistent_hash::{self, ConsistentHash};
use super::direct::Direct;
use super::fanout::Fanout;
use super::headers::{self, Headers};
use super::resource::Resource;
use super::topic::TopicTrie;
use crate::error::AmqpError;

/// The type of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExchangeKind {
    /// Binding key equal to routing key.
    Direct = 0,
    /// Every binding.
    Fanout = 1,
    /// Binding key a pattern over the routing key's words.
    Topic = 2,
    /// Binding arguments against the message's headers.
    Headers = 3,
    /// A hash of the routing key, a header or a property.
    ConsistentHash = 4,
}

impl ExchangeKind {
    /// The type of this name, as in `exchange.declare`.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"direct" => ExchangeKind::Direct,
            b"fanout" => ExchangeKind::Fanout,
            b"topic" => ExchangeKind::Topic,
            b"headers" => ExchangeKind::Headers,
            b"x-consistent-hash" => ExchangeKind::ConsistentHash,
            _ => return None,
        })
    }

    /// The name, as in `exchange.declare`.
    pub const fn name(self) -> &'static str {
        match self {
            ExchangeKind::Direct => "direct",
            ExchangeKind::Fanout => "fanout",
            ExchangeKind::Topic => "topic",
            ExchangeKind::Headers => "headers",
            ExchangeKind::ConsistentHash => "x-consistent-hash",
        }
    }

    /// Refuses (406) arguments of an exchange that make no sense to its type.
    pub(crate) fn check_arguments(
        self,
        exchange: Resource<'_>,
        arguments: Table<'_>,
    ) -> Result<(), AmqpError> {
        match self {
            ExchangeKind::ConsistentHash => consistent_hash::check_arguments(exchange, arguments),
            _ => Ok(()),
        }
    }

    /// Refuses (406) a binding that makes no sense to the type of its exchange.
    pub(crate) fn check_binding(self, key: &[u8], arguments: Table<'_>) -> Result<(), AmqpError> {
        match self {
            ExchangeKind::Headers => headers::check_binding(arguments),
            ExchangeKind::ConsistentHash => consistent_hash::check_binding(key),
            _ => Ok(()),
        }
    }

    /// The type of a number in a record.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Direct, Self::Fanout, Self::Topic, Self::Headers, Self::ConsistentHash]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

impl fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An exchange of a virtual host.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: ExchangeKind,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
    pub(crate) arguments: TableBuf,
    /// By its argument.
    pub(crate) alternate: Option<Box<[u8]>>,
    /// By a policy; the argument goes before it.
    pub(crate) policy_alternate: Option<Box<[u8]>>,
    pub(crate) routing: Routing,
    /// Bindings from here.
    pub(crate) outgoing: BTreeSet<BindingKey>,
    /// Bindings from other exchanges to here.
    pub(crate) incoming: BTreeSet<BindingKey>,
}

/// How an exchange finds destinations.
#[derive(Clone, Debug)]
pub(crate) enum Routing {
    /// The default exchange: a queue's name is its key.
    QueueName,
    Direct(Direct),
    Fanout(Fanout),
    Topic(TopicTrie),
    Headers(Headers),
    ConsistentHash(ConsistentHash),
}

impl Routing {
    /// For an exchange declared with `arguments`.
    pub(crate) fn new(kind: ExchangeKind, arguments: Table<'_>) -> Self {
        match kind {
            ExchangeKind::Direct => Routing::Direct(Direct::default()),
            ExchangeKind::Fanout => Routing::Fanout(Fanout::default()),
            ExchangeKind::Topic => Routing::Topic(TopicTrie::default()),
            ExchangeKind::Headers => Routing::Headers(Headers::default()),
            ExchangeKind::ConsistentHash => Routing::ConsistentHash(ConsistentHash::new(arguments)),
        }
    }

    /// `name` is the destination's.
    pub(crate) fn add(&mut self, key: BindingKey, binding: &Binding, name: &[u8]) {
        let destination = binding.destination;
        match self {
            Routing::QueueName => {}
            Routing::Direct(direct) => direct.add(&binding.key, destination),
            Routing::Fanout(fanout) => fanout.add(destination),
            Routing::Topic(topic) => topic.add(&binding.key, destination),
            Routing::Headers(headers) => {
                headers.add(key, binding.arguments.as_table(), destination);
            }
            Routing::ConsistentHash(hash) => hash.add(key, &binding.key, destination, name),
        }
    }

    pub(crate) fn remove(&mut self, key: BindingKey, binding: &Binding) {
        let destination = binding.destination;
        match self {
            Routing::QueueName => {}
            Routing::Direct(direct) => direct.remove(&binding.key, destination),
            Routing::Fanout(fanout) => fanout.remove(destination),
            Routing::Topic(topic) => topic.remove(&binding.key, destination),
            Routing::Headers(headers) => headers.remove(key),
            Routing::ConsistentHash(hash) => hash.remove(key),
        }
    }
}

impl Exchange {
    /// The name; empty for the default exchange.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The type.
    pub fn kind(&self) -> ExchangeKind {
        self.kind
    }

    /// Survives a restart.
    pub fn durable(&self) -> bool {
        self.durable
    }

    /// Goes when the last binding from it goes.
    pub fn auto_delete(&self) -> bool {
        self.auto_delete
    }

    /// Takes messages from other exchanges only.
    pub fn internal(&self) -> bool {
        self.internal
    }

    /// As declared.
    pub fn arguments(&self) -> forebay_wire::Table<'_> {
        self.arguments.as_table()
    }

    /// Name of the exchange that takes what this one cannot route; it need not exist.
    pub fn alternate(&self) -> Option<&[u8]> {
        self.alternate.as_deref().or(self.policy_alternate.as_deref())
    }

    /// How many bindings lead from here.
    pub fn bindings(&self) -> usize {
        self.outgoing.len()
    }
}
