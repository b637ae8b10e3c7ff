//! `forebay publish`: lines of a file, or of standard input, become persistent messages.
//!
//! ```text
//!   FILE or stdin ──chunks of whole lines──▶ publisher ──window──▶ broker
//!     (own thread, at most 4 chunks ahead)       ◀──confirms, returns──
//! ```
//! The reader has a thread of its own so that confirms and heartbeats are served while a slow input
//! (`tail -f`, a terminal) has nothing for us.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_client::blocking::{
    Channel, ChannelFault, Connection, DeclareExchange, DeclareQueue, Publication,
};
use forebay_wire::{Properties, ShortStr};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::exit::Exit;
use crate::stop_signal::StopSignal;

/// Bytes of input a chunk aims at.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks that may wait between reader and publisher.
const CHUNKS_AHEAD: usize = 4;
/// Longest line, and largest whole input, in bytes; brokers take 16 to 128 MiB by default.
const MESSAGE_BYTES_MAX: usize = 128 << 20;
/// Failed messages listed one by one; the rest is only counted.
const NAMED_MAX: usize = 100;

/// Publish lines as messages: persistent, mandatory, confirmed. Exits with 0 only if the broker
/// confirmed them all, with 3 if it did not, with 1 if nothing could be published at all.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The broker
    #[arg(
        long,
        env = "FOREBAY_URL",
        value_name = "URL",
        default_value = "amqp://guest:guest@127.0.0.1:5672/%2f",
        hide_env_values = true
    )]
    url: String,
    /// Publish to this queue; it is declared durable if it does not exist
    #[arg(long, value_name = "QUEUE", required_unless_present = "exchange",
          conflicts_with_all = ["exchange", "routing_key"])]
    queue: Option<String>,
    /// Publish to this exchange, which must exist
    #[arg(long, value_name = "EXCHANGE", requires = "routing_key")]
    exchange: Option<String>,
    /// With this routing key
    #[arg(long, value_name = "KEY", requires = "exchange")]
    routing_key: Option<String>,
    /// Publish the whole input as one message instead of one a line
    #[arg(long)]
    whole: bool,
    /// Messages that may wait for their confirm at a time
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    window: u64,
    /// Print a JSON summary on standard output
    #[arg(long)]
    json: bool,
    /// The input; standard input if absent or `-`. Lines may end with LF or CR LF
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    match publish_all(&args) {
        Ok(report) => {
            report.print(args.json);
            if report.complete() { Exit::Done } else { Exit::NotAllConfirmed }
        }
        Err(sentence) => Exit::Failed.because(sentence),
    }
}

/// A message that was not confirmed.
#[derive(Debug, Serialize)]
struct Unconfirmed {
    /// Line number from 1; 1 for a whole input.
    line: u64,
    reason: String,
}

/// What became of the messages.
#[derive(Debug, Default, Serialize)]
struct Report {
    published: u64,
    confirmed: u64,
    returned: u64,
    rejected: u64,
    /// Published, and the connection was lost before an answer came.
    unknown: u64,
    /// The input was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
    seconds: f64,
    /// The first of the messages that were not confirmed.
    unconfirmed: Vec<Unconfirmed>,
}

impl Report {
    fn complete(&self) -> bool {
        self.confirmed == self.published && self.stopped.is_none()
    }

    fn name(&mut self, line: u64, reason: &str) {
        if self.unconfirmed.len() < NAMED_MAX {
            self.unconfirmed.push(Unconfirmed { line, reason: reason.to_owned() });
        }
    }

    fn print(&self, json: bool) {
        for failed in &self.unconfirmed {
            eprintln!("line {}: {}", failed.line, failed.reason);
        }
        let failed = self.returned + self.rejected + self.unknown;
        let unnamed = failed.saturating_sub(self.unconfirmed.len() as u64);
        if unnamed > 0 {
            eprintln!("… and {unnamed} more");
        }
        if let Some(reason) = &self.stopped {
            eprintln!("forebay: stopped early: {reason}");
        }
        let per_second = self.confirmed as f64 / self.seconds.max(1e-6);
        eprint!(
            "published {}, confirmed {} in {:.2} s ({:.0} a second)",
            self.published, self.confirmed, self.seconds, per_second
        );
        for (count, what) in [
            (self.returned, "returned"),
            (self.rejected, "rejected"),
            (self.unknown, "without an answer"),
        ] {
            if count > 0 {
                eprint!(", {count} {what}");
            }
        }
        eprintln!();
        if json {
            let json = serde_json::to_string(self).expect("a report is plain data");
            // Whoever closed the pipe still has the exit code.
            let _ = writeln!(io::stdout(), "{json}");
        }
    }
}

