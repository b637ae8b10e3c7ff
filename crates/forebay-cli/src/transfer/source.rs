//! Where the messages come from.

use forebay_client::{ChannelFault, CloseError, Connection, Consumer, DeclareQueue, Delivery};

use super::{Args, RECOVERY_ROUNDS, opening};
use crate::exit::Failure;
use crate::happening::Happenings;

/// A connection to the source, and a consumer on it once there is something to move.
pub(super) struct Source {
    connection: Connection,
    pub(super) happenings: Happenings,
    queue: String,
    consumer: Option<Consumer>,
    /// Deliveries it may hold.
    pub(super) credit_max: u16,
}

impl Source {
    pub(super) async fn open(args: &Args) -> Result<Source, Failure> {
        let builder =
            Connection::builder().name("forebay move, source").recovery_rounds(RECOVERY_ROUNDS);
        let connection = builder
            .open(&args.from)
            .await
            .map_err(|error| opening("the source", "--from", &error))?;
        let happenings = Happenings::of(&connection);
        let queue = args.queue.clone();
        Ok(Source { connection, happenings, queue, consumer: None, credit_max: args.prefetch })
    }

    /// Messages that wait in the queue; those held by consumers do not count. What was on its way to us when it was asked is here when
    /// it answers.
    pub(super) async fn ready(&self) -> Result<u64, String> {
        let sentence = |fault: ChannelFault| format!("the source (--from): {fault}");
        let passive = DeclareQueue { passive: true, ..Default::default() };
        let channel = self.connection.consuming_channel().await.map_err(sentence)?;
        let info = channel.declare_queue(&self.queue, passive).await.map_err(sentence)?;
        Ok(u64::from(info.message_count))
    }

    /// Starts to take messages; the broker sends no more than `most` before the first ack.
    pub(super) async fn consume(&mut self, args: &Args, most: u64) -> Result<(), String> {
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        self.credit_max = args.prefetch.min(most).max(1);
        // Fixed, as changing it on a RabbitMQ takes another consumer, and hands back what the first one
        // holds: that would be out of order, and look like moved before.
        let consumer = self.connection.consumer(&self.queue).fixed_credit(self.credit_max);
        let consumer =
            consumer.build().await.map_err(|error| format!("the source (--from): {error}"))?;
        self.consumer = Some(consumer);
        Ok(())
    }

    /// The next message.
    pub(super) async fn next(&mut self) -> Result<Delivery, String> {
        let Some(consumer) = &mut self.consumer else {
            return Err("the source was closed".to_owned());
        };
        match consumer.next().await {
            Ok(Some(delivery)) => Ok(delivery),
            Ok(None) => Err("the source was stopped".to_owned()),
            Err(error) => Err(format!("the source (--from): {error}")),
        }
    }

    /// Whether messages wait on our side.
    pub(super) fn has_ready(&self) -> bool {
        self.consumer.as_ref().is_some_and(|consumer| consumer.metrics().ready > 0)
    }

    /// Takes no more; what has arrived and was not taken goes back.
    pub(super) fn stop(&mut self) {
        if let Some(consumer) = &mut self.consumer {
            consumer.stop();
        }
    }

    /// Sends the last acks and waits until the source has them.
    pub(super) async fn close(&mut self) -> Result<(), CloseError> {
        self.stop();
        self.consumer = None;
        self.connection.clone().close().await
    }
}
