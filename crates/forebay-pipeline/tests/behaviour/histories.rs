//! Whatever happens, in virtual time: handlers that fail, panic, hang and take their time, connections that are lost, pools
//! that grow and shrink, ends of all kinds. What is promised holds in each of these histories.

mod plan;
mod world;

use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::panic::{catch_unwind, resume_unwind};
use std::time::Duration;

use forebay_pipeline::{
    Backoff, Batch, Batching, Breaker, Handled, Item, Outcome, Pipeline, Step, Verdict,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::time::{sleep_until, timeout};

use crate::virtual_time::in_virtual_time;
use plan::{Act, End, Event, Plan, plan};
use world::{Message, Queue, Shared, pause};

/// Histories that are tried for one that is simpler.
const SIMPLER_MAX: usize = 20_000;

/// What a handler returns.
struct Done {
    act: Act,
    message: Message,
}

impl Handled for Done {
    type Value = Message;

    fn handled(self) -> Result<Step<Message>, String> {
        match self.act {
            Act::Settle(outcome) => Ok(Step::Settle(outcome)),
            Act::Batch => Ok(Step::Batch { batcher: None, value: self.message }),
            Act::Fail | Act::Panic | Act::Hang => Err("it failed".to_owned()),
        }
    }
}

async fn work(world: Shared, item: Item<Message>) -> Done {
    let message = *item;
    let (attempt, mut exit) = world.begins(message, item.attempt());
    if attempt.early {
        item.ack_now();
    }
    pause(attempt.work).await;
    if attempt.act == Act::Hang {
        pending::<()>().await;
    }
    exit.with(attempt.act);
    if attempt.act == Act::Panic {
        resume_unwind(Box::new("it panicked"));
    }
    Done { act: attempt.act, message }
}

async fn work_on_batch(
    world: Shared,
    batch: Item<Batch<Message>>,
) -> Result<Outcome, &'static str> {
    let (call, mut exit) = world.batch_begins(&batch, batch.attempt());
    pause(call.work).await;
    for index in 0..call.settles.min(batch.len()) {
        let verdict = [Verdict::Ack, Verdict::Reject, Verdict::Requeue][index % 3];
        exit.settles(batch[index].tag, Some(verdict));
        batch.settle(index, verdict);
        exit.settles(batch[index].tag, None);
    }
    if call.act == Act::Hang {
        pending::<()>().await;
    }
    exit.with(call.act);
    match call.act {
        Act::Settle(outcome) => Ok(outcome),
        Act::Batch => Ok(Outcome::Ack),
        Act::Panic => resume_unwind(Box::new("it panicked")),
        Act::Fail | Act::Hang => Err("it failed"),
    }
}

/// What happens from outside.
enum Cue {
    Publish(usize),
    Event(Event),
    Connect,
}

