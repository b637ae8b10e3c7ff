//! TLS over a socket, blocking or not.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use tokio_rustls::rustls::ClientConnection;

/// A TLS session and its socket, made by [`Tls::connect`](crate::Tls::connect). It behaves as the socket does: reads and
/// writes end with `WouldBlock` where those of the socket do.
///
/// A read gives what one record brought, or the rest of it: `into` of 32 KiB or more leaves nothing behind for which a
/// poller would not wake. What a write took may still be [unsent](TlsStream::has_unsent) (64 KiB at most); the next
/// write, read or flush tries again.
#[derive(Debug)]
pub struct TlsStream {
    session: ClientConnection,
    tcp: TcpStream,
}

impl TlsStream {
    pub(crate) fn new(session: ClientConnection, tcp: TcpStream) -> TlsStream {
        TlsStream { session, tcp }
    }

    /// The socket, to set it up or to wait for it.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether something was taken that the socket has not taken yet.
    pub fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    /// Sends what the socket takes.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.tcp) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What has been decrypted; `None`: nothing.
    fn decrypted(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        match self.session.reader().read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // Cut off without a farewell of TLS: the protocol inside has its own.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Some(Ok(0)),
            read => Some(read),
        }
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.send() {
            Err(error) if !is_momentary(&error) => return Err(error),
            _ => {}
        }
        let mut count = 0;
        loop {
            // A record may be decrypted in several pieces.
            while count < into.len() {
                match self.decrypted(&mut into[count..]) {
                    None => break,
                    Some(Ok(0)) => return Ok(count),
                    Some(Ok(more)) => count += more,
                    Some(Err(error)) => return Err(error),
                }
            }
            if count > 0 || into.is_empty() {
                return Ok(count);
            }
            self.session.read_tls(&mut self.tcp)?;
            let processed = self.session.process_new_packets();
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send()?;
        let count = self.session.writer().write(bytes)?;
        match self.send() {
            Err(error) if !is_momentary(&error) => Err(error),
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// `TimedOut` is what some systems call a socket's timeout.
fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
