//! `forebay pipe`: a program for each message of a queue, or lines to programs that stay.

mod answer;
mod attempt;
mod emptiness;
mod ending;
mod group;
mod program;
mod service;
mod telling;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use forebay::pipeline::{
    Backoff, Breaker, Concurrency, Explaining, Item, Outcome, Pipeline, Process, Queues, Report,
    Running,
};
use forebay::{Connection, Received};
use tokio::time::timeout;

use self::attempt::attempt;
use self::emptiness::Emptiness;
use self::ending::ended;
use self::group::Groups;
use self::program::Program;
use self::service::Services;
use self::telling::Asked;
use crate::broker_url::BrokerUrl;
use crate::exit::{Exit, Failure};
use crate::happening::Happenings;
use crate::otlp::Tracing;
use crate::runtime::runtime;
use crate::stop_signal::{StopSignal, say_waiting};

/// Failures in a row after which programs are started at longer and longer intervals.
const BREAKER_FAILURES: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Run a program for each message of a queue, its body on standard input. Exit code 0 acknowledges the message,
/// any other is a failure: it is tried again, then requeued or rejected.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The program finds in its environment: FOREBAY_ROUTING_KEY, FOREBAY_EXCHANGE, FOREBAY_MESSAGE_ID, \
FOREBAY_REDELIVERED (0 or 1) and FOREBAY_ATTEMPT (from 1), and TRACEPARENT if OpenTelemetry's variables ask for \
spans (OTEL_EXPORTER_OTLP_ENDPOINT and so on). What it writes goes where ours goes.

With --stream it gets each message as a line and answers each with one line: 'ack', 'reject' or \
'requeue', and after that word whatever it likes. It must not keep answers in a buffer. It is started \
when it is needed, and again when it has ended.

Ten failures in a row, and programs are started after a pause of 1 s only, then 2 s and so on up to a \
minute, until one succeeds. SIGTERM, SIGINT and SIGHUP: no more messages are taken, and those at \
work, or waiting for another try, have --drain-s seconds; what is not done then goes back to the \
queue. A second signal kills the programs and ends at once.

forebay publish --explain N marks messages from where they are published; those are then what is explained.")]
pub(crate) struct Args {
    #[command(flatten)]
    broker: BrokerUrl,
    /// The queue, which must exist
    #[arg(long, value_name = "QUEUE", value_parser = NonEmptyStringValueParser::new())]
    queue: String,
    /// Programs at a time: a number, or 'auto' for as many as make it faster together; as many as there are cores
    /// unless given
    #[arg(long, value_name = "N|auto")]
    concurrency: Option<AtATime>,
    /// Write messages as lines to programs that stay, and read an answer to each
    #[arg(long)]
    stream: bool,
    /// Try a message again up to this many times, after 1 s, 2 s and so on up to a minute
    #[arg(long, value_name = "N", default_value_t = 3)]
    retries: u32,
    /// What becomes of a message whose last try failed
    #[arg(long, value_name = "WHAT", default_value = "requeue")]
    on_failure: OnFailure,
    /// Reject a message at once when its program ends with this code; may be given several times
    #[arg(long, value_name = "CODE", conflicts_with = "stream", value_parser = clap::value_parser!(i32).range(1..=255))]
    reject_on: Vec<i32>,
    /// Stop a program that takes longer than this with a message, which has failed then
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout_s: Option<u64>,
    /// Stop when nothing is left in the queue and nothing in work; with messages that always fail, only under
    /// --on-failure reject
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    asked: Asked,
    /// How long to wait for programs at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_s: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct AtATime(Concurrency);

impl FromStr for AtATime {
    type Err = String;

    fn from_str(text: &str) -> Result<AtATime, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(AtATime(Concurrency::auto())),
            (_, Ok(number @ 1..=1_000_usize)) => Ok(AtATime(number.into())),
            _ => Err("give a number from 1 to 1000, or 'auto'".into()),
        }
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnFailure {
    /// Back to the queue, for whoever takes it next.
    Requeue,
    /// Dropped, or dead-lettered where the broker does that.
    Reject,
}

impl Args {
    fn concurrency(&self) -> Concurrency {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.concurrency.map_or_else(|| cores().into(), |given| given.0)
    }

    /// All that is the same for both kinds of programs.
    fn policy<H>(
        &self,
        process: Process<forebay::pipeline::QueueSource, H>,
        explaining: Option<Explaining<Received>>,
        tracing: &Tracing,
    ) -> Process<forebay::pipeline::QueueSource, H>
    where
        H: forebay::pipeline::Handler<Received>,
    {
        let process = process
            .retries(Backoff::new(self.retries, PAUSE_MIN, PAUSE_MAX))
            .breaker(Breaker::new(BREAKER_FAILURES, PAUSE_MIN, PAUSE_MAX))
            .on_failure(match self.on_failure {
                OnFailure::Requeue => Outcome::Requeue,
                OnFailure::Reject => Outcome::Reject,
            });
        let process = match self.timeout_s {
            None => process,
            Some(limit_s) => process.timeout(Duration::from_secs(limit_s)),
        };
        let process = tracing.process(process, &self.queue);
        explaining.into_iter().fold(process, Process::explain_by)
    }

