//! A simulated client: what it knows of its connection, and what it does next.
//!
//! A client is careful only as far as its job asks; it knows what it has read, not what the broker has
//! done. All it does follows from the `roll` of its event, so an event list replays without its history.

use std::collections::{BTreeSet, VecDeque};

use forebay_wire::{ContentHeader, FrameKind, Method, read_frame};

use crate::command::{ChannelCommand, Command};
use crate::jobs::{churn, consume, message, next, refused_message, settle, settle_all, some_queue};
use crate::message::{Published, is_reply_name};
use crate::names::{
    DURABLE_QUEUES, EXCLUSIVE_QUEUES, MISSING, Name, REPLY_TAG, REPLY_TO, WRONG_TAG, known,
};
use crate::random::Random;
use crate::swarm::{Job, Swarm};

/// Deliveries that a client holds before it only settles.
const HOARD_MESSAGES: usize = 200;

/// Of so many a client knows that they wait for its replies.
const WAIT_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// channel.open is on its way.
    Opening,
    Open,
    /// The broker has closed it; close-ok is due.
    Refused,
}

/// A channel of a client, as far as that knows.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) job: Job,
    state: State,
    /// Its close is on its way.
    closing: bool,
    /// Whether it is there, and has not answered.
    asked: bool,
    /// Answers that are awaited.
    pub(crate) replies_due: usize,
    /// A rollback is to be followed by a recover.
    recover_due: bool,
    /// Confirms or transactions are on, or qos is set.
    prepared: bool,
    /// Publishes without confirm, or within the open transaction.
    outstanding: usize,
    published: u64,
    settled: u64,
    /// Where its last publish went, by exchange and key.
    pub(crate) last: Option<(Name, Name)>,
    /// Its consumers get nothing.
    pub(crate) paused: bool,
    pub(crate) unacked: BTreeSet<u64>,
    pub(crate) consumers: BTreeSet<Name>,
    pub(crate) no_ack: BTreeSet<Name>,
}

/// One client, with at most one connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    index: usize,
    channels: Vec<Channel>,
    received: Vec<u8>,
    close_due: bool,
    /// The broker has agreed to close: the socket may go.
    pub(crate) over: bool,
    has_exclusive: bool,
    /// Publishes no more, settles at once: the run comes to its end.
    pub(crate) finishing: bool,
    last_sent_us: u64,
    /// Names of those who wait for replies to what came.
    wait: VecDeque<Name>,
    names: BTreeSet<Name>,
}

impl Client {
    pub(crate) fn new(index: usize, jobs: &[Job]) -> Client {
        let channels = jobs.iter().map(|job| Channel::new(*job)).collect();
        Client {
            index,
            channels,
            received: Vec::new(),
            close_due: false,
            over: false,
            has_exclusive: false,
            finishing: false,
            last_sent_us: 0,
            wait: VecDeque::new(),
            names: BTreeSet::new(),
        }
    }

    /// A fresh connection: nothing of the old one counts.
    pub(crate) fn reset(&mut self) {
        self.received.clear();
        self.close_due = false;
        self.over = false;
        self.has_exclusive = false;
        self.last_sent_us = 0;
        for channel in &mut self.channels {
            *channel = Channel::new(channel.job);
        }
    }

