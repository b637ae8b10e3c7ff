//! A broker on a disk that breaks, and what comes back from it.

use std::sync::Arc;

use forebay_broker::{Admission, ConnectionId, Input, ShardConfig};
use forebay_store::{Lane, MemDisk, Options, StoreFailed, perform};
use forebay_wire::{basic, confirm};

use crate::rig::{Rig, consume, declare};

/// A broker on a disk in memory; both are there after a crash.
pub struct Scene {
    pub disk: Arc<MemDisk>,
    pub config: ShardConfig,
    pub options: Options,
    pub rig: Rig,
    /// Blocks read from runs.
    pub blocks_read: u32,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::with(ShardConfig::default(), Options::default())
    }

    pub fn with(config: ShardConfig, options: Options) -> Scene {
        let disk = Arc::new(MemDisk::new());
        let rig = Rig::on_disk(config.clone(), disk.clone(), options.clone());
        Scene { disk, config, options, rig, blocks_read: 0 }
    }

    /// With so little memory that backlogs go to disk, and a log of small segments.
    pub fn small(memory_budget_bytes: u64) -> Scene {
        Scene::of_little(ShardConfig { memory_budget_bytes, ..ShardConfig::default() })
    }

    /// The same without a limit for acknowledgements.
    pub fn patient(memory_budget_bytes: u64) -> Scene {
        let default = ShardConfig::default();
        Scene::of_little(ShardConfig { memory_budget_bytes, ack_timeout_ms: 0, ..default })
    }

    fn of_little(config: ShardConfig) -> Scene {
        let options = Options {
            segment_bytes: 256 << 10,
            log_cap_bytes: 1 << 20,
            batch_max_bytes: 32 << 10,
            ..Options::default()
        };
        Scene::with(config, options)
    }

    pub fn open_again(self) -> Scene {
        let Scene { disk, config, options, rig, .. } = self;
        drop(rig);
        let rig = Rig::on_disk(config.clone(), disk.clone(), options.clone());
        Scene { disk, config, options, rig, blocks_read: 0 }
    }

    /// It is stopped, everybody agreeing, and started again.
    pub fn stop(self) -> Scene {
        let Scene { disk, config, options, rig, .. } = self;
        rig.stop();
        disk.kill();
        let rig = Rig::on_disk(config.clone(), disk.clone(), options.clone());
        Scene { disk, config, options, rig, blocks_read: 0 }
    }

    /// The process is killed and started again.
    pub fn kill(self) -> Scene {
        self.disk.kill();
        self.open_again()
    }

    /// The power goes and comes back.
    pub fn lose_power(self, seed: u64) -> Scene {
        self.disk.power_loss(seed);
        self.open_again()
    }

    /// A client in confirm mode with the durable queue `q`.
    pub fn client(&mut self) -> ConnectionId {
        let id = self.rig.client();
        self.rig.method(id, 1, &confirm::Select::default());
        self.rig.method(id, 1, &declare("q", true));
        let answer = self.answers(id);
        assert!(
            answer.last().is_some_and(|line| line.contains("queue.declare-ok q")),
            "{answer:?}"
        );
        id
    }

    /// Publishes numbered persistent messages of about 1 KB and waits until all are confirmed.
    pub fn fill(&mut self, id: ConnectionId, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.rig.publish(id, "q", body(number).as_bytes(), true);
            if number.is_multiple_of(16) {
                self.work().expect("the disk works");
            }
        }
        self.work().expect("the disk works");
        let answers = self.answers(id);
        assert!(answers.iter().all(|line| line.contains("basic.ack")), "{answers:?}");
    }

    /// Time passes and the disk does nothing.
    pub fn wait_for_the_disk(&mut self) {
        self.rig.now_us += 5_000_000;
        self.rig.step(Input::Tick);
        self.rig.step(Input::Turn { busy: false });
    }

    /// Turns, ticks and disk work until nothing happens any more; or until the disk fails.
    pub fn work(&mut self) -> Result<(), StoreFailed> {
        let mut idle_rounds = 0;
        while idle_rounds < 4 {
            let was_busy = one_round(self)?;
            idle_rounds = if was_busy { 0 } else { idle_rounds + 1 };
        }
        Ok(())
    }

    /// Whenever the disk has done something publishers come before the next turn, with more than there is room for. What is published
    /// to this queue, in 300 rounds, has the body of its number; returns how many there are.
    pub fn overfill(
        &mut self,
        id: ConnectionId,
        queue: &str,
        body: impl Fn(u32) -> Vec<u8>,
    ) -> u32 {
        let mut number = 0;
        for _ in 0..300 {
            loop {
                match self.rig.shard.admission(id) {
                    Admission::Open => {
                        self.rig.publish(id, queue, &body(number), true);
                        number += 1;
                    }
                    Admission::Resume => self.rig.bytes(id, &[]),
                    _ => break,
                }
            }
            self.rig.step(Input::Turn { busy: true });
            let Some(request) = self.rig.shard.poll_disk(self.rig.now_us) else {
                self.rig.now_us += 100;
                self.rig.step(Input::Tick);
                continue;
            };
            let completion = perform(&*self.disk, request);
            self.rig.step(Input::Disk(completion));
        }
        number
    }

    /// What was sent to a client after all work was done.
    pub fn answers(&mut self, id: ConnectionId) -> Vec<String> {
        self.work().expect("the disk works");
        self.rig.sent(id)
    }

    /// Takes everything out of `q` with a new consumer, acking as it goes.
    pub fn drain(&mut self) -> Vec<(u32, bool)> {
        let id = self.rig.client();
        self.rig.method(id, 1, &basic::Qos { prefetch_count: 50, ..basic::Qos::default() });
        self.rig.method(id, 1, &consume("q", "drain", false));
        let mut all = Vec::new();
        loop {
            let got = deliveries(&self.answers(id));
            if got.is_empty() {
                break;
            }
            all.extend(got);
            let ack = basic::Ack { delivery_tag: all.len() as u64, multiple: true };
            self.rig.method(id, 1, &ack);
        }
        self.rig.disconnect(id);
        self.work().expect("the disk works");
        all
    }
}

