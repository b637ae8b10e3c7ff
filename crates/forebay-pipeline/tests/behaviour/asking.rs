//! What happens while a source is being asked.

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_pipeline::source::{Later, Leaving, Taken};
use forebay_pipeline::{Finding, Item, Outcome, Pipeline, Source};
use tokio::sync::Notify;
use tokio::task::block_in_place;

/// Only where something is broken: whoever finds a place that is not his looks at the source then, and keeps his thread.
const LONGEST: Duration = Duration::from_secs(1);

/// Two messages. The second is not found before the first was put off, and that begins when it is looked for.
struct Slow {
    asked: u32,
    looks: Arc<Notify>,
    put_off: mpsc::SyncSender<()>,
    was_put_off: mpsc::Receiver<()>,
}

impl Source for Slow {
    type Value = (u32, mpsc::SyncSender<()>);
    type Receipt = ();

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Taken<Self>> {
        self.asked += 1;
        match self.asked {
            1 => {}
            2 => {
                self.looks.notify_one();
                let _ = block_in_place(|| self.was_put_off.recv_timeout(LONGEST));
            }
            _ => return Poll::Ready(Ok(None)),
        }
        Poll::Ready(Ok(Some(((self.asked, self.put_off.clone()), ()))))
    }

    /// Not, but what asks for it comes after a place was looked for.
    fn later(message: &Self::Value, (): &(), _: Later) -> Option<Leaving> {
        let put_off = message.1.clone();
        Some(Box::pin(async move {
            put_off.send(()).unwrap();
            Err(Finding { name: "not-later", says: "not here".to_owned() })
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_put_off_meanwhile_leaves_a_place_for_the_answer() {
    let (put_off, was_put_off) = mpsc::sync_channel(1);
    let looks = Arc::new(Notify::new());
    let source = Slow { asked: 0, looks: looks.clone(), put_off, was_put_off };
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = order.clone();
    let handler = move |message: Item<<Slow as Source>::Value>| {
        let (looks, number, attempt) = (looks.clone(), message.0, message.attempt());
        note.lock().unwrap().push((number, attempt));
        async move {
            if (number, attempt) != (1, 1) {
                return Outcome::Ack;
            }
            looks.notified().await;
            Outcome::Retry(Duration::from_millis(1))
        }
    };
    let report = Pipeline::from(source).process(2, handler).buffer_max(1).run().await.unwrap();
    assert_eq!((report.acked, report.retried), (2, 1));
    let mut order = order.lock().unwrap().clone();
    order.sort_unstable();
    assert_eq!(order, [(1, 1), (1, 2), (2, 1)]);
}
