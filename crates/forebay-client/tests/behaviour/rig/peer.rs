//! A broker by hand: the other end of a connection, doing what the test says and nothing else.

use std::io;
use std::sync::Mutex;

use forebay_client::{ByteStream, Connection, ConnectionBuilder, Options};
use forebay_wire::{
    Method, Properties, ShortStr, TableBuf, Value, WireMethod, basic, channel, confirm, connection,
    queue, read_frame, write_method, write_properties_frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::soon;

/// What a client sent, owned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sent {
    Method { channel: u16, name: &'static str },
    Qos { channel: u16, count: u16, global: bool },
    Consume { channel: u16, queue: String, tag: String },
    Cancel { channel: u16, tag: String },
    Publish { channel: u16, routing_key: String },
    Header { channel: u16, message_id: String, republished: bool },
    Body { channel: u16, body: Vec<u8> },
    Ack { channel: u16, tag: u64, multiple: bool },
    Nack { channel: u16, tag: u64, requeue: bool },
}

/// One connection of the client.
pub(crate) struct Peer {
    stream: DuplexStream,
    input: Vec<u8>,
}

/// Where the client's connections arrive.
pub(crate) struct Door {
    arrivals: mpsc::Receiver<DuplexStream>,
}

/// The client's half of a door.
pub(crate) fn door() -> (Door, impl Fn() -> Knock + Send + Sync + 'static) {
    let (sender, arrivals) = mpsc::channel(16);
    let sender = Mutex::new(sender);
    let knock = move || -> Knock {
        let sender = sender.lock().unwrap().clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            sender.send(theirs).await.map_err(|_| io::Error::other("the door is shut"))?;
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    };
    (Door { arrivals }, knock)
}

pub(crate) type Knock =
    std::pin::Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// A client that is logged in, with the other end of its connection.
pub(crate) async fn connected(builder: ConnectionBuilder) -> (Connection, Peer, Door) {
    let (mut door, knock) = door();
    let options = Options { heartbeat_s: 0, ..Options::default() };
    let opening = tokio::spawn(builder.over("the test", options, knock));
    let peer = door.next().await;
    (soon("an open connection", opening).await.unwrap().unwrap(), peer, door)
}

impl Door {
    /// The next connection, logged in.
    pub(crate) async fn next(&mut self) -> Peer {
        let stream = soon("a connection", self.arrivals.recv()).await.unwrap();
        let mut peer = Peer { stream, input: Vec::new() };
        let mut header = [0; 8];
        peer.stream.read_exact(&mut header).await.unwrap();
        let capabilities = TableBuf::new().with("publisher_confirms", Value::Bool(true));
        let properties = TableBuf::new()
            .with("product", Value::LongStr(b"RabbitMQ"))
            .with("capabilities", Value::Table(capabilities.as_table()));
        peer.send(
            0,
            &connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: properties.as_table(),
                mechanisms: b"PLAIN",
                locales: b"en_US",
            },
        )
        .await;
        peer.expect("connection.start-ok").await;
        peer.send(0, &connection::Tune { channel_max: 100, frame_max: 131_072, heartbeat: 0 })
            .await;
        peer.expect("connection.tune-ok").await;
        peer.expect("connection.open").await;
        peer.send(0, &connection::OpenOk::default()).await;
        peer
    }
}

impl Peer {
    pub(crate) async fn send(&mut self, channel: u16, method: &impl WireMethod) {
        let mut out = Vec::new();
        write_method(&mut out, channel, method);
        self.stream.write_all(&out).await.unwrap();
    }

    pub(crate) async fn deliver(&mut self, channel: u16, consumer: &str, tag: u64, body: &[u8]) {
        self.deliver_with(channel, consumer, tag, &Properties::default(), body).await;
    }

    pub(crate) async fn deliver_with(
        &mut self,
        channel: u16,
        consumer: &str,
        tag: u64,
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        let mut out = Vec::new();
        let deliver = basic::Deliver {
            consumer_tag: ShortStr::truncated(consumer),
            delivery_tag: tag,
            ..Default::default()
        };
        write_method(&mut out, channel, &deliver);
        write_properties_frame(&mut out, channel, 60, body.len() as u64, properties);
        forebay_wire::write_body_frame(&mut out, channel, body);
        self.stream.write_all(&out).await.unwrap();
    }

    pub(crate) async fn confirm(&mut self, channel: u16, tag: u64, multiple: bool) {
        self.send(channel, &basic::Ack { delivery_tag: tag, multiple }).await;
    }

