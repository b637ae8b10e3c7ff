//! Handlers that compute or block, on threads of the runtime for such work.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay_pipeline::{Item, Pipeline, Verdict, source};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

/// Only where something is broken.
const LONGEST: Duration = Duration::from_secs(10);

#[tokio::test]
async fn blocking_handlers_run_and_may_panic() {
    let (messages, source) = source::test();
    let handler = |number: Item<u32>| assert!(*number < 5, "too large");
    let _running = Pipeline::from(source).process_blocking(4, handler).start();
    assert_eq!(messages.send(1).await, Verdict::Ack);
    assert_eq!(messages.send(7).await, Verdict::Requeue);
}

/// What happens while the only thread for blocking calls is busy with another.
fn beside_a_busy_thread<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        let (free, busy) = mpsc::sync_channel::<()>(1);
        let thread = spawn_blocking(move || busy.recv());
        let result = work.await;
        free.send(()).unwrap();
        thread.await.unwrap().unwrap();
        // The thread's next are done, too.
        spawn_blocking(|| ()).await.unwrap();
        result
    })
}

#[test]
fn a_blocking_call_that_ran_out_of_time_before_it_began_does_not_begin() {
    let begun = Arc::new(Mutex::new(Vec::new()));
    let note = begun.clone();
    let pipeline = Pipeline::from(source::iter(0..6))
        .process_blocking(4, move |number: Item<u32>| note.lock().unwrap().push(*number))
        .timeout(Duration::from_millis(10));
    let report = beside_a_busy_thread(pipeline.run()).unwrap();
    assert_eq!((report.timed_out, report.requeued), (6, 6));
    assert!(begun.lock().unwrap().is_empty(), "{begun:?}");
}

#[test]
fn a_dropped_pipeline_gives_back_what_waits_for_a_thread() {
    let begun = Arc::new(Mutex::new(0));
    let note = begun.clone();
    beside_a_busy_thread(async {
        let (messages, source) = source::test();
        let handler = move |_: Item<u32>| *note.lock().unwrap() += 1;
        let running = Pipeline::from(source).process_blocking(2, handler).start();
        let control = running.control();
        let sent = [messages.send(1), messages.send(2)];
        while control.report().taken < 2 {
            yield_now().await;
        }
        drop(running);
        for sent in sent {
            let verdict = timeout(LONGEST, sent).await.expect("the thread is still busy");
            assert_eq!(verdict, Verdict::Requeue);
        }
    });
    assert_eq!(*begun.lock().unwrap(), 0);
}
