//! How connections come to be: some at a time, in the order of their roles.

use super::{Generator, LoadError, TURN_US_MAX, lost};
use crate::actor::Actor;

/// How long none of the connections that open may become ready.
const PATIENCE_US: u64 = 60_000_000;
/// Connections that open at a time: a broker hangs up on those that have been silent for some seconds.
const AT_A_TIME_MAX: usize = 100;

impl Generator<'_> {
    /// Opens all connections.
    pub(super) fn open_all(&mut self) -> Result<(), LoadError> {
        let (mut ready, mut progress_us) = (0, self.now_us());
        self.doing = ("connecting", progress_us, progress_us + PATIENCE_US);
        loop {
            let ready_now = self.actors.iter().filter(|actor| actor.ready).count();
            let now_us = self.now_us();
            if ready_now > ready {
                (ready, progress_us) = (ready_now, now_us);
            }
            if ready == self.actors.len() && self.coming.is_empty() {
                return Ok(());
            }
            if now_us > progress_us + PATIENCE_US {
                let all = self.actors.len() + self.coming.len();
                return Err(LoadError::Broker(format!(
                    "the broker opened {ready} of {all} connections and then none for {} s",
                    PATIENCE_US / 1_000_000
                )));
            }
            if self.actors.len() - ready < AT_A_TIME_MAX
                && let Some(role) = self.coming.pop_front()
            {
                let mut peer = self.host.connect(role.name())?;
                peer.send().map_err(lost)?;
                self.poller.add(peer.socket(), self.actors.len())?;
                self.actors.push(Actor::new(peer, role));
                self.turn(0)?;
            } else {
                self.turn(TURN_US_MAX)?;
            }
        }
    }
}
