//! A link whose length changes, a broker that stalls, a disk that becomes slow: how soon does the rate settle?
//!
//! ```text
//!   rate    ▁▁▁▃▅▇▇▇▇▇▇▇▇▇▇      bins of 0.1 s; steady = mean of the segment's last quarter
//!   change  ^     ^              settled = the first moment from which every second to the segment's end
//!                                has at least 85 % of steady
//! ```
//! Of several repetitions the median of each bin counts.
//!
//! And the steady rate itself shall have 85 % of its reference: that of publishers who begin afresh on such a
//! link or disk, or that before the stall.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::broker::{Broker, Queue};
use super::cell::Choice;
use super::load::Load;
use super::setting::{Setting, ms, rate, say};
use super::tally::{BIN_US, Bin, Tally};
use super::way::Way;
use crate::occasion::Occasion;

const SETTLED_MIN: f64 = 0.85;
const SETTLED_US_MAX: u64 = 3_000_000;
/// Bins of a second.
const SECOND_BINS: usize = (1_000_000 / BIN_US) as usize;

/// What is done to link and broker.
#[derive(clap::Args, Debug, Clone)]
pub struct Steps {
    #[command(flatten)]
    setting: Setting,
    /// What changes: the link's length, nothing passes it, the broker stands still, its disk becomes slow; the last two only
    /// of a broker of our own [default: all that can be]
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    change: Option<Vec<Change>>,
    /// Round trips of the link, one after the other, in milliseconds
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0.1,10,100,0.1")]
    rtt: Vec<f64>,
    /// Seconds between changes, at least 2
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    hold: f64,
    /// Length of the stall in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    stall: f64,
    /// Round trip of the link while something stalls, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10.0)]
    stall_rtt: f64,
    /// What each flush of the broker's disk takes longer, one after the other, in milliseconds
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0,8,0")]
    flush: Vec<f64>,
    /// Publishers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,20")]
    publishers: Vec<usize>,
    /// Bytes of a body
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    size: usize,
    /// Every publisher keeps so many messages in flight, to see what is not the window's doing; otherwise it tunes itself
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// A confirm that takes longer is a timeout, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    patience: f64,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Change {
    Rtt,
    Link,
    Broker,
    Disk,
}

impl Change {
    /// It is done to nobody else's broker.
    fn needs_our_broker(self) -> bool {
        matches!(self, Change::Broker | Change::Disk)
    }
}

/// What happens at some moment.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    RttMs(f64),
    StallLink(Duration),
    StopBroker,
    ContinueBroker,
    /// Each flush of the disk takes so many milliseconds longer.
    FlushMs(f64),
}

/// A time during which nothing is changed, and what came before it.
#[derive(Debug, Clone, PartialEq)]
struct Segment {
    after: String,
    from_us: u64,
    to_us: u64,
    reference: Reference,
}

/// What a segment's steady rate is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reference {
    /// Publishers who begin with that.
    Fresh(Event),
    /// The same publishers up to this moment, in microseconds.
    Before(u64),
}

#[derive(Debug, Clone, PartialEq)]
struct Script {
    events: Vec<(u64, Event)>,
    segments: Vec<Segment>,
    end_us: u64,
}

/// One segment, measured.
#[derive(Debug, Clone, Serialize)]
struct Row {
    publishers: usize,
    after: String,
    /// Confirmed a second in the last quarter.
    steady_per_s: f64,
    /// And what it is compared with.
    reference_per_s: f64,
    /// Mean latency in the last quarter, in microseconds.
    steady_us: u64,
    /// Highest mean latency of a bin, in microseconds.
    worst_us: u64,
    /// `None`: never.
    settled_us: Option<u64>,
    failed: u64,
    timed_out: u64,
    met: bool,
}

/// What the repetitions of one performance showed.
struct Seen {
    bins: Vec<Bin>,
    failed: u64,
    timed_out: u64,
}

#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    occasion: &'a Occasion,
    repeat: usize,
    size_bytes: usize,
    rows: &'a [Row],
}

