//! A RabbitMQ as small as may be: it does what a client may see of one, when it is told to, and refuses what one would refuse.

mod giving;
mod rungs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_wire::{
    ContentHeader, FrameKind, Method, RawProperties, ShortStr, TableBuf, Value, WireMethod, basic,
    channel, confirm, connection, queue, read_frame, write_body_frame, write_header_frame,
    write_heartbeat, write_method,
};

pub(super) use self::rungs::name_of;
use self::rungs::{Rungs, copy_of};
use crate::REPUBLISHED_HEADER;

/// The frames of its connections, head and end included.
pub(super) const FRAME_BYTES_MAX: u32 = 4096;
/// It fails over what ends with this.
pub(super) const POISON: &str = "|poison";
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// A message that arrived, each time.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) marked: bool,
    pub(super) message_id: String,
    pub(super) fate: Fate,
    /// The answer is out.
    pub(super) answered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Taken,
    Returned,
    Rejected,
}

/// What its taker said of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Ack,
    Requeue,
    Reject,
    /// Nothing yet.
    InWork,
    /// It had too long, and it may come again.
    Overdue,
}

#[derive(Debug)]
struct Stored {
    position: u64,
    arrived_ms: u64,
    properties: Vec<u8>,
    body: Vec<u8>,
    redelivered: bool,
}

#[derive(Default)]
pub(super) struct Rabbit {
    queues: BTreeMap<String, VecDeque<Stored>>,
    /// By the name of a message, which begins its body.
    pub(super) arrivals: BTreeMap<String, Vec<Arrival>>,
    /// Requests that arrived, by the same.
    pub(super) requests: BTreeSet<String>,
    /// Deliveries that were handed out, by number.
    pub(super) said: BTreeMap<u64, Said>,
    /// Consumers that it ended: the first part of their tags.
    pub(super) ended: BTreeSet<String>,
    /// The exchange `x` is there.
    pub(super) has_exchange: bool,
    /// It rejects what is published.
    pub(super) is_full: bool,
    /// Its hosts that take no publishes.
    pub(super) alarms: BTreeSet<usize>,
    pub(super) channels_closed: u64,
    pub(super) returns: u64,
    pub(super) redeliveries: u64,
    /// What it lets expire, and what came of that.
    pub(super) rungs: Rungs,
    position: u64,
    delivery: u64,
}

/// A connection as it sees it.
pub(super) struct Conn {
    /// To which of its hosts.
    pub(super) host: usize,
    pub(super) channel_max: u16,
    heartbeat: u16,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    greeted: bool,
    /// It has published, so an alarm stops it.
    published: bool,
    pub(super) blocked: bool,
    pub(super) open: bool,
    /// Our close is out.
    closing: bool,
    /// Nothing comes after `output`.
    pub(super) over: bool,
    channels: BTreeMap<u16, Chan>,
}

#[derive(Default)]
struct Chan {
    confirms: bool,
    sequence: u64,
    pending: Vec<Pending>,
    content: Option<Content>,
    /// It has replies, and these requests wait for theirs: correlation-id and body.
    replies: bool,
    requests: Vec<(String, Vec<u8>)>,
    /// The last number of each who publishes here.
    last: BTreeMap<String, u32>,
    qos: u16,
    tag: u64,
    consumers: Vec<Consumer>,
    unacked: BTreeMap<u64, Unacked>,
    /// Our close is out.
    closing: bool,
}

struct Pending {
    sequence: u64,
    name: String,
    at: usize,
    acked: bool,
}

struct Content {
    exchange: String,
    routing_key: String,
    mandatory: bool,
    size: Option<u64>,
    properties: Vec<u8>,
    body: Vec<u8>,
}

struct Consumer {
    tag: String,
    queue: String,
    prefetch: usize,
}

struct Unacked {
    consumer: String,
    queue: String,
    delivery: u64,
    stored: Stored,
}

impl Conn {
    pub(super) fn new(host: usize, channel_max: u16, heartbeat: u16) -> Conn {
        Conn {
            host,
            channel_max,
            heartbeat,
            input: Vec::new(),
            output: Vec::new(),
            greeted: false,
            published: false,
            blocked: false,
            open: false,
            closing: false,
            over: false,
            channels: BTreeMap::new(),
        }
    }

    fn tell(&mut self, channel: u16, method: &impl WireMethod) {
        if !self.over {
            write_method(&mut self.output, channel, method);
        }
    }

