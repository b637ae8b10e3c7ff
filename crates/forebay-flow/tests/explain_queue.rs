//! Queues whose set-up is bad on purpose, as a broker shows them, and what is named.

use forebay_flow::explain::queue::{ConsumerLook, GateLook, QueueCause, QueueLook};

const SECOND: u64 = 1_000_000;

/// Five seconds in which so many came, and so many left.
fn look(arrived: u64, left: u64, ready: u64, unacked: u64) -> QueueLook {
    let mut look = QueueLook::default();
    (look.looked_us, look.arrived, look.left) = (5 * SECOND, arrived, left);
    (look.ready, look.unacked) = (ready, unacked);
    look
}

/// With consumers: what each may hold, and holds.
fn with(mut look: QueueLook, consumers: &[(u64, u64)]) -> QueueLook {
    for (number, &(prefetch, unacked)) in consumers.iter().enumerate() {
        let mut consumer = ConsumerLook::default();
        consumer.name = format!("consumer {}", number + 1);
        (consumer.prefetch, consumer.unacked) = (prefetch, Some(unacked));
        look.consumers.push(consumer);
    }
    look
}

/// With a broker that counts: this gate for all of the time, another for a moment.
fn counted(mut look: QueueLook, gate: &str) -> QueueLook {
    let wait = |gate: &str, waited_us| GateLook { gate: gate.to_owned(), waited_us };
    look.waits = Some(vec![wait("credit", SECOND / 100), wait(gate, 5 * SECOND)]);
    look
}

fn name(look: &QueueLook) -> &'static str {
    look.cause().name()
}

#[test]
fn fourteen_bad_set_ups_are_named_from_outside() {
    // Nobody consumes.
    assert_eq!(name(&look(500, 0, 500, 0)), "no-consumer");
    // The handler hangs, with all that it may hold.
    assert_eq!(name(&with(look(500, 0, 500, 10), &[(10, 10)])), "stuck");
    // It never acknowledges, and may hold everything.
    assert_eq!(name(&with(look(500, 0, 0, 500), &[(0, 500)])), "stuck");
    // 25 jobs that one consumer holds, while two are idle: no prefetch at all, and one of 250.
    assert_eq!(name(&with(look(25, 1, 0, 24), &[(0, 24), (0, 0), (0, 0)])), "hoarded");
    assert_eq!(name(&with(look(25, 1, 0, 24), &[(250, 24), (250, 0)])), "hoarded");
    // Prefetch 1 over a link of 100 ms.
    assert_eq!(name(&with(look(500, 50, 9_000, 1), &[(1, 1)])), "credit-used");
    // Two workers for work that needs ten, on a broker that counts and on one that does not.
    let few = with(look(500, 100, 9_000, 2), &[(1, 1), (1, 1)]);
    assert_eq!(name(&few), "credit-used");
    assert_eq!(name(&counted(few, "credit")), "credit-used");
    // Acknowledgements behind publishes that are held, on one connection; here the work goes on, and here it does not.
    let mut shared = with(look(500, 100, 9_000, 11), &[(10, 10), (10, 1)]);
    shared.consumers[0].publishes_held_us = 4 * SECOND;
    assert_eq!(name(&counted(shared.clone(), "credit")), "shared-connection");
    let mut hangs = shared.clone();
    hangs.left = 0;
    assert_eq!(name(&hangs), "shared-connection");
    // It may take more, so that is not why.
    (shared.consumers[0].prefetch, shared.consumers[1].publishes_held_us) = (100, SECOND / 10);
    assert_eq!(name(&counted(shared, "credit")), "credit-used");
    // A consumer that does not read.
    let unread = with(look(500, 10, 9_000, 40), &[(0, 40)]);
    assert_eq!(name(&unread), "unread");
    assert_eq!(name(&counted(unread, "delivery")), "unread");
    // A backlog larger than memory.
    let long = with(look(500, 400, 9_000_000, 100), &[(1_000, 100)]);
    assert_eq!(name(&counted(long.clone(), "run")), "disk");
    assert_eq!(name(&counted(long.clone(), "room")), "memory");
    // A broker whose processor is at its end.
    assert_eq!(name(&long), "broker");
    // A disk that syncs for 300 ms: publishers wait, the queue is empty.
    let mut slow_disk = with(look(5, 5, 0, 0), &[(10, 0)]);
    slow_disk.publishers.push(GateLook { gate: "batch".into(), waited_us: 4 * SECOND });
    assert_eq!(slow_disk.cause(), QueueCause::Publishers { gate: "batch".into() });
}

#[test]
fn a_queue_that_is_well_is_not_blamed() {
    assert_eq!(name(&look(0, 0, 0, 0)), "nothing");
    assert_eq!(name(&with(look(500, 500, 0, 3), &[(10, 2), (10, 1)])), "nothing");
    // One at work, the other has nothing to do.
    assert_eq!(name(&with(look(5, 5, 0, 1), &[(10, 1), (10, 0)])), "nothing");
    // The same at a hundred messages a second, at a moment at which one has three and the other none.
    assert_eq!(name(&with(look(500, 500, 0, 3), &[(10, 3), (10, 0)])), "nothing");
    // A publisher that was held for a moment.
    let mut moment = with(look(500, 500, 0, 3), &[(10, 3)]);
    moment.publishers.push(GateLook { gate: "batch".into(), waited_us: SECOND / 10 });
    assert_eq!(name(&moment), "nothing");
}

#[test]
fn jobs_that_take_longer_than_the_look_are_hoarded_as_well() {
    // 25 of 20 s each, and two looks 5 s apart.
    let jobs = with(look(0, 0, 0, 25), &[(250, 25), (250, 0)]);
    assert_eq!(name(&jobs), "hoarded");
    // Others have as many, or nobody else is there.
    assert_eq!(name(&with(look(0, 0, 0, 50), &[(250, 25), (250, 25)])), "stuck");
    assert_eq!(name(&with(look(0, 0, 0, 25), &[(250, 25)])), "stuck");
    // Who is idle could have what waits, so that is another matter.
    assert_eq!(name(&with(look(0, 0, 9, 25), &[(250, 25), (250, 0)])), "stuck");
}

#[test]
fn who_holds_nothing_has_nothing_to_acknowledge_behind_publishes() {
    let mut hangs = with(look(500, 0, 500, 10), &[(0, 0), (10, 10)]);
    hangs.consumers[0].publishes_held_us = 4 * SECOND;
    assert_eq!(name(&hangs), "stuck");
    (hangs.consumers[0].unacked, hangs.unacked) = (Some(7), 17);
    assert_eq!(name(&hangs), "shared-connection", "without a prefetch all is all it may");
}

#[test]
fn times_follow_from_what_lies_there_and_what_leaves() {
    let look = with(look(500, 100, 9_000, 2), &[(1, 1), (1, 1)]);
    assert_eq!((look.waits_us(), look.held_us()), (Some(450 * SECOND), Some(SECOND / 10)));
    let QueueCause::CreditUsed { prefetch: 2, held_us: 100_000 } = look.cause() else {
        panic!("{:?}", look.cause())
    };
    assert!(look.cause().to_string().contains("all 2 messages that they may, each for 100.0 ms"));
    assert_eq!(self::look(5, 0, 9, 0).waits_us(), None);
}

#[test]
fn who_holds_what_is_not_guessed() {
    let mut look = with(look(25, 1, 0, 24), &[(250, 24), (250, 0)]);
    look.consumers.iter_mut().for_each(|consumer| consumer.unacked = None);
    assert_eq!(name(&look), "nothing");
}
