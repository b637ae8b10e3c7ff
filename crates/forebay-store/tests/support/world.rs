//! A store, its disk and its owner, and what the owner knows about all three.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_store::fault_disk::{Call, RecordingDisk};
use forebay_store::{
    Disk, Durability, Event, Home, Lane, MemDisk, Options, QueueId, Recovered, Request, RunBuilder,
    RunId, Seq, Store, check, open, perform,
};

use super::contents;
use super::op::Op;
use super::state::{Change, Life, QUEUES, assert_allowed};

/// A message as its owner (the broker) holds it.
#[derive(Clone, Debug)]
pub struct Held {
    home: Home,
    payload: Vec<u8>,
    /// In a run that is on its way to the disk.
    moving: Option<RunId>,
}

/// How a start ends before it is done.
struct Interrupted {
    calls: u8,
    /// With the power, or the process alone.
    power_loss: Option<u64>,
    /// So many syncs succeed before one does not.
    failing_sync: Option<u64>,
}

pub struct World {
    /// Where faults come from.
    pub disk: Arc<MemDisk>,
    /// What the store sees: `disk`, or a recording of it.
    medium: Arc<dyn Disk>,
    recording: Option<Arc<RecordingDisk>>,
    pub options: Options,
    pub store: Store,
    now_us: u64,
    held: Vec<Request>,
    /// What the owner believes: live messages, persistent or not.
    pub live: BTreeMap<(QueueId, Seq), Held>,
    next_seq: BTreeMap<QueueId, Seq>,
    delivered: BTreeMap<QueueId, Seq>,
    life: Life,
    /// Lives before, if they are recorded.
    pub lives: Vec<Life>,
    stopped: bool,
    /// Whether the disk stood still: completions may fail then, and only then.
    broken: bool,
    /// A commit failed.
    over: bool,
}

/// An empty disk on which a store draws a salt.
fn salted() -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new());
    disk.set_random(0x0DD5_A170_0DD5_A171);
    disk
}

impl World {
    pub fn new(options: Options) -> World {
        let disk = salted();
        World::on(disk.clone(), disk, None, options)
    }

    /// Everything that reaches the disk is recorded, and what may be found when.
    pub fn recorded(options: Options) -> (World, Arc<RecordingDisk>) {
        let disk = salted();
        let recording = Arc::new(RecordingDisk::new(disk.clone()).expect("an empty disk is read"));
        let world = World::on(disk, recording.clone(), Some(recording.clone()), options);
        (world, recording)
    }

    fn on(
        disk: Arc<MemDisk>,
        medium: Arc<dyn Disk>,
        recording: Option<Arc<RecordingDisk>>,
        options: Options,
    ) -> World {
        let (store, recovered) =
            open(medium.clone(), options.clone()).expect("an empty disk opens");
        assert!(recovered.meta.is_empty() && recovered.queues.is_empty());
        let calls = recording.as_ref().map_or(0, |recording| recording.calls());
        World {
            disk,
            medium,
            recording,
            options,
            life: Life { base_batch: store.durable_batch(), began: calls, ..Life::default() },
            lives: vec![Life::default()],
            store,
            now_us: 0,
            held: Vec::new(),
            live: BTreeMap::new(),
            next_seq: BTreeMap::new(),
            delivered: BTreeMap::new(),
            stopped: false,
            broken: false,
            over: false,
        }
    }

    fn note(&mut self, change: Change) {
        self.life.changes.push((self.store.open_batch(), change));
    }

    fn take_seq(&mut self, queue: QueueId) -> Seq {
        let next = self.next_seq.entry(queue).or_insert(1);
        *next += 1;
        *next - 1
    }

    fn publish(&mut self, queues: &[QueueId], payload: Vec<u8>) {
        let queues: Vec<_> = queues.iter().map(|&queue| (queue, self.take_seq(queue))).collect();
        let home = self.store.publish(&queues, &payload);
        assert!(!home.is_none());
        // It may have begun a batch.
        self.note(Change::Publish(queues.clone(), payload.clone()));
        for key in queues {
            self.live.insert(key, Held { home, payload: payload.clone(), moving: None });
        }
    }

