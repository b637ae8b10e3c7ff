//! Pipelines: outcomes, order, workers, batches, and where time goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay::pipeline::explain::Detour;
use forebay::pipeline::{
    Backoff, Batch, Batching, Item, Outcome, Pipeline, QueueSource, Queues, Running, ToBatch,
    source,
};
use forebay::{Message, Publisher, Received, Topology};
use forebay_wire::Value;
use tokio::sync::watch;

use super::{PATIENCE, Saw, confirmed, expect, ready, until_ready, with_queue};
use crate::engine::{Engine, Failure};

/// Pauses of this length are worth the way to the broker.
const LADDER_FROM: Duration = Duration::from_secs(1);
/// A rung of 2 s, and the rest held.
const LONG_PAUSE: Duration = Duration::from_millis(2_300);
const WORKERS: usize = 25;

/// What handlers noted, for those who wait for it.
struct Notes<T>(watch::Sender<Vec<T>>);

impl<T: Clone> Notes<T> {
    fn new() -> Arc<Notes<T>> {
        Arc::new(Notes(watch::Sender::new(Vec::new())))
    }

    fn add(&self, note: T) {
        self.0.send_modify(|notes| notes.push(note));
    }

    /// Waits until there are so many.
    async fn all(&self, count: usize) -> Result<Vec<T>, Failure> {
        Ok(self.0.subscribe().wait_for(|notes| notes.len() >= count).await?.clone())
    }
}

fn text(message: &Received) -> String {
    String::from_utf8_lossy(message.body()).into_owned()
}

async fn drained(running: Running) -> Result<forebay::pipeline::Report, Failure> {
    running.control().drain(PATIENCE);
    Ok(running.join().await?)
}

pub(super) async fn each_outcome_is_kept(engine: &Engine, _: &mut Saw) -> Result<(), Failure> {
    let queue = "decisions";
    let (connection, publisher) = with_queue(engine, queue).await?;
    let (notes, dead) = (Notes::new(), Notes::new());
    let (note, bury) = (notes.clone(), dead.clone());
    let handler = move |message: Item<Received>| {
        let what = text(&message);
        let outcome = match what.as_str() {
            "ack" => Outcome::Ack,
            "reject" => Outcome::Reject,
            "requeue" if !message.redelivered() => Outcome::Requeue,
            "retry" if message.attempt() < 3 => Outcome::Retry(Duration::from_millis(20)),
            "bury" => Outcome::DeadLetter,
            _ => Outcome::Ack,
        };
        note.add((what, message.attempt(), message.redelivered()));
        std::future::ready(outcome)
    };
    let running = Pipeline::from(connection.source(queue))
        .process(2, handler)
        .dead_letters(move |message, _| {
            bury.add(text(&message));
            std::future::ready(Ok::<(), Failure>(()))
        })
        .start();
    for what in ["ack", "reject", "requeue", "retry", "bury"] {
        confirmed(&publisher, what).await?;
    }
    let mut notes = notes.all(8).await?;
    dead.all(1).await?;
    let report = drained(running).await?;
    notes.sort();
    let once = |what: &str| (what.to_owned(), 1, false);
    let all = [
        once("ack"),
        once("bury"),
        once("reject"),
        once("requeue"),
        ("requeue".to_owned(), 1, true),
        once("retry"),
        ("retry".to_owned(), 2, false),
        ("retry".to_owned(), 3, false),
    ];
    expect(notes == all, || format!("it went like this: {notes:?}"))?;
    let counts = (report.acked, report.rejected, report.requeued, report.dead_lettered);
    expect(counts == (4, 1, 1, 1), || format!("{report:?}"))?;
    until_ready(&connection, queue, 0).await
}

