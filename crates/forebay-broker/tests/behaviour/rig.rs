//! A broker with clients around it, all in one thread: bytes in, a readable trace out.

use std::sync::Arc;

use forebay_broker::{Admission, CloseHow, ConnectionId, Input, Peer, Shard, ShardConfig};
use forebay_store::{Disk, Options, Store, perform};
use forebay_wire::{
    FrameKind, Method, PROTOCOL_HEADER, Properties, RawProperties, ShortStr, Table, TableBuf,
    Value, WireMethod, basic, channel, connection, read_frame, write_body_frame,
    write_header_frame, write_method,
};

/// The memory budget of [`Rig::small`].
pub const SMALL_BYTES: u64 = 100_000;

/// A broker, its clock, and what it has sent to whom.
pub struct Rig {
    pub shard: Shard,
    pub now_us: u64,
    disk: Option<Arc<dyn Disk>>,
    connections: u32,
    /// Disk requests are performed as they come, unless this holds them back.
    pub disk_stalled: bool,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(ShardConfig::default())
    }

    pub fn with(config: ShardConfig) -> Rig {
        let shard = Shard::new(config, Store::in_memory(), None).expect("nothing to restore");
        Rig { shard, now_us: 0, disk: None, connections: 0, disk_stalled: false }
    }

    /// One whose memory is soon full.
    pub fn small() -> Rig {
        Rig::with(ShardConfig { memory_budget_bytes: SMALL_BYTES, ..ShardConfig::default() })
    }

    /// A broker on a disk, which may hold something.
    pub fn on_disk(config: ShardConfig, disk: Arc<dyn Disk>, options: Options) -> Rig {
        let (store, recovered) =
            forebay_store::open(disk.clone(), options).expect("the store opens");
        let shard = Shard::new(config, store, Some(recovered)).expect("the store is understood");
        Rig { shard, now_us: 0, disk: Some(disk), connections: 0, disk_stalled: false }
    }

    pub fn step(&mut self, input: Input<'_>) {
        self.shard.step(self.now_us, input).expect("the disk works");
    }

    /// Turns until nothing more happens by itself.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.step(Input::Turn { busy: false });
            let mut busy = self.resume();
            if let Some(disk) = self.disk.clone().filter(|_| !self.disk_stalled) {
                while let Some(request) = self.shard.poll_disk(self.now_us) {
                    let completion = perform(&*disk, request);
                    self.step(Input::Disk(completion));
                    busy = true;
                }
            }
            let due = self.shard.next_deadline_us().filter(|at| *at <= self.now_us + 20_000);
            match due {
                Some(at) if at > self.now_us => self.now_us = at,
                Some(_) if busy => {}
                Some(_) => self.now_us += 1,
                None if busy => {}
                None => return,
            }
            self.step(Input::Tick);
            if due.is_some() && !busy && self.disk.is_none() {
                // Only flow control's own look-again is left.
                self.step(Input::Turn { busy: false });
                return;
            }
        }
    }

    /// Lets the broker go on with what it holds, as far as it grants that.
    pub fn resume(&mut self) -> bool {
        let mut resumed = false;
        for id in (0..self.connections).map(ConnectionId) {
            if self.shard.held_bytes(id) > 0 && self.shard.admission(id) == Admission::Resume {
                self.bytes(id, &[]);
                resumed = true;
            }
        }
        resumed
    }

    /// Lets time pass, a tick at each deadline.
    pub fn pass(&mut self, ms: u64) {
        let until = self.now_us + ms * 1000;
        while let Some(at) = self.shard.next_deadline_us().filter(|at| *at <= until) {
            self.now_us = at.max(self.now_us + 1);
            self.step(Input::Tick);
            self.step(Input::Turn { busy: false });
            self.resume();
        }
        self.now_us = self.now_us.max(until);
        self.step(Input::Tick);
        self.step(Input::Turn { busy: false });
    }

    /// A socket without a word said.
    pub fn socket(&mut self, loopback: bool) -> ConnectionId {
        let id = ConnectionId(self.connections);
        self.connections += 1;
        let peer = Peer { address: "test:1".to_owned(), loopback, listener: "test".to_owned() };
        self.step(Input::Connected { connection: id, peer });
        id
    }

    /// A connection with channel 1 open.
    pub fn client(&mut self) -> ConnectionId {
        self.client_as(b"\0guest\0guest")
    }

    /// The same for whom a PLAIN response names.
    pub fn client_as(&mut self, login: &[u8]) -> ConnectionId {
        self.client_with(login, 0)
    }

    /// The same with heartbeats.
    pub fn client_with(&mut self, login: &[u8], heartbeat: u16) -> ConnectionId {
        let id = self.socket(true);
        self.bytes(id, &PROTOCOL_HEADER);
        self.login(id, login);
        self.open(id, heartbeat);
        id
    }

    /// A connection with channel 1 open, of a client with more capabilities.
    pub fn client_that_can(&mut self, capabilities: &[&str]) -> ConnectionId {
        let id = self.socket(true);
        self.bytes(id, &PROTOCOL_HEADER);
        self.login_with(id, b"\0guest\0guest", capabilities);
        self.open(id, 0);
        id
    }

    fn open(&mut self, id: ConnectionId, heartbeat: u16) {
        self.method(
            id,
            0,
            &connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat },
        );
        self.method(
            id,
            0,
            &connection::Open { virtual_host: short("/"), ..connection::Open::default() },
        );
        self.method(id, 1, &channel::Open::default());
        let greeting = self.trace(id);
        assert!(greeting.ends_with(&["1 channel.open-ok".to_owned()]), "{greeting:?}");
    }

    pub fn login(&mut self, id: ConnectionId, response: &[u8]) {
        self.login_with(id, response, &[]);
    }

    fn login_with(&mut self, id: ConnectionId, response: &[u8], more: &[&str]) {
        let known =
            ["authentication_failure_close", "consumer_cancel_notify", "connection.blocked"];
        let names = known.iter().chain(more);
        let capabilities =
            names.fold(TableBuf::new(), |table, name| table.with(name, Value::Bool(true)));
        let client_properties =
            TableBuf::new().with("capabilities", Value::Table(capabilities.as_table()));
        self.method(
            id,
            0,
            &connection::StartOk {
                client_properties: client_properties.as_table(),
                mechanism: short("PLAIN"),
                response,
                locale: short("en_US"),
            },
        );
    }

    pub fn bytes(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.step(Input::Received { connection: id, bytes });
    }

    pub fn method(&mut self, id: ConnectionId, channel: u16, method: &impl WireMethod) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, channel, method);
        self.bytes(id, &bytes);
    }

    /// Publishes to the default exchange.
    pub fn publish(&mut self, id: ConnectionId, queue: &str, body: &[u8], persistent: bool) {
        let properties =
            Properties { delivery_mode: persistent.then_some(2), ..Properties::default() };
        self.publish_with(id, "", queue, false, &properties, body);
    }

    /// Publishes to a queue that nobody consumes until the memory of [`Rig::small`] is full.
    pub fn fill(&mut self, id: ConnectionId, queue: &str) {
        while self.shard.status().memory_bytes < SMALL_BYTES {
            self.publish(id, queue, &[7; 1000], false);
        }
    }

    pub fn publish_with(
        &mut self,
        id: ConnectionId,
        exchange: &str,
        routing_key: &str,
        mandatory: bool,
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        let bytes = publish_bytes(exchange, routing_key, mandatory, properties, body);
        self.bytes(id, &bytes);
    }

    /// What was sent since the last call, a line a method, content behind its method.
    pub fn trace(&mut self, id: ConnectionId) -> Vec<String> {
        self.settle();
        self.sent(id)
    }

    /// The same without a turn.
    pub fn sent(&mut self, id: ConnectionId) -> Vec<String> {
        // Piece after piece; what is answered because it reads comes later.
        let out = self.shard.unsent(id, 0);
        let mut left = out.len();
        while left > 0 {
            let bytes = self.shard.outgoing(id).len().min(left);
            self.step(Input::Sent { connection: id, bytes });
            left -= bytes;
        }
        let mut lines = Vec::new();
        let mut at = 0;
        while let Ok(Some(frame)) = read_frame(&out[at..], 0) {
            at += frame.size_bytes();
            match frame.kind {
                FrameKind::Method => lines.push(line(frame.channel, frame.payload)),
                FrameKind::Header => {}
                FrameKind::Body => {
                    let body = String::from_utf8_lossy(frame.payload);
                    if let Some(last) = lines.last_mut() {
                        last.push_str(&format!(" [{body}]"));
                    }
                }
                FrameKind::Heartbeat => lines.push("heartbeat".to_owned()),
            }
        }
        if at < out.len() {
            lines.push(format!("{:?}", &out[at..]));
        }
        lines
    }

    /// Sockets that the broker wants closed.
    pub fn closed(&mut self) -> Vec<(u32, CloseHow)> {
        let mut closed = Vec::new();
        while let Some((id, how)) = self.shard.next_closed() {
            closed.push((id.0, how));
        }
        closed
    }

    pub fn disconnect(&mut self, id: ConnectionId) {
        self.step(Input::Disconnected { connection: id });
    }

    /// Shuts down cleanly, clients answering.
    pub fn stop(mut self) {
        self.step(Input::Shutdown);
        for _ in 0..100 {
            self.settle();
            for index in 0..self.connections {
                self.disconnect(ConnectionId(index));
            }
            if self.shard.stopped() {
                return;
            }
        }
        panic!("does not stop");
    }
}

