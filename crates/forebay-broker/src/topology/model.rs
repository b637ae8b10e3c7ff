//! Random sequences of declare, bind and delete against a model that is too simple to be wrong.

use std::collections::{BTreeMap, BTreeSet};

use forebay_wire::{Table, TableBuf, Value};
use proptest::prelude::*;

use super::*;

const EXCHANGES: [&str; 5] = ["a", "b", "c", "d", "amq.topic"];
const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];
const KEYS: [&str; 5] = ["", "k", "k.l", "*", "#"];
const PUBLISHED: [&str; 4] = ["", "k", "k.l", "k.l.m"];

#[derive(Clone, Debug)]
enum Step {
    Declare { exchange: usize, kind: usize, durable: bool, auto_delete: bool, alternate: usize },
    DeleteExchange { exchange: usize, if_unused: bool },
    AddQueue { queue: usize, durable: bool },
    RemoveQueue { queue: usize },
    Bind(ModelBinding),
    Unbind(ModelBinding),
}

/// Indexes into the names above; destinations from `EXCHANGES.len()` on are queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ModelBinding {
    source: usize,
    destination: usize,
    key: usize,
    with_arguments: bool,
}

#[derive(Clone, Copy, Debug)]
struct ModelExchange {
    kind: usize,
    durable: bool,
    auto_delete: bool,
    alternate: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Model {
    exchanges: BTreeMap<usize, ModelExchange>,
    queues: BTreeMap<usize, bool>,
    bindings: BTreeSet<ModelBinding>,
}

const KINDS: [&str; 4] = ["direct", "fanout", "topic", "headers"];

fn step() -> impl Strategy<Value = Step> {
    let exchange = 0..EXCHANGES.len();
    let binding = (
        0..EXCHANGES.len(),
        0..EXCHANGES.len() + QUEUES.len(),
        0..KEYS.len(),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(source, destination, key, with_arguments)| ModelBinding {
            source,
            destination,
            key,
            with_arguments,
        });
    prop_oneof![
        3 => (exchange.clone(), 0..KINDS.len(), any::<bool>(), any::<bool>(), 0..EXCHANGES.len() + 3)
            .prop_map(|(exchange, kind, durable, auto_delete, alternate)| Step::Declare {
                exchange, kind, durable, auto_delete, alternate,
            }),
        1 => (exchange, any::<bool>())
            .prop_map(|(exchange, if_unused)| Step::DeleteExchange { exchange, if_unused }),
        3 => (0..QUEUES.len(), any::<bool>())
            .prop_map(|(queue, durable)| Step::AddQueue { queue, durable }),
        1 => (0..QUEUES.len()).prop_map(|queue| Step::RemoveQueue { queue }),
        6 => binding.clone().prop_map(Step::Bind),
        2 => binding.prop_map(Step::Unbind),
    ]
}

impl ModelBinding {
    fn queue(&self) -> Option<usize> {
        self.destination.checked_sub(EXCHANGES.len())
    }

    fn arguments(&self) -> TableBuf {
        let arguments = TableBuf::new();
        if self.with_arguments { arguments.with("h", Value::I32(1)) } else { arguments }
    }

    fn apply<T>(&self, call: impl FnOnce(&Bind<'_>) -> T) -> T {
        let arguments = self.arguments();
        call(&Bind {
            source: EXCHANGES[self.source].as_bytes(),
            destination: match self.queue() {
                Some(queue) => BindTo::Queue(QUEUES[queue].as_bytes()),
                None => BindTo::Exchange(EXCHANGES[self.destination].as_bytes()),
            },
            routing_key: KEYS[self.key].as_bytes(),
            arguments: arguments.as_table(),
        })
    }

    fn matches(&self, kind: usize, key: &str, with_header: bool) -> bool {
        let pattern = KEYS[self.key];
        match KINDS[kind] {
            "direct" => pattern == key,
            "fanout" => true,
            "topic" => match pattern {
                "#" => true,
                "*" => !key.is_empty() && !key.contains('.'),
                literal => literal == key,
            },
            _ => !self.with_arguments || with_header,
        }
    }
}

impl Model {
    fn new() -> Self {
        let mut model = Model::default();
        let trace = ModelExchange { kind: 2, durable: true, auto_delete: false, alternate: None };
        model.exchanges.insert(4, trace);
        model
    }

    fn remove_bindings(&mut self, gone: impl Fn(&ModelBinding) -> bool) {
        let removed: Vec<_> = self.bindings.iter().filter(|each| gone(each)).copied().collect();
        self.bindings.retain(|each| !gone(each));
        for binding in removed {
            let source = binding.source;
            let used = self.bindings.iter().any(|each| each.source == source);
            if !used && self.exchanges.get(&source).is_some_and(|each| each.auto_delete) {
                self.remove_exchange(source);
            }
        }
    }

