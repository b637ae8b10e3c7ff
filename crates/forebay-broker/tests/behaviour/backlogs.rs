//! Backlogs on disk: who asks for what lies there, and when it is read.

use forebay_broker::ConnectionId;
use forebay_wire::{basic, queue};

use crate::rig::{consume, declare, short};
use crate::scene::{Scene, numbers, range};

fn get(queue: &str) -> basic::Get<'_> {
    basic::Get { queue: short(queue), no_ack: true, ..basic::Get::default() }
}

/// Takes messages from `q` until one lies on disk and its get waits. Returns how many were in memory.
fn get_until_one_waits(scene: &mut Scene, id: ConnectionId) -> u32 {
    for got in 0..6_000 {
        scene.rig.method(id, 1, &get("q"));
        if scene.rig.sent(id).is_empty() {
            return got;
        }
    }
    panic!("all of it is in memory");
}

/// The simulator's seed 1013983: such a get waited for ever.
#[test]
fn a_get_that_waits_for_the_disk_is_answered_by_a_purge() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let got = get_until_one_waits(&mut scene, id);
    scene.rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    let left = 6_000 - got;
    assert_eq!(
        scene.rig.sent(id),
        ["1 basic.get-empty".to_owned(), format!("1 queue.purge-ok {left}")]
    );
}

/// The simulator's seed 202: the answer of a queue in memory came before that of one on disk.
#[test]
fn gets_are_answered_in_the_order_of_their_channel() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    scene.rig.method(id, 1, &declare("short", false));
    scene.rig.publish(id, "short", b"000000 short", false);
    scene.answers(id);
    get_until_one_waits(&mut scene, id);
    scene.rig.method(id, 1, &get("short"));
    scene.rig.method(id, 1, &get("q"));
    scene.rig.method(id, 1, &get("short"));
    assert_eq!(scene.rig.sent(id), Vec::<String>::new());
    let answers = scene.answers(id);
    let order: Vec<&str> = answers
        .iter()
        .map(|line| match line {
            line if line.contains("get-empty") => "empty",
            line if line.contains("000000 short") => "short",
            _ => "q",
        })
        .collect();
    assert_eq!(order, ["q", "short", "q", "empty"]);
}

/// The simulator's seed 17954181201709: it asked the queue that was, not the one that has its name by now.
#[test]
fn a_get_behind_another_whose_queue_was_made_anew_meanwhile_is_answered_empty() {
    let mut scene = Scene::small(4 << 20);
    let (id, other) = (scene.client(), scene.rig.client());
    scene.fill(id, 0..6_000);
    scene.rig.method(other, 1, &declare("short", false));
    scene.rig.publish(other, "short", b"000000 before", false);
    scene.answers(other);
    get_until_one_waits(&mut scene, id);
    scene.rig.method(id, 1, &get("short"));
    let delete = queue::Delete { queue: short("short"), ..queue::Delete::default() };
    scene.rig.method(other, 1, &delete);
    scene.rig.method(other, 1, &declare("short", false));
    scene.rig.publish(other, "short", b"000000 after", false);
    assert_eq!(scene.rig.sent(id), Vec::<String>::new());
    let answers = scene.answers(id);
    assert!(answers.len() == 2 && answers[1].contains("get-empty"), "{answers:?}");
    scene.rig.method(id, 1, &get("short"));
    assert!(scene.answers(id)[0].contains("000000 after"));
}

/// Overloaded, memory is pressed all the time. A block of a thousand messages was cut to 16 each time somebody looked,
/// and read again for the next ones: 105 reads in place of 29, one or two for each run.
#[test]
fn a_long_queue_is_read_once_while_memory_is_pressed() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let other = scene.rig.client();
    scene.rig.method(other, 1, &declare("held", false));
    scene.rig.method(other, 1, &consume("held", "holder", false));
    for _ in 0..580 {
        scene.rig.publish(other, "held", &[7; 100_000], false);
        scene.answers(other);
    }
    let pressed = scene.rig.shard.status().memory_bytes;
    assert!(pressed > 58 << 20, "{pressed} bytes, by deliveries that nobody acknowledges");
    scene.blocks_read = 0;
    assert_eq!(numbers(&scene.drain()), range(0..6_000));
    assert!((1..=40).contains(&scene.blocks_read), "{} blocks", scene.blocks_read);
}
