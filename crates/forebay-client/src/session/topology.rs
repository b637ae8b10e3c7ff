//! Exchanges, queues and bindings that a program needs, as data: declared once, and again after each
//! reconnect, in the order in which they were first declared.

use forebay_wire::{ShortStr, Table, TableBuf, Value, WireMethod, exchange, queue};

use crate::machine::{ChannelError, Machine};

/// A queue to declare. Durable, shared and kept unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    pub(crate) name: String,
    durable: bool,
    auto_delete: bool,
    arguments: TableBuf,
}

impl Queue {
    /// A durable queue: it survives a restart of the broker, and so do its persistent messages.
    pub fn durable(name: impl Into<String>) -> Queue {
        Queue { name: name.into(), durable: true, auto_delete: false, arguments: TableBuf::new() }
    }

    /// A queue that is gone when the broker stops.
    pub fn transient(name: impl Into<String>) -> Queue {
        Queue { durable: false, ..Queue::durable(name) }
    }

    /// A durable queue with replicas on several nodes of a RabbitMQ cluster (`x-queue-type: quorum`).
    pub fn quorum(name: impl Into<String>) -> Queue {
        Queue::durable(name).argument("x-queue-type", Value::LongStr(b"quorum"))
    }

    /// Gone with its last consumer. Recovery declares it again, empty.
    #[must_use]
    pub fn auto_delete(mut self) -> Queue {
        self.auto_delete = true;
        self
    }

    /// One more argument, for instance `x-max-length`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: Value<'_>) -> Queue {
        self.arguments.push(name.as_bytes(), value);
        self
    }

    /// Whether a consumer that consumes anew loses something: its turn, or its place in a stream.
    fn is_consumed_once(&self) -> bool {
        let arguments = self.arguments.as_table();
        arguments.get("x-single-active-consumer") == Some(Value::Bool(true)) || self.is_stream()
    }

    fn is_stream(&self) -> bool {
        self.arguments.as_table().get("x-queue-type") == Some(Value::LongStr(b"stream"))
    }

    /// Whether persistent messages that a consumer held when its connection was lost are there afterwards, for the next.
    fn gives_again(&self) -> bool {
        let arguments = self.arguments.as_table();
        let loses = LOSING.iter().any(|name| arguments.get(name).is_some());
        self.durable && !self.auto_delete && !self.is_stream() && !loses
    }
}

/// What makes a queue drop messages, or go away, by itself.
const LOSING: [&str; 4] = ["x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires"];

/// An exchange to declare. Durable and kept unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    name: String,
    kind: String,
    durable: bool,
    auto_delete: bool,
    arguments: TableBuf,
}

impl Exchange {
    /// A durable exchange of `kind`: `direct`, `fanout`, `topic`, `headers`, or a plug-in's.
    pub fn durable(name: impl Into<String>, kind: impl Into<String>) -> Exchange {
        Exchange {
            name: name.into(),
            kind: kind.into(),
            durable: true,
            auto_delete: false,
            arguments: TableBuf::new(),
        }
    }

    /// An exchange that is gone when the broker stops.
    pub fn transient(name: impl Into<String>, kind: impl Into<String>) -> Exchange {
        Exchange { durable: false, ..Exchange::durable(name, kind) }
    }

    /// Gone with its last binding.
    #[must_use]
    pub fn auto_delete(mut self) -> Exchange {
        self.auto_delete = true;
        self
    }

    /// One more argument, for instance `alternate-exchange`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: Value<'_>) -> Exchange {
        self.arguments.push(name.as_bytes(), value);
        self
    }
}

/// A binding to make: what comes to `exchange` with a matching key goes to `queue`, too.
#[derive(Debug, Clone, PartialEq)]
pub struct Binding {
    queue: String,
    exchange: String,
    routing_key: String,
    arguments: TableBuf,
}

impl Binding {
    /// Binds `queue` to `exchange` with a routing key (or a pattern, for topic exchanges).
    pub fn new(
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Binding {
        Binding {
            queue: queue.into(),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            arguments: TableBuf::new(),
        }
    }

    /// One more argument, for headers exchanges.
    #[must_use]
    pub fn argument(mut self, name: &str, value: Value<'_>) -> Binding {
        self.arguments.push(name.as_bytes(), value);
        self
    }
}

/// One thing to declare.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Declaration {
    Queue(Queue),
    Exchange(Exchange),
    Binding(Binding),
}

