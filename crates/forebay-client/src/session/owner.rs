//! Whose each channel is, and who waits for one because all are in use.

use super::{Phase, Session};
use crate::machine::ChannelError;

/// Whose a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    User(usize),
    Ledger(usize),
    Intake(usize),
    Calls(usize),
    Redeclaring,
}

impl Session {
    pub(super) fn own(&mut self, number: u16, owner: Owner) {
        let index = usize::from(number) - 1;
        if self.owners.len() <= index {
            self.owners.resize(index + 1, Owner::Nobody);
        }
        self.owners[index] = owner;
    }

    /// Whether there is no channel for it now; then it gets the next one that is free.
    pub(super) fn is_starved(&mut self, owner: Owner) -> bool {
        let starved =
            matches!(self.machine.check_free_channel(), Err(ChannelError::AllInUse { .. }));
        if starved && !self.starved.contains(&owner) {
            self.starved.push(owner);
        }
        starved
    }

    /// Numbers may have become free.
    pub(super) fn feed_starved(&mut self, now_us: u64) {
        while !self.starved.is_empty() && self.machine.check_free_channel().is_ok() {
            match self.starved.remove(0) {
                Owner::Ledger(key) if self.ledgers.contains(key) => self.open_ledger(key, now_us),
                Owner::Intake(key) if self.intakes.contains(key) => self.open_intake(key, now_us),
                Owner::Calls(key) if self.calls.contains(key) => self.open_calls(key),
                _ => {} // it has gone since
            }
        }
    }

    /// Whether a publisher does not wait for somebody else's channel.
    ///
    /// # Errors
    /// All channels are in use.
    pub(crate) fn check_fed(&self, ledger: usize) -> Result<(), ChannelError> {
        if self.starved.contains(&Owner::Ledger(ledger)) {
            return self.machine.check_channel_soon_free();
        }
        Ok(())
    }

    /// Whether a new consumer can have a channel of the connection as it is now.
    ///
    /// # Errors
    /// All its channels are in use.
    pub(crate) fn check_free_channel(&self) -> Result<(), ChannelError> {
        match self.machine.check_channel_soon_free() {
            full @ Err(_) if self.phase == Phase::Up => full,
            _ => Ok(()),
        }
    }
}

pub(super) fn owner(owners: &[Owner], number: u16) -> Owner {
    owners.get(usize::from(number).wrapping_sub(1)).copied().unwrap_or(Owner::Nobody)
}
