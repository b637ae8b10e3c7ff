//! Every moment of a short history of a broker: after each call to the disk the process is killed, and the
//! power lost in many ways. What clients were promised by then is there, nothing else is, and a second
//! start finds the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_broker::{ConnectionId, ShardConfig};
use forebay_store::fault_disk::RecordingDisk;
use forebay_store::{MemDisk, Options};
use forebay_wire::{Properties, basic, confirm, queue, tx};

use crate::rig::{Rig, consume, declare, publish_bytes, short};

/// Ways to lose power tried after each call, or as many as `FOREBAY_TORN` says.
const TORN_MOST: usize = 16;

/// What clients know at one moment.
#[derive(Clone, Debug, Default)]
struct Promise {
    /// Queue and number: confirmed, and not settled.
    present: BTreeSet<(&'static str, u32)>,
    /// Published: may be there, confirmed or not.
    possible: BTreeSet<(&'static str, u32)>,
    /// Queues that are there for certain, and that may be.
    queues: BTreeSet<&'static str>,
    possible_queues: BTreeSet<&'static str>,
}

/// Messages that come together or not at all.
const TOGETHER: [u32; 3] = [10, 11, 12];

struct Story {
    rig: Rig,
    recording: Arc<RecordingDisk>,
    client: ConnectionId,
    now: Promise,
    /// From this many calls on, this holds.
    promises: Vec<(usize, Promise)>,
}

impl Story {
    fn begin() -> Story {
        let disk = Arc::new(MemDisk::new());
        let recording = Arc::new(RecordingDisk::new(disk).expect("an empty disk is read"));
        let mut rig = Rig::on_disk(ShardConfig::default(), recording.clone(), options());
        let client = rig.client();
        rig.method(client, 1, &confirm::Select::default());
        let mut story = Story {
            rig,
            recording,
            client,
            now: Promise::default(),
            promises: vec![(0, Promise::default())],
        };
        story.promised();
        story
    }

    /// What is on its way may be on the disk from the call after the last one on.
    fn asked(&mut self) {
        self.promises.push((self.recording.calls(), self.now.clone()));
    }

    /// All work is done and all answers are there: what was possible is certain.
    fn promised(&mut self) -> Vec<String> {
        let answers = self.rig.trace(self.client);
        self.now.possible = self.now.present.clone();
        self.now.possible_queues = self.now.queues.clone();
        self.asked();
        answers
    }

    fn declare(&mut self, name: &'static str) {
        self.now.possible_queues.insert(name);
        self.asked();
        self.rig.method(self.client, 1, &declare(name, true));
        self.rig.method(
            self.client,
            1,
            &queue::Bind {
                queue: short(name),
                exchange: short("amq.fanout"),
                ..queue::Bind::default()
            },
        );
        self.now.queues.insert(name);
        assert!(self.promised().concat().contains("declare-ok"));
    }

    fn delete(&mut self, name: &'static str) {
        self.now.queues.remove(name);
        self.now.present.retain(|message| message.0 != name);
        self.asked();
        self.rig.method(
            self.client,
            1,
            &queue::Delete { queue: short(name), ..queue::Delete::default() },
        );
        assert!(self.promised().concat().contains("delete-ok"));
    }

    /// Published in one go, and confirmed.
    fn publish(&mut self, exchange: &str, queues: &[&'static str], numbers: &[u32]) {
        let messages: Vec<_> = queues
            .iter()
            .flat_map(|queue| numbers.iter().map(move |number| (*queue, *number)))
            .collect();
        self.now.possible.extend(messages.iter().copied());
        self.asked();
        for &number in numbers {
            let bytes = publish_bytes(exchange, queues[0], false, &persistent(), &body(number));
            self.rig.bytes(self.client, &bytes);
        }
        self.now.present.extend(messages);
        assert!(self.promised().concat().contains("basic.ack"));
    }

    /// The first messages of a queue are taken; one of them is acknowledged.
    fn take(&mut self, name: &'static str, acknowledged: u32) {
        let consumer = self.rig.client();
        self.rig.method(consumer, 1, &consume(name, "taker", false));
        let found = numbers(&self.rig.trace(consumer));
        let tag = found.iter().position(|number| *number == acknowledged).expect("it is there");
        self.now.present.remove(&(name, acknowledged));
        self.asked();
        let ack = basic::Ack { delivery_tag: tag as u64 + 1, multiple: false };
        self.rig.method(consumer, 1, &ack);
        self.rig.disconnect(consumer);
        self.promised();
    }

    fn transaction(&mut self, queue: &'static str) {
        let client = self.rig.client();
        self.rig.method(client, 1, &tx::Select::default());
        self.now.possible.extend(TOGETHER.map(|number| (queue, number)));
        self.asked();
        for number in TOGETHER {
            let bytes = publish_bytes("", queue, false, &persistent(), &body(number));
            self.rig.bytes(client, &bytes);
        }
        self.rig.method(client, 1, &tx::Commit::default());
        assert!(self.rig.trace(client).concat().contains("commit-ok"));
        self.now.present.extend(TOGETHER.map(|number| (queue, number)));
        self.promised();
    }
}

/// What holds of a disk after so many calls.
fn promise_at(promises: &[(usize, Promise)], calls: usize) -> &Promise {
    let reached = promises.partition_point(|promise| promise.0 <= calls);
    &promises[reached - 1].1
}

fn options() -> Options {
    Options {
        segment_bytes: 32 << 10,
        log_cap_bytes: 96 << 10,
        batch_max_bytes: 8 << 10,
        ..Options::default()
    }
}

fn persistent() -> Properties<'static> {
    Properties { delivery_mode: Some(2), ..Properties::default() }
}

fn body(number: u32) -> Vec<u8> {
    format!("{number:06} {}", "x".repeat(number as usize * 31 % 700)).into_bytes()
}

/// The numbers of delivered messages, whose bodies must be whole.
fn numbers(lines: &[String]) -> Vec<u32> {
    let bodies = lines.iter().filter(|line| line.contains("basic.deliver"));
    bodies
        .map(|line| {
            let text = line.split_once('[').expect("a body").1.strip_suffix(']').expect("its end");
            let number = text[..6].parse().expect("a number");
            assert_eq!(text.as_bytes(), body(number), "the body of {number}");
            number
        })
        .collect()
}

const NAMES: [&str; 2] = ["kept", "deleted"];

/// Starts a broker on what a crash left; the messages of each queue that is there.
fn started(disk: Arc<MemDisk>) -> BTreeMap<&'static str, Vec<u32>> {
    let mut rig = Rig::on_disk(ShardConfig::default(), disk, options());
    let mut contents = BTreeMap::new();
    for name in NAMES {
        let client = rig.client();
        rig.method(client, 1, &consume(name, "reader", false));
        let answers = rig.trace(client);
        if !answers[0].contains("404") {
            contents.insert(name, numbers(&answers));
        }
    }
    contents
}

fn keeps(disk: MemDisk, promise: &Promise, context: &str) {
    let disk = Arc::new(disk);
    let found = started(disk.clone());
    let queues: BTreeSet<_> = found.keys().copied().collect();
    assert!(promise.queues.is_subset(&queues), "{context}: {queues:?}");
    assert!(queues.is_subset(&promise.possible_queues), "{context}: {queues:?}");
    let mut messages = BTreeSet::new();
    for (&queue, numbers) in &found {
        assert!(numbers.is_sorted(), "{context}: {numbers:?}");
        for &number in numbers {
            assert!(messages.insert((queue, number)), "{context}: {number} came twice");
        }
        let together = TOGETHER.iter().filter(|number| numbers.contains(number)).count();
        assert!([0, TOGETHER.len()].contains(&together), "{context}: {numbers:?}");
    }
    let lost: Vec<_> = promise.present.difference(&messages).collect();
    assert!(lost.is_empty(), "{context}: lost {lost:?}");
    let invented: Vec<_> = messages.difference(&promise.possible).collect();
    assert!(invented.is_empty(), "{context}: invented {invented:?}");
    disk.kill();
    assert_eq!(started(disk), found, "{context}: found something else the second time");
}

#[test]
fn every_moment_of_a_broker_can_be_recovered_from() {
    let mut story = Story::begin();
    story.declare("kept");
    story.publish("", &["kept"], &[1]);
    story.publish("", &["kept"], &[2, 3, 4]);
    story.take("kept", 2);
    story.transaction("kept");
    story.declare("deleted");
    story.publish("amq.fanout", &["kept", "deleted"], &[20, 21]);
    story.take("deleted", 20);
    story.delete("deleted");
    story.publish("", &["kept"], &[30]);
    story.take("kept", 30);
    let Story { rig, recording, promises, .. } = story;
    rig.stop();

    let torn_most = std::env::var("FOREBAY_TORN")
        .map_or(TORN_MOST, |most| most.parse().expect("FOREBAY_TORN is a number"));
    let calls = recording.calls();
    assert!(calls > 30, "{calls} calls");
    for (calls, disk) in recording.prefixes().enumerate() {
        let promise = promise_at(&promises, calls);
        keeps(disk.fork(), promise, &format!("killed after call {calls}"));
        for (way, torn) in disk.torn(torn_most).enumerate() {
            keeps(torn, promise, &format!("power lost after call {calls}, in way {way}"));
        }
    }
}
