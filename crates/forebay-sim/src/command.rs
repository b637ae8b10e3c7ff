//! What a client may ask of a broker, as the model understands it and as bytes.

use forebay_wire::{
    PROTOCOL_HEADER, Properties, RawProperties, ShortStr, TableBuf, Value, WireMethod, basic,
    channel, confirm, connection, exchange, queue, tx, write_body_frame, write_header_frame,
    write_heartbeat, write_method,
};

use crate::message::Published;
use crate::names::{Name, REPLY_TO};

/// One request on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Protocol header, login, tuning and opening, all in one go: nothing in AMQP forbids not to wait.
    Handshake {
        /// `frame-max`, in bytes.
        frame_max: u32,
        /// Heartbeat interval, in seconds; 0: none.
        heartbeat_s: u16,
        /// It renews its deliveries when it is asked.
        leases: bool,
    },
    /// A heartbeat frame.
    Heartbeat,
    /// `connection.close`.
    CloseConnection,
    /// `connection.close-ok`.
    CloseConnectionOk,
    /// A method of a channel.
    Channel(u16, ChannelCommand),
}

/// What an exchange is declared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// `direct`, `topic` or `fanout`.
    pub(crate) kind: Name,
    /// Where goes what nothing here wants.
    pub(crate) alternate: Option<Name>,
    /// Nobody publishes to it.
    pub(crate) internal: bool,
    /// It goes with its last binding.
    pub(crate) auto_delete: bool,
}

/// One request on a channel.
#[derive(Clone, Debug)]
pub(crate) enum ChannelCommand {
    /// `channel.open`
    Open,
    /// `channel.close`
    Close,
    /// `channel.close-ok`
    CloseOk,
    /// `channel.flow-ok`: the client is there.
    FlowOk,
    /// `channel.flow`: the channel's consumers get nothing, or again.
    Flow {
        /// Whether they get something.
        active: bool,
    },
    /// `confirm.select`
    ConfirmSelect,
    /// `tx.select`
    TxSelect,
    /// `tx.commit`
    Commit,
    /// `tx.rollback`
    Rollback,
    /// `basic.publish` with content.
    Publish(Published),
    /// `basic.qos`
    Qos {
        /// Prefetch count; 0: no limit.
        count: u16,
        /// For the channel instead of each later consumer.
        global: bool,
    },
    /// `basic.consume`
    Consume {
        /// The queue.
        queue: Name,
        /// The consumer tag.
        tag: Name,
        /// Deliveries need no ack.
        no_ack: bool,
        /// Nobody else may consume.
        exclusive: bool,
        /// Those of a higher one have what they can take.
        priority: i16,
    },
    /// `basic.cancel`
    Cancel(Name),
    /// `basic.get`
    Get {
        /// The queue.
        queue: Name,
        /// The delivery needs no ack.
        no_ack: bool,
    },
    /// `basic.ack`
    Ack {
        /// The delivery tag.
        tag: u64,
        /// And all before it.
        multiple: bool,
    },
    /// `basic.nack`, or `basic.reject` if it is single and the tag is even.
    Nack {
        /// The delivery tag.
        tag: u64,
        /// And all before it.
        multiple: bool,
        /// Back to the queue, or dropped.
        requeue: bool,
    },
    /// `basic.recover`
    Recover {
        /// Back to the queues; to the same consumer, which no broker does, if not.
        requeue: bool,
    },
    /// `queue.declare`
    DeclareQueue {
        /// The queue.
        queue: Name,
        /// Survives a restart.
        durable: bool,
        /// Belongs to this connection.
        exclusive: bool,
        /// Goes with its last consumer.
        auto_delete: bool,
        /// Only asks.
        passive: bool,
        /// Its messages have priorities up to this one; 0: they have none.
        max_priority: u8,
        /// One consumer at a time gets them.
        single_active: bool,
    },
    /// `queue.delete`
    DeleteQueue {
        /// The queue.
        queue: Name,
        /// Only if nobody consumes it.
        if_unused: bool,
    },
    /// `queue.purge`
    Purge(Name),
    /// `queue.bind`
    Bind {
        /// The queue.
        queue: Name,
        /// The source.
        exchange: Name,
        /// The binding key.
        key: Name,
    },
    /// `queue.unbind`
    Unbind {
        /// The queue.
        queue: Name,
        /// The source.
        exchange: Name,
        /// The binding key.
        key: Name,
    },
    /// `exchange.bind`
    BindExchange {
        /// Where to.
        destination: Name,
        /// Where from.
        source: Name,
        /// The binding key.
        key: Name,
    },
    /// `exchange.unbind`
    UnbindExchange {
        /// Where to.
        destination: Name,
        /// Where from.
        source: Name,
        /// The binding key.
        key: Name,
    },
    /// `exchange.declare`
    DeclareExchange {
        /// The exchange.
        exchange: Name,
        /// What it is.
        made: Exchange,
        /// Only asks.
        passive: bool,
    },
    /// `exchange.delete`
    DeleteExchange {
        /// The exchange.
        exchange: Name,
        /// Only if nothing is bound to it.
        if_unused: bool,
    },
}