/// `Err` is a sentence: nothing was published.
fn publish_all(args: &Args) -> Result<Report, String> {
    let stop = StopSignal::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
    let input = open_input(args)?;
    let connection = Connection::open_named(&args.url, Some("forebay publish"))
        .map_err(|error| error.to_string())?;
    let mut channel = target(&connection, args).map_err(|fault| fault.to_string())?;
    channel.confirm_select(args.window).map_err(|fault| fault.to_string())?;

    let (chunks, received) = sync_channel(CHUNKS_AHEAD);
    let whole = args.whole;
    // Not joined: it may be stuck in a read of a terminal when we are told to stop.
    thread::spawn(move || read_chunks(input.reader, whole, &chunks));

    let mut publisher = Publisher {
        channel,
        connection: connection.clone(),
        exchange: args.exchange.as_deref().unwrap_or(""),
        routing_key: args.routing_key.as_deref().or(args.queue.as_deref()).unwrap_or(""),
        input_name: input.name,
        report: Report::default(),
        bar: progress(input.size_bytes),
        drawn: Instant::now(),
        bytes: 0,
    };
    let started = Instant::now();
    let outcome = publisher.carry(&received, &stop);
    let mut report = publisher.finish(outcome, &stop);
    report.seconds = started.elapsed().as_secs_f64();
    let _ = connection.close();
    Ok(report)
}

/// Where the messages come from.
struct Input {
    reader: Box<dyn Read + Send>,
    /// What the messages' ids begin with.
    name: String,
    size_bytes: Option<u64>,
}

fn open_input(args: &Args) -> Result<Input, String> {
    match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let shown = path.display();
            let file = File::open(path).map_err(|error| format!("cannot open {shown}: {error}"))?;
            let meta = file.metadata().map_err(|error| format!("cannot read {shown}: {error}"))?;
            if meta.is_dir() {
                return Err(format!("cannot read {shown}: it is a directory"));
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let size_bytes = meta.is_file().then_some(meta.len());
            Ok(Input { reader: Box::new(file), name, size_bytes })
        }
        _ => {
            let reader = Box::new(io::stdin());
            Ok(Input { reader, name: "stdin".into(), size_bytes: None })
        }
    }
}

/// A channel whose target exists.
fn target(connection: &Connection, args: &Args) -> Result<Channel, ChannelFault> {
    let mut channel = connection.channel()?;
    if let Some(queue) = &args.queue {
        // First passively: the queue may exist with arguments that we do not know.
        let passive = DeclareQueue { passive: true, ..Default::default() };
        match channel.declare_queue(queue, passive) {
            Ok(_) => {}
            Err(ChannelFault::Refused(refusal)) if refusal.code == 404 => {
                channel = connection.channel()?;
                let durable = DeclareQueue { durable: true, ..Default::default() };
                channel.declare_queue(queue, durable)?;
            }
            Err(fault) => return Err(fault),
        }
    } else if let Some(exchange) = args.exchange.as_deref().filter(|name| !name.is_empty()) {
        let passive = DeclareExchange { passive: true, ..Default::default() };
        channel.declare_exchange(exchange, "direct", passive)?;
    }
    Ok(channel)
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

/// What the reader hands over: whole lines, or the reason why there are no more.
enum Chunk {
    Lines(Vec<u8>),
    Whole(Vec<u8>),
    Failed(String),
}

fn read_chunks(input: Box<dyn Read + Send>, whole: bool, chunks: &SyncSender<Chunk>) {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, input);
    let outcome = if whole {
        read_whole(&mut reader).and_then(|body| hand_over(chunks, Chunk::Whole(body)))
    } else {
        read_lines(&mut reader, chunks)
    };
    if let Err(sentence) = outcome {
        // The receiver is gone only when nobody wants to know any more.
        let _ = chunks.send(Chunk::Failed(sentence));
    }
}