    /// Takes bytes from the broker.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        let mut received = std::mem::take(&mut self.received);
        received.extend_from_slice(bytes);
        let mut at = 0;
        while let Ok(Some(frame)) = read_frame(&received[at..], 0) {
            at += frame.size_bytes();
            if frame.kind == FrameKind::Method
                && let Ok(method) = Method::parse(frame.payload)
            {
                self.understand(frame.channel, &method);
            } else if frame.kind == FrameKind::Header
                && let Ok(header) = ContentHeader::parse(frame.payload)
                && let Some(name) = header.properties.parse().reply_to
            {
                self.note_who_waits(name.as_bytes());
            }
        }
        received.drain(..at);
        self.received = received;
    }

    /// Somebody waits for replies to what came. The name is kept for as long as the program runs: there are few.
    fn note_who_waits(&mut self, name: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else { return };
        if !is_reply_name(name.as_bytes()) || self.wait.len() >= WAIT_MAX {
            return;
        }
        let known = self.names.get(name).copied();
        let name = known.unwrap_or_else(|| String::from(name).leak());
        self.names.insert(name);
        self.wait.push_back(name);
    }

    fn understand(&mut self, number: u16, method: &Method<'_>) {
        match method {
            Method::ConnectionClose(_) => self.close_due = true,
            Method::ConnectionCloseOk(_) => self.over = true,
            _ => {}
        }
        let Some(channel) =
            usize::from(number).checked_sub(1).and_then(|at| self.channels.get_mut(at))
        else {
            return;
        };
        match method {
            Method::ChannelOpenOk(_) => {
                channel.state = State::Open;
                channel.replies_due = channel.replies_due.saturating_sub(1);
            }
            // Its own close has crossed this one, and its answer is on the way.
            Method::ChannelClose(_) if channel.closing => {}
            Method::ChannelClose(_) => channel.state = State::Refused,
            Method::ChannelCloseOk(_) => *channel = Channel::new(channel.job),
            Method::BasicDeliver(deliver) => {
                let tag = known(deliver.consumer_tag.as_bytes()).unwrap_or_default();
                if !channel.no_ack.contains(tag) {
                    channel.unacked.insert(deliver.delivery_tag);
                }
            }
            Method::BasicGetOk(get) => {
                channel.replies_due = channel.replies_due.saturating_sub(1);
                // Churn gets without acknowledging.
                if channel.job != Job::Churn {
                    channel.unacked.insert(get.delivery_tag);
                }
            }
            Method::BasicAck(ack) => channel.confirmed(ack.delivery_tag, ack.multiple),
            Method::BasicNack(nack) => channel.confirmed(nack.delivery_tag, nack.multiple),
            Method::BasicCancel(cancel) => {
                if let Some(tag) = known(cancel.consumer_tag.as_bytes()) {
                    channel.consumers.remove(tag);
                }
            }
            Method::BasicReturn(_) => {}
            Method::ChannelFlow(_) => channel.asked = true,
            // Every other method answers what the channel waits for.
            _ => channel.replies_due = channel.replies_due.saturating_sub(1),
        }
    }

    /// What the client does next on an open connection; nothing if it has nothing to do.
    pub(crate) fn act(
        &mut self,
        swarm: &Swarm,
        roll: u64,
        now_us: u64,
        next_id: u32,
    ) -> Vec<Command> {
        let mut random = Random::new(roll);
        if self.close_due {
            self.close_due = false;
            return vec![Command::CloseConnectionOk];
        }
        if swarm.heartbeat_s > 0 && now_us > self.last_sent_us + 300_000 {
            self.last_sent_us = now_us;
            return vec![Command::Heartbeat];
        }
        if !self.finishing && random.one_in(2000) {
            return vec![Command::CloseConnection];
        }
        let at = random.index(self.channels.len());
        let commands = self.act_on(at, swarm, &mut random, next_id);
        if !commands.is_empty() {
            self.last_sent_us = now_us;
        }
        self.channels[at].replies_due += commands.iter().filter(|c| c.is_answered()).count();
        commands.into_iter().map(|command| Command::Channel(at as u16 + 1, command)).collect()
    }

    fn act_on(
        &mut self,
        at: usize,
        swarm: &Swarm,
        random: &mut Random,
        next_id: u32,
    ) -> Vec<ChannelCommand> {
        let mut commands = Vec::new();
        let mut say = |command| commands.push(command);
        let exclusive = EXCLUSIVE_QUEUES[self.index % EXCLUSIVE_QUEUES.len()];
        let channel = &mut self.channels[at];
        match channel.state {
            State::Refused => {
                *channel = Channel::new(channel.job);
                say(ChannelCommand::CloseOk);
                return commands;
            }
            State::Closed => {
                channel.state = State::Opening;
                say(ChannelCommand::Open);
                return commands;
            }
            State::Opening => return commands,
            State::Open => {}
        }
        if std::mem::take(&mut channel.asked) {
            say(ChannelCommand::FlowOk);
            return commands;
        }
        if !self.finishing && channel.replies_due == 0 && random.one_in(500) {
            channel.state = State::Opening;
            channel.closing = true;
            say(ChannelCommand::Close);
            return commands;
        }
        if swarm.mistakes && !self.finishing && random.one_in(100) && channel.replies_due == 0 {
            say(match random.below(6) {
                // All its connection may do is end.
                0 => ChannelCommand::Recover { requeue: false },
                1 => ChannelCommand::Publish(refused_message(swarm, random, next_id)),
                2 | 3 => ChannelCommand::Ack { tag: 1 << 40, multiple: random.one_in(2) },
                4 => ChannelCommand::Consume {
                    queue: MISSING,
                    tag: WRONG_TAG,
                    no_ack: false,
                    exclusive: false,
                    priority: 0,
                },
                _ => ChannelCommand::Bind { queue: DURABLE_QUEUES[0], exchange: MISSING, key: "" },
            });
            return commands;
        }
        match channel.job {
            Job::Publish | Job::Confirm => {
                if channel.job == Job::Confirm && !channel.prepared {
                    channel.prepared = true;
                    say(ChannelCommand::ConfirmSelect);
                    return commands;
                }
                if self.finishing || channel.replies_due > 0 {
                    return commands;
                }
                if channel.job == Job::Confirm && channel.outstanding >= swarm.window_messages {
                    return commands;
                }
                for id in (next_id..).take(1 + random.below(swarm.burst_messages) as usize) {
                    channel.outstanding += 1;
                    channel.published += 1;
                    say(ChannelCommand::Publish(next(swarm, channel, random, id, &mut self.wait)));
                }
            }
            Job::Request => {
                if self.finishing || channel.replies_due > 0 {
                    return commands;
                }
                if !channel.prepared {
                    channel.prepared = true;
                    channel.no_ack.insert(REPLY_TAG);
                    say(ChannelCommand::Consume {
                        queue: REPLY_TO,
                        tag: REPLY_TAG,
                        no_ack: true,
                        exclusive: false,
                        priority: 0,
                    });
                } else if random.one_in(30) {
                    channel.prepared = false;
                    say(ChannelCommand::Cancel(REPLY_TAG));
                } else {
                    let request = message(swarm, random, next_id, &mut VecDeque::new());
                    say(ChannelCommand::Publish(Published { wants_reply: true, ..request }));
                }
            }
            Job::Transact => {
                if !channel.prepared {
                    channel.prepared = true;
                    say(ChannelCommand::TxSelect);
                } else if channel.replies_due > 0 {
                } else if self.finishing
                    || channel.outstanding >= swarm.transaction_messages()
                    || channel.outstanding > 0 && random.one_in(5)
                {
                    if channel.outstanding > 0 || !channel.unacked.is_empty() {
                        settle_all(channel, &mut say);
                        channel.outstanding = 0;
                        say(ChannelCommand::Commit);
                    }
                } else if channel.outstanding > 0 && random.one_in(20) {
                    channel.outstanding = 0;
                    channel.unacked.clear();
                    channel.recover_due = true;
                    say(ChannelCommand::Rollback);
                } else if channel.recover_due {
                    // What came back with the rollback is given back for good.
                    channel.recover_due = false;
                    channel.unacked.clear();
                    say(ChannelCommand::Recover { requeue: true });
                } else if random.one_in(3) {
                    say(ChannelCommand::Get { queue: some_queue(random), no_ack: false });
                } else if !channel.unacked.is_empty() && random.one_in(2) {
                    settle(swarm, channel, random, &mut say);
                    channel.outstanding += 1;
                } else {
                    channel.outstanding += 1;
                    say(ChannelCommand::Publish(message(swarm, random, next_id, &mut self.wait)));
                }
            }
            Job::Consume => {
                if self.finishing {
                    settle_all(channel, &mut say);
                    if std::mem::take(&mut channel.paused) {
                        say(ChannelCommand::Flow { active: true });
                    }
                    return commands;
                }
                if swarm.balance && !channel.prepared {
                    // What one consumer could hold of a queue would not wait in it.
                    channel.prepared = true;
                    say(ChannelCommand::Qos { count: swarm.prefetch_max, global: false });
                    return commands;
                }
                let idle = if swarm.balance { 40 } else { 8 };
                if swarm.slow_consumers && !channel.consumers.is_empty() && random.below(idle) > 0 {
                    return commands;
                }
                let settle_now = channel.unacked.len() > HOARD_MESSAGES || random.below(4) > 0;
                if !channel.unacked.is_empty() && settle_now {
                    settle(swarm, channel, random, &mut say);
                } else if channel.replies_due == 0 {
                    consume(swarm, channel, random, &mut say);
                }
            }
            Job::Get => {
                if !channel.unacked.is_empty() && (self.finishing || random.one_in(2)) {
                    match self.finishing {
                        true => settle_all(channel, &mut say),
                        false => settle(swarm, channel, random, &mut say),
                    }
                } else if channel.replies_due == 0 && !self.finishing {
                    // Two at a time, now and then: they are answered in order.
                    for _ in 0..1 + random.below(3) / 2 {
                        say(ChannelCommand::Get { queue: some_queue(random), no_ack: false });
                    }
                }
            }
            Job::Churn => {
                if channel.replies_due == 0 && !self.finishing {
                    churn(exclusive, &mut self.has_exclusive, random, swarm, &mut say);
                }
            }
        }
        commands
    }

    /// Whether nothing that it is owed is missing, as far as it knows.
    pub(crate) fn is_idle(&self) -> bool {
        !self.close_due
            && self.channels.iter().all(|channel| {
                channel.unacked.is_empty()
                    && channel.replies_due == 0
                    && !channel.paused
                    && channel.state == State::Open
                    && (channel.job != Job::Confirm
                        || channel.prepared && channel.settled == channel.published)
                    && (channel.job != Job::Transact || channel.outstanding == 0)
            })
    }
}

impl Channel {
    fn new(job: Job) -> Channel {
        Channel {
            job,
            state: State::Closed,
            closing: false,
            asked: false,
            replies_due: 0,
            recover_due: false,
            prepared: false,
            outstanding: 0,
            published: 0,
            settled: 0,
            last: None,
            paused: false,
            unacked: BTreeSet::new(),
            consumers: BTreeSet::new(),
            no_ack: BTreeSet::new(),
        }
    }

    fn confirmed(&mut self, tag: u64, multiple: bool) {
        let before = self.settled;
        self.settled = self.settled.max(tag);
        let gone = if multiple { tag.saturating_sub(before) } else { 1 };
        self.outstanding = self.outstanding.saturating_sub(gone.max(1) as usize);
        if self.settled == self.published {
            self.outstanding = 0;
        }
    }
}
