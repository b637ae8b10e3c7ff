//! `forebay consume`: bodies of a queue's messages to standard output.
//!
//! A message is acked after its body was written *and* flushed, so a full disk or a closed pipe
//! behind us loses nothing: what was not written goes back to its queue.

mod marking;

use std::collections::VecDeque;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use forebay::pipeline::explain::{Journey, Settings};
use forebay_client::{
    CREDIT_MAX, ChannelFault, Connection, Consumer, DeclareQueue, Delivery, Received,
};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use self::marking::Marking;
use crate::broker_url::BrokerUrl;
use crate::exit::{Exit, Failure};
use crate::explained;
use crate::happening::Happenings;
use crate::otlp::Tracing;
use crate::runtime::runtime;
use crate::standard_output;
use crate::stop_signal::StopSignal;

/// Written bytes after which standard output is flushed and what was written is acked.
const FLUSH_BYTES: usize = 64 * 1024;
/// Messages after which the same is done.
const UNFLUSHED_MAX: usize = 250;
/// How soon a signal is noticed while nothing arrives.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(100);
/// How long to wait for a message before asking whether the queue is empty.
const EMPTY_PATIENCE: Duration = Duration::from_millis(20);

/// Write the bodies of a queue's messages to standard output, one a line. A message is acked after
/// it was written; stops cleanly on SIGINT, SIGTERM and a closed pipe.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: BrokerUrl,
    /// The queue, which must exist
    #[arg(long, value_name = "QUEUE", value_parser = NonEmptyStringValueParser::new())]
    queue: String,
    /// Stop after this many messages, and take no more than these from the queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop when the queue is empty
    #[arg(long, alias = "no-wait")]
    until_empty: bool,
    /// Messages that may be on their way to us at a time; found out by itself unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: Option<u16>,
    /// When the connection is lost connect again, for as long as it takes, in place of ending: what was written and not
    /// acknowledged comes again
    #[arg(long)]
    reconnect: bool,
    /// At the end say on standard error where messages' time went, and why: those that their publisher marked (forebay
    /// publish --explain), or else one in N
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..))]
    explain: Option<u64>,
    /// Write each message as a JSON object with its routing key and properties; also what --explain says
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    match consume(&args) {
        Ok(written) => {
            if io::stderr().is_terminal() {
                say!("consumed {written}");
            }
            Exit::Done
        }
        Err(failure) => failure.told(),
    }
}

fn consume(args: &Args) -> Result<u64, Failure> {
    standard_output::must_be_open()?;
    let stop = StopSignal::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
    let tracing = Tracing::from_env();
    runtime()?.block_on(async {
        let count_max =
            args.count.map_or(u16::MAX, |count| u16::try_from(count).unwrap_or(u16::MAX));
        let credit_max = args.prefetch.unwrap_or(CREDIT_MAX).min(count_max);
        let Some(opened) = stop.or(open(args, credit_max, &tracing)).await else { return Ok(0) };
        let (connection, consumer) = opened?;
        let mut writing = Writing {
            args,
            happenings: args.reconnect.then(|| Happenings::of(&connection)),
            connection: connection.clone(),
            consumer,
            out: BufWriter::with_capacity(FLUSH_BYTES, io::stdout().lock()),
            written: VecDeque::new(),
            flushed: 0,
            taken: 0,
            was_empty: false,
            unflushed: 0,
            unflushed_bytes: 0,
            acked: 0,
            again: 0,
            marking: args.explain.map(Marking::new),
            ack_ahead_max: args.count.map_or(u64::MAX, |count| count - u64::from(credit_max)),
        };
        let outcome = writing.run(&stop).await;
        let (acked, again) = (writing.acked, writing.again);
        // What was written and not flushed must not be written by a destructor after all.
        drop(writing.out.into_parts());
        drop((writing.written, writing.consumer));
        if let Some(marking) = &writing.marking {
            tell(args, marking);
        }
        let closed = connection.close().await;
        if again > 0 {
            say!(
                "forebay: {again} were written and the connection was lost before they were acknowledged: they come twice"
            );
        }
        match outcome {
            // The reader behind the pipe has seen enough; what the pipe did not take is back in its queue.
            Err(Fault::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(acked),
            Err(Fault::Output(error)) => {
                Err(format!("cannot write to standard output: {error}").into())
            }
            Err(Fault::Broker(sentence)) => Err(sentence.into()),
            Ok(()) => closed.map(|()| acked).map_err(|lost| {
                let sentence = format!(
                    "the last acknowledgements may be lost, and their messages come again: {lost}"
                );
                sentence.into()
            }),
        }
    })
}

/// A consumer that holds `credit_max` messages at most.
async fn open(
    args: &Args,
    credit_max: u16,
    tracing: &Tracing,
) -> Result<(Connection, Consumer), Failure> {
    let builder = Connection::builder().name("forebay consume");
    let builder = if args.reconnect { builder } else { builder.without_recovery() };
    let connection = builder.open(&args.broker.url).await?;
    let consumer = connection.consumer(&args.queue);
    let consumer = match args.prefetch {
        Some(_) => consumer.fixed_credit(credit_max),
        None => consumer.credit_max(credit_max),
    };
    let consumer = if args.explain.is_some() { consumer.explain() } else { consumer };
    let consumer = tracing.consumer(consumer);
    let consumer = consumer.build().await.map_err(|error| error.to_string())?;
    Ok((connection, consumer))
}

/// What was asked for by `--explain`. Standard output is the messages'.
fn tell(args: &Args, marking: &Marking) {
    let mut settings = Settings::default();
    settings.workers = Some(1);
    settings.prefetch = args.prefetch.map(u64::from);
    let explanation = marking.explanation();
    if args.json {
        say!("{}", explained::json(explanation, &settings));
    } else {
        explained::lines(explanation, &settings).iter().for_each(|line| say!("{line}"));
    }
}

enum Fault {
    Output(io::Error),
    Broker(String),
}

struct Writing<'a> {
    args: &'a Args,
    connection: Connection,
    /// Where it shall come back.
    happenings: Option<Happenings>,
    consumer: Consumer,
    out: BufWriter<StdoutLock<'static>>,
    /// Messages written and not acked.
    written: VecDeque<Written>,
    /// How many of them, from the front, are flushed.
    flushed: usize,
    marking: Option<Marking>,
    /// All messages taken.
    taken: u64,
    /// So the queue said, and nothing has come since.
    was_empty: bool,
    unflushed: usize,
    unflushed_bytes: usize,
    acked: u64,
    /// Written, and not acked before the connection was lost.
    again: u64,
    /// Acks beyond it wait for the end: each ack lets the broker send one more, and the broker shall
    /// never have sent more than `--count`.
    ack_ahead_max: u64,
}

