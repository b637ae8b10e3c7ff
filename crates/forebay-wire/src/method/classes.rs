//! The table of AMQP 0-9-1's classes and methods (clauses 1.4 to 1.9) and the extensions of RabbitMQ and our own.
//!
//! Names are the specification's with `-` as `_`. Arguments it reserves keep their place:
//! `ticket` is the access ticket of 0-8 (`reserved-1`, ignored, written as 0), others are
//! `reserved_1`, `reserved_2`. `type` would be a keyword; it is `type_name`.

use super::{ArgumentReader, MethodError, WireMethod};
use crate::reader::Reader;

classes! { 'a

/// The connection class (clause 1.4): greeting, authentication, tuning, closing.
connection = 10 {
    /// the server opens with its version, properties and mechanisms (1.4.2.1).
    ConnectionStart => Start<'a> = 10, "connection.start" {
        version_major: u8, version_minor: u8, server_properties: Table<'a>,
        mechanisms: &'a [u8], locales: &'a [u8],
    }
    /// the client picks a mechanism and answers with credentials (1.4.2.2).
    ConnectionStartOk => StartOk<'a> = 11, "connection.start-ok" {
        client_properties: Table<'a>, mechanism: ShortStr<'a>, response: &'a [u8],
        locale: ShortStr<'a>,
    }
    /// the server challenges the client (1.4.2.3).
    ConnectionSecure => Secure<'a> = 20, "connection.secure" { challenge: &'a [u8] }
    /// the client answers the challenge (1.4.2.4).
    ConnectionSecureOk => SecureOk<'a> = 21, "connection.secure-ok" { response: &'a [u8] }
    /// the server proposes limits: channels, bytes per frame, seconds; 0 = no limit (1.4.2.5).
    ConnectionTune => Tune = 30, "connection.tune" {
        channel_max: u16, frame_max: u32, heartbeat: u16,
    }
    /// the client settles the limits, at or below the proposal (1.4.2.6).
    ConnectionTuneOk => TuneOk = 31, "connection.tune-ok" {
        channel_max: u16, frame_max: u32, heartbeat: u16,
    }
    /// the client enters a virtual host (1.4.2.7).
    ConnectionOpen => Open<'a> = 40, "connection.open" {
        virtual_host: ShortStr<'a>, reserved_1: ShortStr<'a>, reserved_2: bool,
    }
    /// the connection is ready (1.4.2.8).
    ConnectionOpenOk => OpenOk<'a> = 41, "connection.open-ok" { reserved_1: ShortStr<'a> }
    /// either side closes; the ids name the method to blame or are 0 (1.4.2.9).
    ConnectionClose => Close<'a> = 50, "connection.close" {
        reply_code: u16, reply_text: ShortStr<'a>, class_id: u16, method_id: u16,
    }
    /// the other side agrees; nothing follows (1.4.2.10).
    ConnectionCloseOk => CloseOk = 51, "connection.close-ok" {}
    /// RabbitMQ: the server stopped reading publishes, and why.
    ConnectionBlocked => Blocked<'a> = 60, "connection.blocked" { reason: ShortStr<'a> }
    /// RabbitMQ: the server reads publishes again.
    ConnectionUnblocked => Unblocked = 61, "connection.unblocked" {}
    /// RabbitMQ: the client renews its credentials.
    ConnectionUpdateSecret => UpdateSecret<'a> = 70, "connection.update-secret" {
        new_secret: &'a [u8], reason: ShortStr<'a>,
    }
    /// RabbitMQ: the new credentials are in force.
    ConnectionUpdateSecretOk => UpdateSecretOk = 71, "connection.update-secret-ok" {}
}

/// The channel class (clause 1.5): streams of work within a connection.
channel = 20 {
    /// opens the channel the frame came on (1.5.2.1).
    ChannelOpen => Open<'a> = 10, "channel.open" { reserved_1: ShortStr<'a> }
    /// the channel is ready (1.5.2.2).
    ChannelOpenOk => OpenOk<'a> = 11, "channel.open-ok" { reserved_1: &'a [u8] }
    /// stops or restarts content from the peer (1.5.2.3).
    ChannelFlow => Flow = 20, "channel.flow" { active: bool }
    /// the flow is as asked (1.5.2.4).
    ChannelFlowOk => FlowOk = 21, "channel.flow-ok" { active: bool }
    /// either side closes; the ids name the method to blame or are 0 (1.5.2.5).
    ChannelClose => Close<'a> = 40, "channel.close" {
        reply_code: u16, reply_text: ShortStr<'a>, class_id: u16, method_id: u16,
    }
    /// the channel number is free again (1.5.2.6).
    ChannelCloseOk => CloseOk = 41, "channel.close-ok" {}
}

