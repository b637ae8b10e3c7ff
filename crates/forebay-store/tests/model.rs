//! The store against a simple model, on a disk that breaks.
//!
//! What recovery finds must be exactly the state after some whole number of batches: all that were
//! reported durable, and perhaps some that were on their way. So one check covers lost messages, returned
//! messages, wrong bytes, wrong topology and half batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_store::{
    Disk, Durability, Event, Home, MemDisk, Options, QueueId, Recovered, Request, RunBuilder,
    RunId, Seq, Store, check, open, perform,
};
use proptest::prelude::*;

const QUEUES: u64 = 3;

type Messages = BTreeMap<(QueueId, Seq), Vec<u8>>;
type Meta = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    messages: Messages,
    meta: Meta,
}

#[derive(Clone, Debug)]
enum Change {
    Publish(Vec<(QueueId, Seq)>, Vec<u8>),
    Settle(QueueId, Seq),
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

impl State {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Publish(queues, payload) => {
                for &queue in queues {
                    self.messages.insert(queue, payload.clone());
                }
            }
            Change::Settle(queue, seq) => {
                self.messages.remove(&(*queue, *seq));
            }
            Change::Put(key, value) => {
                self.meta.insert(key.clone(), value.clone());
            }
            Change::Delete(key) => {
                self.meta.remove(key);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Publish { queue: u64, fan_out: bool, bytes: usize, fill: u8 },
    PublishTransient { queue: u64, bytes: usize },
    Settle { queue: u64, pick: u16, streak: u8 },
    Atomic { queue: u64, count: u8 },
    Put { key: u8, bytes: usize },
    Delete { key: u8 },
    Spill { queue: u64, skip: u8, count: u8 },
    ReadRun { pick: u8 },
    PurgeRun { pick: u8 },
    Forget { queue: u64 },
    Pump { times: u8 },
    Hold,
    Release { pick: u8 },
    Kill,
    PowerLoss { seed: u64 },
    StopThen { calls: u8, seed: Option<u64>, during_recovery: Option<u8> },
    CleanStop,
}

fn op() -> impl Strategy<Value = Op> {
    let queue = 0..QUEUES;
    prop_oneof![
        12 => (queue.clone(), any::<bool>(), 0usize..900, any::<u8>())
            .prop_map(|(queue, fan_out, bytes, fill)| Op::Publish { queue, fan_out, bytes, fill }),
        1 => (queue.clone(), 3000usize..20_000, any::<u8>())
            .prop_map(|(queue, bytes, fill)| Op::Publish { queue, fan_out: false, bytes, fill }),
        3 => (queue.clone(), 0usize..300)
            .prop_map(|(queue, bytes)| Op::PublishTransient { queue, bytes }),
        10 => (queue.clone(), any::<u16>(), 1u8..6)
            .prop_map(|(queue, pick, streak)| Op::Settle { queue, pick, streak }),
        2 => (queue.clone(), 1u8..6).prop_map(|(queue, count)| Op::Atomic { queue, count }),
        3 => (0u8..8, 0usize..400).prop_map(|(key, bytes)| Op::Put { key, bytes }),
        1 => (0u8..8).prop_map(|key| Op::Delete { key }),
        3 => (queue.clone(), 0u8..4, 1u8..12)
            .prop_map(|(queue, skip, count)| Op::Spill { queue, skip, count }),
        2 => any::<u8>().prop_map(|pick| Op::ReadRun { pick }),
        1 => any::<u8>().prop_map(|pick| Op::PurgeRun { pick }),
        1 => queue.prop_map(|queue| Op::Forget { queue }),
        8 => (1u8..12).prop_map(|times| Op::Pump { times }),
        6 => Just(Op::Hold),
        4 => any::<u8>().prop_map(|pick| Op::Release { pick }),
        1 => Just(Op::Kill),
        1 => any::<u64>().prop_map(|seed| Op::PowerLoss { seed }),
        2 => (0u8..20, any::<Option<u64>>(), any::<Option<u8>>())
            .prop_map(|(calls, seed, during_recovery)| Op::StopThen { calls, seed, during_recovery }),
        1 => Just(Op::CleanStop),
    ]
}

/// A message as its owner (the broker) holds it.
#[derive(Clone, Debug)]
struct Held {
    home: Home,
    payload: Vec<u8>,
    /// In a run that is on its way to the disk.
    moving: Option<RunId>,
}

struct World {
    disk: Arc<MemDisk>,
    options: Options,
    store: Store,
    now_us: u64,
    held: Vec<Request>,
    /// What the owner believes: live messages, persistent or not.
    live: BTreeMap<(QueueId, Seq), Held>,
    next_seq: BTreeMap<QueueId, Seq>,
    delivered: BTreeMap<QueueId, Seq>,
    /// The state of the last recovery, and what happened since, each with its batch.
    base: State,
    base_batch: u64,
    changes: Vec<(u64, Change)>,
    stopped: bool,
    /// Whether the disk stood still: completions may fail then, and only then.
    broken: bool,
}

impl World {
    fn new(options: Options) -> World {
        let disk = Arc::new(MemDisk::new());
        let (store, recovered) = open(disk.clone(), options.clone()).expect("an empty disk opens");
        assert!(recovered.meta.is_empty() && recovered.queues.is_empty());
        World {
            disk,
            options,
            base_batch: store.durable_batch(),
            store,
            now_us: 0,
            held: Vec::new(),
            live: BTreeMap::new(),
            next_seq: BTreeMap::new(),
            delivered: BTreeMap::new(),
            base: State::default(),
            changes: Vec::new(),
            stopped: false,
            broken: false,
        }
    }

