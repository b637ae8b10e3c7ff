//! `forebay-link`: a link of any length on one machine; see `--help`.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use forebay_bench::link::{Conditions, LinkProxy};

/// A loopback TCP proxy that behaves like a distant link. Prints where it listens, takes orders from
/// standard input, one a line, and ends with it:
///   rtt MS | jitter MS | mbit N (0 = no bound) | stall MS | cut | refuse | accept
#[derive(Parser)]
#[command(name = "forebay-link", version, verbatim_doc_comment)]
struct Link {
    /// Where connections go on to
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5672")]
    to: String,
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// There and back, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    rtt: f64,
    /// Up to so many milliseconds more each way
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    /// Megabits a second in each direction, for all connections together; 0 = no bound
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    mbit: f64,
}

fn main() -> ExitCode {
    match run(&Link::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-link: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(link: &Link) -> std::io::Result<()> {
    let mut conditions = Conditions {
        rtt_us: us(link.rtt),
        jitter_us: us(link.jitter),
        bytes_per_s: bytes_per_s(link.mbit),
    };
    let proxy = LinkProxy::start_at(&*link.listen, &*link.to, conditions)?;
    println!("forebay-link ready {}", proxy.address());
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        if let Err(text) = obey(&proxy, &mut conditions, &line?) {
            eprintln!("forebay-link: {text}");
        }
    }
    Ok(())
}

fn obey(proxy: &LinkProxy, conditions: &mut Conditions, line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let Some(order) = words.next() else { return Ok(()) };
    let number = match words.next().map(str::parse::<f64>) {
        None => None,
        Some(Ok(number)) if number >= 0.0 => Some(number),
        Some(_) => return Err(format!("`{line}` has no number after its first word")),
    };
    let mut wanted = *conditions;
    match (order, number) {
        ("rtt", Some(ms)) => wanted.rtt_us = us(ms),
        ("jitter", Some(ms)) => wanted.jitter_us = us(ms),
        ("mbit", Some(mbit)) => wanted.bytes_per_s = bytes_per_s(mbit),
        ("stall", Some(ms)) => proxy.stall(Duration::from_micros(us(ms))),
        ("cut", None) => println!("cut {}", proxy.cut()),
        ("refuse", None) => proxy.refuse(true),
        ("accept", None) => proxy.refuse(false),
        _ => return Err(format!("`{line}` is no order; --help names them")),
    }
    if wanted != *conditions {
        proxy.set(wanted).map_err(|error| error.to_string())?;
        *conditions = wanted;
    }
    Ok(())
}

fn us(ms: f64) -> u64 {
    (ms * 1000.0) as u64
}

fn bytes_per_s(mbit: f64) -> Option<u64> {
    (mbit > 0.0).then_some(((mbit * 125_000.0) as u64).max(1))
}
