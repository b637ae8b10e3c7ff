//! What can happen next. An event carries all the chance it needs, so that a list of events is a whole
//! run: it can be printed, replayed, and shortened.

use forebay_store::Lane;

/// How a broker dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The process is killed: what it wrote is there.
    Kill,
    /// The power goes: what was not synced is old, new or garbage.
    PowerLoss,
}

/// How a broker ended before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It died at work.
    Died,
    /// It died while it was stopping; its last checkpoint may be there.
    DiedStopping,
    /// It was stopped.
    Stopped,
}

/// A disk call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// A write stops half way.
    Write,
    /// A sync fails, and what it was to make durable is gone.
    Sync,
    /// A read fails.
    Read,
    /// A file cannot be made.
    Create,
    /// There is no room to be had for what will be written.
    Allocate,
    /// A name cannot be changed.
    Name,
    /// A file cannot be removed.
    Remove,
    /// A change of names cannot be made durable.
    Names,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client does what the roll says, or connects.
    Act {
        /// Which client.
        client: usize,
        /// What chance it has.
        roll: u64,
    },
    /// Bytes of a client reach the broker.
    Feed {
        /// Which client.
        client: usize,
        /// At most so many.
        bytes: usize,
    },
    /// Bytes of the broker reach a client.
    Carry {
        /// Which client.
        client: usize,
        /// At most so many.
        bytes: usize,
    },
    /// The end of a turn of the broker's loop.
    Turn,
    /// A deadline has passed.
    Tick,
    /// Nothing happens for a while, up to the next deadline.
    Wait {
        /// At most so long, in microseconds.
        us: u64,
    },
    /// A lane is done with its request.
    Complete(Lane),
    /// The network cuts a connection.
    Reset {
        /// Which client's.
        client: usize,
    },
    /// A client is gone without a word; the broker does not learn of it.
    Vanish {
        /// Which client.
        client: usize,
    },
    /// A client does not read, or reads again.
    Stall {
        /// Which client.
        client: usize,
    },
    /// The broker dies in the middle of everything and is started again.
    Die {
        /// How.
        death: Death,
        /// What became of requests in flight, of sectors, of recovery.
        seed: u64,
    },
    /// The next disk call of a kind fails.
    Fail(DiskError),
    /// The disk has so much more room, or as much as is wanted.
    Room {
        /// In bytes.
        bytes: Option<u64>,
    },
    /// A bit changes, while the broker is down.
    Flip {
        /// Which file, which bit, and how recovery goes.
        seed: u64,
    },
    /// The broker is asked to stop, and started again.
    Restart,
}