    fn note(&mut self, change: Change) {
        self.changes.push((self.store.open_batch(), change));
    }

    fn take_seq(&mut self, queue: QueueId) -> Seq {
        let next = self.next_seq.entry(queue).or_insert(1);
        *next += 1;
        *next - 1
    }

    fn publish(&mut self, queues: &[QueueId], payload: Vec<u8>) {
        let queues: Vec<_> = queues.iter().map(|&queue| (queue, self.take_seq(queue))).collect();
        self.note(Change::Publish(queues.clone(), payload.clone()));
        let home = self.store.publish(&queues, &payload);
        assert!(!home.is_none());
        for key in queues {
            self.live.insert(key, Held { home, payload: payload.clone(), moving: None });
        }
    }

    fn settle(&mut self, key: (QueueId, Seq)) {
        let held = self.live.remove(&key).expect("the caller picked a live one");
        self.note(Change::Settle(key.0, key.1));
        self.store.settle(key.0, key.1, held.home);
    }

    fn keys(&self, queue: QueueId) -> Vec<(QueueId, Seq)> {
        self.live.range((queue, 0)..=(queue, Seq::MAX)).map(|(&key, _)| key).collect()
    }

    fn runs(&self) -> Vec<RunId> {
        let mut runs: Vec<RunId> =
            self.live.values().filter_map(|held| held.home.as_run()).collect();
        runs.sort_unstable();
        runs.dedup();
        runs
    }

    fn finish(&mut self, request: Request) {
        let completion = perform(&*self.disk, request);
        if let Err(failed) = self.store.complete(self.now_us, completion) {
            assert!(self.broken, "{failed}");
        }
    }

