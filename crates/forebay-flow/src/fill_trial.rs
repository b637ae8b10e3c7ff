//! How much of what publishers next door may have in flight brings anything: their broker tries it out, with all of them at once.
//!
//! ```text
//!   told       ────┐             ┌────────────┐             part * e^step
//!                  └─────────────┘            └─────         part / e^step
//!              60 ms   60 ms  60 ms   60 ms
//!   counted     ════    ════   ════    ════                 confirms and deliveries, from 20 ms on
//!              └── a pair ───┘└─── a pair ────┘             d = ln(with more / with less)
//!
//!   after the first dozen pairs each is followed by 480 ms of the part, unless they agree that it is wrong
//!   ln part += gain * (d / (2 step) - 0.06 - 0.1 * (ln part + 0.25))      after each pair
//!   step    0.15 at first, 0.08 in the end; gain 0.12 and 0.04
//! ```
//!
//! Next door time in flight does not say where a machine's knee is: twenty publishers of 200 B need 4 ms on a quick machine and 10 on a slow
//! one, one of 5 kB 1.4 and 4.7. What all have in common is that from there on more brings next to nothing. A publisher cannot see that: of several the one that has more in flight gains in any case, at the cost of
//! the others. Their broker can ask all of them for more and for less in turns, and count.
//!
//! That is a search by finite differences (Kiefer and Wolfowitz, Ann. Math. Statist. 23, 1952), with which PCC Vivace finds a
//! rate (Dong et al., NSDI 2018), for a slope and not for a maximum. What this takes to see little among a machine's moods:
//!
//! - **Pairs in changing order**: more, less, less, more. What grows by itself, over seconds, is no gain of either.
//! - **Deliveries count as well.** With more in flight publishers get more of the processor for a while, at the cost of
//!   consumers: confirms alone said that a third more brings a tenth and more, where windows set by hand gain a thirtieth by it.
//! - **Steps that become smaller.** Two halves of a second differ by 3 % on a quiet machine, so what one pair says is mostly chance. And what
//!   the larger part adds to the latency is for ever.
//! - **Rest.** Twenty publishers of 200 B that are told something else each 60 ms carry 4 to 6 % less than with a window of that size
//!   which stays.
//! - **A way back.** Where more brings about what it has to, nothing but chance moves the part. Then it stays about the first one.
//!
//! Where the log's disk is idle for half of the time windows are not what holds publishers: the trial rests, and begins anew.

use crate::commit_cost::CHANGE_SHARE;

/// A phase, and what of it is not counted, in microseconds.
const PHASE_US: u64 = 60_000;
const SETTLES_US: u64 = 20_000;
/// More and less are so far from the part, in its logarithm, at first and in the end.
const STEP_FIRST: f64 = 0.15;
const STEP_LEAST: f64 = 0.08;
/// More in flight is worth it if it carries more by this share of that.
const WORTH: f64 = 0.06;
/// One pair is believed up to here,
const MOST: f64 = 0.33;
/// and counts for so much at first and in the end.
const GAIN_FIRST: f64 = 0.12;
const GAIN_LEAST: f64 = 0.04;
/// So much more, or less, has more to bring for each unit of the part's logarithm above the first one, or below.
const RETURNS: f64 = 0.1;
/// From pair to pair.
const DECAYS: f64 = 0.95;
/// Below this, after a dozen pairs, the trial is no longer new, and each pair is followed by so many phases without one,
const NEW: f64 = 0.55;
const RESTS: u8 = 8;
/// unless what pairs say is on the average, with this weight for the last one, so far from what is wanted.
const LEANS: f64 = 0.15;
const LEAN_WEIGHT: f64 = 0.25;
/// The part without its steps: at first, at least and at most, in its logarithm.
const FIRST: f64 = -0.25;
const LEAST: f64 = -0.9;
const GREATEST: f64 = 0.5;
/// So much nearer the first it is after each phase of rest.
const FORGETS: f64 = 0.05;
/// Of more publishers than this each has a [visit](crate::crowd) in flight, and no part of a commit.
const FEW: u32 = 32;
/// The part of the time for which a disk has work where windows are what holds publishers.
const BUSY: f64 = 0.5;

