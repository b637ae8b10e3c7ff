//! The broker of a world, at the other ends of streams, and what its users were told.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::time::{Instant, sleep};

use super::super::*;
use super::QUEUES;
use crate::message::since_1970_us;
use crate::outcome::Confirmed;
use crate::{ByteStream, StreamFuture};

/// What the broker has, and what users were told.
pub(super) struct Hub {
    pub(super) random: Random,
    pub(super) rabbit: Rabbit,
    pub(super) lines: Vec<Line>,
    pub(super) ghosts: Vec<Conn>,
    /// How each of its hosts is.
    pub(super) hosts: Vec<Host>,
    /// The users let go of everything when all is lost for the first time, or after a few rounds.
    pub(super) gives_up: bool,
    /// What happens in this world: a bit for each.
    pub(super) faults: u64,
    /// Chaos is over: tasks ask for nothing new.
    pub(super) well: bool,
    /// Somebody closes or drops the connection.
    pub(super) closing: bool,
    pub(super) told: Vec<(String, Result<Confirmed, Unconfirmed>)>,
    pub(super) unsent: Vec<String>,
    pub(super) unasked: Vec<String>,
    pub(super) replies: u64,
    pub(super) taken: u64,
    /// And settled by those who had stopped.
    pub(super) drained: u64,
    /// How often somebody came to a host that was ill.
    pub(super) dialled: u64,
    /// Messages to be published over which the broker fails.
    pub(super) poisons_left: usize,
    /// Of those, what was told so.
    pub(super) culprits: u64,
}

/// How a host is to who comes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    Well,
    Refuses,
    /// Nothing comes back from it until who dials has waited for long enough.
    Vanishes,
    /// It takes the stream, and says no more before the login is complete.
    Hangs,
    /// It lets in, and closes.
    Bounces,
}

impl Host {
    pub(super) fn ill(random: &mut Random) -> Host {
        [Host::Refuses, Host::Vanishes, Host::Hangs, Host::Bounces][random.below(4)]
    }
}

/// A connection: the broker's end of its stream.
pub(super) struct Line {
    stream: DuplexStream,
    conn: Conn,
    stuck_until: Option<Instant>,
    /// Of the client's frames before it hangs.
    answers_left: Option<usize>,
}

pub(super) type Shared = Arc<Mutex<Hub>>;

pub(super) fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// All is well; somebody closes the connection.
pub(super) fn state(hub: &Shared) -> (bool, bool) {
    let hub = lock(hub);
    (hub.well, hub.closing)
}

impl Hub {
    pub(super) fn new(seed: u64, hosts: Vec<Host>, poisons: usize) -> Hub {
        let mut rabbit = Rabbit::new();
        QUEUES.iter().for_each(|queue| rabbit.declare(queue));
        Hub {
            random: Random(seed ^ 1),
            rabbit,
            lines: Vec::new(),
            ghosts: Vec::new(),
            hosts,
            gives_up: false,
            faults: Random(!seed).next() | Random(seed ^ 7).next(),
            well: true,
            closing: false,
            told: Vec::new(),
            unsent: Vec::new(),
            unasked: Vec::new(),
            replies: 0,
            taken: 0,
            drained: 0,
            dialled: 0,
            poisons_left: poisons,
            culprits: 0,
        }
    }

    /// What the broker does in a moment.
    pub(super) fn turn(&mut self) {
        let now = Instant::now();
        self.rabbit.pass(since_1970_us() / 1_000);
        let mut cx = Context::from_waker(Waker::noop());
        let mut kept = Vec::new();
        for mut line in std::mem::take(&mut self.lines) {
            if line.stuck_until.is_some_and(|until| now < until) {
                kept.push(line);
                continue;
            }
            let mut gone = false;
            let most = if self.well { 60_000 } else { 1 + self.random.below(6_000) };
            if line.conn.input.len() < 60_000 {
                let mut space = vec![0; most];
                let mut buffer = ReadBuf::new(&mut space);
                match Pin::new(&mut line.stream).poll_read(&mut cx, &mut buffer) {
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() => gone = true,
                    Poll::Ready(Ok(())) => line.conn.input.extend_from_slice(buffer.filled()),
                    Poll::Ready(Err(_)) => gone = true,
                    Poll::Pending => {}
                }
            }
            let frames = if self.well || gone { 10_000 } else { self.random.below(20) };
            for _ in 0..line.answers_left.unwrap_or(frames) {
                if !self.rabbit.work(&mut line.conn) {
                    break;
                }
                line.answers_left = line.answers_left.map(|left| left - 1);
            }
            if self.hosts[line.conn.host] == Host::Bounces {
                self.rabbit.close(&mut line.conn, 320);
            }
            let answers = if self.well { 10_000 } else { self.random.below(6) };
            for _ in 0..answers {
                let (rabbit, random) = (&mut self.rabbit, &mut self.random);
                let confirms =
                    rabbit.confirm(&mut line.conn, random) | rabbit.reply(&mut line.conn, random);
                if !rabbit.deliver(&mut line.conn, random) && !confirms {
                    break;
                }
            }
            while !gone && !line.conn.output.is_empty() {
                let part = line.conn.output.len().min(most);
                match Pin::new(&mut line.stream).poll_write(&mut cx, &line.conn.output[..part]) {
                    Poll::Ready(Ok(count)) => drop(line.conn.output.drain(..count)),
                    Poll::Ready(Err(_)) => gone = true,
                    Poll::Pending => break,
                }
                if !self.well && self.random.in_percent(50) {
                    break;
                }
            }
            gone |= line.conn.over && line.conn.output.is_empty();
            if gone {
                self.rabbit.end(&mut line.conn);
            } else {
                kept.push(line);
            }
        }
        self.lines = kept;
    }