    fn pump(&mut self, times: usize) {
        for request in std::mem::take(&mut self.held) {
            self.finish(request);
            self.events();
        }
        for _ in 0..times {
            self.now_us += 3000;
            while let Some(request) = self.store.poll(self.now_us) {
                self.finish(request);
            }
            self.events();
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.store.poll_event() {
            match event {
                Event::Durable(batch) => assert!(batch <= self.store.durable_batch()),
                Event::RunDurable { run, .. } => {
                    for held in self.live.values_mut().filter(|held| held.moving == Some(run)) {
                        held.moving = None;
                        held.home = Home::run(run);
                    }
                }
                Event::RunBlock { run, queue, messages, at_end } => {
                    assert!(at_end || !messages.is_empty(), "run {run}");
                    for (seq, _, payload) in messages {
                        if let Some(held) = self.live.get(&(queue, seq)) {
                            assert_eq!(held.payload, payload, "queue {queue} seq {seq}");
                        }
                    }
                }
                Event::Evacuate { homes } => self.evacuate(homes),
                Event::Stopped => self.stopped = true,
                Event::LowSpace(_) => panic!("this disk has no bound"),
            }
        }
    }

    fn evacuate(&mut self, home: Home) {
        let here: Vec<_> = self
            .live
            .iter()
            .filter(|(_, held)| held.home == home && held.moving.is_none())
            .map(|(&key, held)| (key, held.payload.clone()))
            .collect();
        // Queue 0 relocates, the others spill.
        let mut builders: BTreeMap<QueueId, (RunBuilder, Vec<Seq>)> = BTreeMap::new();
        for ((queue, seq), payload) in here {
            if queue == 0 {
                let home = self.store.relocate(queue, seq, &payload);
                self.live.get_mut(&(queue, seq)).unwrap().home = home;
            } else {
                let builder = builders.entry(queue).or_default();
                builder.0.push(seq, home, &payload);
                builder.1.push(seq);
            }
        }
        for (queue, (builder, seqs)) in builders {
            let run = self.store.write_run(queue, builder, true);
            for seq in seqs {
                self.live.get_mut(&(queue, seq)).unwrap().moving = Some(run);
            }
        }
    }

    /// What recovery may find, given what must be there at least.
    fn candidates(&self, durable: u64) -> BTreeMap<u64, State> {
        let mut state = self.base.clone();
        let mut candidates = BTreeMap::new();
        let last = self.store.open_batch();
        let mut changes = self.changes.iter().peekable();
        for batch in self.base_batch..=last {
            while let Some((_, change)) = changes.next_if(|(number, _)| *number <= batch) {
                state.apply(change);
            }
            if batch >= durable {
                candidates.insert(batch, state.clone());
            }
        }
        candidates
    }

    fn reopen(&mut self, durable: u64, during_recovery: Option<(u8, Option<u64>)>) -> Recovered {
        let candidates = self.candidates(durable);
        self.held.clear();
        self.broken = false;
        self.stopped = false;
        if let Some((calls, seed)) = during_recovery {
            self.disk.stop_after(calls.into());
            let _ = open(self.disk.clone(), self.options.clone());
            match seed {
                Some(seed) => self.disk.power_loss(seed),
                None => self.disk.kill(),
            }
        }
        self.disk.unlock();
        let (store, mut recovered) = open(self.disk.clone(), self.options.clone())
            .unwrap_or_else(|error| panic!("after a crash: {error}"));
        self.store = store;
        self.live.clear();
        self.next_seq.clear();
        self.changes.clear();
        let mut found = State { meta: recovered.meta.clone(), ..State::default() };
        for queue in &mut recovered.queues {
            self.next_seq.insert(queue.id, queue.next_seq);
            let mut last = 0;
            for (seq, home, payload) in &queue.messages {
                assert!(*seq > last && *seq < queue.next_seq);
                last = *seq;
                found.messages.insert((queue.id, *seq), payload.clone());
                self.live.insert(
                    (queue.id, *seq),
                    Held { home: *home, payload: payload.clone(), moving: None },
                );
            }
            let mut previous = 0;
            for run in &queue.runs {
                assert!(run.first > previous && run.last < queue.next_seq);
                assert!(
                    !queue
                        .messages
                        .iter()
                        .any(|message| (run.first..=run.last).contains(&message.0))
                );
                previous = run.last;
                let messages = self.read_whole_run(run.id);
                assert_eq!(messages.len() as u64, run.messages);
                for (seq, payload) in messages {
                    assert!((run.first..=run.last).contains(&seq));
                    found.messages.insert((queue.id, seq), payload.clone());
                    self.live.insert(
                        (queue.id, seq),
                        Held { home: Home::run(run.id), payload, moving: None },
                    );
                }
            }
        }
        let matching = candidates.values().any(|candidate| *candidate == found);
        if !matching {
            for (batch, state) in &candidates {
                let expected: BTreeSet<_> = state.messages.keys().collect();
                let got: BTreeSet<_> = found.messages.keys().collect();
                eprintln!(
                    "batch {batch}: lost {:?}, returned {:?}, meta {}",
                    expected.difference(&got).collect::<Vec<_>>(),
                    got.difference(&expected).collect::<Vec<_>>(),
                    state.meta == found.meta,
                );
            }
            panic!("what was recovered is the state after no batch (durable: {durable})");
        }
        self.base = found;
        self.base_batch = self.store.durable_batch();
        recovered
    }

    fn read_whole_run(&mut self, run: RunId) -> Vec<(Seq, Vec<u8>)> {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            self.store.read_run(run, from);
            while let Some(request) = self.store.poll(self.now_us) {
                let completion = perform(&*self.disk, request);
                self.store.complete(self.now_us, completion).expect("nothing is broken");
            }
            let mut ended = None;
            while let Some(event) = self.store.poll_event() {
                match event {
                    Event::RunBlock { messages, at_end, .. } => {
                        from = messages.last().map_or(from, |message| message.0 + 1);
                        all.extend(messages.into_iter().map(|(seq, _, payload)| (seq, payload)));
                        ended = Some(at_end);
                    }
                    Event::Evacuate { .. } | Event::Durable(_) => {}
                    event => panic!("{event:?}"),
                }
            }
            if ended.expect("every read is answered") {
                return all;
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Publish { queue, fan_out, bytes, fill } => {
                let payload: Vec<u8> =
                    (0..*bytes).map(|index| fill.wrapping_add((index % 251) as u8)).collect();
                if *fan_out {
                    self.publish(&[*queue, (*queue + 1) % QUEUES], payload);
                } else {
                    self.publish(&[*queue], payload);
                }
            }
            Op::PublishTransient { queue, bytes } => {
                // Transient messages take numbers too; the store sees them in runs only.
                let seq = self.take_seq(*queue);
                let held = Held { home: Home::NONE, payload: vec![7; *bytes], moving: None };
                self.live.insert((*queue, seq), held);
            }
            Op::Settle { queue, pick, streak } => {
                let keys = self.keys(*queue);
                if !keys.is_empty() {
                    let from = usize::from(*pick) % keys.len();
                    for &key in keys.iter().skip(from).take((*streak).into()) {
                        self.settle(key);
                    }
                }
            }
            Op::Atomic { queue, count } => {
                self.store.begin_atomic();
                for index in 0..*count {
                    self.publish(&[*queue], vec![index; 100]);
                }
                if let Some(&key) = self.keys(*queue).first() {
                    self.settle(key);
                }
                self.store.end_atomic();
            }
            Op::Put { key, bytes } => {
                let (key, value) = (vec![*key], vec![*key; *bytes]);
                self.note(Change::Put(key.clone(), value.clone()));
                self.store.put_meta(&key, &value);
            }
            Op::Delete { key } => {
                self.note(Change::Delete(vec![*key]));
                self.store.delete_meta(&[*key]);
            }
            Op::Spill { queue, skip, count } => {
                let mut builder = RunBuilder::new();
                let mut chosen = Vec::new();
                for key in self.keys(*queue).into_iter().skip((*skip).into()) {
                    let held = &self.live[&key];
                    if held.moving.is_none()
                        && held.home.as_run().is_none()
                        && chosen.len() < usize::from(*count)
                    {
                        builder.push(key.1, held.home, &held.payload);
                        chosen.push(key);
                    }
                }
                if !chosen.is_empty() {
                    let run = self.store.write_run(*queue, builder, true);
                    for key in chosen {
                        self.live.get_mut(&key).unwrap().moving = Some(run);
                    }
                }
            }
            Op::ReadRun { pick } => {
                let runs = self.runs();
                if !runs.is_empty() {
                    let run = runs[usize::from(*pick) % runs.len()];
                    let seqs: Vec<Seq> = self
                        .live
                        .iter()
                        .filter(|(_, held)| held.home == Home::run(run))
                        .map(|(key, _)| key.1)
                        .collect();
                    self.store.read_run(run, seqs[usize::from(*pick) % seqs.len()]);
                }
            }
            Op::PurgeRun { pick } => {
                let runs = self.runs();
                if !runs.is_empty() {
                    let run = runs[usize::from(*pick) % runs.len()];
                    let gone: Vec<_> = self
                        .live
                        .iter()
                        .filter(|(_, held)| held.home == Home::run(run))
                        .map(|(&key, _)| key)
                        .collect();
                    for key in gone {
                        self.live.remove(&key);
                        self.note(Change::Settle(key.0, key.1));
                    }
                    self.store.settle_run(run);
                }
            }
            Op::Forget { queue } => {
                for key in self.keys(*queue) {
                    self.settle(key);
                }
                self.store.forget_queue(*queue);
            }
            Op::Pump { times } => self.pump((*times).into()),
            Op::Hold => {
                self.now_us += 3000;
                if self.held.len() < 2
                    && let Some(request) = self.store.poll(self.now_us)
                {
                    self.held.push(request);
                }
            }
            Op::Release { pick } => {
                // The lanes are independent: either may be done first.
                if !self.held.is_empty() {
                    let request = self.held.remove(usize::from(*pick) % self.held.len());
                    self.finish(request);
                    self.events();
                }
            }
            Op::Kill => {
                let durable = self.store.durable_batch();
                self.disk.kill();
                self.reopen(durable, None);
            }
            Op::PowerLoss { seed } => {
                let durable = self.surviving_batch();
                self.disk.power_loss(*seed);
                self.reopen(durable, None);
            }
            Op::StopThen { calls, seed, during_recovery } => {
                self.broken = true;
                self.disk.stop_after((*calls).into());
                self.pump(8);
                let durable = if seed.is_some() {
                    self.surviving_batch()
                } else {
                    self.store.durable_batch()
                };
                match seed {
                    Some(seed) => self.disk.power_loss(*seed),
                    None => self.disk.kill(),
                }
                // A second crash, in the middle of recovery.
                self.reopen(durable, during_recovery.map(|calls| (calls % 12, *seed)));
            }
            Op::CleanStop => {
                self.pump(0);
                for queue in 0..QUEUES {
                    let upto = self.next_seq.get(&queue).copied().unwrap_or(1) - 1;
                    self.store.note_delivered(queue, upto);
                    self.delivered.insert(queue, upto);
                }
                self.store.shutdown();
                self.pump(2);
                assert!(self.stopped);
                assert!(self.store.poll(self.now_us).is_none());
                let durable = self.store.durable_batch();
                self.disk.power_loss(self.now_us);
                let recovered = self.reopen(durable, None);
                assert!(recovered.clean && !recovered.torn_tail);
                for queue in &recovered.queues {
                    let noted = self.delivered[&queue.id].min(queue.next_seq - 1);
                    assert_eq!(queue.delivered_upto, noted);
                }
            }
        }
    }

    /// What a power loss must leave.
    fn surviving_batch(&self) -> u64 {
        match self.options.durability {
            Durability::Always => self.store.durable_batch(),
            Durability::Interval { .. } | Durability::Os => self.base_batch,
        }
    }
}

fn options(small: bool, durability: Durability) -> Options {
    Options {
        segment_bytes: if small { 16 << 10 } else { 64 << 10 },
        log_cap_bytes: if small { 48 << 10 } else { 192 << 10 },
        batch_max_bytes: 4096,
        durability,
        ..Options::default()
    }
}

fn run(ops: &[Op], options: Options) {
    let mut world = World::new(options);
    for op in ops {
        world.step(op);
    }
    // Whatever happened: everything drains, and the log shrinks to its newest segment.
    world.pump(10);
    let keys: Vec<_> = world.live.keys().copied().collect();
    for key in keys {
        world.settle(key);
    }
    world.pump(30);
    let statistics = world.store.statistics();
    assert_eq!(statistics.runs, 0, "{statistics:?}");
    if world.options.durability != Durability::Os {
        // Without a sync of its own, what made a segment dead is synced when the next one begins.
        assert!(statistics.segments <= 2, "{statistics:?}");
    }
    let durable = world.store.durable_batch();
    world.disk.kill();
    let recovered = world.reopen(durable, None);
    assert!(
        recovered.queues.iter().all(|queue| queue.messages.is_empty() && queue.runs.is_empty())
    );
    world.disk.unlock();
    let report = check(&*world.disk, &mut |_| {});
    assert!(report.is_sound(), "{report:?}");
}

/// 128 cases, or as many as `PROPTEST_CASES` says. A failure prints its minimal input.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(128),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_was_durable_survives_every_crash(
        ops in prop::collection::vec(op(), 1..160),
        small in any::<bool>(),
    ) {
        run(&ops, options(small, Durability::Always));
    }

    #[test]
    fn without_syncing_a_kill_loses_nothing_and_a_power_loss_whole_batches_only(
        ops in prop::collection::vec(op(), 1..160),
        interval in any::<bool>(),
    ) {
        let durability =
            if interval { Durability::Interval { ms: 20 } } else { Durability::Os };
        run(&ops, options(true, durability));
    }
}