impl Declaration {
    /// For people.
    pub(crate) fn name(&self) -> String {
        match self {
            Declaration::Queue(queue) => format!("queue '{}'", queue.name),
            Declaration::Exchange(exchange) => format!("exchange '{}'", exchange.name),
            Declaration::Binding(binding) => {
                format!("binding of queue '{}' to exchange '{}'", binding.queue, binding.exchange)
            }
        }
    }

    /// Class and method of what asks for it.
    fn method(&self) -> (u16, u16) {
        fn ids<M: WireMethod>() -> (u16, u16) {
            (M::CLASS_ID, M::METHOD_ID)
        }
        match self {
            Declaration::Queue(_) => ids::<queue::Declare<'_>>(),
            Declaration::Exchange(_) => ids::<exchange::Declare<'_>>(),
            Declaration::Binding(_) => ids::<queue::Bind<'_>>(),
        }
    }

    /// Whether `new` is what the broker has in its place afterwards.
    fn is_replaced_by(&self, new: &Declaration) -> bool {
        match (self, new) {
            (Declaration::Queue(known), Declaration::Queue(new)) => known.name == new.name,
            (Declaration::Exchange(known), Declaration::Exchange(new)) => known.name == new.name,
            _ => self == new,
        }
    }

    /// The first name that AMQP cannot say.
    pub(crate) fn too_long(&self) -> Option<usize> {
        let names: [&String; 3] = match self {
            Declaration::Queue(queue) => [&queue.name; 3],
            Declaration::Exchange(exchange) => [&exchange.name, &exchange.kind, &exchange.kind],
            Declaration::Binding(b) => [&b.queue, &b.exchange, &b.routing_key],
        };
        names.into_iter().map(String::len).find(|&bytes| bytes > ShortStr::MAX_BYTES)
    }

    /// Asks the broker for it. Exactly one answer, or the channel's end, follows.
    pub(crate) fn send(&self, machine: &mut Machine, channel: u16) -> Result<(), ChannelError> {
        match self {
            Declaration::Queue(declared) => machine.send(
                channel,
                &queue::Declare {
                    queue: ShortStr::truncated(&declared.name),
                    durable: declared.durable,
                    auto_delete: declared.auto_delete,
                    arguments: declared.arguments.as_table(),
                    ..Default::default()
                },
            ),
            Declaration::Exchange(declared) => machine.send(
                channel,
                &exchange::Declare {
                    exchange: ShortStr::truncated(&declared.name),
                    type_name: ShortStr::truncated(&declared.kind),
                    durable: declared.durable,
                    auto_delete: declared.auto_delete,
                    arguments: declared.arguments.as_table(),
                    ..Default::default()
                },
            ),
            Declaration::Binding(binding) => machine.send(
                channel,
                &queue::Bind {
                    queue: ShortStr::truncated(&binding.queue),
                    exchange: ShortStr::truncated(&binding.exchange),
                    routing_key: ShortStr::truncated(&binding.routing_key),
                    arguments: binding.arguments.as_table(),
                    ..Default::default()
                },
            ),
        }
    }
}

/// What a connection declares, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Topology {
    pub(crate) declarations: Vec<Declaration>,
}

impl Topology {
    /// Nothing yet.
    pub fn new() -> Topology {
        Topology::default()
    }

    /// Whether it declares this queue, and a consumer of it should never be replaced.
    pub(crate) fn is_consumed_once(&self, name: &str) -> bool {
        self.declarations.iter().any(|declaration| match declaration {
            Declaration::Queue(queue) => queue.name == name && queue.is_consumed_once(),
            _ => false,
        })
    }

    /// Whether this queue is known to still have what a consumer held when its connection was lost. What one is that is not declared
    /// here nobody knows.
    pub(crate) fn gives_again(&self, name: &str) -> bool {
        let mut known = self.declarations.iter().filter_map(|declaration| match declaration {
            Declaration::Queue(queue) if queue.name == name => Some(queue.gives_again()),
            _ => None,
        });
        known.next().unwrap_or(false)
    }

    /// One more queue.
    #[must_use]
    pub fn queue(mut self, queue: Queue) -> Topology {
        self.declarations.push(Declaration::Queue(queue));
        self
    }

    /// One more exchange.
    #[must_use]
    pub fn exchange(mut self, exchange: Exchange) -> Topology {
        self.declarations.push(Declaration::Exchange(exchange));
        self
    }

    /// One more binding; its queue and exchange come before it.
    #[must_use]
    pub fn binding(mut self, binding: Binding) -> Topology {
        self.declarations.push(Declaration::Binding(binding));
        self
    }