    pub fn settle(&mut self, key: (QueueId, Seq)) {
        let held = self.live.remove(&key).expect("the caller picked a live one");
        let home = match held.moving {
            // By the run already that it is on its way to.
            Some(run) if key.1.is_multiple_of(2) => Home::run(run),
            _ => held.home,
        };
        self.store.settle(key.0, key.1, home);
        self.note(Change::Settle(key.0, key.1));
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
        // Nothing is written behind a commit that failed.
        if self.over && request.lane() == Lane::Log {
            return;
        }
        let completion = perform(&*self.medium, request);
        self.over |= completion.is_final();
        if let Err(failed) = self.store.complete(self.now_us, completion) {
            assert!(self.broken, "{failed}");
        }
        if let Some(recording) = &self.recording {
            self.life.durable.push((recording.calls(), self.store.durable_batch()));
        }
    }

    pub fn pump(&mut self, times: usize) {
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
        // What several queues have is copied for all of them; of the rest queue 0 copies its own, the others spill.
        let mut of_payload: BTreeMap<Vec<u8>, Vec<(QueueId, Seq)>> = BTreeMap::new();
        for (&key, held) in &self.live {
            if held.home == home && held.moving.is_none() {
                of_payload.entry(held.payload.clone()).or_default().push(key);
            }
        }
        let mut spilled = BTreeMap::new();
        for (payload, keys) in of_payload {
            if keys[0].0 == 0 || keys.len() > 1 && keys[0].1 % 3 > 0 {
                let home = self.store.relocate(&keys, &payload);
                for key in keys {
                    self.live.get_mut(&key).unwrap().home = home;
                }
            } else {
                spilled.extend(keys.into_iter().map(|key| (key, payload.clone())));
            }
        }
        let mut builders: BTreeMap<QueueId, (RunBuilder, Vec<Seq>)> = BTreeMap::new();
        for ((queue, seq), payload) in spilled {
            let builder = builders.entry(queue).or_default();
            builder.0.push(seq, home, &payload);
            builder.1.push(seq);
        }
        for (queue, (builder, seqs)) in builders {
            let run = self.store.write_run(queue, builder, true);
            for seq in seqs {
                self.live.get_mut(&(queue, seq)).unwrap().moving = Some(run);
            }
        }
    }

    fn reopen(&mut self, durable: u64, interrupted: Option<Interrupted>) -> Recovered {
        self.held.clear();
        (self.broken, self.over) = (false, false);
        self.stopped = false;
        if let Some(Interrupted { calls, power_loss, failing_sync }) = interrupted {
            self.disk.stop_after(calls.into());
            if let Some(skip) = failing_sync {
                self.disk.fail(Call::Sync, skip, std::io::ErrorKind::Other);
            }
            let _ = open(self.medium.clone(), self.options.clone());
            match power_loss {
                Some(seed) => self.disk.power_loss(seed),
                None => self.disk.kill(),
            }
        }
        let (store, recovered, contents) = contents::opened(&self.medium, &self.options)
            .unwrap_or_else(|error| panic!("after a crash: {error}"));
        let candidates = self.life.candidates(durable);
        assert_allowed(&candidates, &contents.state, &format!("durable: {durable}"));
        let next = Life {
            base_batch: store.durable_batch(),
            base: contents.state,
            began: self.recording.as_ref().map_or(0, |recording| recording.calls()),
            ..Life::default()
        };
        self.store = store;
        self.next_seq.clone_from(&next.base.next_seq);
        let held = |(key, payload): (&(QueueId, Seq), &Vec<u8>)| {
            let home = contents.homes[key];
            (*key, Held { home, payload: payload.clone(), moving: None })
        };
        self.live = next.base.messages.iter().map(held).collect();
        let life = std::mem::replace(&mut self.life, next);
        if self.recording.is_some() {
            self.lives.push(life);
        }
        recovered
    }

    /// Every life so far, oldest first; the first is that of the empty directory.
    pub fn into_lives(mut self) -> Vec<Life> {
        self.lives.push(self.life);
        self.lives
    }

