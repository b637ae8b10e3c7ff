//! The methods of an open channel, each sent to where it is carried out.

use forebay_wire::{Method, basic};

use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::tx::Outcome;

impl Shard {
    /// A method on an open channel that does not stand in the middle of a publish.
    pub(crate) fn channel_method(
        &mut self,
        id: ConnectionId,
        number: u16,
        method: &Method<'_>,
    ) -> Result<(), AmqpError> {
        match method {
            Method::BasicPublish(publish) => self.publish_method(id, number, publish),
            Method::BasicAck(ack) => {
                self.settle(id, number, ack.delivery_tag, ack.multiple, Outcome::Discard)
            }
            Method::BasicNack(nack) => {
                let outcome = if nack.requeue { Outcome::Requeue } else { Outcome::Reject };
                self.settle(id, number, nack.delivery_tag, nack.multiple, outcome)
            }
            Method::BasicReject(reject) => {
                let outcome = if reject.requeue { Outcome::Requeue } else { Outcome::Reject };
                self.settle(id, number, reject.delivery_tag, false, outcome)
            }
            Method::BasicGet(get) => self.get(id, number, get),
            Method::BasicConsume(consume) => self.consume(id, number, consume),
            Method::BasicCancel(cancel) => self.cancel(id, number, cancel),
            Method::BasicCancelOk(_) => Ok(()),
            Method::ChannelFlowOk(_) => {
                self.renew_lease(id, number);
                Ok(())
            }
            Method::BasicQos(qos) => self.qos(id, number, qos),
            Method::BasicRecover(recover) => {
                self.recover(id, number, recover.requeue)?;
                self.send(id, number, &basic::RecoverOk::default());
                Ok(())
            }
            Method::BasicRecoverAsync(recover) => self.recover(id, number, recover.requeue),
            Method::ConfirmSelect(select) => self.confirm_select(id, number, select.no_wait),
            Method::TxSelect(_) => self.tx_select(id, number),
            Method::TxCommit(_) => self.tx_commit(id, number),
            Method::TxRollback(_) => self.tx_rollback(id, number),
            Method::QueueDeclare(declare) => self.queue_declare(id, number, declare),
            Method::QueueBind(bind) => self.queue_bind(id, number, bind),
            Method::QueueUnbind(unbind) => self.queue_unbind(id, number, unbind),
            Method::QueuePurge(purge) => self.queue_purge(id, number, purge),
            Method::QueueDelete(delete) => self.queue_delete(id, number, delete),
            Method::ExchangeDeclare(declare) => self.exchange_declare(id, number, declare),
            Method::ExchangeDelete(delete) => self.exchange_delete(id, number, delete),
            Method::ExchangeBind(bind) => self.exchange_bind(id, number, bind),
            Method::ExchangeUnbind(unbind) => self.exchange_unbind(id, number, unbind),
            Method::AccessRequest(_) => {
                // Realms went out of use with 0-9-1; old clients still ask, any ticket will do.
                self.send(id, number, &forebay_wire::access::RequestOk { ticket: 1 });
                Ok(())
            }
            Method::ChannelOpen(_) => Err(AmqpError::second_channel_open()),
            Method::ChannelClose(_) => {
                self.channel_close(id, number);
                Ok(())
            }
            // The answer to a close that crossed the client's new channel.open.
            Method::ChannelCloseOk(_) => Ok(()),
            Method::ChannelFlow(flow) => self.channel_flow(id, number, flow.active),
            _ => Err(AmqpError::unimplemented_method()),
        }
    }
}
