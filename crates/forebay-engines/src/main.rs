//! One program over every engine: the embedded broker, `forebay serve`, RabbitMQ, a RabbitMQ cluster.
//!
//! ```text
//!  tests/engines/run.py ──starts──▶ engines
//!          │
//!          └─runs──▶ forebay-engines suite      what holds everywhere, and what each engine answers
//!                    forebay-engines adversity  a cluster is hurt while messages flow
//!                    forebay-engines moves      `forebay move` between two brokers, and killed
//!                    forebay-engines login      whether a connection is who it should be
//! ```
//! Prints one JSON object a line for each thing that was tried:
//! `{"case": name, "promise": sentence, "failed": null or why, "saw": {question: answer}}`. The exit code tells
//! whether all could be tried, and after `adversity` whether all went well.

mod adversity;
mod cluster;
mod engine;
mod ledger;
mod login;
mod moving;
mod suite;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::{Map, Value, json};

use engine::Engine;

/// Tries what programs rely on.
#[derive(Parser)]
#[command(name = "forebay-engines")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// All cases on one engine: the embedded one, unless there is a URI
    Suite {
        /// The broker
        #[arg(long)]
        uri: Option<String>,
        /// Durable queues are quorum queues
        #[arg(long)]
        quorum: bool,
        /// Only cases whose name begins so
        #[arg(long, default_value = "", hide_default_value = true)]
        only: String,
    },
    /// Publishers and consumers on a cluster that is hurt; inside `scripts/rabbitmq-cluster.py run`
    Adversity,
    /// A queue's messages go from one broker to another, by a command that is killed
    Moves(moving::Way),
    /// A connection logs in, and publishes in its user's name and in another's
    Login(login::Login),
}

/// What was tried and what came of it.
struct Tried {
    case: String,
    promise: String,
    outcome: Result<Vec<(String, String)>, String>,
}

impl Tried {
    fn print(&self) {
        let (failed, saw) = match &self.outcome {
            Ok(saw) => (None, saw.as_slice()),
            Err(why) => (Some(why), [].as_slice()),
        };
        let saw: Map<String, Value> =
            saw.iter().map(|(question, answer)| (question.clone(), json!(answer))).collect();
        let line =
            json!({"case": self.case, "promise": self.promise, "failed": failed, "saw": saw});
        println!("{line}");
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match Arguments::parse().what {
        What::Suite { uri, quorum, only } => match Engine::new(uri, quorum) {
            Ok(engine) => suite::run(&engine, &only, |tried| tried.print()).await,
            Err(error) => return fail(&error),
        },
        What::Adversity => {
            let mut failed = 0;
            let told = |tried: Tried| {
                failed += u32::from(tried.outcome.is_err());
                tried.print();
            };
            if let Err(error) = adversity::run(told).await {
                return fail(&error);
            }
            if failed > 0 {
                return fail("the cluster hurt more than it may; its logs are kept");
            }
        }
        What::Moves(way) => moving::run(&way, |tried| tried.print()),
        What::Login(login) => login.run().await.print(),
    }
    ExitCode::SUCCESS
}

fn fail(why: &str) -> ExitCode {
    eprintln!("forebay-engines: {why}");
    ExitCode::FAILURE
}