    /// Remembers what `other` has; what has a name that is known takes its place.
    pub(crate) fn remember(&mut self, other: &Topology) {
        for new in &other.declarations {
            match self.declarations.iter_mut().find(|known| known.is_replaced_by(new)) {
                Some(known) => *known = new.clone(),
                None => self.declarations.push(new.clone()),
            }
        }
    }

    /// All but these.
    pub(crate) fn leave_out(&mut self, others: &[Declaration]) {
        self.declarations.retain(|declaration| !others.contains(declaration));
    }

    /// The queue was deleted, and its bindings with it.
    pub(crate) fn forget_queue(&mut self, name: &str) {
        self.declarations.retain(|declaration| match declaration {
            Declaration::Queue(queue) => queue.name != name,
            Declaration::Exchange(_) => true,
            Declaration::Binding(binding) => binding.queue != name,
        });
    }

    /// The exchange was deleted, and its bindings with it.
    pub(crate) fn forget_exchange(&mut self, name: &str) {
        self.declarations.retain(|declaration| match declaration {
            Declaration::Queue(_) => true,
            Declaration::Exchange(exchange) => exchange.name != name,
            Declaration::Binding(binding) => binding.exchange != name,
        });
    }

    /// The queue was unbound.
    pub(crate) fn forget_binding(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: Table<'_>,
    ) {
        self.declarations.retain(|declaration| match declaration {
            Declaration::Binding(it) => {
                (&*it.queue, &*it.exchange, &*it.routing_key) != (queue, exchange, routing_key)
                    || it.arguments.as_table().raw() != arguments.raw()
            }
            _ => true,
        });
    }
}

/// Declaring again after a reconnect: all is asked at once on one channel. The broker answers in order, so
/// the answers count which one it refused; what comes after it is asked again on a new channel.
#[derive(Debug)]
pub(crate) struct Redeclaring {
    topology: Topology,
    channel: Option<u16>,
    /// Answered, or refused.
    done: usize,
}

impl Redeclaring {
    /// `None` if there is nothing to declare.
    pub(crate) fn begin(topology: Topology, machine: &mut Machine) -> Option<Redeclaring> {
        if topology.declarations.is_empty() {
            return None;
        }
        let mut this = Redeclaring { topology, channel: None, done: 0 };
        this.ask(machine);
        Some(this)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.channel.is_none()
    }

    pub(crate) fn channel(&self) -> Option<u16> {
        self.channel
    }

    /// An answer came on its channel; closes it after the last.
    pub(crate) fn answered(&mut self, machine: &mut Machine) {
        self.done += 1;
        if self.done >= self.topology.declarations.len()
            && let Some(channel) = self.channel.take()
        {
            let _ = machine.close_channel(channel);
        }
    }

    /// The broker refused one and closed the channel; which one, for people.
    pub(crate) fn refused(&mut self, machine: &mut Machine) -> String {
        let name = self.topology.declarations.get(self.done).map(Declaration::name);
        self.channel = None;
        self.done += 1;
        self.ask(machine);
        name.unwrap_or_default()
    }

    /// The broker closes the whole connection for a method of ours, by class and method: what it had to answer next, if that
    /// is it.
    pub(crate) fn cost_connection(&self, method: (u16, u16)) -> Option<&Declaration> {
        self.topology.declarations.get(self.done).filter(|next| next.method() == method)
    }

    fn ask(&mut self, machine: &mut Machine) {
        let rest = self.topology.declarations.get(self.done..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let Ok(channel) = machine.open_channel() else { return };
        for declaration in rest {
            let _ = declaration.send(machine, channel);
        }
        self.channel = Some(channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_queue_that_lasts_still_has_what_a_lost_connection_brought() {
        let gives = |queue: Queue| Topology::new().queue(queue).gives_again("q");
        assert!(gives(Queue::durable("q")) && gives(Queue::quorum("q")));
        let single = Queue::durable("q").argument("x-single-active-consumer", Value::Bool(true));
        assert!(gives(single));
        assert!(!gives(Queue::transient("q")) && !gives(Queue::durable("q").auto_delete()));
        for losing in LOSING {
            assert!(!gives(Queue::durable("q").argument(losing, Value::I32(9))), "{losing}");
        }
        let stream = Queue::durable("q").argument("x-queue-type", Value::LongStr(b"stream"));
        assert!(!gives(stream));
        assert!(!gives(Queue::durable("another")), "nobody said what it is");
    }
}
