//! Many worlds, each made of one number: publishers and consumers on a session, and a RabbitMQ that is slow, ill, blocked, cut
//! off, without its queues, or none at all. In the end it is well, and everything that was asked for has its answer.

mod blocking;
mod dice;
mod rabbit;
mod seeds;
mod served;
mod users;
mod whole;

use self::dice::Random;
use self::rabbit::{Conn, Fate, Rabbit, Said};
use self::users::{Publisher, Taker, Told};
use super::*;
use crate::outcome::{Unconfirmed, UnknownReason};

/// Why a channel is closed without a reason.
const SPOILT: &str = "SPOILT";

struct World {
    random: Random,
    now_us: u64,
    session: Session,
    rabbit: Rabbit,
    conn: Option<Conn>,
    /// Connections that the client knows to be lost and the broker does not.
    ghosts: Vec<Conn>,
    /// Taken from the session, not in the socket yet.
    writing: Vec<u8>,
    input: Vec<u8>,
    /// The socket takes nothing, the broker says nothing.
    stuck: bool,
    next_beat_us: u64,
    login_until_us: u64,
    broker_beats_us: u64,
    begin_at_us: u64,
    refuses: bool,
    /// Which of its hosts let nobody in.
    away: Vec<bool>,
    /// To which the connection is.
    place: usize,
    /// How often all that is on its way arrives and is worked off, in percent of the steps.
    brisk: usize,
    /// What happens in this world: a bit for each.
    faults: u64,
    /// All is well from now on.
    well: bool,
    close_until_us: Option<u64>,
    ends_at_us: u64,
    publishers: Vec<Publisher>,
    takers: Vec<Taker>,
    made: usize,
    told: Told,
    losses: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            random: Random(seed),
            now_us: 1,
            session: Session::new(Options::default()),
            rabbit: Rabbit::new(),
            conn: None,
            ghosts: Vec::new(),
            writing: Vec::new(),
            input: Vec::new(),
            stuck: false,
            next_beat_us: u64::MAX,
            login_until_us: 0,
            broker_beats_us: 0,
            begin_at_us: 0,
            refuses: false,
            away: vec![false; 1 + (seed / 4 % 3) as usize],
            place: 0,
            faults: Random(!seed).next() | Random(seed ^ 7).next(),
            brisk: [0, 30, 70, 95][(seed % 4) as usize],
            well: false,
            close_until_us: None,
            ends_at_us: u64::MAX,
            publishers: Vec::new(),
            takers: Vec::new(),
            made: 0,
            told: Told::default(),
            losses: 0,
        };
        for queue in ["q0", "q1", "q2"] {
            world.rabbit.declare(queue);
        }
        world
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.random.in_percent(percent)
    }

    // ---- what happens

    fn step(&mut self) {
        let now_us = self.now_us;
        let most = 1 + self.random.below(3_000);
        match self.random.below(100) {
            0..16 => {
                if let Some(publisher) = pick(&mut self.publishers, &mut self.random)
                    && !publisher.dropped
                {
                    for _ in 0..1 + self.random.below(8) {
                        publisher.publish(
                            &mut self.session,
                            &mut self.told,
                            &mut self.random,
                            now_us,
                        );
                    }
                }
            }
            16..28 => {
                self.carry(most);
            }
            28..40 => {
                let frames = 1 + self.random.below(10);
                if let Some(conn) = self.conn.as_mut().filter(|_| !self.stuck) {
                    for _ in 0..frames {
                        self.rabbit.work(conn);
                    }
                }
            }
            40..48 => {
                for _ in 0..1 + self.random.below(4) {
                    if let Some(conn) = &mut self.conn {
                        self.rabbit.confirm(conn, &mut self.random);
                    }
                }
            }
            48..56 => {
                for _ in 0..1 + self.random.below(6) {
                    if let Some(conn) = &mut self.conn {
                        self.rabbit.deliver(conn, &mut self.random);
                    }
                }
            }
            56..66 => {
                if let Some(taker) = pick(&mut self.takers, &mut self.random) {
                    taker.take(&mut self.session, &mut self.rabbit, true, now_us);
                }
            }
            66..74 => {
                if let Some(taker) = pick(&mut self.takers, &mut self.random)
                    && taker.holds() > 0
                {
                    let at = self.random.below(taker.holds());
                    let all = [Said::Ack, Said::Ack, Said::Ack, Said::Requeue, Said::Reject];
                    let said = all[self.random.below(5)];
                    taker.settle(&mut self.session, &mut self.rabbit, at, said, now_us);
                }
            }
            74..80 => {
                self.run_publishers();
            }
            80..86 => {
                let us = [10, 1_000, 30_000, 400_000, 3_000_000][self.random.below(5)];
                self.pass(now_us + us);
            }
            86 => {
                if self.percent(20) {
                    self.pass(now_us + 40_000_000);
                }
            }
            87 => {
                if let Some(publisher) = pick(&mut self.publishers, &mut self.random)
                    && !publisher.dropped
                {
                    publisher.leave(&mut self.session, &mut self.told, &mut self.random, now_us);
                    publisher.abandon(&mut self.session, &mut self.random);
                }
            }
            88 => self.make(),
            89 => self.let_go(),
            90..93 => self.spoil(),
            93 => {
                self.stuck = self.percent(30);
            }
            94 => {
                let (host, alarm) = (self.random.below(self.away.len()), self.percent(40));
                self.rabbit.set_alarm(host, alarm, self.conn.iter_mut());
            }
            95 => self.rabbit.is_full = self.percent(30),
            96 => {
                if let Some(mut ghost) = self.ghosts.pop() {
                    while self.rabbit.work(&mut ghost) {}
                    self.rabbit.end(&mut ghost);
                }
            }
            97 => {
                self.refuses = self.percent(30);
                let host = self.random.below(self.away.len());
                self.away[host] = self.percent(50);
                self.rabbit.has_exchange = self.percent(70);
            }
            98 => {
                if let Some(conn) = &mut self.conn {
                    conn.beat();
                }
            }
            _ => {
                if self.percent(5) {
                    self.close();
                }
            }
        }
        self.perform();
        self.on_time();
        self.begin();
        if self.percent(self.brisk) && !self.stuck {
            self.carry(usize::MAX);
            if let Some(conn) = &mut self.conn {
                while self.rabbit.work(conn) {}
            }
            self.carry(usize::MAX);
        }
        self.check();
    }

    fn make(&mut self) {
        self.made += 1;
        if self.close_until_us.is_some() {
            return;
        }
        let (session, random, now_us) = (&mut self.session, &mut self.random, self.now_us);
        if random.in_percent(50) {
            if self.publishers.len() < 8 {
                self.publishers.push(Publisher::new(session, self.made, random, now_us));
            }
        } else if self.takers.len() < 5 {
            self.takers.push(Taker::new(session, self.made, random, now_us));
        }
    }

    fn let_go(&mut self) {
        let now_us = self.now_us;
        if self.percent(30) {
            if let Some(publisher) = pick(&mut self.publishers, &mut self.random)
                && !publisher.dropped
            {
                publisher.drop(&mut self.session, now_us);
            }
        } else if !self.takers.is_empty() {
            let at = self.random.below(self.takers.len());
            if self.random.in_percent(30) {
                self.takers[at].stop(&mut self.session);
            } else {
                self.takers.swap_remove(at).drop(&mut self.session, &mut self.rabbit, now_us);
            }
        }
    }

    fn spoil(&mut self) {
        let what = self.random.below(10);
        if self.faults >> what & 1 == 0 {
            return;
        }
        let Some(conn) = &mut self.conn else { return };
        match what {
            0..3 => {
                let lost = self.session.hung_up(None);
                self.lose(&lost);
            }
            3..5 => {
                let numbers = conn.channel_numbers();
                if !numbers.is_empty() && conn.open {
                    let number = numbers[self.random.below(numbers.len())];
                    let code = [403, 404, 406][self.random.below(3)];
                    self.rabbit.close_channel(conn, number, code, SPOILT);
                }
            }
            5 => {
                let code = [320, 541, 501, 506][self.random.below(4)];
                self.rabbit.close(conn, code);
            }
            6..8 => {
                let queue = ["q0", "q1", "q2"][self.random.below(3)];
                self.rabbit.delete(queue, Some(conn));
            }
            _ => {
                for queue in ["q0", "q1", "q2"] {
                    self.rabbit.declare(queue);
                }
            }
        }
    }

    fn close(&mut self) {
        if self.close_until_us.is_none() {
            let patience_us = [0, 2_000_000, 60_000_000][self.random.below(3)];
            self.session.begin_closing();
            self.close_until_us = Some(self.now_us + patience_us);
            self.ends_at_us = self.now_us + patience_us + 5_000_000;
        }
    }

    fn run_publishers(&mut self) -> bool {
        let mut ran = false;
        for publisher in self.publishers.iter_mut().filter(|publisher| !publisher.dropped) {
            ran |= publisher.run(&mut self.session, &mut self.told, &self.rabbit);
        }
        ran
    }

    fn check(&mut self) {
        for publisher in self.publishers.iter().filter(|publisher| !publisher.dropped) {
            publisher.check(&mut self.session);
        }
        for taker in &self.takers {
            taker.check(&mut self.session);
        }
    }

    // ---- the end

    fn heal(&mut self) {
        self.well = true;
        self.stuck = false;
        self.refuses = false;
        self.away.fill(false);
        // As many go as must for the others to have channels.
        let most = self.conn.as_ref().map_or(2047, |conn| usize::from(conn.channel_max));
        while self.publishers.iter().filter(|it| !it.dropped).count() + self.takers.len() > most {
            match self.takers.pop() {
                Some(taker) => taker.drop(&mut self.session, &mut self.rabbit, self.now_us),
                None => {
                    let mut left = self.publishers.iter_mut().filter(|it| !it.dropped);
                    left.next().expect("there are some").drop(&mut self.session, self.now_us);
                }
            }
        }
        self.rabbit.has_exchange = true;
        self.rabbit.is_full = false;
        self.rabbit.alarms.clear();
        for queue in ["q0", "q1", "q2"] {
            self.rabbit.declare(queue);
        }
        if let Some(conn) = &mut self.conn {
            self.rabbit.unblock(conn);
        }
        for mut ghost in std::mem::take(&mut self.ghosts) {
            self.rabbit.unblock(&mut ghost);
            while self.rabbit.work(&mut ghost) {}
            self.rabbit.end(&mut ghost);
        }
    }

    /// Everybody does what there is to do; true: somebody did something.
    fn settle(&mut self) -> bool {
        let mut moved = self.carry(usize::MAX);
        if let Some(conn) = &mut self.conn {
            while self.rabbit.work(conn) {
                moved = true;
            }
            while self.rabbit.confirm(conn, &mut self.random) {
                moved = true;
            }
            while self.rabbit.deliver(conn, &mut self.random) {
                moved = true;
            }
        }
        moved |= self.carry(usize::MAX);
        moved |= self.run_publishers();
        let (now_us, session, rabbit) = (self.now_us, &mut self.session, &mut self.rabbit);
        for taker in &mut self.takers {
            while taker.take(session, rabbit, false, now_us) {
                moved = true;
            }
            while taker.holds() > 0 {
                taker.settle(session, rabbit, 0, Said::Ack, now_us);
                moved = true;
            }
        }
        self.perform();
        self.on_time();
        self.begin();
        self.check();
        moved
    }

    fn is_done(&self) -> bool {
        let told = self.publishers.iter().all(|it| it.dropped || it.is_done());
        if self.close_until_us.is_some() {
            return told && self.is_over();
        }
        let served = |taker: &Taker| !taker.is_live() || self.rabbit.ready(&taker.queue) == 0;
        let unacked = self.conn.as_ref().map_or(0, Rabbit::unacked);
        told && self.takers.iter().all(served) && unacked == 0 && *self.session.phase() == Phase::Up
    }

    fn finish(&mut self) {
        self.heal();
        let since_us = self.now_us;
        while !self.is_done() {
            let waited_s = (self.now_us - since_us) / 1_000_000;
            assert!(waited_s < 3_600, "somebody waits for ever: {}", self.tell());
            if !self.settle() {
                self.pass(self.now_us + 100_000);
            }
        }
        for taker in &self.takers {
            if taker.ended.is_some() && !self.is_over() {
                let spoilt = format!("{:?}", taker.ended).contains(SPOILT);
                let ended = spoilt || self.rabbit.ended.contains(&taker.tag);
                assert!(ended, "{} ended: {:?}", taker.tag, taker.ended);
            }
        }
        for (name, outcome) in &self.told.outcomes {
            let arrivals = self.rabbit.arrivals.get(name).map_or(0, Vec::len);
            match outcome {
                Ok(confirmed) if !confirmed.republished => assert_eq!(arrivals, 1, "{name}"),
                Err(Unconfirmed::Withdrawn) => assert_eq!(arrivals, 0, "{name}"),
                _ => {}
            }
        }
        for name in &self.told.unsent {
            assert!(!self.rabbit.arrivals.contains_key(name), "{name} was not sent");
        }
    }

    fn tell(&self) -> String {
        let publishers = self.publishers.iter().filter(|it| !it.dropped && !it.is_done()).count();
        let waits = |taker: &&Taker| taker.is_live() && self.rabbit.ready(&taker.queue) > 0;
        let takers: Vec<_> = self.takers.iter().filter(waits).map(|taker| &taker.tag).collect();
        let unacked = self.conn.as_ref().map_or(0, Rabbit::unacked);
        format!(
            "{publishers} publishers, takers {takers:?}, {unacked} unacked, {:?}, trial {:?}",
            self.session.phase(),
            self.session.trial
        )
    }
}