/// The trial.
#[derive(Debug, Clone)]
pub struct FillTrial {
    /// 0: there are none, or too many.
    publishers: u32,
    /// The part's logarithm, without its steps.
    middle: f64,
    /// How new the trial is: 1 at first, and less with each pair.
    novelty: f64,
    /// What the last pairs said, on the average: above 0 for more.
    lean: f64,
    /// Of four; `None`: the disk rests, and so does the trial.
    phase: Option<u8>,
    /// So many phases more without a step.
    resting: u8,
    began_us: u64,
    counted: Option<Counted>,
    /// What was carried a microsecond in this pair, with less and with more.
    per_us: [f64; 2],
}

/// Since the phase has settled.
#[derive(Debug, Clone, Copy)]
struct Counted {
    from_us: u64,
    /// What was carried before.
    carried: u64,
    busy_us: u64,
}

impl Default for FillTrial {
    fn default() -> FillTrial {
        FillTrial {
            publishers: 0,
            middle: FIRST,
            novelty: 1.0,
            lean: 0.0,
            phase: None,
            resting: 0,
            began_us: 0,
            counted: None,
            per_us: [0.0; 2],
        }
    }
}

impl FillTrial {
    /// A commit is done that took so long. So many messages were carried until now, confirms and deliveries together, and so
    /// many connections publish; 0: windows are steered by something else.
    pub fn committed(&mut self, now_us: u64, took_us: u64, carried: u64, publishers: u32) {
        if !(1..=FEW).contains(&publishers) {
            *self = FillTrial::default();
            return;
        }
        if publishers.abs_diff(self.publishers) > self.publishers / CHANGE_SHARE {
            let middle = self.middle;
            *self = FillTrial { publishers, middle, began_us: now_us, ..FillTrial::default() };
        }
        let Some(counted) = &mut self.counted else {
            if now_us >= self.began_us + SETTLES_US {
                self.counted = Some(Counted { from_us: now_us, carried, busy_us: 0 });
            }
            return;
        };
        counted.busy_us += took_us;
        if now_us >= self.began_us + PHASE_US && now_us > counted.from_us {
            let us = (now_us - counted.from_us) as f64;
            let per_us = (carried - counted.carried) as f64 / us;
            let busy = counted.busy_us as f64 >= BUSY * us;
            self.end_phase(busy, per_us);
            (self.began_us, self.counted) = (now_us, None);
        }
    }

    fn end_phase(&mut self, busy: bool, per_us: f64) {
        let Some(phase) = self.phase.filter(|_| busy) else {
            if !busy {
                self.middle += FORGETS * (FIRST - self.middle);
                (self.novelty, self.lean, self.resting) = (1.0, 0.0, 0);
            }
            self.phase = busy.then_some(0);
            return;
        };
        if self.resting > 0 {
            self.resting -= 1;
            return;
        }
        self.per_us[usize::from(has_more(phase))] = per_us;
        if phase % 2 == 1 {
            self.end_pair();
        }
        self.phase = Some((phase + 1) % 4);
    }

    fn end_pair(&mut self) {
        let [less, more] = self.per_us;
        if less <= 0.0 || more <= 0.0 {
            return;
        }
        let worth = WORTH + RETURNS * (self.middle - FIRST);
        let gained = (more / less).ln() / (2.0 * self.step()) - worth;
        let gain = (GAIN_FIRST * self.novelty).max(GAIN_LEAST);
        let said = gained.clamp(-MOST, MOST);
        self.middle = (self.middle + gain * said).clamp(LEAST, GREATEST);
        self.novelty *= DECAYS;
        self.lean += LEAN_WEIGHT * (said - self.lean);
        let settled = self.novelty < NEW && self.lean.abs() < LEANS;
        self.resting = if settled { RESTS } else { 0 };
    }

    fn step(&self) -> f64 {
        (STEP_FIRST * self.novelty).max(STEP_LEAST)
    }

    /// The part of what they may have in flight that publishers are asked for now, in thousandths: 1000 where nothing is
    /// tried, else 349 to 1915.
    #[must_use]
    pub fn part_permille(&self) -> u32 {
        let step = match self.phase {
            _ if self.publishers == 0 => return 1_000,
            None => 0.0,
            Some(_) if self.resting > 0 => 0.0,
            Some(phase) if has_more(phase) => self.step(),
            Some(_) => -self.step(),
        };
        (1_000.0 * (self.middle + step).exp()) as u32
    }
}