pub fn body(number: u32) -> String {
    format!("{number:06} {}", "x".repeat(1000))
}

/// Number and redelivered flag of each delivered message.
pub fn deliveries(lines: &[String]) -> Vec<(u32, bool)> {
    lines
        .iter()
        .filter(|line| line.contains("basic.deliver") || line.contains("basic.get-ok"))
        .map(|line| {
            let (head, body) = line.split_once('[').expect("a body");
            (body[..6].parse().expect("a number"), head.contains("redelivered"))
        })
        .collect()
}

pub fn numbers(found: &[(u32, bool)]) -> Vec<u32> {
    found.iter().map(|(number, _)| *number).collect()
}

pub fn range(numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.collect()
}

/// Ten milliseconds: a tick, a turn, and what the disk has to do by then. Whether it had something.
pub fn one_round(scene: &mut Scene) -> Result<bool, StoreFailed> {
    let rig = &mut scene.rig;
    rig.now_us += 10_000;
    rig.shard.step(rig.now_us, Input::Tick)?;
    rig.shard.step(rig.now_us, Input::Turn { busy: false })?;
    let mut busy = false;
    while !rig.disk_stalled
        && let Some(request) = rig.shard.poll_disk(rig.now_us)
    {
        busy = true;
        scene.blocks_read += u32::from(request.lane() == Lane::Read);
        let completion = perform(&*scene.disk, request);
        rig.shard.step(rig.now_us, Input::Disk(completion))?;
    }
    rig.shard.step(rig.now_us, Input::Turn { busy: false })?;
    busy |= rig.resume();
    Ok(busy)
}