/// The access class of AMQP 0-8. RabbitMQ answers old clients with ticket 1 and checks nothing.
access = 30 {
    /// asks for a ticket to a realm.
    AccessRequest => Request<'a> = 10, "access.request" {
        realm: ShortStr<'a>, exclusive: bool, passive: bool, active: bool, write: bool, read: bool,
    }
    /// hands out the ticket.
    AccessRequestOk => RequestOk = 11, "access.request-ok" { ticket: u16 }
}

/// The exchange class (clause 1.6).
exchange = 40 {
    /// creates an exchange, or with `passive` asks whether it exists (1.6.2.1).
    ExchangeDeclare => Declare<'a> = 10, "exchange.declare" {
        ticket: u16, exchange: ShortStr<'a>, type_name: ShortStr<'a>, passive: bool, durable: bool,
        auto_delete: bool, internal: bool, no_wait: bool, arguments: Table<'a>,
    }
    /// the exchange exists (1.6.2.2).
    ExchangeDeclareOk => DeclareOk = 11, "exchange.declare-ok" {}
    /// deletes an exchange (1.6.2.3).
    ExchangeDelete => Delete<'a> = 20, "exchange.delete" {
        ticket: u16, exchange: ShortStr<'a>, if_unused: bool, no_wait: bool,
    }
    /// the exchange is gone (1.6.2.4).
    ExchangeDeleteOk => DeleteOk = 21, "exchange.delete-ok" {}
    /// RabbitMQ: binds an exchange to another.
    ExchangeBind => Bind<'a> = 30, "exchange.bind" {
        ticket: u16, destination: ShortStr<'a>, source: ShortStr<'a>, routing_key: ShortStr<'a>,
        no_wait: bool, arguments: Table<'a>,
    }
    /// RabbitMQ: the binding exists.
    ExchangeBindOk => BindOk = 31, "exchange.bind-ok" {}
    /// RabbitMQ: removes a binding between exchanges.
    ExchangeUnbind => Unbind<'a> = 40, "exchange.unbind" {
        ticket: u16, destination: ShortStr<'a>, source: ShortStr<'a>, routing_key: ShortStr<'a>,
        no_wait: bool, arguments: Table<'a>,
    }
    /// RabbitMQ: the binding is gone. (51, not 41: so it was published.)
    ExchangeUnbindOk => UnbindOk = 51, "exchange.unbind-ok" {}
}

/// The queue class (clause 1.7).
queue = 50 {
    /// creates a queue, or with `passive` asks whether it exists (1.7.2.1).
    QueueDeclare => Declare<'a> = 10, "queue.declare" {
        ticket: u16, queue: ShortStr<'a>, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, no_wait: bool, arguments: Table<'a>,
    }
    /// the queue exists, with this many ready messages and consumers (1.7.2.2).
    QueueDeclareOk => DeclareOk<'a> = 11, "queue.declare-ok" {
        queue: ShortStr<'a>, message_count: u32, consumer_count: u32,
    }
    /// binds a queue to an exchange (1.7.2.3).
    QueueBind => Bind<'a> = 20, "queue.bind" {
        ticket: u16, queue: ShortStr<'a>, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
        no_wait: bool, arguments: Table<'a>,
    }
    /// the binding exists (1.7.2.4).
    QueueBindOk => BindOk = 21, "queue.bind-ok" {}
    /// drops all ready messages (1.7.2.7).
    QueuePurge => Purge<'a> = 30, "queue.purge" {
        ticket: u16, queue: ShortStr<'a>, no_wait: bool,
    }
    /// this many messages were dropped (1.7.2.8).
    QueuePurgeOk => PurgeOk = 31, "queue.purge-ok" { message_count: u32 }
    /// deletes a queue (1.7.2.9).
    QueueDelete => Delete<'a> = 40, "queue.delete" {
        ticket: u16, queue: ShortStr<'a>, if_unused: bool, if_empty: bool, no_wait: bool,
    }
    /// the queue is gone and this many messages with it (1.7.2.10).
    QueueDeleteOk => DeleteOk = 41, "queue.delete-ok" { message_count: u32 }
    /// removes a binding; has no `no_wait` (1.7.2.5).
    QueueUnbind => Unbind<'a> = 50, "queue.unbind" {
        ticket: u16, queue: ShortStr<'a>, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
        arguments: Table<'a>,
    }
    /// the binding is gone (1.7.2.6).
    QueueUnbindOk => UnbindOk = 51, "queue.unbind-ok" {}
}

