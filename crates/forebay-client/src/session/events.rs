//! What the connection says, sorted to whom it concerns.

use forebay_wire::{Method, ReplyCode};

use super::culprit::Ending;
use super::{Owner, Phase, Redeclaring, Reply, Session, owner};
use crate::error::{Lost, Refusal};
use crate::happening::Happening;
use crate::machine::{CloseReason, Event, Failed};
use crate::received::Received;

/// What an event calls for, once the machine is free again.
#[derive(Debug)]
pub(super) enum Todo {
    Declared,
    DeclarationRefused(Refusal),
    /// The broker closed the connection for this method, by class and number, while things are declared again.
    ClosedFor((u16, u16), Refusal),
    ReopenLedger(usize),
    ReopenCalls(usize),
    ReplaceStuck(usize),
    /// All that was on its way to a consumer when messages went back has come.
    HasReturned(usize),
    /// A consumer of a user's channel whose user has gone.
    CancelUnwanted(usize, u16, String),
    Opened,
}

impl Session {
    pub(super) fn read_events(&mut self, input: &mut &[u8], now_us: u64) -> Result<(), Lost> {
        let Session {
            machine,
            phase,
            owners,
            users,
            ledgers,
            intakes,
            calls,
            inbox_bytes,
            of_use,
            blocked,
            commit_time,
            closed,
            ending,
            todo,
            arrived,
            settled_ledgers,
            wakeups,
            happenings,
            ..
        } = self;
        loop {
            let event = match machine.poll_event(input) {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(()),
                Err(failed) => {
                    // What a consumer is sent may be what cannot be read, or what a program does on its own channel.
                    let of_publishers = intakes.is_empty() && users.is_empty() && calls.is_empty();
                    *ending = of_publishers.then_some(Ending::Unclear);
                    return Err(Lost::Failed(failed));
                }
            };
            *of_use |=
                matches!(event, Event::Settled { .. } | Event::Delivery(_) | Event::Got { .. });
            match event {
                Event::Settled { channel, settled } => match owner(owners, channel) {
                    Owner::Ledger(key) => {
                        ledgers[key].settled(settled, now_us, wakeups);
                        note(settled_ledgers, key);
                    }
                    Owner::User(key) => users[key].settled(settled, wakeups),
                    _ => {}
                },
                Event::Delivery(delivery) => match owner(owners, delivery.channel) {
                    Owner::Intake(key) => {
                        if !intakes[key].delivered(&delivery, now_us) {
                            let what = "a delivery tag that was there before";
                            let channel = delivery.channel;
                            return Err(Lost::Failed(Failed::Misbehaved { what, channel }));
                        }
                        note(arrived, key);
                    }
                    Owner::User(key) => {
                        let message = Received::from_delivery(&delivery);
                        let tag = delivery.consumer_tag.to_string();
                        *inbox_bytes += users[key].delivered(&tag, message, wakeups);
                    }
                    Owner::Calls(key) => calls[key].replied(&delivery, now_us, wakeups),
                    Owner::Ledger(_) | Owner::Redeclaring | Owner::Nobody => {}
                },
                Event::Reply { channel, method } => match owner(owners, channel) {
                    Owner::User(key) if matches!(method, Method::ChannelCloseOk(_)) => {
                        users[key].close_ok(wakeups);
                    }
                    Owner::User(key) => {
                        if let Method::BasicCancelOk(ok) = &method {
                            users[key].cancelled(&ok.consumer_tag.to_string(), wakeups);
                        }
                        let unwanted = users[key].reply(Reply::from_method(&method), wakeups);
                        todo.extend(unwanted.map(|tag| Todo::CancelUnwanted(key, channel, tag)));
                    }
                    Owner::Intake(key) => match method {
                        Method::BasicConsumeOk(_) => intakes[key].consuming(now_us, wakeups),
                        Method::QueueDeclareOk(ok) => {
                            let stuck = intakes[key].queue_told(ok.message_count, now_us);
                            todo.extend(stuck.then_some(Todo::ReplaceStuck(key)));
                        }
                        Method::BasicQosOk(_) | Method::ChannelFlowOk(_) => {
                            let returned = intakes[key].is_set();
                            todo.extend(returned.then_some(Todo::HasReturned(key)));
                        }
                        _ => {}
                    },
                    Owner::Redeclaring => {
                        if !matches!(method, Method::ChannelOpenOk(_)) {
                            todo.push(Todo::Declared);
                        }
                    }
                    Owner::Ledger(key) => {
                        if let Method::ChannelOpenOk(ok) = method
                            && ledgers[key].is_in_doubt()
                        {
                            ledgers[key].resumed(channel, ok.reserved_1, now_us, wakeups);
                            note(settled_ledgers, key);
                        }
                    }
                    Owner::Calls(key) => {
                        if let Method::BasicConsumeOk(_) = method {
                            calls[key].consuming();
                        }
                    }
                    Owner::Nobody => {
                        if let Method::ChannelCloseOk(_) = method {
                            for (_, ledger) in ledgers.iter_mut() {
                                ledger.channel_ended(channel);
                            }
                        }
                    }
                },
                Event::Got { delivery, message_count } => {
                    if let Owner::User(key) = owner(owners, delivery.channel) {
                        let message = Received::from_delivery(&delivery);
                        users[key].reply(Reply::Got { message, message_count }, wakeups);
                    }
                }
                Event::Returned(returned) => match owner(owners, returned.channel) {
                    Owner::Ledger(key) => ledgers[key].returned(&returned),
                    Owner::Calls(key) => calls[key].returned(&returned, wakeups),
                    Owner::User(key) => users[key].returned(&returned),
                    _ => {}
                },
                Event::ConsumerCancelled { channel, consumer_tag } => {
                    let tag = consumer_tag.to_string();
                    match owner(owners, channel) {
                        Owner::User(key) => users[key].cancelled(&tag, wakeups),
                        Owner::Intake(key) if intakes[key].cancelled(&tag, wakeups) => {
                            let queue = intakes[key].queue().to_owned();
                            happenings.push(Happening::ConsumerCancelled { queue });
                            // Its acks are not held any more, and nothing need happen that would write them.
                            note(arrived, key);
                        }
                        _ => {}
                    }
                }
                Event::ChannelClosed { channel, reason } => {
                    let why = refusal(&reason);
                    match owner(owners, channel) {
                        Owner::User(key) => users[key].closed(why, wakeups),
                        Owner::Ledger(key) => {
                            ledgers[key].channel_closed(&why, wakeups);
                            happenings.push(Happening::PublisherChannelClosed { why });
                            todo.push(Todo::ReopenLedger(key));
                        }
                        Owner::Intake(key) => {
                            happenings.extend(intakes[key].channel_closed(&why, now_us, wakeups));
                        }
                        Owner::Calls(key) => {
                            if calls[key].channel_closed(&why, wakeups) {
                                todo.push(Todo::ReopenCalls(key));
                            }
                        }
                        Owner::Redeclaring => todo.push(Todo::DeclarationRefused(why)),
                        Owner::Nobody => {}
                    }
                    if let Some(owner) = owners.get_mut(usize::from(channel) - 1) {
                        *owner = Owner::Nobody;
                    }
                }
                Event::Opened => {
                    *phase = Phase::Restoring;
                    todo.push(Todo::Opened);
                }
                Event::Blocked { reason } => {
                    let reason = reason.to_string();
                    for (_, ledger) in ledgers.iter_mut() {
                        ledger.blocked(now_us);
                    }
                    happenings.push(Happening::Blocked { reason: reason.clone() });
                    *blocked = Some(reason);
                }
                Event::Unblocked => {
                    for (key, ledger) in ledgers.iter_mut() {
                        ledger.unblocked(now_us);
                        note(settled_ledgers, key);
                    }
                    happenings.push(Happening::Unblocked);
                    *blocked = None;
                }
                Event::CommitTime(told) => {
                    *commit_time = told;
                    for (key, ledger) in ledgers.iter_mut() {
                        ledger.commit_time(told);
                        note(settled_ledgers, key);
                    }
                }
                // RabbitMQ sends none; older brokers did. The window does the same by itself.
                Event::Flow { .. } => {}
                Event::Closed { reason } => {
                    *closed = reason.as_ref().map(refusal);
                    *ending = reason.as_ref().and_then(Ending::of_close);
                    // By another code it is the broker that is at fault, and may be well again at the next attempt.
                    let lacks_it = |code| {
                        [ReplyCode::CommandInvalid, ReplyCode::NotImplemented]
                            .map(ReplyCode::code)
                            .contains(&code)
                    };
                    if let Some(reason) = reason
                        && *phase == Phase::Restoring
                        && lacks_it(reason.code)
                    {
                        let method = (reason.class_id, reason.method_id);
                        todo.push(Todo::ClosedFor(method, refusal(&reason)));
                    }
                }
            }
        }
    }