struct Written {
    message: Delivery,
    /// Of those that are marked.
    journey: Option<Box<Journey>>,
}

impl Writing<'_> {
    async fn run(&mut self, stop: &StopSignal) -> Result<(), Fault> {
        let taken = self.take(stop).await;
        if taken.is_err() || self.args.count == Some(self.taken) {
            // The last acks make room for more, which shall go to others.
            self.consumer.stop();
        }
        let flushed = taken.and_then(|()| self.flush());
        // What is flushed was seen, whatever failed after it: it shall not come again.
        let acked = self.ack(u64::MAX);
        flushed.and(acked)
    }

    /// Takes and writes messages until there is a reason to end.
    async fn take(&mut self, stop: &StopSignal) -> Result<(), Fault> {
        while !stop.came() && self.args.count != Some(self.taken) {
            self.tell();
            let message = match self.consumer.try_next() {
                Some(message) => message,
                None => {
                    self.settle()?;
                    match self.await_message().await? {
                        Some(message) => message,
                        None if !self.args.until_empty => continue,
                        None => match stop.or(self.is_over()).await.transpose()? {
                            Some(false) => continue,
                            Some(true) | None => break,
                        },
                    }
                }
            };
            self.write(message).map_err(Fault::Output)?;
            if self.unflushed_bytes >= FLUSH_BYTES || self.unflushed >= UNFLUSHED_MAX {
                self.settle()?;
            }
        }
        Ok(())
    }

    fn tell(&mut self) {
        while let Some(sentence) = self.happenings.as_mut().and_then(Happenings::next) {
            say!("forebay: {sentence}");
        }
    }

    async fn await_message(&mut self) -> Result<Option<Delivery>, Fault> {
        let patience = if self.args.until_empty { EMPTY_PATIENCE } else { SIGNAL_PATIENCE };
        match timeout(patience, self.consumer.next()).await {
            Ok(next) => next.map_err(|error| Fault::Broker(error.to_string())),
            Err(_) => Ok(None),
        }
    }

    /// Everything that has come is written and acked; is there more? No, if the queue is empty twice in a row: it is asked where its
    /// messages come, behind those on their way to us, but a RabbitMQ's channels are not in step.
    async fn is_over(&mut self) -> Result<bool, Fault> {
        let waiting = match self.waiting().await {
            // Whether it is empty is asked once there is a connection.
            Err(ChannelFault::Lost(_)) if self.args.reconnect => None,
            waiting => Some(waiting.map_err(|fault| Fault::Broker(fault.to_string()))?),
        };
        let is_empty = waiting == Some(0) && self.consumer.metrics().ready == 0;
        Ok(std::mem::replace(&mut self.was_empty, is_empty) && is_empty)
    }

    /// Messages in the queue that no consumer holds.
    async fn waiting(&self) -> Result<u32, ChannelFault> {
        let passive = DeclareQueue { passive: true, ..Default::default() };
        let channel = self.connection.consuming_channel().await?;
        Ok(channel.declare_queue(&self.args.queue, passive).await?.message_count)
    }

    fn write(&mut self, message: Delivery) -> io::Result<()> {
        let marking = self.marking.as_ref();
        let journey = marking.and_then(|marking| marking.taken(self.taken, &message));
        if self.args.json {
            let line = as_json(&message).to_string();
            self.out.write_all(line.as_bytes())?;
            self.unflushed_bytes += line.len();
        } else {
            self.out.write_all(message.body())?;
            self.unflushed_bytes += message.body().len();
        }
        self.out.write_all(b"\n")?;
        self.unflushed_bytes += 1;
        self.unflushed += 1;
        self.written.push_back(Written { message, journey });
        self.taken += 1;
        self.was_empty = false;
        Ok(())
    }

    /// Flushes, then acks what may be acked before the end.
    fn settle(&mut self) -> Result<(), Fault> {
        self.flush()?;
        self.ack(self.ack_ahead_max)
    }

    fn flush(&mut self) -> Result<(), Fault> {
        if self.unflushed_bytes > 0 {
            self.out.flush().map_err(Fault::Output)?;
            self.unflushed_bytes = 0;
            self.unflushed = 0;
            self.flushed = self.written.len();
            if let Some(marking) = &self.marking {
                marking.written(self.written.iter_mut().filter_map(|one| one.journey.as_mut()));
            }
        }
        Ok(())
    }

    /// Acks what is flushed, up to so many in all.
    fn ack(&mut self, acked_max: u64) -> Result<(), Fault> {
        while self.flushed > 0 && self.acked < acked_max {
            let Some(Written { message, journey }) = self.written.pop_front() else { break };
            self.flushed -= 1;
            match message.ack().in_time() {
                Ok(()) => self.acked += 1,
                Err(_) if self.args.reconnect => {
                    self.again += 1;
                    continue;
                }
                Err(stale) => return Err(Fault::Broker(stale.to_string())),
            }
            if let (Some(marking), Some(journey)) = (&mut self.marking, journey) {
                marking.settled(*journey);
            }
        }
        Ok(())
    }
}

