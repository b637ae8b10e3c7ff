//! Whom a broker reads next, and how much of it.
//!
//! ```text
//!              ┌─ those that take more than they bring: first, and from a purse of their own
//!   readable ──┤
//!              └─ those that bring: in turn, the same number of bytes each ──► more to read: to the end of its list
//!                     ▲                                                   └──► no room: to the gate
//!                     ├──────────── gate, asked once a turn ◄───────────────────────────┘
//!                     └──────────── parked: waits for something of its own, asked now and then
//! ```
//! A turn reads everybody once at most, and ends when its bytes are spent; the next one goes on behind whom it
//! read last. So however much one sends, everybody else is read as often as if it were one of them.
//!
//! At a tight gate, too: who has no room for all of a visit keeps what is left of it and is the first to go on, and
//! has its next visit when everybody had one. The gate lets go no more of those who bring than a turn reads: a thousand
//! that are asked, listed, found without room and put back for each commit cost more than what they bring.

use std::collections::VecDeque;

use crate::ingress::{PublisherShare, VISIT_BYTES};

/// Whether somebody at the gate may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gated {
    /// Not yet: it waits for the room that all wait for.
    Stays,
    /// Not yet: it waits for something of its own, which keeps nobody else, and is asked again after [`Visits::unpark`].
    Parks,
    /// It is not there any more, or stands in a list already.
    Gone,
    /// Yes.
    Goes {
        /// To those that take more than they bring.
        taker: bool,
    },
}

/// Those that a broker reads, by keys of its own; each stands in one place at most, which is its business.
#[derive(Debug, Clone)]
pub struct Visits {
    turn_bytes: usize,
    /// Takers and bringers, and in the running turn how many of them are still to be read and how many bytes.
    lists: [VecDeque<usize>; 2],
    unread: [usize; 2],
    left_bytes: [usize; 2],
    /// In which list the last one stood.
    at: usize,
    /// At the gate, by the list in which they stood.
    gated: [VecDeque<usize>; 2],
    /// They wait for something of their own: in nobody's way, and not asked as often.
    parked: [VecDeque<usize>; 2],
    /// So many at the head of the bringers' list come from the gate; the last visit was to one of them.
    let_go: usize,
    was_let_go: bool,
    /// Those of them who had no room for all they had, in their order: they stand before the others at the gate.
    returned: Vec<usize>,
    /// Empty but while the gate is asked.
    going: Vec<(usize, bool)>,
    staying: Vec<usize>,
    share: PublisherShare,
    sent_bytes: u64,
}

const TAKERS: usize = 0;
const BRINGERS: usize = 1;

impl Visits {
    /// With the bytes of a turn: takers may bring so many, and bringers again, or a fifth of the work if that
    /// is more.
    #[must_use]
    pub fn new(turn_bytes: usize) -> Visits {
        Visits {
            turn_bytes,
            lists: [VecDeque::new(), VecDeque::new()],
            unread: [0; 2],
            left_bytes: [0; 2],
            at: TAKERS,
            gated: [VecDeque::new(), VecDeque::new()],
            parked: [VecDeque::new(), VecDeque::new()],
            let_go: 0,
            was_let_go: false,
            returned: Vec::new(),
            going: Vec::new(),
            staying: Vec::new(),
            share: PublisherShare::new(turn_bytes as u64),
            sent_bytes: 0,
        }
    }

    /// There is something to read from `key`: to the end of its list.
    pub fn list(&mut self, key: usize, taker: bool) {
        self.lists[if taker { TAKERS } else { BRINGERS }].push_back(key);
    }

    /// There is something to read from `key`, and no room for it.
    pub fn gate(&mut self, key: usize, taker: bool) {
        match (taker, self.was_let_go) {
            (true, _) => self.gated[TAKERS].push_back(key),
            (false, true) => self.returned.push(key),
            (false, false) => self.gated[BRINGERS].push_back(key),
        }
    }

