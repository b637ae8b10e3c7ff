//! A request and its answer over one socket, each part with an end in time.
//!
//! ```text
//!   head   [HEAD_TIMEOUT]   ──▶ the answerer, who may read the body [BODY_TIMEOUT]
//!   answer [ANSWER_TIMEOUT] ◀── Connection: close
//!   what the client still sends is taken and thrown away for a moment, or its system would throw the answer away
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::head::{self, HEAD_BYTES_MAX, Head, Malformed};

/// From the accept to the end of the head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// From the wish for the body to its end.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// From the first to the last byte of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// What a client may still send after its answer, in bytes and in time.
const REST_BYTES_MAX: usize = 1 << 20;
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// A request whose head has come; its body comes when it is asked for.
pub(crate) struct Request<'a> {
    pub(crate) head: Head,
    pub(crate) peer: SocketAddr,
    socket: &'a TcpStream,
    /// What of the body came with the head.
    begun: Vec<u8>,
}

/// Why there is no body.
#[derive(Debug)]
pub(crate) enum NoBody {
    /// It has more bytes than may be.
    TooLarge,
    /// The client hung up or took longer than [`BODY_TIMEOUT`].
    Broken(io::Error),
}

impl Request<'_> {
    /// The whole body, of `bytes_max` at most.
    pub(crate) fn read_body(&mut self, bytes_max: usize) -> Result<Vec<u8>, NoBody> {
        let length = usize::try_from(self.head.body_bytes).map_err(|_| NoBody::TooLarge)?;
        if length > bytes_max {
            return Err(NoBody::TooLarge);
        }
        let mut timed = Timed::new(self.socket, BODY_TIMEOUT);
        let mut body = std::mem::take(&mut self.begun);
        body.truncate(length);
        if self.head.expects_continue && body.is_empty() {
            timed.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(NoBody::Broken)?;
        }
        // Room grows with what comes, not with what is announced.
        let missing = (length - body.len()) as u64;
        timed.take(missing).read_to_end(&mut body).map_err(NoBody::Broken)?;
        if body.len() < length {
            return Err(NoBody::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(body)
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) code: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

/// Reads a request, has it answered, and answers.
pub(super) fn serve(
    socket: &TcpStream,
    peer: SocketAddr,
    answer: impl FnOnce(&mut Request<'_>) -> Response,
) -> io::Result<()> {
    let Some(read) = read_head(socket)? else { return Ok(()) };
    let (head, begun) = match read {
        Ok(read) => read,
        Err(Malformed(code, reason)) => {
            let body = format!("{reason}\n");
            let refusal = Response { code, content_type: "text/plain; charset=utf-8", body };
            write(socket, &refusal, true)?;
            return take_rest(socket);
        }
    };
    let with_body = head.method != head::Method::Head;
    let mut request = Request { head, peer, socket, begun };
    let response = answer(&mut request);
    write(socket, &response, with_body)?;
    take_rest(socket)
}

/// A head and what came behind it; `None` where the client left without one.
type ReadHead = Option<Result<(Head, Vec<u8>), Malformed>>;

fn read_head(socket: &TcpStream) -> io::Result<ReadHead> {
    let mut timed = Timed::new(socket, HEAD_TIMEOUT);
    let mut bytes = Vec::new();
    let mut block = [0; 2048];
    loop {
        let room = block.len().min(HEAD_BYTES_MAX - bytes.len());
        let count = timed.read(&mut block[..room])?;
        if count == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&block[..count]);
        match head::parse(&bytes) {
            Ok(None) => {}
            Ok(Some((head, head_bytes))) => {
                bytes.drain(..head_bytes);
                return Ok(Some(Ok((head, bytes))));
            }
            Err(malformed) => return Ok(Some(Err(malformed))),
        }
    }
}

fn write(socket: &TcpStream, response: &Response, with_body: bool) -> io::Result<()> {
    let Response { code, content_type, body } = response;
    let login = if *code == 401 { "WWW-Authenticate: Basic realm=\"Forebay\"\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {code} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{login}Connection: close\r\n\r\n",
        reason(*code),
        body.len()
    );
    if with_body {
        bytes.push_str(body);
    }
    Timed::new(socket, ANSWER_TIMEOUT).write_all(bytes.as_bytes())
}

/// A socket that is closed with bytes unread is reset, and the answer may be lost with it: RFC 9112, section 9.6.
fn take_rest(socket: &TcpStream) -> io::Result<()> {
    socket.shutdown(Shutdown::Write)?;
    let mut timed = Timed::new(socket, REST_TIMEOUT);
    let (mut block, mut taken) = ([0; 8192], 0);
    while taken < REST_BYTES_MAX {
        match timed.read(&mut block)? {
            0 => break,
            count => taken += count,
        }
    }
    Ok(())
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

/// A socket whose reads and writes all end by one moment.
struct Timed<'a> {
    socket: &'a TcpStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    fn new(socket: &'a TcpStream, time: Duration) -> Timed<'a> {
        Timed { socket, end: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
