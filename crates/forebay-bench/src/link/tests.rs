//! What must hold for any traffic over any link.

use super::conditions::Conditions;
use super::direction::{Direction, burst_bytes};
use super::lane::ARRIVED_BYTES_MAX;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// Time passes.
    Wait(u64),
    /// A connection sends so much, or what there is room for.
    Push { lane: usize, bytes: usize },
    /// A connection's receiver takes nothing, or everything again.
    Reading { lane: usize, reads: bool },
    /// The link stalls for so long.
    Stall(u64),
    /// Another delay and jitter.
    Delay { rtt_us: u64, jitter_us: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..5_000u64).prop_map(Step::Wait),
        1 => (0..200_000u64).prop_map(Step::Wait),
        6 => (0..3usize, 1..40_000usize).prop_map(|(lane, bytes)| Step::Push { lane, bytes }),
        1 => (0..3usize, any::<bool>()).prop_map(|(lane, reads)| Step::Reading { lane, reads }),
        1 => (0..50_000u64).prop_map(Step::Stall),
        1 => (0..100_000u64, 0..10_000u64)
            .prop_map(|(rtt_us, jitter_us)| Step::Delay { rtt_us, jitter_us }),
    ];
    prop::collection::vec(step, 1..60)
}

/// A direction, what went in, and what came out when.
struct Rig {
    now_us: u64,
    direction: Direction,
    conditions: Conditions,
    /// Of each connection: bytes sent, and the soonest time at which each batch may arrive.
    sent: [Vec<(u64, usize)>; 3],
    /// Of each connection: bytes taken.
    taken: [usize; 3],
    reads: [bool; 3],
    /// All connections together: when, and how much.
    out: Vec<(u64, usize)>,
}

/// The byte at a place of a connection's stream: out of order or of another connection, it is another one.
fn byte(lane: usize, place: usize) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 7) as u8 ^ (lane as u8) << 6
}

impl Rig {
    fn new(conditions: Conditions) -> Rig {
        let mut direction = Direction::new(0, conditions, 7);
        for lane in 0..3 {
            assert_eq!(direction.open(), lane);
        }
        Rig {
            now_us: 0,
            direction,
            conditions,
            sent: Default::default(),
            taken: [0; 3],
            reads: [true; 3],
            out: Vec::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Wait(us) => self.pass(us),
            Step::Push { lane, bytes } => {
                let bytes = bytes.min(self.direction.room_bytes(lane));
                let from: usize = self.sent[lane].iter().map(|(_, bytes)| bytes).sum();
                let content: Vec<u8> = (from..from + bytes).map(|at| byte(lane, at)).collect();
                self.direction.push(self.now_us, lane, &content);
                self.sent[lane].push((self.now_us + self.conditions.rtt_us / 2, bytes));
            }
            Step::Reading { lane, reads } => self.reads[lane] = reads,
            Step::Stall(us) => self.direction.stall(self.now_us + us),
            Step::Delay { rtt_us, jitter_us } => {
                self.conditions = Conditions { rtt_us, jitter_us, ..self.conditions };
                self.direction.set(self.now_us, self.conditions);
            }
        }
        self.turn();
    }

    /// Lets time pass, with a turn whenever one is asked for.
    fn pass(&mut self, us: u64) {
        let end_us = self.now_us + us;
        while let Some(next_us) = self.direction.next_us().filter(|&next_us| next_us <= end_us) {
            assert!(next_us > self.now_us, "a turn leaves nothing that it could have done");
            self.now_us = next_us;
            self.turn();
        }
        self.now_us = end_us;
    }

    fn turn(&mut self) {
        loop {
            self.direction.turn(self.now_us);
            let mut any = 0;
            for lane in 0..3 {
                any += self.take(lane);
            }
            if any == 0 {
                return;
            }
        }
    }

    fn take(&mut self, lane: usize) -> usize {
        if !self.reads[lane] {
            assert!(self.direction.arrived(lane).len() <= ARRIVED_BYTES_MAX);
            return 0;
        }
        let mut total = 0;
        while !self.direction.arrived(lane).is_empty() {
            let arrived = self.direction.arrived(lane);
            for (at, &got) in arrived.iter().enumerate() {
                assert_eq!(got, byte(lane, self.taken[lane] + at), "order is kept");
            }
            let bytes = arrived.len();
            self.direction.take(lane, bytes);
            self.taken[lane] += bytes;
            total += bytes;
        }
        self.check_delay(lane);
        if total > 0 {
            self.out.push((self.now_us, total));
        }
        total
    }

    fn check_delay(&self, lane: usize) {
        let mut before = 0;
        for &(soonest_us, bytes) in &self.sent[lane] {
            if before < self.taken[lane] {
                assert!(self.now_us >= soonest_us, "nothing is faster than the link is long");
            }
            before += bytes;
        }
    }

