//! Flow control inside the broker: who may be read, and what happens when memory or disk run short.
//!
//! Work in progress goes before new work: deliveries, acknowledgements and confirms are served first
//! and only publishes are held back: a connection is read up to its first publish for which there is no
//! room, and then not at all until there is. The surplus waits where it is made. In the order in which it comes to it:
//!
//! ```text
//!   memory ≥ 50 %      longest queues are spilled to disk
//!   open batch full    publishes are held until the disk has caught up (silent); it is full earlier while somebody
//!                      modest waits for it
//!   memory ≥ 100 %     the same, until memory is back
//!   … for 1 s, or      connection.blocked to publishing connections (`alarms.rs`)
//!   little disk space,
//!   a stalled log
//! ```

use forebay_flow::receive_buffer_bytes;

use crate::ack_timeout::seconds;
use crate::connection::Stage;
use crate::input::ConnectionId;
use crate::memory::RECEIVE_PER_MEMORY;
use crate::shard::{Shard, Stopping};
use crate::waits::Gate;

/// Segments that are ready on a full disk, and kept for acknowledgements alone.
const RESERVED_SEGMENTS: usize = 1;

/// A connection with a held publish and unsettled deliveries goes on this often all the same: the
/// acknowledgements behind the publish may be what frees memory.
const TRICKLE_EVERY_US: u64 = 10_000;

/// How many bytes may pass then, content of the last publish aside.
const TRICKLE_BYTES: usize = 4 * 1024;

/// Who may finish its body while memory is short and does not send for so long leaves it to another.
const FINISHING_PATIENCE_US: u64 = 50_000;

/// While memory is short no other body is brought to its end if complete messages take this part of it: they go to the disk first.
const COMPLETE_PER_MEMORY: u64 = 4;

/// Bodies that have not come to their end may take this part of the budget beyond what messages may, and two of the largest messages in any
/// case: a vector that grows may be twice what is in it.
const HALVES_PER_MEMORY: u64 = 4;
const HALVES_MESSAGES: u64 = 2;

/// A pause shorter than this is a ripple of the disk: publishers are not read up to their next publish
/// for its sake.
const RIPPLE_US: u64 = 50_000;

/// What is read and not committed takes at most this part of the memory budget.
pub(crate) const INGRESS_PER_MEMORY: u64 = 16;

/// Bodies that have not come to their end.
#[derive(Debug, Default)]
pub(crate) struct Assembling {
    /// What they take of the memory in use.
    pub(crate) bytes: u64,
    /// Who may come to its end although memory is short, and when it last asked.
    finishing: Option<(ConnectionId, u64)>,
}

/// What flow control says of reading a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// As much as its fair share.
    Open,
    /// A few KiB: all but publishes is served.
    Trickle,
    /// Nothing yet: step [`Input::Received`](crate::Input::Received) without bytes, and the broker goes
    /// on with those it holds.
    Resume,
    /// Nothing.
    Closed,
}

impl Shard {
    /// How much of a connection may be read now. Ask anew each turn: what is granted is granted once.
    pub fn admission(&mut self, id: ConnectionId) -> Admission {
        let admission = self.grant(id);
        let (gate, now_us) = (self.gate_of(id), self.now_us);
        if let Some(connection) = self.connection(id) {
            connection.unheard = admission == Admission::Closed;
            match admission {
                Admission::Closed => connection.waits.hold(gate, now_us),
                // Others may pass its publish, which goes on waiting.
                Admission::Resume if gate.is_some() => {}
                _ => connection.waits.hold(None, now_us),
            }
        }
        admission
    }

    fn grant(&mut self, id: ConnectionId) -> Admission {
        let (now_us, since_us) = (self.now_us, self.paused_since_us);
        if self.is_deaf(id) {
            return Admission::Closed;
        }
        let holds = self.holds_publishes(id);
        let Some(connection) = self.connection(id) else { return Admission::Closed };
        // It has read its answers. If a publish comes next that has to wait, that is seen then.
        if connection.brimming {
            return Admission::Resume;
        }
        if !holds {
            return if connection.held { Admission::Resume } else { Admission::Open };
        }
        if connection.held {
            // The last of what is reserved on a full disk is for acknowledgements alone.
            let passes = !self.is_out_of_reserve();
            let Some(connection) = self.connection(id) else { return Admission::Closed };
            let is_time = now_us >= connection.trickle_us + TRICKLE_EVERY_US;
            let (assembling, has_unacked) = (connection.is_assembling(), connection.has_unacked());
            // What is missing of a body may come behind the publish of another channel.
            let finishes = passes && is_time && assembling && self.is_short_of_memory();
            if passes && is_time && (has_unacked || finishes && self.may_finish(id)) {
                let Some(connection) = self.connection(id) else { return Admission::Closed };
                connection.trickle_us = now_us;
                connection.pass_bytes = TRICKLE_BYTES;
                return Admission::Resume;
            }
            return Admission::Closed;
        }
        if !connection.publisher {
            return Admission::Open;
        }
        let (assembling, has_unacked) = (connection.is_assembling(), connection.has_unacked());
        if assembling && self.is_short_of_memory() {
            if self.may_finish(id) {
                return Admission::Open;
            }
            // A few bytes more would not bring it to its end, and may double its room.
            return if has_unacked { Admission::Trickle } else { Admission::Closed };
        }
        let Some(connection) = self.connection(id) else { return Admission::Closed };
        if has_unacked {
            return Admission::Trickle;
        }
        if since_us
            .is_some_and(|since_us| now_us >= since_us.max(connection.trickle_us) + RIPPLE_US)
        {
            connection.trickle_us = now_us;
            return Admission::Trickle;
        }
        Admission::Closed
    }

