//! What a pipeline tells its source that it needs: room for all that it may hold unsettled at a time.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_pipeline::source::Taken;
use forebay_pipeline::{Batch, Batching, Finding, HandOn, Item, Needs, Pipeline, Source, ToBatch};

const HOUR: Duration = Duration::from_secs(3_600);

/// A source without messages, and what it was told last.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Needs>>);

impl Told {
    /// Messages that may be held, and those that may be put off beside them.
    fn room(&self) -> (usize, usize) {
        let needs = self.0.lock().unwrap();
        (needs.held_messages, needs.put_off_messages)
    }
}

impl Source for Told {
    type Value = u32;
    type Receipt = ();

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Taken<Self>> {
        Poll::Pending
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        *self.0.lock().unwrap() = *needs;
        Vec::new()
    }
}

/// Or a batch would wait for messages that do not come, while others of its batcher are in work.
#[tokio::test]
async fn batches_in_work_count_beside_those_that_are_being_made() {
    let told = Told::default();
    let written = async |_: Item<Batch<u32>>| {};
    let running = Pipeline::from(told.clone())
        .process(2, async |number: Item<u32>| ToBatch::named("rows", *number))
        .buffer_max(7)
        .batch_by(Batching::new("rows", 100, HOUR).concurrency(3).held_max(100), written)
        .batch_by(Batching::new("files", 10, HOUR).held_max(10), written)
        .start();
    assert_eq!(told.room(), (2 + 100 + 3 * 100 + 10 + 10, 7 + 3 * 100 + 10));

    let control = running.control();
    assert!(control.set_batch_concurrency("rows", 2));
    assert_eq!(told.room().0, 422, "there may be more again");
    for workers in [5, 1, 5] {
        assert!(control.set_batch_concurrency("rows", workers));
        assert_eq!(told.room().0, 422 + 2 * 2 * 100, "two more in work, and two put off");
    }
    assert!(control.set_batch_concurrency("files", 2));
    control.set_concurrency(4);
    assert_eq!(told.room().0, 422 + 2 * 2 * 100 + 2 * 10 + 2);
}

/// Or its source would give the first no more than that, though workers of the last are idle.
#[tokio::test]
async fn what_the_last_of_a_chain_holds_counts_at_its_beginning() {
    let told = Told::default();
    let beginning = Pipeline::from(told.clone())
        .process(2, async |number: Item<u32>| HandOn(*number))
        .buffer_max(7)
        .into_source(10);
    let running = Pipeline::from(beginning).process(4, async |_: Item<u32>| {});
    let running = running.buffer_max(9_000).start();
    assert_eq!(told.room(), (2 + 10 + 4, 7 + 9_000));
    let control = running.control();
    for workers in [6_000, 1, 6_000] {
        control.set_concurrency(workers);
        assert_eq!(told.room().0, 2 + 10 + 6_000);
    }
    control.upstream()[0].set_concurrency(5);
    assert_eq!(told.room().0, 5 + 10 + 6_000);
}