/// Lives a history, and tells what is wrong with it.
async fn happens(plan: Plan) -> Option<String> {
    let ms = Duration::from_millis;
    let world = Shared::new(plan.clone());
    let (handler, batch_handler) = (world.clone(), world.clone());
    let mut process = Pipeline::from(Queue(world.clone()))
        .process(plan.workers, move |item| work(handler.clone(), item))
        .buffer_max(plan.buffer_max);
    if plan.ordered {
        process = process.ordered_by(|message| message.value.key);
    }
    if let Some((retries, first)) = plan.retries {
        process = process.retries(Backoff::new(retries, ms(first), ms(first * 4)));
    }
    if let Some(limit) = plan.timeout {
        process = process.timeout(ms(limit));
    }
    if let Some(outcome) = plan.on_failure {
        process = process.on_failure(outcome);
    }
    if plan.dead_letters.is_some() {
        let world = world.clone();
        process = process.dead_letters(move |item, _| world.clone().bury(*item));
    }
    if let Some(per_s) = plan.rate {
        process = process.rate_limit(per_s);
    }
    if let Some((after, pause)) = plan.breaker {
        process = process.breaker(Breaker::new(after, ms(pause), ms(pause * 4)));
    }
    let batcher = plan.batcher;
    let mut batching = Batching::new("batches", batcher.messages, ms(batcher.delay))
        .concurrency(batcher.workers)
        .bytes(batcher.bytes, |message: &Message| message.value.bytes)
        .held_max(batcher.held_max)
        .ends_with(|message| message.value.last);
    if batcher.keyed {
        batching = batching.by_key(|message| message.value.key);
    }
    if batcher.bisects {
        batching = batching.bisect_failures();
    }
    let batched =
        process.batch_by(batching, move |batch| work_on_batch(batch_handler.clone(), batch));
    let running = batched.start();
    let (control, start) = (running.control(), tokio::time::Instant::now());

    let mut cues = Vec::new();
    let mut at = 0;
    for (number, job) in plan.jobs.iter().enumerate() {
        at += job.pause;
        cues.push((at, Cue::Publish(number)));
    }
    for (at, event) in &plan.events {
        cues.push((*at, Cue::Event(*event)));
        if let Event::Cut(down) = event {
            cues.push((at + down, Cue::Connect));
        }
    }
    cues.sort_by_key(|(at, _)| *at);
    let last = cues.last().map_or(0, |(at, _)| *at);
    let ends_at = if plan.end == End::Closed { last.max(plan.ends_at) } else { plan.ends_at };
    for (at, cue) in cues.into_iter().take_while(|(at, _)| *at <= ends_at) {
        sleep_until(start + ms(at)).await;
        match cue {
            Cue::Publish(number) => world.publish(number),
            Cue::Connect => world.connect(),
            Cue::Event(Event::Cut(_)) => world.cut(),
            Cue::Event(Event::Credit(credit)) => world.set_credit(credit),
            Cue::Event(Event::Workers(workers)) => {
                world.enter().resize(workers);
                control.set_concurrency(workers);
            }
            Cue::Event(Event::BatchWorkers(workers)) => {
                world.enter().resize_batches(workers);
                assert!(control.set_batch_concurrency("batches", workers));
            }
            Cue::Event(Event::Rate(per_s)) => {
                world.enter().set_rate(per_s);
                control.set_rate(per_s);
            }
        }
    }
    sleep_until(start + ms(ends_at)).await;
    world.connect();
    let now = world.enter().now();
    match plan.end {
        End::Closed | End::Broken => world.close(plan.end == End::Broken),
        End::Drain { patience } => {
            world.enter().deadline = Some(now + patience);
            control.drain(ms(patience));
        }
        End::Dropped => {
            world.enter().deadline = Some(now);
            drop(running);
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            return world.ends(control.report());
        }
    }
    let mut join = Box::pin(running.join());
    let joined = timeout(Duration::from_secs(3_600), join.as_mut()).await;
    let now = world.enter().now();
    if joined.is_err() && world.enter().deadline.is_none() {
        // Some handler hangs, and nobody minds.
        world.enter().deadline = Some(now);
        drop(join);
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    } else if !matches!((&joined, plan.end), (Ok(Err(_)), End::Broken) | (Ok(Ok(_)), _)) {
        world.enter().fault(&format!("it ended with {joined:?}"));
    }
    world.ends(control.report())
}

/// What is told of a history that breaks a promise.
fn told(plan: &Plan) -> Option<String> {
    let live = || in_virtual_time(happens(plan.clone()));
    catch_unwind(live).unwrap_or_else(|_| Some("it panicked".to_owned()))
}

/// The history of a seed, and how it becomes simpler.
fn history(seed: u64) -> impl ValueTree<Value = Plan> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    plan().new_tree(&mut TestRunner::new_with_rng(Config::default(), rng)).unwrap()
}

/// The simplest history that is found from one that breaks a promise, and what is told of it.
fn simplest(mut history: impl ValueTree<Value = Plan>, mut what: String) -> (Plan, String) {
    let mut plan = history.current();
    let mut changes = history.simplify();
    for _ in 0..SIMPLER_MAX {
        if !changes {
            break;
        }
        let simpler = history.current();
        changes = match told(&simpler) {
            Some(told) => {
                (plan, what) = (simpler, told);
                history.simplify()
            }
            None => history.complicate(),
        };
    }
    (plan, what)
}

/// `FOREBAY_HISTORIES` of them from seed `FOREBAY_HISTORY` on; the same ones, and some from `FOREBAY_SEED` or any seed, unless set.
#[test]
fn what_is_promised_holds_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let first = number("FOREBAY_HISTORY");
    let fixed = if first.is_some() { 0 } else { 500 };
    let fresh = first.or_else(|| number("FOREBAY_SEED"));
    let fresh = fresh.unwrap_or_else(|| RandomState::new().hash_one(0));
    let count = number("FOREBAY_HISTORIES").unwrap_or(100);
    for seed in (0..fixed).chain((0..count).map(|place| fresh.wrapping_add(place))) {
        let history = history(seed);
        if let Some(what) = told(&history.current()) {
            let (plan, what) = simplest(history, what);
            panic!("{what}\n{plan:#?}\nFOREBAY_HISTORY={seed} FOREBAY_HISTORIES=1");
        }
    }
}
