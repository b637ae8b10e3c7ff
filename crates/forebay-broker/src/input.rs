//! What a shell may tell a [`Shard`](crate::Shard).

use forebay_store::Completion;

/// Dense index of a connection, chosen by the shell (its slab key).
///
/// It may be used again only after [`Input::Disconnected`] was stepped for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// Number of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardId(pub u16);

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address and port as text, for logs and errors.
    pub address: String,
    /// Whether the peer is on this machine (or in this process); some users are let in only then.
    pub loopback: bool,
    /// The listener that accepted it, for logs.
    pub listener: String,
}

/// What shards send each other. Uninhabited while there is one shard: the place in [`Input`] exists
/// so that the second shard changes neither the core's signature nor any shell.
#[derive(Debug)]
pub enum Mail {}

/// One event for the machine.
#[derive(Debug)]
pub enum Input<'a> {
    /// A peer has connected.
    Connected {
        /// Its index from now on.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
    },
    /// Bytes have arrived, split anywhere; or none, to go on with those that are held.
    Received {
        /// From whom.
        connection: ConnectionId,
        /// What.
        bytes: &'a [u8],
    },
    /// The first `bytes` of [`Shard::outgoing`](crate::Shard::outgoing) were written.
    Sent {
        /// To whom.
        connection: ConnectionId,
        /// How many bytes.
        bytes: usize,
    },
    /// The peer is gone, or the shell has closed the socket.
    Disconnected {
        /// Which one.
        connection: ConnectionId,
    },
    /// A disk request is done.
    Disk(Completion),
    /// A deadline has passed.
    Tick,
    /// In a turn that reads publishers, those that only take are read, and the publishers are not: what acknowledgements
    /// made room for is delivered. Write it before the publishers are read.
    Deliver,
    /// End of a turn of the shell's loop: deliveries are made, confirms merged, runs spilled.
    Turn {
        /// There is more to read, and the next turn comes at once.
        busy: bool,
    },
    /// Stop: settle what was received, close every connection with 320, write a final checkpoint.
    Shutdown,
    /// From another shard.
    FromShard {
        /// Which one.
        shard: ShardId,
        /// What it sent.
        mail: Mail,
    },
}

/// How a shell is to close a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseHow {
    /// Write what is outgoing first (bounded by the shell's own patience).
    Flushed,
    /// At once: the peer is not worth waiting for.
    Now,
}
