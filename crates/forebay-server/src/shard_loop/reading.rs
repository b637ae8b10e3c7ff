//! Reading: who is read in a turn, how much, and who waits at a closed gate.

use super::{LoopFailed, ShardLoop, id};
use crate::connection::{Phase, list};
use forebay_broker::{Admission, Input};
use forebay_flow::Gated;
use std::io;

/// The one buffer that all connections of a shard are read into, in bytes.
pub(super) const READ_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes read from a paused connection that is read a little: enough for a hundred acknowledgements.
const READ_BUDGET_TRICKLE_BYTES: usize = 4 * 1024;
/// Bytes read in one turn, from takers and again from bringers: about a millisecond of work. While more
/// than four times as much is delivered in a turn, bringers get more.
pub(super) const TURN_READ_BYTES_MAX: usize = 256 * 1024;

/// While no publish has room, those at their gates are asked so often: some wait for something of their own, and some
/// are let through a little. A shell that is woken less often asks less often.
const CLOSED_GATES_EVERY_US: u64 = 1_000;
/// Those that wait for something of their own, such as a queue that holds them, are asked so often while anything goes on.
const PARKED_EVERY_US: u64 = 1_000;

/// When those at the gate are asked again.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// While there is no room.
    due_us: u64,
    /// Those that are parked; and whether something has happened since they were asked.
    parked_due_us: u64,
    parked_unasked: bool,
}

impl Gates {
    /// When that has to be, whatever happens.
    pub(super) fn next_us(&self) -> Option<u64> {
        self.parked_unasked.then_some(self.parked_due_us)
    }
}

impl ShardLoop {
    pub(super) fn read_turn(&mut self) -> Result<(), LoopFailed> {
        if self.visits.would_overtake() && self.shard.takes_publishes() {
            self.ask_gates();
        }
        self.visits.begin_turn(self.counters.sent_bytes);
        let mut delivered = false;
        loop {
            while let Some((key, budget)) = self.visits.next_visit() {
                if self.visits.at_bringers() && !std::mem::replace(&mut delivered, true) {
                    // What takers do with it they do while publishers are read, and not after it.
                    self.shard.step(self.now_us, Input::Deliver)?;
                    self.flush_dirty()?;
                }
                let bytes = self.read(key, budget)?;
                self.visits.brought(bytes);
            }
            if !self.visits.turn_has_room() || !self.shard.takes_publishes() {
                return Ok(());
            }
            self.ask_gates();
            if !self.visits.has_let_go() {
                return Ok(());
            }
        }
    }

    /// Reads one connection once; returns the bytes read.
    fn read(&mut self, key: usize, budget: usize) -> Result<usize, LoopFailed> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(0) };
        connection.listed = false;
        // Asking uses up a trickle, so the answer that `ask_gates` got counts.
        let admission = match connection.admitted.take() {
            _ if connection.phase != Phase::Open => Admission::Open,
            Some(admission) => admission,
            None => self.shard.admission(id(key)),
        };
        let waited_us = self.now_us - connection.listed_us;
        if waited_us > 0 && admission != Admission::Closed {
            self.shard.waited_for_turn(id(key), waited_us);
        }
        if admission != Admission::Closed && !connection.is_taker() {
            self.shard.publisher_waited(self.now_us - connection.arrived_us);
        }
        let budget = match admission {
            Admission::Open => budget,
            Admission::Trickle => READ_BUDGET_TRICKLE_BYTES,
            Admission::Resume => return self.resume(key),
            Admission::Closed => {
                connection.listed = true;
                self.visits.gate(key, connection.is_taker());
                return Ok(0);
            }
        };
        let buffer = &mut self.read_buffer[..budget];
        let n = match connection.transport.read(buffer) {
            Ok(0) => {
                self.disconnect(key)?;
                return Ok(0);
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                self.poller.drained(key);
                return Ok(0);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => {
                self.disconnect(key)?;
                return Ok(0);
            }
        };
        connection.count_received(n);
        // Less than asked for means that the kernel has no more, and a later arrival is a new event;
        // only the peer's end may already have been announced together with these bytes.
        if n > 0 && n < budget && !connection.hangup {
            connection.readable = false;
            self.poller.drained(key);
        } else {
            list(connection, key, self.now_us, &mut self.visits);
        }
        self.counters.received_bytes += n as u64;
        if connection.phase == Phase::Open && n > 0 {
            let bytes = &self.read_buffer[..n];
            self.shard.step(self.now_us, Input::Received { connection: id(key), bytes })?;
            self.gate_if_held(key);
            self.size_receive_buffer(key);
        }
        Ok(n)
    }

    /// Gives a publisher's socket the receive buffer that the shard wants it to have.
    fn size_receive_buffer(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(bytes) = self.shard.receive_buffer(id(key)) {
            connection.transport.set_receive_buffer(bytes);
        }
    }

    /// Goes on with what the shard holds of a connection; returns how many bytes that were.
    fn resume(&mut self, key: usize) -> Result<usize, LoopFailed> {
        let held = self.shard.held_bytes(id(key));
        self.shard.step(self.now_us, Input::Received { connection: id(key), bytes: &[] })?;
        if !self.gate_if_held(key)
            && let Some(connection) = self.connections.get_mut(key)
            && (connection.readable || connection.hangup)
        {
            list(connection, key, self.now_us, &mut self.visits);
        }
        Ok(held - self.shard.held_bytes(id(key)))
    }

    /// A connection of which the shard holds something back waits at its gate, whether there is more in
    /// its socket or not.
    fn gate_if_held(&mut self, key: usize) -> bool {
        let held = self.shard.held_bytes(id(key)) > 0;
        if held
            && let Some(connection) = self.connections.get_mut(key)
            && !connection.listed
        {
            connection.listed = true;
            connection.arrived_us = self.now_us;
            self.visits.gate(key, connection.is_taker());
        }
        held
    }

    /// Connections whose gate has opened are read in the next turn, which then comes at once.
    pub(super) fn ask_gates(&mut self) {
        let now_us = self.now_us;
        let room = self.shard.takes_publishes();
        self.gates.parked_unasked &= self.visits.has_parked();
        if self.visits.has_parked() {
            // What they wait for may have come with this turn: if it is too early to ask, it is not forgotten.
            if now_us >= self.gates.parked_due_us {
                self.gates.parked_due_us = now_us + PARKED_EVERY_US;
                self.gates.parked_unasked = false;
                self.visits.unpark();
            } else {
                self.gates.parked_unasked = true;
            }
        }
        if !room {
            if now_us < self.gates.due_us {
                return;
            }
            self.gates.due_us = now_us + CLOSED_GATES_EVERY_US;
        }
        let (shard, connections) = (&mut self.shard, &mut self.connections);
        self.visits.ask_gate(|key| match connections.get_mut(key) {
            Some(connection) if connection.listed => {
                let admission = match connection.phase {
                    Phase::Open => shard.admission(id(key)),
                    _ => Admission::Open,
                };
                if admission == Admission::Closed {
                    return if room { Gated::Parks } else { Gated::Stays };
                }
                // An open gate is asked again when it is read; the rest is granted once.
                connection.admitted = (admission != Admission::Open).then_some(admission);
                connection.listed_us = now_us;
                Gated::Goes { taker: connection.is_taker() }
            }
            _ => Gated::Gone,
        });
    }
}
