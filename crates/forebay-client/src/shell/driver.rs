//! The one task of a connection: connects, writes, reads, tells the time, connects again.
//!
//! ```text
//!            ┌───────────── retry, with pauses ──────────────┐
//!            ▼                                               │
//!   dial ──▶ serve: write all there is ─▶ read a lot ─▶ sleep ──▶ lost
//! ```
//! It writes whatever is in the send buffer when it comes by: one message when there is one, thousands when
//! there are thousands. Nothing is held back to wait for more.

mod leaving;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use self::leaving::{AGREEMENT_PATIENCE_US, GiveUpOnDrop};
use super::broker_tally::BrokerTally;
use super::dial::Dialer;
use super::kernel_rtt::KernelRtt;
use super::link::{Link, random_u64};
use super::stream::Stream;
use crate::ReceiveBuffer;
use crate::error::{Lost, OpenError};
use crate::happening::Happening;
use crate::machine::{Failed, Options, State};
use crate::retry::{Recovery, Retry};
use crate::session::{Phase, Topology};
use crate::tls::io_reason;

/// Size of the receive buffer.
const RECEIVE_BYTES: usize = 256 * 1024;
/// How long a server may take to complete the login, and for each answer while things are declared again.
const LOGIN_PATIENCE_US: u64 = 10_000_000;
/// How often the kernel is asked for the round trip, at most.
const RTT_INTERVAL_US: u64 = 100_000;
/// What TCP holds back where it is to fill packets is less than this: a segment, of 1500 bytes with headers.
const SEGMENT_BYTES: u64 = 1_448;
/// Rounds of writing and reading before other tasks have their turn.
const ROUNDS_MAX: usize = 16;
/// Memory that the write buffer keeps.
const WRITE_BYTES_KEPT: usize = 2 << 20;

/// What a driver needs to know.
pub(crate) struct Driver {
    pub(crate) link: Arc<Link>,
    pub(crate) dialer: Dialer,
    pub(crate) options: Options,
    pub(crate) topology: Arc<Mutex<Topology>>,
    /// Which host let in a socket of the same connection last: there it begins.
    pub(crate) place: Arc<AtomicUsize>,
    /// `None`: the first loss is the last.
    pub(crate) recovery: Option<Recovery>,
    /// How long outcomes are waited for when the connection is closed.
    pub(crate) close_patience_us: u64,
}

impl Driver {
    /// Runs until the connection is closed or given up. `opened` hears how the first attempt ended.
    pub(crate) async fn run(self, opened: oneshot::Sender<Result<(), OpenError>>) {
        let _over = GiveUpOnDrop(&self.link);
        tokio::select! {
            biased;
            () = self.connect(opened) => {}
            () = self.expire() => {}
        }
    }

    /// Messages get their outcomes in time, whether there is a connection or not. Never ends.
    async fn expire(&self) {
        loop {
            let (now_us, next_us) =
                self.link.with_now(|session, now_us| (now_us, session.next_expiry_us(now_us)));
            match next_us {
                Some(next_us) if next_us <= now_us => {
                    self.link.with_now(|session, now_us| session.expire(now_us));
                }
                Some(next_us) => {
                    let sleep = tokio::time::sleep(Duration::from_micros(next_us - now_us));
                    tokio::select! {
                        () = sleep => {}
                        () = self.link.limited.notified() => {}
                    }
                }
                None => self.link.limited.notified().await,
            }
        }
    }

    async fn connect(&self, opened: oneshot::Sender<Result<(), OpenError>>) {
        let mut opened = Some(opened);
        let mut retry = self.retry();
        // The first time each host gets one chance, in the order given from there on; there is nothing to wait for.
        let (mut first_place, places) = (self.place.load(Ordering::Relaxed), self.dialer.places());
        let last_place = first_place + places - 1;
        let mut reason = String::new();
        loop {
            let (place, ended) = if opened.is_some() {
                let place = first_place % places;
                (place, self.connection(place, &mut opened).await)
            } else {
                match self.pause(&mut retry, &reason).await {
                    Some(place) => (place, self.connection(place, &mut opened).await),
                    None => return,
                }
            };
            match ended {
                Ended::NotOpened(error) => {
                    if self.closing() {
                        return self.give_up(Lost::ClosedByUs);
                    }
                    self.link.with(|session| session.peer_was_away(place));
                    // Without what it was closed for, the same host may let us in.
                    let again = self.link.with(|session| session.take_leaves_out_more());
                    if opened.is_some() && again {
                        continue;
                    }
                    if opened.is_some() && first_place == last_place {
                        if let Some(opened) = opened.take() {
                            let _ = opened.send(Err(error));
                        }
                        return self.give_up(Lost::ClosedByUs);
                    }
                    first_place += 1;
                    reason = error.to_string();
                }
                Ended::Lost(lost, lasted) => {
                    // A broker that closes what it has just let in would do so again, and so would one that sends what
                    // cannot be read. What a network does says nothing.
                    let by_network = matches!(
                        lost,
                        Lost::Io(_) | Lost::Failed(Failed::HungUp | Failed::Silent { .. })
                    );
                    let was_of_use =
                        self.link.with(|session| session.take_was_of_use()) || by_network;
                    let by_us = lost == Lost::ClosedByUs;
                    if !by_us {
                        self.link.announce(Happening::Lost { lost: lost.clone() });
                    }
                    if by_us || self.closing() || self.recovery.is_none() {
                        return self.give_up(lost);
                    }
                    reason = lost.to_string();
                    self.link.with_now(|session, now_us| {
                        session.was_at(place);
                        session.lost(&lost, now_us);
                        session.reconnects += 1;
                    });
                    retry.connected(was_of_use, lasted.as_millis() as u64);
                    let tries = self.link.with(|session| session.is_trying_suspects());
                    retry.ended_at(place, tries, self.link.now_us());
                }
            }
        }
    }

