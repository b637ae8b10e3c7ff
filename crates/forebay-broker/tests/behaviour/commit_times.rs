//! `forebay.commit_times`: publishers hear with how many they share commits, and of a disk that became slow, those who asked for it.

use std::sync::Arc;

use forebay_broker::{ConnectionId, Input, ShardConfig};
use forebay_store::{Lane, MemDisk, Options, Request, perform};
use forebay_wire::confirm;

use crate::rig::{Rig, declare};

/// A broker whose disk takes as long as a test says.
struct Scene {
    rig: Rig,
    disk: Arc<MemDisk>,
    commits: usize,
}

impl Scene {
    fn new() -> Scene {
        let disk = Arc::new(MemDisk::default());
        let rig = Rig::on_disk(ShardConfig::default(), disk.clone(), Options::default());
        Scene { rig, disk, commits: 0 }
    }

    /// A publisher in confirm mode.
    fn publisher(&mut self, capabilities: &[&str]) -> ConnectionId {
        let id = self.rig.client_that_can(capabilities);
        self.rig.method(id, 1, &confirm::Select::default());
        self.rig.method(id, 1, &declare("q", true));
        self.rig.trace(id);
        id
    }

    /// A message, committed in so much time; what its publisher is sent.
    fn publish(&mut self, id: ConnectionId, took_us: u64) -> Vec<String> {
        self.commits += 1;
        let body = vec![7; 1_000 + self.commits * 379 % 4_000];
        self.rig.publish(id, "q", &body, true);
        self.rig.step(Input::Turn { busy: false });
        while let Some(request) = self.rig.shard.poll_disk(self.rig.now_us) {
            self.rig.now_us += took_us;
            let completion = perform(&*self.disk, request);
            self.rig.step(Input::Disk(completion));
        }
        self.rig.step(Input::Turn { busy: false });
        self.rig.sent(id)
    }

    /// A second of them; what is not an ack, and what came right behind it.
    fn second(&mut self, id: ConnectionId, took_us: u64) -> Vec<[String; 2]> {
        let until_us = self.rig.now_us + 1_000_000;
        let mut told = Vec::new();
        while self.rig.now_us < until_us {
            self.rig.now_us += 1_000;
            let sent = self.publish(id, took_us);
            let is_told = |pair: &&[String]| !pair[0].contains("basic.ack");
            told.extend(
                sent.windows(2).filter(is_told).map(|pair| [0, 1].map(|i| pair[i].clone())),
            );
            assert!(sent.last().is_some_and(|line| line.contains("basic.ack")), "{sent:?}");
        }
        told
    }
}

impl Scene {
    /// Whether a full batch is handed to the disk, which takes so long, behind a commit that is on its way.
    fn follows(&mut self, id: ConnectionId, took_us: u64) -> bool {
        self.rig.publish(id, "q", b"first", true);
        let mut in_flight = self.commits_wanted();
        assert_eq!(in_flight.len(), 1);
        for _ in 0..12 {
            self.rig.publish(id, "q", &[7; 100_000], true);
        }
        let more = self.commits_wanted();
        let follows = !more.is_empty();
        in_flight.extend(more);
        while !in_flight.is_empty() {
            for request in in_flight {
                self.rig.now_us += took_us;
                self.rig.step(Input::Disk(perform(&*self.disk, request)));
            }
            in_flight = self.commits_wanted();
        }
        self.rig.trace(id);
        follows
    }

    /// What the log's lane gets; the others are done with theirs at once.
    fn commits_wanted(&mut self) -> Vec<Request> {
        self.rig.step(Input::Turn { busy: false });
        let mut commits = Vec::new();
        while let Some(request) = self.rig.shard.poll_disk(self.rig.now_us) {
            match request.lane() {
                Lane::Log => commits.push(request),
                Lane::Read | Lane::Background => {
                    self.rig.step(Input::Disk(perform(&*self.disk, request)));
                }
            }
        }
        commits
    }
}

#[test]
fn on_a_disk_of_slow_commits_a_full_batch_waits_for_the_one_before() {
    let mut scene = Scene::new();
    let id = scene.publisher(&[]);
    assert!(scene.follows(id, 200), "unknown");
    scene.second(id, 200);
    assert!(scene.follows(id, 200), "quick");
    scene.second(id, 8_000);
    assert!(!scene.follows(id, 8_000), "slow");
    scene.second(id, 200);
    assert!(scene.follows(id, 200), "quick again");
}

/// Six to eight milliseconds, shared by so many publishers: what was told is not told again for less than an eighth, or a quarter of them.
fn is_slow(word: &str, publishers: u32) -> bool {
    (6..=8).any(|ms| word == format!("0 forebay.commit-time {ms} of {publishers}"))
}