fn pick<'a, T>(all: &'a mut [T], random: &mut Random) -> Option<&'a mut T> {
    if all.is_empty() {
        return None;
    }
    let at = random.below(all.len());
    all.get_mut(at)
}

fn run(seed: u64, steps: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..6 {
        world.make();
    }
    world.begin();
    for _ in 0..steps {
        if world.is_over() {
            break;
        }
        world.step();
    }
    world.finish();
    world
}

/// What a world saw, so that all of them together are known to have seen enough.
fn sights(world: &World) -> [u64; 8] {
    let confirmed = || world.told.outcomes.values().filter_map(|outcome| outcome.as_ref().ok());
    [
        confirmed().count() as u64,
        confirmed().filter(|confirmed| confirmed.republished).count() as u64,
        world.told.unsent.len() as u64,
        world.losses,
        world.rabbit.channels_closed,
        world.rabbit.returns,
        world.rabbit.redeliveries,
        world.takers.iter().map(|taker| taker.taken).sum(),
    ]
}

#[test]
fn each_publish_has_one_outcome_and_each_delivery_one_taker_whatever_the_broker_does() {
    let steps = seeds::steps();
    if let Some(seen) = seeds::all_hold(40, 10, |seed| sights(&run(seed, steps))) {
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
    }
}
