//! A source that takes messages for later, in virtual time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::explain::{Detour, Mark, Marks};
use forebay_pipeline::source::{Later, Leaving, Past, Taken};
use forebay_pipeline::{
    Backoff, Finding, Item, Outcome, Pipeline, Receipt, Running, Source, Verdict,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// What a source holds, as a broker would.
#[derive(Default)]
struct Inside {
    waiting: VecDeque<Letter>,
    waker: Option<Waker>,
    settled: Vec<(&'static str, Verdict)>,
    later: Vec<Later>,
    /// What it says instead of taking one.
    refusal: Option<Finding>,
    ended: bool,
}

#[derive(Clone)]
struct Letter {
    name: &'static str,
    attempts: u32,
    given_back: bool,
    due: Instant,
    marks: Marks,
}

impl Letter {
    fn tried(name: &'static str, attempts: u32) -> Letter {
        let (due, marks) = (Instant::now(), Marks::new());
        Letter { name, attempts, given_back: false, due, marks }
    }
}

#[derive(Clone, Default)]
struct Office {
    inside: Arc<Mutex<Inside>>,
    news: Arc<Notify>,
}

struct Settles(Office, &'static str);

impl Office {
    fn post(&self, names: &[&'static str]) {
        for name in names {
            self.put(Letter::tried(name, 0));
        }
    }

    fn put(&self, letter: Letter) {
        let mut inside = self.inside.lock().unwrap();
        inside.waiting.push_back(letter);
        inside.waker.take().into_iter().for_each(Waker::wake);
    }

    async fn settled(&self, count: usize) -> Vec<(&'static str, Verdict)> {
        loop {
            let news = self.news.notified();
            let settled = self.inside.lock().unwrap().settled.clone();
            if settled.len() >= count {
                return settled;
            }
            news.await;
        }
    }
}

impl Source for Office {
    type Value = Letter;
    type Receipt = Settles;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        let mut inside = self.inside.lock().unwrap();
        match inside.waiting.pop_front() {
            Some(letter) => {
                let receipt = Settles(self.clone(), letter.name);
                Poll::Ready(Ok(Some((letter, receipt))))
            }
            None if inside.ended => Poll::Ready(Ok(None)),
            None => {
                inside.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn past(letter: &Letter, _: &Settles) -> Past {
        let rest = letter.due.saturating_duration_since(Instant::now());
        let rest = Some(rest).filter(|rest| !rest.is_zero());
        Past { attempts: letter.attempts, given_back: letter.given_back, rest }
    }

    /// Pauses of 10 s and more; it takes 1 s to say so, and gives the message out 4 s early.
    fn later(letter: &Letter, receipt: &Settles, later: Later) -> Option<Leaving> {
        if later.pause < 10 * SECOND {
            return None;
        }
        let (office, due) = (receipt.0.clone(), Instant::now() + later.pause);
        let marks = later.marks.unwrap_or_default();
        let attempts = later.attempts;
        let letter = Letter { attempts, given_back: false, due, marks, ..*letter };
        Some(Box::pin(async move {
            sleep(SECOND).await;
            let refusal = office.inside.lock().unwrap().refusal.clone();
            if let Some(finding) = refusal {
                return Err(finding);
            }
            office.inside.lock().unwrap().later.push(later);
            tokio::spawn(async move {
                tokio::time::sleep_until(due - 4 * SECOND).await;
                office.put(letter);
            });
            Ok(())
        }))
    }
}

impl Receipt for Settles {
    fn settle(self, verdict: Verdict) {
        self.0.inside.lock().unwrap().settled.push((self.1, verdict));
        self.0.news.notify_one();
    }
}

/// Name, attempt, and when it began, in seconds.
type Begun = Arc<Mutex<Vec<(&'static str, u32, u64)>>>;

/// Succeeds at the third attempt; when which attempt began is noted.
fn third_time(office: &Office, pause: Duration) -> (Running, Begun) {
    let begun = Begun::default();
    let (note, start) = (begun.clone(), Instant::now());
    let handler = move |letter: Item<Letter>| {
        let at_s = start.elapsed().as_secs();
        note.lock().unwrap().push((letter.name, letter.attempt(), at_s));
        let again = letter.attempt() < 3;
        std::future::ready(if again { Outcome::Retry(pause) } else { Outcome::Ack })
    };
    (Pipeline::from(office.clone()).process(1, handler).start(), begun)
}

#[test]
fn a_message_that_its_source_takes_for_later_counts_its_attempts_and_is_not_early() {
    in_virtual_time(async {
        let office = Office::default();
        office.post(&["a"]);
        let (running, begun) = third_time(&office, 20 * SECOND);
        office.settled(3).await;
        assert_eq!(*begun.lock().unwrap(), [("a", 1, 0), ("a", 2, 20), ("a", 3, 40)]);
        let report = running.control().report();
        assert_eq!((report.taken, report.acked, report.postponed), (3, 3, 2));
        assert_eq!(report.retried, 2, "that it came early is no retry");
        assert_eq!(running.control().findings(), []);
    });
}

#[test]
fn a_message_that_comes_before_its_time_takes_nothing_of_the_rate() {
    for workers in [1, 2] {
        in_virtual_time(async {
            let office = Office::default();
            let due = Instant::now() + 3 * SECOND;
            office.put(Letter { due, ..Letter::tried("early", 1) });
            office.post(&["a", "b", "c"]);
            let begun = Begun::default();
            let (note, start) = (begun.clone(), Instant::now());
            let handler = move |letter: Item<Letter>| {
                let at_s = start.elapsed().as_secs();
                note.lock().unwrap().push((letter.name, letter.attempt(), at_s));
                std::future::ready(())
            };
            let pipeline = Pipeline::from(office.clone()).process(workers, handler);
            let _running = pipeline.rate_limit(1).start();
            office.settled(4).await;
            let begun = begun.lock().unwrap().clone();
            assert_eq!(begun, [("a", 1, 0), ("b", 1, 1), ("c", 1, 2), ("early", 2, 3)]);
        });
    }
}

/// Another pipeline goes on with them.
#[test]
fn a_pipeline_whose_messages_all_wait_elsewhere_drains_at_once() {
    in_virtual_time(async {
        let office = Office::default();
        office.post(&["a", "b"]);
        let (running, _) = third_time(&office, 60 * SECOND);
        office.settled(1).await;
        let begun = Instant::now();
        running.control().drain(3_600 * SECOND);
        assert_eq!(running.join().await.unwrap().postponed, 2);
        assert!(begun.elapsed() <= SECOND, "{:?}", begun.elapsed());
        let (_running, begun) = third_time(&office, 60 * SECOND);
        office.settled(6).await;
        let attempts: Vec<u32> =
            begun.lock().unwrap().iter().map(|(_, attempt, _)| *attempt).collect();
        assert_eq!(attempts, [2, 2, 3, 3]);
    });
}

#[test]
fn what_its_source_does_not_take_is_held_and_said_once() {
    in_virtual_time(async {
        let office = Office::default();
        let refusal = Finding { name: "no-office", says: "it is closed".to_owned() };
        office.inside.lock().unwrap().refusal = Some(refusal.clone());
        office.post(&["a", "b"]);
        let (running, begun) = third_time(&office, 20 * SECOND);
        let settled = office.settled(2).await;
        assert_eq!(settled, [("a", Verdict::Ack), ("b", Verdict::Ack)]);
        assert_eq!(begun.lock().unwrap()[2..4], [("a", 2, 20), ("b", 2, 20)]);
        let report = running.control().report();
        assert_eq!((report.taken, report.acked, report.postponed), (2, 2, 0));
        assert_eq!(running.control().findings(), [refusal]);
    });
}

/// Or a message that is requeued after its last attempt would come again and again, without a pause.
#[test]
fn attempts_count_on_where_a_message_was_given_back_until_they_are_used_up() {
    in_virtual_time(async {
        let office = Office::default();
        for (name, attempts, given_back) in
            [("on", 2, true), ("last", 3, false), ("anew", 3, true), ("new", 0, true)]
        {
            office.put(Letter { given_back, ..Letter::tried(name, attempts) });
        }
        let begun = Arc::new(Mutex::new(Vec::new()));
        let note = begun.clone();
        let handler = move |letter: Item<Letter>| {
            note.lock().unwrap().push((letter.name, letter.attempt()));
            std::future::ready(())
        };
        let backoff = Backoff::new(3, 20 * SECOND, 60 * SECOND);
        let _running = Pipeline::from(office.clone()).process(1, handler).retries(backoff).start();
        office.settled(4).await;
        assert_eq!(*begun.lock().unwrap(), [("on", 3), ("last", 4), ("anew", 1), ("new", 1)]);
    });
}

#[test]
fn where_keys_are_in_order_messages_are_held() {
    in_virtual_time(async {
        let office = Office::default();
        office.post(&["a", "a", "b"]);
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = order.clone();
        let handler = move |letter: Item<Letter>| {
            note.lock().unwrap().push((letter.name, letter.attempt()));
            let again = letter.name == "a" && letter.attempt() < 2;
            std::future::ready(if again { Outcome::Retry(20 * SECOND) } else { Outcome::Ack })
        };
        let running = Pipeline::from(office.clone()).process(2, handler).ordered_by(|it| it.name);
        let running = running.start();
        office.settled(3).await;
        assert_eq!(*order.lock().unwrap(), [("a", 1), ("b", 1), ("a", 2), ("a", 1), ("a", 2)]);
        assert_eq!(running.control().report().postponed, 0);
    });
}

#[test]
fn where_nothing_more_may_wait_the_worker_sees_it_off() {
    in_virtual_time(async {
        let office = Office::default();
        office.post(&["a", "b", "c"]);
        let handler = |letter: Item<Letter>| {
            let again = letter.attempt() < 2;
            std::future::ready(if again { Outcome::Retry(20 * SECOND) } else { Outcome::Ack })
        };
        let running = Pipeline::from(office.clone()).process(3, handler).buffer_max(1).start();
        office.settled(6).await;
        let report = running.control().report();
        assert_eq!((report.postponed, report.acked), (3, 6));
    });
}

#[test]
fn a_pipeline_that_is_dropped_gives_back_what_has_not_left() {
    in_virtual_time(async {
        let office = Office::default();
        office.post(&["a"]);
        let (running, _) = third_time(&office, 20 * SECOND);
        let control = running.control();
        while control.report().retried == 0 {
            tokio::task::yield_now().await;
        }
        drop(running);
        while Arc::strong_count(&office.inside) > 1 {
            tokio::task::yield_now().await; // the receipt is dropped, unsettled
        }
        assert_eq!(office.settled(0).await, []);
        assert_eq!(control.report().postponed, 0);
    });
}

/// As if it had never left.
#[test]
fn the_time_elsewhere_is_a_pause_before_a_retry() {
    in_virtual_time(async {
        let office = Office::default();
        office.post(&["a"]);
        let posted = Instant::now();
        // The system's clock stands still while the other jumps.
        let marks_of = move |letter: &Letter| {
            let mut marks = letter.marks;
            if marks.at_us(Mark::Delivered).is_some() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                let first = now - posted.elapsed();
                marks.passed(Mark::Delivered, first.as_micros() as u64);
            }
            marks
        };
        let handler = async |letter: Item<Letter>| {
            sleep(2 * SECOND).await;
            if letter.attempt() < 3 { Err("not yet") } else { Ok(()) }
        };
        let running = Pipeline::from(office.clone())
            .process(1, handler)
            .retries(Backoff::new(5, 60 * SECOND, 60 * SECOND))
            .explain(1, marks_of)
            .start();
        office.settled(3).await;
        let control = running.control();
        let explanation = control.explanation().unwrap();
        assert_eq!(explanation.messages(), 1, "one way, told at its end");
        let sum_s = |detour: Option<Detour>, to| {
            let shares = explanation.shares();
            let share = shares.iter().find(|it| it.segment.detour == detour && it.segment.to == to);
            share.map_or(0, |share| share.sum_us / 1_000_000)
        };
        assert_eq!(sum_s(Some(Detour::Attempts), Mark::Taken), 4, "{explanation}");
        let pauses_s = sum_s(Some(Detour::Pauses), Mark::Taken);
        assert!((59..=120).contains(&pauses_s), "{explanation}");
        assert_eq!(sum_s(None, Mark::Handled), 2, "{explanation}");
        assert_eq!(sum_s(None, Mark::Taken), 0, "{explanation}");
        assert_eq!(control.cause().unwrap().name(), "retry-pause");
    });
}
