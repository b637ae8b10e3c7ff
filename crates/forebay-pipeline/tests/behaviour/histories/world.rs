//! A broker, and what is known of a pipeline from outside: by what its source is asked, and by which handlers begin and end.

mod batch;
mod broker;
mod delivery;
mod gate;
mod handler;
mod judge;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use forebay_pipeline::Report;
use tokio::time::{Instant, sleep};

use super::plan::Plan;
use batch::Seen;
pub(crate) use broker::Queue;
pub(crate) use delivery::Message;
use delivery::{At, Delivery};
use gate::{Gate, Rate};

/// More of them while time stands still is a loop.
const STEPS_MAX: u64 = 100_000;

pub(crate) struct World {
    plan: Plan,
    start: Instant,
    faults: Vec<String>,
    trace: Vec<String>,
    /// When something happened, and how often at that moment.
    last: u64,
    steps: u64,

    /// Jobs at the broker.
    queue: VecDeque<usize>,
    /// Attempts that came with a message, by its job.
    remembered: HashMap<usize, u32>,
    given_back: HashMap<usize, bool>,
    /// When those come that were put off at the broker.
    due: HashMap<usize, u64>,
    /// Attempts at a job, whatever became of its deliveries.
    tries: HashMap<usize, usize>,
    /// Its number, and when the last one was lost.
    connection: u32,
    cut: u64,
    connected: bool,
    credit: usize,
    /// Nothing more is published; whether it is an error.
    closing: Option<bool>,
    waker: Option<Waker>,

    /// Since when, and how many: the most of that moment, and those of now.
    workers: [(u64, usize); 2],
    batch_workers: [(u64, usize); 2],
    batch_workers_most: usize,
    rate: Rate,
    /// When attempts began.
    begins: Vec<u64>,
    gate: Gate,
    batch_gate: Gate,
    /// Messages that are held at most, as the pipeline has told its source.
    held_most: usize,
    deliveries: Vec<Delivery>,
    batches: Vec<Seen>,
    /// Of the batch handler.
    calls: usize,
    /// Messages that were handed on.
    orders: u64,
    /// Batches were handed on for want of room.
    pressed: bool,
    /// Dead letters that were to be sent.
    buried: usize,
    /// The time limit of a call and the deadline fell on the same moment: it has failed, or was cancelled, and who it was for is
    /// taken to be [`At::Cancelled`].
    unsure: bool,

    /// What the pipeline should count.
    report: Report,
    /// The source has ended, or is not asked any more.
    over: bool,
    pub(crate) deadline: Option<u64>,
    joined: bool,
}

#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(crate) fn new(plan: Plan) -> Shared {
        Shared(Arc::new(Mutex::new(World {
            start: Instant::now(),
            faults: Vec::new(),
            trace: Vec::new(),
            last: 0,
            steps: 0,
            queue: VecDeque::new(),
            remembered: HashMap::new(),
            given_back: HashMap::new(),
            due: HashMap::new(),
            tries: HashMap::new(),
            connection: 0,
            cut: 0,
            connected: true,
            credit: plan.credit,
            closing: None,
            waker: None,
            workers: [(0, plan.workers); 2],
            batch_workers: [(0, plan.batcher.workers); 2],
            batch_workers_most: plan.batcher.workers,
            rate: Rate { per_s: plan.rate, since: 0, begun: 0 },
            begins: Vec::new(),
            gate: Gate::new(&plan),
            batch_gate: Gate::new(&plan),
            held_most: 0,
            deliveries: Vec::new(),
            batches: Vec::new(),
            calls: 0,
            orders: 0,
            pressed: false,
            buried: 0,
            unsure: false,
            report: Report::default(),
            over: false,
            deadline: None,
            joined: false,
            plan,
        })))
    }

    /// Something happens.
    pub(crate) fn enter(&self) -> MutexGuard<'_, World> {
        let mut world = self.0.lock().unwrap();
        let now = world.now();
        if now > world.last {
            world.judge(now);
            (world.last, world.steps) = (now, 0);
        }
        world.steps += 1;
        if world.steps == STEPS_MAX {
            world.fault("it does not come to rest");
        }
        // Nothing ends a loop but a panic where nobody catches it.
        assert!(world.steps < 2 * STEPS_MAX, "it does not come to rest: {:#?}", world.faults);
        world
    }
}

pub(crate) async fn pause(ms: u64) {
    if ms > 0 {
        sleep(Duration::from_millis(ms)).await;
    }
}

impl World {
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }

    fn note(&mut self, what: impl Into<String>) {
        let line = format!("{:>5} {}", self.now(), what.into());
        self.trace.push(line);
    }

    pub(crate) fn fault(&mut self, what: &str) {
        if self.faults.len() < 5 {
            let line = format!("at {} (last {}): {what}", self.now(), self.last);
            self.note(format!("FAULT {what}"));
            self.faults.push(line);
        }
    }

    fn told(&self) -> String {
        let from = self.trace.len().saturating_sub(80);
        format!("{:#?}\n{}", self.faults, self.trace[from..].join("\n"))
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn resize(&mut self, workers: usize) {
        let now = self.now();
        self.workers = [(now, workers.max(self.most_workers())), (now, workers)];
        self.note(format!("workers {workers}"));
    }

    pub(crate) fn resize_batches(&mut self, workers: usize) {
        let now = self.now();
        let most = if self.batch_workers[0].0 == now { self.batch_workers[0].1 } else { 0 };
        let most = workers.max(most).max(self.batch_workers[1].1);
        self.batch_workers = [(now, most), (now, workers)];
        self.batch_workers_most = self.batch_workers_most.max(workers);
        self.note(format!("batch workers {workers}"));
    }

    pub(crate) fn set_rate(&mut self, per_s: Option<u64>) {
        self.rate = Rate { per_s, since: self.now(), begun: self.begins.len() };
        self.note(format!("rate {per_s:?}"));
    }

    /// At this moment.
    fn most_workers(&self) -> usize {
        let [(since, most), (_, workers)] = self.workers;
        if since == self.now() { most } else { workers }
    }

    fn most_batch_workers(&self) -> usize {
        let [(since, most), (_, workers)] = self.batch_workers;
        if since == self.now() { most } else { workers }
    }

    fn count(&self, of: impl Fn(&Delivery) -> bool) -> usize {
        self.deliveries.iter().filter(|delivery| of(delivery)).count()
    }

    /// Those whose handlers wait for room in a batch.
    fn handing(&self) -> usize {
        let handed = self.count(|delivery| matches!(delivery.at, At::Handed { .. }));
        handed.saturating_sub(self.held_max())
    }

    fn held_max(&self) -> usize {
        self.plan.batcher.held_max.max(self.plan.batcher.messages)
    }

    fn buffered(&self) -> usize {
        let waits = |at| matches!(at, At::Here | At::Off { .. } | At::Leaving { .. });
        self.count(|delivery| waits(delivery.at))
    }

    fn busy(&self) -> usize {
        let busy = |at| matches!(at, At::Work | At::Buried | At::Settling(_));
        self.count(|delivery| busy(delivery.at)) + self.handing()
    }

    fn waiting_with(&self) -> usize {
        self.count(|delivery| match delivery.at {
            At::Off { with_worker, .. } | At::Leaving { with_worker, .. } => with_worker,
            At::Here => delivery.rests_until > 0, // it may be
            _ => false,
        })
    }

    fn is_ending(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.now() >= deadline)
    }
}