fn read_whole(reader: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    reader
        .take(MESSAGE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut body)
        .map_err(|error| format!("cannot read the input: {error}"))?;
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(format!("the input is larger than {MESSAGE_BYTES_MAX} bytes"));
    }
    Ok(body)
}

/// Cuts the input after the last line end of whatever one read gave, so that lines of a slow input
/// go on at once.
fn read_lines(reader: &mut impl BufRead, chunks: &SyncSender<Chunk>) -> Result<(), String> {
    let mut lines = Vec::with_capacity(CHUNK_BYTES);
    loop {
        let read = match reader.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("cannot read the input: {error}")),
        };
        if read.is_empty() {
            break;
        }
        let used = read.len();
        if let Some(last_end) = read.iter().rposition(|&byte| byte == b'\n') {
            lines.extend_from_slice(&read[..=last_end]);
            let rest = read[last_end + 1..].to_vec();
            hand_over(chunks, Chunk::Lines(std::mem::replace(&mut lines, rest)))?;
        } else {
            lines.extend_from_slice(read);
        }
        if lines.len() > MESSAGE_BYTES_MAX {
            return Err(format!("a line is longer than {MESSAGE_BYTES_MAX} bytes"));
        }
        reader.consume(used);
    }
    if lines.is_empty() { Ok(()) } else { hand_over(chunks, Chunk::Lines(lines)) }
}

fn hand_over(chunks: &SyncSender<Chunk>, chunk: Chunk) -> Result<(), String> {
    chunks.send(chunk).map_err(|_| "nobody takes the input any more".to_owned())
}

/// Why not everything was published.
enum Stop {
    Input(String),
    Signal,
    Channel(ChannelFault),
}

struct Publisher<'a> {
    channel: Channel,
    connection: Connection,
    exchange: &'a str,
    routing_key: &'a str,
    input_name: String,
    report: Report,
    bar: ProgressBar,
    drawn: Instant,
    bytes: u64,
}