    pub(super) fn spoil(&mut self) {
        let what = self.random.below(17);
        if self.faults >> what & 1 == 0 {
            return;
        }
        let at =
            if self.lines.is_empty() { None } else { Some(self.random.below(self.lines.len())) };
        match (what, at) {
            (0 | 1, Some(at)) => {
                let Line { mut conn, .. } = self.lines.swap_remove(at);
                conn.input.truncate(self.random.below(conn.input.len() + 1));
                self.ghosts.push(conn);
            }
            (2, Some(at)) => {
                let numbers = self.lines[at].conn.channel_numbers();
                if !numbers.is_empty() && self.lines[at].conn.open {
                    let number = numbers[self.random.below(numbers.len())];
                    let code = [403, 404, 406][self.random.below(3)];
                    self.rabbit.close_channel(&mut self.lines[at].conn, number, code, SPOILT);
                }
            }
            (3, Some(at)) => {
                let code = [320, 541, 501, 506][self.random.below(4)];
                self.rabbit.close(&mut self.lines[at].conn, code);
            }
            (4, _) => {
                let queue = QUEUES[self.random.below(3)];
                let Hub { rabbit, lines, .. } = self;
                rabbit.delete(queue, None);
                lines.iter_mut().for_each(|line| rabbit.delete(queue, Some(&mut line.conn)));
            }
            (5 | 6, _) => QUEUES.iter().for_each(|queue| self.rabbit.declare(queue)),
            (7, Some(at)) => {
                let ms = [50, 1_000, 15_000, 45_000][self.random.below(4)];
                self.lines[at].stuck_until = Some(Instant::now() + Duration::from_millis(ms));
            }
            (8 | 9, _) => {
                let host = self.random.below(self.hosts.len());
                let alarm = self.random.in_percent(40);
                let conns = self.lines.iter_mut().map(|line| &mut line.conn);
                self.rabbit.set_alarm(host, alarm, conns);
            }
            (10, _) => self.rabbit.is_full = self.random.in_percent(30),
            (11, _) => self.rabbit.has_exchange = self.random.in_percent(70),
            (12 | 14, _) => {
                let host = self.random.below(self.hosts.len());
                let ill = self.random.in_percent(40);
                self.hosts[host] = if ill { Host::ill(&mut self.random) } else { Host::Well };
            }
            (15, _) => {
                let host = self.random.below(self.hosts.len());
                self.hosts[host] = Host::ill(&mut self.random);
                self.cut(host);
            }
            (13, _) => {
                if let Some(ghost) = self.ghosts.pop() {
                    self.end_ghost(ghost);
                }
            }
            _ => {}
        }
    }

    pub(super) fn end_ghost(&mut self, mut ghost: Conn) {
        self.rabbit.unblock(&mut ghost);
        while self.rabbit.work(&mut ghost) {}
        self.rabbit.end(&mut ghost);
    }

    /// A host dies, with all its connections.
    fn cut(&mut self, host: usize) {
        for Line { mut conn, .. } in self.lines.extract_if(.., |line| line.conn.host == host) {
            conn.input.truncate(self.random.below(conn.input.len() + 1));
            self.ghosts.push(conn);
        }
    }

