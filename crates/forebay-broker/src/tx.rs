//! Transactions on a channel (0-9-1 section 1.9): publishes and acknowledgements held until commit.
//!
//! A commit is one atomic group in the log: after a crash all of it is there or nothing.

use forebay_wire::tx;

use crate::channel::{Mode, Publish};
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::unacked::{Delivery, Unacked};

/// What one transaction may hold, in bytes of messages.
const TRANSACTION_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// What one transaction may hold, in publishes and acknowledgements.
const TRANSACTION_MAX_OPERATIONS: usize = 1_000_000;

/// What becomes of a delivery at commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done with.
    Discard,
    /// It goes back to its place.
    Requeue,
}

/// What a channel has done since `tx.select`, the last commit or the last rollback.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    publishes: Vec<Publish>,
    publish_bytes: u64,
    settled: Vec<(u64, Delivery, Outcome)>,
}

impl Transaction {
    fn check_bound(&self) -> Result<(), AmqpError> {
        let operations = self.publishes.len() + self.settled.len();
        if self.publish_bytes > TRANSACTION_MAX_BYTES || operations > TRANSACTION_MAX_OPERATIONS {
            return Err(AmqpError::transaction_too_large(
                TRANSACTION_MAX_BYTES,
                TRANSACTION_MAX_OPERATIONS,
            ));
        }
        Ok(())
    }

    /// Holds a publish.
    pub(crate) fn publish(&mut self, publish: Publish) -> Result<(), AmqpError> {
        self.publish_bytes += publish.message.memory_bytes();
        self.publishes.push(publish);
        self.check_bound()
    }

    /// The deliveries that wait for their fate.
    pub(crate) fn deliveries_mut(&mut self) -> impl Iterator<Item = &mut Delivery> {
        self.settled.iter_mut().map(|(_, delivery, _)| delivery)
    }

    /// Holds what becomes of a delivery.
    pub(crate) fn settle(
        &mut self,
        tag: u64,
        delivery: Delivery,
        outcome: Outcome,
    ) -> Result<(), AmqpError> {
        self.settled.push((tag, delivery, outcome));
        self.check_bound()
    }
}

impl Shard {
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
        let mut batch = None;
        let mut refused = None;
        self.store.begin_atomic();
        for publish in transaction.publishes {
            // The exchange was there at the publish; it may have been deleted since.
            match self.route_and_enqueue(id, number, publish, false) {
                Ok(written) => batch = batch.max(written),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        for (_, delivery, outcome) in transaction.settled {
            if outcome == Outcome::Discard && !delivery.entry.home.is_none() {
                batch = Some(self.store.open_batch());
            }
            self.finish(id, number, delivery, outcome);
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
        transaction.publish_bytes = 0;
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
