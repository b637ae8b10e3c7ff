//! `forebay publish`: lines of a file, or of standard input, become persistent messages.
//!
//! ```text
//!   FILE or stdin ──chunks of whole lines──▶ publisher ──window──▶ broker
//!     (own thread, at most 4 chunks ahead)       ◀──confirms, returns──
//! ```
//! The reader has a thread of its own so that confirms and heartbeats are served while a slow input
//! (`tail -f`, a terminal) has nothing for us.

mod report;
mod telling;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::builder::NonEmptyStringValueParser;
use forebay_client::{
    ChannelFault, Confirmed, Connection, DeclareExchange, DeclareQueue, Message, NotPublished,
    NotPublishedReason, Outcome, Publisher, PublisherBuilder, Route, Unconfirmed, UnknownReason,
    Window,
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;

use self::report::Report;
use self::telling::Telling;
use crate::broker_url::BrokerUrl;
use crate::exit::{Exit, Failure};
use crate::happening::Happenings;
use crate::input::{Chunk, Input, read_chunks};
use crate::otlp::Tracing;
use crate::runtime::runtime;
use crate::stop_signal::{NOT_ANSWERED, StopSignal, say_waiting};

/// Chunks that may wait between reader and publisher.
const CHUNKS_AHEAD: usize = 4;
/// How soon a signal is noticed while something is waited for.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(100);
/// How long outcomes are waited for after the input ended early or a signal came.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// How often the progress bar is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(50);
/// How often it is said that the broker takes nothing.
const BLOCKED_INTERVAL: Duration = Duration::from_secs(5);
/// Messages whose outcome was not looked at, at most.
const OUTCOMES_KEPT_MAX: usize = 20_000;

/// Publish lines as messages: persistent, mandatory, confirmed. Exits with 0 only if the broker
/// confirmed them all, with 3 if it did not, with 1 if nothing could be published at all or the JSON
/// summary not be written. Stopped early, it says which lines were sent and not confirmed, and which were
/// not sent.
#[derive(clap::Args, Debug)]
#[command(override_usage = "\
forebay publish [OPTIONS] --queue <QUEUE> [FILE]
       forebay publish [OPTIONS] --exchange <EXCHANGE> --routing-key <KEY> [FILE]")]
pub(crate) struct Args {
    #[command(flatten)]
    broker: BrokerUrl,
    /// Publish to this queue; it is declared durable if it does not exist
    #[arg(long, value_name = "QUEUE", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with = "exchange")]
    queue: Option<String>,
    /// Publish to this exchange, which must exist
    #[arg(long, value_name = "EXCHANGE", requires = "routing_key")]
    exchange: Option<String>,
    /// With this routing key
    #[arg(long, value_name = "KEY")]
    routing_key: Option<String>,
    /// Publish the whole input as one message instead of one a line
    #[arg(long)]
    whole: bool,
    /// Messages that may wait for their confirm at a time; found out by itself unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    window: Option<u32>,
    /// When the connection is lost connect again, for as long as it takes, in place of ending: what was not confirmed is sent
    /// again under the same message-id, and marked
    #[arg(long)]
    reconnect: bool,
    /// Mark one message in N with the times of its way so far, for consumers that ask where time goes, and at the end say
    /// where the publisher's own went
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    explain: Option<u64>,
    /// Print a JSON summary on standard output, with what --explain says
    #[arg(long)]
    json: bool,
    /// The input; standard input if absent or `-`. Lines may end with LF or CR LF. A message has 128 MiB at most; many
    /// brokers take 16 MiB
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    if args.routing_key.is_some() && args.exchange.is_none() {
        return Exit::Usage
            .because("--routing-key goes with --exchange; with --queue none is needed");
    }
    if args.queue.is_none() && args.exchange.is_none() {
        return Exit::Usage.because(
            "where to is required: --queue QUEUE, or --exchange EXCHANGE with --routing-key KEY",
        );
    }
    match publish_all(&args) {
        Ok(report) => {
            let exit = if report.complete() { Exit::Done } else { Exit::NotAllConfirmed };
            exit.once(report.print(args.json))
        }
        Err(failure) => failure.told(),
    }
}

/// `Err` is a sentence: nothing was published.
fn publish_all(args: &Args) -> Result<Report, Failure> {
    let stop = StopSignal::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
    let input = Input::open(args.file.as_deref())?;
    let tracing = Tracing::from_env();
    let _parent = tracing.within_parent();
    runtime()?.block_on(async {
        let opened = stop.or(open(args, &tracing)).await;
        let (connection, publisher) = opened.ok_or_else(|| NOT_ANSWERED.to_owned())??;

        let (chunks, mut received) = channel(CHUNKS_AHEAD);
        let whole = args.whole;
        // Not joined: it may be stuck in a read of a terminal when we are told to stop.
        thread::spawn(move || read_chunks(input.reader, whole, &chunks));

        let mut publishing = Publishing {
            publisher,
            happenings: args.reconnect.then(|| Happenings::of(&connection)),
            connection: connection.clone(),
            input_name: input.name,
            sent: VecDeque::new(),
            report: Report::default(),
            all_read: whole,
            bar: progress(input.size_bytes),
            drawn: Instant::now(),
            told_blocked: None,
            bytes: 0,
        };
        let started = Instant::now();
        let outcome = publishing.carry(&mut received, &stop).await;
        let telling = args.explain.map(|_| Telling {
            metrics: publishing.publisher.metrics(),
            took: started.elapsed(),
            window_messages: args.window,
        });
        let mut report = publishing.finish(outcome).await;
        report.telling = telling;
        report.seconds = started.elapsed().as_secs_f64();
        let _ = connection.close().await;
        Ok(report)
    })
}

async fn open(args: &Args, tracing: &Tracing) -> Result<(Connection, Publisher), Failure> {
    let builder = Connection::builder().name("forebay publish");
    // Unasked, a second run with the same ids is better than one that waits for a broker without end.
    let builder = if args.reconnect { builder } else { builder.without_recovery() };
    let connection = builder.open(&args.broker.url).await?;
    let publisher = publisher(&connection, args, tracing).await;
    Ok((connection, publisher.map_err(|fault| fault.to_string())?))
}

/// A publisher whose target exists.
async fn publisher(
    connection: &Connection,
    args: &Args,
    tracing: &Tracing,
) -> Result<Publisher, ChannelFault> {
    let route = if let Some(queue) = &args.queue {
        // First passively: the queue may exist with arguments that we do not know.
        let passive = DeclareQueue { passive: true, ..Default::default() };
        match connection.channel().await?.declare_queue(queue, passive).await {
            Ok(_) => {}
            Err(ChannelFault::Refused(refusal)) if refusal.code == 404 => {
                let durable = DeclareQueue { durable: true, ..Default::default() };
                connection.channel().await?.declare_queue(queue, durable).await?;
            }
            Err(fault) => return Err(fault),
        }
        Route::queue(queue)
    } else {
        let exchange = args.exchange.as_deref().unwrap_or_default();
        if !exchange.is_empty() {
            let passive = DeclareExchange { passive: true, ..Default::default() };
            connection.channel().await?.declare_exchange(exchange, "direct", passive).await?;
        }
        Route::exchange(exchange, args.routing_key.as_deref().unwrap_or_default())
    };
    let window = args.window.map_or_else(Window::tuned, Window::fixed);
    let publisher = tracing.publisher(connection.publisher(route).window(window));
    args.explain.into_iter().fold(publisher, PublisherBuilder::explain).build().await
}

/// A bar over the bytes of the input, or a spinner; hidden unless standard error is a terminal.
fn progress(input_bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match input_bytes {
        Some(bytes) => {
            (ProgressBar::new(bytes), "{wide_bar:.cyan/blue} {bytes}/{total_bytes} {msg} eta {eta}")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {msg} {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is constant"))
}

/// Why not everything was published.
enum Stop {
    Input(String),
    Signal,
    Broker(String),
}

/// A message on its way: which line, and what will become of it.
struct Sent {
    line: u64,
    body_bytes: u64,
    outcome: Outcome,
}

struct Publishing {
    publisher: Publisher,
    connection: Connection,
    /// Where it shall come back.
    happenings: Option<Happenings>,
    input_name: String,
    /// Oldest first; the publisher's window bounds those without an outcome, and each chunk takes out
    /// those with one.
    sent: VecDeque<Sent>,
    report: Report,
    /// The input has ended, or is one message: there is no next line to go on from.
    all_read: bool,
    bar: ProgressBar,
    drawn: Instant,
    /// When it was last said that the broker takes nothing, where there is no bar to show it.
    told_blocked: Option<Instant>,
    bytes: u64,
}

impl Publishing {
    /// Publishes until the input ends, then waits for the last outcome.
    async fn carry(&mut self, chunks: &mut Receiver<Chunk>, stop: &StopSignal) -> Result<(), Stop> {
        loop {
            // A signal is a flag, so whatever is waited for is looked up from now and then.
            let chunk = match timeout(SIGNAL_PATIENCE, chunks.recv()).await {
                Ok(chunk) => chunk,
                Err(_) => {
                    self.take_outcomes(stop, Duration::ZERO).await?;
                    continue;
                }
            };
            match chunk {
                Some(Chunk::Lines(lines)) => {
                    let lines = Bytes::from(lines);
                    let mut start = 0;
                    while start < lines.len() {
                        let rest = &lines[start..];
                        let line_bytes = rest
                            .iter()
                            .position(|&byte| byte == b'\n')
                            .map_or(rest.len(), |at| at + 1);
                        let body = &rest[..line_bytes];
                        let body = body.strip_suffix(b"\n").unwrap_or(body);
                        let body = body.strip_suffix(b"\r").unwrap_or(body);
                        let body = lines.slice(start..start + body.len());
                        self.publish(body, stop).await?;
                        start += line_bytes;
                        self.bytes += line_bytes as u64;
                    }
                }
                Some(Chunk::Whole(body)) => {
                    let bytes = body.len() as u64;
                    self.publish(Bytes::from(body), stop).await?;
                    self.bytes += bytes;
                }
                Some(Chunk::Failed(sentence)) => return Err(Stop::Input(sentence)),
                None => break,
            }
            self.take_outcomes(stop, Duration::ZERO).await?;
        }
        self.all_read = true;
        while !self.sent.is_empty() {
            self.take_outcomes(stop, SIGNAL_PATIENCE).await?;
        }
        Ok(())
    }

    async fn publish(&mut self, body: Bytes, stop: &StopSignal) -> Result<(), Stop> {
        let line = self.report.published + 1;
        let id = format!("{}:{line}", self.input_name);
        // AMQP allows 255 bytes, file systems mostly as much for the name alone.
        let id = if id.len() > 255 { format!("line:{line}") } else { id };
        let body_bytes = body.len() as u64;
        let publisher = self.publisher.clone();
        let mut publishing = pin!(publisher.publish(Message::new(body).message_id(id)));
        let outcome = loop {
            match timeout(SIGNAL_PATIENCE, &mut publishing).await {
                Ok(Ok(outcome)) => break outcome,
                // There is no room yet.
                Err(_) => self.take_outcomes(stop, Duration::ZERO).await?,
                Ok(Err(NotPublished { reason: NotPublishedReason::Lost(lost), .. })) => {
                    return Err(Stop::Broker(lost.to_string()));
                }
                Ok(Err(refused)) => return Err(Stop::Broker(refused.to_string())),
            }
        };
        self.report.published = line;
        self.sent.push_back(Sent { line, body_bytes, outcome });
        if self.sent.len() >= OUTCOMES_KEPT_MAX || self.drawn.elapsed() >= DRAW_INTERVAL {
            self.take_outcomes(stop, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Takes the outcomes that are there, oldest first, waiting up to `patience` for the first, and draws.
    async fn take_outcomes(&mut self, stop: &StopSignal, patience: Duration) -> Result<(), Stop> {
        let mut patience = patience;
        while let Some(oldest) = self.sent.front_mut() {
            let outcome = if patience.is_zero() {
                match poll_once(&mut oldest.outcome).await {
                    Some(outcome) => outcome,
                    None => break,
                }
            } else {
                match timeout(patience, &mut oldest.outcome).await {
                    Ok(outcome) => outcome,
                    Err(_) => break,
                }
            };
            patience = Duration::ZERO;
            let (line, body_bytes) = (oldest.line, oldest.body_bytes);
            self.sent.pop_front();
            self.note(line, body_bytes, outcome)?;
        }
        self.tell();
        self.draw();
        if stop.came() { Err(Stop::Signal) } else { Ok(()) }
    }

    fn note(
        &mut self,
        line: u64,
        body_bytes: u64,
        outcome: Result<Confirmed, Unconfirmed>,
    ) -> Result<(), Stop> {
        let why = match outcome {
            Ok(_) => {
                self.report.confirmed += 1;
                return Ok(());
            }
            Err(why) => why,
        };
        self.report.failed(line, body_bytes, &why);
        match why {
            Unconfirmed::Rejected | Unconfirmed::Returned(_) => Ok(()),
            Unconfirmed::Unknown(UnknownReason::ChannelClosed(why)) => {
                Err(Stop::Broker(format!("the broker refused: {why}")))
            }
            Unconfirmed::Unknown(UnknownReason::Lost(lost)) => Err(Stop::Broker(lost.to_string())),
            other => Err(Stop::Broker(other.to_string())),
        }
    }

    fn tell(&mut self) {
        while let Some(sentence) = self.happenings.as_mut().and_then(Happenings::next) {
            self.bar.suspend(|| say!("forebay: {sentence}"));
        }
    }

    fn draw(&mut self) {
        if self.drawn.elapsed() < DRAW_INTERVAL {
            return;
        }
        self.drawn = Instant::now();
        let confirmed = self.report.confirmed;
        self.bar.set_position(self.bytes);
        let blocked = self.connection.blocked();
        if let Some(reason) = &blocked
            && self.bar.is_hidden()
            && self.told_blocked.is_none_or(|told| told.elapsed() >= BLOCKED_INTERVAL)
        {
            self.told_blocked = Some(Instant::now());
            say!("forebay: {confirmed} confirmed, the broker takes no more at present: {reason}");
        }
        self.bar.set_message(match blocked {
            Some(reason) => format!("{confirmed} confirmed, the broker waits: {reason}"),
            None => format!("{confirmed} confirmed"),
        });
    }

    async fn finish(mut self, outcome: Result<(), Stop>) -> Report {
        let reason = match outcome {
            Ok(()) => None,
            Err(Stop::Broker(sentence)) => Some(sentence),
            Err(Stop::Input(sentence)) => Some(sentence),
            Err(Stop::Signal) => {
                let count = self.sent.len() as u64;
                self.bar.suspend(|| say_waiting(LAST_PATIENCE, count, ["confirm", "confirms"]));
                Some("a signal asked for it".into())
            }
        };
        // What was sent may still be confirmed; without a connection the answers are there at once.
        let until = tokio::time::Instant::now() + LAST_PATIENCE;
        for Sent { line, body_bytes, outcome } in std::mem::take(&mut self.sent) {
            match tokio::time::timeout_at(until, outcome).await {
                // Each one counts by itself here; why it ended is known already.
                Ok(outcome) => drop(self.note(line, body_bytes, outcome)),
                Err(_) => self.report.unanswered(line),
            }
        }
        self.bar.finish_and_clear();
        if reason.is_some() && !self.all_read {
            self.report.not_sent_from = Some(self.report.published + 1);
        }
        self.report.stopped = reason;
        self.report
    }
}

/// The output if it is there already.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
