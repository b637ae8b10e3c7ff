//! HTTP/1.1 as far as a broker's side door needs it: one request a connection, few connections, an end in time for each
//! part of one.
//!
//! ```text
//!   forebay-http   accepts; [CONNECTIONS_MAX] at a time, more are told 503
//!     └─ a thread per connection: head, answer, end        (exchange.rs; the head itself: head.rs)
//! ```
//!
//! Nothing that a client sends or does not send, before or after a login, holds the broker up or ends it.

mod exchange;
mod head;

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Scope};
use std::time::Instant;

use slab::Slab;

pub(crate) use exchange::{NoBody, Request, Response};
pub(crate) use head::Method;

use crate::listener::{Accepted, accept};
use crate::poller::{Poller, Waker};
use crate::telling::Ongoing;

/// Connections at one time, each with a thread and a descriptor of those kept back from AMQP.
const CONNECTIONS_MAX: usize = 32;
/// How long accepting rests when the process has no descriptor or thread left.
const REST_US: u64 = 100_000;

const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A served endpoint; dropping it ends it and whatever is being asked.
pub(crate) struct HttpEndpoint {
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    open: Mutex<Slab<Arc<TcpStream>>>,
}

impl HttpEndpoint {
    /// Serves `listener` (non-blocking); `answer` is called on a thread of the request's own and may take its time.
    pub(crate) fn start(
        listener: TcpListener,
        answer: impl Fn(&mut Request<'_>) -> Response + Send + Sync + 'static,
    ) -> io::Result<HttpEndpoint> {
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        let (ready, began) = sync_channel(1);
        let thread =
            std::thread::Builder::new().name("forebay-http".to_owned()).spawn(move || {
                // It stays on the thread that made it.
                let poller = Poller::new()
                    .and_then(|mut poller| poller.add_listener(&listener, 0).map(|()| poller));
                let poller = match poller {
                    Ok(poller) => poller,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                // Whoever starts this waits for it.
                let _ = ready.send(Ok(poller.waker()));
                if let Err(error) = serving.run(poller, &listener, &answer) {
                    tracing::error!("the HTTP endpoint has ended: {error}");
                }
            })?;
        let ended = |_| Err(io::Error::other("the thread for HTTP ended before it began"));
        let waker = began.recv().unwrap_or_else(ended)?;
        Ok(HttpEndpoint { shared, waker, thread: Some(thread) })
    }
}

impl Drop for HttpEndpoint {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has cost nothing but the endpoint.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run<A>(&self, mut poller: Poller, listener: &TcpListener, answer: &A) -> io::Result<()>
    where
        A: Fn(&mut Request<'_>) -> Response + Sync,
    {
        std::thread::scope(|scope| {
            // Whatever ends this, those inside are not waited for until they please to end.
            let _hang_up = HangUp(self);
            let (began, mut exhausted) = (Instant::now(), Ongoing::default());
            while !self.stopping.load(Ordering::SeqCst) {
                poller.wait(None)?;
                let error = loop {
                    match accept(listener) {
                        _ if self.stopping.load(Ordering::SeqCst) => break None,
                        Accepted::Nobody => break None,
                        Accepted::Exhausted(error) => break Some(error),
                        Accepted::Stream(socket, peer) => {
                            if let Err(error) = self.admit(scope, socket, peer, answer) {
                                break Some(error);
                            }
                        }
                    }
                };
                if let Some(error) = error {
                    if exhausted.is_told(began.elapsed().as_micros() as u64) {
                        tracing::warn!("HTTP rests for a moment, nobody can be accepted: {error}");
                    }
                    poller.remove_listener(listener, 0)?;
                    poller.wait(Some(REST_US))?;
                    poller.add_listener(listener, 0)?;
                }
            }
            Ok(())
        })
    }

    fn admit<'scope, A>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        socket: TcpStream,
        peer: SocketAddr,
        answer: &'scope A,
    ) -> io::Result<()>
    where
        A: Fn(&mut Request<'_>) -> Response + Sync,
    {
        let mut open = self.open();
        if open.len() >= CONNECTIONS_MAX {
            // Who does not take it is not waited for.
            let _ = (&socket).write(FULL);
            return Ok(());
        }
        let socket = Arc::new(socket);
        let leaving = Leaving { shared: self, key: open.insert(socket.clone()) };
        drop(open);
        let thread = std::thread::Builder::new().name("forebay-http-one".to_owned());
        let spawned = thread.spawn_scoped(scope, move || {
            let _leaving = leaving;
            let served =
                socket.set_nonblocking(false).and_then(|()| exchange::serve(&socket, peer, answer));
            // The client has gone or was too slow; nobody else wants the answer.
            if let Err(error) = served {
                tracing::debug!(%peer, "a request over HTTP ended early: {error}");
            }
        });
        spawned.map(|_| ())
    }

    fn open(&self) -> MutexGuard<'_, Slab<Arc<TcpStream>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes room for another connection.
struct Leaving<'a> {
    shared: &'a Shared,
    key: usize,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.open().remove(self.key);
    }
}

/// Ends all reads and writes.
struct HangUp<'a>(&'a Shared);

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        for (_, socket) in self.0.open().iter() {
            // It has hung up itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