    /// Whether a connection may go on with the body that it is in the middle of, although memory is short. Of what is half there
    /// nothing can be written to disk and nothing be consumed: if all of it waited for memory, nothing would bring that back. So one
    /// at a time comes to its end while those before it leave the memory; one that has nothing to say for a moment leaves it to the next.
    ///
    /// The bodies of one connection come mixed, as it likes, so more than one may have to grow for one to end:
    /// [`halves_max_bytes`](Shard::halves_max_bytes) bounds that.
    fn may_finish(&mut self, id: ConnectionId) -> bool {
        let complete_bytes = self.memory_bytes - self.assembling.bytes;
        if complete_bytes >= self.memory_max_bytes() / COMPLETE_PER_MEMORY {
            return false;
        }
        let now_us = self.now_us;
        if let Some((other, asked_us)) = self.assembling.finishing
            && other != id
            && now_us < asked_us + FINISHING_PATIENCE_US
            && self.connection(other).is_some_and(|connection| connection.is_assembling())
        {
            return false;
        }
        self.assembling.finishing = Some((id, now_us));
        true
    }

    fn is_short_of_memory(&self) -> bool {
        self.publishers_paused_by() == Some(Gate::Memory)
    }

    /// What all bodies that have not come to their end may take together, in bytes. Beyond it nobody could finish within the memory, so who brings
    /// more is told so and loses its connection, or all publishers would wait for ever.
    pub(crate) fn halves_max_bytes(&self) -> u64 {
        let budget = self.config.memory_budget_bytes;
        let beyond = HALVES_MESSAGES.saturating_mul(self.config.message_max_bytes);
        self.memory_max_bytes().saturating_add(beyond.max(budget / HALVES_PER_MEMORY))
    }

    /// Bytes of this connection that wait behind a publish for which there is no room, or for its reading of what it asked for
    /// before; at most what was read at one time.
    pub fn held_bytes(&self, id: ConnectionId) -> usize {
        match self.connections.get(id.0 as usize) {
            Some(Some(connection)) if connection.keeps_back() => connection.partial.len(),
            _ => 0,
        }
    }

    /// Whether nothing at all is taken from a connection: what it asks for would pile up, or it is over.
    fn is_deaf(&self, id: ConnectionId) -> bool {
        let Some(Some(connection)) = self.connections.get(id.0 as usize) else { return true };
        connection.stage == Stage::Open
            && (connection.is_brimful() || self.stopping == Stopping::Closing)
    }

    /// Whether the answers to what a connection asked are as many as may wait for it to read them: what it asks next stays where it
    /// is. Requests are small and answers may be large (`basic.get`), so this is asked before each frame.
    pub(crate) fn stops_at_brim(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.connection(id) else { return false };
        connection.brimming = connection.stage == Stage::Open && connection.is_brimful();
        connection.brimming
    }

    /// Whether the disk is full, and what is left of its reserve is for acknowledgements alone.
    pub(crate) fn is_out_of_reserve(&self) -> bool {
        self.low_space && self.store.ready_segments() <= RESERVED_SEGMENTS
    }

    /// Whether the next publish of a connection has to wait.
    pub(crate) fn holds_publishes(&self, id: ConnectionId) -> bool {
        let Some(Some(connection)) = self.connections.get(id.0 as usize) else { return false };
        connection.stage == Stage::Open
            && (connection.confirms_full
                || !connection.waits_for.is_empty()
                || self.publishers_paused())
    }

    /// The next frame is a publish that has to wait; it and what follows stay where they are.
    pub(crate) fn hold(&mut self, id: ConnectionId) {
        let (gate, now_us) = (self.gate_of(id), self.now_us);
        let Some(connection) = self.connection(id) else { return };
        connection.waits.hold(gate, now_us);
        (connection.held, connection.held_s) = (true, seconds(now_us));
        self.becomes_publisher(id);
    }