/// More, less, less, more.
fn has_more(phase: u8) -> bool {
    matches!(phase, 0 | 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A broker whose commits take a millisecond and carry what a machine does with such a part in flight.
    struct Machine {
        trial: FillTrial,
        publishers: u32,
        now_us: u64,
        carried: f64,
        took_us: u64,
    }

    impl Machine {
        fn new(publishers: u32) -> Machine {
            let trial = FillTrial::default();
            Machine { trial, publishers, now_us: 0, carried: 0.0, took_us: 900 }
        }

        /// For so long; the parts that were told.
        fn run(&mut self, ms: u64, per_ms: impl Fn(f64, u64) -> f64) -> Vec<u32> {
            let mut told = Vec::new();
            for _ in 0..ms {
                self.now_us += 1_000;
                let part = f64::from(self.trial.part_permille()) / 1_000.0;
                self.carried += per_ms(part, self.now_us);
                let carried = self.carried as u64;
                self.trial.committed(self.now_us, self.took_us, carried, self.publishers);
                told.push(self.trial.part_permille());
            }
            told
        }

        fn part(&self) -> f64 {
            self.trial.middle.exp()
        }
    }

    /// It carries in proportion up to a knee.
    fn knee(at: f64) -> impl Fn(f64, u64) -> f64 {
        move |part, _| 1_000.0 * part.min(at) / at
    }

    #[test]
    fn a_quick_machine_is_asked_for_what_it_needs_and_a_slow_one_for_all_and_more() {
        for publishers in [1, 20] {
            for at in [0.5, 0.7, 1.0] {
                let mut machine = Machine::new(publishers);
                machine.run(150_000, knee(at));
                let part = machine.part() / at;
                assert!((0.85..=1.25).contains(&part), "{publishers} {at}: {part}");
            }
        }
        let mut machine = Machine::new(1);
        machine.run(10_000, |part, _| 1_000.0 * part);
        assert!(machine.part() > 1.2, "{}", machine.part());
    }

    #[test]
    fn what_would_cost_much_is_known_within_three_seconds_and_what_only_takes_longer_is_not() {
        for (carries_more, parts) in [(0.0, 0.6..0.75), (0.4, 1.1..1.45), (1.0, 1.3..1.66)] {
            let mut machine = Machine::new(20);
            machine.run(3_000, |part, _| 1_000.0 * part.powf(carries_more));
            assert!(parts.contains(&machine.part()), "{carries_more}: {}", machine.part());
        }
    }

    #[test]
    fn a_tenth_more_for_one_part_in_a_hundred_is_worth_it_and_for_a_third_of_that_is_not() {
        let parts = [0.1, 0.03].map(|slope| {
            let mut machine = Machine::new(20);
            machine.run(5_000, |part, _| 1_000.0 * part.powf(slope));
            machine.part()
        });
        assert!(parts[0] > FIRST.exp() && parts[1] < FIRST.exp(), "{parts:?}");
    }

    #[test]
    fn steps_become_smaller_and_large_again_for_others() {
        let mut machine = Machine::new(20);
        let mut step = |publishers, ms| {
            machine.publishers = publishers;
            let told = machine.run(ms, knee(0.8));
            let last = &told[told.len() - 240..];
            let (most, least) = (last.iter().max().unwrap(), last.iter().min().unwrap());
            f64::from(*most) / f64::from(*least)
        };
        let steps = [step(20, 400), step(20, 5_000), step(5, 400)];
        assert!(steps[0] > 1.3 && steps[1] < 1.2 && steps[2] > 1.3, "{steps:?}");
    }

    /// Each is another window for all publishers, which costs them something.
    #[test]
    fn steps_become_rare_unless_they_say_that_the_part_is_wrong() {
        let steps = |machine: &mut Machine, slope: f64| {
            machine.run(3_000, |part, _| 1_000.0 * part.powf(WORTH));
            let told = machine.run(6_000, |part, _| 1_000.0 * part.powf(slope));
            told.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 20).count()
        };
        // Three with each pair and its rest, which take 600 ms together; without rests one each 120 ms, after 2 s.
        let rare = steps(&mut Machine::new(20), WORTH);
        let wrong = steps(&mut Machine::new(20), 1.0);
        assert!((25..=33).contains(&rare) && wrong > 40, "{rare} {wrong}");
    }

    #[test]
    fn where_more_brings_as_much_as_it_has_to_the_part_comes_back_to_the_first_one() {
        let mut machine = Machine::new(20);
        machine.run(3_000, |part, _| 1_000.0 * part);
        assert!(machine.part() > 1.3, "{}", machine.part());
        machine.run(600_000, |part, _| 1_000.0 * part.powf(WORTH));
        assert!((machine.part() / FIRST.exp() - 1.0).abs() < 0.15, "{}", machine.part());
    }

    /// Halves of a second that differ by 8 %, by chance, for a minute.
    #[test]
    fn chance_moves_the_part_by_a_quarter_or_so() {
        let mut random = 1_u64;
        let mut machine = Machine::new(1);
        for _ in 0..1_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let chance = 1.0 + 0.08 * ((random >> 40) as f64 / f64::from(1 << 24) - 0.5);
            machine.run(60, |part, _| 1_000.0 * chance * part.powf(WORTH));
            let moved = machine.part() / FIRST.exp();
            assert!((0.75..=1.3).contains(&moved), "{moved}");
        }
    }

    #[test]
    fn what_grows_by_itself_is_no_gain() {
        let [still, growing, waning] = [0.0, 1.0, -1.0].map(|a_second: f64| {
            let mut machine = Machine::new(20);
            machine.run(2_000, |part, now_us| {
                1e4 * part.powf(0.1) * (a_second * now_us as f64 / 1e6).exp()
            });
            machine.part()
        });
        assert!((growing / still - 1.0).abs() < 0.05, "{growing} {still}");
        assert!((waning / still - 1.0).abs() < 0.05, "{waning} {still}");
    }

    /// What is in flight from the phase before is confirmed in this one.
    #[test]
    fn the_first_milliseconds_of_a_phase_do_not_count() {
        let mut machine = Machine::new(20);
        let mut since_us = 0;
        let mut before = 0;
        for _ in 0..3_000 {
            let told = machine.trial.part_permille();
            if told != before {
                (since_us, before) = (machine.now_us, told);
            }
            let burst = if told > 700 { 5.0 } else { 0.0 };
            machine.run(
                1,
                |_, now_us| {
                    if now_us < since_us + 15_000 { 1_000.0 * burst } else { 1_000.0 }
                },
            );
        }
        assert!(machine.part() < FIRST.exp(), "{}", machine.part());
    }

    #[test]
    fn a_disk_that_has_little_to_do_is_left_in_peace_and_what_was_found_is_forgotten() {
        let mut machine = Machine::new(3);
        machine.run(100_000, knee(0.5));
        assert!(machine.part() < 0.65);
        machine.took_us = 400;
        machine.run(200, knee(0.5));
        let told = machine.run(10_000, knee(0.5));
        let steps = told.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 20).count();
        assert_eq!(steps, 0, "each would be a frame to each publisher");
        assert!((machine.part() / FIRST.exp() - 1.0).abs() < 0.01, "{}", machine.part());
        machine.took_us = 900;
        machine.run(100_000, knee(0.5));
        assert!(machine.part() < 0.65, "and found again");
    }

    #[test]
    fn of_many_and_where_something_else_steers_nothing_is_asked_for() {
        let mut machine = Machine::new(33);
        assert!(machine.run(1_000, knee(0.5)).iter().all(|&part| part == 1_000));
        machine.publishers = 32;
        assert!(machine.run(1_000, knee(0.5)).iter().any(|&part| part < 700));
        machine.publishers = 0;
        assert!(machine.run(10, knee(0.5)).iter().all(|&part| part == 1_000));
    }

    #[test]
    fn other_publishers_are_a_new_trial_from_the_part_that_was_found() {
        let mut machine = Machine::new(20);
        machine.run(8_000, knee(0.5));
        let (part, novelty) = (machine.part(), machine.trial.novelty);
        machine.publishers = 22;
        machine.run(1, knee(0.5));
        assert!((machine.trial.novelty - novelty).abs() < 1e-9, "nearly as many");
        machine.publishers = 10;
        machine.run(1, knee(0.5));
        assert!(machine.trial.novelty > novelty && (machine.part() - part).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn whatever_is_counted_the_part_stays_within_its_bounds(
            commits in prop::collection::vec((0..100_000u64, 0..100_000u64, 0..1_000_000u64, 0..40u32), 1..400),
        ) {
            let (mut trial, mut now_us, mut carried) = (FillTrial::default(), 0, 0);
            for (passes_us, took_us, more, publishers) in commits {
                now_us += passes_us;
                carried += more;
                trial.committed(now_us, took_us, carried, publishers);
                prop_assert!((349..=1_915).contains(&trial.part_permille()));
            }
        }
    }
}
