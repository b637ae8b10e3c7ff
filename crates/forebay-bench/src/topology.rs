//! The queues of a load: declared and emptied before it, deleted after it.

use forebay_client::blocking::{Channel, ChannelFault, Connection, DeclareExchange, DeclareQueue};
use forebay_wire::{TableBuf, Value};

use crate::generator::LoadError;
use crate::plan::Plan;

/// Declares queues, and the exchange if there is one; or makes sure that what is there already is there. Returns what
/// the broker calls itself.
pub(crate) fn set_up(plan: &Plan) -> Result<String, LoadError> {
    let done = with_channel(plan, |connection, channel| {
        if let Some((name, kind)) = plan.exchange() {
            // One that was named goes with the queues that are bound to it. Somebody else's does not, and the broker
            // refuses to take it for this one.
            let passive = plan.predeclared;
            let auto_delete = plan.own_exchange.is_some() && !passive;
            let how = DeclareExchange { passive, auto_delete, ..Default::default() };
            channel.declare_exchange(name, kind, how)?;
        }
        for number in 0..plan.queues {
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
                continue;
            }
            if !plan.keep {
                channel.purge_queue(&name)?;
            }
            if let Some((exchange, _)) = plan.exchange() {
                channel.bind_queue(&name, exchange, &plan.routing_key(number))?;
            }
        }
        let server = connection.server();
        Ok(format!("{} {}", server.product, server.version))
    });
    let named = plan.own_exchange.is_some() || plan.queue_pattern.is_some();
    match done {
        Err(LoadError::Broker(why)) if named && why.contains("inequivalent arg") => {
            Err(LoadError::Broker(format!("{why}; --predeclared takes it as it is")))
        }
        done => done,
    }
}

/// Deletes what it declared.
pub(crate) fn tear_down(plan: &Plan) -> Result<(), LoadError> {
    if plan.predeclared {
        return Ok(());
    }
    with_channel(plan, |_, channel| {
        for number in 0..plan.queues {
            channel.delete_queue(&plan.queue(number))?;
        }
        if let Some((name, _)) = plan.exchange().filter(|_| plan.fanout) {
            channel.delete_exchange(name)?;
        }
        Ok(())
    })
}

fn with_channel<T>(
    plan: &Plan,
    work: impl FnOnce(&Connection, &mut Channel) -> Result<T, ChannelFault>,
) -> Result<T, LoadError> {
    let told = |fault: ChannelFault| LoadError::Broker(fault.to_string());
    let connection = Connection::open_named(&plan.url, Some("forebay-load"))
        .map_err(|error| LoadError::Broker(error.to_string()))?;
    let mut channel = connection.channel().map_err(told)?;
    let done = work(&connection, &mut channel).map_err(told)?;
    // Everything was answered; how the farewell goes does not matter.
    let _ = connection.close();
    Ok(done)
}
