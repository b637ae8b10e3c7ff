use super::*;

#[test]
fn a_loop_that_settles_before_it_asks_is_one_worker() {
    let mut credit = Credit::new(0, 1, 1000, None);
    for turn in 0..100_u64 {
        let now_us = turn * 1_000_000;
        credit.started(now_us);
        credit.completed(now_us + 900_000, 900_000);
    }
    assert_eq!(credit.wanted(), 1, "a second of work hides any round trip");
}

#[test]
fn thirteen_workers_with_long_jobs_hold_thirteen_messages() {
    let mut credit = Credit::new(0, 13, 1000, None);
    credit.set_rtt(200);
    for round in 0..5_u64 {
        for _ in 0..13 {
            credit.started(round * 1_000_000);
        }
        for _ in 0..13 {
            credit.completed(round * 1_000_000 + 500_000, 500_000);
        }
        assert_eq!(credit.wanted(), 13, "the fourteenth would wait behind a busy worker");
    }
}

const UNLIMITED: Occupied =
    Occupied { workers: 0, busy: 0, limit: u32::MAX, limit_per_s: 0, turns: 0, stuck: false };

/// Told of so many workers, of whom `busy` are at work with messages of this consumer or another.
fn told(credit: &mut Credit, now_us: u64, workers: u32, busy: u32) {
    let turns = credit.told.map_or(0, |told| told.turns) + 1;
    credit.see(now_us, Occupied { workers, busy, turns, ..UNLIMITED });
}

#[test]
fn who_counts_the_workers_is_given_one_for_each_that_is_free_beside_what_is_parked() {
    let mut credit = Credit::new(0, 1, 1000, None);
    told(&mut credit, 0, 25, 0);
    assert_eq!(credit.wanted(), 25);
    for busy in 0..25 {
        told(&mut credit, 0, 25, busy);
        credit.started(0);
        assert_eq!(credit.wanted(), 25, "the one who took it is not free, though not counted yet");
    }
    // One is put off, and its worker free: one more message, and none for asking.
    told(&mut credit, 0, 25, 24);
    assert_eq!(credit.wanted(), 26);
    credit.starved(0);
    assert_eq!(credit.wanted(), 26);
    // It goes on.
    told(&mut credit, 0, 25, 25);
    assert_eq!(credit.wanted(), 25);
    // There are fewer workers: nothing for those who are to leave.
    told(&mut credit, 0, 5, 25);
    assert_eq!(credit.wanted(), 25);
    for busy in (5..25).rev() {
        told(&mut credit, 0, 5, busy);
        credit.completed(0, 1_000);
        assert_eq!(credit.wanted(), credit.held());
    }
}

#[test]
fn workers_that_are_busy_with_what_others_brought_are_not_free() {
    let mut credit = Credit::new(0, 1, 1000, None);
    told(&mut credit, 0, 25, 25);
    assert_eq!(credit.wanted(), 1, "0 would be without bound");
    credit.set_pauses(true);
    assert_eq!(credit.wanted(), 0);
    assert_eq!(credit.wanted_for_long(), 25);
    told(&mut credit, 0, 25, 20);
    credit.started(0);
    assert_eq!(credit.wanted(), 1 + 4);
}

#[test]
fn what_waits_behind_the_counted_goes_back_however_they_became_busy() {
    let mut credit = Credit::new(0, 1, 1000, None);
    told(&mut credit, 0, 2, 1);
    assert_eq!(credit.next_hand_back_us(0), None);
    let look_us = credit.next_hand_back_us(1).unwrap();
    assert!(!credit.hand_back(look_us, 1), "the other worker will take it");
    assert!(credit.next_hand_back_us(1).unwrap() > look_us);
    told(&mut credit, look_us, 2, 2);
    let due_us = credit.next_hand_back_us(1).unwrap();
    assert!(credit.hand_back(due_us, 1));
    assert_eq!(credit.next_hand_back_us(0), None);
    assert_eq!(credit.next_hand_back_us(1), Some(0), "it was on its way");
    assert!(credit.hand_back(due_us + 1, 1));
    told(&mut credit, due_us + 2, 2, 1);
    assert!(credit.next_hand_back_us(1).unwrap() > due_us, "the free one will take it");
}

#[test]
fn what_one_consumer_of_the_workers_found_the_others_know() {
    let (mut first, mut second) = (Credit::new(0, 1, 100, None), Credit::new(0, 1, 100, None));
    let busy = Occupied { workers: 2, busy: 2, turns: 7, ..UNLIMITED };
    first.see(0, busy);
    assert_eq!(first.stuck_turn(), None);
    assert!(first.hand_back(first.next_hand_back_us(1).unwrap(), 1));
    assert_eq!(first.stuck_turn(), Some(7));
    second.see(1_000_000, Occupied { stuck: true, ..busy });
    assert_eq!(second.next_hand_back_us(1), Some(0));
    assert!(second.hand_back(1_000_000, 1));
    second.see(1_000_001, Occupied { busy: 1, turns: 8, ..busy });
    assert_eq!(second.stuck_turn(), None);
    assert_eq!(second.wanted(), 1);
}

