//! What the model knows of a connection and its channels.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::message::Published;
use crate::names::Name;

/// A consumer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: Name,
    /// The operation that began it: a tag may be used again while deliveries of its first life are open.
    pub(crate) serial: u64,
    pub(crate) no_ack: bool,
    pub(crate) exclusive: bool,
    pub(crate) prefetch: u16,
    pub(crate) priority: i16,
    /// The broker has processed its end; what is delivered after its cancel-ok is wrong.
    pub(crate) cancelled: bool,
}

/// A delivery that is not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unacked {
    pub(crate) queue: Name,
    pub(crate) position: u64,
    pub(crate) consumer: Option<(Name, u64)>,
}

/// One that was rejected and whose letter may wait for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dying {
    pub(crate) unacked: Unacked,
    /// The message, once its queue is gone: its letter goes its way all the same.
    pub(crate) past: Option<u32>,
}

/// A publish that waits for its confirm.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) op: u64,
    /// The message.
    pub(crate) id: u32,
    /// Queues that may refuse it.
    pub(crate) may_refuse: Vec<Name>,
    /// One of them that must.
    pub(crate) refused_by: Option<Name>,
    /// In the log: its confirm says that everything up to `op` is durable.
    pub(crate) stored: bool,
    pub(crate) return_due: bool,
}

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Acked,
    Rejected,
    Requeued,
}

/// What a transaction does with a delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) tag: u64,
    pub(crate) unacked: Unacked,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Debug)]
pub(crate) enum Mode {
    Plain,
    Confirm { next: u64, outstanding: BTreeMap<u64, Pending> },
    Tx { publishes: Vec<Published>, held: Vec<Held> },
}

/// The answer that is due next on a channel, and what it must say.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    OpenOk,
    CloseOk,
    SelectOk,
    TxSelectOk,
    /// commit-ok, if no queue has refused any of these: then all up to their operation is durable, if there is one that is stored.
    CommitOk(Vec<Pending>),
    RollbackOk,
    QosOk,
    FlowOk(bool),
    ConsumeOk(Name),
    CancelOk(Name),
    /// get-ok or get-empty, of the queue as it was when it was asked.
    Get {
        queue: Name,
        no_ack: bool,
        asked_op: u64,
    },
    RecoverOk,
    /// Ready messages: at least, at most, unless in doubt.
    DeclareOk(Option<(usize, usize)>),
    DeleteOk(Option<(usize, usize)>),
    PurgeOk(Option<(usize, usize)>),
    BindOk,
    UnbindOk,
    ExchangeBindOk,
    ExchangeUnbindOk,
    ExchangeDeclareOk,
    ExchangeDeleteOk,
    /// `channel.close` with this code.
    Error(u16),
}

impl Reply {
    /// Everything behind it waits for the disk, and so do deliveries on the same connection.
    pub(crate) fn may_wait(&self) -> bool {
        matches!(
            self,
            Reply::DeclareOk(_)
                | Reply::DeleteOk(_)
                | Reply::BindOk
                | Reply::UnbindOk
                | Reply::ExchangeBindOk
                | Reply::ExchangeUnbindOk
                | Reply::ExchangeDeclareOk
                | Reply::ExchangeDeleteOk
                | Reply::CommitOk(_)
        )
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Channel {
    /// An error was found; only close-ok counts until then.
    pub(crate) failed: bool,
    pub(crate) mode: Mode,
    pub(crate) prefetch: u16,
    pub(crate) prefetch_global: u16,
    pub(crate) last_tag: u64,
    /// Its client has paused it.
    pub(crate) paused: bool,
    /// The client was told so: nothing more comes, even if it was on its way.
    pub(crate) told_paused: bool,
    pub(crate) unacked: BTreeMap<u64, Unacked>,
    pub(crate) consumers: BTreeMap<Name, Consumer>,
    pub(crate) replies: VecDeque<Reply>,
    /// Messages that came back and belong to publishes not yet confirmed.
    pub(crate) returns_due: BTreeSet<u32>,
    /// Who gets replies here: the operation with which it began.
    pub(crate) reply_consumer: Option<u64>,
    /// Replies that are on their way, in order.
    pub(crate) replies_to_come: VecDeque<u32>,
    /// Consumers that the broker is to cancel.
    pub(crate) cancels_due: BTreeSet<Name>,
}

impl Channel {
    /// Whether messages come to it: what a step has delivered on it before it ends in that step is not seen.
    pub(crate) fn takes(&self) -> bool {
        let gets = |reply: &Reply| matches!(reply, Reply::Get { .. });
        !self.consumers.is_empty() || self.replies.iter().any(gets)
    }

    pub(crate) fn new() -> Channel {
        Channel {
            failed: false,
            mode: Mode::Plain,
            prefetch: 0,
            prefetch_global: 0,
            last_tag: 0,
            paused: false,
            told_paused: false,
            unacked: BTreeMap::new(),
            consumers: BTreeMap::new(),
            replies: VecDeque::new(),
            returns_due: BTreeSet::new(),
            reply_consumer: None,
            replies_to_come: VecDeque::new(),
            cancels_due: BTreeSet::new(),
        }
    }

    /// Deliveries that count against a consumer's prefetch; `None`: against the channel's.
    pub(crate) fn held_by(&self, consumer: Option<(Name, u64)>) -> usize {
        let counts = |unacked: &Unacked| match consumer {
            Some(consumer) => unacked.consumer == Some(consumer),
            None => unacked.consumer.is_some(),
        };
        let in_transaction = match &self.mode {
            Mode::Tx { held, .. } => held.iter().filter(|held| counts(&held.unacked)).count(),
            _ => 0,
        };
        self.unacked.values().filter(|unacked| counts(unacked)).count() + in_transaction
    }
}

/// A connection as the broker has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    pub(crate) channels: BTreeMap<u16, Channel>,
    /// Replies outstanding that wait for the disk.
    pub(crate) barriers: usize,
    /// The client has asked to close, or what it said ends the connection.
    pub(crate) closing: bool,
    /// With this code, which it has not been told yet.
    pub(crate) refused: Option<u16>,
}