fn short(name: &'static str) -> ShortStr<'static> {
    ShortStr::new(name.as_bytes()).unwrap_or_default()
}

impl Command {
    /// Appends the bytes of this request.
    pub(crate) fn encode(&self, frame_max: u32, out: &mut Vec<u8>) {
        match self {
            Command::Handshake { frame_max, heartbeat_s, leases } => {
                out.extend_from_slice(&PROTOCOL_HEADER);
                let capabilities = TableBuf::new()
                    .with("consumer_cancel_notify", Value::Bool(true))
                    .with("connection.blocked", Value::Bool(true))
                    .with("forebay.pause", Value::Bool(true))
                    .with("forebay.leases", Value::Bool(*leases))
                    .with("forebay.commit_times", Value::Bool(*leases));
                let properties =
                    TableBuf::new().with("capabilities", Value::Table(capabilities.as_table()));
                let start_ok = connection::StartOk {
                    client_properties: properties.as_table(),
                    mechanism: short("PLAIN"),
                    response: b"\0guest\0guest",
                    locale: short("en_US"),
                };
                write_method(out, 0, &start_ok);
                let (frame_max, heartbeat) = (*frame_max, *heartbeat_s);
                let tune_ok = connection::TuneOk { channel_max: 100, frame_max, heartbeat };
                write_method(out, 0, &tune_ok);
                let open =
                    connection::Open { virtual_host: short("/"), ..connection::Open::default() };
                write_method(out, 0, &open);
            }
            Command::Heartbeat => write_heartbeat(out),
            Command::CloseConnection => {
                let close = connection::Close { reply_code: 200, ..connection::Close::default() };
                write_method(out, 0, &close);
            }
            Command::CloseConnectionOk => write_method(out, 0, &connection::CloseOk::default()),
            Command::Channel(number, command) => command.encode(*number, frame_max, out),
        }
    }
}

impl ChannelCommand {
    /// Whether the broker answers it.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(
            self,
            ChannelCommand::Publish(_)
                | ChannelCommand::Ack { .. }
                | ChannelCommand::Nack { .. }
                | ChannelCommand::CloseOk
                | ChannelCommand::FlowOk
        )
    }

    fn encode(&self, number: u16, frame_max: u32, out: &mut Vec<u8>) {
        let mut put = |method: &dyn Encode| method.encode(out, number);
        match *self {
            ChannelCommand::Open => put(&channel::Open::default()),
            ChannelCommand::Close => {
                put(&channel::Close { reply_code: 200, ..channel::Close::default() });
            }
            ChannelCommand::CloseOk => put(&channel::CloseOk::default()),
            ChannelCommand::FlowOk => put(&channel::FlowOk { active: true }),
            ChannelCommand::Flow { active } => put(&channel::Flow { active }),
            ChannelCommand::ConfirmSelect => put(&confirm::Select::default()),
            ChannelCommand::TxSelect => put(&tx::Select::default()),
            ChannelCommand::Commit => put(&tx::Commit::default()),
            ChannelCommand::Rollback => put(&tx::Rollback::default()),
            ChannelCommand::Publish(ref message) => publish(message, number, frame_max, out),
            ChannelCommand::Qos { count, global } => {
                put(&basic::Qos { prefetch_size: 0, prefetch_count: count, global });
            }
            ChannelCommand::Consume { queue, tag, no_ack, exclusive, priority } => {
                let mut arguments = TableBuf::new();
                if priority != 0 {
                    arguments.push("x-priority", Value::I16(priority));
                }
                put(&basic::Consume {
                    queue: short(queue),
                    consumer_tag: short(tag),
                    no_ack,
                    exclusive,
                    arguments: arguments.as_table(),
                    ..basic::Consume::default()
                });
            }
            ChannelCommand::Cancel(tag) => {
                put(&basic::Cancel { consumer_tag: short(tag), no_wait: false });
            }
            ChannelCommand::Get { queue, no_ack } => {
                put(&basic::Get { queue: short(queue), no_ack, ..basic::Get::default() });
            }
            ChannelCommand::Ack { tag, multiple } => {
                put(&basic::Ack { delivery_tag: tag, multiple });
            }
            ChannelCommand::Nack { tag, multiple: false, requeue } if tag % 2 == 0 => {
                put(&basic::Reject { delivery_tag: tag, requeue });
            }
            ChannelCommand::Nack { tag, multiple, requeue } => {
                put(&basic::Nack { delivery_tag: tag, multiple, requeue });
            }
            ChannelCommand::Recover { requeue } => put(&basic::Recover { requeue }),
            ChannelCommand::DeclareQueue {
                queue,
                durable,
                exclusive,
                auto_delete,
                passive,
                max_priority,
                single_active,
            } => {
                let mut arguments = TableBuf::new();
                if max_priority > 0 {
                    arguments.push("x-max-priority", Value::U8(max_priority));
                }
                if single_active {
                    arguments.push("x-single-active-consumer", Value::Bool(true));
                }
                put(&queue::Declare {
                    queue: short(queue),
                    durable,
                    exclusive,
                    auto_delete,
                    passive,
                    arguments: arguments.as_table(),
                    ..queue::Declare::default()
                });
            }
            ChannelCommand::DeleteQueue { queue, if_unused } => {
                put(&queue::Delete { queue: short(queue), if_unused, ..queue::Delete::default() });
            }
            ChannelCommand::Purge(queue) => {
                put(&queue::Purge { queue: short(queue), ..queue::Purge::default() });
            }
            ChannelCommand::Bind { queue, exchange, key } => put(&queue::Bind {
                queue: short(queue),
                exchange: short(exchange),
                routing_key: short(key),
                ..queue::Bind::default()
            }),
            ChannelCommand::Unbind { queue, exchange, key } => put(&queue::Unbind {
                queue: short(queue),
                exchange: short(exchange),
                routing_key: short(key),
                ..queue::Unbind::default()
            }),
            ChannelCommand::BindExchange { destination, source, key } => put(&exchange::Bind {
                destination: short(destination),
                source: short(source),
                routing_key: short(key),
                ..exchange::Bind::default()
            }),
            ChannelCommand::UnbindExchange { destination, source, key } => put(&exchange::Unbind {
                destination: short(destination),
                source: short(source),
                routing_key: short(key),
                ..exchange::Unbind::default()
            }),
            ChannelCommand::DeclareExchange { exchange, made, passive } => {
                let arguments = match made.alternate {
                    Some(name) => {
                        TableBuf::new().with("alternate-exchange", Value::LongStr(name.as_bytes()))
                    }
                    None => TableBuf::new(),
                };
                put(&exchange::Declare {
                    exchange: short(exchange),
                    type_name: short(made.kind),
                    durable: true,
                    internal: made.internal,
                    auto_delete: made.auto_delete,
                    passive,
                    arguments: arguments.as_table(),
                    ..exchange::Declare::default()
                });
            }
            ChannelCommand::DeleteExchange { exchange, if_unused } => put(&exchange::Delete {
                exchange: short(exchange),
                if_unused,
                ..exchange::Delete::default()
            }),
        }
    }
}

/// [`WireMethod`] behind a reference, so that the table above has one line a method.
trait Encode {
    fn encode(&self, out: &mut Vec<u8>, channel: u16);
}

impl<M: WireMethod> Encode for M {
    fn encode(&self, out: &mut Vec<u8>, channel: u16) {
        write_method(out, channel, self);
    }
}

fn publish(message: &Published, number: u16, frame_max: u32, out: &mut Vec<u8>) {
    let publish = basic::Publish {
        exchange: short(message.exchange),
        routing_key: short(message.key),
        mandatory: message.mandatory,
        ..basic::Publish::default()
    };
    write_method(out, number, &publish);
    let mut raw = Vec::new();
    let reply_to = message.wants_reply.then(|| short(REPLY_TO));
    message.encode_properties(true, reply_to, &mut raw);
    let body = message.body();
    write_header_frame(out, number, 60, body.len() as u64, RawProperties::trusted(&raw));
    for part in body.chunks(frame_max as usize - 8) {
        write_body_frame(out, number, part);
    }
}

/// What a message with this delivery mode looks like on the wire.
pub(crate) fn properties(persistent: bool) -> Properties<'static> {
    Properties { delivery_mode: Some(if persistent { 2 } else { 1 }), ..Properties::default() }
}
