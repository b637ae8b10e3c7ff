//! Transactions on a channel (0-9-1 section 1.9): publishes and acknowledgements held until commit.
//!
//! A commit is one atomic group in the log: after a crash all of it is there or nothing.

use std::sync::Arc;

use forebay_store::ACK_BYTES;
use forebay_wire::tx;

use crate::channel::{Mode, Publish};
use crate::dying::COMMIT_BYTES;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::unacked::{Delivery, Unacked};

/// What one transaction may hold, in bytes of messages and of the dead letters that it is to write.
const TRANSACTION_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// What one transaction may hold, in publishes and acknowledgements.
const TRANSACTION_MAX_OPERATIONS: usize = 1_000_000;

/// What all open transactions hold takes at most this part of the memory budget. Nobody can spill or consume it, and a
/// commit stands behind the publishes before it: if those waited for memory that only the commit gives back, it would
/// be for ever.
const TRANSACTIONS_PER_MEMORY: u64 = 4;

/// What becomes of a delivery at commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done with.
    Discard,
    /// Its consumer would not have it.
    Reject,
    /// It goes back to its place.
    Requeue,
}

/// What a channel has done since `tx.select`, the last commit or the last rollback.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    publishes: Vec<Publish>,
    publish_bytes: u64,
    /// What the letters of its rejected deliveries take at commit.
    letter_bytes: u64,
    /// What it acknowledges takes so much, of what is on disk.
    freed_bytes: u64,
    settled: Vec<(u64, Delivery, Outcome)>,
}

impl Transaction {
    fn check_bound(&self) -> Result<(), AmqpError> {
        if self.publish_bytes + self.letter_bytes > TRANSACTION_MAX_BYTES {
            let bound = format_args!("{TRANSACTION_MAX_BYTES} bytes");
            return Err(AmqpError::transaction_too_large(bound));
        }
        if self.publishes.len() + self.settled.len() > TRANSACTION_MAX_OPERATIONS {
            let bound = format_args!("{TRANSACTION_MAX_OPERATIONS} operations");
            return Err(AmqpError::transaction_too_large(bound));
        }
        Ok(())
    }

    /// About what its commit takes in the log.
    fn log_bytes(&self) -> usize {
        (self.publish_bytes + self.letter_bytes) as usize + self.settled.len() * ACK_BYTES
    }

    /// The deliveries that wait for their fate.
    pub(crate) fn deliveries_mut(&mut self) -> impl Iterator<Item = &mut Delivery> {
        self.settled.iter_mut().map(|(_, delivery, _)| delivery)
    }

    pub(crate) fn delivery_mut(&mut self, at: usize) -> Option<&mut Delivery> {
        self.settled.get_mut(at).map(|(_, delivery, _)| delivery)
    }

    /// Holds what becomes of a delivery; its dead letter will take so much.
    pub(crate) fn settle(
        &mut self,
        tag: u64,
        delivery: Delivery,
        outcome: Outcome,
        letter_bytes: u64,
    ) -> Result<(), AmqpError> {
        self.letter_bytes += letter_bytes;
        if outcome == Outcome::Discard && !delivery.entry.home.is_none() {
            self.freed_bytes += delivery.entry.message.memory_bytes();
        }
        self.settled.push((tag, delivery, outcome));
        self.check_bound()
    }
}

