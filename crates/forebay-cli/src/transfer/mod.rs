//! `forebay move`: a queue's messages from one broker to another, or to another queue.
//!
//! ```text
//!   source ──deliver──▶ forebay move ──publish, mandatory──▶ target
//!          ◀───ack──────             ◀──────confirm────────
//! ```
//! A message is acked at the source only after the target confirmed it. Whenever we are killed, each message
//! is at the source, at the target, or at both. Those at both come back from the source as redelivered, and
//! are marked with [`REPUBLISHED_HEADER`](forebay_client::REPUBLISHED_HEADER) when they are moved again.

mod carrier;
mod report;
mod source;
mod target;

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use forebay_client::OpenError;
use forebay_wire::AmqpUri;

use crate::exit::{Exit, Failure};
use crate::runtime::runtime;
use crate::stop_signal::{NOT_ANSWERED, StopSignal};
use carrier::{Carrier, End, SIGNAL};
use report::Report;
use source::Source;
use target::Target;

/// How often a broker that was lost is tried again, over all its hosts: about half a minute.
const RECOVERY_ROUNDS: u32 = 9;
/// Messages on their way at a time unless set: each is in memory until it is confirmed.
const HELD_MAX: u16 = 1_000;

/// Move a queue's messages to another broker or queue. A message leaves the source only when the target has
/// confirmed it; stopped or killed at any point, none is lost. Ends when the queue is empty. Exits with 3
/// if the target did not confirm them all.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The broker that has the messages
    #[arg(long, value_name = "URL")]
    from: String,
    /// The broker that gets them
    #[arg(long, value_name = "URL")]
    to: String,
    /// The queue to empty, which must exist
    #[arg(long, value_name = "QUEUE", value_parser = NonEmptyStringValueParser::new())]
    queue: String,
    /// The queue to fill, which must exist; the same name unless given
    #[arg(long, value_name = "QUEUE", conflicts_with_all = ["exchange", "routing_key"])]
    to_queue: Option<String>,
    /// Publish to this exchange instead
    #[arg(long, value_name = "EXCHANGE")]
    exchange: Option<String>,
    /// Routing key at the exchange; each message's own unless given
    #[arg(long, value_name = "KEY", requires = "exchange")]
    routing_key: Option<String>,
    /// Stop after this many messages, and take no more than these from the queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End only when the queue has been empty for so long
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "follow",
          value_parser = clap::value_parser!(u64).range(..=86_400))]
    idle_seconds: u64,
    /// Run on when the queue is empty, until a signal
    #[arg(long)]
    follow: bool,
    /// Messages that may be on their way at a time; they are held in memory
    #[arg(long, value_name = "N", default_value_t = HELD_MAX,
          value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
    /// Print a JSON summary on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    fn idle(&self) -> Duration {
        Duration::from_secs(self.idle_seconds)
    }

    /// Whether what is taken would come back at once.
    fn is_circle(&self) -> bool {
        let to_queue = match (self.exchange.as_deref(), self.routing_key.as_deref()) {
            (None, _) => Some(self.to_queue.as_deref().unwrap_or(&self.queue)),
            (Some(""), key) => key,
            (Some(_), _) => None,
        };
        to_queue == Some(&*self.queue) && self.stays_in_its_vhost()
    }

    /// The queue to which single messages would come back at once, by what they say themselves: the source, if the default
    /// exchange of its virtual host is the target.
    fn circling_queue(&self) -> Option<String> {
        let is_by_name = self.exchange.as_deref().is_none_or(str::is_empty);
        (is_by_name && self.stays_in_its_vhost()).then(|| self.queue.clone())
    }

    /// Whether source and target are one virtual host of one broker, as far as can be known.
    fn stays_in_its_vhost(&self) -> bool {
        let place = |uri: &str| {
            let uri: AmqpUri = uri.parse().ok()?;
            // One broker has several names, and a list of hosts leads to any of them.
            let hosts: BTreeSet<(String, u16)> =
                uri.hosts().map(|(host, port)| (host.to_owned(), port)).collect();
            let addresses =
                hosts.iter().map(|(host, port)| (host.as_str(), *port).to_socket_addrs());
            let addresses: BTreeSet<SocketAddr> =
                addresses.filter_map(Result::ok).flatten().collect();
            Some((hosts, addresses, uri.vhost))
        };
        let (Some(from), Some(to)) = (place(&self.from), place(&self.to)) else { return false };
        let same_broker = !from.0.is_disjoint(&to.0) || !from.1.is_disjoint(&to.1);
        same_broker && from.2 == to.2
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    if args.is_circle() {
        let why = "source and target are the same queue; name another with --to-queue or --to";
        return Exit::Usage.because(why);
    }
    let report = match runtime() {
        Ok(runtime) => runtime.block_on(transfer(&args)),
        Err(sentence) => Err(Failure(Exit::Failed, sentence)),
    };
    match report {
        Ok(report) => report.exit().once(report.print(args.json)),
        Err(failure) => failure.told(),
    }
}

/// Of the source or the target, which `flag` names.
fn opening(which: &str, flag: &str, error: &OpenError) -> Failure {
    let Failure(exit, sentence) = Failure::opening(error, flag);
    Failure(exit, format!("{which} ({flag}): {sentence}"))
}

async fn transfer(args: &Args) -> Result<Report, Failure> {
    let failed = |sentence: String| Failure(Exit::Failed, sentence);
    let stop =
        StopSignal::listen().map_err(|error| failed(format!("cannot handle signals: {error}")))?;
    let Some(opened) = stop.or(open(args)).await else { return Err(failed(NOT_ANSWERED.into())) };
    let (target, mut source, mut report) = opened?;
    let started = Instant::now();
    loop {
        let end = Carrier::new(args, &mut source, &target, &mut report).run(&stop).await;
        if let Err(lost) = source.close().await {
            report.stopped.get_or_insert(format!(
                "the last acknowledgements may be lost, and their messages be moved again: {lost}"
            ));
        }
        if end != End::Empty || report.stopped.is_some() {
            break;
        }
        match stop.or(open_again(args, &report)).await {
            Some(Ok(Some(again))) => source = again,
            Some(Ok(None)) => break,
            Some(Err(sentence)) => {
                report.stopped = Some(sentence);
                break;
            }
            None => {
                report.stopped = Some(SIGNAL.to_owned());
                break;
            }
        }
    }
    // Everything has its outcome, or never will.
    target.close().await;
    report.finish(started.elapsed());
    Ok(report)
}

/// Both ends, with what is known of the messages between them.
async fn open(args: &Args) -> Result<(Target, Source, Report), Failure> {
    let failed = |sentence: String| Failure(Exit::Failed, sentence);
    // The target first: what it does not take need not be disturbed at the source.
    let target = Target::open(args).await?;
    let mut source = Source::open(args).await?;
    let total = source.ready().await.map_err(failed)?;
    let report = Report::begun(total.min(args.count.unwrap_or(u64::MAX)), args.follow);
    source.consume(args, report.left(args.count)).await.map_err(failed)?;
    Ok((target, source, report))
}

/// The source, if there is something in it after all: a delivery may have been on its way to us when the queue was asked; it is back by
/// now.
///
/// # Errors
/// A sentence.
async fn open_again(args: &Args, report: &Report) -> Result<Option<Source>, String> {
    let mut source = Source::open(args).await.map_err(|Failure(_, sentence)| sentence)?;
    if source.ready().await? == 0 {
        let _ = source.close().await;
        return Ok(None);
    }
    source.consume(args, report.left(args.count)).await?;
    Ok(Some(source))
}
