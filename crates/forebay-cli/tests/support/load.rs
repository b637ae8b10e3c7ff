//! Publishers and consumers that work until the broker is gone, and say what they did.

use forebay_client::blocking::{
    Channel, ChannelFault, Connection, ConsumeError, ConsumeOptions, Message, Publication,
};
use forebay_wire::Properties;

use super::message::{Id, Messages};
use super::model::{Consumed, Published};
use super::random::Random;

/// Unacked deliveries a consumer may have.
const PREFETCH: u16 = 60;
/// Deliveries a consumer holds back for good.
const HELD_MAX: usize = 20;

/// Whether a fault is the broker's end and no more.
fn is_the_end(fault: &ChannelFault) -> bool {
    use forebay_client::blocking::Lost;
    match fault {
        ChannelFault::Lost(Lost::Closed(refusal)) => refusal.code == 320,
        ChannelFault::Lost(Lost::Failed(_) | Lost::Io(_) | Lost::ClosedByUs) => true,
        _ => false,
    }
}

/// Publishes from number `first` on with a window, until the broker is gone.
pub fn publish(
    url: &str,
    messages: &Messages,
    publisher: u32,
    first: u64,
    window: u64,
) -> Published {
    let mut report = Published { publisher, first, last: first - 1, ..Published::default() };
    let Ok(connection) = Connection::open(url) else { return report };
    let Ok(mut channel) = connection.channel() else { return report };
    let fault = publish_on(&mut channel, messages, window, &mut report);
    collect_confirms(&mut channel, &mut report);
    if !is_the_end(&fault) {
        report.wrong.push(format!("publisher {publisher}: {fault}"));
    }
    report
}

fn publish_on(
    channel: &mut Channel,
    messages: &Messages,
    window: u64,
    report: &mut Published,
) -> ChannelFault {
    let (mut name, mut body) = (String::new(), Vec::new());
    if let Err(fault) = channel.confirm_select(window) {
        return fault;
    }
    loop {
        let id = Id { publisher: report.publisher, number: report.last + 1 };
        report.last = id.number;
        if let Err(fault) = channel.publish(&messages.publication(id, &mut name, &mut body)) {
            return fault;
        }
        if id.number.is_multiple_of(64) {
            collect_confirms(channel, report);
        }
    }
}

fn collect_confirms(channel: &mut Channel, report: &mut Published) {
    for settled in channel.take_settled() {
        let range = (report.first + settled.first - 1, report.first + settled.last - 1);
        if settled.acked {
            report.confirmed.push(range);
        } else {
            report.wrong.push(format!("the broker refused {range:?}"));
        }
    }
}

/// Consumes `queue`: acks most, requeues some, holds some, until the broker is gone.
pub fn consume(url: &str, messages: &Messages, queue: &'static str, random: Random) -> Consumed {
    let mut report = Consumed { queue, ..Consumed::default() };
    let Ok(connection) = Connection::open(url) else { return report };
    let Ok(channel) = connection.channel() else { return report };
    let mut consuming =
        Consuming { channel, random, held: Vec::new(), unsure: Vec::new(), acked_count: 0 };
    match consuming.run(messages, &mut report) {
        ConsumeError::Channel(fault) if is_the_end(&fault) => {}
        error => report.wrong.push(format!("consumer of {queue}: {error}")),
    }
    report
}

struct Consuming {
    channel: Channel,
    random: Random,
    /// Delivered and not to be settled, with their tags.
    held: Vec<(u64, Id)>,
    /// Acked since the last marker.
    unsure: Vec<Id>,
    acked_count: u64,
}

impl Consuming {
    fn run(&mut self, messages: &Messages, report: &mut Consumed) -> ConsumeError {
        let options = ConsumeOptions { prefetch: PREFETCH, ..ConsumeOptions::default() };
        if let Err(fault) = self.channel.confirm_select(1) {
            return fault.into();
        }
        let mut consumer = match self.channel.consume(report.queue, options) {
            Ok(consumer) => consumer,
            Err(error) => return error,
        };
        loop {
            let message = match consumer.next_message(None) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(error) => return error,
            };
            match messages.check(&message, report.queue) {
                Ok(id) => {
                    report.delivered.push((id, message.redelivered()));
                    if let Err(fault) = self.settle(&message, id, report) {
                        return fault.into();
                    }
                }
                Err(wrong) => report.wrong.push(wrong),
            }
        }
    }

    fn settle(
        &mut self,
        message: &Message,
        id: Id,
        report: &mut Consumed,
    ) -> Result<(), ChannelFault> {
        let tag = message.delivery_tag();
        match self.random.below(100) {
            0..10 if self.held.len() < HELD_MAX => self.held.push((tag, id)),
            10..20 => self.channel.nack(tag, false, true)?,
            20..23 => {
                // All up to here: those held as well.
                let held = std::mem::take(&mut self.held);
                for id in held.into_iter().map(|(_, id)| id).chain([id]) {
                    self.note_ack(id, report);
                }
                self.channel.ack(tag, true)?;
            }
            _ => {
                self.note_ack(id, report);
                self.channel.ack(tag, false)?;
            }
        }
        if self.unsure.len() >= 50 {
            confirm_marker(&mut self.channel)?;
            report.gone.extend(self.unsure.drain(..));
        }
        Ok(())
    }

    fn note_ack(&mut self, id: Id, report: &mut Consumed) {
        self.acked_count += 1;
        report.acked.insert(id);
        self.unsure.push(id);
    }
}

/// Publishes a persistent message and waits for its confirm. The log is one sequence, so everything
/// this channel did before is on disk then, too.
pub fn confirm_marker(channel: &mut Channel) -> Result<(), ChannelFault> {
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    channel.publish(&Publication {
        routing_key: "marker",
        properties,
        body: b"here",
        ..Publication::default()
    })?;
    channel.wait_settled()?;
    channel.take_settled();
    Ok(())
}
