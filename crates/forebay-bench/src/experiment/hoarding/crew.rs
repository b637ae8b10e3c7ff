//! Consumers and their workers, and what they tell of each job.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use forebay_client::{Connection, Consumer, Delivery, Occupancy, Outcome, Publisher, Route};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::idle::Span;
use crate::experiment::findings::{Drawn, Job};
use crate::experiment::{Case, PATIENCE, Place, told};

pub(in crate::experiment) const QUEUE: &str = "forebay-hoarding";
/// Ends that nobody has looked at yet; workers wait when they are so many.
const ENDS_MAX: usize = 1_000;

/// Deliveries that a consumer may hold.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Held {
    /// What its workers can take.
    Tuned,
    /// Set by hand, and corrected as a pipeline does it.
    Fixed(u16),
    /// Set by hand.
    Kept(u16),
}

impl Held {
    /// Whether no arrival need wait for a worker of `processes`, on a broker that changes a `live` credit or on others: a prefetch
    /// that stays what it is hoards for one process what another one could do.
    pub(super) fn suffices(self, processes: usize, live: bool) -> bool {
        match self {
            Held::Tuned => true,
            Held::Fixed(_) => live || processes == 1,
            Held::Kept(_) => false,
        }
    }

    /// With its picture, unless it looks like another one.
    pub(super) fn draw(self, case: Case, drawn: Drawn) -> Case {
        match self {
            Held::Tuned | Held::Kept(_) => case.drawn(drawn),
            Held::Fixed(_) => case,
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Tuned => f.write_str("credit auto"),
            Held::Fixed(deliveries) => write!(f, "prefetch {deliveries}"),
            Held::Kept(deliveries) => write!(f, "prefetch {deliveries}, kept"),
        }
    }
}

/// A job that was done, by its number.
pub(super) struct Done {
    number: u64,
    process: usize,
    worker: usize,
    begun: Instant,
    ended: Instant,
}

/// Processes with their workers, each on a connection of its own.
pub(super) struct Crew {
    processes: Vec<JoinHandle<Result<(), String>>>,
    ends: mpsc::Receiver<Done>,
    tell: mpsc::Sender<Done>,
}

impl Crew {
    pub(super) fn new() -> Crew {
        let (tell, ends) = mpsc::channel(ENDS_MAX);
        Crew { processes: Vec::new(), ends, tell }
    }

    /// One process more, whose workers take from so many consumers; they consume when this returns.
    pub(super) async fn hire(
        &mut self,
        place: &Place,
        workers: usize,
        sources: usize,
        held: Held,
    ) -> Result<(), String> {
        let connection = place.connect().await?;
        let occupancy = Arc::new(Occupancy::default());
        occupancy.set(workers as u32, 0);
        let mut consumers = Vec::with_capacity(sources);
        for _ in 0..sources {
            let consumer = connection.consumer(place.queue(QUEUE)).workers(workers as u16);
            let consumer = match held {
                Held::Tuned => consumer.occupancy(occupancy.clone()),
                Held::Fixed(deliveries) => {
                    let corrected = consumer.fixed_credit(deliveries).fitted(workers as u16);
                    corrected.occupancy(occupancy.clone())
                }
                Held::Kept(deliveries) => consumer.fixed_credit(deliveries),
            };
            consumers.push(consumer.build().await.map_err(told)?);
        }
        let workers = Workers { idle: (0..workers).rev().collect(), of: workers, occupancy };
        let work = work(consumers, self.processes.len(), workers, self.tell.clone());
        self.processes.push(tokio::spawn(work));
        Ok(())
    }

    /// Waits for the ends of `count` jobs.
    pub(super) async fn done(&mut self, count: usize) -> Result<Vec<Done>, String> {
        let mut done = Vec::with_capacity(count);
        while done.len() < count {
            let patience = PATIENCE + Duration::from_millis(longest_ms(&done));
            match tokio::time::timeout(patience, self.ends.recv()).await {
                Ok(Some(end)) => done.push(end),
                _ => return Err(format!("{} of {count} jobs were done", done.len())),
            }
        }
        Ok(done)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.processes.iter().for_each(JoinHandle::abort);
    }
}

fn longest_ms(done: &[Done]) -> u64 {
    done.iter().map(|job| (job.ended - job.begun).as_millis() as u64).max().unwrap_or(0)
}

/// The workers of a process.
struct Workers {
    /// By name.
    idle: Vec<usize>,
    of: usize,
    occupancy: Arc<Occupancy>,
}

impl Workers {
    fn begin(&mut self) -> usize {
        let worker = self.idle.pop().expect("as many names as permits");
        self.count();
        worker
    }

    fn end(&mut self, worker: usize) {
        self.idle.push(worker);
        self.count();
    }

