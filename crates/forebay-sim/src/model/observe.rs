//! What the broker sends, held against the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::is_reply_name;
use crate::names::{LETTERS_TO, Name, known};
use crate::violation::{Violation, violation};

use super::Model;
use super::channel::{Mode, Reply, Unacked};
use super::content::Content;
use super::counts::Counts;
use super::queue::{Flag, Instance, Place, Queue};

/// A method that the broker sent on a channel, with its content.
#[derive(Debug)]
pub(crate) enum Sent<'a> {
    /// An answer without anything to compare.
    Ok(&'static str),
    DeclareOk {
        count: u32,
    },
    DeleteOk {
        count: u32,
    },
    PurgeOk {
        count: u32,
    },
    /// With the consumer tag.
    ConsumeOk(&'a [u8]),
    CancelOk(&'a [u8]),
    /// The server has cancelled a consumer.
    Cancelled(&'a [u8]),
    Deliver {
        tag: u64,
        consumer: &'a [u8],
        redelivered: bool,
        content: Content<'a>,
    },
    GetOk {
        tag: u64,
        redelivered: bool,
        left: u32,
        content: Content<'a>,
    },
    GetEmpty,
    FlowOk {
        active: bool,
    },
    Return {
        code: u16,
        content: Content<'a>,
    },
    Confirm {
        tag: u64,
        multiple: bool,
    },
    Refused {
        tag: u64,
        multiple: bool,
    },
    Error {
        code: u16,
        text: String,
    },
}

/// What one step of the broker has delivered, before it is known to be all.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) exact: bool,
    /// By queue: the last position delivered.
    reached: BTreeMap<Name, u64>,
    counts: Counts,
    /// By queue: the lowest priority of a consumer that it served.
    pub(super) served: BTreeMap<Name, i16>,
    /// Queues of which a get was told that they are empty. What others took before it, their gets and consumers, may be seen
    /// after it: the connections are looked at one by one.
    empty: BTreeSet<Name>,
}

impl Model {
    /// A step of the broker is over; what it sent comes next.
    pub(crate) fn begin_round(&mut self) -> Round {
        // What needs no ack is settled as it is delivered: later, and perhaps in a later batch, than
        // everything that was asked for before.
        self.op += 1;
        Round { exact: self.certain() && !self.someone_left, ..Round::default() }
    }

    /// Everything that the step has sent was observed: nothing may have been passed over.
    pub(crate) fn end_round(&mut self, round: Round) -> Result<(), Violation> {
        (self.credit_came, self.someone_left) = (false, false);
        self.check_replies()?;
        let op = self.op;
        let step_op = std::mem::replace(&mut self.step_op, op);
        if !round.exact {
            return Ok(());
        }
        round.counts.check()?;
        let none_came = round.empty.contains(LETTERS_TO);
        for name in round.empty {
            let Some(queue) = self.queues.get_mut(name) else { continue };
            if let Some(instance) = queue.first_certain() {
                let what = format!("get-empty of {name} that has {instance:?}");
                return violation("order, and nothing lost", what);
            }
            queue.doubts_resolved(op);
        }
        for (name, position) in round.reached {
            let Some(queue) = self.queues.get_mut(name) else { continue };
            if let Some(instance) = queue.overtaken(position, step_op) {
                let what =
                    format!("queue {name}: {instance:?} was passed over by position {position}");
                return violation("order, and nothing lost", what);
            }
            queue.doubts_resolved_before(position, step_op, op);
        }
        self.note_absent();
        if none_came {
            self.letters_may_come_yet();
        }
        Ok(())
    }

    /// Whether the reply that is due on this channel was an error, or its close is due.
    pub(crate) fn is_closing(&self, client: usize) -> bool {
        self.connections.get(&client).is_none_or(|connection| connection.closing)
    }

    /// A connection is told to end with this code: false if nothing its client said is the reason.
    pub(crate) fn ends_with(&mut self, client: usize, code: u16) -> bool {
        let connection = self.connections.get_mut(&client);
        connection.is_some_and(|c| c.refused.take_if(|refused| *refused == code).is_some())
    }

    /// Holds a method against what could have been sent.
    pub(crate) fn observe(
        &mut self,
        client: usize,
        number: u16,
        sent: Sent<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        if self.is_closing(client) {
            return Ok(());
        }
        let Some(channel) = self.channel(client, number) else {
            return violation(
                "protocol",
                format!("client {client}: {sent:?} on closed channel {number}"),
            );
        };
        let failed = channel.failed;
        match sent {
            // Sent before the error was found, held back by the disk.
            Sent::Deliver { content, .. } | Sent::Return { content, .. } if failed => {
                self.genuine(&content).map(drop)
            }
            Sent::Confirm { .. } | Sent::Cancelled(_) | Sent::Refused { .. } if failed => Ok(()),
            Sent::Deliver { tag, consumer, redelivered, content } => {
                let consumer = known(consumer);
                if content.exchange.is_empty() && is_reply_name(content.key) {
                    return self.replied_to(client, number, consumer, tag, redelivered, &content);
                }
                self.delivered(client, number, consumer, tag, redelivered, &content, round)
            }
            Sent::Confirm { tag, multiple } => self.confirm(client, number, tag, multiple),
            Sent::Refused { tag, multiple } => self.refused(client, number, tag, multiple),
            Sent::Return { code, content } => self.returned(client, number, code, &content),
            Sent::Cancelled(tag) => match known(tag) {
                Some(tag) if channel.cancels_due.remove(tag) => {
                    channel.consumers.remove(tag);
                    Ok(())
                }
                tag => violation("protocol", format!("client {client}: cancel of {tag:?}")),
            },
            sent => self.replied(client, number, sent, round),
        }
    }

    fn replied(
        &mut self,
        client: usize,
        number: u16,
        sent: Sent<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        let failed = channel.failed;
        let mut due = channel.replies.pop_front();
        // A get that waited for the disk is not answered on a channel that closes.
        while failed
            && matches!(due, Some(Reply::Get { .. }))
            && !matches!(sent, Sent::GetOk { .. } | Sent::GetEmpty)
        {
            due = channel.replies.pop_front();
        }
        let Some(due) = due else {
            // Deliveries that stay for too long are all that fails a channel which has asked for nothing.
            let rule = match sent {
                Sent::Error { code: 406, .. } => "leases hold",
                _ => "protocol",
            };
            return violation(rule, format!("client {client}: {sent:?} without a request"));
        };
        if due.may_wait()
            && let Some(connection) = self.connections.get_mut(&client)
        {
            connection.barriers -= 1;
        }
        self.waited_until_now([&due]);
        let wrong = |due: &Reply, sent: &Sent<'_>| {
            violation("protocol", format!("client {client}: {sent:?} where {due:?} was due"))
        };
        let within = |range: Option<(usize, usize)>, count: u32| {
            range.is_none_or(|(least, most)| (least..=most).contains(&(count as usize)))
        };
        match (&due, sent) {
            (Reply::DeclareOk(ready), Sent::DeclareOk { count })
            | (Reply::DeleteOk(ready), Sent::DeleteOk { count })
            | (Reply::PurgeOk(ready), Sent::PurgeOk { count }) => {
                if within(*ready, count) {
                    return Ok(());
                }
                violation("counts are right", format!("client {client}: {count}, not {due:?}"))
            }
            (Reply::ConsumeOk(tag), Sent::ConsumeOk(sent)) if tag.as_bytes() == sent => Ok(()),
            (Reply::FlowOk(active), Sent::FlowOk { active: sent }) if *active == sent => {
                if let Some(channel) = self.channel(client, number) {
                    channel.told_paused = !sent;
                }
                Ok(())
            }
            (Reply::CancelOk(tag), Sent::CancelOk(sent)) if tag.as_bytes() == sent => {
                if let Some(channel) = self.channel(client, number) {
                    channel.consumers.remove(tag);
                }
                Ok(())
            }
            (Reply::CommitOk(enqueued), Sent::Ok("tx.commit-ok")) => {
                let durable = enqueued.iter().filter(|one| one.stored).map(|one| one.op).max();
                self.accepted(enqueued.iter().cloned())?;
                if let Some(op) = durable {
                    self.durable(op);
                }
                Ok(())
            }
            (Reply::CommitOk(enqueued), Sent::Error { code: 406, .. })
                if enqueued.iter().any(|one| !one.may_refuse.is_empty()) =>
            {
                self.commit_refused(client, number, enqueued)
            }
            // Sent before the error was found, held back by the disk.
            (Reply::Get { .. }, Sent::GetOk { content, .. }) if failed => {
                self.genuine(&content).map(drop)
            }
            (Reply::Get { queue, no_ack, .. }, Sent::GetOk { tag, redelivered, left, content }) => {
                let (queue, no_ack) = (*queue, *no_ack);
                self.got(client, number, queue, no_ack, tag, redelivered, &content, round)?;
                round.counts.told(queue, left, self.ready_range(queue));
                Ok(())
            }
            (Reply::Get { queue, asked_op, .. }, Sent::GetEmpty) => {
                let (name, asked_op, exact) = (*queue, *asked_op, round.exact);
                // One that waited, for the disk or behind another, while its queue was deleted asked for
                // nothing of the queue that has the name now.
                let asked = |queue: &&Queue| exact && queue.declared_op <= asked_op;
                if self.queues.get(name).filter(asked).is_some() {
                    round.empty.insert(name);
                }
                Ok(())
            }
            (Reply::RecoverOk, Sent::Ok("basic.recover-ok")) => {
                // Deliveries that the disk held back until now were recovered with the others.
                let hidden = self.channel(client, number).map(|c| std::mem::take(&mut c.unacked));
                for unacked in hidden.unwrap_or_default().into_values() {
                    self.requeue(unacked);
                }
                Ok(())
            }
            (Reply::Error(code), Sent::Error { code: sent, .. }) if *code == sent => Ok(()),
            (due, Sent::Ok(name)) if due.name() == Some(name) => Ok(()),
            (due, Sent::Error { code, text }) => {
                let what = format!("client {client}: {code} '{text}' where {due:?} was due");
                violation("protocol", what)
            }
            (due, sent) => wrong(due, &sent),
        }
    }

    /// Whether another get of this queue waits for its answer.
    pub(super) fn is_got_by_others(&self, name: Name) -> bool {
        let channels =
            self.connections.values().flat_map(|connection| connection.channels.values());
        let mut due = channels.flat_map(|channel| &channel.replies);
        due.any(|reply| matches!(reply, Reply::Get { queue, .. } if *queue == name))
    }

    #[expect(clippy::too_many_arguments, reason = "a method's fields, one by one")]
    fn delivered(
        &mut self,
        client: usize,
        number: u16,
        tag_name: Option<Name>,
        tag: u64,
        redelivered: bool,
        content: &Content<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        let exact = self.connections.get(&client).is_some_and(|c| c.barriers == 0) && round.exact;
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        let Some((name, consumer)) =
            tag_name.and_then(|name| Some((name, channel.consumers.get(name)?.clone())))
        else {
            let what = format!("client {client}: delivery to {tag_name:?}, which does not consume");
            return violation("protocol", what);
        };
        if channel.told_paused {
            let what = format!("client {client}: delivery to {name} on channel {number}");
            return violation("who has paused gets nothing", what);
        }
        if consumer.cancelled && exact {
            let what = format!("client {client}: delivery to {name} after its end");
            return violation("protocol", what);
        }
        if exact {
            self.serves(consumer.queue, (client, number, name), round)?;
        }
        self.take(
            client,
            number,
            Some((name, consumer.serial)),
            consumer.queue,
            consumer.no_ack,
            tag,
            redelivered,
            content,
            round,
        )?;
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        if consumer.no_ack || !exact {
            return Ok(());
        }
        let held = channel.held_by(Some((name, consumer.serial)));
        if consumer.prefetch != 0 && held > usize::from(consumer.prefetch) {
            let what = format!("client {client}: {name} holds {held} of {}", consumer.prefetch);
            return violation("prefetch", what);
        }
        // What comes before its answer may have been on its way before the channel's limit was heard.
        let limit_holds = !channel.replies.iter().any(|reply| matches!(reply, Reply::QosOk));
        let held = channel.held_by(None);
        let limit = usize::from(channel.prefetch_global);
        if limit_holds && limit != 0 && held > limit {
            let what = format!("client {client}: channel {number} holds {held} of {limit}");
            return violation("prefetch", what);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "a method's fields, one by one")]
    fn got(
        &mut self,
        client: usize,
        number: u16,
        queue: Name,
        no_ack: bool,
        tag: u64,
        redelivered: bool,
        content: &Content<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        self.take(client, number, None, queue, no_ack, tag, redelivered, content, round)
    }

    #[expect(clippy::too_many_arguments, reason = "a method's fields, one by one")]
    fn take(
        &mut self,
        client: usize,
        number: u16,
        consumer: Option<(Name, u64)>,
        queue: Name,
        no_ack: bool,
        tag: u64,
        redelivered: bool,
        content: &Content<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        self.delivered += 1;
        let (message, letter) = self.genuine(content)?;
        let op = self.op;
        let certain = round.exact;
        let who =
            format!("client {client}, channel {number}, queue {queue}, message {}", message.id);
        let recovering = self
            .channel(client, number)
            .is_some_and(|c| c.replies.iter().any(|reply| matches!(reply, Reply::RecoverOk)));
        let Some(found) = self.queues.get_mut(queue) else { return Ok(()) };
        let Some(position) = found.ready_with_id(message.id, letter) else {
            let same =
                |instance: &&Instance| (instance.id, instance.letter) == (message.id, letter);
            let place = found.instances.values().find(same);
            // It left unseen before the queue was purged or deleted, or before it was recovered.
            let settled = place.is_none_or(|place| matches!(place.place, Place::Settled { .. }));
            if !certain && (settled || recovering) {
                // Its ack is taken all the same, and means nothing.
                let gone = Unacked { queue, position: u64::MAX, consumer };
                return self.took(client, number, tag, (!no_ack).then_some(gone));
            }
            return violation("delivered once", format!("{who}: delivered, and it is {place:?}"));
        };
        if certain && found.is_overdue(position) {
            return violation("what has expired is not delivered", who);
        }
        let flag = found.instances[&position].flag;
        match flag {
            Flag::Set if !redelivered => {
                return violation(
                    "redelivered is told",
                    format!("{who}: not marked as redelivered"),
                );
            }
            Flag::Unset if redelivered && certain => {
                return violation(
                    "redelivered is told",
                    format!("{who}: wrongly marked as redelivered"),
                );
            }
            _ => {}
        }
        self.letters += u64::from(letter.is_some());
        self.left += u64::from(found.instances[&position].loose);
        let doubtful = found.instances[&position].may;
        if !found.instances[&position].loose {
            let reached = round.reached.entry(queue).or_insert(0);
            *reached = (*reached).max(position);
        }
        found.deliver(position, client, number);
        round.counts.took(queue);
        if no_ack {
            found.settle(position, op);
        }
        if doubtful {
            found.came_by(position, op);
            self.is_there(queue, message.id, letter, &mut round.counts);
        }
        if no_ack {
            return self.took(client, number, tag, None);
        }
        self.took(client, number, tag, Some(Unacked { queue, position, consumer }))
    }

    /// Delivery tags count from 1 without a gap (RabbitMQ; clients rely on it for `multiple`).
    pub(super) fn took(
        &mut self,
        client: usize,
        number: u16,
        tag: u64,
        unacked: Option<Unacked>,
    ) -> Result<(), Violation> {
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        if tag != channel.last_tag + 1 {
            let what = format!("client {client}: tag {tag} after {}", channel.last_tag);
            return violation("delivery tags count", what);
        }
        channel.last_tag = tag;
        if let Some(unacked) = unacked {
            channel.unacked.insert(tag, unacked);
        }
        Ok(())
    }

    fn confirm(
        &mut self,
        client: usize,
        number: u16,
        tag: u64,
        multiple: bool,
    ) -> Result<(), Violation> {
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        let who = format!("client {client}, channel {number}: confirm {tag}");
        let Mode::Confirm { outstanding, .. } = &mut channel.mode else {
            return violation("every publish settles", format!("{who} outside confirm mode"));
        };
        // Of many, too: clients that forget a number once it is acked take it for an error when it comes again.
        if !outstanding.contains_key(&tag) {
            return violation("every publish settles", format!("{who} is not outstanding"));
        }
        let rest = outstanding.split_off(&(tag + 1));
        let mut settled = std::mem::replace(outstanding, rest);
        if !multiple {
            let mut others = settled.clone();
            settled = others.split_off(&tag);
            outstanding.append(&mut others);
        }
        let unreturned = settled.values().any(|pending| pending.return_due);
        if unreturned
            && channel.returns_due.len() > outstanding.values().filter(|p| p.return_due).count()
        {
            let what = format!("{who} came before the return: {:?}", channel.returns_due);
            return violation("a return comes first", what);
        }
        let durable = settled.values().filter(|pending| pending.stored).map(|p| p.op).max();
        self.confirmed += settled.len() as u64;
        self.accepted(settled.into_values())?;
        if let Some(op) = durable {
            self.durable(op);
        }
        Ok(())
    }

    fn returned(
        &mut self,
        client: usize,
        number: u16,
        code: u16,
        content: &Content<'_>,
    ) -> Result<(), Violation> {
        let (message, _) = self.genuine(content)?;
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        if code != 312 || !channel.returns_due.remove(&message.id) {
            let what = format!("client {client}: message {} returned with {code}", message.id);
            return violation("a return comes first", what);
        }
        Ok(())
    }
}

impl Reply {
    /// The method's name, where its arguments say nothing.
    fn name(&self) -> Option<&'static str> {
        Some(match self {
            Reply::OpenOk => "channel.open-ok",
            Reply::CloseOk => "channel.close-ok",
            Reply::SelectOk => "confirm.select-ok",
            Reply::TxSelectOk => "tx.select-ok",
            Reply::RollbackOk => "tx.rollback-ok",
            Reply::QosOk => "basic.qos-ok",
            Reply::RecoverOk => "basic.recover-ok",
            Reply::BindOk => "queue.bind-ok",
            Reply::UnbindOk => "queue.unbind-ok",
            Reply::ExchangeBindOk => "exchange.bind-ok",
            Reply::ExchangeUnbindOk => "exchange.unbind-ok",
            Reply::ExchangeDeclareOk => "exchange.declare-ok",
            Reply::ExchangeDeleteOk => "exchange.delete-ok",
            _ => return None,
        })
    }
}
