//! What happens in a history, as far as it is no consequence of the rest. Times are milliseconds.

use forebay_pipeline::Outcome;
use proptest::prelude::*;

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Settle(Outcome),
    /// Its value goes to the batcher.
    Batch,
    Fail,
    Panic,
    /// It never does.
    Hang,
}

/// A message, and what becomes of each attempt at it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) pause: u64,
    pub(crate) value: Value,
    pub(crate) attempts: Vec<Attempt>,
    /// What becomes of the later ones.
    pub(crate) at_last: Act,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) key: u8,
    pub(crate) bytes: usize,
    /// Its batch ends with it.
    pub(crate) last: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) work: u64,
    pub(crate) act: Act,
    /// It acknowledges before it has ended.
    pub(crate) early: bool,
}

/// How the calls of the batch handler end, one after the other; the later ones succeed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) work: u64,
    pub(crate) act: Act,
    /// So many of its messages are settled one by one before.
    pub(crate) settles: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// The connection is lost for so long.
    Cut(u64),
    Workers(usize),
    BatchWorkers(usize),
    Rate(Option<u64>),
    Credit(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing more comes.
    Closed,
    Drain {
        patience: u64,
    },
    Dropped,
    Broken,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Batcher {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) delay: u64,
    pub(crate) held_max: usize,
    pub(crate) workers: usize,
    pub(crate) keyed: bool,
    pub(crate) bisects: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workers: usize,
    pub(crate) buffer_max: usize,
    pub(crate) ordered: bool,
    pub(crate) credit: usize,
    /// How many, and the first pause.
    pub(crate) retries: Option<(u32, u64)>,
    pub(crate) timeout: Option<u64>,
    pub(crate) on_failure: Option<Outcome>,
    /// How long a dead letter takes, and every which of them is not sent.
    pub(crate) dead_letters: Option<(u64, usize)>,
    pub(crate) rate: Option<u64>,
    /// Failures, and pause.
    pub(crate) breaker: Option<(u32, u64)>,
    pub(crate) batcher: Batcher,
    /// From which pause on the source takes messages for later, how long that takes, and every which of them it does not take.
    pub(crate) ladder: Option<(u64, u64, usize)>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) calls: Vec<Call>,
    pub(crate) events: Vec<(u64, Event)>,
    pub(crate) ends_at: u64,
    pub(crate) end: End,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        6 => Just(Outcome::Ack),
        1 => Just(Outcome::Reject),
        1 => Just(Outcome::Requeue),
        2 => (0..200u64).prop_map(|ms| Outcome::Retry(std::time::Duration::from_millis(ms))),
        1 => Just(Outcome::DeadLetter),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => outcome().prop_map(Act::Settle),
        5 => Just(Act::Batch),
        4 => Just(Act::Fail),
        1 => Just(Act::Panic),
        1 => Just(Act::Hang),
    ]
}

/// One in eight takes long.
fn work() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 4 => 1..10u64, 1 => 50..500u64]
}

fn job() -> impl Strategy<Value = Job> {
    let key = prop_oneof![Just(0u8), 0..6u8];
    let attempt = (work(), act(), prop::bool::weighted(0.1));
    let attempt = attempt.prop_map(|(work, act, early)| Attempt { work, act, early });
    let value = (key, 0..40usize, prop::bool::weighted(0.1));
    let value = value.prop_map(|(key, bytes, last)| Value { key, bytes, last });
    let pause = prop_oneof![2 => Just(0u64), 1 => 1..30u64];
    (pause, value, prop::collection::vec(attempt, 1..4), any::<bool>()).prop_map(
        |(pause, value, attempts, batches)| {
            let at_last = if batches { Act::Batch } else { Act::Settle(Outcome::Ack) };
            Job { pause, value, attempts, at_last }
        },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let settles = prop_oneof![3 => Just(0), 1 => 1..4usize];
    (work(), act(), settles).prop_map(|(work, act, settles)| Call { work, act, settles })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..50u64).prop_map(Event::Cut),
        3 => (1..8usize).prop_map(Event::Workers),
        1 => (1..4usize).prop_map(Event::BatchWorkers),
        1 => prop::option::of(1..500u64).prop_map(Event::Rate),
        1 => (1..20usize).prop_map(Event::Credit),
    ]
}

fn batcher() -> impl Strategy<Value = Batcher> {
    let limits = (1..6usize, 20..200usize, prop_oneof![0..20u64, 100..300u64], 1..12usize);
    (limits, 1..4usize, any::<bool>(), any::<bool>()).prop_map(
        |((messages, bytes, delay, held_max), workers, keyed, bisects)| Batcher {
            messages,
            bytes,
            delay,
            held_max,
            workers,
            keyed,
            bisects,
        },
    )
}

fn on_failure() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Reject),
        Just(Outcome::Requeue),
        Just(Outcome::DeadLetter),
        Just(Outcome::Ack)
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => Just(End::Closed),
        3 => (0..1_000u64).prop_map(|patience| End::Drain { patience }),
        1 => Just(End::Dropped),
        1 => Just(End::Broken),
    ]
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let pool = (
        1..6usize,
        prop_oneof![1..5usize, Just(1_000)],
        any::<bool>(),
        prop_oneof![1..8usize, Just(10_000)],
    );
    let failing = (
        prop::option::of((0..4u32, 1..100u64)),
        prop::option::of(1..200u64),
        prop::option::of(on_failure()),
        prop::option::of((0..20u64, 1..4usize)),
    );
    let gates =
        (prop::option::weighted(0.2, 1..500u64), prop::option::weighted(0.2, (1..5u32, 0..300u64)));
    let other = (batcher(), prop::option::weighted(0.3, (1..150u64, 0..20u64, 1..5usize)));
    let scenes = (
        prop::collection::vec(job(), 0..40),
        prop::collection::vec(call(), 0..12),
        prop::collection::vec((0..400u64, event()), 0..6),
    );
    (pool, failing, gates, other, scenes, (0..600u64, end())).prop_map(
        |(
            (workers, buffer_max, ordered, credit),
            (retries, timeout, on_failure, dead_letters),
            (rate, breaker),
            (batcher, ladder),
            (jobs, calls, events),
            (ends_at, end),
        )| Plan {
            workers,
            buffer_max,
            ordered,
            credit,
            retries,
            timeout,
            on_failure,
            dead_letters,
            rate,
            breaker,
            batcher,
            ladder,
            jobs,
            calls,
            events,
            ends_at,
            end,
        },
    )
}
