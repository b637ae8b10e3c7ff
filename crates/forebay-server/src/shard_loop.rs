//! The loop of a shard's thread: what the state machine decides is performed here, and nothing is
//! decided here.
//!
//! ```text
//!   wait ─► letters (disk completions first) ─► events ─► Tick ─► read takers ─► Deliver, write
//!    ▲                                                                                 │
//!    └── accept ◄── disk requests to the lanes ◄── close ◄── write ◄── Turn ◄── read bringers
//! ```
//!
//! A turn is bounded by [`TURN_READ_BYTES_MAX`]; what is left readable goes on in the next turn, in
//! the same order, so nobody is read twice before everybody was read once. Peers that take more than
//! they bring (consumers) stand in a list of their own, which is read first: with a thousand publishers
//! in one list, a consumer's acknowledgements would wait for a thousand reads. What these made room for is written
//! before the others are read: a consumer with little credit works meanwhile, and its next acknowledgements are
//! there for the next turn.

mod accepting;
mod reading;
mod telling;

use crate::connection::{Connection, Phase, Transport, list};
use crate::in_process::ServerEnd;
use crate::lane::Lanes;
use crate::mailbox::{Mail, Mailbox, ShellCounters, Snapshot};
use crate::poller::{Poller, Ready};
use crate::resident::Resident;
use crate::shard_setup::clock_began_us;
use forebay_broker::{CloseHow, ConnectionId, Input, Peer, Shard};
use forebay_flow::Visits;
use forebay_store::StoreFailed;
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use accepting::LISTENER_KEY_FIRST;
use reading::{Gates, READ_BUFFER_BYTES, TURN_READ_BYTES_MAX};
use telling::Tellings;

/// How long a closing connection may take to take our last bytes, and again to end its side.
const CLOSE_PATIENCE_US: u64 = 2_000_000;
/// How often the broker is told what the system's clock says.
const CLOCK_EVERY_US: u64 = 1_000_000;
/// How often the broker is told what its process takes: it may take some megabytes more in that time, and reading it is
/// a system call of about a microsecond.
const RESIDENT_EVERY_US: u64 = 5_000;

/// What the loop is given.
pub(crate) struct Setup {
    pub(crate) shard: Shard,
    pub(crate) poller: Poller,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Log and background, absent when everything is in memory.
    pub(crate) lanes: Option<Lanes>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) connections_max: usize,
    /// What the process takes, where it is the server's alone.
    pub(crate) resident: Option<Resident>,
    pub(crate) drain_timeout: Duration,
    pub(crate) started: Instant,
}

/// Why the loop ended other than by order.
#[derive(Debug)]
pub(crate) enum LoopFailed {
    Store(StoreFailed),
    Poll(io::Error),
    Lane,
}

impl From<StoreFailed> for LoopFailed {
    fn from(failed: StoreFailed) -> Self {
        LoopFailed::Store(failed)
    }
}

struct Listening {
    listener: TcpListener,
    name: String,
    ready: bool,
}

/// The state of the loop.
pub(crate) struct ShardLoop {
    shard: Shard,
    poller: Poller,
    mailbox: Arc<Mailbox>,
    lanes: Option<Lanes>,
    listeners: Vec<Listening>,
    connections: Slab<Connection>,
    connections_max: usize,
    /// Readable connections in the order in which they will be read, and those whose gate is closed.
    visits: Visits,
    gates: Gates,
    /// Closing connections in the order in which patience with them ends.
    closing: VecDeque<(u64, usize)>,
    letters: Vec<Mail>,
    read_buffer: Box<[u8]>,
    started: Instant,
    now_us: u64,
    /// When the broker is told again what the system's clock says.
    clock_due_us: u64,
    resident: Option<Resident>,
    /// When the broker is told again what the process takes.
    resident_due_us: u64,
    /// Accepting rests until then (descriptors exhausted); listeners are out of the poller meanwhile.
    accept_rests_until_us: Option<u64>,
    drain_timeout: Duration,
    draining: bool,
    /// When the last connections are cut, while there are any.
    drain_until_us: Option<u64>,
    /// A connection went after the state machine's last look, so the next turn comes at once.
    turn_again: bool,
    counters: ShellCounters,
    tellings: Tellings,
}

