//! Exchanges and bindings as a reference: slow, short, and plainly right.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::Exchange;
use crate::names::{BASE_EXCHANGES, DEFAULT, FANOUT, Name, TOPIC};
use crate::swarm::Swarm;

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Queue(Name),
    Exchange(Name),
}

/// The exchanges of a world and what is bound to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topology {
    exchanges: BTreeMap<Name, Exchange>,
    bindings: BTreeSet<(Name, Name, Target)>,
}

impl Topology {
    pub(crate) fn has_exchange(&self, name: Name) -> bool {
        name == DEFAULT || self.exchanges.contains_key(name)
    }

    /// Whether somebody may publish to it.
    pub(crate) fn is_internal(&self, name: Name) -> bool {
        self.exchanges.get(name).is_some_and(|exchange| exchange.internal)
    }

    /// Whether something is bound to it.
    pub(crate) fn leads_somewhere(&self, name: Name) -> bool {
        self.bindings.iter().any(|(source, ..)| *source == name)
    }

    pub(crate) fn declare_exchange(&mut self, name: Name, made: Exchange) {
        self.exchanges.entry(name).or_insert(made);
    }

    pub(crate) fn delete_exchange(&mut self, name: Name) {
        self.exchanges.remove(name);
        self.bindings.retain(|(source, ..)| *source != name);
        self.delete_target(Target::Exchange(name));
    }

    pub(crate) fn delete_queue(&mut self, name: Name) {
        self.delete_target(Target::Queue(name));
    }

    fn delete_target(&mut self, gone: Target) {
        let to_it = |(_, _, target): &&(Name, Name, Target)| *target == gone;
        let bindings: Vec<_> = self.bindings.iter().filter(to_it).copied().collect();
        for (source, key, target) in bindings {
            self.unbind(source, key, target);
        }
    }

    pub(crate) fn bind(&mut self, source: Name, key: Name, target: Target) {
        self.bindings.insert((source, key, target));
    }

    pub(crate) fn unbind(&mut self, source: Name, key: Name, target: Target) {
        let was_there = self.bindings.remove(&(source, key, target));
        let goes = self.exchanges.get(source).is_some_and(|exchange| exchange.auto_delete);
        if was_there && goes && !self.leads_somewhere(source) {
            self.delete_exchange(source);
        }
    }

    /// The queues that a message with these keys goes to; each once. `queue_exists` tells of the default exchange's.
    pub(crate) fn route(
        &self,
        exchange: Name,
        keys: impl Iterator<Item = Name> + Clone,
        queue_exists: impl Fn(Name) -> bool,
    ) -> BTreeSet<Name> {
        let mut queues = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut todo = vec![exchange];
        while let Some(name) = todo.pop() {
            if !seen.insert(name) {
                continue;
            }
            if name == DEFAULT {
                queues.extend(keys.clone().filter(|key| queue_exists(key)));
                continue;
            }
            let Some(exchange) = self.exchanges.get(name) else { continue };
            let mut matched = false;
            for (_, pattern, target) in self.bindings.iter().filter(|(from, ..)| *from == name) {
                if keys.clone().any(|key| matches(exchange.kind, pattern, key)) {
                    matched = true;
                    match target {
                        Target::Queue(queue) => drop(queues.insert(*queue)),
                        Target::Exchange(exchange) => todo.push(exchange),
                    }
                }
            }
            if !matched && let Some(alternate) = exchange.alternate {
                todo.push(alternate);
            }
        }
        queues
    }

    /// The durable exchanges that every world has, and the bindings between them.
    pub(crate) fn declare_base(&mut self, swarm: &Swarm) {
        for exchange in BASE_EXCHANGES {
            self.declare_exchange(exchange, swarm.exchange(exchange));
        }
        self.bind(FANOUT, "", Target::Exchange(TOPIC));
    }
}

fn matches(kind: Name, pattern: &str, key: &str) -> bool {
    match kind {
        "fanout" => true,
        "topic" => topic(&split(pattern), &split(key)),
        _ => pattern == key,
    }
}

fn split(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('.').collect() }
}

/// `*` is one word, `#` any number of them (0-9-1 section 3.1.3.3).
fn topic(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), _) => {
            topic(rest, key) || key.split_first().is_some_and(|(_, key)| topic(pattern, key))
        }
        (Some((&"*", rest)), Some((_, key))) => topic(rest, key),
        (Some((word, rest)), Some((first, key))) => word == first && topic(rest, key),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ALTERNATE, DIRECT, PASSING_EXCHANGES};

    #[test]
    fn an_exchange_goes_with_its_last_binding_and_takes_others_along() {
        let [last, first] = PASSING_EXCHANGES;
        let swarm = Swarm { auto_delete: true, ..Swarm::new(0) };
        let mut topology = Topology::default();
        for exchange in [first, last] {
            topology.declare_exchange(exchange, swarm.exchange(exchange));
        }
        topology.bind(first, "#", Target::Exchange(last));
        topology.bind(last, "", Target::Queue("d0"));
        topology.unbind(last, "", Target::Queue("d1"));
        assert!(topology.has_exchange(last));
        topology.delete_queue("d0");
        assert!(!topology.has_exchange(last) && !topology.has_exchange(first));
    }

    #[test]
    fn a_topic_matches_words_and_the_alternate_takes_what_nothing_matched() {
        let mut topology = Topology::default();
        topology.declare_base(&Swarm::new(0));
        topology.bind(TOPIC, "a.*", Target::Queue("d0"));
        topology.bind(TOPIC, "#.b", Target::Queue("d1"));
        topology.bind(ALTERNATE, "", Target::Queue("d2"));
        let queues = |exchange, key| -> Vec<Name> {
            topology.route(exchange, [key].into_iter(), |_| true).into_iter().collect()
        };
        assert_eq!(queues(TOPIC, "a.b"), ["d0", "d1"]);
        assert_eq!(queues(TOPIC, "a"), Vec::<Name>::new());
        assert_eq!(queues(FANOUT, "x.b"), ["d1"]);
        assert_eq!(queues(DIRECT, "a.b"), ["d2"]);
        assert_eq!(queues(DEFAULT, "d3"), ["d3"]);
    }
}
