//! The pair of byte streams under a blocking connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::tls_stream::TlsStream;

/// A byte stream both ways. Reads block; where timeouts are supported they end with `WouldBlock` or
/// `TimedOut`.
pub(super) trait Transport: Send {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// `None` waits for ever. False: this transport cannot time out.
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<bool>;
}

/// TCP. Remembers the timeout it set, because most reads want the same one again.
pub(super) struct Tcp {
    stream: TcpStream,
    timeout: Option<Duration>,
}

impl Tcp {
    /// `write_timeout` is how long a full socket may hold us up before we look for incoming bytes:
    /// a peer that cannot write to us may have stopped reading from us.
    pub(super) fn new(stream: TcpStream, write_timeout: Duration) -> io::Result<Tcp> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(write_timeout))?;
        Ok(Tcp { stream, timeout: None })
    }
}

impl Transport for Tcp {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        // A zero timeout is an error for the operating system; a millisecond is its floor anyway.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        if timeout != self.timeout {
            self.stream.set_read_timeout(timeout)?;
            self.timeout = timeout;
        }
        Ok(true)
    }
}

/// How long a read waits while something that was written could not be sent.
const UNSENT_WAIT: Duration = Duration::from_millis(10);

/// TLS over TCP.
pub(super) struct OverTls {
    stream: TlsStream,
    timeout: Option<Duration>,
}

impl OverTls {
    pub(super) fn new(stream: TlsStream, write_timeout: Duration) -> io::Result<OverTls> {
        stream.tcp().set_nodelay(true)?;
        stream.tcp().set_write_timeout(Some(write_timeout))?;
        Ok(OverTls { stream, timeout: None })
    }
}

impl Transport for OverTls {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // What the other side waits for may still lie here.
        let wait = match self.stream.has_unsent() {
            true => Some(self.timeout.map_or(UNSENT_WAIT, |timeout| timeout.min(UNSENT_WAIT))),
            false => self.timeout,
        };
        self.stream.tcp().set_read_timeout(wait)?;
        self.stream.read(into)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        Ok(true)
    }
}

/// Any reader and any writer, such as the two ends of an in-process pipe. Cannot time out.
pub(super) struct Pair<R, W> {
    pub(super) reader: R,
    pub(super) writer: W,
}

impl<R: Read + Send, W: Write + Send> Transport for Pair<R, W> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(bytes)?;
        self.writer.flush()?;
        Ok(count)
    }

    fn set_read_timeout(&mut self, _timeout: Option<Duration>) -> io::Result<bool> {
        Ok(false)
    }
}
