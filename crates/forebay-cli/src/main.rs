//! The binary `forebay`: one sub-command per file.

mod consume;
mod exit;
mod publish;
mod serve;
mod stop_signal;

use clap::{Parser, Subcommand};
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
    /// Publish the lines of a file or of standard input.
    Publish(publish::Args),
    /// Write the messages of a queue to standard output.
    Consume(consume::Args),
}

fn main() -> ExitCode {
    match Forebay::parse().command {
        Command::Serve(args) => serve::run(args).into(),
        Command::Publish(args) => publish::run(args),
        Command::Consume(args) => consume::run(args),
    }
}
