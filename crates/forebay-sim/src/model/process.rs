//! Commands, carried out on the model when the broker has all of their bytes.

use crate::command::{ChannelCommand, Command};
use crate::message::Published;
use crate::names::{LETTERS_TO, Name, REPLY_TAG, REPLY_TO};

use super::Model;
use super::channel::{Channel, Consumer, Dying, Held, Mode, Pending, Reply, Unacked, Verdict};
use super::refusal::Room;

pub(super) const NOT_FOUND: u16 = 404;
const ACCESS_REFUSED: u16 = 403;
const NOT_IMPLEMENTED: u16 = 540;
pub(super) const PRECONDITION_FAILED: u16 = 406;

/// What a channel gets for a command: an answer, silence, or an error.
pub(super) type Outcome = Result<Option<Reply>, u16>;

/// What becomes of a message.
#[derive(Debug, Default)]
struct Routed {
    /// It is in the log, unless it was refused.
    stored: bool,
    /// It comes back.
    returned: bool,
    /// Queues that may be full.
    may_refuse: Vec<Name>,
    /// One of them that is.
    refused_by: Option<Name>,
}

impl Model {
    /// The broker has the last byte of this command.
    pub(crate) fn process(&mut self, client: usize, command: &Command) {
        self.op += 1;
        self.credit_came = true;
        match command {
            Command::Handshake { .. } | Command::Heartbeat | Command::CloseConnectionOk => {}
            Command::CloseConnection => self.ends(client, None),
            Command::Channel(number, command) => self.process_channel(client, *number, command),
        }
    }

    /// All that counts from now on is that the connection ends, as the client asked or with this code.
    fn ends(&mut self, client: usize, refused: Option<u16>) {
        if self.is_closing(client) {
            return;
        }
        self.leaves(client, Channel::takes);
        self.connected(client);
        if let Some(connection) = self.connections.get_mut(&client) {
            (connection.closing, connection.refused) = (true, refused);
        }
    }

