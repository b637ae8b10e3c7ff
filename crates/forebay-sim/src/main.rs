//! `forebay-sim`: runs seeds, prints what they did, and fails if a promise was broken.

use std::process::ExitCode;
use std::time::Instant;

use forebay_sim::{Statistics, Swarm, run, shrink};

const USAGE: &str = "\
usage: forebay-sim [--seeds N] [--base B] [--seconds S]
                                              run N seeds from B on, no longer than S seconds
       forebay-sim --seed S [--trace]         run one seed; print every event and every frame
       forebay-sim --seed S --shrink          run one seed and shorten its event list";

struct Arguments {
    seeds: u64,
    base: u64,
    seconds: u64,
    trace: bool,
    shrink: bool,
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!("{what}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let mut total = Statistics::default();
    let mut violations = 0;
    let mut seeds = 0;
    for seed in (arguments.base..).take(usize::try_from(arguments.seeds).unwrap_or(usize::MAX)) {
        if began.elapsed().as_secs() >= arguments.seconds {
            break;
        }
        seeds += 1;
        let swarm = Swarm::new(seed);
        let report = run(seed, &swarm, arguments.trace);
        add(&mut total, &report.statistics);
        let Some(violation) = report.violation else { continue };
        violations += 1;
        println!("seed {seed} after {} events: {violation}", report.events.len());
        println!("  again: make sim SEED={seed}, with this commit: {}", commit());
        if arguments.shrink {
            let (events, violation) = shrink(seed, &swarm, report.events, violation);
            println!("  {} events are enough: {violation}", events.len());
            forebay_sim::replay(seed, &swarm, &events, true);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {}: {} events ({:.2} M a minute), {} crashes, {} restarts, {} disk failures, \
         {} damages found, {} messages, {} confirms, {} refused, {} deliveries, {} runs, \
         {} times held, {} expired, {} dropped, {} queues expired, {} asked, {} preferred, {} replies, {} dead letters, {} that nobody rejected, {} found after a crash; {violations} violations",
        arguments.base,
        total.events,
        total.events as f64 / seconds * 60.0 / 1e6,
        total.crashes,
        total.restarts,
        total.disk_failures,
        total.detected,
        total.published,
        total.confirmed,
        total.refused,
        total.delivered,
        total.runs_written,
        total.held,
        total.expired,
        total.dropped,
        total.queues_expired,
        total.asked,
        total.preferred,
        total.replies,
        total.letters,
        total.left,
        total.found_letters,
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments =
        Arguments { seeds: 100, base: 0, seconds: u64::MAX, trace: false, shrink: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let word = words.next().ok_or("a number is missing")?;
            word.parse().map_err(|_| format!("'{word}' is not a number"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = number()?,
            "--base" => arguments.base = number()?,
            "--seconds" => arguments.seconds = number()?,
            "--seed" => {
                arguments.base = number()?;
                arguments.seeds = 1;
            }
            "--trace" => arguments.trace = true,
            "--shrink" => arguments.shrink = true,
            word => return Err(format!("'{word}' is not understood")),
        }
    }
    Ok(arguments)
}

fn add(total: &mut Statistics, one: &Statistics) {
    total.events += one.events;
    total.crashes += one.crashes;
    total.restarts += one.restarts;
    total.disk_failures += one.disk_failures;
    total.detected += one.detected;
    total.published += one.published;
    total.delivered += one.delivered;
    total.confirmed += one.confirmed;
    total.runs_written += one.runs_written;
    total.held += one.held;
    total.expired += one.expired;
    total.dropped += one.dropped;
    total.queues_expired += one.queues_expired;
    total.asked += one.asked;
    total.preferred += one.preferred;
    total.replies += one.replies;
    total.letters += one.letters;
    total.left += one.left;
    total.refused += one.refused;
    total.found_letters += one.found_letters;
}

/// The commit that a seed belongs to: another one may make another run of it.
fn commit() -> String {
    std::process::Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}
