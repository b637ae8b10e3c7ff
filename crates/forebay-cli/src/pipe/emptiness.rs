//! Whether a pipeline has done all there was: `--until-empty`.

use std::time::Duration;

use forebay::pipeline::Control;
use forebay::{Connection, DeclareQueue};
use tokio::time::timeout;

/// A broker that takes longer to answer is asked again, so that signals are noticed meanwhile.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// Asks pipeline and broker, from time to time.
pub(super) struct Emptiness<'a> {
    control: &'a Control,
    connection: &'a Connection,
    queue: &'a str,
    /// What had been taken when nothing was left the last time; `None` if something was.
    seen: Option<u64>,
}

impl<'a> Emptiness<'a> {
    pub(super) fn new(control: &'a Control, connection: &'a Connection, queue: &'a str) -> Self {
        Emptiness { control, connection, queue, seen: None }
    }

    /// Whether nothing is in work and nothing in the queue, twice in a row without a message between: one may be on its
    /// way here when the broker counts none. Nor while nothing may begin: then messages may be here that nobody takes.
    pub(super) async fn is_reached(&mut self) -> bool {
        let report = self.control.report();
        let idle = report.taken == report.settled() && self.control.may_begin();
        let empty = idle && timeout(ANSWER_PATIENCE, self.queue_is_empty()).await.unwrap_or(false);
        let before = std::mem::replace(&mut self.seen, empty.then_some(report.taken));
        empty && before == self.seen
    }

    /// A broker that cannot say so now, for instance while the connection is opened again, is asked again later.
    async fn queue_is_empty(&mut self) -> bool {
        // Where messages come: the answer comes behind those that are on their way.
        let Ok(channel) = self.connection.consuming_channel().await else { return false };
        let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
        let info = channel.declare_queue(self.queue, passive).await;
        info.is_ok_and(|info| info.message_count == 0)
    }
}

#[cfg(test)]
mod tests {
    use forebay::pipeline::{Breaker, Item, Pipeline, QueueSource};
    use forebay::{Broker, Queue, Received, Route, Topology};

    use super::*;

    #[tokio::test]
    async fn what_the_client_has_and_nobody_may_begin_is_left() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let broker = Broker::in_memory().unwrap();
        let connection = broker.connect().await.unwrap();
        connection.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
        let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
        for body in ["fails", "waits"] {
            publisher.publish(body).await.unwrap().await.unwrap();
        }
        // As on a broker whose consumers do not give back what they were sent.
        let source = QueueSource::from(connection.consumer("q").fixed_credit(2)).keep_credit();
        let running = Pipeline::from(source)
            .process(1, async |_: Item<Received>| Err::<(), _>("it is down"))
            .breaker(Breaker::new(1, HOUR, HOUR))
            .start();
        let control = running.control();
        let mut emptiness = Emptiness::new(&control, &connection, "q");
        while control.report().settled() == 0 || !emptiness.queue_is_empty().await {
            tokio::task::yield_now().await;
        }
        assert_eq!(control.report().taken, 1);
        assert!(!control.may_begin());
        for _ in 0..3 {
            assert!(!emptiness.is_reached().await);
        }
        drop(running);
    }
}