pub(super) async fn attempts_outlive_the_pipeline(
    engine: &Engine,
    _: &mut Saw,
) -> Result<(), Failure> {
    let queue = "put off";
    let (connection, publisher) = with_queue(engine, queue).await?;
    let notes = Notes::new();
    let start = || {
        let note = notes.clone();
        let handler = move |message: Item<Received>| {
            note.add((message.attempt(), message.redelivered(), Instant::now()));
            let again = !message.redelivered() && message.attempt() == 1;
            std::future::ready(if again { Outcome::Retry(LONG_PAUSE) } else { Outcome::Ack })
        };
        let source = connection.source(queue).ladder_from(LADDER_FROM);
        Pipeline::from(source).process(2, handler).start()
    };
    let running = start();
    let sent = Message::from("job").message_id("seven").header("mine", Value::Void);
    confirmed(&publisher, sent).await?;
    notes.all(1).await?;
    while running.control().report().postponed == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Nothing to wait for: it is in the broker.
    running.control().drain(PATIENCE);
    let findings = running.control().findings();
    running.join().await?;
    let attempts = notes.all(1).await?;
    expect(attempts.len() == 1, || "it did not end before the pause".to_owned())?;
    expect(findings.is_empty(), || format!("{findings:?}"))?;

    let other = start();
    let attempts = notes.all(2).await?;
    let report = drained(other).await?;
    let [first, second] = attempts[..] else { return Err(format!("{attempts:?}").into()) };
    expect(second.0 == 2 && !second.1, || format!("{attempts:?}"))?;
    let pause = second.2 - first.2;
    expect(pause >= LONG_PAUSE, || format!("it came back after {pause:?}"))?;
    expect(report.settled() == 1, || format!("{report:?}"))?;
    until_ready(&connection, queue, 0).await?;
    Ok(())
}

/// What is in the way is a queue of another kind with the name of the rung.
pub(super) async fn what_cannot_be_put_off_is_held(
    engine: &Engine,
    _: &mut Saw,
) -> Result<(), Failure> {
    let queue = "held";
    let (connection, publisher) = with_queue(engine, queue).await?;
    let in_the_way = forebay::Queue::transient("held.retry.2s");
    connection.declare(Topology::new().queue(in_the_way)).await?;
    let notes = Notes::new();
    let note = notes.clone();
    let handler = move |message: Item<Received>| {
        note.add((message.attempt(), message.redelivered(), Instant::now()));
        let again = message.attempt() == 1;
        std::future::ready(if again { Outcome::Retry(LONG_PAUSE) } else { Outcome::Ack })
    };
    let source = connection.source(queue).ladder_from(LADDER_FROM);
    let running = Pipeline::from(source).process(2, handler).start();
    confirmed(&publisher, "job").await?;
    let attempts = notes.all(2).await?;
    let findings = running.control().findings();
    let report = drained(running).await?;
    let held = attempts[1].0 == 2 && !attempts[1].1;
    expect(held && attempts[1].2 - attempts[0].2 >= LONG_PAUSE, || format!("{attempts:?}"))?;
    expect((report.taken, report.postponed) == (1, 0), || format!("{report:?}"))?;
    let names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
    expect(names == ["retry-ladder-refused"], || format!("{findings:?}"))?;
    until_ready(&connection, queue, 0).await
}

/// Some fail, some are put off for longer than a rung is.
pub(super) async fn keys_stay_in_order(engine: &Engine, _: &mut Saw) -> Result<(), Failure> {
    const KEYS: usize = 5;
    const OF_EACH: usize = 20;
    let queue = "in order";
    let (connection, publisher) = with_queue(engine, queue).await?;
    for number in 0..OF_EACH {
        for key in 0..KEYS {
            confirmed(&publisher, format!("{key} {number}")).await?;
        }
    }
    let notes = Notes::new();
    let note = notes.clone();
    let key_of = |message: &Received| text(message).split(' ').next().unwrap_or("").to_owned();
    let handler = move |message: Item<Received>| {
        let (what, note) = (text(&message), note.clone());
        async move {
            tokio::task::yield_now().await;
            match (what.as_str(), message.attempt()) {
                ("0 3", 1) => return Ok(Outcome::Retry(LONG_PAUSE)),
                (what, 1) if what.ends_with('7') => return Err("not yet"),
                _ => {}
            }
            note.add(what);
            Ok(Outcome::Ack)
        }
    };
    let running = Pipeline::from(connection.source(queue).ladder_from(LADDER_FROM))
        .process(8, handler)
        .ordered_by(key_of)
        .retries(Backoff::new(3, Duration::from_millis(40), Duration::from_secs(1)))
        .start();
    let done = notes.all(KEYS * OF_EACH).await?;
    let report = drained(running).await?;
    expect(report.postponed == 0, || format!("{report:?}"))?;
    let mut of_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for what in done {
        let (key, number) = what.split_once(' ').ok_or("no key")?;
        of_key.entry(key.to_owned()).or_default().push(number.parse()?);
    }
    let in_order = of_key.values().all(|numbers| numbers.iter().copied().eq(0..OF_EACH));
    expect(in_order && of_key.len() == KEYS, || format!("{of_key:?}"))?;
    until_ready(&connection, queue, 0).await
}

