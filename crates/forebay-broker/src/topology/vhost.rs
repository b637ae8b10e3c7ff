//! All exchanges, bindings and queue names of one virtual host.

use std::collections::BTreeSet;

use forebay_wire::{Table, TableBuf};

use super::Map;
use super::arguments::{
    ALTERNATE_EXCHANGE, alternate_exchange, check_arguments_equivalent, check_property_equivalent,
    sorted,
};
use super::binding::{Binding, BindingKey, Bindings, Identity};
use super::change::Change;
use super::destination::{Destination, ExchangeKey, QueueKey};
use super::exchange::{Exchange, ExchangeKind, Routing};
use super::policy::{Policies, Policy};
use super::record::{BindingRecord, ExchangeRecord};
use super::resource::{Resource, ResourceKind, is_reserved, stripped};
use crate::error::AmqpError;

/// The exchange of the firehose.
pub const TRACE_EXCHANGE: &[u8] = TRACE_EXCHANGE_NAME.as_bytes();
const TRACE_EXCHANGE_NAME: &str = "amq.rabbitmq.trace";

/// Exchanges that are always there: name, type, internal.
const PREDECLARED: [(&str, ExchangeKind, bool); 7] = [
    ("", ExchangeKind::Direct, false),
    ("amq.direct", ExchangeKind::Direct, false),
    ("amq.fanout", ExchangeKind::Fanout, false),
    ("amq.headers", ExchangeKind::Headers, false),
    ("amq.match", ExchangeKind::Headers, false),
    (TRACE_EXCHANGE_NAME, ExchangeKind::Topic, true),
    ("amq.topic", ExchangeKind::Topic, false),
];

/// What `exchange.declare` asks for (not passive).
#[derive(Clone, Copy, Debug)]
pub struct ExchangeDeclaration<'a> {
    /// As received; line ends are taken out.
    pub name: &'a [u8],
    /// Name of the type.
    pub kind: &'a [u8],
    /// Survives a restart.
    pub durable: bool,
    /// Goes when the last binding from it goes.
    pub auto_delete: bool,
    /// Takes messages from other exchanges only.
    pub internal: bool,
    /// `alternate-exchange` means something; the rest is kept.
    pub arguments: Table<'a>,
}

/// Where a binding is to lead, by name.
#[derive(Clone, Copy, Debug)]
pub enum BindTo<'a> {
    /// To a queue (`queue.bind`).
    Queue(&'a [u8]),
    /// To an exchange (`exchange.bind`).
    Exchange(&'a [u8]),
}

/// What bind and unbind name. Line ends are taken out of the names, not out of the key.
#[derive(Clone, Copy, Debug)]
pub struct Bind<'a> {
    /// The exchange that messages come from.
    pub source: &'a [u8],
    /// Where they go.
    pub destination: BindTo<'a>,
    /// Key or pattern.
    pub routing_key: &'a [u8],
    /// For headers exchanges; part of what the binding is for all.
    pub arguments: Table<'a>,
}

/// The topology of one virtual host.
///
/// Each call that changes something returns all it changed, in order, so that the caller can write
/// the durable part down; each also moves [`version`](Self::version).
#[derive(Clone, Debug)]
pub struct VhostTopology {
    name: String,
    exchanges: Vec<Option<Exchange>>,
    free_exchanges: Vec<u32>,
    exchange_names: Map<Box<[u8]>, ExchangeKey>,
    queue_names: Map<Box<[u8]>, QueueKey>,
    queues: Map<QueueKey, BoundQueue>,
    bindings: Bindings,
    pub(crate) policies: Policies,
    version: u64,
}

/// What the topology knows of a queue.
#[derive(Clone, Debug)]
struct BoundQueue {
    name: Box<[u8]>,
    durable: bool,
    incoming: BTreeSet<BindingKey>,
}

impl VhostTopology {
    /// A virtual host with the exchanges that are always there.
    pub fn new(name: impl Into<String>) -> Self {
        let mut topology = VhostTopology {
            name: name.into(),
            exchanges: Vec::new(),
            free_exchanges: Vec::new(),
            exchange_names: Map::default(),
            queue_names: Map::default(),
            queues: Map::default(),
            bindings: Bindings::default(),
            policies: Policies::default(),
            version: 1,
        };
        for (name, kind, internal) in PREDECLARED {
            let routing = if name.is_empty() {
                Routing::QueueName
            } else {
                Routing::new(kind, Table::default())
            };
            topology.insert_exchange(Exchange {
                name: name.as_bytes().into(),
                kind,
                durable: true,
                auto_delete: false,
                internal,
                arguments: TableBuf::new(),
                alternate: None,
                policy_alternate: None,
                routing,
                outgoing: BTreeSet::new(),
                incoming: BTreeSet::new(),
            });
        }
        topology
    }

