//! One connection as the shell sees it: a byte stream, and what is known of its readiness.
//!
//! ```text
//!            shard says close                flushed, or patience over        peer's end seen,
//!   Open ───────────────────────► Flushing ─────────────────────────► Lingering ── or patience over ──► gone
//!     └── peer gone, socket error, CloseHow::Now ──────────────────────────────────────────────────────►
//! ```
//!
//! Lingering reads and discards: closing a socket with unread bytes resets the connection, and the
//! reset may overtake the very close method that told the peer why.

use crate::in_process::ServerEnd;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

/// The bytes of a connection come from here.
pub(crate) enum Transport {
    Tcp(TcpStream),
    InProcess(ServerEnd),
}

impl Transport {
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Tcp(stream) => (&*stream).read(buffer),
            Transport::InProcess(end) => end.read(buffer),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Tcp(stream) => (&*stream).write(bytes),
            Transport::InProcess(end) => end.write(bytes),
        }
    }

    /// Ends our direction. An in-process peer sees the end when the connection is dropped.
    pub(crate) fn end_writing(&self) {
        if let Transport::Tcp(stream) = self {
            // Fails only when the peer has gone first.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// See the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Flushing,
    Lingering,
}

pub(crate) struct Connection {
    pub(crate) transport: Transport,
    pub(crate) phase: Phase,
    /// Bytes (or the end) may be there: set by an event, cleared by a read that found less than asked.
    pub(crate) readable: bool,
    /// The socket takes bytes: cleared by a write that was cut short, set by an event.
    pub(crate) writable: bool,
    /// The peer's end is in sight: read until it is reached, there will be no further event.
    pub(crate) hangup: bool,
    /// Stands in the shard loop's list of connections to read.
    pub(crate) listed: bool,
    /// Its gate was found open at the end of the last turn.
    pub(crate) admitted: bool,
    /// When patience ends, while `Flushing` or `Lingering`.
    pub(crate) patience_until_us: u64,
}

impl Connection {
    pub(crate) fn new(transport: Transport) -> Connection {
        Connection {
            transport,
            phase: Phase::Open,
            readable: false,
            writable: true,
            hangup: false,
            listed: false,
            admitted: false,
            patience_until_us: 0,
        }
    }
}