    fn retry(&self) -> Retry {
        Retry::new(self.dialer.places(), self.recovery.unwrap_or_default(), random_u64())
    }

    /// Waits for the next attempt; `None`: there is none, and all was given up.
    async fn pause(&self, retry: &mut Retry, reason: &str) -> Option<usize> {
        let Some(attempt) = retry.next() else {
            self.give_up(Lost::Io(reason.to_owned()));
            return None;
        };
        self.link.announce(Happening::Retrying {
            attempt: attempt.number,
            delay_ms: attempt.pause_ms,
            reason: reason.to_owned(),
        });
        let pause = tokio::time::sleep(Duration::from_millis(attempt.pause_ms));
        if self.link.unless_closed(pause).await.is_none() {
            self.give_up(Lost::ClosedByUs);
            return None;
        }
        Some(attempt.place)
    }

    /// One connection from its first byte to its last.
    async fn connection(
        &self,
        place: usize,
        opened: &mut Option<oneshot::Sender<Result<(), OpenError>>>,
    ) -> Ended {
        let stream = match self.link.unless_closed(self.dialer.dial(place)).await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => return Ended::NotOpened(error),
            None => return Ended::NotOpened(OpenError::Lost(Lost::ClosedByUs)),
        };
        let topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.link.with(|session| session.begin(self.options.clone(), topology));
        let mut serving = Serving::new(self, stream);
        let lost = poll_fn(|cx| {
            let polled = serving.poll(cx);
            if serving.up && serving.announced.is_none() {
                serving.announced = Some(Instant::now());
                self.place.store(place, Ordering::Relaxed);
                let reconnects = self.link.lock().session.reconnects;
                let address = self.dialer.address(place);
                self.link.announce(Happening::Connected { address, reconnects });
                if let Some(opened) = opened.take() {
                    let _ = opened.send(Ok(()));
                }
            }
            polled
        })
        .await;
        if let Some(announced) = serving.announced {
            return Ended::Lost(lost, announced.elapsed());
        }
        self.link.with_now(|session, now_us| session.lost(&lost, now_us));
        Ended::NotOpened(match lost {
            Lost::Closed(refusal) => OpenError::Refused(refusal),
            lost => OpenError::Lost(lost),
        })
    }

    fn closing(&self) -> bool {
        self.link.lock().close
    }

    fn give_up(&self, lost: Lost) {
        self.link.with(|session| session.give_up(&lost));
    }
}

enum Ended {
    NotOpened(OpenError),
    /// It was up for so long.
    Lost(Lost, Duration),
}

/// One stream being served.
struct Serving<'l> {
    link: &'l Link,
    stream: Stream,
    input: ReceiveBuffer,
    /// The stream was not read, and wakes nobody, because nobody took what came.
    unread: bool,
    writing: Vec<u8>,
    /// written ≤ writing.len()
    written: usize,
    to_flush: bool,
    write_failed: Option<String>,
    timer: Pin<Box<Sleep>>,
    login_until_us: u64,
    /// Of the login that the server has answered, and of what is declared again.
    login_steps: u64,
    close_patience_us: u64,
    /// Until when outcomes are waited for.
    close_until_us: Option<u64>,
    /// Until when the broker's agreement is, once all that we send has left.
    agree_until_us: Option<u64>,
    /// All is said, and the stream is left then, though its own end be not out.
    leave_at_us: Option<u64>,
    next_beat_us: u64,
    rtt: Option<KernelRtt>,
    next_rtt_us: u64,
    tally: Option<BrokerTally>,
    full_packets: bool,
    up: bool,
    /// Since when the users know that it is up.
    announced: Option<Instant>,
}

