//! `basic.ack`, `basic.nack`, `basic.reject` and `basic.recover` (0-9-1 sections 1.8.3.13 to 1.8.3.16).

use slab::Slab;

use crate::channel::Mode;
use crate::dead_letters::Reason;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::queue::Queue;
use crate::shard::Shard;
use crate::tx::Outcome;
use crate::unacked::Delivery;

impl Shard {
    /// `basic.ack`, `basic.nack`, `basic.reject`.
    pub(crate) fn settle(
        &mut self,
        id: ConnectionId,
        number: u16,
        tag: u64,
        multiple: bool,
        outcome: Outcome,
    ) -> Result<(), AmqpError> {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return Ok(()) };
        let Some(channel) = connection.channel(number) else {
            return Ok(());
        };
        if !multiple {
            let delivery =
                channel.unacked.take(tag).ok_or_else(|| AmqpError::unknown_delivery_tag(tag))?;
            if let Mode::Tx(transaction) = &mut channel.mode {
                let letter_bytes = letter_bytes(&self.queues, &delivery, outcome);
                return transaction.settle(tag, delivery, outcome, letter_bytes);
            }
            self.finish(id, number, delivery, outcome);
            return Ok(());
        }
        // 0-9-1 section 1.8.3.13: multiple with tag 0 means all of them.
        if tag != 0 && !channel.unacked.contains(tag) {
            return Err(AmqpError::unknown_delivery_tag(tag));
        }
        // What is delivered meanwhile, as a dead letter, is not meant.
        let upto = if tag == 0 { channel.delivery_tag } else { tag };
        if let Mode::Tx(transaction) = &mut channel.mode {
            while let Some((tag, delivery)) = channel.unacked.take_oldest(upto) {
                let letter_bytes = letter_bytes(&self.queues, &delivery, outcome);
                transaction.settle(tag, delivery, outcome, letter_bytes)?;
            }
            return Ok(());
        }
        if matches!(outcome, Outcome::Requeue) {
            self.requeue_all(id, number, upto);
            return Ok(());
        }
        while let Some((_, delivery)) = self
            .connections
            .get_mut(id.0 as usize)
            .and_then(|connection| connection.as_mut()?.channel(number)?.unacked.take_oldest(upto))
        {
            self.finish(id, number, delivery, outcome);
        }
        Ok(())
    }

    /// What a channel holds goes back, up to this tag.
    fn requeue_all(&mut self, id: ConnectionId, number: u16, upto: u64) {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else { return };
        for delivery in channel.unacked.take_newest_first(upto) {
            self.finish(id, number, delivery, Outcome::Requeue);
        }
    }

    /// `basic.recover`: everything unsettled on the channel goes back.
    pub(crate) fn recover(
        &mut self,
        id: ConnectionId,
        number: u16,
        requeue: bool,
    ) -> Result<(), AmqpError> {
        if !requeue {
            return Err(AmqpError::not_implemented("requeue=false".to_owned()));
        }
        self.requeue_all(id, number, u64::MAX);
        Ok(())
    }

    /// A delivery is settled for good.
    pub(crate) fn finish(
        &mut self,
        id: ConnectionId,
        number: u16,
        delivery: Delivery,
        outcome: Outcome,
    ) {
        self.leaves_channel(id, number, &delivery);
        match outcome {
            Outcome::Reject => self.reject(delivery),
            Outcome::Requeue | Outcome::Discard => self.conclude(delivery, outcome),
        }
    }

    /// A channel has given up a delivery: others may come.
    pub(crate) fn leaves_channel(&mut self, id: ConnectionId, number: u16, delivery: &Delivery) {
        if delivery.consumer.is_some()
            && let Some(channel) = self.connection(id).and_then(|c| c.channel(number))
        {
            let was_full = !channel.has_credit();
            channel.unacked_consumed -= 1;
            if was_full && channel.has_credit() {
                self.mark_queues_of_channel(id, number);
            }
        }
    }

    /// What becomes of a delivery that has left its channel.
    pub(crate) fn conclude(&mut self, delivery: Delivery, outcome: Outcome) {
        match outcome {
            Outcome::Requeue => self.requeue(delivery),
            Outcome::Discard | Outcome::Reject => {
                self.delivery_left(&delivery);
                // What goes back to its queue is no sign of a consumer that gets on.
                if delivery.consumer.is_some()
                    && let Some(queue) = self.queues.get_mut(delivery.queue.0 as usize)
                    && queue.id == delivery.queue_id
                {
                    queue.settled(self.now_us);
                }
                self.counters.acknowledged += 1;
                let Delivery { queue: key, queue_id, entry, .. } = delivery;
                let queue = self.queues.get(key.0 as usize);
                if outcome == Outcome::Reject && queue.is_some_and(|queue| queue.id == queue_id) {
                    self.bury(key, entry, Reason::Rejected);
                } else {
                    self.discard(queue_id, entry);
                }
            }
        }
    }
}

/// What its deaths add to a letter, about.
const DEATHS_BYTES: u64 = 512;

/// What the dead letter of a delivery takes, if it is to have one.
fn letter_bytes(queues: &Slab<Box<Queue>>, delivery: &Delivery, outcome: Outcome) -> u64 {
    let queue = queues.get(delivery.queue.0 as usize).filter(|queue| queue.id == delivery.queue_id);
    match queue.is_some_and(|queue| outcome == Outcome::Reject && queue.dead_letters.is_some()) {
        true => delivery.entry.message.memory_bytes() + DEATHS_BYTES,
        false => 0,
    }
}