    /// One host is well for good, and others are, or are left as ill as a host may be.
    pub(super) fn heal(&mut self) {
        self.well = true;
        let sound = self.random.below(self.hosts.len());
        for host in 0..self.hosts.len() {
            // Who gives up does so at a host that lets in and closes.
            if host == sound || self.gives_up || self.random.in_percent(50) {
                self.hosts[host] = Host::Well;
                self.rabbit.alarms.remove(&host);
            } else {
                self.hosts[host] = Host::ill(&mut self.random);
                self.cut(host);
            }
        }
        self.rabbit.is_full = false;
        self.rabbit.has_exchange = true;
        QUEUES.iter().for_each(|queue| self.rabbit.declare(queue));
        for ghost in std::mem::take(&mut self.ghosts) {
            self.end_ghost(ghost);
        }
        for line in &mut self.lines {
            (line.stuck_until, line.answers_left) = (None, None);
            self.rabbit.unblock(&mut line.conn);
        }
        // The next ones have channels for all.
        for Line { mut conn, .. } in self.lines.extract_if(.., |line| line.conn.channel_max < 2047)
        {
            self.rabbit.end(&mut conn);
        }
    }

    pub(super) fn takes_poison(&mut self, random: &mut Random) -> bool {
        let takes = self.poisons_left > 0 && random.in_percent(5);
        self.poisons_left -= usize::from(takes);
        takes
    }

    pub(super) fn is_empty(&self) -> bool {
        let unacked = self.lines.iter().map(|line| Rabbit::unacked(&line.conn)).sum::<usize>();
        QUEUES.iter().all(|queue| self.rabbit.ready(queue) == 0) && unacked == 0
    }

    pub(super) fn tell(&self) -> String {
        let ready = QUEUES.map(|queue| self.rabbit.ready(queue));
        let unacked: Vec<_> = self.lines.iter().map(|line| Rabbit::unacked(&line.conn)).collect();
        {
            let hosts = &self.hosts;
            format!("ready {ready:?}, unacked {unacked:?}, {hosts:?}, gives up: {}", self.gives_up)
        }
    }

    pub(super) fn hear(&mut self, name: String, outcome: Result<Confirmed, Unconfirmed>) {
        let arrivals = self.rabbit.arrivals.get(&name).map_or(&[][..], Vec::as_slice);
        let answered = |fate: Fate| arrivals.iter().any(|it| it.answered && it.fate == fate);
        let true_so_far = match &outcome {
            Ok(_) => answered(Fate::Taken),
            Err(Unconfirmed::Rejected) => answered(Fate::Rejected),
            Err(Unconfirmed::Returned(_)) => answered(Fate::Returned),
            Err(Unconfirmed::Withdrawn) => arrivals.is_empty(),
            Err(Unconfirmed::Unknown(UnknownReason::Lost(_))) => self.closing || self.gives_up,
            Err(Unconfirmed::Unknown(_)) => true,
        };
        assert!(true_so_far, "{name} is {outcome:?}, and there were {arrivals:?}");
        self.culprits += u64::from(matches!(
            &outcome,
            Err(Unconfirmed::Unknown(UnknownReason::ConnectionsEnded { .. }))
        ));
        self.told.push((name, outcome));
    }

    pub(super) fn random(&mut self) -> Random {
        Random(self.random.next())
    }
}

pub(super) async fn broker(hub: Shared) {
    let mut beat = Instant::now();
    loop {
        let pause = {
            let mut hub = lock(&hub);
            hub.turn();
            if !hub.well && hub.random.in_percent(4) {
                hub.spoil();
            }
            if beat <= Instant::now() {
                beat = Instant::now() + Duration::from_secs(4);
                hub.lines.iter_mut().for_each(|line| line.conn.beat());
            }
            if hub.well { 10 } else { [1, 5, 40][hub.random.below(3)] }
        };
        sleep(Duration::from_millis(pause)).await;
    }
}

pub(super) fn dial(hub: &Shared, host: usize) -> StreamFuture {
    let hub = hub.clone();
    Box::pin(async move {
        let pause = {
            let mut hub = lock(&hub);
            match hub.hosts[host] {
                Host::Vanishes => 10_000,
                _ if hub.well => 1,
                _ => [1, 100, 3_000][hub.random.below(3)],
            }
        };
        sleep(Duration::from_millis(pause)).await;
        let mut hub = lock(&hub);
        let is = hub.hosts[host];
        hub.dialled += u64::from(is != Host::Well);
        if matches!(is, Host::Refuses | Host::Vanishes) {
            return Err(io::Error::other("refused"));
        }
        let answers_left = (is == Host::Hangs).then(|| hub.random.below(4));
        let well = hub.well;
        let bytes = if well { 65_536 } else { [100, 4_000, 65_536][hub.random.below(3)] };
        let roomy = well || hub.faults >> 20 & 1 == 0;
        let channel_max = if roomy { 2047 } else { [3, 5][hub.random.below(2)] };
        let (ours, stream) = tokio::io::duplex(bytes);
        let conn = Conn::new(host, channel_max, 10);
        hub.lines.push(Line { stream, conn, stuck_until: None, answers_left });
        Ok(Box::new(ours) as Box<dyn ByteStream>)
    })
}