impl<'l> Serving<'l> {
    fn new(driver: &'l Driver, stream: Stream) -> Serving<'l> {
        let Driver { link, options, close_patience_us, .. } = driver;
        let addresses =
            stream.tcp().and_then(|tcp| tcp.local_addr().ok().zip(tcp.peer_addr().ok()));
        link.lock().peer = addresses.map(|(_, peer)| peer);
        let now_us = link.now_us();
        Serving {
            link,
            input: ReceiveBuffer::new(RECEIVE_BYTES, options.bounded_frame_bytes()),
            unread: false,
            writing: Vec::new(),
            written: 0,
            to_flush: false,
            write_failed: None,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            login_until_us: now_us + LOGIN_PATIENCE_US,
            login_steps: 0,
            close_patience_us: *close_patience_us,
            close_until_us: None,
            agree_until_us: None,
            leave_at_us: None,
            next_beat_us: u64::MAX,
            rtt: addresses.and_then(|(local, peer)| KernelRtt::new(local, peer)),
            next_rtt_us: now_us,
            tally: None,
            full_packets: false,
            up: false,
            announced: None,
            stream,
        }
    }

    /// Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        for _ in 0..ROUNDS_MAX {
            let mut moved = self.write(cx);
            match self.read(cx) {
                Ok(read) => moved |= read,
                Err(lost) => return Poll::Ready(lost),
            }
            if let Err(lost) = self.on_time() {
                return Poll::Ready(lost);
            }
            if !moved {
                match self.sleep(cx) {
                    Ok(true) => return Poll::Pending,
                    Ok(false) => {}
                    Err(lost) => return Poll::Ready(lost),
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what is there. True if something went out.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        if self.write_failed.is_some() {
            return false;
        }
        if self.written == self.writing.len() {
            self.writing.clear();
            self.writing.shrink_to(WRITE_BYTES_KEPT);
            self.written = 0;
            self.link.with_now(|session, now_us| {
                session.machine.take_outgoing(&mut self.writing);
                session.drained(now_us);
            });
        }
        let mut moved = false;
        if self.written < self.writing.len() {
            match self.stream.poll_write(cx, &self.writing[self.written..]) {
                Poll::Ready(Ok(0)) => {
                    self.write_failed = Some("the peer takes no more bytes".into());
                }
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.to_flush = true;
                    moved = true;
                    self.link.counters.writes.fetch_add(1, Ordering::Relaxed);
                    self.link.counters.written_bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                // The broker may have said why before it hung up; that is read first.
                Poll::Ready(Err(error)) => self.write_failed = Some(error.to_string()),
                Poll::Pending => {}
            }
        }
        if self.to_flush {
            match self.stream.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.to_flush = false,
                Poll::Ready(Err(error)) => self.write_failed = Some(error.to_string()),
                Poll::Pending => {}
            }
        }
        moved
    }

    /// Reads once. True if something came.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Lost> {
        self.unread = !self.link.lock().session.wants_bytes();
        if self.unread {
            return Ok(false);
        }
        match self.stream.poll_read(cx, self.input.spare()) {
            Poll::Pending => match self.write_failed.take() {
                Some(reason) => Err(self.hung_up(Some(reason))),
                None => Ok(false),
            },
            Poll::Ready(Ok(0)) => {
                let reason = self.write_failed.take();
                Err(self.hung_up(reason))
            }
            Poll::Ready(Ok(count)) => {
                self.link.counters.reads.fetch_add(1, Ordering::Relaxed);
                self.link.counters.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                self.input.filled(count);
                self.take_in()?;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(self.hung_up(Some(io_reason(&error)))),
        }
    }

    fn take_in(&mut self) -> Result<(), Lost> {
        let pending = self.input.pending();
        let mut rest = pending;
        let (outcome, phase_up, steps) = self.link.with_now(|session, now_us| {
            let outcome = session.receive(&mut rest, now_us);
            (outcome, *session.phase() == Phase::Up, session.login_steps())
        });
        let used = pending.len() - rest.len();
        self.input.consume(used);
        if phase_up && !std::mem::replace(&mut self.up, true) {
            self.tally = self.link.with(|session| BrokerTally::of(session.machine.server()));
        }
        outcome?;
        let now_us = self.link.now_us();
        if !self.up && std::mem::replace(&mut self.login_steps, steps) != steps {
            // However much there is to be declared again: it goes on.
            self.login_until_us = now_us + LOGIN_PATIENCE_US;
        }
        if self.up && now_us >= self.next_rtt_us {
            self.next_rtt_us = now_us + RTT_INTERVAL_US;
            if let Some(tally) = &self.tally {
                tally.exchange(self.link);
            }
            if let Some(rtt) = &mut self.rtt {
                let mut reading = rtt.read();
                if self.full_packets
                    && let Some(reading) = &mut reading
                {
                    // What we let TCP hold back does not wait for the link.
                    reading.unsent_bytes = reading.unsent_bytes.saturating_sub(SEGMENT_BYTES);
                }
                let rtt_us = reading.map_or(0, |reading| reading.rtt_us);
                self.link.counters.network_us.store(rtt_us, Ordering::Relaxed);
                let wanted = self.link.with_now(|session, now_us| {
                    session.network(now_us, reading);
                    session.wants_full_packets()
                });
                if wanted != self.full_packets {
                    self.full_packets = wanted;
                    self.stream.set_full_packets(wanted);
                }
            }
        }
        Ok(())
    }

    fn hung_up(&mut self, reason: Option<String>) -> Lost {
        self.link.with(|session| session.hung_up(reason))
    }

    /// What the clock calls for.
    fn on_time(&mut self) -> Result<(), Lost> {
        let now_us = self.link.now_us();
        if !self.up && now_us >= self.login_until_us {
            let seconds = LOGIN_PATIENCE_US / 1_000_000;
            return Err(Lost::Io(format!(
                "the server did not complete the login within {seconds} s"
            )));
        }
        if self.ends_at_us().is_some_and(|until_us| now_us >= until_us) {
            return Err(Lost::end_unanswered());
        }
        let mut locked = self.link.lock();
        if self.written < self.writing.len() || !locked.session.wants_bytes() {
            locked.session.still_busy(now_us);
        }
        let mut outcome = Ok(());
        let due = locked.session.next_tick_us().is_some_and(|due_us| due_us <= now_us);
        if due || now_us >= self.next_beat_us {
            outcome = locked.session.tick(now_us);
            self.next_beat_us = u64::MAX;
        }
        if self.next_beat_us == u64::MAX
            && let Some(interval_us) = locked.session.machine.tick_interval_us()
        {
            self.next_beat_us = now_us + interval_us;
        }
        if locked.close && self.up {
            let until_us =
                *self.close_until_us.get_or_insert(now_us.saturating_add(self.close_patience_us));
            if locked.session.is_quiet() || now_us >= until_us {
                locked.session.close_now();
                if self.written == self.writing.len()
                    && locked.session.machine.outgoing().is_empty()
                {
                    self.agree_until_us.get_or_insert(now_us + AGREEMENT_PATIENCE_US);
                }
            }
        } else if locked.close {
            outcome = Err(Lost::ClosedByUs);
        }
        self.link.tell(locked, None);
        outcome
    }

    /// Sleeps until somebody rings. False: there is something to do after all.
    fn sleep(&mut self, cx: &mut Context<'_>) -> Result<bool, Lost> {
        let mut locked = self.link.lock();
        let socket_full = self.written < self.writing.len();
        if !socket_full
            && self.write_failed.is_none()
            && !locked.session.machine.outgoing().is_empty()
        {
            return Ok(false);
        }
        // Whoever took something since then rang nobody: this task was awake.
        if self.unread && locked.session.wants_bytes() {
            return Ok(false);
        }
        if locked.session.machine.state() == State::Over {
            // Our close was agreed to, or theirs was answered and the answer is out.
            drop(locked);
            return self.leave(cx);
        }
        let mut wakes_at_us = self.next_beat_us;
        for due_us in [
            locked.session.next_tick_us(),
            (!self.up).then_some(self.login_until_us),
            match locked.session.machine.state() {
                State::Closing => self.ends_at_us(),
                _ => self.close_until_us,
            },
        ]
        .into_iter()
        .flatten()
        {
            wakes_at_us = wakes_at_us.min(due_us);
        }
        locked.asleep = true;
        locked.socket_full = socket_full;
        locked.inbox_full = !locked.session.wants_bytes();
        locked.wakes_at_us = wakes_at_us;
        match &mut locked.driver {
            Some(waker) => waker.clone_from(cx.waker()),
            None => locked.driver = Some(cx.waker().clone()),
        }
        drop(locked);
        if wakes_at_us == u64::MAX {
            return Ok(true);
        }
        Ok(self.sleeps_until(wakes_at_us, cx))
    }

    /// Wakes this task then. False: it is then.
    fn sleeps_until(&mut self, at_us: u64, cx: &mut Context<'_>) -> bool {
        let wait_us = at_us.saturating_sub(self.link.now_us());
        self.timer.as_mut().reset(Instant::now() + Duration::from_micros(wait_us));
        self.timer.as_mut().poll(cx).is_pending()
    }
}

#[cfg(test)]
mod tests;