impl Shard {
    /// Holds a publish until its channel commits; 406 if that is more than may be held.
    pub(crate) fn hold_until_commit(
        &mut self,
        id: ConnectionId,
        number: u16,
        publish: Publish,
    ) -> Result<(), AmqpError> {
        let max_bytes = self.budget_bytes() / TRANSACTIONS_PER_MEMORY;
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return Ok(()) };
        let Some(Mode::Tx(transaction)) = connection.channel(number).map(|c| &mut c.mode) else {
            debug_assert!(false, "there is no transaction");
            return Ok(());
        };
        let bytes = publish.message.memory_bytes();
        transaction.publish_bytes += bytes;
        transaction.publishes.push(publish);
        self.transactions_bytes += bytes;
        transaction.check_bound()?;
        if self.transactions_bytes > max_bytes {
            let bound = format_args!("{max_bytes} bytes together with all others that are open");
            return Err(AmqpError::transaction_too_large(bound));
        }
        Ok(())
    }

    /// Whether a commit has to wait: it writes messages, and the disk is full. A few dead letters go on as long as others do;
    /// more are one batch all the same, for which there may be no room. Of the last of the reserve a commit has that frees more than
    /// it writes, as long as all such letters are few until the log has found room again: its connection waits with it.
    pub(crate) fn holds_commit(&mut self, id: ConnectionId, number: u16) -> bool {
        if !self.low_space {
            return false;
        }
        let (is_last, spent_bytes) = (self.is_out_of_reserve(), self.reserve_letters_bytes);
        let channel = self.connection(id).and_then(|c| c.channel(number));
        channel.is_some_and(|channel| match &channel.mode {
            Mode::Tx(transaction) => {
                let Transaction { letter_bytes, freed_bytes, .. } = *transaction;
                let may = !is_last || letter_bytes <= freed_bytes;
                let few = letter_bytes == 0 || may && spent_bytes + letter_bytes <= COMMIT_BYTES;
                !(transaction.publishes.is_empty() && few)
            }
            Mode::Plain | Mode::Confirm(_) => false,
        })
    }

    pub(crate) fn tx_select(&mut self, id: ConnectionId, number: u16) -> Result<(), AmqpError> {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        match channel.mode {
            Mode::Confirm(_) => return Err(AmqpError::confirm_to_tx()),
            Mode::Plain => channel.mode = Mode::Tx(Transaction::default()),
            Mode::Tx(_) => {}
        }
        self.send(id, number, &tx::SelectOk::default());
        Ok(())
    }

    pub(crate) fn tx_commit(&mut self, id: ConnectionId, number: u16) -> Result<(), AmqpError> {
        let transaction = self.take_transaction(id, number)?;
        self.transactions_bytes -= transaction.publish_bytes;
        self.reserve_letters_bytes +=
            if self.is_out_of_reserve() { transaction.letter_bytes } else { 0 };
        let mut batch = None;
        let mut refused = None;
        let log_bytes = transaction.log_bytes();
        self.store.begin_atomic(log_bytes);
        for mut publish in transaction.publishes {
            // Nobody else has it yet.
            if let Some(message) = Arc::get_mut(&mut publish.message) {
                message.begin_to_expire(self.now_us, self.clock_began_us);
            }
            // The exchange was there at the publish; it may have been deleted since.
            match self.route_and_enqueue(id, number, publish, false) {
                Ok(written) => {
                    batch = batch.max(written);
                    if std::mem::take(&mut self.refused) {
                        self.counters.refused += 1;
                        refused = refused.or_else(|| Some(AmqpError::partial_completion()));
                    }
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        for (_, delivery, outcome) in transaction.settled {
            if outcome != Outcome::Requeue && !delivery.entry.home.is_none() {
                batch = Some(self.store.open_batch());
            }
            self.leaves_channel(id, number, &delivery);
            self.conclude(delivery, outcome);
        }
        self.store.end_atomic();
        // What is committed is answered; what comes next waits.
        self.hold_confirm(id, number);
        if let Some(error) = refused {
            return Err(error);
        }
        if let Some(batch) = batch {
            self.raise_barrier(id, batch);
        }
        self.send(id, number, &tx::CommitOk::default());
        Ok(())
    }

    pub(crate) fn tx_rollback(&mut self, id: ConnectionId, number: u16) -> Result<(), AmqpError> {
        let mut transaction = self.take_transaction(id, number)?;
        let mut unacked = match self.connection(id).and_then(|c| c.channel(number)) {
            Some(channel) => std::mem::take(&mut channel.unacked),
            None => return Ok(()),
        };
        self.roll_back(&mut transaction, &mut unacked);
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
            channel.unacked = unacked;
        }
        self.send(id, number, &tx::RollbackOk::default());
        Ok(())
    }

    /// Drops the publishes and puts the deliveries back among the unsettled ones.
    pub(crate) fn roll_back(&mut self, transaction: &mut Transaction, unacked: &mut Unacked) {
        for publish in transaction.publishes.drain(..) {
            self.release(publish.message);
        }
        self.transactions_bytes -= std::mem::take(&mut transaction.publish_bytes);
        unacked.restore(transaction.settled.drain(..).map(|(tag, d, _)| (tag, d)).collect());
    }

    fn take_transaction(
        &mut self,
        id: ConnectionId,
        number: u16,
    ) -> Result<Transaction, AmqpError> {
        match self.connection(id).and_then(|c| c.channel(number)).map(|c| &mut c.mode) {
            Some(Mode::Tx(transaction)) => Ok(std::mem::take(transaction)),
            _ => Err(AmqpError::not_transactional()),
        }
    }
}
