//! Exchanges and bindings as a reference: slow, short, and plainly right.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{ALTERNATE, DEFAULT, DIRECT, FANOUT, Name, TOPIC};

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Queue(Name),
    Exchange(Name),
}

#[derive(Clone, Debug)]
struct Exchange {
    kind: Name,
    alternate: Option<Name>,
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

    pub(crate) fn declare_exchange(&mut self, name: Name, kind: Name, alternate: Option<Name>) {
        self.exchanges.entry(name).or_insert(Exchange { kind, alternate });
    }

    pub(crate) fn delete_exchange(&mut self, name: Name) {
        self.exchanges.remove(name);
        self.bindings
            .retain(|(source, _, target)| *source != name && *target != Target::Exchange(name));
    }

    pub(crate) fn delete_queue(&mut self, name: Name) {
        self.bindings.retain(|(_, _, target)| *target != Target::Queue(name));
    }

    pub(crate) fn bind(&mut self, source: Name, key: Name, target: Target) {
        self.bindings.insert((source, key, target));
    }

    pub(crate) fn unbind(&mut self, source: Name, key: Name, target: Target) {
        self.bindings.remove(&(source, key, target));
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
    pub(crate) fn declare_base(&mut self) {
        self.declare_exchange(DIRECT, "direct", Some(ALTERNATE));
        self.declare_exchange(TOPIC, "topic", None);
        self.declare_exchange(FANOUT, "fanout", None);
        self.declare_exchange(ALTERNATE, "fanout", None);
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

    #[test]
    fn a_topic_matches_words_and_the_alternate_takes_what_nothing_matched() {
        let mut topology = Topology::default();
        topology.declare_base();
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
