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
use forebay_broker::Admission;
use forebay_flow::Visits;
use socket2::SockRef;
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

    /// Bounds what the kernel receives ahead of us, for good: from now on it does not look for a size itself.
    pub(crate) fn set_receive_buffer(&self, bytes: u64) {
        if let Transport::Tcp(stream) = self {
            // Fails only when the peer has gone; then there is nothing to bound.
            let _ = SockRef::from(stream).set_recv_buffer_size(bytes as usize);
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

/// How far back [`Connection::is_taker`] looks, in bytes of the busier direction.
const LATELY_BYTES: u32 = 1 << 20;

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
    /// Since when it stands there, in microseconds.
    pub(crate) listed_us: u64,
    /// Since when it has something to be read, there or at its gate, in microseconds.
    pub(crate) arrived_us: u64,
    /// What its gate granted at the end of the last turn, if that is used up by asking.
    pub(crate) admitted: Option<Admission>,
    /// Bytes received and sent lately: counts that are halved together now and then.
    received_lately: u32,
    sent_lately: u32,
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
            listed_us: 0,
            arrived_us: 0,
            admitted: None,
            received_lately: 0,
            sent_lately: 0,
            patience_until_us: 0,
        }
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received_lately += bytes as u32;
        self.forget_slowly();
    }

    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent_lately += bytes as u32;
        self.forget_slowly();
    }

    fn forget_slowly(&mut self) {
        while self.received_lately.max(self.sent_lately) >= LATELY_BYTES {
            self.received_lately /= 2;
            self.sent_lately /= 2;
        }
    }

    /// Whether the peer takes more than it brings: what it sends is mostly about work in progress
    /// (acknowledgements), which goes before new work (publishes).
    pub(crate) fn is_taker(&self) -> bool {
        self.sent_lately > self.received_lately
    }
}

/// Puts a readable connection at the end of its list, of those that take or of those that bring.
pub(crate) fn list(connection: &mut Connection, key: usize, now_us: u64, visits: &mut Visits) {
    connection.listed = true;
    (connection.listed_us, connection.arrived_us) = (now_us, now_us);
    visits.list(key, connection.is_taker());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;
    use crate::poller::Poller;
    use std::sync::Arc;

    #[test]
    fn who_takes_more_than_he_brings_is_a_taker_until_that_changes() {
        let mailbox = Arc::new(Mailbox::new(Poller::new().unwrap().waker()));
        let (_client, end) = crate::in_process::pair(mailbox);
        let mut connection = Connection::new(Transport::InProcess(end));
        assert!(!connection.is_taker());
        connection.count_sent(u32::MAX as usize / 4);
        assert!(connection.is_taker());
        for _ in 0..100 {
            connection.count_received(64 * 1024);
        }
        assert!(!connection.is_taker());
    }
}
