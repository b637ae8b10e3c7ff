//! A session, the lock around it, and its driver's bell.
//!
//! Callers change the session under the lock, for well under a microsecond each, and ring once if that left
//! bytes to send while the driver slept. The driver writes and reads without the lock.

use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use crate::happening::Happening;
use crate::machine::Options;
use crate::metrics::ConnectionMetrics;
use crate::session::{Phase, Session};

/// Happenings kept for a watcher that does not look; it then misses the oldest.
pub const HAPPENINGS_KEPT: usize = 256;

/// What the lock protects.
pub(super) struct Locked {
    pub(super) session: Session,
    pub(super) driver: Option<Waker>,
    /// The driver sleeps, and nobody has rung yet.
    pub(super) asleep: bool,
    /// It sleeps because the socket takes no more; bytes to send are no news to it.
    pub(super) socket_full: bool,
    /// It sleeps without reading, because nobody takes what came.
    pub(super) inbox_full: bool,
    /// Whom the last stream was to, where it has an address.
    pub(super) peer: Option<SocketAddr>,
    /// When it wakes by itself.
    pub(super) wakes_at_us: u64,
    /// The users want the connection to be closed.
    pub(super) close: bool,
}

/// See the module's documentation.
pub(crate) struct Link {
    locked: Mutex<Locked>,
    started: Instant,
    happenings: broadcast::Sender<Happening>,
    /// A publisher came whose messages have a limit.
    pub(super) limited: Notify,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) writes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) network_us: AtomicU64,
}

impl Link {
    pub(crate) fn new(options: Options, happenings: broadcast::Sender<Happening>) -> Arc<Link> {
        Arc::new(Link {
            locked: Mutex::new(Locked {
                session: Session::new(options),
                driver: None,
                asleep: false,
                socket_full: false,
                inbox_full: false,
                peer: None,
                wakes_at_us: u64::MAX,
                close: false,
            }),
            started: Instant::now(),
            happenings,
            limited: Notify::new(),
            counters: Counters::default(),
        })
    }

