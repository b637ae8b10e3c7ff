//! What clients say for their jobs: messages, settlements, consumers, declarations.

use std::collections::VecDeque;

use crate::client::Channel;
use crate::command::ChannelCommand;
use crate::message::Published;
use crate::names::{
    ALTERNATE, CONSUMER_PRIORITIES, DEFAULT, DIRECT, DURABLE_QUEUES, EXPIRATIONS, EXTRA_KEYS,
    FANOUT, KEYS, MISSING, Name, PASSING_EXCHANGES, PASSING_QUEUES, PATTERNS, TAGS, TOPIC,
    TRANSIENT_QUEUES,
};
use crate::random::Random;
use crate::swarm::{Job, Swarm};

/// A message, perhaps a reply to one of those who wait for some.
pub(crate) fn message(
    swarm: &Swarm,
    random: &mut Random,
    id: u32,
    wait: &mut VecDeque<Name>,
) -> Published {
    let who = if random.one_in(2) { wait.pop_front() } else { None };
    let (exchange, key) = match random.below(8) {
        _ if who.is_some() => (DEFAULT, who.unwrap_or_default()),
        0..4 => (DEFAULT, some_queue(random)),
        4 => (DIRECT, random.pick(&[DURABLE_QUEUES[0], TRANSIENT_QUEUES[0], "zz"])),
        5 => (TOPIC, random.pick(&KEYS)),
        6 => (FANOUT, random.pick(&KEYS)),
        _ => (DEFAULT, random.pick(&PASSING_QUEUES)),
    };
    let body_bytes = match random.below(16) {
        0 if swarm.large_bodies => 9_000 + random.below(20_000) as u32,
        1..3 if swarm.large_bodies => 1_000 + random.below(5_000) as u32,
        _ => 4 + random.below(swarm.body_bytes) as u32,
    };
    let mut extra_key = || {
        (swarm.extra_keys && who.is_none() && random.one_in(4)).then(|| random.pick(&EXTRA_KEYS))
    };
    let (cc, bcc) = (extra_key(), extra_key());
    Published {
        id,
        body_bytes,
        persistent: random.below(16) < swarm.persistent_sixteenths,
        priority: if swarm.priorities { random.below(6) as u8 } else { 0 },
        expiration: (swarm.expirations && random.one_in(3)).then(|| random.pick(&EXPIRATIONS)),
        mandatory: random.below(16) < swarm.mandatory_sixteenths,
        exchange,
        key,
        cc,
        bcc,
        wants_reply: false,
    }
}

/// A message, often to where the last one of this channel went: the broker remembers its queues.
pub(crate) fn next(
    swarm: &Swarm,
    channel: &mut Channel,
    random: &mut Random,
    id: u32,
    wait: &mut VecDeque<Name>,
) -> Published {
    let again = channel.last.filter(|_| random.one_in(3));
    let mut message = message(swarm, random, id, wait);
    if message.is_reply() {
        return message;
    }
    (message.exchange, message.key) = again.unwrap_or((message.exchange, message.key));
    channel.last = Some((message.exchange, message.key));
    message
}

/// A message to an exchange that is not there, or that takes none from publishers.
pub(crate) fn refused_message(swarm: &Swarm, random: &mut Random, id: u32) -> Published {
    let message = message(swarm, random, id, &mut VecDeque::new());
    let exchange = if swarm.internal && random.one_in(2) { ALTERNATE } else { MISSING };
    Published { exchange, ..message }
}

pub(crate) fn some_queue(random: &mut Random) -> Name {
    match random.below(6) {
        0 => random.pick(&TRANSIENT_QUEUES),
        // Mostly few queues, so that something piles up.
        1..4 => DURABLE_QUEUES[0],
        _ => random.pick(&DURABLE_QUEUES),
    }
}

pub(crate) fn settle_all(channel: &mut Channel, say: &mut impl FnMut(ChannelCommand)) {
    for tag in std::mem::take(&mut channel.unacked) {
        say(ChannelCommand::Ack { tag, multiple: false });
    }
}

pub(crate) fn settle(
    swarm: &Swarm,
    channel: &mut Channel,
    random: &mut Random,
    say: &mut impl FnMut(ChannelCommand),
) {
    // Recover-ok might overtake a get that waits for the disk (docs/guide.md).
    let silent = channel.replies_due == 0;
    if silent && channel.job != Job::Transact && swarm.requeue_one_in > 0 && random.one_in(200) {
        channel.unacked.clear();
        say(ChannelCommand::Recover { requeue: true });
        return;
    }
    let at = if random.one_in(2) { 0 } else { random.index(channel.unacked.len()) };
    let Some(tag) = channel.unacked.iter().nth(at).copied() else { return };
    let multiple = swarm.multiple && random.one_in(3);
    if multiple {
        channel.unacked = channel.unacked.split_off(&(tag + 1));
    } else {
        channel.unacked.remove(&tag);
    }
    say(if swarm.requeue_one_in > 0 && random.one_in(swarm.requeue_one_in) {
        let rejected_quarters = if swarm.dead_letters { 3 } else { 1 };
        ChannelCommand::Nack { tag, multiple, requeue: random.below(4) >= rejected_quarters }
    } else {
        ChannelCommand::Ack { tag, multiple }
    });
}

