//! `forebay-load`: one load, one line; see `--help`.

use std::process::ExitCode;

use clap::Parser;
use forebay_bench::{LoadError, Plan};

/// Loads an AMQP 0-9-1 broker and measures it.
#[derive(Parser)]
#[command(name = "forebay-load", version)]
struct Load {
    #[command(flatten)]
    plan: Plan,
    /// Print the report as JSON on standard output, the line for people on standard error
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let load = Load::parse();
    match forebay_bench::run(&load.plan) {
        Ok(report) if load.json => {
            eprintln!("{report}");
            println!("{}", serde_json::to_string(&report).expect("a report is plain data"));
            ExitCode::SUCCESS
        }
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("forebay-load: {error}");
            ExitCode::from(if matches!(error, LoadError::Plan(_)) { 2 } else { 1 })
        }
    }
}