    fn process_channel(&mut self, client: usize, number: u16, command: &ChannelCommand) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        if connection.closing {
            return;
        }
        if matches!(command, ChannelCommand::Open) {
            let mut channel = Channel::new();
            channel.replies.push_back(Reply::OpenOk);
            connection.channels.insert(number, channel);
            return;
        }
        let barriers = connection.barriers;
        let Some(channel) = connection.channels.get_mut(&number) else { return };
        let unseen = barriers > 0 || channel.takes();
        match command {
            ChannelCommand::CloseOk if channel.failed => {
                connection.channels.remove(&number);
                return;
            }
            // Both sides close at once: each is answered.
            ChannelCommand::Close if channel.failed => {
                channel.replies.push_back(Reply::CloseOk);
                return;
            }
            _ if channel.failed => return,
            ChannelCommand::Recover { requeue: false } => {
                return self.ends(client, Some(NOT_IMPLEMENTED));
            }
            ChannelCommand::Close => {
                let mut closed = Channel::new();
                closed.failed = true;
                std::mem::swap(channel, &mut closed);
                channel.replies = closed.replies.clone();
                channel.replies.push_back(Reply::CloseOk);
                self.close_channel(client, number, closed, unseen);
                return;
            }
            _ => {}
        }
        let reply = match self.carry_out(client, number, command) {
            Ok(None) => return,
            Ok(Some(reply)) => reply,
            Err(code) => {
                self.fail_channel(client, number, code, unseen);
                return;
            }
        };
        if let Some(connection) = self.connections.get_mut(&client)
            && let Some(channel) = connection.channels.get_mut(&number)
        {
            connection.barriers += usize::from(reply.may_wait());
            channel.replies.push_back(reply);
        }
    }

    fn fail_channel(&mut self, client: usize, number: u16, code: u16, unseen: bool) {
        let Some(channel) = self.channel(client, number) else { return };
        let mut failed = Channel::new();
        failed.failed = true;
        std::mem::swap(channel, &mut failed);
        channel.replies = failed.replies.clone();
        channel.replies.push_back(Reply::Error(code));
        self.close_channel(client, number, failed, unseen);
    }

    /// Everything a channel held goes back. `unseen`: it may have held more than was observed.
    pub(super) fn close_channel(
        &mut self,
        client: usize,
        number: u16,
        channel: Channel,
        unseen: bool,
    ) {
        if unseen {
            self.doubt_unseen(&channel);
        }
        self.waited_until_now(&channel.replies);
        for (tag, consumer) in &channel.consumers {
            if !consumer.cancelled {
                self.consumer_left(client, number, tag, consumer);
            }
        }
        if let Mode::Tx { held, .. } = &channel.mode {
            for held in held {
                self.requeue(held.unacked);
            }
        }
        for unacked in channel.unacked.into_values() {
            self.requeue(unacked);
        }
        if unseen {
            let op = self.op;
            self.queues.values_mut().for_each(|queue| queue.touched(op));
        }
    }

    /// What left unseen and needed no ack is gone.
    pub(super) fn doubt_unseen(&mut self, channel: &Channel) {
        let op = self.op;
        let consumed = channel.consumers.values().filter(|c| c.no_ack).map(|c| c.queue);
        let got = channel.replies.iter().filter_map(|reply| match reply {
            Reply::Get { queue, no_ack: true, .. } => Some(*queue),
            _ => None,
        });
        for name in consumed.chain(got) {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.purge(op, false);
            }
        }
    }

    pub(super) fn requeue(&mut self, unacked: Unacked) {
        if let Some(queue) = self.queues.get_mut(unacked.queue) {
            queue.requeue(unacked.position, self.op);
        }
    }

    fn consumer_left(&mut self, client: usize, number: u16, tag: Name, consumer: &Consumer) {
        let Some(queue) = self.queues.get_mut(consumer.queue) else { return };
        let who = (client, number, tag);
        let Some(at) = queue.consumers.iter().position(|other| *other == who) else { return };
        queue.consumers.remove(at);
        queue.used();
        if consumer.exclusive {
            queue.exclusive_consumer = false;
        }
        if queue.auto_delete && queue.consumers.is_empty() {
            self.delete_queue(consumer.queue);
        }
    }

    /// A queue goes, with its bindings; its consumers are to learn of it.
    pub(super) fn delete_queue(&mut self, name: Name) {
        let op = self.op;
        self.topology.delete_queue(name);
        let Some(queue) = self.queues.get_mut(name) else { return };
        let consumers = std::mem::take(&mut queue.consumers);
        for dying in self.dying.iter_mut().filter(|dying| dying.unacked.queue == name) {
            let out = queue.out(dying.unacked.position);
            dying.past = dying.past.or(out.map(|instance| instance.id));
        }
        queue.delete(op);
        if name == LETTERS_TO {
            self.letters_may_be_lost();
        }
        for (client, number, tag) in consumers {
            if let Some(channel) = self.channel(client, number)
                && let Some(consumer) = channel.consumers.get_mut(tag)
            {
                consumer.cancelled = true;
                channel.cancels_due.insert(tag);
            }
        }
    }

    pub(super) fn channel(&mut self, client: usize, number: u16) -> Option<&mut Channel> {
        self.connections.get_mut(&client)?.channels.get_mut(&number)
    }

    fn carry_out(&mut self, client: usize, number: u16, command: &ChannelCommand) -> Outcome {
        let certain = self.certain();
        let op = self.op;
        match *command {
            ChannelCommand::Open
            | ChannelCommand::Close
            | ChannelCommand::CloseOk
            | ChannelCommand::FlowOk => Ok(None),
            ChannelCommand::ConfirmSelect => {
                if let Some(channel) = self.channel(client, number)
                    && matches!(channel.mode, Mode::Plain)
                {
                    channel.mode = Mode::Confirm { next: 1, outstanding: Default::default() };
                }
                Ok(Some(Reply::SelectOk))
            }
            ChannelCommand::TxSelect => {
                if let Some(channel) = self.channel(client, number)
                    && matches!(channel.mode, Mode::Plain)
                {
                    channel.mode = Mode::Tx { publishes: Vec::new(), held: Vec::new() };
                }
                Ok(Some(Reply::TxSelectOk))
            }
            ChannelCommand::Commit => Ok(Some(self.commit(client, number))),
            ChannelCommand::Rollback => {
                if let Some(channel) = self.channel(client, number)
                    && let Mode::Tx { publishes, held } = &mut channel.mode
                {
                    publishes.clear();
                    for held in held.drain(..) {
                        channel.unacked.insert(held.tag, held.unacked);
                    }
                }
                Ok(Some(Reply::RollbackOk))
            }
            ChannelCommand::Publish(message) => self.publish(client, number, message),
            ChannelCommand::Qos { count, global } => {
                if let Some(channel) = self.channel(client, number) {
                    if global {
                        channel.prefetch_global = count;
                    } else {
                        channel.prefetch = count;
                    }
                }
                Ok(Some(Reply::QosOk))
            }
            ChannelCommand::Flow { active } => {
                if let Some(channel) = self.channel(client, number) {
                    channel.paused = !active;
                }
                Ok(Some(Reply::FlowOk(active)))
            }
            ChannelCommand::Consume { queue: REPLY_TO, tag, .. } => {
                let Some(channel) = self.channel(client, number) else { return Ok(None) };
                if channel.reply_consumer.replace(op).is_some() {
                    return Err(PRECONDITION_FAILED);
                }
                Ok(Some(Reply::ConsumeOk(tag)))
            }
            ChannelCommand::Consume { queue, tag, no_ack, exclusive, priority } => {
                self.usable(client, queue)?;
                let found = self.queues.get_mut(queue).ok_or(NOT_FOUND)?;
                let taken = !found.consumers.is_empty() || found.single_active;
                if found.exclusive_consumer || (exclusive && taken) {
                    return Err(ACCESS_REFUSED);
                }
                found.consumers.push((client, number, tag));
                found.exclusive_consumer = exclusive;
                if let Some(channel) = self.channel(client, number) {
                    let prefetch = channel.prefetch;
                    let consumer = Consumer {
                        queue,
                        serial: op,
                        no_ack,
                        exclusive,
                        prefetch,
                        priority,
                        cancelled: false,
                    };
                    channel.consumers.insert(tag, consumer);
                }
                Ok(Some(Reply::ConsumeOk(tag)))
            }
            ChannelCommand::Cancel(tag) => {
                let consumer = self.channel(client, number).and_then(|channel| {
                    channel.reply_consumer.take_if(|_| tag == REPLY_TAG);
                    let consumer = channel.consumers.get_mut(tag)?;
                    let before = consumer.clone();
                    consumer.cancelled = true;
                    Some(before)
                });
                if let Some(consumer) = consumer.filter(|consumer| !consumer.cancelled) {
                    self.consumer_left(client, number, tag, &consumer);
                }
                Ok(Some(Reply::CancelOk(tag)))
            }
            ChannelCommand::Get { queue, no_ack } => {
                self.usable(client, queue)?;
                if let Some(found) = self.queues.get_mut(queue) {
                    found.used();
                }
                Ok(Some(Reply::Get { queue, no_ack, asked_op: op }))
            }
            ChannelCommand::Ack { tag, multiple } => {
                self.settle(client, number, tag, multiple, Verdict::Acked)
            }
            ChannelCommand::Nack { tag, multiple, requeue } => {
                let verdict = if requeue { Verdict::Requeued } else { Verdict::Rejected };
                self.settle(client, number, tag, multiple, verdict)
            }
            ChannelCommand::Recover { .. } => {
                let unacked = match self.channel(client, number) {
                    Some(channel) => std::mem::take(&mut channel.unacked),
                    None => return Ok(None),
                };
                for unacked in unacked.into_values() {
                    self.requeue(unacked);
                }
                if !certain {
                    let op = self.op;
                    self.queues.values_mut().for_each(|queue| queue.touched(op));
                }
                Ok(Some(Reply::RecoverOk))
            }
            _ => self.declare(client, command),
        }
    }

    fn publish(&mut self, client: usize, number: u16, message: Published) -> Outcome {
        if !self.topology.has_exchange(message.exchange) {
            return Err(NOT_FOUND);
        }
        if self.topology.is_internal(message.exchange) {
            return Err(ACCESS_REFUSED);
        }
        if message.wants_reply && !self.asks(client, number, message.id) {
            return Err(PRECONDITION_FAILED);
        }
        if let Some(Channel { mode: Mode::Tx { publishes, .. }, .. }) = self.channel(client, number)
        {
            publishes.push(message);
            return Ok(None);
        }
        let Routed { stored, returned, may_refuse, refused_by } = self.enqueue(message);
        let (op, id) = (self.op, message.id);
        if let Some(channel) = self.channel(client, number) {
            if returned {
                channel.returns_due.insert(message.id);
            }
            if let Mode::Confirm { next, outstanding } = &mut channel.mode {
                let pending =
                    Pending { op, id, may_refuse, refused_by, stored, return_due: returned };
                outstanding.insert(*next, pending);
                *next += 1;
            }
        }
        Ok(None)
    }

    /// Routes a message.
    fn enqueue(&mut self, message: Published) -> Routed {
        if message.is_reply() {
            let returned = !self.reply(&message) && message.mandatory;
            return Routed { returned, ..Routed::default() };
        }
        let (op, certain) = (self.op, self.certain());
        let queues = &self.queues;
        let exists = |name: Name| queues.get(name).is_some_and(|queue| queue.exists);
        let routes = self.topology.route(message.exchange, message.keys(), exists);
        let mut routed =
            Routed { returned: message.mandatory && routes.is_empty(), ..Routed::default() };
        for name in routes {
            if let Some(queue) = self.queues.get_mut(name) {
                let room = queue.publish_if_room(&message, op, certain);
                routed.stored |= message.persistent && queue.durable && room != Room::None;
                if room == Room::None {
                    routed.refused_by = Some(name);
                }
                if room != Room::Certain {
                    routed.may_refuse.push(name);
                    self.refused_letter_may_come(name, message.id);
                }
            }
        }
        routed
    }

    fn commit(&mut self, client: usize, number: u16) -> Reply {
        let Some(Channel { mode: Mode::Tx { publishes, held }, .. }) = self.channel(client, number)
        else {
            return Reply::CommitOk(Vec::new());
        };
        let (publishes, held) = (std::mem::take(publishes), std::mem::take(held));
        let mut enqueued = Vec::new();
        for message in publishes {
            let Routed { stored, returned, may_refuse, refused_by } = self.enqueue(message);
            let (op, id) = (self.op, message.id);
            let pending = Pending { op, id, may_refuse, refused_by, stored, return_due: returned };
            enqueued.push(pending);
            if returned && let Some(channel) = self.channel(client, number) {
                channel.returns_due.insert(message.id);
            }
        }
        for held in held {
            self.end(held.unacked, held.verdict);
        }
        Reply::CommitOk(enqueued)
    }

    /// A delivery is settled.
    pub(super) fn end(&mut self, unacked: Unacked, verdict: Verdict) {
        if verdict == Verdict::Requeued {
            return self.requeue(unacked);
        }
        let op = self.op;
        let dies = verdict == Verdict::Rejected && self.has_letter(&unacked);
        let Some(queue) = self.queues.get_mut(unacked.queue) else { return };
        let from = queue.name;
        let dead = queue.out(unacked.position).filter(|_| dies).cloned();
        if dead.is_some() {
            queue.die(unacked.position, op);
        } else {
            queue.settle(unacked.position, op);
        }
        if let Some(dead) = dead {
            self.letter(dead.id, from);
        }
    }

    fn settle(
        &mut self,
        client: usize,
        number: u16,
        tag: u64,
        multiple: bool,
        verdict: Verdict,
    ) -> Outcome {
        let Some(channel) = self.channel(client, number) else { return Ok(None) };
        if !channel.unacked.contains_key(&tag) {
            return Err(PRECONDITION_FAILED);
        }
        let tags: Vec<u64> = match multiple {
            true => channel.unacked.range(..=tag).map(|(tag, _)| *tag).collect(),
            false => vec![tag],
        };
        let settled: Vec<(u64, Unacked)> =
            tags.into_iter().filter_map(|tag| Some((tag, channel.unacked.remove(&tag)?))).collect();
        if let Mode::Tx { held, .. } = &mut channel.mode {
            held.extend(settled.into_iter().map(|(tag, unacked)| Held { tag, unacked, verdict }));
            return Ok(None);
        }
        for (_, unacked) in settled {
            if verdict == Verdict::Rejected && self.has_letter(&unacked) {
                self.dying.push_back(Dying { unacked, past: None });
            } else {
                self.end(unacked, verdict);
            }
        }
        Ok(None)
    }
}
