//! A connection without a socket: two bounded byte pipes between a client and the shard.
//!
//! ```text
//!   client thread                               shard thread
//!   InProcessStream ── write ──► to_server ──── read ──► ServerEnd
//!                   ◄── read ─── to_client ◄─── write ──
//! ```
//!
//! The client side blocks (or times out), or is polled by an asynchronous task; the server side never waits.
//! It speaks AMQP bytes, so any client that takes a byte stream works over it.

use crate::mailbox::{Mail, Mailbox};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Bytes that may wait in one direction; a writer beyond it blocks (client) or is told so (server).
pub const IN_PROCESS_PIPE_BYTES_MAX: usize = 256 * 1024;

/// No connection has this key; the shard has not taken the connection yet.
const KEY_NONE: usize = usize::MAX;

#[derive(Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    /// One of the two ends is gone: reads end after what is here, writes fail.
    closed: bool,
    /// The server found the pipe full and wants to hear of room.
    server_waits: bool,
    /// A task of the client that waits for a change.
    task: Option<Waker>,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; `WouldBlock` once `deadline` has passed.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, PipeState>,
        deadline: Option<Instant>,
    ) -> io::Result<MutexGuard<'a, PipeState>> {
        let Some(deadline) = deadline else {
            return Ok(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let waited = self.changed.wait_timeout(state, left);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.tell_client(state);
    }

    /// Wakes whoever waits on the client's side, a thread or a task.
    fn tell_client(&self, mut state: MutexGuard<'_, PipeState>) {
        let task = state.task.take();
        drop(state);
        self.changed.notify_all();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Copies out of the front of `bytes`.
fn take(bytes: &mut VecDeque<u8>, buffer: &mut [u8]) -> usize {
    let n = buffer.len().min(bytes.len());
    let (front, back) = bytes.as_slices();
    let from_front = n.min(front.len());
    buffer[..from_front].copy_from_slice(&front[..from_front]);
    buffer[from_front..n].copy_from_slice(&back[..n - from_front]);
    bytes.drain(..n);
    if bytes.is_empty() && bytes.capacity() > 64 * 1024 {
        // A burst leaves no large buffer behind.
        *bytes = VecDeque::new();
    }
    n
}

struct Duplex {
    to_server: Pipe,
    to_client: Pipe,
    key: AtomicUsize,
    mailbox: Arc<Mailbox>,
}

impl Duplex {
    fn tell_server(&self) {
        let key = self.key.load(Ordering::SeqCst);
        if key != KEY_NONE {
            self.mailbox.post(Mail::Ready(key));
        }
    }

    fn close(&self) {
        self.to_server.close();
        self.to_client.close();
    }
}

/// Closes both directions when the last clone of the client's side goes.
struct ClientSide(Arc<Duplex>);

impl Drop for ClientSide {
    fn drop(&mut self) {
        self.0.close();
        self.0.tell_server();
    }
}

/// The client's end of a connection inside the process; reads and writes AMQP bytes.
///
/// Clones (see [`InProcessStream::try_clone`]) share the connection, each with its own timeouts; it
/// closes when the last clone is dropped or [`InProcessStream::shutdown`] is called.
pub struct InProcessStream {
    side: Arc<ClientSide>,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl InProcessStream {
    /// A second handle to the same connection, for a reader and a writer on different threads.
    /// Never fails; the `Result` is that of `TcpStream::try_clone`, which it stands in for.
    pub fn try_clone(&self) -> io::Result<InProcessStream> {
        Ok(InProcessStream { side: self.side.clone(), ..*self })
    }

    /// After this time without a byte a read returns `ErrorKind::WouldBlock`; `None` waits for ever.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_timeout = timeout;
        Ok(())
    }

    /// After this time without room a write returns `ErrorKind::WouldBlock`; `None` waits for ever.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.write_timeout = timeout;
        Ok(())
    }

    /// Closes both directions at once, for all clones.
    pub fn shutdown(&self) -> io::Result<()> {
        self.side.0.close();
        self.side.0.tell_server();
        Ok(())
    }
}

impl InProcessStream {
    /// Reads what is there, 0 bytes at the end; otherwise the task is woken when that changes. For one task
    /// at a time, and not together with blocking reads.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let duplex = &self.side.0;
        let mut state = duplex.to_client.lock();
        if state.bytes.is_empty() && !buffer.is_empty() {
            if state.closed {
                return Poll::Ready(Ok(0));
            }
            state.task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = take(&mut state.bytes, buffer);
        let tell = std::mem::take(&mut state.server_waits);
        drop(state);
        if tell {
            duplex.tell_server();
        }
        Poll::Ready(Ok(n))
    }

    /// Writes what fits; if nothing does, the task is woken when there is room. For one task at a time, and
    /// not together with blocking writes.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let duplex = &self.side.0;
        let mut state = duplex.to_server.lock();
        if state.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = (IN_PROCESS_PIPE_BYTES_MAX - state.bytes.len()).min(bytes.len());
        if n == 0 && !bytes.is_empty() {
            state.task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let first = state.bytes.is_empty();
        state.bytes.extend(&bytes[..n]);
        drop(state);
        if first && n > 0 {
            duplex.tell_server();
        }
        Poll::Ready(Ok(n))
    }
}

impl std::fmt::Debug for InProcessStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InProcessStream")
    }
}