    fn remove_exchange(&mut self, exchange: usize) {
        self.exchanges.remove(&exchange);
        self.remove_bindings(|each| each.source == exchange || each.destination == exchange);
    }

    fn has_ends(&self, binding: &ModelBinding) -> bool {
        self.exchanges.contains_key(&binding.source)
            && match binding.queue() {
                Some(queue) => self.queues.contains_key(&queue),
                None => self.exchanges.contains_key(&binding.destination),
            }
    }

    fn is_durable(&self, binding: &ModelBinding) -> bool {
        self.exchanges[&binding.source].durable
            && match binding.queue() {
                Some(queue) => self.queues[&queue],
                None => self.exchanges[&binding.destination].durable,
            }
    }

    /// Does the step; false if a client would be refused.
    fn apply(&mut self, step: &Step) -> bool {
        match *step {
            Step::Declare { exchange, kind, durable, auto_delete, alternate } => {
                let alternate = (alternate < EXCHANGES.len()).then_some(alternate);
                match self.exchanges.get(&exchange) {
                    Some(held) => {
                        held.kind == kind
                            && held.durable == durable
                            && held.auto_delete == auto_delete
                            && held.alternate == alternate
                    }
                    None => {
                        let held = ModelExchange { kind, durable, auto_delete, alternate };
                        self.exchanges.insert(exchange, held);
                        true
                    }
                }
            }
            Step::DeleteExchange { exchange, if_unused } => {
                let used = self.bindings.iter().any(|each| each.source == exchange);
                let allowed = exchange != 4 && !(if_unused && used);
                if allowed {
                    self.remove_exchange(exchange);
                }
                allowed
            }
            Step::AddQueue { queue, durable } => {
                self.queues.entry(queue).or_insert(durable);
                true
            }
            Step::RemoveQueue { queue } => {
                self.remove_bindings(|each| each.queue() == Some(queue));
                self.queues.remove(&queue);
                true
            }
            Step::Bind(binding) => {
                let there = self.has_ends(&binding);
                if there {
                    self.bindings.insert(binding);
                }
                there
            }
            Step::Unbind(binding) => {
                if self.bindings.contains(&binding) {
                    self.remove_bindings(|each| *each == binding);
                }
                true
            }
        }
    }

