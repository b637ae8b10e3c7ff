//! Queues that go, with what they have in runs.

mod support;

use forebay_store::{Recovered, RunBuilder};
use support::small_store::{filled, opened, payload, pump, small};

#[test]
fn a_queue_takes_its_own_runs_with_it_and_no_others() {
    let (disk, mut store, _) = filled(1);
    let homes = [8, 9].map(|queue| (queue, store.publish(&[(queue, 1)], &payload(queue))));
    pump(&disk, &mut store, 1_000_000).unwrap();
    for (queue, home) in homes {
        let mut builder = RunBuilder::new();
        builder.push(1, home, &payload(queue));
        store.write_run(queue, builder, true);
    }
    pump(&disk, &mut store, 2_000_000).unwrap();
    // One that was there at the start, and one that was made since.
    let (mut store, recovered) = opened(&disk, small());
    let runs = |recovered: &Recovered| {
        let runs = recovered.queues.iter().map(|queue| (queue.id, queue.runs.len()));
        runs.collect::<Vec<_>>()
    };
    assert_eq!(runs(&recovered), [(7, 0), (8, 1), (9, 1)]);
    let home = store.publish(&[(8, 2)], &payload(2));
    let mut builder = RunBuilder::new();
    builder.push(2, home, &payload(2));
    store.write_run(8, builder, true);
    pump(&disk, &mut store, 20_000).unwrap();
    assert_eq!(store.statistics().runs, 3);
    store.forget_queue(8);
    for turn in 2..6 {
        pump(&disk, &mut store, turn * 20_000).unwrap();
    }
    assert_eq!(store.statistics().runs, 1);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(runs(&recovered), [(7, 0), (9, 1)]);
}