impl Publisher<'_> {
    /// Publishes until the input ends, then waits for the last confirm.
    fn carry(&mut self, chunks: &Receiver<Chunk>, stop: &StopSignal) -> Result<(), Stop> {
        loop {
            if stop.came() {
                return Err(Stop::Signal);
            }
            match self.next_chunk(chunks)? {
                Next::Chunk(Chunk::Lines(lines)) => {
                    for line in lines.split_inclusive(|&byte| byte == b'\n') {
                        let body = line.strip_suffix(b"\n").unwrap_or(line);
                        let body = body.strip_suffix(b"\r").unwrap_or(body);
                        self.publish(body)?;
                        self.bytes += line.len() as u64;
                    }
                }
                Next::Chunk(Chunk::Whole(body)) => {
                    self.publish(&body)?;
                    self.bytes += body.len() as u64;
                }
                Next::Chunk(Chunk::Failed(sentence)) => return Err(Stop::Input(sentence)),
                Next::NotYet => {}
                Next::End => break,
            }
            self.collect();
        }
        self.await_confirms(stop)
    }

    /// The next chunk; while there is none, what waits is sent and confirms are taken.
    fn next_chunk(&mut self, chunks: &Receiver<Chunk>) -> Result<Next, Stop> {
        match chunks.try_recv() {
            Ok(chunk) => return Ok(Next::Chunk(chunk)),
            Err(TryRecvError::Disconnected) => return Ok(Next::End),
            Err(TryRecvError::Empty) => {}
        }
        let patience = if self.channel.unconfirmed() > 0 { 2 } else { 0 };
        self.channel.pump(Duration::from_millis(patience)).map_err(Stop::Channel)?;
        match chunks.recv_timeout(Duration::from_millis(if patience > 0 { 0 } else { 100 })) {
            Ok(chunk) => Ok(Next::Chunk(chunk)),
            Err(RecvTimeoutError::Timeout) => Ok(Next::NotYet),
            Err(RecvTimeoutError::Disconnected) => Ok(Next::End),
        }
    }

    fn publish(&mut self, body: &[u8]) -> Result<(), Stop> {
        let line = self.report.published + 1;
        let message_id = format!("{}:{line}", self.input_name);
        let publication = Publication {
            exchange: self.exchange,
            routing_key: self.routing_key,
            mandatory: true,
            properties: Properties {
                delivery_mode: Some(2),
                message_id: Some(ShortStr::truncated(&message_id)),
                ..Default::default()
            },
            body,
        };
        let sequence = self.channel.publish(&publication).map_err(Stop::Channel)?;
        debug_assert_eq!(sequence, line, "one message a line, from the first on");
        self.report.published = line;
        if self.drawn.elapsed() >= Duration::from_millis(50) {
            self.collect();
        }
        Ok(())
    }

    fn await_confirms(&mut self, stop: &StopSignal) -> Result<(), Stop> {
        while self.channel.unconfirmed() > 0 {
            if stop.came() {
                return Err(Stop::Signal);
            }
            self.channel.pump(Duration::from_millis(100)).map_err(Stop::Channel)?;
            self.collect();
        }
        Ok(())
    }

    /// Takes what the broker said so far and draws.
    fn collect(&mut self) {
        for returned in self.channel.take_returns() {
            self.report.returned += 1;
            let id = returned.message.properties().message_id.map(|id| id.to_string());
            let line = id.as_deref().and_then(|id| id.rsplit_once(':')?.1.parse().ok());
            let reason = format!("returned: {} ({})", returned.reply_text, returned.reply_code);
            self.report.name(line.unwrap_or(0), &reason);
        }
        for settled in self.channel.take_settled() {
            if settled.acked {
                self.report.confirmed += settled.count();
            } else {
                self.report.rejected += settled.count();
                for line in settled.first..=settled.last {
                    self.report.name(line, "rejected by the broker");
                }
            }
        }
        self.drawn = Instant::now();
        let confirmed = self.report.confirmed;
        let blocked = self.connection.blocked();
        self.bar.set_position(self.bytes);
        self.bar.set_message(match blocked {
            Some(reason) => format!("{confirmed} confirmed, the broker waits: {reason}"),
            None => format!("{confirmed} confirmed"),
        });
    }

    fn finish(mut self, outcome: Result<(), Stop>, stop: &StopSignal) -> Report {
        let reason = match outcome {
            Ok(()) => None,
            Err(Stop::Channel(fault)) => Some(fault.to_string()),
            Err(Stop::Input(sentence)) => {
                let _ = self.await_confirms(stop);
                Some(sentence)
            }
            Err(Stop::Signal) => {
                // What was sent may still be confirmed while the user has patience.
                let _ = self.channel.wait_settled_for(Duration::from_secs(5));
                Some("a signal asked for it".into())
            }
        };
        self.collect();
        self.bar.finish_and_clear();
        let mut report = self.report;
        report.unknown = report.published - report.confirmed - report.rejected;
        // A returned message is confirmed as well: the broker settled it by giving it back.
        report.confirmed = report.confirmed.saturating_sub(report.returned);
        report.stopped = reason;
        report
    }
}

enum Next {
    Chunk(Chunk),
    NotYet,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(input: &[u8], read_bytes: usize) -> Vec<u8> {
        let (chunks, received) = sync_channel(1000);
        read_lines(&mut BufReader::with_capacity(read_bytes, input), &chunks).unwrap();
        drop(chunks);
        received
            .iter()
            .flat_map(|chunk| match chunk {
                Chunk::Lines(lines) => lines,
                _ => panic!("only lines were expected"),
            })
            .collect()
    }

    #[test]
    fn no_byte_of_the_input_is_lost_however_it_is_read() {
        let input = b"one\n\nthree\r\na longer line than any buffer here\nlast without end";
        for read_bytes in 1..20 {
            assert_eq!(lines_of(input, read_bytes), input);
        }
        assert_eq!(lines_of(b"", 10), b"");
    }

    #[test]
    fn a_report_with_a_return_is_not_complete() {
        let report = Report { published: 2, confirmed: 1, returned: 1, ..Report::default() };
        assert!(!report.complete());
        assert!(Report { published: 2, confirmed: 2, ..Report::default() }.complete());
    }
}
