//! The queues of a load: declared and emptied before it, deleted after it.

use forebay_client::blocking::{Channel, ChannelFault, Connection, DeclareExchange, DeclareQueue};
use forebay_wire::{TableBuf, Value};

use crate::generator::LoadError;
use crate::plan::Plan;

/// Declares queues, and the exchange of a fan-out; returns what the broker calls itself.
pub(crate) fn set_up(plan: &Plan) -> Result<String, LoadError> {
    with_channel(plan, |connection, channel| {
        if plan.fanout {
            channel.declare_exchange(plan.exchange(), "fanout", DeclareExchange::default())?;
        }
        for number in 0..plan.queues {
            let mut arguments = TableBuf::new();
            if let Some(kind) = &plan.queue_type {
                arguments.push("x-queue-type", Value::LongStr(kind.as_bytes()));
            }
            plan.queue_args.write(&mut arguments);
            let how = DeclareQueue { durable: plan.durable(), arguments, ..Default::default() };
            let name = plan.queue(number);
            channel.declare_queue(&name, how)?;
            if !plan.keep {
                channel.purge_queue(&name)?;
            }
            if plan.fanout {
                channel.bind_queue(&name, plan.exchange(), "")?;
            }
        }
        let server = connection.server();
        Ok(format!("{} {}", server.product, server.version))
    })
}

/// Deletes them.
pub(crate) fn tear_down(plan: &Plan) -> Result<(), LoadError> {
    with_channel(plan, |_, channel| {
        for number in 0..plan.queues {
            channel.delete_queue(&plan.queue(number))?;
        }
        if plan.fanout {
            channel.delete_exchange(plan.exchange())?;
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