    /// It publishes: flow control concerns it.
    pub(crate) fn becomes_publisher(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        if !std::mem::replace(&mut connection.publisher, true) {
            self.publishing_connections += 1;
            self.tell_alarm(id);
        }
    }

    /// It publishes now.
    pub(crate) fn publishes(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return };
        connection.published_in = self.active.publishes(now_us, connection.published_in);
    }

    /// How many connections publish at present.
    pub(crate) fn active_publishers(&mut self) -> usize {
        // Some of those that count may be gone.
        self.active.count(self.now_us).min(self.publishing_connections)
    }

    /// What the receive buffer of a connection's socket is to be from now on, in bytes, if that has
    /// changed. What was asked for counts in the memory budget while the connection lasts.
    pub fn receive_buffer(&mut self, id: ConnectionId) -> Option<u64> {
        let share = self.config.memory_budget_bytes / RECEIVE_PER_MEMORY;
        let publishers = self.active_publishers();
        let connection = self.connection(id)?;
        let bytes = receive_buffer_bytes(share, publishers, connection.receive_bytes > 0)?;
        if !connection.publisher || connection.receive_bytes == bytes {
            return None;
        }
        let before = std::mem::replace(&mut connection.receive_bytes, bytes);
        self.receive_bytes = self.receive_bytes - before + bytes;
        Some(bytes)
    }

    /// A batch is committed: how much may wait for the next ones.
    pub(crate) fn budget_ingress(&mut self) {
        let commits = self.store.commits();
        let bytes = commits.written_bytes - self.committed_bytes;
        self.committed_bytes = commits.written_bytes;
        self.ingress.committed(self.now_us, commits.mean_us, bytes);
        self.commit_cost.committed(commits.last_us, bytes);
        let publishers = u32::try_from(self.active_publishers()).unwrap_or(u32::MAX);
        // On a slow disk commits are what windows are measured by.
        let few = if self.commit_cost.us() == 0 { publishers } else { 0 };
        self.fill_trial.committed(
            self.now_us,
            commits.last_us,
            self.counters.confirmed + self.counters.delivered,
            few,
        );
        self.store.set_may_follow(self.commit_cost.us() == 0);
        self.store.set_uncommitted_max(self.ingress.bytes() as usize);
        let most_bytes = self.commit_size.most_bytes(self.now_us, self.commit_cost.even_bytes());
        self.store.set_batch_most(most_bytes.map(|bytes| bytes as usize));
    }

    /// Whether there is room for publishes of those whom nothing of their own holds.
    pub fn takes_publishes(&self) -> bool {
        !self.publishers_paused()
    }

    fn publishers_paused(&self) -> bool {
        self.publishers_paused_by().is_some()
    }

    /// What keeps publishes waiting; of several reasons the one that ends last, usually.
    fn publishers_paused_by(&self) -> Option<Gate> {
        if self.is_stopping() {
            Some(Gate::Stop)
        } else if self.low_space {
            Some(Gate::Space)
        } else if self.memory_bytes >= self.memory_max_bytes() {
            Some(Gate::Memory)
        } else {
            self.store.is_full().then_some(Gate::Batch)
        }
    }

    /// What holds a connection, or its next publish.
    fn gate_of(&self, id: ConnectionId) -> Option<Gate> {
        let connection = self.connections.get(id.0 as usize)?.as_ref()?;
        if connection.stage != Stage::Open {
            return None;
        }
        if connection.is_brimful() {
            return Some(Gate::Outgoing);
        }
        if self.stopping == Stopping::Closing {
            return Some(Gate::Stop);
        }
        let unconfirmed = connection.confirms_full.then_some(Gate::Unconfirmed);
        let balance = (!connection.waits_for.is_empty()).then_some(Gate::Balance);
        self.publishers_paused_by().or(unconfirmed).or(balance)
    }

    /// What flow control does at the end of a turn.
    pub(crate) fn balance_memory(&mut self) {
        self.spill();
        self.feed_hungry_queues();
        if self.evacuating.is_some() && !self.store.is_full() {
            self.evacuate_some();
        }
        self.paused_since_us =
            self.publishers_paused().then(|| self.paused_since_us.unwrap_or(self.now_us));
        if !self.is_out_of_reserve() {
            self.reserve_letters_bytes = 0;
        }
        self.look_at_alarms();
    }

    /// When flow control wants to look again, if anything is held back.
    pub(crate) fn flow_deadline_us(&self) -> Option<u64> {
        let pressed = self.memory_bytes >= self.budget_bytes() / 2;
        let paused = self.low_space || self.is_stopping() || self.store.is_full();
        (pressed || paused).then(|| self.now_us + TRICKLE_EVERY_US)
    }
}
