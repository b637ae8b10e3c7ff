//! The connection, as the driver serves it.

use super::*;

/// Of the socket, towards the broker.
const SOCKET_BYTES: usize = 8_000;
const HEARTBEAT_S: u16 = 10;

impl World {
    pub(super) fn is_over(&self) -> bool {
        self.session.over().is_some()
    }

    pub(super) fn begin(&mut self) {
        if self.conn.is_some() || self.is_over() || self.begin_at_us > self.now_us {
            return;
        }
        if self.close_until_us.is_some() {
            self.session.give_up(&Lost::ClosedByUs);
            self.perform();
            return;
        }
        // The same host a few times, or another, as whoever waits between attempts decides.
        if self.percent(50) {
            self.place = self.random.below(self.away.len());
        }
        if self.refuses || self.away[self.place] {
            self.session.peer_was_away(self.place);
            self.begin_at_us = self.now_us + 500_000;
            return;
        }
        let outgoing_bytes_max = [1, 1_000, 20_000][self.random.below(3)];
        let options =
            Options { heartbeat_s: HEARTBEAT_S, outgoing_bytes_max, ..Options::default() };
        let topology = match self.percent(50) {
            true => Topology::new().queue(Queue::durable("q0")).queue(Queue::durable("q1")),
            false => Topology::new(),
        };
        self.session.begin(options, topology);
        let roomy = self.well || self.faults >> 20 & 1 == 0;
        let channel_max = if roomy { 2047 } else { [2, 4, 6][self.random.below(3)] };
        self.conn = Some(Conn::new(self.place, channel_max, HEARTBEAT_S));
        self.login_until_us = self.now_us + 10_000_000;
        self.next_beat_us = u64::MAX;
    }

    pub(super) fn perform(&mut self) {
        std::mem::take(&mut self.session.wakeups).perform();
        self.session.happenings.clear();
    }

    pub(super) fn lose(&mut self, lost: &Lost) {
        self.losses += 1;
        let mut conn = self.conn.take().expect("there was one");
        conn.input.truncate(self.random.below(conn.input.len() + 1));
        conn.output.clear();
        self.writing.clear();
        self.input.clear();
        if !conn.over {
            self.ghosts.push(conn);
        }
        let was_up = *self.session.phase() == Phase::Up;
        if self.close_until_us.is_some() {
            self.session.give_up(lost);
        } else {
            if was_up {
                self.session.was_at(self.place);
            }
            self.session.lost(lost, self.now_us);
            if !was_up {
                self.session.peer_was_away(self.place);
            }
            self.begin_at_us = self.now_us + self.random.below(2_000_000) as u64;
        }
        self.perform();
    }

    /// Moves up to so many bytes each way.
    pub(super) fn carry(&mut self, most: usize) -> bool {
        if self.conn.is_none() {
            return false;
        }
        let mut moved = false;
        if self.writing.is_empty() {
            self.session.machine.take_outgoing(&mut self.writing);
            self.session.drained(self.now_us);
        }
        let Some(conn) = &mut self.conn else { return false };
        if !self.stuck && !conn.over {
            let room = SOCKET_BYTES.saturating_sub(conn.input.len());
            let count = self.writing.len().min(most).min(room);
            conn.input.extend(self.writing.drain(..count));
            moved |= count > 0;
        }
        let mut ended = false;
        if !self.stuck {
            let count = conn.output.len().min(most);
            self.input.extend(conn.output.drain(..count));
            moved |= count > 0;
            ended = conn.over && conn.output.is_empty();
        }
        let mut rest = &self.input[..];
        let outcome = self.session.receive(&mut rest, self.now_us);
        let used = self.input.len() - rest.len();
        self.input.drain(..used);
        self.perform();
        if let Err(lost) = outcome {
            panic!("the broker is sound, and {lost}");
        }
        let over = self.session.machine.state() == State::Over
            && self.writing.is_empty()
            && self.session.machine.outgoing().is_empty();
        if ended || over {
            let lost = self.session.hung_up(None);
            self.lose(&lost);
            return true;
        }
        moved
    }

    pub(super) fn on_time(&mut self) {
        let now_us = self.now_us;
        while self.session.next_expiry_us(now_us).is_some_and(|at_us| at_us <= now_us) {
            self.session.expire(now_us);
        }
        if self.conn.is_none() {
            self.perform();
            return;
        }
        let up = *self.session.phase() == Phase::Up;
        if !up && now_us >= self.login_until_us {
            self.lose(&Lost::Io("login".into()));
            return;
        }
        if now_us >= self.ends_at_us {
            self.lose(&Lost::end_unanswered());
            return;
        }
        if !self.writing.is_empty() {
            self.session.still_busy(now_us);
        }
        let is_due =
            |session: &Session| session.next_tick_us().is_some_and(|at_us| at_us <= now_us);
        for turn in 0.. {
            if !is_due(&self.session) && now_us < self.next_beat_us {
                break;
            }
            assert!(turn < 3, "it is due again and again: {}", self.tell());
            let outcome = self.session.tick(now_us);
            self.next_beat_us = u64::MAX;
            if let Err(lost) = outcome {
                self.lose(&lost);
                return;
            }
        }
        if self.next_beat_us == u64::MAX
            && let Some(interval_us) = self.session.machine.tick_interval_us()
        {
            self.next_beat_us = now_us + interval_us;
        }
        if let Some(until_us) = self.close_until_us {
            if !up {
                self.lose(&Lost::ClosedByUs);
            } else if self.session.is_quiet() || now_us >= until_us {
                self.session.close_now();
            }
        }
        self.perform();
    }

    /// Until then, stopping wherever somebody has something to do.
    pub(super) fn pass(&mut self, until_us: u64) {
        while self.now_us < until_us {
            let session = &self.session;
            let expiry = session.next_expiry_us(self.now_us).filter(|at_us| *at_us > self.now_us);
            let mut next_us = expiry.unwrap_or(u64::MAX);
            if self.conn.is_some() {
                let tick = session.next_tick_us().unwrap_or(u64::MAX);
                next_us = next_us.min(tick).min(self.next_beat_us).min(self.ends_at_us);
                let closes = self.close_until_us.filter(|until_us| *until_us > self.now_us);
                next_us = next_us.min(closes.unwrap_or(u64::MAX));
            }
            next_us = next_us.min(self.broker_beats_us).max(self.now_us + 1);
            self.now_us = next_us.min(until_us);
            if self.broker_beats_us <= self.now_us {
                self.broker_beats_us = self.now_us + 4_000_000;
                if let Some(conn) = &mut self.conn {
                    conn.beat();
                }
                self.carry(usize::MAX);
            }
            self.on_time();
            self.begin();
        }
    }
}
