//! What is declared, told in slices: each costs the shard no more than [`SLICE`] looks.
//!
//! ```text
//!   cursor: exchanges of each virtual host ─▶ queues ─▶ bindings of each virtual host ─▶ end
//! ```
//! What is declared or deleted between two slices may be in the list or not; nothing else is in doubt.

use forebay_wire::TableBuf;

use crate::shard::Shard;
use crate::topology::{Destination, ExchangeKind, is_reserved};

/// Places looked at in one slice.
pub const SLICE: usize = 500;

/// Something declared. Names as the client sent them, which need not be UTF-8.
#[derive(Clone, Debug, PartialEq)]
pub enum Listed {
    /// An exchange that is not predeclared.
    Exchange {
        /// Virtual host.
        vhost: String,
        /// Name.
        name: Vec<u8>,
        /// Type.
        kind: ExchangeKind,
        /// Survives a restart.
        durable: bool,
        /// Goes with its last binding.
        auto_delete: bool,
        /// Takes messages from exchanges only.
        internal: bool,
        /// As declared.
        arguments: TableBuf,
    },
    /// A queue that is not a connection's own.
    Queue {
        /// Virtual host.
        vhost: String,
        /// Name.
        name: Vec<u8>,
        /// Survives a restart.
        durable: bool,
        /// Goes with its last consumer.
        auto_delete: bool,
        /// As declared.
        arguments: TableBuf,
    },
    /// A binding, not of a connection's own queue.
    Binding {
        /// Virtual host.
        vhost: String,
        /// Exchange that messages come from.
        source: Vec<u8>,
        /// Where they go.
        destination: Vec<u8>,
        /// To an exchange, not to a queue.
        to_exchange: bool,
        /// Key or pattern.
        routing_key: Vec<u8>,
        /// Sorted by name.
        arguments: TableBuf,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Exchanges { vhost: usize },
    Queues,
    Bindings { vhost: usize },
    End,
}

/// How far a list has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCursor {
    part: Part,
    place: usize,
}

impl ListCursor {
    /// Before the first.
    pub fn start() -> ListCursor {
        ListCursor { part: Part::Exchanges { vhost: 0 }, place: 0 }
    }

    /// Whether all was told.
    pub fn is_at_end(&self) -> bool {
        self.part == Part::End
    }
}

impl Shard {
    /// The next slice of what is declared, and where the one after it begins.
    pub fn list(&self, mut cursor: ListCursor) -> (Vec<Listed>, ListCursor) {
        let mut listed = Vec::new();
        for _ in 0..SLICE {
            let places = match cursor.part {
                Part::Exchanges { vhost } => {
                    self.vhosts.get(vhost).map_or(0, |vhost| vhost.topology.places().0)
                }
                Part::Queues => self.queues.capacity(),
                Part::Bindings { vhost } => {
                    self.vhosts.get(vhost).map_or(0, |vhost| vhost.topology.places().1)
                }
                Part::End => break,
            };
            if cursor.place < places {
                listed.extend(self.listed_at(cursor));
                cursor.place += 1;
            } else {
                cursor = ListCursor { part: self.part_after(cursor.part), place: 0 };
            }
        }
        (listed, cursor)
    }

    fn part_after(&self, part: Part) -> Part {
        let vhosts = self.vhosts.len();
        match part {
            Part::Exchanges { vhost } if vhost + 1 < vhosts => Part::Exchanges { vhost: vhost + 1 },
            Part::Exchanges { .. } => Part::Queues,
            Part::Queues => Part::Bindings { vhost: 0 },
            Part::Bindings { vhost } if vhost + 1 < vhosts => Part::Bindings { vhost: vhost + 1 },
            Part::Bindings { .. } | Part::End => Part::End,
        }
    }

    fn listed_at(&self, cursor: ListCursor) -> Option<Listed> {
        match cursor.part {
            Part::Exchanges { vhost } => {
                let vhost = self.vhosts.get(vhost)?;
                let exchange = vhost.topology.exchange_in(cursor.place)?;
                let predeclared = exchange.name().is_empty() || is_reserved(exchange.name());
                (!predeclared).then(|| Listed::Exchange {
                    vhost: vhost.name.clone(),
                    name: exchange.name().to_vec(),
                    kind: exchange.kind(),
                    durable: exchange.durable(),
                    auto_delete: exchange.auto_delete(),
                    internal: exchange.internal(),
                    arguments: TableBuf::from(exchange.arguments()),
                })
            }
            Part::Queues => {
                let queue = self.queues.get(cursor.place)?;
                let is_listed = queue.owner.is_none() && queue.level_of.is_none();
                is_listed.then(|| Listed::Queue {
                    vhost: self.vhosts[queue.vhost as usize].name.clone(),
                    name: queue.name.to_vec(),
                    durable: queue.stored,
                    auto_delete: queue.auto_delete,
                    arguments: queue.arguments.clone(),
                })
            }
            Part::Bindings { vhost } => {
                let vhost = self.vhosts.get(vhost)?;
                let binding = vhost.topology.binding_in(cursor.place)?;
                let source = vhost.topology.exchange_at(binding.source)?;
                let (destination, to_exchange) = match binding.destination {
                    Destination::Queue(key) => {
                        let queue = self.queues.get(key.0 as usize)?;
                        if queue.owner.is_some() {
                            return None;
                        }
                        (queue.name.to_vec(), false)
                    }
                    Destination::Exchange(key) => {
                        (vhost.topology.exchange_at(key)?.name().to_vec(), true)
                    }
                };
                Some(Listed::Binding {
                    vhost: vhost.name.clone(),
                    source: source.name().to_vec(),
                    destination,
                    to_exchange,
                    routing_key: binding.key.to_vec(),
                    arguments: binding.arguments.clone(),
                })
            }
            Part::End => None,
        }
    }
}