    fn count(&self) {
        self.occupancy.set(self.of as u32, (self.of - self.idle.len()) as u32);
    }
}

/// Workers take what the consumers hold, each a job at a time.
async fn work(
    mut consumers: Vec<Consumer>,
    process: usize,
    workers: Workers,
    tell: mpsc::Sender<Done>,
) -> Result<(), String> {
    let idle = Arc::new(Semaphore::new(workers.of));
    let workers = Arc::new(Mutex::new(workers));
    let mut turn = 0;
    loop {
        let permit = idle.clone().acquire_owned().await.map_err(told)?;
        let Some(job) = next(&mut consumers, &mut turn).await? else { return Ok(()) };
        let (tell, workers) = (tell.clone(), workers.clone());
        let begun = Instant::now();
        let worker = workers.lock().unwrap_or_else(PoisonError::into_inner).begin();
        tokio::spawn(async move {
            let Some((number, length)) = parse(job.body()) else { return };
            tokio::time::sleep(length).await;
            job.ack();
            let ended = Instant::now();
            workers.lock().unwrap_or_else(PoisonError::into_inner).end(worker);
            drop(permit);
            // Whoever counts may have seen enough.
            let _ = tell.send(Done { number, process, worker, begun, ended }).await;
        });
    }
}

/// The next job of any consumer, in turns; `None` when one has ended.
async fn next(consumers: &mut [Consumer], turn: &mut usize) -> Result<Option<Delivery>, String> {
    poll_fn(|cx| {
        for _ in 0..consumers.len() {
            *turn = (*turn + 1) % consumers.len();
            if let Poll::Ready(taken) = consumers[*turn].poll_next(cx) {
                return Poll::Ready(taken.map_err(told));
            }
        }
        Poll::Pending
    })
    .await
}

/// `NUMBER MICROSECONDS`
fn parse(body: &[u8]) -> Option<(u64, Duration)> {
    let (number, length_us) = std::str::from_utf8(body).ok()?.split_once(' ')?;
    Some((number.parse().ok()?, Duration::from_micros(length_us.parse().ok()?)))
}

/// Jobs that were given out, and since when.
pub(super) struct Jobs {
    publisher: Publisher,
    began: Instant,
    next: u64,
    came: BTreeMap<u64, Instant>,
}

impl Jobs {
    pub(super) async fn new(connection: &Connection, place: &Place) -> Result<Jobs, String> {
        let route = Route::queue(place.queue(QUEUE));
        let publisher = connection.publisher(route).build().await.map_err(told)?;
        Ok(Jobs { publisher, began: Instant::now(), next: 0, came: BTreeMap::new() })
    }

    async fn give(&mut self, length: Duration) -> Result<(u64, Outcome), String> {
        let number = self.next;
        self.next += 1;
        let body = format!("{number} {}", length.as_micros());
        Ok((number, self.publisher.publish(body).await.map_err(told)?))
    }

    /// One that is in the queue when this returns, and came then.
    pub(super) async fn one(&mut self, length: Duration) -> Result<(), String> {
        let (number, outcome) = self.give(length).await?;
        outcome.await.map_err(told)?;
        self.came.insert(number, Instant::now());
        Ok(())
    }

    /// So many at once; they came when the last one was in the queue.
    pub(super) async fn together(&mut self, count: usize, length: Duration) -> Result<(), String> {
        let mut outcomes = Vec::with_capacity(count);
        for _ in 0..count {
            outcomes.push(self.give(length).await?);
        }
        let mut numbers = Vec::with_capacity(count);
        for (number, outcome) in outcomes {
            outcome.await.map_err(told)?;
            numbers.push(number);
        }
        self.came_now(numbers);
        Ok(())
    }

    /// These could have begun only now.
    pub(super) fn came_now(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let now = Instant::now();
        self.came.extend(numbers.into_iter().map(|number| (number, now)));
    }

    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_micros() as u64
    }

    /// When a job came, began and ended; one that began before its confirm was there came then.
    pub(super) fn span(&self, done: &Done) -> Span {
        let begun_us = self.us(done.begun);
        let came_us = self.came.get(&done.number).map_or(begun_us, |came| self.us(*came));
        Span { came_us: came_us.min(begun_us), begun_us, done_us: self.us(done.ended) }
    }

    pub(super) fn drawn(&self, title: String, done: &[Done]) -> Drawn {
        let job = |done: &Done| {
            let Span { came_us, begun_us, done_us } = self.span(done);
            let by = format!("process {}, worker {:>2}", done.process + 1, done.worker + 1);
            Job { by, came_us, begun_us, done_us }
        };
        Drawn { title, jobs: done.iter().map(job).collect() }
    }
}
