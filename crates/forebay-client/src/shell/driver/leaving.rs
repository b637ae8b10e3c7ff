//! How a connection that has ended, or is to, is left.

use std::task::Context;

use super::{Link, Serving};
use crate::error::Lost;

/// How long the server's agreement to the end is waited for.
pub(super) const AGREEMENT_PATIENCE_US: u64 = 5_000_000;

impl Serving<'_> {
    /// When a connection that is to be closed is given up, agreed to or not.
    pub(super) fn ends_at_us(&self) -> Option<u64> {
        let last_us = self.close_until_us?.saturating_add(AGREEMENT_PATIENCE_US);
        Some(self.agree_until_us.map_or(last_us, |until_us| until_us.min(last_us)))
    }

    /// Our close was agreed to, or theirs was answered: the stream is ended. False: there is something to do after all.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) -> Result<bool, Lost> {
        let now_us = self.link.now_us();
        let leave_at_us = *self.leave_at_us.get_or_insert(now_us + AGREEMENT_PATIENCE_US);
        // TLS has an end of its own, which waits for room in the socket.
        if self.stream.poll_shutdown(cx).is_ready() || leave_at_us <= now_us {
            return Err(self.hung_up(None));
        }
        Ok(self.sleeps_until(leave_at_us, cx))
    }
}

/// However the driver ends, nobody waits for it afterwards: not after a panic, nor after its runtime.
pub(super) struct GiveUpOnDrop<'l>(pub(super) &'l Link);

impl Drop for GiveUpOnDrop<'_> {
    fn drop(&mut self) {
        let ended = || Lost::Io("the task that served the connection has ended".to_owned());
        self.0.with(|session| {
            if session.over().is_none() {
                session.give_up(&ended());
            }
        });
    }
}
