//! `forebay-costs`: what a visit, a message and a commit cost a running Forebay; see `--help`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use forebay_bench::{Costs, Credit, LoadCost, Plan, Window};

/// Publishers and the window of each: from one commit per message to many messages per visit.
const LOADS: [(usize, u32); 8] =
    [(1, 1), (4, 1), (50, 1), (50, 4), (50, 16), (50, 64), (1, 16), (1, 1_000)];

/// Runs a series of small loads against a Forebay on this machine and prints what a visit to a
/// connection, a message and a commit cost its CPU, and the window floor that follows.
///
/// Publishers, windows and repetitions are its own; of the load options --size, --persistent and --seconds
/// (for each load) matter, and --broker-pid is needed.
#[derive(Parser)]
#[command(name = "forebay-costs", version)]
struct CostsCommand {
    #[command(flatten)]
    plan: Plan,
    /// Where the broker serves /metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:15672")]
    http: SocketAddr,
    /// Print the costs as JSON on standard output, the lines for people on standard error
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let command = CostsCommand::parse();
    match measure(&command) {
        Ok(costs) if command.json => {
            println!("{}", serde_json::to_string(&costs).expect("costs are plain data"));
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-costs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(command: &CostsCommand) -> Result<Costs, String> {
    let mut loads = Vec::new();
    for (publishers, window) in LOADS {
        let plan = Plan {
            publishers,
            window: Window::Fixed(window),
            consumers: 1,
            prefetch: Credit::Fixed(1_000),
            warm_up: 0.0,
            rate: 0.0,
            ..command.plan.clone()
        };
        let before = commits(command.http)?;
        let report = forebay_bench::run(&plan).map_err(|error| error.to_string())?;
        let commits = commits(command.http)? - before;
        let cpu_us = report.broker_cpu_us_per_message.ok_or(
            "the broker's CPU time is not known: give the process id of a broker on this machine with --broker-pid",
        )?;
        loads.push(LoadCost {
            visits: 1.0 / f64::from(window),
            commits: commits as f64 / report.published.max(1) as f64,
            cpu_us,
        });
    }
    let costs =
        Costs::fit(&loads).ok_or("the loads do not tell visits from commits: measure longer")?;
    for ((publishers, window), load) in LOADS.iter().zip(&loads) {
        eprintln!(
            "{publishers:3} publishers, window {window:4}: {:6.2} µs a message, {:.4} commits; fit {:6.2} µs",
            load.cpu_us,
            load.commits,
            costs.predict(load)
        );
    }
    eprintln!(
        "message {:.2} µs, visit {:.2} µs, commit {:.1} µs: floor of the window {}",
        costs.message_us,
        costs.visit_us,
        costs.commit_us,
        costs.floor_messages()
    );
    Ok(costs)
}

/// Commits so far, from the broker's metrics page.
fn commits(http: SocketAddr) -> Result<u64, String> {
    let page = metrics(http).map_err(|error| format!("metrics of {http}: {error}"))?;
    page.lines()
        .find_map(|line| line.strip_prefix("forebay_commits_total "))
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| {
            format!("{http} has no forebay_commits_total: is this Forebay's --http address?")
        })
}

fn metrics(http: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