    /// Microseconds since this link was made.
    pub(crate) fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Does something with the session, then tells whom it concerns.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Session) -> R) -> R {
        let mut locked = self.lock();
        let result = work(&mut locked.session);
        let bell = locked.bell();
        self.tell(locked, bell);
        result
    }

    /// The same, for what needs to know when it is: at a million messages a second the clock is not to be asked twice for each.
    pub(crate) fn with_now<R>(&self, work: impl FnOnce(&mut Session, u64) -> R) -> R {
        let now_us = self.now_us();
        self.with(|session| work(session, now_us))
    }

    /// Asks the driver to bring everything to its end and close the connection.
    pub(crate) fn close(&self) {
        let mut locked = self.lock();
        locked.close = true;
        locked.session.begin_closing();
        locked.asleep = false;
        let driver = locked.driver.clone();
        drop(locked);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// For the driver: what `work` results in; `None`: the connection is to be closed, and it is not waited for.
    pub(super) async fn unless_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let mut locked = self.lock();
            if locked.close {
                return Poll::Ready(None);
            }
            locked.driver = Some(cx.waker().clone());
            drop(locked);
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// From now on messages may expire.
    pub(crate) fn limited(&self) {
        self.limited.notify_one();
    }

    /// Whether bytes wait for the socket.
    pub(crate) fn is_behind(&self) -> bool {
        let locked = self.lock();
        locked.asleep && locked.socket_full
    }

    /// Whether its connection is lost, and not there again yet.
    pub(crate) fn is_recovering(&self) -> bool {
        !matches!(self.lock().session.phase(), Phase::Up | Phase::Over(_))
    }

    /// The round trip that the kernel last told; 0: none.
    pub(crate) fn network_us(&self) -> u64 {
        self.counters.network_us.load(Ordering::Relaxed)
    }

    /// Whether the last stream of each was to the same machine's address.
    pub(crate) fn has_peer_of(&self, other: &Link) -> bool {
        let peer = other.lock().peer;
        self.lock().peer == peer
    }

    /// As if the stream was to another one.
    #[cfg(test)]
    pub(crate) fn set_peer(&self, peer: Option<SocketAddr>) {
        self.lock().peer = peer;
    }

    /// As if the kernel had told so.
    #[cfg(test)]
    pub(crate) fn set_network_us(&self, us: u64) {
        self.counters.network_us.store(us, Ordering::Relaxed);
    }

    /// Whether the session could be had at once.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.locked.try_lock().is_ok()
    }

    pub(crate) fn metrics(&self) -> ConnectionMetrics {
        let (connected, blocked, reconnects) = {
            let locked = self.lock();
            let session = &locked.session;
            (*session.phase() == Phase::Up, session.blocked().is_some(), session.reconnects)
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConnectionMetrics {
            connected,
            blocked,
            reconnects,
            written_bytes: count(&self.counters.written_bytes),
            writes: count(&self.counters.writes),
            read_bytes: count(&self.counters.read_bytes),
            reads: count(&self.counters.reads),
            network_us: count(&self.counters.network_us),
        }
    }

    /// The lock. A panic of another holder left the session usable: each operation leaves it consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the lock back and rings, then does what the session has left to do and tells the watchers.
    pub(super) fn tell(&self, mut locked: MutexGuard<'_, Locked>, bell: Option<Waker>) {
        let wakeups = std::mem::take(&mut locked.session.wakeups);
        let happenings = std::mem::take(&mut locked.session.happenings);
        drop(locked);
        // First, as what comes now may wait for what the driver does.
        if let Some(bell) = bell {
            bell.wake();
        }
        wakeups.perform();
        for happening in happenings {
            self.announce(happening);
        }
    }

    /// Tells the watchers, and the log.
    pub(crate) fn announce(&self, happening: Happening) {
        match &happening {
            Happening::Connected { address, reconnects } => {
                tracing::info!(address, reconnects, "connected");
            }
            Happening::PublishingOver { connections } => {
                tracing::info!(connections, "publishers use so many connections");
            }
            Happening::LongerRoute { rtt_us } => {
                tracing::info!(rtt_us, "a longer route: publishers move to a new connection");
            }
            Happening::Lost { lost } => tracing::warn!("{lost}"),
            Happening::Retrying { attempt, delay_ms, reason } => {
                tracing::info!(attempt, delay_ms, reason, "connecting again");
            }
            Happening::Blocked { reason } => {
                tracing::warn!(reason, "the broker takes no publishes for now");
            }
            Happening::Unblocked => tracing::info!("the broker takes publishes again"),
            Happening::ConsumerCancelled { queue } => {
                tracing::warn!(queue, "the broker cancelled the consumer");
            }
            Happening::QueueAway { queue, why } => {
                tracing::warn!(queue, "the consumer waits for its queue: {why}");
            }
            Happening::PublisherChannelClosed { why } => {
                tracing::warn!("the broker closed a publisher's channel: {why}");
            }
            Happening::PublisherChannelReplaced { fault } => {
                tracing::warn!("a publisher goes on with another channel: {fault}");
            }
            Happening::ConsumerChannelReplaced { queue } => {
                tracing::warn!(
                    queue,
                    "messages wait and none came; the consumer goes on with another channel"
                );
            }
            Happening::TopologyRefused { what, why } => {
                tracing::error!("cannot declare {what} again: {why}");
            }
        }
        // Nobody watching is no error.
        let _ = self.happenings.send(happening);
    }
}

impl Locked {
    /// The driver's waker, if it sleeps over something it should know.
    fn bell(&mut self) -> Option<Waker> {
        if !self.asleep {
            return None;
        }
        let to_send = !self.socket_full && !self.session.machine.outgoing().is_empty();
        let to_read = self.inbox_full && self.session.wants_bytes();
        if to_send
            || to_read
            || self.session.next_tick_us().is_some_and(|due_us| due_us < self.wakes_at_us)
        {
            self.asleep = false;
            return self.driver.clone();
        }
        None
    }
}

/// 64 bits that nobody else has: the standard library seeds its hashers from the system's random numbers.
pub(crate) fn random_u64() -> u64 {
    #[cfg(test)]
    if let Some(drawn) = crate::system_clock::by_hand::draw() {
        return drawn;
    }
    RandomState::new().hash_one(0_u8)
}