    /// Asks those at the gate who may go on: before those in the lists, in the order in which they came there. Of those
    /// who bring, as many as a turn reads; the next ones are asked when these were read, in the same turn if
    /// [they bring little](Visits::turn_has_room).
    pub fn ask_gate(&mut self, mut ask: impl FnMut(usize) -> Gated) {
        for key in self.returned.drain(..).rev() {
            self.gated[BRINGERS].push_front(key);
        }
        for side in [TAKERS, BRINGERS] {
            let most = match side {
                TAKERS => usize::MAX,
                _ if self.let_go > 0 => continue,
                _ => (self.turn_bytes / VISIT_BYTES).max(1),
            };
            while self.going.len() < most
                && let Some(key) = self.gated[side].pop_front()
            {
                match ask(key) {
                    Gated::Stays => self.staying.push(key),
                    Gated::Parks => self.parked[side].push_back(key),
                    Gated::Gone => {}
                    Gated::Goes { taker } => self.going.push((key, taker)),
                }
            }
            for key in self.staying.drain(..).rev() {
                self.gated[side].push_front(key);
            }
            for (key, taker) in self.going.drain(..).rev() {
                self.lists[if taker { TAKERS } else { BRINGERS }].push_front(key);
                if !taker {
                    self.let_go += 1;
                    self.unread[BRINGERS] += 1;
                }
            }
        }
    }

    /// Those that wait for something of their own go back to the gate, behind the others, to be asked with them.
    pub fn unpark(&mut self) {
        for side in [TAKERS, BRINGERS] {
            let parked = std::mem::take(&mut self.parked[side]);
            self.gated[side].extend(parked);
        }
    }

    /// `key` is gone, and may mean somebody else. Linear in those that stand somewhere.
    pub fn forget(&mut self, key: usize) {
        let other = |other: &usize| *other != key;
        self.gated.iter_mut().chain(&mut self.parked).for_each(|places| places.retain(other));
        self.returned.retain(other);
        for side in [TAKERS, BRINGERS] {
            let Some(at) = self.lists[side].iter().position(|other| *other == key) else {
                continue;
            };
            self.lists[side].remove(at);
            self.unread[side] -= usize::from(at < self.unread[side]);
            self.let_go -= usize::from(side == BRINGERS && at < self.let_go);
        }
    }

    /// Whether somebody waits for something of its own.
    #[must_use]
    pub fn has_parked(&self) -> bool {
        self.parked.iter().any(|parked| !parked.is_empty())
    }

    /// Whether somebody who brings would be read before one who waits at the gate: with room again, ask the gate
    /// first. Otherwise whoever is not held takes all the room that a turn has, turn after turn.
    #[must_use]
    pub fn would_overtake(&self) -> bool {
        self.is_gated() && self.lists[BRINGERS].len() > self.let_go
    }

