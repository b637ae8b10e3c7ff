//! What a broker says of deliveries that came back: `redelivered` over restarts and in long queues.
//!
//! The simulator found what these tests hold; the seeds are those of its first commit.

use forebay_wire::basic;

use crate::rig::{consume, short};
use crate::scene::{Scene, deliveries, numbers, range};

/// Seed 16.
#[test]
fn a_doubt_of_before_a_crash_outlives_a_clean_stop() {
    let mut scene = Scene::new();
    let id = scene.client();
    scene.fill(id, 0..4);
    scene.rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    assert_eq!(deliveries(&scene.answers(id)), [(0, false)]);
    let mut scene = scene.kill().stop();
    let flagged: Vec<(u32, bool)> = (0..4).map(|number| (number, true)).collect();
    assert_eq!(scene.drain(), flagged);
}

/// Found beside seed 16.
#[test]
fn what_is_published_after_a_crash_is_new_also_when_it_comes_from_disk() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..4);
    let mut scene = scene.kill();
    let id = scene.client();
    scene.fill(id, 4..6_000);
    assert!(scene.rig.shard.status().counters.runs_written > 0);
    let found = scene.drain();
    assert_eq!(numbers(&found), range(0..6_000));
    assert!(found.iter().all(|(number, redelivered)| *redelivered == (*number < 4)));
}

/// Seed 32575: deliveries that had come back filled the memory, and nobody could publish any more.
#[test]
fn what_came_back_leaves_memory_when_it_is_short() {
    const BUDGET_BYTES: u64 = 4 << 20;
    let mut scene = Scene::small(BUDGET_BYTES);
    let id = scene.client();
    let hoarder = scene.rig.client();
    scene.rig.method(hoarder, 1, &consume("q", "hoarder", false));
    let mut held = 0;
    while scene.rig.shard.status().memory_bytes < BUDGET_BYTES {
        scene.fill(id, held..held + 100);
        held += 100;
        deliveries(&scene.answers(hoarder));
    }
    // The last few publishes are held until there is room.
    let taken = scene.rig.shard.status().unacked;
    scene.rig.disconnect(hoarder);
    scene.work().expect("the disk works");
    scene.wait_for_the_disk();
    scene.work().expect("the disk works");
    let status = scene.rig.shard.status();
    assert_eq!(status.ready, u64::from(held));
    assert!(status.memory_bytes < BUDGET_BYTES * 3 / 4, "{} bytes", status.memory_bytes);
    let found = scene.drain();
    assert_eq!(numbers(&found), range(0..held));
    assert!(found.iter().all(|(number, redelivered)| *redelivered == (u64::from(*number) < taken)));
}
