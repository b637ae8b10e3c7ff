//! Messages that are unsettled for long, from a source that takes back what is for too long; in virtual time.

use std::task::{Context, Poll};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::source::{self, Taken, TestMessages, TestSource};
use forebay_pipeline::{Backoff, Batch, Finding, Item, Needs, Pipeline, Running, Source, ToBatch};
use tokio::time::sleep;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A test's messages, for so long each.
struct Limited(TestSource<u32>, Duration);

impl Source for Limited {
    type Value = u32;
    type Receipt = <TestSource<u32> as Source>::Receipt;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        self.0.poll_next(cx)
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        let found = |oldest: Duration| Finding { name: "old", says: format!("{oldest:?}") };
        needs.oldest.map(found).into_iter().collect()
    }

    fn ack_timeout(&self) -> Option<Duration> {
        Some(self.1)
    }
}

fn limited_to(limit: Duration) -> (TestMessages<u32>, Limited) {
    let (messages, source) = source::test();
    (messages, Limited(source, limit))
}

/// For eight minutes.
fn limited() -> (TestMessages<u32>, Limited) {
    limited_to(8 * MINUTE)
}

/// Ten minutes in which nothing is old, then a message that stays where it is.
async fn warned(messages: TestMessages<u32>, running: Running) {
    let control = running.control();
    sleep(10 * MINUTE).await;
    let _first = messages.send(1);
    sleep(4 * MINUTE - Duration::from_millis(1)).await;
    assert_eq!(control.findings(), [], "before half of the time");
    sleep(2 * MINUTE).await;
    let findings = control.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    let _second = messages.send(2);
    sleep(30 * MINUTE).await;
    assert_eq!(control.findings().len(), 1, "each is told once");
}

#[test]
fn a_message_is_told_of_at_half_of_the_time_that_it_has_wherever_it_is() {
    in_virtual_time(async {
        let (messages, source) = limited();
        let at_work = Pipeline::from(source).process(4, async |_: Item<u32>| sleep(HOUR).await);
        warned(messages, at_work.start()).await;

        let (messages, source) = limited();
        let put_off = Pipeline::from(source)
            .process(4, async |_: Item<u32>| Err::<(), _>("not yet"))
            .retries(Backoff::new(9, HOUR, HOUR));
        warned(messages, put_off.start()).await;

        let (messages, source) = limited();
        let batched = Pipeline::from(source)
            .process(4, async |_: Item<u32>| ToBatch::new(()))
            .batch("rows", 100, HOUR, async |_: Item<Batch<()>>| {});
        warned(messages, batched.start()).await;
    });
}

#[test]
fn what_is_settled_in_time_is_no_finding_nor_where_there_is_no_limit() {
    in_virtual_time(async {
        let (messages, source) = limited();
        let running =
            Pipeline::from(source).process(2, async |_: Item<u32>| sleep(3 * MINUTE).await).start();
        for number in 0..20 {
            drop(messages.send(number));
        }
        sleep(HOUR).await;
        assert_eq!(running.control().report().acked, 20);
        assert_eq!(running.control().findings(), []);

        let (messages, source) = source::test();
        let unlimited =
            Pipeline::from(source).process(2, async |_: Item<u32>| sleep(HOUR).await).start();
        drop(messages.send(1));
        sleep(HOUR / 2).await;
        assert_eq!(unlimited.control().findings(), []);
    });
}

#[test]
fn of_several_sources_the_shortest_time_counts() {
    in_virtual_time(async {
        let ((_idle, first), (messages, second)) = (limited_to(HOUR), limited());
        let (_unlimited, third) = limited_to(Duration::ZERO);
        let merged = source::merge([first, second, third]);
        let running = Pipeline::from(merged).process(2, async |_: Item<u32>| sleep(HOUR).await);
        let running = running.start();
        drop(messages.send(1));
        sleep(6 * MINUTE).await;
        assert!(!running.control().findings().is_empty());
    });
}
