//! The binary `forebay`: one sub-command per file.

#[macro_use]
mod say;

mod bench;
mod broker_url;
mod check;
mod command_line;
mod consume;
mod definitions;
#[cfg(feature = "demo")]
mod demo;
mod exit;
mod explain;
mod explained;
mod figures;
mod happening;
mod http;
mod input;
#[cfg_attr(not(feature = "otlp"), path = "no_otlp.rs")]
mod otlp;
mod output;
mod pipe;
mod publish;
mod runtime;
mod serve;
mod standard_output;
mod stop_signal;
mod top;
mod transfer;

use clap::{Parser, Subcommand};
use exit::Exit;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A message broker that speaks AMQP 0-9-1.
#[derive(Parser)]
#[command(name = "forebay", version, propagate_version = true)]
struct Forebay {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the broker.
    Serve(serve::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    Publish(publish::Args),
    Consume(consume::Args),
    Pipe(pipe::Args),
    Move(transfer::Args),
    Definitions(definitions::Args),
    Bench(bench::Args),
    Top(top::Args),
    Explain(explain::Args),
    /// Verify a data directory while no broker uses it.
    Check(check::Args),
}

fn main() -> ExitCode {
    let exit: Exit = match command_line::parse::<Forebay>().command {
        Command::Serve(args) => serve::run(args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args),
        Command::Publish(args) => publish::run(args),
        Command::Consume(args) => consume::run(args),
        Command::Pipe(args) => pipe::run(args),
        Command::Move(args) => transfer::run(args),
        Command::Definitions(args) => definitions::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Top(args) => top::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Check(args) => check::run(args),
    };
    exit.into()
}