impl Steps {
    /// Measures and prints everything; returns whether everything settled in time.
    pub async fn run(&self) -> Result<bool, String> {
        if self.hold < 2.0 || !self.hold.is_finite() || !(0.0..=60.0).contains(&self.stall) {
            return Err("--hold is at least 2 seconds and --stall at most 60".to_owned());
        }
        let times = [&self.rtt, &self.flush];
        if times.iter().any(|all| all.is_empty())
            || times.iter().flat_map(|all| *all).any(|ms| !(0.0..=10_000.0).contains(ms))
        {
            return Err(
                "round trips and flushes are from 0 to 10000 ms, and at least one each".into()
            );
        }
        if self.setting.repeat == 0 {
            return Err("repetitions are above 0".to_owned());
        }
        let changes = self.changes()?;
        let occasion = Occasion::now(
            "forebay-distance",
            self.setting.broker().await?.introduces_itself().await?,
        );
        println!("{}\n", occasion.headline());
        println!(
            "| publishers | after | steady | shall be | latency then | worst 0.1 s | settled after | |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        let mut rows = Vec::new();
        for &publishers in &self.publishers {
            for &change in &changes {
                let script = self.script(change);
                let slow_disk = (change == Change::Disk).then_some(0.0);
                let broker = self.setting.broker_on(slow_disk).await?;
                for row in self.play(&broker, publishers, &script).await? {
                    println!("{}", row.line());
                    rows.push(row);
                }
                self.setting.save(&Record {
                    occasion: &occasion,
                    repeat: self.setting.repeat,
                    size_bytes: self.size,
                    rows: &rows,
                })?;
            }
        }
        let missed = rows.iter().filter(|row| !row.met).count();
        println!("\n{} segments: {} pass, {missed} FAIL", rows.len(), rows.len() - missed);
        Ok(missed == 0 && !rows.is_empty())
    }

    /// What is done to link and broker; to somebody else's only what concerns the link.
    fn changes(&self) -> Result<Vec<Change>, String> {
        let all = Change::value_variants().to_vec();
        match (&self.change, self.setting.url.is_some()) {
            (Some(asked), true) if asked.iter().any(|change| change.needs_our_broker()) => Err(
                "--change broker and --change disk are for a broker of our own: leave out --url and FOREBAY_URL"
                    .to_owned(),
            ),
            (Some(asked), _) => Ok(asked.clone()),
            (None, false) => Ok(all),
            (None, true) => {
                say("the broker is not ours: nobody stops it, and its disk stays as it is");
                Ok(all.into_iter().filter(|change| !change.needs_our_broker()).collect())
            }
        }
    }

    fn script(&self, change: Change) -> Script {
        match change {
            Change::Rtt => self.steps("RTT", &self.rtt, Event::RttMs),
            Change::Link => self.stalls(false),
            Change::Broker => self.stalls(true),
            Change::Disk => self.steps("flush +", &self.flush, Event::FlushMs),
        }
    }

    /// One after the other is done to link or broker.
    fn steps(&self, what: &str, all_ms: &[f64], event: fn(f64) -> Event) -> Script {
        let hold_us = (self.hold * 1e6) as u64;
        let at = |index: usize| index as u64 * hold_us;
        Script {
            events: all_ms.iter().enumerate().map(|(i, &ms)| (at(i), event(ms))).collect(),
            segments: (all_ms.iter().enumerate())
                .map(|(index, &ms)| Segment {
                    after: match index {
                        0 => format!("start at {what} {ms} ms"),
                        _ => format!("{what} {} to {ms} ms", all_ms[index - 1]),
                    },
                    from_us: at(index),
                    to_us: at(index + 1),
                    reference: Reference::Fresh(event(ms)),
                })
                .collect(),
            end_us: at(all_ms.len()),
        }
    }

    fn stalls(&self, broker: bool) -> Script {
        let (hold_us, stall_us) = ((self.hold * 1e6) as u64, (self.stall * 1e6) as u64);
        let over_us = hold_us + stall_us;
        let events = match broker {
            true => vec![(hold_us, Event::StopBroker), (over_us, Event::ContinueBroker)],
            false => vec![(hold_us, Event::StallLink(Duration::from_micros(stall_us)))],
        };
        let who = if broker { "broker" } else { "link" };
        Script {
            events: [vec![(0, Event::RttMs(self.stall_rtt))], events].concat(),
            segments: vec![Segment {
                after: format!("{who} stalled {} s, RTT {} ms", self.stall, self.stall_rtt),
                from_us: over_us,
                to_us: over_us + hold_us,
                reference: Reference::Before(hold_us),
            }],
            end_us: over_us + hold_us,
        }
    }

    async fn play(
        &self,
        broker: &Broker,
        publishers: usize,
        script: &Script,
    ) -> Result<Vec<Row>, String> {
        let seen = self.repeated(broker, publishers, &script.events, script.end_us).await?;
        let bin = |us: u64| (us / BIN_US) as usize;
        let mut rows = Vec::new();
        for segment in &script.segments {
            let bins = &seen.bins[bin(segment.from_us)..bin(segment.to_us)];
            let reference_per_s = match segment.reference {
                Reference::Before(us) => per_s(last_quarter(&seen.bins[..bin(us)])),
                Reference::Fresh(event) => {
                    let hold_us = segment.to_us - segment.from_us;
                    let events = [(0, event)];
                    let fresh = self.repeated(broker, publishers, &events, hold_us).await?;
                    per_s(last_quarter(&fresh.bins))
                }
            };
            let steady = last_quarter(bins);
            let settled_us = settled_us(bins);
            rows.push(Row {
                publishers,
                after: segment.after.clone(),
                steady_per_s: per_s(steady),
                reference_per_s,
                steady_us: mean_us(steady).unwrap_or(0),
                worst_us: bins.iter().filter_map(|bin| mean_us(&[*bin])).max().unwrap_or(0),
                settled_us,
                failed: seen.failed,
                timed_out: seen.timed_out,
                met: settled_us.is_some_and(|us| us <= SETTLED_US_MAX)
                    && per_s(steady) >= SETTLED_MIN * reference_per_s
                    && seen.failed + seen.timed_out == 0,
            });
        }
        Ok(rows)
    }

    /// The performance again and again; of each bin the repetition with the median rate counts, so that what
    /// the machine does besides, which differs from one to the next, does not look like an answer.
    async fn repeated(
        &self,
        broker: &Broker,
        publishers: usize,
        events: &[(u64, Event)],
        end_us: u64,
    ) -> Result<Seen, String> {
        let mut runs = Vec::new();
        for _ in 0..self.setting.repeat {
            runs.push(self.perform(broker, publishers, events, end_us).await?);
        }
        let sum = |of: fn(&Tally) -> u64| runs.iter().map(of).sum();
        let (failed, timed_out) = (sum(|run| run.failed), sum(|run| run.timed_out));
        Ok(Seen {
            bins: medians(runs.into_iter().map(|run| run.bins).collect()),
            failed,
            timed_out,
        })
    }

    /// Publishers on a link of their own, while that happens.
    async fn perform(
        &self,
        broker: &Broker,
        publishers: usize,
        events: &[(u64, Event)],
        end_us: u64,
    ) -> Result<Tally, String> {
        let rtt_ms = match events[0].1 {
            Event::RttMs(ms) => ms,
            _ => self.rtt[0],
        };
        let way = Way::to(broker, rtt_ms.max(0.001), 0.0, self.setting.routed)?;
        // What there is from the start is there before the start.
        let (first, later) = events.split_at(events.partition_point(|&(at_us, _)| at_us == 0));
        for &(_, event) in first {
            perform(event, &way, broker)?;
        }
        let kind = self.setting.queue_type.as_deref();
        let mut queue = Queue::declare(broker, "forebay-steps", kind, true).await?;
        let early = Duration::from_micros(end_us / 4);
        let load = Load {
            url: way.url(broker)?,
            queue: queue.name.clone(),
            publishers,
            size_bytes: self.size,
            choice: self.window.map_or(Choice::Tuned, Choice::Fixed),
            first: early,
            later: Duration::from_micros(end_us) - early,
            patience: Duration::from_secs_f64(self.patience),
            kernel_rtt: self.setting.kernel_rtt || way.is_the_kernels(),
        };
        let (tell, told) = oneshot::channel();
        let performance = async {
            // Without a beginning the load tells why.
            let Ok(began): Result<Instant, _> = told.await else { return Ok(()) };
            for &(at_us, event) in later {
                sleep_until((began + Duration::from_micros(at_us)).into()).await;
                perform(event, &way, broker)?;
            }
            Ok::<(), String>(())
        };
        // Nobody waits for it if the performance has failed already.
        let began = |at| {
            let _ = tell.send(at);
        };
        let (seen, performed) = tokio::join!(load.run(began), performance);
        performed?;
        queue.delete(broker).await?;
        Ok(seen?.tally)
    }
}

fn perform(event: Event, way: &Way, broker: &Broker) -> Result<(), String> {
    let signal = |signal| {
        let pid = broker.pid().and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or("only a broker of our own is stopped")?;
        kill_process(pid, signal).map_err(|error| format!("cannot stop the broker: {error}"))
    };
    match event {
        Event::RttMs(ms) => way.set_rtt(ms),
        Event::StallLink(time) => way.stall(time),
        Event::StopBroker => signal(Signal::STOP),
        Event::ContinueBroker => signal(Signal::CONT),
        Event::FlushMs(ms) => broker.set_flush(ms),
    }
}

/// Of each bin the one with the median rate, of an even number the mean of both in the middle; none where there are no runs.
fn medians(runs: Vec<Vec<Bin>>) -> Vec<Bin> {
    let length = runs.iter().map(Vec::len).min().unwrap_or(0);
    let of = |index: usize| {
        let mut bins: Vec<Bin> = runs.iter().map(|run| run[index]).collect();
        bins.sort_by_key(|bin| bin.confirmed);
        let (low, high) = (bins[(bins.len() - 1) / 2], bins[bins.len() / 2]);
        Bin {
            confirmed: low.confirmed.midpoint(high.confirmed),
            latency_us: low.latency_us.midpoint(high.latency_us),
        }
    };
    (0..length).map(of).collect()
}

fn per_s(bins: &[Bin]) -> f64 {
    let confirmed: u64 = bins.iter().map(|bin| bin.confirmed).sum();
    confirmed as f64 * 1e6 / (bins.len() as u64 * BIN_US) as f64
}

fn mean_us(bins: &[Bin]) -> Option<u64> {
    let sum = |of: fn(&Bin) -> u64| bins.iter().map(of).sum::<u64>();
    sum(|bin| bin.latency_us).checked_div(sum(|bin| bin.confirmed))
}

fn last_quarter(bins: &[Bin]) -> &[Bin] {
    &bins[bins.len() * 3 / 4..]
}

/// When the rate settled, from the beginning of these bins; `None` if it ended at nothing.
fn settled_us(bins: &[Bin]) -> Option<u64> {
    let enough = SETTLED_MIN * per_s(last_quarter(bins));
    if enough <= 0.0 {
        return None;
    }
    let seconds = bins.windows(SECOND_BINS);
    let low = seconds.enumerate().rev().find(|(_, second)| per_s(second) < enough);
    Some(low.map_or(0, |(index, _)| (index as u64 + 1) * BIN_US))
}

impl Row {
    fn line(&self) -> String {
        let settled = match self.settled_us {
            Some(us) => format!("{:.1} s", us as f64 / 1e6),
            None => "never".to_owned(),
        };
        let lost = match self.failed + self.timed_out {
            0 => String::new(),
            lost => format!(", {lost} messages failed or timed out"),
        };
        format!(
            "| {} | {} | {} | {} | {} | {} | {settled} | {}{lost} |",
            self.publishers,
            self.after,
            rate(self.steady_per_s),
            rate(self.reference_per_s),
            ms(self.steady_us as f64),
            ms(self.worst_us as f64),
            if self.met { "pass" } else { "**FAIL**" },
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn bins(confirmed: &[u64]) -> Vec<Bin> {
        confirmed.iter().map(|&confirmed| Bin { confirmed, latency_us: confirmed * 7 }).collect()
    }

    #[test]
    fn one_slow_repetition_is_not_the_answer() {
        let runs = vec![bins(&[10, 10, 1]), bins(&[10, 2, 10]), bins(&[11, 10, 12])];
        let rates: Vec<u64> = medians(runs).iter().map(|bin| bin.confirmed).collect();
        assert_eq!(rates, [10, 10, 10]);
        let of_two = medians(vec![bins(&[10, 0]), bins(&[20, 6])]);
        assert_eq!(of_two, bins(&[15, 3]), "the better one is not the answer either");
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        steps: Steps,
    }

    fn steps(line: &str) -> Steps {
        let words = std::iter::once("steps").chain(line.split_whitespace());
        Command::parse_from(words).steps
    }

    #[test]
    fn somebody_elses_broker_is_neither_stopped_nor_slowed_and_that_is_told() {
        for given in ["--url amqp://h --change broker", "--url amqp://h --change rtt,disk"] {
            let refused = steps(given).changes().unwrap_err();
            assert!(refused.contains("of our own"), "{refused}");
        }
        let at_url = steps("--url amqp://h");
        assert_eq!(at_url.changes().unwrap(), [Change::Rtt, Change::Link]);
        assert_eq!(steps("--change disk").changes().unwrap(), [Change::Disk]);
        assert_eq!(steps("").changes().unwrap().len(), 4);
    }

    #[test]
    fn nothing_done_no_time_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let refused = runtime.block_on(steps("--url amqp://h --repeat 0").run()).unwrap_err();
        assert_eq!(refused, "repetitions are above 0");
    }

    #[test]
    fn a_rate_that_does_not_change_is_settled_at_once() {
        assert_eq!(settled_us(&bins(&[10; 40])), Some(0));
        assert_eq!(settled_us(&bins(&[0; 40])), None);
    }

    #[test]
    fn settled_is_when_every_later_second_is_fast_enough() {
        let mut rates = vec![0; 20];
        rates.extend([10; 40]);
        // The second from bin 18 on has 8 of its 10 bins, the one from bin 19 on has 9.
        assert_eq!(settled_us(&bins(&rates)), Some(19 * BIN_US));
        // A dip of half a second later on undoes it.
        rates[35..40].fill(0);
        assert_eq!(settled_us(&bins(&rates)), Some(39 * BIN_US));
    }

    #[test]
    fn means_are_of_messages_not_of_bins() {
        assert_eq!(mean_us(&[]), None);
        let bins = [Bin { confirmed: 1, latency_us: 100 }, Bin { confirmed: 3, latency_us: 20 }];
        assert_eq!(mean_us(&bins), Some(30));
        assert_eq!(per_s(&bins), 20.0);
    }
}