impl ShardLoop {
    pub(crate) fn new(setup: Setup) -> io::Result<ShardLoop> {
        let mut this = ShardLoop {
            shard: setup.shard,
            poller: setup.poller,
            mailbox: setup.mailbox,
            lanes: setup.lanes,
            listeners: Vec::new(),
            connections: Slab::new(),
            connections_max: setup.connections_max,
            visits: Visits::new(TURN_READ_BYTES_MAX),
            gates: Gates::default(),
            closing: VecDeque::new(),
            letters: Vec::new(),
            read_buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
            started: setup.started,
            now_us: 0,
            clock_due_us: 0,
            resident: setup.resident,
            resident_due_us: 0,
            accept_rests_until_us: None,
            drain_timeout: setup.drain_timeout,
            draining: false,
            drain_until_us: None,
            turn_again: false,
            counters: ShellCounters::default(),
            tellings: Tellings::default(),
        };
        for listener in setup.listeners {
            this.add_listener(listener)?;
        }
        Ok(this)
    }

    /// Runs until the order to stop is carried out or the store fails.
    pub(crate) fn run(mut self) -> Result<(), LoopFailed> {
        loop {
            let timeout_us = self.timeout_us();
            self.poller.wait(timeout_us).map_err(LoopFailed::Poll)?;
            self.now_us = self.clock_us();
            self.counters.turns += 1;
            self.tell_clock();
            self.tell_resident();
            self.take_letters()?;
            self.take_events()?;
            if self.shard.next_deadline_us().is_some_and(|deadline| deadline <= self.now_us) {
                self.shard.step(self.now_us, Input::Tick)?;
            }
            self.read_turn()?;
            let busy = self.visits.is_busy(self.shard.takes_publishes());
            self.shard.step(self.now_us, Input::Turn { busy })?;
            self.tell_operator();
            self.flush_dirty()?;
            self.close_turn()?;
            self.submit_disk()?;
            self.accept_turn()?;
            self.ask_gates();
            if self.finished()? {
                return Ok(());
            }
        }
    }

    fn clock_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// The system's clock may be set while we run.
    fn tell_clock(&mut self) {
        if self.now_us >= self.clock_due_us {
            self.clock_due_us = self.now_us + CLOCK_EVERY_US;
            self.shard.set_clock(clock_began_us(self.started));
        }
    }

    fn tell_resident(&mut self) {
        if self.now_us >= self.resident_due_us
            && let Some(resident) = &self.resident
        {
            self.resident_due_us = self.now_us + RESIDENT_EVERY_US;
            // A system that stops telling leaves the broker with what it knew.
            if let Some(bytes) = resident.bytes() {
                self.shard.set_resident(self.now_us, bytes);
            }
        }
    }

    /// 0 while there is work at hand, else until the next deadline of anybody.
    fn timeout_us(&mut self) -> Option<u64> {
        if self.visits.is_waiting() || std::mem::take(&mut self.turn_again) {
            return Some(0);
        }
        let deadlines = [
            self.shard.next_deadline_us(),
            self.closing.front().map(|(until_us, _)| *until_us),
            self.accept_rests_until_us,
            self.drain_until_us,
            self.gates.next_us(),
        ];
        let next_us = deadlines.into_iter().flatten().min()?;
        Some(next_us.saturating_sub(self.clock_us()))
    }

    // ---- letters

    fn take_letters(&mut self) -> Result<(), LoopFailed> {
        let mut letters = std::mem::take(&mut self.letters);
        self.mailbox.take(&mut letters);
        for mail in letters.drain(..) {
            match mail {
                Mail::Completed(completion) => {
                    self.shard.step(self.now_us, Input::Disk(completion))?;
                }
                Mail::LaneDied => return Err(LoopFailed::Lane),
                Mail::Ready(key) => {
                    self.on_ready(Ready {
                        key,
                        readable: true,
                        writable: true,
                        hangup: false,
                        error: false,
                    })?;
                }
                Mail::Connect(end) => self.connect_in_process(end)?,
                Mail::Listen(listener) => self.add_listener(listener).map_err(LoopFailed::Poll)?,
                // A caller that no longer waits for its answer misses nothing.
                Mail::Status(reply) => drop(reply.try_send(self.snapshot())),
                Mail::Queue(vhost, name, reply) => {
                    let report = self.shard.queue_report(&vhost, name.as_bytes(), self.now_us);
                    drop(reply.try_send(report));
                }
                Mail::List(cursor, reply) => drop(reply.try_send(self.shard.list(cursor))),
                Mail::Stop => self.begin_drain()?,
            }
        }
        self.letters = letters;
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        let mut shell = self.counters;
        shell.connections_open = self.connections.len() as u64;
        shell.uptime_us = self.now_us;
        Snapshot { broker: self.shard.status_at(self.now_us), shell }
    }