    fn start(
        &self,
        connection: &Connection,
        program: Arc<Program>,
        services: &Arc<Services>,
        explaining: Option<Explaining<Received>>,
        tracing: &Tracing,
    ) -> Running {
        let source = connection.source(&self.queue);
        // A message that waits elsewhere for its next attempt is not done.
        let source = if self.until_empty { source.without_ladder() } else { source };
        let pipeline = Pipeline::from(source);
        let limit = self.timeout_s.map(Duration::from_secs);
        if self.stream {
            let services = services.clone();
            let handler = move |message: Item<Received>| {
                let (program, services) = (program.clone(), services.clone());
                async move { attempt(&message, &program, limit, services.ask(&message)).await }
            };
            let process = pipeline.process(self.concurrency(), handler);
            self.policy(process, explaining, tracing).start()
        } else {
            let reject_on: Arc<[i32]> = self.reject_on.clone().into();
            let handler = move |message: Item<Received>| {
                let (program, reject_on) = (program.clone(), reject_on.clone());
                async move {
                    attempt(&message, &program, limit, program.run(&message, &reject_on)).await
                }
            };
            let process = pipeline.process(self.concurrency(), handler);
            self.policy(process, explaining, tracing).start()
        }
    }
}

/// Standard error is the log of a program in a shell.
fn say(why: &str) {
    say!("forebay: {why}");
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    if let Err(sentence) = args.asked.check() {
        return Exit::Usage.because(format!("--timeline: {sentence}"));
    }
    match pipe(&args) {
        Ok(report) => {
            say!("{}", told(&report));
            Exit::Done
        }
        Err(failure) => failure.told(),
    }
}

/// What became of the messages. What waits in the broker for another attempt was acknowledged, and comes again.
fn told(report: &Report) -> String {
    let Report { rejected, requeued, failed, postponed, .. } = report;
    let acked = report.acked - postponed;
    let left = match postponed {
        0 => String::new(),
        _ => format!(", left in the broker for later {postponed}"),
    };
    format!(
        "acknowledged {acked}, rejected {rejected}, requeued {requeued}{left}; {failed} attempts failed"
    )
}

fn pipe(args: &Args) -> Result<Report, Failure> {
    let groups = Groups::default();
    let program = Arc::new(Program::find(&args.command, groups.clone())?);
    let stop = StopSignal::listen_with(move |exit| groups.kill_and(exit));
    let stop = stop.map_err(|error| format!("cannot handle signals: {error}"))?;
    let tracing = Tracing::from_env();
    runtime()?.block_on(async {
        let builder = Connection::builder().name("forebay pipe");
        let Some(opened) = stop.or(builder.open(&args.broker.url)).await else {
            return Ok(Report::default());
        };
        let connection = opened?;
        let mut happenings = Happenings::of(&connection);
        let telling = args.asked.telling();
        let services = Arc::new(Services::new(program.clone()));
        let running = args.start(&connection, program, &services, telling.explaining(), &tracing);
        let control = running.control();
        let mut emptiness = Emptiness::new(&control, &connection, &args.queue);
        let drain_time = Duration::from_secs(args.drain_s);
        let mut found = BTreeSet::new();
        let came = || {
            while let Some(sentence) = happenings.next() {
                say(&sentence);
            }
            // Each once, however often it changes.
            for finding in control.findings() {
                if found.insert(finding.name) {
                    say(&finding.to_string());
                }
            }
            stop.came()
        };
        let nothing_left = async || args.until_empty && emptiness.is_reached().await;
        let drain = || {
            if stop.came() {
                let report = control.report();
                let at_work = report.taken.saturating_sub(report.settled());
                say_waiting(drain_time, at_work, ["message at work", "messages at work"]);
            }
            control.drain(drain_time);
        };
        let ended = ended(running.join(), came, nothing_left, drain).await;
        services.finish(drain_time).await;
        let told = telling.tell(&control);
        let report = ended.map_err(|error| error.to_string())?;
        // The last acknowledgements leave with this.
        let closed = timeout(PAUSE_MAX, connection.close()).await;
        match closed {
            Ok(Ok(())) => told.map(|()| report).map_err(Failure::from),
            Ok(Err(lost)) => Err(Failure::from(format!(
                "the last acknowledgements may be lost, and their messages come again: {lost}"
            ))),
            Err(_) => {
                let why = "the broker does not answer; some messages may come again";
                Err(Failure::from(why.to_owned()))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_for_later_is_not_done() {
        let mut report = Report::default();
        (report.acked, report.failed) = (5, 3);
        assert_eq!(told(&report), "acknowledged 5, rejected 0, requeued 0; 3 attempts failed");
        report.postponed = 3;
        let left = "acknowledged 2, rejected 0, requeued 0, left in the broker for later 3; 3 attempts failed";
        assert_eq!(told(&report), left);
    }
}
