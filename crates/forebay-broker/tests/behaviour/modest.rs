//! Who sends a message now and then, beside one who fills the commits that it waits for.

use std::sync::Arc;

use forebay_broker::{ConnectionId, Input, ShardConfig};
use forebay_store::{MemDisk, Options, perform};
use forebay_wire::confirm;

use crate::rig::{Rig, declare};

const KIB: usize = 1024;

struct Scene {
    rig: Rig,
    disk: Arc<MemDisk>,
    flood: ConnectionId,
    modest: ConnectionId,
}

impl Scene {
    fn new() -> Scene {
        let disk = Arc::new(MemDisk::default());
        let mut rig = Rig::on_disk(ShardConfig::default(), disk.clone(), Options::default());
        let [flood, modest] = [(), ()].map(|()| rig.client());
        rig.method(modest, 1, &confirm::Select::default());
        rig.method(flood, 1, &declare("q", true));
        Scene { rig, disk, flood, modest }
    }

    /// A commit of all that has room in it, of `modest_messages` of a kilobyte and a flood; returns the flood's part. It
    /// takes 300 us and a microsecond for 500 bytes.
    fn commit(&mut self, modest_messages: usize, most_bytes: usize) -> usize {
        for _ in 0..modest_messages {
            self.rig.publish(self.modest, "q", &[1; KIB], true);
        }
        let mut bytes = 0;
        while self.rig.shard.takes_publishes() && bytes < most_bytes {
            self.rig.publish(self.flood, "q", &[7; 8 * KIB], true);
            bytes += 8 * KIB;
        }
        self.rig.step(Input::Turn { busy: false });
        while let Some(request) = self.rig.shard.poll_disk(self.rig.now_us) {
            self.rig.now_us += 300 + bytes as u64 / 500;
            let completion = perform(&*self.disk, request);
            self.rig.step(Input::Disk(completion));
        }
        self.rig.step(Input::Turn { busy: false });
        bytes
    }

    /// So many commits of different sizes, so that it is known what bytes cost.
    fn warm_up(&mut self, modest_messages: usize) {
        for number in 1..=40 {
            self.commit(modest_messages, number * 20 * KIB);
        }
    }
}

#[test]
fn commits_are_small_while_somebody_modest_waits_for_them_and_for_a_second_after() {
    let mut scene = Scene::new();
    scene.warm_up(0);
    let alone = scene.commit(0, 64 << 20);
    assert!(alone >= 1 << 20, "{alone}");
    scene.warm_up(1);
    let beside = scene.commit(1, 64 << 20);
    assert!((200 * KIB..=272 * KIB).contains(&beside), "{beside}");
    scene.rig.now_us += 900_000;
    assert!(scene.commit(0, 64 << 20) <= 272 * KIB);
    scene.rig.now_us += 200_000;
    scene.commit(0, 0);
    scene.commit(0, 64 << 20);
    assert!(scene.commit(0, 64 << 20) >= 1 << 20);
}

#[test]
fn who_fills_a_good_part_of_them_is_not_modest() {
    let mut scene = Scene::new();
    scene.warm_up(60);
    let beside = scene.commit(60, 64 << 20);
    assert!(beside >= 900 * KIB, "{beside}");
}
