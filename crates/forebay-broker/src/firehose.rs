//! The firehose (RabbitMQ's tracer): what is published and delivered in a virtual host, told again as
//! messages to its exchange `amq.rabbitmq.trace`.
//!
//! ```text
//!   publish ──► queues                               delivery or get ──► consumer
//!      └─► amq.rabbitmq.trace, key publish.EXCHANGE        └─► amq.rabbitmq.trace, key deliver.QUEUE
//!
//!   body: the message's   headers: exchange_name, routing_keys, properties, node, vhost,
//!                                  connection, channel, user; routed_queues or redelivered
//! ```
//! What comes out of `amq.rabbitmq.trace` is not traced again. Traces are transient and at most once:
//! at the end of the memory budget they are dropped and counted, because deliveries, which make them,
//! are not held back there.

use forebay_wire::{ArrayBuf, Properties, RawProperties, TableBuf, Value};

use crate::input::ConnectionId;
use crate::message::Message;
use crate::shard::Shard;
use crate::topology::{QueueKey, TRACE_EXCHANGE, extra_routing_keys};

/// The longest routing key (a short string); a queue's or an exchange's name may be as long by itself.
const KEY_MAX_BYTES: usize = 255;

/// Each list in a trace's headers ends at this part of a frame: a header is one frame, whatever the
/// number of queues.
const LIST_PART: usize = 4;

/// Bytes of a header frame around its properties, amply.
const FRAME_ROOM_BYTES: usize = 64;

/// What is told of a message beside itself.
struct Trace {
    vhost: u32,
    /// `publish.EXCHANGE` or `deliver.QUEUE`.
    key: Vec<u8>,
    /// The headers that only this kind of trace has.
    more: TableBuf,
    connection: ConnectionId,
    channel: u16,
}

impl Shard {
    /// A message was published and routed. `as_published` still has its `BCC`, `message` has not.
    pub(crate) fn trace_publish(
        &mut self,
        id: ConnectionId,
        number: u16,
        as_published: &Message,
        message: &Message,
        queues: &[QueueKey],
    ) {
        let vhost = self.connection(id).map_or(0, |connection| connection.vhost);
        if !self.is_traced(vhost, message) {
            return;
        }
        let names = queues.iter().map(|key| &*self.queues[key.0 as usize].name);
        let routed = self.bounded_list(names);
        let more = TableBuf::new().with("routed_queues", Value::Array(routed.as_array()));
        let key = traced_key(b"publish.", message.exchange().as_bytes());
        let trace = Trace { vhost, key, more, connection: id, channel: number };
        self.trace(&trace, as_published, message);
    }

    /// A message was delivered, or given to `basic.get`.
    pub(crate) fn trace_delivery(
        &mut self,
        id: ConnectionId,
        number: u16,
        queue: QueueKey,
        message: &Message,
        redelivered: bool,
    ) {
        let Some(queue) = self.queues.get(queue.0 as usize) else { return };
        let vhost = queue.vhost;
        let key = traced_key(b"deliver.", &queue.name);
        if !self.is_traced(vhost, message) {
            return;
        }
        let more = TableBuf::new().with("redelivered", Value::I32(redelivered.into()));
        let trace = Trace { vhost, key, more, connection: id, channel: number };
        self.trace(&trace, message, message);
    }

    /// Whether anybody would see it: traced virtual host, not a trace itself, somebody bound.
    fn is_traced(&self, vhost: u32, message: &Message) -> bool {
        let vhost = &self.vhosts[vhost as usize];
        vhost.traced
            && message.exchange().as_bytes() != TRACE_EXCHANGE
            && vhost
                .topology
                .exchange(TRACE_EXCHANGE)
                .is_some_and(|exchange| exchange.bindings() > 0 || exchange.alternate().is_some())
    }

    fn trace(&mut self, trace: &Trace, as_published: &Message, message: &Message) {
        if self.memory_bytes >= self.budget_bytes() {
            self.counters.traces_dropped += 1;
            return;
        }
        let headers = self.trace_headers(trace, as_published, message, true);
        let mut raw = encoded(&headers);
        // The original's headers are nested two levels deeper here, and with the rest around them may
        // be larger than a frame: then they are left out.
        let too_large = raw.len() + FRAME_ROOM_BYTES > self.config.frame_max_bytes as usize;
        if too_large || RawProperties::validate(&raw).is_err() {
            raw = encoded(&self.trace_headers(trace, as_published, message, false));
        }
        let mut bytes = Message::start(TRACE_EXCHANGE, &trace.key, &raw, message.body().len());
        bytes.extend_from_slice(message.body());
        let told = self.shared(Message::from_bytes(bytes));
        let topology = &self.vhosts[trace.vhost as usize].topology;
        if let Some(exchange) = topology.exchange_key(TRACE_EXCHANGE) {
            let raw = RawProperties::trusted(told.raw_properties());
            topology.route(exchange, &trace.key, &[], raw, &mut self.route_set);
            let mut queues = self.route_set.queues().to_vec();
            // Nothing is handed out to make room, as that would be traced as well, and so on.
            let body_bytes = told.body().len() as u64;
            queues.retain(|key| !self.is_full(*key, body_bytes));
            let held_by = self.held_by;
            self.enqueue(told, false, &mut queues);
            // Nobody waits for a trace to be consumed.
            self.held_by = held_by;
        } else {
            self.release(told);
        }
    }