pub(super) async fn long_jobs_start_at_once(engine: &Engine, _: &mut Saw) -> Result<(), Failure> {
    for (consumers, prefetch) in [(1, None), (8, None), (1, Some(5)), (1, Some(250))] {
        let queue = format!("long jobs of {consumers}, {prefetch:?}");
        let (connection, publisher) = with_queue(engine, &queue).await?;
        let inside = Notes::new();
        let go_on = Arc::new(tokio::sync::Semaphore::new(0));
        let (note, wait) = (inside.clone(), go_on.clone());
        let handler = move |message: Item<Received>| {
            let (note, wait) = (note.clone(), wait.clone());
            async move {
                note.add(text(&message));
                wait.acquire().await.map(tokio::sync::SemaphorePermit::forget)
            }
        };
        let source = |_| match prefetch {
            Some(prefetch) => QueueSource::from(connection.consumer(&queue).fixed_credit(prefetch)),
            None => connection.source(&queue),
        };
        let sources = source::merge((0..consumers).map(source));
        let running = Pipeline::from(sources).process(WORKERS, handler).start();
        for job in 0..2 * WORKERS {
            confirmed(&publisher, job.to_string()).await?;
        }
        // None of them ends before all of them have begun.
        inside.all(WORKERS).await?;
        go_on.add_permits(2 * WORKERS);
        let all = inside.all(2 * WORKERS).await?;
        let report = drained(running).await?;
        let jobs: BTreeSet<_> = all.iter().collect();
        expect(jobs.len() == 2 * WORKERS, || format!("{queue}: {all:?}"))?;
        expect(report.acked == 2 * WORKERS as u64, || format!("{report:?}"))?;
        until_ready(&connection, &queue, 0).await?;
    }
    Ok(())
}

pub(super) async fn failed_batches_are_split(engine: &Engine, _: &mut Saw) -> Result<(), Failure> {
    const MESSAGES: usize = 16;
    let queue = "batches";
    let (connection, publisher) = with_queue(engine, queue).await?;
    let written = Notes::new();
    let note = written.clone();
    let batching = Batching::new("rows", MESSAGES, Duration::from_millis(500)).bisect_failures();
    let running = Pipeline::from(connection.source(queue))
        .process(4, async |message: Item<Received>| ToBatch::new(text(&message)))
        .on_failure(Outcome::Reject)
        .batch_by(batching, move |batch: Item<Batch<String>>| {
            let bad = batch.iter().any(|row| row == "5");
            if !bad {
                batch.iter().for_each(|row| note.add(row.clone()));
            }
            std::future::ready(if bad { Err("a bad row") } else { Ok(()) })
        })
        .start();
    for number in 0..MESSAGES {
        confirmed(&publisher, number.to_string()).await?;
    }
    let mut rows = written.all(MESSAGES - 1).await?;
    let report = drained(running).await?;
    rows.sort();
    let mut good: Vec<_> = (0..MESSAGES).map(|number| number.to_string()).collect();
    good.retain(|row| row != "5");
    good.sort();
    expect(rows == good, || format!("written: {rows:?}"))?;
    expect((report.acked, report.rejected) == (15, 1), || format!("{report:?}"))?;
    until_ready(&connection, queue, 0).await
}

