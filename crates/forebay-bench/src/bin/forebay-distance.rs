//! `forebay-distance`: does the window that tunes itself find the best one over links of any length? See
//! `--help`.

use std::process::ExitCode;

use clap::Parser;
use forebay_bench::distance::{Enqueue, Grid, Steps};
use tokio::signal::unix::{SignalKind, signal};

/// Measures our asynchronous client over links of any length, against `forebay serve` or any broker at a
/// URL. Results go to standard output, progress to standard error. Ends with 0 if everything is as good as
/// it shall be, with 3 if not, with 1 if it could not be measured.
#[derive(Parser)]
#[command(name = "forebay-distance", version)]
enum Distance {
    /// Every window set by hand beside the one that tunes itself, cell by cell
    Grid(Grid),
    /// Many callers on one connection, each awaiting every confirm, beside the serial path
    Enqueue(Enqueue),
    /// A link whose length changes, and a link and a broker that stall
    Steps(Steps),
    /// Another client beside ours: throughput and CPU time of publishing and of consuming
    #[cfg(feature = "lapin")]
    Rivals(forebay_bench::distance::Rivals),
}

#[tokio::main]
async fn main() -> ExitCode {
    let distance = Distance::parse();
    let measured = async {
        match &distance {
            Distance::Grid(grid) => grid.run().await,
            Distance::Enqueue(enqueue) => enqueue.run().await,
            Distance::Steps(steps) => steps.run().await,
            #[cfg(feature = "lapin")]
            Distance::Rivals(rivals) => rivals.run().await,
        }
    };
    // Ended from outside, the broker and whatever else was started ends with us: values are dropped.
    let outcome = tokio::select! {
        outcome = measured => outcome,
        name = ended() => Err(format!("ended by {name}")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("forebay-distance: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn ended() -> &'static str {
    let listen = |kind| signal(kind).expect("the system has signals");
    let (mut interrupt, mut terminate) =
        (listen(SignalKind::interrupt()), listen(SignalKind::terminate()));
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}