pub fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).expect("short")
}

pub fn publish_bytes(
    exchange: &str,
    routing_key: &str,
    mandatory: bool,
    properties: &Properties<'_>,
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let publish = basic::Publish {
        exchange: short(exchange),
        routing_key: short(routing_key),
        mandatory,
        ..basic::Publish::default()
    };
    write_method(&mut bytes, 1, &publish);
    let mut raw = Vec::new();
    properties.encode(&mut raw);
    write_header_frame(&mut bytes, 1, 60, body.len() as u64, RawProperties::trusted(&raw));
    for part in body.chunks(131_064) {
        write_body_frame(&mut bytes, 1, part);
    }
    bytes
}

pub fn declare(queue: &str, durable: bool) -> forebay_wire::queue::Declare<'_> {
    forebay_wire::queue::Declare {
        queue: short(queue),
        durable,
        arguments: Table::default(),
        ..forebay_wire::queue::Declare::default()
    }
}

pub fn consume(queue: &str, tag: &'static str, no_ack: bool) -> basic::Consume<'static> {
    basic::Consume {
        queue: short(Box::leak(queue.to_owned().into_boxed_str())),
        consumer_tag: short(tag),
        no_ack,
        ..basic::Consume::default()
    }
}

fn line(channel: u16, payload: &[u8]) -> String {
    let method = Method::parse(payload).expect("the broker speaks AMQP");
    let name = method.name();
    let detail = match method {
        Method::BasicDeliver(m) => {
            format!(" {} {}{}", m.consumer_tag, m.delivery_tag, flag(m.redelivered, " redelivered"))
        }
        Method::BasicGetOk(m) => format!(
            " {}{} left={}",
            m.delivery_tag,
            flag(m.redelivered, " redelivered"),
            m.message_count
        ),
        Method::BasicNack(m) => format!(" {}", m.delivery_tag),
        Method::BasicAck(m) => format!(" {}{}", m.delivery_tag, flag(m.multiple, " multiple")),
        Method::BasicReturn(m) => format!(" {} {}", m.reply_code, m.reply_text),
        Method::BasicCancel(m) => format!(" {}", m.consumer_tag),
        Method::QueueDeclareOk(m) => {
            format!(" {} {} {}", m.queue, m.message_count, m.consumer_count)
        }
        Method::QueueDeleteOk(m) => format!(" {}", m.message_count),
        Method::QueuePurgeOk(m) => format!(" {}", m.message_count),
        Method::ChannelClose(m) => format!(" {} {}", m.reply_code, m.reply_text),
        Method::ConnectionClose(m) => format!(" {} {}", m.reply_code, m.reply_text),
        Method::ForebayCommitTime(m) => {
            let part = match m.part_permille {
                1_000 | 778 => String::new(), // nothing is tried out
                permille => format!(" part {permille}"),
            };
            format!(" {} of {}{part}", (m.commit_us + 500) / 1_000, m.publishers)
        }
        Method::ConnectionBlocked(m) => format!(" {}", m.reason),
        _ => String::new(),
    };
    format!("{channel} {name}{detail}")
}

fn flag(set: bool, text: &str) -> &str {
    if set { text } else { "" }
}