    /// Whether somebody who brings stands at the gate.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        !self.gated[BRINGERS].is_empty() || !self.returned.is_empty()
    }

    /// Whether somebody who was let go is still to be read.
    #[must_use]
    pub fn has_let_go(&self) -> bool {
        self.let_go > 0
    }

    /// Whether more of those who bring may be read in this turn than were let go: if there is room, ask the gate again.
    #[must_use]
    pub fn turn_has_room(&self) -> bool {
        self.is_gated() && self.left_bytes[BRINGERS] > 0
    }

    /// Whether there is more to read than is read: somebody stands in a list, or brings more than there is `room` for.
    #[must_use]
    pub fn is_busy(&self, room: bool) -> bool {
        self.is_waiting() || !room && self.is_gated()
    }

    /// Whether somebody is to be read.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lists.iter().any(|list| !list.is_empty())
    }

    /// A turn begins; `sent_bytes` were written since the start.
    pub fn begin_turn(&mut self, sent_bytes: u64) {
        self.share.turn(sent_bytes - self.sent_bytes);
        self.sent_bytes = sent_bytes;
        self.unread = [self.lists[TAKERS].len(), self.lists[BRINGERS].len()];
        if self.let_go > 0 && self.is_gated() {
            // Those behind them in the list came after those who still stand at the gate.
            self.unread[BRINGERS] = self.let_go;
        }
        self.left_bytes = [self.turn_bytes, self.share.bytes() as usize];
    }

    /// Who is read next in this turn, and how many bytes at most. Tell what it [brought](Visits::brought), and
    /// [list](Visits::list) it again if there is more.
    pub fn next_visit(&mut self) -> Option<(usize, usize)> {
        for side in [TAKERS, BRINGERS] {
            if self.unread[side] > 0
                && self.left_bytes[side] > 0
                && let Some(key) = self.lists[side].pop_front()
            {
                self.unread[side] -= 1;
                self.was_let_go = side == BRINGERS && self.let_go > 0;
                self.let_go -= usize::from(self.was_let_go);
                self.at = side;
                return Some((key, VISIT_BYTES));
            }
        }
        self.was_let_go = false;
        None
    }

    /// Whether the last visit was to one that brings: all takers of this turn were read before.
    #[must_use]
    pub fn at_bringers(&self) -> bool {
        self.at == BRINGERS
    }

    /// The last visit brought `bytes`.
    pub fn brought(&mut self, bytes: usize) {
        let left_bytes = &mut self.left_bytes[self.at];
        *left_bytes = left_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::max_min;
    use proptest::prelude::*;

    const KIB: usize = 1024;
    const TURN_BYTES: usize = 256 * KIB;
    /// What a peer's kernel and ours hold of one that sends without waiting.
    const SOCKET_BYTES: usize = 128 * KIB;

    struct Peer {
        /// What it would send in a turn.
        wants_bytes: usize,
        /// What waits in its socket.
        socket_bytes: usize,
        /// What was read of it and had no room.
        held_bytes: usize,
        listed: bool,
        read_bytes: usize,
    }

    /// A broker with sockets and a commit for every turn, which makes room for so many bytes.
    struct Broker {
        visits: Visits,
        peers: Vec<Peer>,
        room_bytes: usize,
    }

    impl Broker {
        fn new(wants_bytes: impl IntoIterator<Item = usize>) -> Broker {
            let peer = |wants_bytes| Peer {
                wants_bytes,
                socket_bytes: 0,
                held_bytes: 0,
                listed: false,
                read_bytes: 0,
            };
            Broker {
                visits: Visits::new(TURN_BYTES),
                peers: wants_bytes.into_iter().map(peer).collect(),
                room_bytes: 0,
            }
        }

        fn turns(&mut self, turns: usize, committed_bytes: usize) {
            for _ in 0..turns {
                self.room_bytes = (self.room_bytes + committed_bytes).min(4 * committed_bytes);
                for (key, peer) in self.peers.iter_mut().enumerate() {
                    peer.socket_bytes = (peer.socket_bytes + peer.wants_bytes).min(SOCKET_BYTES);
                    if !peer.listed && peer.socket_bytes > 0 {
                        peer.listed = true;
                        self.visits.list(key, false);
                    }
                }
                if self.visits.would_overtake() && self.room_bytes > 0 {
                    self.ask_gate();
                }
                self.visits.begin_turn(0);
                loop {
                    while let Some((key, most_bytes)) = self.visits.next_visit() {
                        let bytes = self.visit(key, most_bytes);
                        self.visits.brought(bytes);
                    }
                    if self.room_bytes == 0 || !self.visits.turn_has_room() {
                        break;
                    }
                    self.ask_gate();
                }
                self.ask_gate();
            }
        }

        fn ask_gate(&mut self) {
            let room = self.room_bytes > 0;
            self.visits.ask_gate(|_| match room {
                true => Gated::Goes { taker: false },
                false => Gated::Stays,
            });
        }

        fn visit(&mut self, key: usize, most_bytes: usize) -> usize {
            let peer = &mut self.peers[key];
            peer.listed = true;
            if self.room_bytes == 0 {
                self.visits.gate(key, false);
                return 0;
            }
            if peer.held_bytes == 0 {
                peer.held_bytes = peer.socket_bytes.min(most_bytes);
                peer.socket_bytes -= peer.held_bytes;
            }
            let taken = peer.held_bytes.min(self.room_bytes);
            peer.held_bytes -= taken;
            peer.read_bytes += taken;
            self.room_bytes -= taken;
            if peer.held_bytes > 0 {
                self.visits.gate(key, false);
            } else if peer.socket_bytes > 0 {
                self.visits.list(key, false);
            } else {
                peer.listed = false;
            }
            taken
        }

        fn read(&self) -> Vec<usize> {
            self.peers.iter().map(|peer| peer.read_bytes).collect()
        }
    }

    /// Jain's index ("A Quantitative Measure of Fairness", 1984): 1 if all got the same.
    fn jain(shares: &[usize]) -> f64 {
        let sum: f64 = shares.iter().map(|&share| share as f64).sum();
        let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
        sum * sum / (shares.len() as f64 * squares)
    }

    #[test]
    fn a_thousand_that_send_what_they_can_get_the_same_number_of_bytes() {
        // From a message of 200 bytes a turn to more than a visit.
        let mut broker = Broker::new((0..1_000).map(|index| 200 + index * 100));
        broker.turns(20_000, TURN_BYTES);
        let read = broker.read();
        assert!(jain(&read[3..]) >= 0.999, "{}", jain(&read[3..]));
        assert!(read.iter().sum::<usize>() >= 19_000 * TURN_BYTES);
    }

    #[test]
    fn beside_one_that_floods_the_modest_get_all_they_ask_for() {
        for light in [5, 50, 300] {
            // The modest ask for up to nine tenths of an equal share.
            let share = TURN_BYTES / (light + 1);
            let wants = (0..light).map(|index| 1 + share * 9 / 10 * (index + 1) / light);
            let mut broker = Broker::new([usize::MAX / 2].into_iter().chain(wants));
            broker.turns(5_000, TURN_BYTES);
            for peer in &broker.peers[1..] {
                let part = peer.read_bytes as f64 / (5_000 * peer.wants_bytes) as f64;
                assert!(part >= 0.98, "{part:.2} of {} bytes a turn", peer.wants_bytes);
            }
            let flood = broker.peers[0].read_bytes;
            let rest = 5_000 * TURN_BYTES - broker.read()[1..].iter().sum::<usize>();
            // It is read once a turn.
            let rest = rest.min(5_000 * VISIT_BYTES);
            assert!(flood as f64 >= 0.95 * rest as f64, "{flood} of {rest}: the rest is its own");
        }
    }

    #[test]
    fn with_room_for_less_than_a_visit_at_a_time_everybody_gets_the_same() {
        let mut broker = Broker::new((0..50).map(|_| usize::MAX / 2));
        broker.turns(100_000, 3_000);
        assert!(jain(&broker.read()) >= 0.99, "{:?}", broker.read());
    }

    /// Of a thousand, all of whom were asked for each commit that has room for eight.
    #[test]
    fn the_gate_asks_as_many_as_a_turn_reads_and_in_their_order() {
        let mut visits = Visits::new(TURN_BYTES);
        (0..1_000).for_each(|key| visits.gate(key, false));
        assert!(visits.is_busy(false) && !visits.is_busy(true));
        let (mut asked, mut read) = (0, Vec::new());
        for _ in 0..300 {
            visits.ask_gate(|_| {
                asked += 1;
                Gated::Goes { taker: false }
            });
            visits.begin_turn(0);
            let mut room_bytes = 4 * VISIT_BYTES;
            while let Some((key, bytes)) = visits.next_visit() {
                let bytes = bytes.min(room_bytes);
                room_bytes -= bytes;
                match bytes {
                    0 => visits.gate(key, false),
                    _ => read.push(key),
                }
                visits.brought(bytes);
            }
        }
        assert_eq!(read, (0..1_000).collect::<Vec<_>>());
        assert!(asked <= 300 * 8, "{asked}");
    }

    #[test]
    fn who_came_to_the_gate_is_read_before_who_only_stands_in_the_list() {
        let mut visits = Visits::new(TURN_BYTES);
        (0..20).for_each(|key| visits.gate(key, false));
        (20..40).for_each(|key| visits.list(key, false));
        let mut read = Vec::new();
        for _ in 0..10 {
            visits.ask_gate(|_| Gated::Goes { taker: false });
            visits.begin_turn(0);
            while let Some((key, _)) = visits.next_visit() {
                read.push(key);
                // So little that the turn has room for many more.
                visits.brought(KIB);
            }
        }
        assert_eq!(read, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn those_at_the_gate_who_bring_little_are_read_in_one_turn() {
        let mut visits = Visits::new(TURN_BYTES);
        (0..100).for_each(|key| visits.gate(key, false));
        visits.begin_turn(0);
        let mut read = 0;
        loop {
            while visits.next_visit().is_some() {
                read += 1;
                visits.brought(1_000);
            }
            if !visits.turn_has_room() {
                break;
            }
            visits.ask_gate(|_| Gated::Goes { taker: false });
            assert!(visits.has_let_go());
        }
        assert_eq!(read, 100);
    }

    #[test]
    fn who_takes_is_read_in_every_turn_beside_a_thousand_that_bring() {
        let mut visits = Visits::new(TURN_BYTES);
        (0..1_000).for_each(|key| visits.list(key, false));
        for turn in 0..100 {
            visits.list(1_000, true);
            visits.begin_turn(turn);
            assert_eq!(visits.next_visit().map(|(key, _)| key), Some(1_000));
            assert!(!visits.at_bringers());
            visits.brought(TURN_BYTES);
            let mut bringers = 0;
            while let Some((key, bytes)) = visits.next_visit() {
                assert!(visits.at_bringers());
                visits.brought(bytes);
                visits.list(key, false);
                bringers += 1;
            }
            assert_eq!(bringers, 4, "what takers brought is not theirs to pay");
        }
    }

    #[test]
    fn who_waits_for_something_of_his_own_is_in_nobodys_way_and_not_forgotten() {
        let mut visits = Visits::new(TURN_BYTES);
        for key in 0..1000 {
            visits.gate(key, key % 2 == 0);
        }
        visits.ask_gate(|_| Gated::Parks);
        assert!(visits.has_parked() && !visits.is_gated());
        visits.list(5000, false);
        assert!(!visits.would_overtake());
        visits.ask_gate(|key| panic!("{key} was asked"));
        visits.begin_turn(0);
        assert_eq!(visits.next_visit(), Some((5000, VISIT_BYTES)));
        assert!(!visits.turn_has_room());
        // Some have what they waited for.
        visits.unpark();
        let mut asked = 0;
        visits.ask_gate(|key| {
            asked += 1;
            if key % 10 == 0 { Gated::Goes { taker: key % 2 == 0 } } else { Gated::Parks }
        });
        assert_eq!(asked, 1000);
        visits.begin_turn(0);
        let mut read = Vec::new();
        while let Some((key, _)) = visits.next_visit() {
            read.push(key);
        }
        assert_eq!(read, (0..1000).step_by(10).collect::<Vec<_>>());
        // One that is gone is not asked for any more.
        visits.forget(11);
        visits.unpark();
        visits.ask_gate(|key| if key == 11 { panic!("it is gone") } else { Gated::Parks });
        assert!(visits.has_parked() && !visits.is_gated());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Max-min fairness in bytes, but for what waits in a socket and a visit or two.
        #[test]
        fn nobody_gets_less_than_the_fair_share_of_what_is_committed(
            wants in prop::collection::vec(prop_oneof![1..5_000usize, 1..=VISIT_BYTES], 1..80),
            committed_bytes in 1_000..TURN_BYTES,
        ) {
            let turns = 2_000;
            let mut broker = Broker::new(wants.iter().copied());
            broker.turns(turns, committed_bytes);
            let demands: Vec<u64> = wants.iter().map(|bytes| (*bytes * turns) as u64).collect();
            let fair = max_min((committed_bytes * turns) as u64, &demands);
            for (peer, fair) in broker.peers.iter().zip(fair) {
                let owed = 0.95 * fair as f64 - (SOCKET_BYTES + 2 * VISIT_BYTES) as f64;
                prop_assert!(peer.read_bytes as f64 >= owed, "{} of {fair}", peer.read_bytes);
            }
        }
    }
}
