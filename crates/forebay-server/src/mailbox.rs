//! Letters from other threads to the shard: finished disk requests, new in-process connections,
//! questions about the state, the order to stop.
//!
//! Bound: disk completions are as many per lane as it may have requests; everything else is one letter per call of an
//! outside thread that waits for the answer, or one per in-process connection and turn.

use crate::in_process::ServerEnd;
use crate::poller::Waker;
use forebay_broker::{ListCursor, Listed, QueueReport, Status};
use forebay_store::Completion;
use std::net::TcpListener;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One letter.
pub(crate) enum Mail {
    /// A lane has finished its request.
    Completed(Completion),
    /// A lane has panicked.
    LaneDied,
    /// A new connection of the same process.
    Connect(ServerEnd),
    /// The other side of an in-process connection has written, read or gone.
    Ready(usize),
    /// Accept connections here as well.
    Listen(TcpListener),
    /// Answer with a snapshot.
    Status(SyncSender<Snapshot>),
    /// Answer with what is known of a queue: virtual host, name.
    Queue(String, String, SyncSender<Option<QueueReport>>),
    /// Answer with a slice of what is declared.
    List(ListCursor, SyncSender<(Vec<Listed>, ListCursor)>),
    /// Drain and stop.
    Stop,
}

/// What the shard and the shell around it count.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The broker's own state and counters.
    pub broker: Status,
    /// What the shell counts: sockets, bytes, turns.
    pub shell: ShellCounters,
}

/// Counters of the shell, all since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShellCounters {
    /// Connections open now, handshakes included.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections closed at once because `connections_max` was reached.
    pub connections_refused: u64,
    /// Bytes read from connections.
    pub received_bytes: u64,
    /// Bytes written to connections.
    pub sent_bytes: u64,
    /// Turns of the shard's loop.
    pub turns: u64,
    /// Microseconds since the server was ready.
    pub uptime_us: u64,
}

/// The shard's letter box; any thread may post.
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    waker: Waker,
}

#[derive(Default)]
struct Letters {
    waiting: Vec<Mail>,
    /// The shard has ended: nothing is read any more.
    closed: bool,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker) -> Mailbox {
        Mailbox { letters: Mutex::default(), waker }
    }

    /// Puts a letter in; wakes the shard only for the first, because it always takes them all. Of a closed box it
    /// falls out again: whoever waits for an answer sees that nobody is left to give one.
    pub(crate) fn post(&self, mail: Mail) {
        let mut letters = self.lock();
        if letters.closed {
            drop(letters); // first: what a letter holds has locks of its own
            return drop(mail);
        }
        letters.waiting.push(mail);
        let first = letters.waiting.len() == 1;
        drop(letters);
        if first {
            self.waker.wake();
        }
    }

    /// Takes all letters; `empty` becomes the next box, so that no turn allocates.
    pub(crate) fn take(&self, empty: &mut Vec<Mail>) {
        debug_assert!(empty.is_empty());
        let mut letters = self.lock();
        if !letters.waiting.is_empty() {
            std::mem::swap(&mut letters.waiting, empty);
        }
    }

    /// Throws away what waits and what comes.
    pub(crate) fn close(&self) {
        let mut letters = self.lock();
        letters.closed = true;
        let waiting = std::mem::take(&mut letters.waiting);
        drop(letters);
        drop(waiting);
    }

    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