    pub(super) fn beat(&mut self) {
        if self.open && !self.over && self.heartbeat > 0 {
            write_heartbeat(&mut self.output);
        }
    }

    pub(super) fn channel_numbers(&self) -> Vec<u16> {
        self.channels.iter().filter(|(_, chan)| !chan.closing).map(|(number, _)| *number).collect()
    }
}

impl Rabbit {
    pub(super) fn new() -> Rabbit {
        Rabbit { has_exchange: true, ..Rabbit::default() }
    }

    pub(super) fn declare(&mut self, queue: &str) {
        self.queues.entry(queue.to_owned()).or_default();
    }

    pub(super) fn ready(&self, queue: &str) -> usize {
        self.queues.get(queue).map_or(0, VecDeque::len)
    }

    pub(super) fn unacked(conn: &Conn) -> usize {
        conn.channels.values().map(|chan| chan.unacked.len()).sum()
    }

    /// Works off one frame of the client's. False: there is none, or it reads none.
    pub(super) fn work(&mut self, conn: &mut Conn) -> bool {
        if conn.over || conn.blocked {
            return false;
        }
        if !conn.greeted {
            let Some(rest) = conn.input.strip_prefix(&forebay_wire::PROTOCOL_HEADER) else {
                assert!(forebay_wire::PROTOCOL_HEADER.starts_with(&conn.input));
                return false;
            };
            conn.input = rest.to_vec();
            conn.greeted = true;
            let capabilities = TableBuf::new().with("publisher_confirms", Value::Bool(true));
            let properties = TableBuf::new()
                .with("product", Value::LongStr(b"RabbitMQ"))
                .with("capabilities", Value::Table(capabilities.as_table()));
            let start = connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: properties.as_table(),
                mechanisms: b"PLAIN",
                locales: b"en_US",
            };
            conn.tell(0, &start);
            return true;
        }
        let input = std::mem::take(&mut conn.input);
        let Some(frame) = read_frame(&input, FRAME_BYTES_MAX).expect("its frames are sound") else {
            conn.input = input;
            return false;
        };
        match (frame.channel, frame.kind) {
            (_, FrameKind::Heartbeat) => {}
            (0, FrameKind::Method) => {
                self.connection_method(conn, &Method::parse(frame.payload).unwrap());
            }
            (0, _) => panic!("content on channel 0"),
            _ if conn.closing => {}
            (number, FrameKind::Method) => {
                self.method(conn, number, Method::parse(frame.payload).unwrap());
            }
            (number, kind) => self.content(conn, number, kind, frame.payload),
        }
        conn.input = input[frame.size_bytes()..].to_vec();
        true
    }

    fn connection_method(&mut self, conn: &mut Conn, method: &Method<'_>) {
        match method {
            Method::ConnectionStartOk(_) => {
                let (channel_max, heartbeat) = (conn.channel_max, conn.heartbeat);
                conn.tell(
                    0,
                    &connection::Tune { channel_max, frame_max: FRAME_BYTES_MAX, heartbeat },
                );
            }
            Method::ConnectionTuneOk(ok) => {
                assert!(ok.channel_max <= conn.channel_max && ok.frame_max <= FRAME_BYTES_MAX);
            }
            Method::ConnectionOpen(_) => {
                conn.tell(0, &connection::OpenOk::default());
                conn.open = true;
            }
            Method::ConnectionClose(_) => {
                conn.tell(0, &connection::CloseOk::default());
                self.end(conn);
            }
            Method::ConnectionCloseOk(_) => {
                assert!(conn.closing, "nothing was to be agreed to");
                self.end(conn);
            }
            other => panic!("{} on channel 0", other.name()),
        }
    }

    fn method(&mut self, conn: &mut Conn, number: u16, method: Method<'_>) {
        assert!(number <= conn.channel_max, "530: channel {number}");
        if let Method::ChannelOpen(_) = method {
            assert!(!conn.channels.contains_key(&number), "504: a second channel.open");
            conn.channels.insert(number, Chan::default());
            conn.tell(number, &channel::OpenOk::default());
            return;
        }
        let Some(chan) = conn.channels.get_mut(&number) else {
            panic!("504: {} on channel {number}, which is not open", method.name());
        };
        if chan.closing {
            match method {
                Method::ChannelCloseOk(_) => {
                    conn.channels.remove(&number);
                }
                Method::ChannelClose(_) => conn.tell(number, &channel::CloseOk::default()),
                _ => {}
            }
            return;
        }
        assert!(chan.content.is_none(), "505: a method within a message");
        match method {
            Method::ConfirmSelect(_) => {
                chan.confirms = true;
                conn.tell(number, &confirm::SelectOk::default());
            }
            Method::BasicPublish(publish) => {
                chan.content = Some(Content {
                    exchange: publish.exchange.to_string(),
                    routing_key: publish.routing_key.to_string(),
                    mandatory: publish.mandatory,
                    size: None,
                    properties: Vec::new(),
                    body: Vec::new(),
                });
            }
            Method::BasicQos(qos) => {
                assert!(!qos.global, "it said nothing of live credit");
                chan.qos = qos.prefetch_count;
                conn.tell(number, &basic::QosOk::default());
            }
            Method::BasicConsume(consume) => {
                let (tag, queue) = (consume.consumer_tag.to_string(), consume.queue.to_string());
                if queue == REPLY_TO {
                    chan.replies = true;
                    conn.tell(number, &basic::ConsumeOk { consumer_tag: ShortStr::truncated("r") });
                    return;
                }
                if !self.queues.contains_key(&queue) {
                    self.ended.insert(tag.split('-').next().unwrap().to_owned());
                    self.close_channel(conn, number, 404, "NOT_FOUND - no queue");
                    return;
                }
                let same = chan.consumers.iter().any(|consumer| consumer.tag == tag);
                assert!(!same, "530: consumer tag {tag} is in use");
                let prefetch = usize::from(chan.qos);
                chan.consumers.push(Consumer { tag: tag.clone(), queue, prefetch });
                let consumer_tag = ShortStr::truncated(&tag);
                conn.tell(number, &basic::ConsumeOk { consumer_tag });
            }
            Method::BasicCancel(cancel) => {
                let tag = cancel.consumer_tag.to_string();
                chan.consumers.retain(|consumer| consumer.tag != tag);
                let consumer_tag = ShortStr::truncated(&tag);
                conn.tell(number, &basic::CancelOk { consumer_tag });
            }
            Method::BasicAck(basic::Ack { delivery_tag, multiple }) => {
                for done in covered(chan, delivery_tag, multiple) {
                    let said = self.said.get(&done.delivery);
                    assert_eq!(said, Some(&Said::Ack), "delivery {} is acked", done.delivery);
                }
            }
            Method::BasicNack(basic::Nack { delivery_tag, multiple, requeue }) => {
                let back = covered(chan, delivery_tag, multiple);
                for unacked in back {
                    let said = self.said.get(&unacked.delivery).copied();
                    let meant = match said {
                        None => requeue,
                        Some(Said::Requeue | Said::Overdue) => requeue,
                        Some(Said::Reject) => !requeue,
                        Some(Said::Ack | Said::InWork) => false,
                    };
                    assert!(meant, "{requeue}, and its worker said {said:?}");
                    if requeue {
                        self.requeue(unacked);
                    }
                }
            }
            Method::QueueDeclare(declare) => {
                let name = declare.queue.to_string();
                if declare.passive && !self.queues.contains_key(&name) {
                    for consumer in &chan.consumers {
                        self.ended.insert(consumer.tag.split('-').next().unwrap().to_owned());
                    }
                    self.close_channel(conn, number, 404, "NOT_FOUND - no queue");
                    return;
                }
                let arguments = Some(declare.arguments).filter(|_| !declare.passive);
                if let Err((code, text)) = self.rungs.declared(&name, arguments) {
                    self.close_channel(conn, number, code, text);
                    return;
                }
                self.declare(&name);
                let message_count = self.ready(&name) as u32;
                let queue = ShortStr::truncated(&name);
                conn.tell(number, &queue::DeclareOk { queue, message_count, consumer_count: 0 });
            }
            Method::ChannelClose(_) => {
                self.forget_channel(conn, number);
                conn.tell(number, &channel::CloseOk::default());
            }
            other => panic!("{} is not for this broker", other.name()),
        }
    }

    fn content(&mut self, conn: &mut Conn, number: u16, kind: FrameKind, payload: &[u8]) {
        let chan = conn.channels.get_mut(&number).expect("504: content on no channel");
        if chan.closing {
            return;
        }
        let content = chan.content.as_mut().expect("505: content without its method");
        if kind == FrameKind::Header {
            let header = ContentHeader::parse(payload).unwrap();
            content.size = Some(header.body_size_bytes);
            content.properties = header.properties.raw().to_vec();
        } else {
            content.body.extend_from_slice(payload);
        }
        let size = content.size.expect("505: a body without its header");
        if content.body.len() as u64 >= size {
            let content = chan.content.take().expect("it was there above");
            assert_eq!(content.body.len() as u64, size);
            self.publish(conn, number, content);
        }
    }

    fn publish(&mut self, conn: &mut Conn, number: u16, content: Content) {
        conn.published = true;
        let chan = conn.channels.get_mut(&number).expect("it was there");
        if content.exchange == "x" && !self.has_exchange {
            self.close_channel(conn, number, 404, "NOT_FOUND - no exchange 'x'");
            return;
        }
        let text = String::from_utf8_lossy(&content.body).into_owned();
        if text.ends_with(POISON) {
            self.close(conn, 541);
            return;
        }
        let mut name = name_of(&content.body);
        if let Some(copied) = copy_of(&content.routing_key, &content.body) {
            self.rungs.copied(copied, &content.routing_key, &content.properties);
            self.rungs.copied_late(copied, &content.body);
            name = format!("{name}~{copied}");
        } else {
            let (publisher, place) = name.split_once('-').unwrap();
            let place = place.parse::<u32>().unwrap();
            if let Some(last) = chan.last.insert(publisher.to_owned(), place) {
                assert!(last < place, "{publisher}-{last} before {name}");
            }
        }
        let raw = RawProperties::trusted(&content.properties);
        let properties = raw.parse();
        if properties.reply_to.is_some() {
            assert!(chan.replies, "406: fast reply consumer does not exist");
            self.requests.insert(name);
            if self.queues.contains_key(&content.routing_key) {
                let id = properties.correlation_id.expect("a request has one").to_string();
                chan.requests.push((id, content.body));
            } else {
                send_back(conn, number, &content);
            }
            return;
        }
        assert!(chan.confirms, "it was asked for confirms");
        let marked =
            properties.headers.is_some_and(|headers| headers.get(REPUBLISHED_HEADER).is_some());
        let message_id = properties.message_id.unwrap_or_default().to_string();
        chan.sequence += 1;
        let fate = match self.queues.get_mut(&content.routing_key) {
            None if content.mandatory => Fate::Returned,
            None => Fate::Taken,
            Some(_) if self.is_full => Fate::Rejected,
            Some(queue) => {
                self.position += 1;
                queue.push_back(Stored {
                    position: self.position,
                    arrived_ms: self.rungs.now_ms,
                    properties: content.properties.clone(),
                    body: content.body.clone(),
                    redelivered: false,
                });
                Fate::Taken
            }
        };
        let arrivals = self.arrivals.entry(name.clone()).or_default();
        if let Some(first) = arrivals.first() {
            self.rungs.may_be_two(&content.body);
            assert_eq!(first.message_id, message_id, "of {name}");
        }
        assert!(marked || arrivals.iter().all(|other| other.marked), "{name} twice without a mark");
        arrivals.push(Arrival { marked, message_id, fate, answered: false });
        let (at, acked) = (arrivals.len() - 1, fate != Fate::Rejected);
        chan.pending.push(Pending { sequence: chan.sequence, name, at, acked });
        if fate == Fate::Returned {
            self.returns += 1;
            send_back(conn, number, &content);
        }
        if !conn.blocked {
            self.block(conn);
        }
    }
}

/// basic.return
fn send_back(conn: &mut Conn, number: u16, content: &Content) {
    let returned = basic::Return {
        reply_code: 312,
        reply_text: ShortStr::truncated("NO_ROUTE"),
        exchange: ShortStr::truncated(&content.exchange),
        routing_key: ShortStr::truncated(&content.routing_key),
    };
    let out = &mut conn.output;
    write_method(out, number, &returned);
    let raw = RawProperties::trusted(&content.properties);
    write_header_frame(out, number, 60, content.body.len() as u64, raw);
    for part in content.body.chunks(FRAME_BYTES_MAX as usize - 8) {
        write_body_frame(out, number, part);
    }
}

/// What a settlement is of.
fn covered(chan: &mut Chan, tag: u64, multiple: bool) -> Vec<Unacked> {
    assert!(chan.unacked.contains_key(&tag), "406: unknown delivery tag {tag}");
    if !multiple {
        return chan.unacked.remove(&tag).into_iter().collect();
    }
    let later = chan.unacked.split_off(&(tag + 1));
    std::mem::replace(&mut chan.unacked, later).into_values().collect()
}