    /// Everybody reads until nothing is on the way any more.
    fn drain(&mut self) {
        self.reads = [true; 3];
        self.turn();
        while let Some(next_us) = self.direction.next_us() {
            assert!(next_us > self.now_us);
            self.now_us = next_us;
            self.turn();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_are_kept_in_order_and_never_early_whatever_the_link_does(
        steps in steps(), rtt_us in 0..100_000u64, jitter_us in 0..20_000u64,
        bytes_per_s in prop::option::of(10_000..50_000_000u64),
    ) {
        let mut rig = Rig::new(Conditions { rtt_us, jitter_us, bytes_per_s });
        for step in &steps {
            rig.apply(step);
            for lane in 0..3 {
                let sent: usize = rig.sent[lane].iter().map(|(_, bytes)| bytes).sum();
                let most = Conditions { rtt_us: 100_000, ..rig.conditions }.held_bytes_max();
                prop_assert!(sent - rig.taken[lane] <= most, "the link holds no more than it says");
            }
        }
        rig.drain();
        for lane in 0..3 {
            let sent: usize = rig.sent[lane].iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(rig.taken[lane], sent, "nothing is lost and nothing added");
        }
    }

    #[test]
    fn no_time_sees_more_than_the_bandwidth(
        steps in steps(), rtt_us in 0..100_000u64, jitter_us in 0..20_000u64,
        rate in 10_000..50_000_000u64,
    ) {
        let mut rig = Rig::new(Conditions { rtt_us, jitter_us, bytes_per_s: Some(rate) });
        // A change of conditions begins with a full bucket, and a receiver that reads again finds a window
        // of bytes that have arrived before.
        let steady = |step: &&Step| !matches!(step, Step::Delay { .. } | Step::Reading { .. });
        for step in steps.iter().filter(steady) {
            rig.apply(step);
        }
        rig.drain();
        for (first, &(from_us, _)) in rig.out.iter().enumerate() {
            let mut bytes = 0;
            for &(until_us, more) in &rig.out[first..] {
                bytes += more as u128;
                let us = u128::from(until_us - from_us);
                let most = burst_bytes(rate) as u128 + u128::from(rate) * us / 1_000_000 + 1;
                prop_assert!(bytes <= most, "{bytes} bytes in {us} us at {rate} bytes/s");
            }
        }
    }
}

#[test]
fn connections_share_a_bandwidth_evenly() {
    let conditions = Conditions { bytes_per_s: Some(1_000_000), ..Conditions::default() };
    let mut rig = Rig::new(conditions);
    for lane in 0..3 {
        rig.apply(&Step::Push { lane, bytes: 60_000 });
    }
    rig.pass(90_000);
    let (least, most) = (rig.taken.iter().min().unwrap(), rig.taken.iter().max().unwrap());
    // The first to send may have had the burst.
    let burst = burst_bytes(1_000_000) + super::direction::SEGMENT_BYTES;
    assert!(most - least <= burst, "{:?}", rig.taken);
    assert!(rig.taken.iter().sum::<usize>() >= 90_000);
}

#[test]
fn the_end_of_a_stream_takes_as_long_as_its_bytes_and_comes_after_them() {
    let conditions = Conditions { rtt_us: 20_000, ..Conditions::default() };
    let mut direction = Direction::new(0, conditions, 1);
    let key = direction.open();
    direction.push(0, key, b"last words");
    direction.push_end(0, key);
    assert_eq!(direction.next_us(), Some(10_000));
    direction.turn(10_000);
    assert!(!direction.take_end(10_000, key));
    direction.take(key, 10);
    assert!(direction.take_end(10_000, key));
    assert_eq!(direction.next_us(), None);
}

#[test]
fn nothing_arrives_while_the_link_stalls() {
    let mut direction = Direction::new(0, Conditions::default(), 1);
    let key = direction.open();
    direction.push(0, key, b"x");
    direction.stall(2_000_000);
    direction.turn(1_999_999);
    assert_eq!(direction.arrived(key), b"");
    assert_eq!(direction.next_us(), Some(2_000_000));
    direction.turn(2_000_000);
    assert_eq!(direction.arrived(key), b"x");
}

#[test]
fn a_receiver_that_does_not_read_holds_its_sender_back_and_nobody_else() {
    let conditions = Conditions { bytes_per_s: Some(1_000_000), ..Conditions::default() };
    let mut rig = Rig::new(conditions);
    rig.apply(&Step::Reading { lane: 0, reads: false });
    for _ in 0..20 {
        for lane in 0..2 {
            rig.apply(&Step::Push { lane, bytes: 20_000 });
        }
        rig.pass(50_000);
    }
    assert_eq!(rig.direction.room_bytes(0), 0);
    assert_eq!(rig.taken[1], 400_000);
}