/// A message for machines: its body as text if it is UTF-8, otherwise as base64.
fn as_json(message: &Received) -> Value {
    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).into_owned());
    let mut object = Map::new();
    match std::str::from_utf8(message.body()) {
        Ok(body) => object.insert("body".into(), body.into()),
        Err(_) => object.insert("body_base64".into(), base64(message.body()).into()),
    };
    object.insert("exchange".into(), text(message.exchange()));
    object.insert("routing_key".into(), text(message.routing_key()));
    object.insert("redelivered".into(), message.redelivered().into());
    let parsed = message.properties();
    let mut properties = Map::new();
    for (name, value) in [
        ("content_type", parsed.content_type),
        ("content_encoding", parsed.content_encoding),
        ("correlation_id", parsed.correlation_id),
        ("reply_to", parsed.reply_to),
        ("expiration", parsed.expiration),
        ("message_id", parsed.message_id),
        ("type", parsed.type_name),
        ("user_id", parsed.user_id),
        ("app_id", parsed.app_id),
    ] {
        if let Some(value) = value {
            properties.insert(name.into(), text(value.as_bytes()));
        }
    }
    if let Some(mode) = parsed.delivery_mode {
        properties.insert("delivery_mode".into(), mode.into());
    }
    if let Some(priority) = parsed.priority {
        properties.insert("priority".into(), priority.into());
    }
    if let Some(timestamp) = parsed.timestamp {
        properties.insert("timestamp".into(), timestamp.into());
    }
    if let Some(headers) = parsed.headers {
        properties.insert("headers".into(), table(headers));
    }
    object.insert("properties".into(), Value::Object(properties));
    Value::Object(object)
}

fn table(table: forebay_wire::Table<'_>) -> Value {
    table.iter().map(|(name, value)| (name.to_string(), field(value))).collect::<Map<_, _>>().into()
}

fn field(value: forebay_wire::Value<'_>) -> Value {
    use forebay_wire::Value as Field;
    match value {
        Field::Bool(value) => value.into(),
        Field::F32(value) => json!(value),
        Field::F64(value) => json!(value),
        Field::Decimal { scale, value } => json!({ "scale": scale, "value": value }),
        Field::LongStr(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => json!({ "base64": base64(bytes) }),
        },
        Field::Bytes(bytes) => json!({ "base64": base64(bytes) }),
        Field::Array(array) => array.iter().map(field).collect::<Vec<_>>().into(),
        Field::Timestamp(seconds) => seconds.into(),
        Field::Table(inner) => table(inner),
        Field::Void => Value::Null,
        integer => integer.as_i64().into(),
    }
}

/// RFC 4648, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte))
            << (8 * (3 - three.len()));
        for sextet in 0..4 {
            if sextet <= three.len() {
                text.push(char::from(ALPHABET[(bits >> (18 - 6 * sextet) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xff, 0xef]), "/+8=");
    }
}