    fn trace_headers(
        &mut self,
        trace: &Trace,
        as_published: &Message,
        message: &Message,
        with_headers: bool,
    ) -> TableBuf {
        let published = RawProperties::trusted(as_published.raw_properties());
        let extra = extra_routing_keys(published.headers().unwrap_or_default());
        let routing_key = message.routing_key();
        let keys = std::iter::once(routing_key.as_bytes()).chain(extra.unwrap_or_default());
        let keys = self.bounded_list(keys);
        let properties = RawProperties::trusted(message.raw_properties()).parse();
        let properties = properties_table(&properties, with_headers);
        let (mut connection_name, mut user) = (String::new(), None);
        if let Some(connection) = self.connection(trace.connection) {
            connection_name =
                format!("{} -> {}", connection.peer.address, connection.peer.listener);
            user = connection.login.as_ref().map(|login| login.user.clone());
        }
        let mut headers = TableBuf::new()
            .with("exchange_name", Value::LongStr(message.exchange().as_bytes()))
            .with("routing_keys", Value::Array(keys.as_array()))
            .with("properties", Value::Table(properties.as_table()))
            .with("node", Value::LongStr(self.config.node_name.as_bytes()))
            .with("vhost", Value::LongStr(self.vhosts[trace.vhost as usize].name.as_bytes()))
            .with("connection", Value::LongStr(connection_name.as_bytes()))
            .with("channel", Value::I32(trace.channel.into()))
            .with("user", Value::LongStr(user.as_deref().unwrap_or_default().as_bytes()));
        for (name, value) in trace.more.as_table().iter() {
            headers.push(name, value);
        }
        headers
    }
}

impl Shard {
    /// As many of the names as fit.
    fn bounded_list<'n>(&self, names: impl Iterator<Item = &'n [u8]>) -> ArrayBuf {
        let mut room = self.config.frame_max_bytes as usize / LIST_PART;
        let mut list = ArrayBuf::new();
        for name in names {
            // A tag and a length go before each.
            let Some(left) = room.checked_sub(name.len() + 5) else { break };
            room = left;
            list.push(Value::LongStr(name));
        }
        list
    }
}

fn traced_key(kind: &[u8], name: &[u8]) -> Vec<u8> {
    let mut key = [kind, name].concat();
    key.truncate(KEY_MAX_BYTES);
    key
}

fn encoded(headers: &TableBuf) -> Vec<u8> {
    let mut raw = Vec::new();
    Properties { headers: Some(headers.as_table()), ..Properties::default() }.encode(&mut raw);
    raw
}

/// The properties that are set, by RabbitMQ's names; numbers as signed ones if they fit.
fn properties_table(properties: &Properties<'_>, with_headers: bool) -> TableBuf {
    let mut table = TableBuf::new();
    let texts = [
        ("content_type", properties.content_type),
        ("content_encoding", properties.content_encoding),
        ("correlation_id", properties.correlation_id),
        ("reply_to", properties.reply_to),
        ("expiration", properties.expiration),
        ("message_id", properties.message_id),
        ("type", properties.type_name),
        ("user_id", properties.user_id),
        ("app_id", properties.app_id),
        ("cluster_id", properties.cluster_id),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            table.push(name, Value::LongStr(text.as_bytes()));
        }
    }
    if let Some(headers) = properties.headers.filter(|_| with_headers) {
        table.push("headers", Value::Table(headers));
    }
    for (name, number) in
        [("delivery_mode", properties.delivery_mode), ("priority", properties.priority)]
    {
        if let Some(number) = number {
            table.push(name, Value::I32(number.into()));
        }
    }
    if let Some(seconds) = properties.timestamp {
        let value = match i32::try_from(seconds) {
            Ok(seconds) => Value::I32(seconds),
            Err(_) => Value::Timestamp(seconds),
        };
        table.push("timestamp", value);
    }
    table
}
