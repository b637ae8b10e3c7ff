//! The queues of a load: declared before it, deleted after it.

use forebay_client::blocking::{Channel, ChannelFault, Connection, DeclareExchange, DeclareQueue};
use forebay_wire::{TableBuf, Value};

use crate::generator::LoadError;
use crate::plan::Plan;

/// The reply code of what is not there (0-9-1, 1.2).
const NOT_FOUND: u16 = 404;

/// Declares queues, and the exchange if there is one; or makes sure that what is there already is there. What it has
/// declared is deleted again if it cannot declare the rest. Returns what the broker calls itself.
pub(crate) fn set_up(plan: &Plan) -> Result<String, LoadError> {
    let connection = connect(plan)?;
    let mut made = Made { queues: 0, exchange: false };
    let done = made.all(plan, &connection);
    // The reason why it failed is what matters.
    if done.is_err() && !plan.keep && made.undo(plan, &connection).is_err() {
        // Some errors end the connection.
        let _ = connect(plan).and_then(|another| made.undo(plan, &another));
    }
    let server = connection.server();
    let broker = format!("{} {}", server.product, server.version);
    // Everything was answered; how the farewell goes does not matter.
    let _ = connection.close();
    let named = plan.own_exchange.is_some() || plan.queue_pattern.is_some();
    match done {
        Ok(()) => Ok(broker),
        Err(LoadError::Broker(why)) if named && why.contains("inequivalent arg") => {
            Err(LoadError::Broker(format!("{why}; --predeclared takes it as it is")))
        }
        Err(why) => Err(why),
    }
}

/// Deletes what [`set_up`] declared.
pub(crate) fn tear_down(plan: &Plan) -> Result<(), LoadError> {
    if plan.predeclared {
        return Ok(());
    }
    let connection = connect(plan)?;
    let made = Made { queues: plan.queues, exchange: plan.exchange().is_some() };
    let done = made.undo(plan, &connection);
    let _ = connection.close();
    done
}

/// How much of a plan's topology is ours, in its order.
struct Made {
    queues: usize,
    exchange: bool,
}

impl Made {
    fn all(&mut self, plan: &Plan, connection: &Connection) -> Result<(), LoadError> {
        if plan.new_queues_only && !plan.predeclared {
            for number in 0..plan.queues {
                refuse_somebodys(&plan.queue(number), connection)?;
            }
        }
        let mut channel = connection.channel().map_err(told)?;
        // Before the exchange: one that goes with its last queue stays if it has never had any.
        for number in 0..plan.queues {
            self.queue(plan, number, &mut channel).map_err(told)?;
        }
        if let Some((name, kind)) = plan.exchange() {
            // One that was named goes with the queues that are bound to it. Somebody else's does not, and the broker
            // refuses to take it for this one.
            let passive = plan.predeclared;
            let auto_delete = plan.own_exchange.is_some() && !passive;
            let how = DeclareExchange { passive, auto_delete, ..Default::default() };
            channel.declare_exchange(&name, kind, how).map_err(told)?;
            self.exchange = !passive;
            for number in (0..plan.queues).filter(|_| !passive) {
                let (queue, key) = (plan.queue(number), plan.routing_key(number));
                channel.bind_queue(&queue, &name, &key).map_err(told)?;
            }
        }
        Ok(())
    }

    fn queue(
        &mut self,
        plan: &Plan,
        number: usize,
        channel: &mut Channel,
    ) -> Result<(), ChannelFault> {
        let mut arguments = TableBuf::new();
        if let Some(kind) = &plan.queue_type {
            arguments.push("x-queue-type", Value::LongStr(kind.as_bytes()));
        }
        plan.queue_args.write(&mut arguments);
        let how = DeclareQueue {
            passive: plan.predeclared,
            durable: plan.durable(),
            arguments,
            ..Default::default()
        };
        let name = plan.queue(number);
        channel.declare_queue(&name, how)?;
        if plan.predeclared {
            return Ok(());
        }
        self.queues = number + 1;
        if !plan.keep {
            channel.purge_queue(&name)?;
        }
        Ok(())
    }

    fn undo(&self, plan: &Plan, connection: &Connection) -> Result<(), LoadError> {
        let mut channel = connection.channel().map_err(told)?;
        for number in 0..self.queues {
            channel.delete_queue(&plan.queue(number)).map_err(told)?;
        }
        // One that was named is gone with its last queue.
        match plan.exchange() {
            Some((name, _)) if self.exchange && plan.fanout => {
                channel.delete_exchange(&name).map_err(told)
            }
            _ => Ok(()),
        }
    }
}

/// A queue that is there is not emptied and deleted because somebody gave its name.
fn refuse_somebodys(name: &str, connection: &Connection) -> Result<(), LoadError> {
    let mut channel = connection.channel().map_err(told)?;
    let passive = DeclareQueue { passive: true, ..Default::default() };
    match channel.declare_queue(name, passive) {
        Ok(there) => Err(LoadError::Broker(format!(
            "queue `{name}` is there already, with {} messages and {} consumers: this would empty and delete it. \
             Delete it, give another name, or let --predeclared publish to it and consume from it as it is",
            there.message_count, there.consumer_count
        ))),
        Err(ChannelFault::Refused(refusal)) if refusal.code == NOT_FOUND => Ok(()),
        Err(fault) => Err(told(fault)),
    }
}

fn connect(plan: &Plan) -> Result<Connection, LoadError> {
    Connection::open_named(&plan.url, Some("forebay-load"))
        .map_err(|error| LoadError::Broker(error.to_string()))
}

fn told(fault: ChannelFault) -> LoadError {
    LoadError::Broker(fault.to_string())
}