#[test]
fn looking_ahead_for_fast_work_ends_with_it() {
    let mut credit = Credit::new(0, 1, 1000, None);
    credit.set_rtt(100);
    let mut now_us = 0;
    while now_us < 200_000 {
        credit.delivered(now_us, credit.wanted());
        credit.started(now_us);
        credit.completed(now_us, 50);
        credit.starved(now_us);
        now_us += 300;
    }
    assert!(credit.wanted() > 50, "{}", credit.wanted());
    for _ in 0..32 {
        credit.started(now_us);
        now_us += 1_000_000;
        credit.completed(now_us, 1_000_000);
    }
    assert_eq!(credit.wanted(), 1);
}

#[test]
fn fast_work_over_a_long_line_looks_ahead() {
    let mut credit = Credit::new(0, 1, 1000, None);
    credit.set_rtt(10_000);
    credit.started(0);
    credit.completed(100, 100);
    assert!(credit.wanted() >= 100, "{}", credit.wanted());
}

/// With 1000 it would carry 30 000 messages a second.
#[test]
fn a_quick_consumer_33_ms_away_has_150_000_messages_a_second() {
    let mut credit = Credit::new(0, 1, CREDIT_MAX.into(), None);
    credit.set_rtt(33_000);
    for now_us in 0..64 {
        credit.started(now_us);
        credit.completed(now_us, 2);
    }
    assert!(credit.wanted() >= 33 * 150, "{}", credit.wanted());
}

#[test]
fn whoever_collects_a_batch_never_stands_still() {
    let mut credit = Credit::new(0, 1, 1000, None);
    let mut held = 0;
    while held < 700 {
        let ready = credit.wanted() - held;
        for _ in 0..ready {
            credit.started(0);
            held += 1;
        }
        let before = credit.wanted();
        credit.starved(0);
        assert!(credit.wanted() > before || held >= 700, "stuck at {before}");
    }
}

#[test]
fn workers_of_a_batch_are_forgotten_when_one_by_one_is_enough() {
    let mut credit = Credit::new(0, 2, 1000, None);
    for _ in 0..100 {
        credit.started(0);
        credit.starved(0);
    }
    assert!(credit.wanted() >= 100);
    for _ in 0..100 {
        credit.completed(500_000, 500_000);
    }
    assert!(credit.wanted() >= 100, "the next batch may come");
    let mut now_us = 500_000;
    for _ in 0..100 {
        credit.started(now_us);
        now_us += 200_000;
        credit.completed(now_us, 200_000);
    }
    assert_eq!(credit.wanted(), 2, "those it was told of");
}

#[test]
fn credit_stays_within_its_bound() {
    let mut credit = Credit::new(0, 10, 50, None);
    credit.set_rtt(1_000_000);
    for _ in 0..200 {
        credit.started(0);
        credit.starved(0);
    }
    assert_eq!(credit.wanted(), 50);
    assert_eq!(Credit::new(0, 1, 1000, Some(7)).wanted(), 7);
}

#[test]
fn a_worker_that_starves_while_the_credit_is_used_up_gets_more() {
    let mut credit = Credit::new(0, 1, 1000, None);
    credit.set_rtt(100);
    credit.started(0);
    credit.completed(50, 50);
    let before = credit.wanted();
    let mut now_us = 100;
    while now_us < 200_000 {
        credit.delivered(now_us, before);
        credit.starved(now_us);
        now_us += 300;
    }
    assert!(credit.wanted() > before);
}

/// 25 workers that are done at once would have hundreds taken ahead.
#[test]
fn no_more_is_held_than_may_begin_by_the_time_it_comes() {
    let mut credit = Credit::new(0, 1, 1000, None);
    credit.set_pauses(true);
    credit.set_rtt(1_000);
    told(&mut credit, 0, 25, 0);
    for _ in 0..32 {
        credit.started(0);
        credit.completed(0, 10);
    }
    told(&mut credit, 0, 25, 0);
    assert!(credit.wanted() > 500, "{}", credit.wanted());
    let limited = |turns, limit| Occupied { workers: 25, limit, turns, ..UNLIMITED };
    credit.see(0, limited(100, 30));
    assert_eq!(credit.wanted(), 25 + 6, "what is beside one for each who is free is rounded up");
    credit.see(0, limited(101, 3));
    assert_eq!(credit.wanted(), 3);
    credit.started(0);
    assert_eq!(credit.wanted(), 1 + 2);
    credit.see(0, Occupied { busy: 1, ..limited(102, 0) });
    assert_eq!(credit.wanted(), 1, "that in work");
    // Over a long line more may begin when it comes.
    credit.see(0, Occupied { busy: 1, limit_per_s: 4_000, ..limited(103, 0) });
    assert_eq!(credit.wanted(), 1 + 4);
}

#[test]
fn what_waits_and_may_not_begin_goes_back_though_workers_are_idle() {
    let mut credit = Credit::new(0, 1, 1000, None);
    let limited = |turns, limit| Occupied { workers: 2, limit, turns, ..UNLIMITED };
    credit.see(0, limited(1, 1));
    assert!(!credit.hand_back(credit.next_hand_back_us(1).unwrap(), 1), "it may begin");
    credit.see(0, limited(2, 0));
    assert!(credit.hand_back(credit.next_hand_back_us(1).unwrap(), 1));
}
