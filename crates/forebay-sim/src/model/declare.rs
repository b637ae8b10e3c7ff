//! Queues, exchanges and bindings come and go.

use crate::command::ChannelCommand;
use crate::names::{DEFAULT, LETTERS_TO, Name};

use super::Model;
use super::channel::Reply;
use super::process::{NOT_FOUND, Outcome, PRECONDITION_FAILED};
use super::topology::Target;

const RESOURCE_LOCKED: u16 = 405;

impl Model {
    /// A command about queues, exchanges or bindings.
    pub(super) fn declare(&mut self, client: usize, command: &ChannelCommand) -> Outcome {
        let (certain, op) = (self.certain(), self.op);
        match *command {
            ChannelCommand::DeclareQueue {
                queue,
                durable,
                exclusive,
                auto_delete,
                passive,
                ..
            } => {
                let found = self.queues.get_mut(queue).ok_or(NOT_FOUND)?;
                if found.exists {
                    if found.exclusive.is_some_and(|owner| owner != client) {
                        return Err(RESOURCE_LOCKED);
                    }
                    if !passive && (found.durable, found.auto_delete) != (durable, auto_delete) {
                        return Err(PRECONDITION_FAILED);
                    }
                } else if passive {
                    return Err(NOT_FOUND);
                } else {
                    found.exists = true;
                    found.declared_op = op;
                    found.durable = durable;
                    found.auto_delete = auto_delete;
                    found.exclusive = exclusive.then_some(client);
                }
                found.used();
                let ready = certain.then(|| found.ready_range());
                Ok(Some(Reply::DeclareOk(ready)))
            }
            ChannelCommand::DeleteQueue { queue, if_unused } => {
                if !self.queues.get(queue).is_some_and(|queue| queue.exists) {
                    return Ok(Some(Reply::DeleteOk(Some((0, 0)))));
                }
                self.usable(client, queue)?;
                if if_unused && self.queues.get(queue).is_some_and(|q| !q.consumers.is_empty()) {
                    return Err(PRECONDITION_FAILED);
                }
                let ready = certain.then(|| self.ready_range(queue));
                self.delete_queue(queue);
                Ok(Some(Reply::DeleteOk(ready)))
            }
            ChannelCommand::Purge(queue) => {
                self.usable(client, queue)?;
                let ready = certain.then(|| self.ready_range(queue));
                if let Some(queue) = self.queues.get_mut(queue) {
                    queue.purge(op, certain);
                }
                if queue == LETTERS_TO {
                    self.letters_may_be_lost();
                }
                Ok(Some(Reply::PurgeOk(ready)))
            }
            ChannelCommand::Bind { queue, exchange, key } => {
                self.usable(client, queue)?;
                self.exchange(exchange)?;
                self.topology.bind(exchange, key, Target::Queue(queue));
                Ok(Some(Reply::BindOk))
            }
            ChannelCommand::Unbind { queue, exchange, key } => {
                self.topology.unbind(exchange, key, Target::Queue(queue));
                Ok(Some(Reply::UnbindOk))
            }
            ChannelCommand::BindExchange { destination, source, key } => {
                self.exchange(destination)?;
                self.exchange(source)?;
                self.topology.bind(source, key, Target::Exchange(destination));
                Ok(Some(Reply::ExchangeBindOk))
            }
            ChannelCommand::UnbindExchange { destination, source, key } => {
                self.topology.unbind(source, key, Target::Exchange(destination));
                Ok(Some(Reply::ExchangeUnbindOk))
            }
            ChannelCommand::DeclareExchange { exchange, made, passive } => {
                if passive {
                    self.exchange(exchange)?;
                } else {
                    self.topology.declare_exchange(exchange, made);
                }
                Ok(Some(Reply::ExchangeDeclareOk))
            }
            ChannelCommand::DeleteExchange { exchange, if_unused } => {
                if if_unused && self.topology.leads_somewhere(exchange) {
                    return Err(PRECONDITION_FAILED);
                }
                self.topology.delete_exchange(exchange);
                Ok(Some(Reply::ExchangeDeleteOk))
            }
            // The others are carried out where messages are.
            _ => Ok(None),
        }
    }

    fn exchange(&self, name: Name) -> Result<(), u16> {
        if self.topology.has_exchange(name) && name != DEFAULT { Ok(()) } else { Err(NOT_FOUND) }
    }

    /// The queue is there, and nobody else's.
    pub(super) fn usable(&self, client: usize, queue: Name) -> Result<(), u16> {
        match self.queues.get(queue) {
            Some(found) if found.exists => match found.exclusive {
                Some(owner) if owner != client => Err(RESOURCE_LOCKED),
                _ => Ok(()),
            },
            _ => Err(NOT_FOUND),
        }
    }
}