#[test]
fn a_publisher_hears_of_a_disk_that_becomes_slow_and_quick_again_before_its_confirms() {
    let mut scene = Scene::new();
    let id = scene.publisher(&["forebay.commit_times"]);
    let told = scene.second(id, 200);
    assert_eq!(told, [["0 forebay.commit-time 0 of 1", "1 basic.ack 1"]], "a quick disk: once");
    let mut told = scene.second(id, 8_000);
    // Until that is known it is a quick disk that has much to do.
    told.retain(|[word, _]| !word.starts_with("0 forebay.commit-time 0 of 1"));
    assert!((1..=3).contains(&told.len()), "{told:?}");
    assert!(told.iter().all(|[word, then]| is_slow(word, 1) && then.starts_with("1 basic.ack")));
    assert_eq!(scene.second(id, 8_000), [[""; 2]; 0]);
    let told = scene.second(id, 200);
    assert_eq!(told.last().map(|pair| &*pair[0]), Some("0 forebay.commit-time 0 of 1"), "{told:?}");
}

#[test]
fn who_comes_to_a_slow_disk_hears_of_it_with_the_first_confirm() {
    let mut scene = Scene::new();
    let id = scene.publisher(&["forebay.commit_times"]);
    scene.second(id, 200);
    scene.second(id, 8_000);
    let late = scene.publisher(&["forebay.commit_times"]);
    let sent = scene.publish(late, 8_000);
    assert!(sent.len() == 2 && is_slow(&sent[0], 2) && sent[1] == "1 basic.ack 1", "{sent:?}");
    assert_eq!(scene.publish(late, 8_000), ["1 basic.ack 2"]);
}

#[test]
fn a_publisher_hears_how_many_share_a_slow_disk_when_they_are_a_quarter_more_or_fewer() {
    let mut scene = Scene::new();
    let id = scene.publisher(&["forebay.commit_times"]);
    scene.second(id, 200);
    scene.second(id, 8_000);
    let told_of = |scene: &mut Scene| {
        let sent = scene.publish(id, 8_000);
        (0..=9).find(|publishers| is_slow(&sent[0], *publishers))
    };
    let mut others = Vec::new();
    let heard = (0..8).map(|_| {
        others.push(scene.publisher(&[]));
        scene.publish(others[others.len() - 1], 8_000);
        told_of(&mut scene)
    });
    let heard: Vec<_> = heard.collect();
    assert_eq!(heard, [Some(2), Some(3), Some(4), None, Some(6), None, Some(8), None]);
    for id in others {
        scene.rig.disconnect(id);
    }
    assert_eq!(told_of(&mut scene), Some(1));
}

#[test]
fn a_publisher_hears_how_many_publish_on_a_quick_disk_too() {
    let mut scene = Scene::new();
    let id = scene.publisher(&["forebay.commit_times"]);
    scene.second(id, 200);
    let other = scene.publisher(&[]);
    assert_eq!(scene.publish(id, 200).len(), 1, "the other has published nothing");
    scene.publish(other, 200);
    assert_eq!(scene.publish(id, 200)[0], "0 forebay.commit-time 0 of 2");
    scene.rig.disconnect(other);
    assert_eq!(scene.publish(id, 200)[0], "0 forebay.commit-time 0 of 1");
}

/// Which part of what they may have in flight brings anything is tried out with them.
#[test]
fn publishers_of_a_quick_disk_that_is_busy_are_asked_for_more_and_for_less_in_turns() {
    let mut scene = Scene::new();
    let id = scene.publisher(&["forebay.commit_times"]);
    let told = scene.second(id, 1_500);
    let parts: Vec<u32> = told
        .iter()
        .filter_map(|[word, _]| {
            word.strip_prefix("0 forebay.commit-time 0 of 1 part ")?.parse().ok()
        })
        .collect();
    assert!((6..=17).contains(&parts.len()), "{told:?}");
    let more = |pair: &[u32]| 10 * pair[1] > 12 * pair[0];
    let less = |pair: &[u32]| 10 * pair[0] > 12 * pair[1];
    assert!(parts.windows(2).any(more) && parts.windows(2).any(less), "{parts:?}");
    scene.second(id, 300);
    assert_eq!(scene.second(id, 300), [[""; 2]; 0], "it rests");
}

#[test]
fn who_did_not_ask_hears_nothing() {
    let mut scene = Scene::new();
    let id = scene.publisher(&[]);
    for took_us in [200, 8_000, 200] {
        assert_eq!(scene.second(id, took_us), [[""; 2]; 0]);
    }
}