    fn route(&self, exchange: usize, keys: &[&str], with_header: bool) -> BTreeSet<usize> {
        let (mut queues, mut asked, mut pending) =
            (BTreeSet::new(), BTreeSet::new(), vec![exchange]);
        while let Some(at) = pending.pop() {
            let Some(exchange) = self.exchanges.get(&at) else { continue };
            if !asked.insert(at) {
                continue;
            }
            let matching: Vec<_> = self
                .bindings
                .iter()
                .filter(|each| {
                    each.source == at
                        && keys.iter().any(|key| each.matches(exchange.kind, key, with_header))
                })
                .collect();
            for binding in &matching {
                match binding.queue() {
                    Some(queue) => drop(queues.insert(queue)),
                    None => pending.push(binding.destination),
                }
            }
            if matching.is_empty() {
                pending.extend(exchange.alternate);
            }
        }
        queues
    }
}

/// Does the step; the changes, or whether it was refused.
fn apply(topology: &mut VhostTopology, step: &Step) -> Option<Vec<Change>> {
    match *step {
        Step::Declare { exchange, kind, durable, auto_delete, alternate } => {
            let mut arguments = TableBuf::new();
            if let Some(name) = EXCHANGES.get(alternate) {
                arguments.push(ALTERNATE_EXCHANGE, Value::LongStr(name.as_bytes()));
            }
            topology
                .declare_exchange(&ExchangeDeclaration {
                    name: EXCHANGES[exchange].as_bytes(),
                    kind: KINDS[kind].as_bytes(),
                    durable,
                    auto_delete,
                    internal: false,
                    arguments: arguments.as_table(),
                })
                .ok()
        }
        Step::DeleteExchange { exchange, if_unused } => {
            topology.delete_exchange(EXCHANGES[exchange].as_bytes(), if_unused).ok()
        }
        Step::AddQueue { queue, durable } => {
            let name = QUEUES[queue].as_bytes();
            if topology.queue(name).is_none() {
                topology.add_queue(name, QueueKey(queue as u32), durable);
            }
            Some(Vec::new())
        }
        Step::RemoveQueue { queue } => Some(topology.remove_queue(QUEUES[queue].as_bytes())),
        Step::Bind(binding) => binding.apply(|bind| topology.bind(bind)).ok(),
        Step::Unbind(binding) => binding.apply(|bind| topology.unbind(bind)).ok(),
    }
}

fn record(binding: &ModelBinding) -> BindingRecord {
    let (destination_kind, destination) = match binding.queue() {
        Some(queue) => (ResourceKind::Queue, QUEUES[queue]),
        None => (ResourceKind::Exchange, EXCHANGES[binding.destination]),
    };
    BindingRecord {
        vhost: "/".to_owned(),
        source: EXCHANGES[binding.source].as_bytes().into(),
        destination_kind,
        destination: destination.as_bytes().into(),
        routing_key: KEYS[binding.key].as_bytes().into(),
        arguments: binding.arguments(),
    }
}

fn keys_of(bindings: impl Iterator<Item = BindingRecord>) -> BTreeSet<Vec<u8>> {
    bindings.map(|binding| binding.key()).collect()
}

fn exchange_names(topology: &VhostTopology) -> BTreeSet<&[u8]> {
    topology
        .exchanges()
        .map(Exchange::name)
        .filter(|name| EXCHANGES.map(str::as_bytes).contains(name))
        .collect()
}

fn check_routes(model: &Model, topology: &VhostTopology, set: &mut RouteSet) {
    let header = TableBuf::new().with("h", Value::U8(1));
    for (exchange, name) in EXCHANGES.iter().enumerate() {
        let Some(key) = topology.exchange_key(name.as_bytes()) else { continue };
        for (at, published) in PUBLISHED.iter().enumerate() {
            for with_header in [false, true] {
                let headers = if with_header { header.as_table() } else { Table::default() };
                let more = PUBLISHED[(at + 1) % PUBLISHED.len()];
                let more_keys: &[&[u8]] = if with_header { &[more.as_bytes()] } else { &[] };
                topology.route(key, published.as_bytes(), more_keys, headers, set);
                let found: BTreeSet<_> =
                    set.queues().iter().map(|queue| queue.0 as usize).collect();
                assert_eq!(found.len(), set.queues().len(), "a queue came twice");
                let keys = if with_header { vec![*published, more] } else { vec![*published] };
                assert_eq!(found, model.route(exchange, &keys, with_header), "{name} {keys:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_topology_is_what_the_model_says(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        let mut topology = VhostTopology::new("/");
        let mut set = RouteSet::new();
        let mut stored = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        let mut told_bindings = BTreeSet::<Vec<u8>>::new();
        for step in &steps {
            let version = topology.version();
            let changes = apply(&mut topology, step);
            prop_assert_eq!(changes.is_some(), model.apply(step), "{:?}", step);
            let changes = changes.unwrap_or_default();
            prop_assert!(changes.is_empty() || topology.version() != version);
            for change in &changes {
                match change {
                    Change::BindingAdded { binding, .. } => {
                        prop_assert!(told_bindings.insert(binding.key()));
                    }
                    Change::BindingRemoved { binding, .. } => {
                        prop_assert!(told_bindings.remove(&binding.key()));
                    }
                    Change::ExchangeAdded(_) | Change::ExchangeRemoved(_) => {}
                }
                match change.meta_write() {
                    Some(MetaWrite::Put { key, value }) => {
                        prop_assert!(stored.insert(key, value).is_none());
                    }
                    Some(MetaWrite::Delete { key }) => prop_assert!(stored.remove(&key).is_some()),
                    None => {}
                }
            }
            let expected: BTreeSet<&[u8]> =
                model.exchanges.keys().map(|&each| EXCHANGES[each].as_bytes()).collect();
            prop_assert_eq!(exchange_names(&topology), expected);
            let expected = keys_of(model.bindings.iter().map(record));
            prop_assert_eq!(keys_of(topology.bindings()), expected.clone());
            prop_assert_eq!(&told_bindings, &expected);
            prop_assert_eq!(topology.bindings_len(), expected.len());
            check_routes(&model, &topology, &mut set);
        }

        // A restart keeps what is durable, and that routes as before.
        let mut restarted = VhostTopology::new("/");
        model.bindings = std::mem::take(&mut model.bindings)
            .into_iter()
            .filter(|binding| model.is_durable(binding))
            .collect();
        model.exchanges.retain(|_, exchange| exchange.durable);
        model.queues.retain(|_, durable| *durable);
        for &queue in model.queues.keys() {
            restarted.add_queue(QUEUES[queue].as_bytes(), QueueKey(queue as u32), true);
        }
        let records: Vec<_> =
            stored.iter().map(|(key, value)| Record::decode(key, value).unwrap()).collect();
        for record in &records {
            if let Record::Exchange(exchange) = record {
                restarted.restore_exchange(exchange);
            }
        }
        for record in &records {
            if let Record::Binding(binding) = record {
                prop_assert!(restarted.restore_binding(binding));
            }
        }
        prop_assert_eq!(
            keys_of(restarted.bindings()),
            keys_of(model.bindings.iter().map(record))
        );
        check_routes(&model, &restarted, &mut set);
    }
}