    pub fn step(&mut self, op: &Op) {
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
                self.store.begin_atomic(0);
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
                self.store.put_meta(&key, &value);
                self.note(Change::Put(key, value));
            }
            Op::Delete { key } => {
                self.store.delete_meta(&[*key]);
                self.note(Change::Delete(vec![*key]));
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
                // Those on their way, too, as a whole; of one that is there perhaps the end only.
                let mut runs = self.runs();
                runs.extend(self.live.values().filter_map(|held| held.moving));
                if !runs.is_empty() {
                    let run = runs[usize::from(*pick) % runs.len()];
                    let cold = |held: &Held| held.home == Home::run(run);
                    let of: Vec<_> = self
                        .live
                        .iter()
                        .filter(|(_, held)| cold(held) || held.moving == Some(run))
                        .map(|(&key, _)| key)
                        .collect();
                    let whole = !cold(&self.live[&of[0]]);
                    let from = if whole { 0 } else { usize::from(*pick / 3) % of.len() };
                    match from {
                        0 => self.store.settle_run(run),
                        _ => self.store.settle_run_from(run, of[from].1),
                    }
                    for &key in &of[from..] {
                        self.live.remove(&key);
                        self.note(Change::Settle(key.0, key.1));
                    }
                }
            }
            Op::Forget { queue } => {
                for key in self.keys(*queue) {
                    self.settle(key);
                }
                self.store.forget_queue(*queue);
                self.note(Change::Forget(*queue));
            }
            Op::Pump { times } => self.pump((*times).into()),
            Op::Hold => {
                self.now_us += 3000;
                if self.held.len() < 3
                    && let Some(request) = self.store.poll(self.now_us)
                {
                    self.held.push(request);
                }
            }
            Op::Release { pick } => {
                // The lanes are independent: either may be done first. What one has is done in its order.
                if !self.held.is_empty() {
                    let lane = self.held[usize::from(*pick) % self.held.len()].lane();
                    let first = self.held.iter().position(|request| request.lane() == lane);
                    let request = self.held.remove(first.expect("it was picked from there"));
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
                let interrupted = during_recovery.map(|calls| Interrupted {
                    calls: calls % 12,
                    power_loss: *seed,
                    failing_sync: None,
                });
                self.reopen(durable, interrupted);
            }
            Op::FailSync { skip, calls, seed, during_recovery } => {
                // Under a weaker policy nobody is promised what this takes.
                let always = self.options.durability == Durability::Always;
                if always {
                    self.broken = true;
                    self.disk.set_shows_lost(true);
                    self.disk.fail(Call::Sync, (*skip).into(), std::io::ErrorKind::Other);
                    self.disk.stop_after((*calls).into());
                }
                self.pump(8);
                let durable = self.store.durable_batch();
                self.disk.kill();
                self.reopen(
                    durable,
                    during_recovery.map(|calls| Interrupted {
                        calls: calls % 16,
                        power_loss: (always && calls & 64 != 0).then_some(*seed),
                        failing_sync: (always && calls & 16 != 0)
                            .then_some(u64::from(calls & 32 != 0)),
                    }),
                );
                // What the sync lost was read, and is to be there from now on.
                self.pump((*seed % 3) as usize);
                let durable = self.surviving_batch();
                self.disk.power_loss(*seed);
                self.reopen(
                    durable,
                    during_recovery.map(|calls| Interrupted {
                        calls: calls % 16,
                        power_loss: Some(*seed),
                        failing_sync: None,
                    }),
                );
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
                match self.recording {
                    Some(_) => self.disk.kill(), // a recording knows no loss of power
                    None => self.disk.power_loss(self.now_us),
                }
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
            Durability::Interval { .. } | Durability::Os => self.life.base_batch,
        }
    }
}

pub fn options(small: bool, durability: Durability) -> Options {
    Options {
        segment_bytes: if small { 16 << 10 } else { 64 << 10 },
        log_cap_bytes: if small { 48 << 10 } else { 192 << 10 },
        batch_max_bytes: 4096,
        durability,
        ..Options::default()
    }
}

pub fn run(ops: &[Op], options: Options) {
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
    assert!(statistics.segments <= 2, "{statistics:?}");
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
