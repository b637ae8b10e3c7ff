//! The topic exchange: binding keys are patterns over words between dots; `*` stands for one word,
//! `#` for any number of words, none included.
//!
//! ```text
//!   a.*.c    a.#    #.c               a trie of words; `*` and `#` are edges of their own
//!
//!   (root)─a─┬─*──c●                  reading "a.b.c":
//!         │  └─#●                       start   {root, root#}
//!         └─#──c●                       a       {a, a#, root#}
//!                                       b       {a*, a#, root#}
//!   ● = destinations here               c       {a*c●, a#●, root#, root#c●}
//! ```
//!
//! All nodes that the words read so far can have led to are held at once, each at most once. A node
//! behind a `#` stays, and entering a node also enters the node behind its `#` (no words at all).
//! So the work is at most words × nodes, for patterns like `#.#.#` too, where trying one way after
//! the other takes exponentially many steps.

use super::Map;
use super::destination::{Destination, DestinationSet};

type NodeKey = u32;

const ROOT: NodeKey = 0;
const NONE: NodeKey = NodeKey::MAX;

/// Patterns and their destinations.
#[derive(Clone, Debug)]
pub(crate) struct TopicTrie {
    nodes: Vec<Node>,
    free: Vec<NodeKey>,
}

#[derive(Clone, Debug)]
struct Node {
    words: Map<Box<[u8]>, NodeKey>,
    star: NodeKey,
    hash: NodeKey,
    /// Reached by `#`: further words lead here again.
    stays: bool,
    here: DestinationSet,
}

/// Room for one match to work in, reused from match to match.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicScratch {
    /// Per node, the last step that entered it.
    marks: Vec<u64>,
    step: u64,
    current: Vec<NodeKey>,
    next: Vec<NodeKey>,
}

impl Node {
    fn new(stays: bool) -> Self {
        Node {
            words: Map::default(),
            star: NONE,
            hash: NONE,
            stays,
            here: DestinationSet::default(),
        }
    }

    fn child(&self, word: &[u8]) -> NodeKey {
        match word {
            b"*" => self.star,
            b"#" => self.hash,
            _ => self.words.get(word).copied().unwrap_or(NONE),
        }
    }

    fn is_dead(&self) -> bool {
        self.here.is_empty() && self.words.is_empty() && self.star == NONE && self.hash == NONE
    }
}

/// The words of a key. The empty key has none; `a.` has two, the second empty.
fn words(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let has_words = !key.is_empty();
    key.split(|&byte| byte == b'.').filter(move |_| has_words)
}

impl Default for TopicTrie {
    fn default() -> Self {
        TopicTrie { nodes: vec![Node::new(false)], free: Vec::new() }
    }
}

impl TopicTrie {
    pub(crate) fn add(&mut self, pattern: &[u8], destination: Destination) {
        let mut at = ROOT;
        for word in words(pattern) {
            at = match self.nodes[at as usize].child(word) {
                NONE => self.grow(at, word),
                child => child,
            };
        }
        self.nodes[at as usize].here.add(destination);
    }

    fn grow(&mut self, parent: NodeKey, word: &[u8]) -> NodeKey {
        let node = Node::new(word == b"#");
        let key = match self.free.pop() {
            Some(key) => {
                self.nodes[key as usize] = node;
                key
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as NodeKey - 1
            }
        };
        let parent = &mut self.nodes[parent as usize];
        match word {
            b"*" => parent.star = key,
            b"#" => parent.hash = key,
            _ => {
                parent.words.insert(word.into(), key);
            }
        }
        key
    }

    pub(crate) fn remove(&mut self, pattern: &[u8], destination: Destination) {
        let mut path = Vec::new();
        let mut at = ROOT;
        for word in words(pattern) {
            path.push((at, word));
            at = self.nodes[at as usize].child(word);
            if at == NONE {
                return;
            }
        }
        self.nodes[at as usize].here.remove(destination);
        while self.nodes[at as usize].is_dead()
            && let Some((parent, word)) = path.pop()
        {
            // What the node held on the heap goes now, not when its place is used again.
            self.nodes[at as usize] = Node::new(false);
            self.free.push(at);
            let node = &mut self.nodes[parent as usize];
            match word {
                b"*" => node.star = NONE,
                b"#" => node.hash = NONE,
                _ => {
                    node.words.remove(word);
                }
            }
            at = parent;
        }
    }

    /// Calls `found` for each destination of each matching pattern: once per pattern, so a
    /// destination may come more than once.
    pub(crate) fn route(
        &self,
        key: &[u8],
        scratch: &mut TopicScratch,
        mut found: impl FnMut(Destination),
    ) {
        scratch.marks.resize(scratch.marks.len().max(self.nodes.len()), 0);
        let TopicScratch { marks, step, current, next } = scratch;
        current.clear();
        *step += 1;
        self.enter(ROOT, *step, marks, current);
        for word in words(key) {
            *step += 1;
            next.clear();
            for &at in current.iter() {
                let node = &self.nodes[at as usize];
                if node.stays {
                    self.enter(at, *step, marks, next);
                }
                if node.star != NONE {
                    self.enter(node.star, *step, marks, next);
                }
                if let Some(&child) = node.words.get(word) {
                    self.enter(child, *step, marks, next);
                }
            }
            std::mem::swap(current, next);
            if current.is_empty() {
                return;
            }
        }
        for &at in current.iter() {
            self.nodes[at as usize].here.iter().for_each(&mut found);
        }
    }