    /// What the events called for, now that the machine can be asked.
    pub(super) fn act(&mut self, now_us: u64) {
        for todo in std::mem::take(&mut self.todo) {
            match todo {
                Todo::Opened => {
                    let topology = std::mem::take(&mut self.topology);
                    self.redeclaring = Redeclaring::begin(topology, &mut self.machine);
                    if let Some(channel) = self.redeclaring.as_ref().and_then(Redeclaring::channel)
                    {
                        self.own(channel, Owner::Redeclaring);
                    }
                    self.restored(now_us);
                }
                Todo::ReopenLedger(key) => {
                    // Its publisher may have gone before, and what closed the channel was the last that kept it.
                    self.sweep_ledger(key);
                    if self.ledgers.contains(key) {
                        self.open_ledger(key, now_us);
                    }
                }
                Todo::ReopenCalls(key) => self.open_calls(key),
                Todo::ReplaceStuck(key) => self.replace_stuck(key, now_us),
                Todo::HasReturned(key) => {
                    if let Some(intake) = self.intakes.get_mut(key) {
                        intake.has_returned(&mut self.machine, now_us);
                    }
                }
                Todo::CancelUnwanted(key, channel, tag) => self.cancel_unwanted(key, channel, &tag),
                Todo::Declared => {
                    if let Some(redeclaring) = &mut self.redeclaring {
                        redeclaring.answered(&mut self.machine);
                    }
                    self.restored(now_us);
                }
                Todo::ClosedFor(method, why) => {
                    let redeclaring = self.redeclaring.as_ref();
                    let refused = redeclaring.and_then(|it| it.cost_connection(method)).cloned();
                    if let Some(refused) = refused {
                        // It would do so each time: an exchange type of a plug-in that it lacks, a kind of queue.
                        let what = refused.name();
                        self.happenings.push(Happening::TopologyRefused { what, why });
                        self.left_out.push(refused);
                        self.leaves_out_more = true;
                    }
                }
                Todo::DeclarationRefused(why) => {
                    if let Some(redeclaring) = &mut self.redeclaring {
                        let what = redeclaring.refused(&mut self.machine);
                        let channel = redeclaring.channel();
                        self.happenings.push(Happening::TopologyRefused { what, why });
                        if let Some(channel) = channel {
                            self.own(channel, Owner::Redeclaring);
                        }
                    }
                    self.restored(now_us);
                }
            }
        }
        self.feed_starved(now_us);
        for key in std::mem::take(&mut self.settled_ledgers) {
            if !self.ledgers.contains(key) {
                continue;
            }
            self.replace_faulty(key, now_us);
            let ledger = &mut self.ledgers[key];
            self.backlog |= ledger.pump(&mut self.machine, now_us, &mut self.wakeups);
            self.sweep_ledger(key);
        }
        for key in std::mem::take(&mut self.arrived) {
            if let Some(intake) = self.intakes.get_mut(key) {
                intake.arrived(&mut self.machine, now_us, &mut self.wakeups);
            }
        }
        self.try_suspects(now_us);
    }
}

fn note(keys: &mut Vec<usize>, key: usize) {
    if keys.last() != Some(&key) && !keys.contains(&key) {
        keys.push(key);
    }
}

fn refusal(reason: &CloseReason<'_>) -> Refusal {
    Refusal { code: reason.code, text: reason.text.to_string() }
}