/// Some are done, some are given up while they are worked on, the rest was never taken.
pub(super) async fn a_drain_loses_nothing(engine: &Engine, _: &mut Saw) -> Result<(), Failure> {
    const MESSAGES: usize = 200;
    let queue = "drained";
    let (connection, publisher) = with_queue(engine, queue).await?;
    for number in 0..MESSAGES {
        confirmed(&publisher, number.to_string()).await?;
    }
    let begun = Notes::new();
    let note = begun.clone();
    let handler = move |message: Item<Received>| {
        let (number, note) = (text(&message), note.clone());
        async move {
            let stuck = number.parse::<usize>().is_ok_and(|number| number % 10 == 9);
            note.add(number);
            if stuck {
                std::future::pending::<()>().await;
            }
        }
    };
    let running = Pipeline::from(connection.source(queue)).process(5, handler).start();
    begun.all(50).await?; // by then all five are stuck
    running.control().drain(Duration::ZERO);
    let report = running.join().await?;
    let left = u32::try_from(MESSAGES)? - u32::try_from(report.acked)?;
    until_ready(&connection, queue, left).await?;
    expect(report.acked >= 40, || format!("{report:?}"))?;

    let rest = Arc::new(Mutex::new(BTreeSet::new()));
    let (note, told) = (rest.clone(), Notes::new());
    let tell = told.clone();
    let handler = move |message: Item<Received>| {
        note.lock().unwrap_or_else(PoisonError::into_inner).insert(text(&message));
        tell.add(());
        std::future::ready(())
    };
    let running = Pipeline::from(connection.source(queue)).process(5, handler).start();
    told.all(left as usize).await?;
    let report = drained(running).await?;
    let rest = rest.lock().unwrap_or_else(PoisonError::into_inner).len();
    expect(rest == left as usize && report.acked == u64::from(left), || {
        format!("{left} were left, and {rest} of them came again: {report:?}")
    })?;
    expect(ready(&connection, queue).await? == 0, || "some are left".to_owned())
}

pub(super) async fn it_tells_where_time_went(engine: &Engine, _: &mut Saw) -> Result<(), Failure> {
    const MESSAGES: u64 = 5;
    let queue = "explained";
    let (connection, _) = with_queue(engine, queue).await?;
    let route = forebay::Route::queue(queue);
    let publisher: Publisher = connection.publisher(route).explain(1).build().await?;
    let done = Notes::new();
    let note = done.clone();
    let handler = move |message: Item<Received>| {
        let again = message.attempt() < 3;
        if !again {
            note.add(());
        }
        std::future::ready(if again { Outcome::Retry(LONG_PAUSE) } else { Outcome::Ack })
    };
    let running = Pipeline::from(connection.source(queue).ladder_from(LADDER_FROM))
        .process(5, handler)
        .explain(1, Received::marks)
        .start();
    let begun = Instant::now();
    for number in 0..MESSAGES {
        confirmed(&publisher, number.to_string()).await?;
    }
    done.all(MESSAGES as usize).await?;
    let control = running.control();
    let report = drained(running).await?;
    let elapsed_us = u64::try_from(begun.elapsed().as_micros())?;
    let explanation = control.explanation().ok_or("it explains nothing")?;
    expect(explanation.messages() == MESSAGES, || format!("{explanation} of {report:?}"))?;
    let sum_us: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
    let total_us = explanation.total_us();
    expect(sum_us.abs_diff(total_us) <= total_us / 100, || format!("{sum_us} of {total_us} us"))?;
    expect(total_us <= MESSAGES * elapsed_us, || format!("{total_us} us in {elapsed_us}"))?;
    let pauses = explanation.shares().iter().find(|it| it.segment.detour == Some(Detour::Pauses));
    let paused_us = pauses.map_or(0, |share| share.sum_us);
    let two_pauses_us = 2 * MESSAGES * u64::try_from(LONG_PAUSE.as_micros())?;
    expect(paused_us >= two_pauses_us, || format!("{explanation}"))?;
    let cause = control.cause().ok_or("no cause")?;
    expect(cause.name() == "retry-pause", || format!("{cause}: {explanation}"))?;
    expect(report.postponed == 2 * MESSAGES, || format!("{report:?}"))
}
