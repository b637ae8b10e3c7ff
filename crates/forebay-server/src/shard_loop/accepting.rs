//! Accepting: who is let in, who is turned away, and when nobody can be.

use std::io;
use std::net::{SocketAddr, TcpListener};

use forebay_broker::Peer;

use super::{Listening, LoopFailed, ShardLoop};
use crate::connection::{Connection, Transport};
use crate::listener::{Accepted, accept};

/// Connections taken from one listener in one turn.
const ACCEPTS_PER_TURN_MAX: usize = 64;
/// How long accepting rests when the process has no descriptor left.
const ACCEPT_REST_US: u64 = 100_000;
/// Keys of listeners start here; connections count from 0.
pub(super) const LISTENER_KEY_FIRST: usize = 1 << 40;

impl ShardLoop {
    pub(super) fn add_listener(&mut self, listener: TcpListener) -> io::Result<()> {
        let key = LISTENER_KEY_FIRST + self.listeners.len();
        let name = listener.local_addr()?.to_string();
        if self.accept_rests_until_us.is_none() {
            self.poller.add_listener(&listener, key)?;
        }
        self.listeners.push(Listening { listener, name, ready: false });
        Ok(())
    }

    pub(super) fn accept_turn(&mut self) -> Result<(), LoopFailed> {
        if self.accept_rests_until_us.is_some_and(|until_us| until_us <= self.now_us) {
            self.accept_rests_until_us = None;
            for (index, listening) in self.listeners.iter().enumerate() {
                let key = LISTENER_KEY_FIRST + index;
                self.poller.add_listener(&listening.listener, key).map_err(LoopFailed::Poll)?;
            }
        }
        for index in 0..self.listeners.len() {
            if std::mem::take(&mut self.listeners[index].ready) {
                self.accept_from(index)?;
            }
        }
        Ok(())
    }

    fn accept_from(&mut self, index: usize) -> Result<(), LoopFailed> {
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            match accept(&self.listeners[index].listener) {
                Accepted::Nobody => return Ok(()),
                Accepted::Stream(stream, address) => {
                    if self.connections.len() >= self.connections_max && !self.end_lingering()? {
                        drop(stream);
                        self.count_refused();
                        continue;
                    }
                    self.counters.connections_accepted += 1;
                    let key = self.connections.vacant_key();
                    if let Err(error) = self.poller.add_socket(&stream, key) {
                        tracing::warn!(%error, "cannot watch a new connection; closed it");
                        continue;
                    }
                    let peer = self.peer(address, index);
                    self.adopt(Connection::new(Transport::Tcp(stream)), peer)?;
                }
                Accepted::Exhausted(error) => {
                    self.tell_exhausted(&error);
                    return self.rest_accepting().map_err(LoopFailed::Poll);
                }
            }
        }
        Ok(())
    }

    fn count_refused(&mut self) {
        self.counters.connections_refused += 1;
        // The 1st, 2nd, 4th, 8th … time: a flood must not fill the log.
        if self.counters.connections_refused.is_power_of_two() {
            tracing::warn!(
                connections_max = self.connections_max,
                refused = self.counters.connections_refused,
                "closed a new connection: connections_max is reached"
            );
        }
    }

    fn peer(&self, address: SocketAddr, listener: usize) -> Peer {
        Peer {
            address: address.to_string(),
            loopback: address.ip().to_canonical().is_loopback(),
            listener: self.listeners[listener].name.clone(),
        }
    }

    /// A listener that cannot be served stays readable, so it must leave the poller for a while.
    fn rest_accepting(&mut self) -> io::Result<()> {
        if self.accept_rests_until_us.is_none() {
            for (index, listening) in self.listeners.iter().enumerate() {
                self.poller.remove_listener(&listening.listener, LISTENER_KEY_FIRST + index)?;
            }
            self.accept_rests_until_us = Some(self.now_us + ACCEPT_REST_US);
        }
        Ok(())
    }
}