    fn connect_in_process(&mut self, end: ServerEnd) -> Result<(), LoopFailed> {
        if self.draining {
            return Ok(());
        }
        self.counters.connections_accepted += 1;
        let peer = Peer {
            address: "in-process".to_owned(),
            loopback: true,
            listener: "in-process".to_owned(),
        };
        let key = self.connections.vacant_key();
        end.register(key);
        let mut connection = Connection::new(Transport::InProcess(end));
        // It may have written before it had a key to tell us under.
        connection.readable = true;
        self.adopt(connection, peer)
    }

    fn adopt(&mut self, mut connection: Connection, peer: Peer) -> Result<(), LoopFailed> {
        let key = self.connections.vacant_key();
        tracing::debug!(key, peer = peer.address, listener = peer.listener, "connected");
        connection.listed = connection.readable;
        (connection.listed_us, connection.arrived_us) = (self.now_us, self.now_us);
        if connection.listed {
            self.visits.list(key, false);
        }
        self.connections.insert(connection);
        self.shard.step(self.now_us, Input::Connected { connection: id(key), peer })?;
        Ok(())
    }

    // ---- readiness

    fn take_events(&mut self) -> Result<(), LoopFailed> {
        for index in 0..self.poller.events_len() {
            let Some(ready) = self.poller.event(index) else { continue };
            if ready.key >= LISTENER_KEY_FIRST {
                if let Some(listening) = self.listeners.get_mut(ready.key - LISTENER_KEY_FIRST) {
                    listening.ready = true;
                }
            } else {
                self.on_ready(ready)?;
            }
        }
        Ok(())
    }

    fn on_ready(&mut self, ready: Ready) -> Result<(), LoopFailed> {
        let Some(connection) = self.connections.get_mut(ready.key) else { return Ok(()) };
        if ready.error {
            return self.disconnect(ready.key);
        }
        connection.hangup |= ready.hangup;
        if ready.readable {
            connection.readable = true;
            if !connection.listed {
                list(connection, ready.key, self.now_us, &mut self.visits);
            }
        }
        if ready.writable && !connection.writable {
            connection.writable = true;
            self.flush(ready.key)?;
        }
        Ok(())
    }

    // ---- writing

    fn flush_dirty(&mut self) -> Result<(), LoopFailed> {
        while let Some(connection) = self.shard.next_dirty() {
            self.flush(connection.0 as usize)?;
        }
        Ok(())
    }