    fn enter(&self, mut at: NodeKey, step: u64, marks: &mut [u64], into: &mut Vec<NodeKey>) {
        while at != NONE && marks[at as usize] != step {
            marks[at as usize] = step;
            into.push(at);
            at = self.nodes[at as usize].hash;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::topology::destination::QueueKey;

    fn queue(key: u32) -> Destination {
        Destination::Queue(QueueKey(key))
    }

    fn matching(trie: &TopicTrie, key: &[u8]) -> BTreeSet<Destination> {
        let mut found = BTreeSet::new();
        trie.route(key, &mut TopicScratch::default(), |destination| {
            found.insert(destination);
        });
        found
    }

    fn matches(pattern: &str, key: &str) -> bool {
        let mut trie = TopicTrie::default();
        trie.add(pattern.as_bytes(), queue(0));
        !matching(&trie, key.as_bytes()).is_empty()
    }

    #[test]
    fn a_star_is_exactly_one_word() {
        assert!(matches("a.*.c", "a.b.c"));
        assert!(!matches("a.*.c", "a.c"));
        assert!(!matches("a.*.c", "a.b.b.c"));
        assert!(!matches("*", ""));
        assert!(matches("*.*", "."), "empty words are words");
    }

    #[test]
    fn a_hash_is_any_number_of_words() {
        for key in ["", "a", "a.b", "a.b.c.d.e", "."] {
            assert!(matches("#", key), "{key}");
        }
        assert!(matches("a.#", "a"));
        assert!(!matches("a.#", "b.a"));
        assert!(matches("#.c", "c"));
        assert!(matches("#.c", "a.b.c"));
        assert!(matches("#.b.#", "a.b.c"));
        assert!(!matches("#.*", ""));
        assert!(matches("*.#", "a"));
    }

    #[test]
    fn the_empty_pattern_takes_the_empty_key_only() {
        assert!(matches("", ""));
        assert!(!matches("", "a"));
        assert!(!matches("a", ""));
        assert!(matches("a.", "a."));
        assert!(!matches("a", "a."));
    }

    #[test]
    fn wildcards_inside_words_are_plain_characters() {
        assert!(matches("a*", "a*"));
        assert!(!matches("a*", "ab"));
        assert!(!matches("#a", "b.a"));
    }

    #[test]
    fn patterns_made_to_explode_do_not() {
        let mut trie = TopicTrie::default();
        let pattern = vec!["#"; 100].join(".");
        trie.add(pattern.as_bytes(), queue(1));
        trie.add(format!("{pattern}.z").as_bytes(), queue(2));
        trie.add("#.*.#.*.#.*.#.*.#.*.#.z".as_bytes(), queue(3));
        let key = vec!["a"; 128].join(".");
        assert_eq!(matching(&trie, &key.as_bytes()[..255]), BTreeSet::from([queue(1)]));
    }

    #[test]
    fn a_node_counts_its_bindings_and_goes_with_the_last() {
        let mut trie = TopicTrie::default();
        trie.add(b"a.#.b", queue(1));
        trie.add(b"a.#.b", queue(1));
        trie.remove(b"a.#.b", queue(1));
        assert_eq!(matching(&trie, b"a.b"), BTreeSet::from([queue(1)]));
        trie.remove(b"a.#.b", queue(1));
        trie.remove(b"a.#.b", queue(1));
        assert!(matching(&trie, b"a.b").is_empty());
        assert_eq!(trie.free.len(), trie.nodes.len() - 1, "only the root is left");
        trie.add(b"x.y.z", queue(2));
        assert_eq!(trie.nodes.len(), 4, "freed places are used again");
    }

    fn naive(pattern: &[&[u8]], key: &[&[u8]]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&b"#", rest)), _) => {
                naive(rest, key) || key.split_first().is_some_and(|(_, key)| naive(pattern, key))
            }
            (Some((&word, rest)), Some((&first, key))) => {
                (word == b"*" || word == first) && naive(rest, key)
            }
            _ => false,
        }
    }

    fn dotted(choices: &'static [&'static str]) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(choices), 0..6).prop_map(|list| list.join("."))
    }

    proptest! {
        #[test]
        fn the_trie_agrees_with_a_naive_matcher(
            patterns in prop::collection::vec(dotted(&["a", "b", "*", "#", "", "a*"]), 1..12),
            removed in prop::collection::vec(any::<bool>(), 12),
            keys in prop::collection::vec(dotted(&["a", "b", "c", "", "*", "#"]), 1..6),
        ) {
            let mut trie = TopicTrie::default();
            for (index, pattern) in patterns.iter().enumerate() {
                trie.add(pattern.as_bytes(), queue(index as u32));
            }
            for (index, pattern) in patterns.iter().enumerate() {
                if removed[index] {
                    trie.remove(pattern.as_bytes(), queue(index as u32));
                }
            }
            let mut scratch = TopicScratch::default();
            for key in &keys {
                let key: Vec<&[u8]> = words(key.as_bytes()).collect();
                let expected: BTreeSet<_> = patterns
                    .iter()
                    .enumerate()
                    .filter(|(index, pattern)| {
                        let pattern: Vec<&[u8]> = words(pattern.as_bytes()).collect();
                        !removed[*index] && naive(&pattern, &key)
                    })
                    .map(|(index, _)| queue(index as u32))
                    .collect();
                let mut found = Vec::new();
                trie.route(&key.join(&b'.'), &mut scratch, |destination| found.push(destination));
                let distinct: BTreeSet<_> = found.iter().copied().collect();
                prop_assert_eq!(found.len(), distinct.len(), "each pattern once");
                prop_assert_eq!(distinct, expected);
            }
        }
    }
}
