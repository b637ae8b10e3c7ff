//! What the store tells its owner.

use crate::home::{BatchNo, Home, QueueId, RunId, Seq};

/// Something the store's owner must know; taken with [`Store::poll_event`](crate::Store::poll_event).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Everything appended up to and including this batch is durable.
    Durable(BatchNo),
    /// The run is on disk and the log says so: the copies in memory may go, and the messages' home is
    /// now [`Home::run`]. Until the event is taken, messages are settled with their old home.
    RunDurable {
        /// The run.
        run: RunId,
        /// Its queue.
        queue: QueueId,
    },
    /// A block of a cold run that [`Store::read_run`](crate::Store::read_run) asked for: live messages
    /// in order of their sequence numbers. `true` = persistent.
    RunBlock {
        /// The run.
        run: RunId,
        /// Its queue.
        queue: QueueId,
        /// Sequence number, whether the message is persistent, payload.
        messages: Vec<(Seq, bool, Vec<u8>)>,
        /// Nothing live comes after this block in the run.
        at_end: bool,
    },
    /// The log is over its cap, or the disk full, and its oldest segment holds live messages: each message with this home
    /// must be settled, [relocated](crate::Store::relocate) or put into a run. Worth a relocation are a
    /// few messages; when much of the segment is alive, runs keep the log from growing by its own copies.
    Evacuate {
        /// The segment's home.
        homes: Home,
    },
    /// The final batch is synced: the process may exit.
    Stopped,
    /// `true`: the disk has no room for another log segment; publishers are to be blocked, while what
    /// is reserved serves acks and checkpoints. `false`: there is room again.
    LowSpace(bool),
}