    /// Writes what the socket takes.
    fn flush(&mut self, key: usize) -> Result<(), LoopFailed> {
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
            if !connection.writable || connection.phase == Phase::Lingering {
                return Ok(());
            }
            let bytes = self.shard.outgoing(id(key));
            if bytes.is_empty() {
                return Ok(());
            }
            let n = match connection.transport.write(bytes) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.writable = false;
                    self.poller.blocked(key);
                    return Ok(());
                }
                Err(_) => return self.disconnect(key),
            };
            if n < bytes.len() {
                connection.writable = false;
                self.poller.blocked(key);
            }
            connection.count_sent(n);
            self.counters.sent_bytes += n as u64;
            self.shard.step(self.now_us, Input::Sent { connection: id(key), bytes: n })?;
        }
    }

    // ---- closing

    fn close_turn(&mut self) -> Result<(), LoopFailed> {
        while let Some((connection, how)) = self.shard.next_closed() {
            let key = connection.0 as usize;
            let Some(open) = self.connections.get_mut(key) else { continue };
            match how {
                CloseHow::Now => self.disconnect(key)?,
                CloseHow::Flushed => {
                    open.phase = Phase::Flushing;
                    self.be_patient(key);
                }
            }
        }
        // Looked at only while something is closing, and then there are few.
        if !self.closing.is_empty() {
            for index in 0..self.closing.len() {
                let (_, key) = self.closing[index];
                let flushing =
                    self.connections.get(key).is_some_and(|c| c.phase == Phase::Flushing);
                if flushing && self.shard.outgoing(id(key)).is_empty() {
                    self.linger(key)?;
                }
            }
            while let Some(&(until_us, key)) = self.closing.front() {
                let over = match self.connections.get(key) {
                    None => true,
                    // An old entry of a connection with newer patience, or of another one.
                    Some(c) if c.phase == Phase::Open || c.patience_until_us != until_us => true,
                    Some(_) if until_us > self.now_us => false,
                    Some(_) => {
                        self.disconnect(key)?;
                        true
                    }
                };
                if !over {
                    break;
                }
                self.closing.pop_front();
            }
        }
        Ok(())
    }

    fn be_patient(&mut self, key: usize) {
        let until_us = self.now_us + CLOSE_PATIENCE_US;
        self.connections[key].patience_until_us = until_us;
        self.closing.push_back((until_us, key));
    }

    /// All is written: the shard may forget the connection, the socket waits for the peer's end.
    fn linger(&mut self, key: usize) -> Result<(), LoopFailed> {
        let connection = &mut self.connections[key];
        if matches!(connection.transport, Transport::InProcess(_)) {
            // Bytes in a pipe outlive its end; there is nothing to wait for.
            return self.disconnect(key);
        }
        connection.phase = Phase::Lingering;
        connection.transport.end_writing();
        if !connection.listed {
            list(connection, key, self.now_us, &mut self.visits);
        }
        self.be_patient(key);
        self.turn_again = true;
        self.shard.step(self.now_us, Input::Disconnected { connection: id(key) })?;
        Ok(())
    }

    /// Closes the socket that has lingered for longest, if one does: whoever was sent away, and stays, keeps nobody out.
    fn end_lingering(&mut self) -> Result<bool, LoopFailed> {
        let lingers = |&&(until_us, key): &&(u64, usize)| {
            self.connections
                .get(key)
                .is_some_and(|c| c.phase == Phase::Lingering && c.patience_until_us == until_us)
        };
        let Some(&(_, key)) = self.closing.iter().find(lingers) else { return Ok(false) };
        self.disconnect(key)?;
        Ok(true)
    }

    /// Closes the socket. A lingering connection is one that the shard has already forgotten.
    fn disconnect(&mut self, key: usize) -> Result<(), LoopFailed> {
        self.poller.remove_socket(key);
        let connection = self.connections.remove(key);
        self.visits.forget(key);
        tracing::debug!(key, "disconnected");
        if connection.phase != Phase::Lingering {
            self.shard.step(self.now_us, Input::Disconnected { connection: id(key) })?;
        }
        self.turn_again = true;
        Ok(())
    }

    // ---- disk

    fn submit_disk(&mut self) -> Result<(), LoopFailed> {
        while let Some(request) = self.shard.poll_disk(self.now_us) {
            if !self.lanes.as_ref().is_some_and(|lanes| lanes.submit(request)) {
                return Err(LoopFailed::Lane);
            }
        }
        Ok(())
    }

    // ---- stopping

    fn begin_drain(&mut self) -> Result<(), LoopFailed> {
        if std::mem::replace(&mut self.draining, true) {
            return Ok(());
        }
        for (index, listening) in self.listeners.drain(..).enumerate() {
            if self.accept_rests_until_us.is_none() {
                self.poller
                    .remove_listener(&listening.listener, LISTENER_KEY_FIRST + index)
                    .map_err(LoopFailed::Poll)?;
            }
        }
        self.accept_rests_until_us = None;
        self.drain_until_us = Some(self.now_us + self.drain_timeout.as_micros() as u64);
        tracing::debug!(connections = self.connections.len(), "draining");
        self.shard.step(self.now_us, Input::Shutdown)?;
        Ok(())
    }

    /// True when the order to stop is carried out: everybody told, everything on disk. Lingering
    /// connections have been told, and a process that ends need not be polite for two seconds.
    fn finished(&mut self) -> Result<bool, LoopFailed> {
        if !self.draining {
            return Ok(false);
        }
        let mut untold = self.connections.iter().filter(|(_, c)| c.phase != Phase::Lingering);
        if untold.next().is_none() {
            // Only the disk is waited for now.
            self.drain_until_us = None;
            return Ok(self.shard.stopped());
        }
        if self.drain_until_us.is_some_and(|until_us| until_us <= self.now_us) {
            let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
            tracing::warn!(
                connections = keys.len(),
                "cut the connections that did not close within drain_timeout_ms"
            );
            for key in keys {
                self.disconnect(key)?;
            }
        }
        Ok(false)
    }
}

fn id(key: usize) -> ConnectionId {
    ConnectionId(key as u32)
}