/// The basic class (clause 1.8): publishing, consuming, acknowledging.
basic = 60 {
    /// limits unacknowledged deliveries; 0 = no limit (1.8.3.1).
    BasicQos => Qos = 10, "basic.qos" { prefetch_size: u32, prefetch_count: u16, global: bool }
    /// the limits are in force (1.8.3.2).
    BasicQosOk => QosOk = 11, "basic.qos-ok" {}
    /// starts a consumer (1.8.3.3).
    BasicConsume => Consume<'a> = 20, "basic.consume" {
        ticket: u16, queue: ShortStr<'a>, consumer_tag: ShortStr<'a>, no_local: bool, no_ack: bool,
        exclusive: bool, no_wait: bool, arguments: Table<'a>,
    }
    /// the consumer runs under this tag (1.8.3.4).
    BasicConsumeOk => ConsumeOk<'a> = 21, "basic.consume-ok" { consumer_tag: ShortStr<'a> }
    /// ends a consumer; RabbitMQ: also sent by the server (1.8.3.5).
    BasicCancel => Cancel<'a> = 30, "basic.cancel" { consumer_tag: ShortStr<'a>, no_wait: bool }
    /// the consumer has ended (1.8.3.6).
    BasicCancelOk => CancelOk<'a> = 31, "basic.cancel-ok" { consumer_tag: ShortStr<'a> }
    /// sends a message to an exchange (1.8.3.7).
    BasicPublish => Publish<'a> = 40, "basic.publish" +content {
        ticket: u16, exchange: ShortStr<'a>, routing_key: ShortStr<'a>, mandatory: bool,
        immediate: bool,
    }
    /// hands an undeliverable message back (1.8.3.8).
    BasicReturn => Return<'a> = 50, "basic.return" +content {
        reply_code: u16, reply_text: ShortStr<'a>, exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
    }
    /// brings a message to a consumer (1.8.3.9).
    BasicDeliver => Deliver<'a> = 60, "basic.deliver" +content {
        consumer_tag: ShortStr<'a>, delivery_tag: u64, redelivered: bool, exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
    }
    /// asks for one message (1.8.3.10).
    BasicGet => Get<'a> = 70, "basic.get" { ticket: u16, queue: ShortStr<'a>, no_ack: bool }
    /// brings it, and tells how many are left (1.8.3.11).
    BasicGetOk => GetOk<'a> = 71, "basic.get-ok" +content {
        delivery_tag: u64, redelivered: bool, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
        message_count: u32,
    }
    /// there is none (1.8.3.12).
    BasicGetEmpty => GetEmpty<'a> = 72, "basic.get-empty" { reserved_1: ShortStr<'a> }
    /// settles deliveries; RabbitMQ: from the server, confirms publishes (1.8.3.13).
    BasicAck => Ack = 80, "basic.ack" { delivery_tag: u64, multiple: bool }
    /// refuses a delivery (1.8.3.14).
    BasicReject => Reject = 90, "basic.reject" { delivery_tag: u64, requeue: bool }
    /// asks for redelivery of everything unsettled, without an answer (1.8.3.15).
    BasicRecoverAsync => RecoverAsync = 100, "basic.recover-async" { requeue: bool }
    /// asks for redelivery of everything unsettled (1.8.3.16).
    BasicRecover => Recover = 110, "basic.recover" { requeue: bool }
    /// it is being redelivered (1.8.3.17).
    BasicRecoverOk => RecoverOk = 111, "basic.recover-ok" {}
    /// RabbitMQ: refuses deliveries; from the server, publishes.
    BasicNack => Nack = 120, "basic.nack" { delivery_tag: u64, multiple: bool, requeue: bool }
}

/// The confirm class: RabbitMQ's publisher confirms.
confirm = 85 {
    /// RabbitMQ: the server shall confirm publishes on this channel.
    ConfirmSelect => Select = 10, "confirm.select" { no_wait: bool }
    /// RabbitMQ: it will.
    ConfirmSelectOk => SelectOk = 11, "confirm.select-ok" {}
}

/// The tx class (clause 1.9): local transactions of a channel.
tx = 90 {
    /// makes the channel transactional (1.9.2.1).
    TxSelect => Select = 10, "tx.select" {}
    /// it is (1.9.2.2).
    TxSelectOk => SelectOk = 11, "tx.select-ok" {}
    /// performs what was held back (1.9.2.3).
    TxCommit => Commit = 20, "tx.commit" {}
    /// it is done (1.9.2.4).
    TxCommitOk => CommitOk = 21, "tx.commit-ok" {}
    /// forgets what was held back (1.9.2.5).
    TxRollback => Rollback = 30, "tx.rollback" {}
    /// it is forgotten (1.9.2.6).
    TxRollbackOk => RollbackOk = 31, "tx.rollback-ok" {}
}

/// Our own class: only who announces the capability that a method belongs to is sent it.
forebay = 0xFF46 {
    /// `forebay.commit_times`: a message waits so many microseconds for its commit on the server's slow disk; 0 = the disk is quick.
    /// So many connections share them by publishing. Where these are few and the disk is quick, each is to have in flight such a
    /// part of what it would, in thousandths: the server tries out what more brings, and changes it up to seventeen times a
    /// second; else 1000. On channel 0, before the confirms of a channel: with the first ones, when the time has changed by
    /// an eighth or their number by a quarter, and when the part has.
    ForebayCommitTime => CommitTime = 10, "forebay.commit-time" { commit_us: u32, publishers: u32, part_permille: u32 }
}

}