    /// The next thing the client sent; requests for channels and confirms are answered on the way.
    pub(crate) async fn next(&mut self) -> Sent {
        loop {
            let sent = self.next_raw().await;
            match &sent {
                Sent::Method { channel: number, name: "channel.open" } => {
                    self.send(*number, &channel::OpenOk::default()).await;
                }
                Sent::Method { channel: number, name: "confirm.select" } => {
                    self.send(*number, &confirm::SelectOk::default()).await;
                }
                Sent::Method { channel: number, name: "queue.declare" } => {
                    self.send(*number, &queue::DeclareOk::default()).await;
                }
                Sent::Method { channel: number, name: "channel.close" } => {
                    self.send(*number, &channel::CloseOk::default()).await;
                    return sent;
                }
                Sent::Method { name: "connection.close", .. } => {
                    self.send(0, &connection::CloseOk::default()).await;
                    return sent;
                }
                Sent::Qos { channel: number, .. } => {
                    let number = *number;
                    self.send(number, &basic::QosOk::default()).await;
                    return sent;
                }
                Sent::Consume { channel: number, tag, .. } => {
                    let consumer_tag = ShortStr::truncated(tag);
                    self.send(*number, &basic::ConsumeOk { consumer_tag }).await;
                    return sent;
                }
                Sent::Cancel { channel: number, tag } => {
                    let consumer_tag = ShortStr::truncated(tag);
                    self.send(*number, &basic::CancelOk { consumer_tag }).await;
                    return sent;
                }
                _ => return sent,
            }
        }
    }

    /// Skips to the next publish: its channel, message-id, mark and body.
    pub(crate) async fn published(&mut self) -> (u16, String, bool, Vec<u8>) {
        let (mut id, mut marked) = (String::new(), false);
        loop {
            match self.next().await {
                Sent::Header { message_id, republished, .. } => {
                    (id, marked) = (message_id, republished)
                }
                Sent::Body { channel, body } => return (channel, id, marked, body),
                _ => {}
            }
        }
    }

    /// Answers what the client asks until `done` says so after an answer was taken.
    pub(crate) async fn answer_until(&mut self, done: impl Fn(&Peer) -> bool) {
        while !done(self) {
            // Requests are answered inside; whatever else comes is of no interest here.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(1), self.next()).await;
        }
    }

    pub(crate) async fn expect(&mut self, expected: &str) {
        match self.next_raw().await {
            Sent::Method { name, .. } => assert_eq!(name, expected),
            other => panic!("{other:?} instead of {expected}"),
        }
    }

    async fn next_raw(&mut self) -> Sent {
        loop {
            if let Some((sent, used)) = read_one(&self.input) {
                self.input.drain(..used);
                return sent;
            }
            let mut buffer = vec![0; 65_536];
            let count = soon("bytes of the client", self.stream.read(&mut buffer)).await.unwrap();
            assert!(count > 0, "the client hung up");
            self.input.extend_from_slice(&buffer[..count]);
        }
    }
}

fn read_one(input: &[u8]) -> Option<(Sent, usize)> {
    let frame = read_frame(input, 1 << 20).unwrap()?;
    let (channel, used) = (frame.channel, frame.size_bytes());
    let sent = match frame.kind {
        forebay_wire::FrameKind::Body => Sent::Body { channel, body: frame.payload.to_vec() },
        forebay_wire::FrameKind::Header => {
            let header = forebay_wire::ContentHeader::parse(frame.payload).unwrap();
            let properties = header.properties.parse();
            let mark = forebay_client::REPUBLISHED_HEADER;
            Sent::Header {
                channel,
                message_id: properties.message_id.unwrap_or_default().to_string(),
                republished: properties.headers.is_some_and(|headers| headers.get(mark).is_some()),
            }
        }
        forebay_wire::FrameKind::Heartbeat => Sent::Method { channel, name: "heartbeat" },
        forebay_wire::FrameKind::Method => match Method::parse(frame.payload).unwrap() {
            Method::BasicQos(qos) => {
                Sent::Qos { channel, count: qos.prefetch_count, global: qos.global }
            }
            Method::BasicConsume(consume) => Sent::Consume {
                channel,
                queue: consume.queue.to_string(),
                tag: consume.consumer_tag.to_string(),
            },
            Method::BasicCancel(cancel) => {
                Sent::Cancel { channel, tag: cancel.consumer_tag.to_string() }
            }
            Method::BasicPublish(publish) => {
                Sent::Publish { channel, routing_key: publish.routing_key.to_string() }
            }
            Method::BasicAck(ack) => {
                Sent::Ack { channel, tag: ack.delivery_tag, multiple: ack.multiple }
            }
            Method::BasicNack(nack) => {
                Sent::Nack { channel, tag: nack.delivery_tag, requeue: nack.requeue }
            }
            method => Sent::Method { channel, name: method.name() },
        },
    };
    Some((sent, used))
}