pub(crate) fn consume(
    swarm: &Swarm,
    channel: &mut Channel,
    random: &mut Random,
    say: &mut impl FnMut(ChannelCommand),
) {
    let free = TAGS.into_iter().find(|tag| !channel.consumers.contains(tag));
    match (channel.consumers.first().copied(), free) {
        (_, Some(tag)) if channel.consumers.is_empty() || random.one_in(10) => {
            let no_ack = random.one_in(10);
            channel.consumers.insert(tag);
            if no_ack {
                channel.no_ack.insert(tag);
            } else {
                channel.no_ack.remove(tag);
            }
            let exclusive = random.one_in(20);
            let queue =
                if random.one_in(8) { random.pick(&PASSING_QUEUES) } else { some_queue(random) };
            let priority = match swarm.consumer_priorities {
                true => random.pick(&CONSUMER_PRIORITIES),
                false => 0,
            };
            say(ChannelCommand::Consume { queue, tag, no_ack, exclusive, priority });
        }
        (Some(tag), _) if random.one_in(20) => {
            channel.consumers.remove(tag);
            say(ChannelCommand::Cancel(tag));
        }
        _ if swarm.pauses && random.one_in(if channel.paused { 4 } else { 16 }) => {
            say(ChannelCommand::Flow { active: channel.paused });
            channel.paused = !channel.paused;
        }
        _ if random.one_in(4) => {
            let none = swarm.prefetch_max == 0 && random.one_in(2);
            let count =
                if none { 0 } else { 1 + random.below(u64::from(swarm.prefetch_max)) as u16 };
            say(ChannelCommand::Qos { count, global: random.one_in(4) });
        }
        _ => {}
    }
}

pub(crate) fn churn(
    exclusive: Name,
    has_exclusive: &mut bool,
    random: &mut Random,
    swarm: &Swarm,
    say: &mut impl FnMut(ChannelCommand),
) {
    let declare = |queue, durable, exclusive, auto_delete, passive| ChannelCommand::DeclareQueue {
        queue,
        durable,
        exclusive,
        auto_delete,
        passive,
        max_priority: swarm.max_priority(queue),
        single_active: swarm.is_single_active(queue),
    };
    let queue = random.pick(&PASSING_QUEUES);
    let exchange = random.pick(&PASSING_EXCHANGES);
    // Perhaps from one that comes and goes, or in a circle.
    let source = random.pick(&[TOPIC, TOPIC, PASSING_EXCHANGES[0], PASSING_EXCHANGES[1]]);
    match random.below(20) {
        0..3 => say(declare(queue, true, false, random.one_in(8), false)),
        3 => say(ChannelCommand::DeleteQueue { queue, if_unused: random.one_in(2) }),
        4 => say(ChannelCommand::Purge(some_queue(random))),
        5 => say(declare(some_queue(random), true, false, false, true)),
        6 => {
            // The queue comes back empty, bound as before, or somebody uses it, and all of that is in vain.
            let queue = random.pick(&DURABLE_QUEUES);
            say(ChannelCommand::DeleteQueue { queue, if_unused: random.one_in(2) });
            say(declare(queue, true, false, false, false));
            for (exchange, key, _) in swarm.bindings.iter().filter(|(_, _, to)| *to == queue) {
                say(ChannelCommand::Bind { queue, exchange, key });
            }
        }
        7 => {
            *has_exclusive = true;
            say(declare(exclusive, false, true, false, false));
            say(ChannelCommand::Bind { queue: exclusive, exchange: FANOUT, key: "" });
        }
        8 if *has_exclusive => say(ChannelCommand::Get { queue: exclusive, no_ack: true }),
        9 => {
            let made = swarm.exchange(exchange);
            say(ChannelCommand::DeclareExchange { exchange, made, passive: false });
            let key = random.pick(&PATTERNS);
            say(ChannelCommand::BindExchange { destination: exchange, source, key });
            say(ChannelCommand::Bind { queue: some_queue(random), exchange, key });
        }
        10 => say(ChannelCommand::DeleteExchange { exchange, if_unused: random.one_in(2) }),
        11 | 12 => {
            let key = random.pick(&PATTERNS);
            say(ChannelCommand::Bind { queue: some_queue(random), exchange: TOPIC, key });
        }
        13 => {
            let key = random.pick(&PATTERNS);
            say(ChannelCommand::Unbind { queue: some_queue(random), exchange: TOPIC, key });
        }
        14 => say(declare(random.pick(&DURABLE_QUEUES), true, false, false, true)),
        15 => {
            let key = random.pick(&PATTERNS);
            say(ChannelCommand::UnbindExchange { destination: exchange, source, key });
        }
        16 | 17 => {
            let key = random.pick(&PATTERNS);
            say(ChannelCommand::Unbind { queue: some_queue(random), exchange, key });
        }
        18 => {
            let made = swarm.exchange(exchange);
            say(ChannelCommand::DeclareExchange { exchange, made, passive: true });
        }
        // One that has gone, perhaps, as nobody used it.
        _ => say(declare(random.pick(&TRANSIENT_QUEUES), false, false, false, false)),
    }
}
