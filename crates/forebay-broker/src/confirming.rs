//! Confirm mode of a channel (RabbitMQ's extension): publishes are numbered, and told when settled.
//! What is told when is [`Confirms`]' business; here it meets batches and sockets.

use forebay_flow::CommitTime;
use forebay_store::BatchNo;
use forebay_wire::{basic, confirm, forebay, write_method};

use crate::channel::Mode;
use crate::confirm::{Ack, Committed, Confirms};
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::{ConfirmWaiter, Shard};
use crate::waits::Gate;

impl Shard {
    pub(crate) fn confirm_select(
        &mut self,
        id: ConnectionId,
        number: u16,
        nowait: bool,
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        match channel.mode {
            Mode::Tx(_) => return Err(AmqpError::tx_to_confirm()),
            Mode::Plain => channel.mode = Mode::Confirm(Confirms::new()),
            Mode::Confirm(_) => {}
        }
        if !nowait {
            self.send(id, number, &confirm::SelectOk::default());
        }
        Ok(())
    }

    /// Numbers a publish of `size_bytes` in confirm mode, that is told when `batch` is synced and, if a queue holds it,
    /// when that lets go.
    pub(crate) fn confirm(
        &mut self,
        id: ConnectionId,
        number: u16,
        size_bytes: u64,
        batch: Option<BatchNo>,
        held_by: Option<u64>,
    ) {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return };
        let serial = connection.serial;
        let Some(channel) = connection.channels.get_mut(number) else { return };
        let Mode::Confirm(confirms) = &mut channel.mode else { return };
        let first = confirms.published(size_bytes, batch, held_by);
        if confirms.is_full() {
            connection.confirms_full = true;
        }
        let since_us = self.now_us;
        match batch {
            Some(batch) if first => {
                connection.waits.begin(Gate::Sync, since_us);
                let channel = number;
                let waiter = ConfirmWaiter { batch, connection: id, serial, channel, since_us };
                self.confirm_waiters.push_back(waiter);
                self.store.add_waiter();
            }
            Some(_) => {}
            None if channel.confirms_dirty => {}
            None => {
                channel.confirms_dirty = true;
                self.dirty_confirms.push((id, number));
            }
        }
    }

    /// Numbers a publish in confirm mode that a full queue refused.
    pub(crate) fn refuse(&mut self, id: ConnectionId, number: u16) {
        self.counters.refused += 1;
        let Some(connection) = self.connection(id) else { return };
        let Some(channel) = connection.channels.get_mut(number) else { return };
        channel.note_not_taken();
        let Mode::Confirm(confirms) = &mut channel.mode else { return };
        confirms.refused();
        // What is refused behind a confirm that is held is remembered until that is told.
        if confirms.is_full() {
            connection.confirms_full = true;
        }
        if !std::mem::replace(&mut channel.confirms_dirty, true) {
            self.dirty_confirms.push((id, number));
        }
    }

    /// A channel is gone, and what it waited for with it: others of its connection may publish again.
    pub(crate) fn confirms_left(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        if connection.confirms_full && !connection.has_full_channel() {
            connection.confirms_full = false;
            self.mark_connection(id);
        }
    }

    /// A batch is synced: the channels that waited for it have something to tell.
    pub(crate) fn confirm_durable(&mut self, waiter: ConfirmWaiter, batch: BatchNo) {
        let now_us = self.now_us;
        self.sync_latencies.count(now_us - waiter.since_us);
        let commits = self.store.commits();
        let bytes = commits.written_bytes - self.committed_bytes;
        let Some(connection) = self.connection(waiter.connection) else { return };
        if connection.serial != waiter.serial {
            return;
        }
        connection.waits.end(Gate::Sync, now_us);
        let Some(channel) = connection.channel(waiter.channel) else { return };
        let Mode::Confirm(confirms) = &mut channel.mode else { return };
        let is_modest =
            confirms.durable(batch, Committed { bytes, waiters: commits.last_waiters.into() });
        if !channel.confirms_dirty {
            channel.confirms_dirty = true;
            self.dirty_confirms.push((waiter.connection, waiter.channel));
        }
        if is_modest {
            self.commit_size.modest(now_us);
        }
    }

    /// Sends what is to be told of confirms, merged.
    pub(crate) fn tell_confirms(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty_confirms);
        for (id, number) in dirty.drain(..) {
            self.tell_confirms_of(id, number);
        }
        self.dirty_confirms = dirty;
    }

    pub(crate) fn tell_confirms_of(&mut self, id: ConnectionId, number: u16) {
        let mut acks = std::mem::take(&mut self.scratch_acks);
        let us = self.commit_cost.us();
        let publishers = u32::try_from(self.active_publishers()).unwrap_or(u32::MAX);
        let part_permille = self.fill_trial.part_permille();
        let commits = CommitTime { us, publishers, part_permille };
        if let Some(connection) = self.connection(id)
            && let Some(channel) = connection.channel(number)
            && let Mode::Confirm(confirms) = &mut channel.mode
        {
            channel.confirms_dirty = false;
            let before = confirms.unconfirmed();
            confirms.take_acks(&mut acks);
            let told = before - confirms.unconfirmed();
            if connection.confirms_full {
                connection.confirms_full = connection.has_full_channel();
            }
            let out = connection.out.buffer();
            if connection.capabilities.commit_times && commits.differs(connection.commit_told) {
                connection.commit_told = commits;
                let commit_us = u32::try_from(us).unwrap_or(u32::MAX);
                write_method(out, 0, &forebay::CommitTime { commit_us, publishers, part_permille });
            }
            for Ack { delivery_tag, multiple, refused } in acks.drain(..) {
                if refused {
                    let nack = basic::Nack { delivery_tag, multiple, requeue: false };
                    write_method(out, number, &nack);
                } else {
                    write_method(out, number, &basic::Ack { delivery_tag, multiple });
                }
            }
            self.counters.confirmed += told;
            self.mark_connection(id);
        }
        self.scratch_acks = acks;
    }
}