impl Read for InProcessStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let duplex = &self.side.0;
        let pipe = &duplex.to_client;
        let deadline = self.read_timeout.map(|timeout| Instant::now() + timeout);
        let mut state = pipe.lock();
        while state.bytes.is_empty() {
            if state.closed {
                return Ok(0);
            }
            state = pipe.wait(state, deadline)?;
        }
        let n = take(&mut state.bytes, buffer);
        let tell = std::mem::take(&mut state.server_waits);
        drop(state);
        if tell {
            duplex.tell_server();
        }
        Ok(n)
    }
}

impl Write for InProcessStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let duplex = &self.side.0;
        let pipe = &duplex.to_server;
        let deadline = self.write_timeout.map(|timeout| Instant::now() + timeout);
        let mut state = pipe.lock();
        loop {
            if state.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let room = IN_PROCESS_PIPE_BYTES_MAX - state.bytes.len();
            if room > 0 {
                let n = room.min(bytes.len());
                let first = state.bytes.is_empty();
                state.bytes.extend(&bytes[..n]);
                drop(state);
                if first {
                    duplex.tell_server();
                }
                return Ok(n);
            }
            state = pipe.wait(state, deadline)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The shard's end: never blocks; what it cannot do now is announced by [`Mail::Ready`] later.
pub(crate) struct ServerEnd(Arc<Duplex>);

impl ServerEnd {
    /// From now on readiness is told under `key`; the caller treats the connection as ready once.
    pub(crate) fn register(&self, key: usize) {
        self.0.key.store(key, Ordering::SeqCst);
    }

    /// Reads what is there; `WouldBlock` when nothing is.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let pipe = &self.0.to_server;
        let mut state = pipe.lock();
        if state.bytes.is_empty() {
            return if state.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let was_full = state.bytes.len() == IN_PROCESS_PIPE_BYTES_MAX;
        let n = take(&mut state.bytes, buffer);
        if was_full {
            pipe.tell_client(state);
        }
        Ok(n)
    }

    /// Writes what fits; `WouldBlock` when the pipe is full.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let pipe = &self.0.to_client;
        let mut state = pipe.lock();
        if state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let n = (IN_PROCESS_PIPE_BYTES_MAX - state.bytes.len()).min(bytes.len());
        if n < bytes.len() {
            state.server_waits = true;
        }
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let first = state.bytes.is_empty();
        state.bytes.extend(&bytes[..n]);
        if first {
            pipe.tell_client(state);
        }
        Ok(n)
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A fresh pair of ends; the server's goes to the shard by [`Mail::Connect`].
pub(crate) fn pair(mailbox: Arc<Mailbox>) -> (InProcessStream, ServerEnd) {
    let duplex = Arc::new(Duplex {
        to_server: Pipe::default(),
        to_client: Pipe::default(),
        key: AtomicUsize::new(KEY_NONE),
        mailbox,
    });
    let stream = InProcessStream {
        side: Arc::new(ClientSide(duplex.clone())),
        read_timeout: None,
        write_timeout: None,
    };
    (stream, ServerEnd(duplex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Poller;

    fn connected() -> (InProcessStream, ServerEnd, Arc<Mailbox>) {
        let poller = Poller::new().unwrap();
        let mailbox = Arc::new(Mailbox::new(poller.waker()));
        let (client, server) = pair(mailbox.clone());
        server.register(7);
        (client, server, mailbox)
    }

    #[test]
    fn bytes_arrive_in_order_in_both_directions() {
        let (mut client, server, _mailbox) = connected();
        client.write_all(b"hello").unwrap();
        client.write_all(b" there").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(server.read(&mut buffer).unwrap(), 11);
        assert_eq!(&buffer[..11], b"hello there");
        assert_eq!(server.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(server.write(b"back").unwrap(), 4);
        assert_eq!(client.read(&mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"back");
    }

    #[test]
    fn a_full_pipe_refuses_the_server_and_tells_it_of_room() {
        let (mut client, server, mailbox) = connected();
        let big = vec![1; IN_PROCESS_PIPE_BYTES_MAX + 1];
        assert_eq!(server.write(&big).unwrap(), IN_PROCESS_PIPE_BYTES_MAX);
        assert_eq!(server.write(&big).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut buffer = [0; 1000];
        assert_eq!(client.read(&mut buffer).unwrap(), 1000);
        let mut letters = Vec::new();
        mailbox.take(&mut letters);
        assert!(matches!(letters[..], [Mail::Ready(7)]));
    }

    #[test]
    fn a_blocked_client_continues_when_the_server_reads() {
        let (mut client, server, _mailbox) = connected();
        let writer = std::thread::spawn(move || {
            client.write_all(&vec![3; 3 * IN_PROCESS_PIPE_BYTES_MAX]).unwrap();
            client
        });
        let (mut total, mut buffer) = (0, vec![0; 64 * 1024]);
        while total < 3 * IN_PROCESS_PIPE_BYTES_MAX {
            match server.read(&mut buffer) {
                Ok(n) => total += n,
                Err(_) => std::thread::yield_now(),
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_task_is_woken_by_bytes_by_room_and_by_the_end() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut client, server, _mailbox) = connected();
        let mut buffer = [0; 8];
        assert!(client.poll_read(&mut cx, &mut buffer).is_pending());
        server.write(b"hi").unwrap();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(matches!(client.poll_read(&mut cx, &mut buffer), Poll::Ready(Ok(2))));

        let big = vec![0; IN_PROCESS_PIPE_BYTES_MAX];
        assert!(matches!(client.poll_write(&mut cx, &big), Poll::Ready(Ok(n)) if n == big.len()));
        assert!(client.poll_write(&mut cx, b"x").is_pending());
        server.read(&mut buffer).unwrap();
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
        assert!(matches!(client.poll_write(&mut cx, b"x"), Poll::Ready(Ok(1))));

        assert!(client.poll_read(&mut cx, &mut buffer).is_pending());
        drop(server);
        assert_eq!(woken.0.load(Ordering::SeqCst), 3);
        assert!(matches!(client.poll_read(&mut cx, &mut buffer), Poll::Ready(Ok(0))));
        assert!(matches!(client.poll_write(&mut cx, b"x"), Poll::Ready(Err(_))));
    }

    #[test]
    fn dropping_one_end_ends_the_other() {
        let (client, server, _mailbox) = connected();
        let mut clone = client.try_clone().unwrap();
        drop(client);
        clone.write_all(b"last").unwrap();
        drop(clone);
        let mut buffer = [0; 8];
        assert_eq!(server.read(&mut buffer).unwrap(), 4);
        assert_eq!(server.read(&mut buffer).unwrap(), 0);

        let (mut client, server, _mailbox) = connected();
        drop(server);
        assert_eq!(client.read(&mut buffer).unwrap(), 0);
        assert_eq!(client.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_read_with_a_timeout_gives_up() {
        let (mut client, _server, _mailbox) = connected();
        client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(client.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_write_with_a_timeout_gives_up() {
        let (mut client, _server, _mailbox) = connected();
        client.write_all(&vec![0; IN_PROCESS_PIPE_BYTES_MAX]).unwrap();
        client.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(client.write(b"x").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