    /// The same with policies, from now on.
    #[must_use]
    pub fn with_policies(mut self, policies: Vec<Policy>) -> Self {
        self.policies = Policies::new(policies);
        for exchange in self.exchanges.iter_mut().flatten() {
            exchange.policy_alternate =
                self.policies.alternate_exchange(&exchange.name).map(Box::from);
        }
        self.version += 1;
        self
    }

    /// Name of the virtual host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Changes whenever a message could be routed differently than before: while it is the same, a
    /// route that was found holds, and so do keys of exchanges. Never 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    // -- exchanges ---------------------------------------------------------------------------

    /// The exchange of this name.
    pub fn exchange(&self, name: &[u8]) -> Option<&Exchange> {
        self.exchange_at(self.exchange_key(name)?)
    }

    /// Index of the exchange of this name; valid for one [`version`](Self::version).
    pub fn exchange_key(&self, name: &[u8]) -> Option<ExchangeKey> {
        self.exchange_names.get(name).copied()
    }

    /// The exchange of this index.
    pub fn exchange_at(&self, key: ExchangeKey) -> Option<&Exchange> {
        self.exchanges.get(key.0 as usize)?.as_ref()
    }

    /// All exchanges, the default one first.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter().flatten()
    }

    /// Places that exchanges and bindings are kept in; some may be empty.
    pub(crate) fn places(&self) -> (usize, usize) {
        (self.exchanges.len(), self.bindings.places())
    }

    /// The exchange in one of the places.
    pub(crate) fn exchange_in(&self, place: usize) -> Option<&Exchange> {
        self.exchanges.get(place)?.as_ref()
    }

    /// The binding in one of the places.
    pub(crate) fn binding_in(&self, place: usize) -> Option<&Binding> {
        self.bindings.get(BindingKey(u32::try_from(place).ok()?))
    }

    /// The exchange a client publishes to: 404 if there is none, 403 if it is internal.
    pub fn exchange_to_publish(&self, name: &[u8]) -> Result<ExchangeKey, AmqpError> {
        let resource = Resource::exchange(name, &self.name);
        let key = self.exchange_key(name).ok_or_else(|| AmqpError::not_found(resource))?;
        match self.exchange_at(key) {
            Some(exchange) if exchange.internal => Err(AmqpError::internal_exchange(resource)),
            _ => Ok(key),
        }
    }

    /// A passive declaration: 404 if there is no such exchange. Type and flags are not compared.
    pub fn check_exchange(&self, name: &[u8]) -> Result<(), AmqpError> {
        let name = stripped(name);
        check_not_default(&name)?;
        match self.exchange_key(&name) {
            Some(_) => Ok(()),
            None => Err(AmqpError::not_found(Resource::exchange(&name, &self.name))),
        }
    }

    /// Declares an exchange, or compares with the one that exists. 503 for an unknown type, 403 for
    /// the default exchange and new names under `amq.`, 406 for an inequivalent redeclaration.
    pub fn declare_exchange(
        &mut self,
        declaration: &ExchangeDeclaration<'_>,
    ) -> Result<Vec<Change>, AmqpError> {
        let kind = ExchangeKind::from_name(declaration.kind)
            .ok_or_else(|| AmqpError::unknown_exchange_type(declaration.kind))?;
        let name = stripped(declaration.name);
        check_not_default(&name)?;
        if let Some(exchange) = self.exchange(&name) {
            self.check_equivalent(exchange, kind, declaration)?;
            return Ok(Vec::new());
        }
        if is_reserved(&name) {
            return Err(AmqpError::reserved_name(ResourceKind::Exchange, &name));
        }
        let resource = Resource::exchange(&name, &self.name);
        let alternate = alternate_exchange(resource, declaration.arguments)?;
        kind.check_arguments(resource, declaration.arguments)?;
        let key = self.insert_exchange(Exchange {
            name: (*name).into(),
            kind,
            durable: declaration.durable,
            auto_delete: declaration.auto_delete,
            internal: declaration.internal,
            arguments: TableBuf::from(declaration.arguments),
            alternate: alternate.map(Box::from),
            policy_alternate: self.policies.alternate_exchange(&name).map(Box::from),
            routing: Routing::new(kind, declaration.arguments),
            outgoing: BTreeSet::new(),
            incoming: BTreeSet::new(),
        });
        self.version += 1;
        Ok(self.exchange_record(key).map(Change::ExchangeAdded).into_iter().collect())
    }

    fn check_equivalent(
        &self,
        exchange: &Exchange,
        kind: ExchangeKind,
        received: &ExchangeDeclaration<'_>,
    ) -> Result<(), AmqpError> {
        let resource = Resource::exchange(&exchange.name, &self.name);
        let flags = [
            ("durable", exchange.durable, received.durable),
            ("auto_delete", exchange.auto_delete, received.auto_delete),
            ("internal", exchange.internal, received.internal),
        ];
        check_property_equivalent(resource, "type", exchange.kind, kind)?;
        for (name, current, received) in flags {
            check_property_equivalent(resource, name, current, received)?;
        }
        check_arguments_equivalent(
            resource,
            exchange.arguments.as_table(),
            received.arguments,
            &[ALTERNATE_EXCHANGE],
        )
    }

    /// Deletes an exchange with its bindings; one that does not exist is fine. 403 for the default
    /// exchange and names under `amq.`, 406 if it has bindings and `if_unused` is set.
    pub fn delete_exchange(
        &mut self,
        name: &[u8],
        if_unused: bool,
    ) -> Result<Vec<Change>, AmqpError> {
        let name = stripped(name);
        check_not_default(&name)?;
        let resource = Resource::exchange(&name, &self.name);
        if is_reserved(&name) {
            return Err(AmqpError::system_exchange(resource));
        }
        let Some(key) = self.exchange_key(&name) else { return Ok(Vec::new()) };
        if if_unused && self.exchange_at(key).is_some_and(|exchange| exchange.bindings() > 0) {
            return Err(AmqpError::in_use(resource));
        }
        let mut changes = Vec::new();
        let mut unbound = Vec::new();
        self.remove_exchange(key, &mut changes, &mut unbound);
        self.auto_delete(unbound, &mut changes);
        self.version += 1;
        Ok(changes)
    }

    fn insert_exchange(&mut self, exchange: Exchange) -> ExchangeKey {
        let name = exchange.name.clone();
        let key = match self.free_exchanges.pop() {
            Some(at) => {
                self.exchanges[at as usize] = Some(exchange);
                ExchangeKey(at)
            }
            None => {
                self.exchanges.push(Some(exchange));
                ExchangeKey(self.exchanges.len() as u32 - 1)
            }
        };
        self.exchange_names.insert(name, key);
        key
    }

    /// Removes an exchange and every binding from and to it. `unbound` gets the exchanges that lost
    /// a binding.
    fn remove_exchange(
        &mut self,
        key: ExchangeKey,
        changes: &mut Vec<Change>,
        unbound: &mut Vec<ExchangeKey>,
    ) {
        let Some(exchange) = self.exchange_at(key) else { return };
        let mut bindings = exchange.outgoing.clone();
        bindings.extend(&exchange.incoming);
        for binding in bindings {
            self.remove_binding(binding, changes, unbound);
        }
        changes.extend(self.exchange_record(key).map(Change::ExchangeRemoved));
        if let Some(exchange) = self.exchanges[key.0 as usize].take() {
            self.exchange_names.remove(&exchange.name);
            self.free_exchanges.push(key.0);
        }
    }

    /// Removes the auto-delete exchanges among those that lost a binding and have none left; that
    /// may take the last binding from others, and so on.
    fn auto_delete(&mut self, mut unbound: Vec<ExchangeKey>, changes: &mut Vec<Change>) {
        while let Some(key) = unbound.pop() {
            if self
                .exchange_at(key)
                .is_some_and(|exchange| exchange.auto_delete && exchange.outgoing.is_empty())
            {
                self.remove_exchange(key, changes, &mut unbound);
            }
        }
    }

    fn exchange_record(&self, key: ExchangeKey) -> Option<ExchangeRecord> {
        let exchange = self.exchange_at(key)?;
        Some(ExchangeRecord {
            vhost: self.name.clone(),
            name: exchange.name.clone(),
            kind: exchange.kind,
            durable: exchange.durable,
            auto_delete: exchange.auto_delete,
            internal: exchange.internal,
            arguments: exchange.arguments.clone(),
        })
    }

    // -- queues ------------------------------------------------------------------------------

    /// The queue of this name.
    pub fn queue(&self, name: &[u8]) -> Option<QueueKey> {
        self.queue_names.get(name).copied()
    }

    /// The queue of this name; 404 if there is none.
    pub fn existing_queue(&self, name: &[u8]) -> Result<QueueKey, AmqpError> {
        self.queue(name).ok_or_else(|| AmqpError::not_found(Resource::queue(name, &self.name)))
    }

    /// How many queues there are.
    pub fn queues(&self) -> usize {
        self.queue_names.len()
    }

    /// Makes a new queue known under its name. The name must be free.
    pub fn add_queue(&mut self, name: &[u8], key: QueueKey, durable: bool) {
        debug_assert!(self.queue(name).is_none(), "the name is taken");
        self.queue_names.insert(name.into(), key);
        let queue = BoundQueue { name: name.into(), durable, incoming: BTreeSet::new() };
        self.queues.insert(key, queue);
        self.version += 1;
    }

    /// Forgets a queue and its bindings, and the auto-delete exchanges that lost their last binding
    /// with it.
    pub fn remove_queue(&mut self, name: &[u8]) -> Vec<Change> {
        let mut changes = Vec::new();
        let Some(key) = self.queue(name) else { return changes };
        let mut unbound = Vec::new();
        let bindings = self.queues.get(&key).map(|queue| queue.incoming.clone());
        for binding in bindings.unwrap_or_default() {
            self.remove_binding(binding, &mut changes, &mut unbound);
        }
        self.queue_names.remove(name);
        self.queues.remove(&key);
        self.auto_delete(unbound, &mut changes);
        self.version += 1;
        changes
    }

    // -- bindings ----------------------------------------------------------------------------

    /// Binds; a binding that is there already is fine. 403 for the default exchange, 404 for ends
    /// that do not exist, 406 for an `x-match` or a weight that makes no sense.
    pub fn bind(&mut self, bind: &Bind<'_>) -> Result<Vec<Change>, AmqpError> {
        let (source, destination) = self.ends(bind)?;
        let (source, destination) = (source?, destination?);
        let arguments = sorted(bind.arguments);
        let identity = Identity {
            source,
            destination,
            key: bind.routing_key,
            arguments: arguments.as_table(),
        };
        if let Some(exchange) = self.exchange_at(source) {
            exchange.kind.check_binding(bind.routing_key, bind.arguments)?;
        }
        if self.bindings.find(identity).is_some() {
            return Ok(Vec::new());
        }
        let key = self.insert_binding(Binding {
            source,
            destination,
            key: bind.routing_key.into(),
            arguments,
        });
        self.version += 1;
        let change = self
            .binding_record(key)
            .map(|(binding, durable)| Change::BindingAdded { binding, durable });
        Ok(change.into_iter().collect())
    }

    /// Unbinds; a binding, queue or exchange that does not exist is fine. 403 for the default
    /// exchange.
    pub fn unbind(&mut self, bind: &Bind<'_>) -> Result<Vec<Change>, AmqpError> {
        let mut changes = Vec::new();
        let (Ok(source), Ok(destination)) = self.ends(bind)? else { return Ok(changes) };
        let arguments = sorted(bind.arguments);
        let identity = Identity {
            source,
            destination,
            key: bind.routing_key,
            arguments: arguments.as_table(),
        };
        if let Some(key) = self.bindings.find(identity) {
            let mut unbound = Vec::new();
            self.remove_binding(key, &mut changes, &mut unbound);
            self.auto_delete(unbound, &mut changes);
            self.version += 1;
        }
        Ok(changes)
    }

    /// Both ends of a binding, each found or 404.
    #[allow(clippy::type_complexity)]
    fn ends(
        &self,
        bind: &Bind<'_>,
    ) -> Result<(Result<ExchangeKey, AmqpError>, Result<Destination, AmqpError>), AmqpError> {
        let source = stripped(bind.source);
        let exchange = |name: &[u8]| {
            self.exchange_key(name)
                .ok_or_else(|| AmqpError::not_found(Resource::exchange(name, &self.name)))
        };
        let destination = match bind.destination {
            BindTo::Queue(name) => {
                let name = stripped(name);
                self.existing_queue(&name).map(Destination::Queue)
            }
            BindTo::Exchange(name) => {
                let name = stripped(name);
                check_not_default(&name)?;
                exchange(&name).map(Destination::Exchange)
            }
        };
        check_not_default(&source)?;
        Ok((exchange(&source), destination))
    }

    fn insert_binding(&mut self, binding: Binding) -> BindingKey {
        let key = self.bindings.insert(binding.clone());
        let name: Option<Box<[u8]>> =
            self.destination(binding.destination).map(|(name, _)| Box::from(name));
        if let Some(source) = self.exchanges[binding.source.0 as usize].as_mut() {
            source.outgoing.insert(key);
            source.routing.add(key, &binding, &name.unwrap_or_default());
        }
        if let Some(incoming) = self.incoming(binding.destination) {
            incoming.insert(key);
        }
        key
    }

    fn remove_binding(
        &mut self,
        key: BindingKey,
        changes: &mut Vec<Change>,
        unbound: &mut Vec<ExchangeKey>,
    ) {
        let record = self.binding_record(key);
        let Some(binding) = self.bindings.remove(key) else { return };
        changes
            .extend(record.map(|(binding, durable)| Change::BindingRemoved { binding, durable }));
        if let Some(source) = self.exchanges[binding.source.0 as usize].as_mut() {
            source.outgoing.remove(&key);
            source.routing.remove(key, &binding);
        }
        if let Some(incoming) = self.incoming(binding.destination) {
            incoming.remove(&key);
        }
        unbound.push(binding.source);
    }

    fn incoming(&mut self, destination: Destination) -> Option<&mut BTreeSet<BindingKey>> {
        match destination {
            Destination::Queue(key) => Some(&mut self.queues.get_mut(&key)?.incoming),
            Destination::Exchange(key) => {
                Some(&mut self.exchanges.get_mut(key.0 as usize)?.as_mut()?.incoming)
            }
        }
    }

    /// A binding by the names of its ends, and whether both of them are durable.
    fn binding_record(&self, key: BindingKey) -> Option<(BindingRecord, bool)> {
        self.record_of(self.bindings.get(key)?)
    }

    fn record_of(&self, binding: &Binding) -> Option<(BindingRecord, bool)> {
        let source = self.exchange_at(binding.source)?;
        let (destination, durable) = self.destination(binding.destination)?;
        let record = BindingRecord {
            vhost: self.name.clone(),
            source: source.name.clone(),
            destination_kind: binding.destination.resource_kind(),
            destination: destination.into(),
            routing_key: binding.key.clone(),
            arguments: binding.arguments.clone(),
        };
        Some((record, source.durable && durable))
    }

    /// Its name, and whether it is durable.
    fn destination(&self, destination: Destination) -> Option<(&[u8], bool)> {
        match destination {
            Destination::Queue(key) => {
                self.queues.get(&key).map(|queue| (&*queue.name, queue.durable))
            }
            Destination::Exchange(key) => {
                self.exchange_at(key).map(|exchange| (&*exchange.name, exchange.durable))
            }
        }
    }

    /// All bindings, without the ones that the default exchange has of itself.
    pub fn bindings(&self) -> impl Iterator<Item = BindingRecord> {
        self.bindings.iter().filter_map(|binding| Some(self.record_of(binding)?.0))
    }

    /// How many [`bindings`](Self::bindings) there are.
    pub fn bindings_len(&self) -> usize {
        self.bindings.len()
    }

    // -- at start ----------------------------------------------------------------------------

    /// Puts back an exchange that was written down; one that is there already stays as it is.
    pub fn restore_exchange(&mut self, record: &ExchangeRecord) {
        if self.exchange_key(&record.name).is_some() {
            return;
        }
        let resource = Resource::exchange(&record.name, &self.name);
        let alternate = alternate_exchange(resource, record.arguments.as_table());
        let alternate = alternate.ok().flatten().map(Box::from);
        self.insert_exchange(Exchange {
            name: record.name.clone(),
            kind: record.kind,
            durable: record.durable,
            auto_delete: record.auto_delete,
            internal: record.internal,
            arguments: record.arguments.clone(),
            alternate,
            policy_alternate: self.policies.alternate_exchange(&record.name).map(Box::from),
            routing: Routing::new(record.kind, record.arguments.as_table()),
            outgoing: BTreeSet::new(),
            incoming: BTreeSet::new(),
        });
        self.version += 1;
    }

    /// Puts back a binding that was written down, after exchanges and queues. False if one of its
    /// ends is gone: then the record may be deleted.
    pub fn restore_binding(&mut self, record: &BindingRecord) -> bool {
        let destination = match record.destination_kind {
            ResourceKind::Queue => BindTo::Queue(&record.destination),
            ResourceKind::Exchange => BindTo::Exchange(&record.destination),
        };
        self.bind(&Bind {
            source: &record.source,
            destination,
            routing_key: &record.routing_key,
            arguments: record.arguments.as_table(),
        })
        .is_ok()
    }
}

fn check_not_default(exchange: &[u8]) -> Result<(), AmqpError> {
    if exchange.is_empty() { Err(AmqpError::default_exchange()) } else { Ok(()) }
}
