//! `forebay top`: what a broker does and who waits for whom, live.
//!
//! ```text
//!   /api/forebay/overview ─▶ Look ─┐
//!            a second later ─▶ Look ─┴─▶ Picture (rates) ─▶ lines of text, or JSON
//! ```

mod look;
mod picture;
mod screen;
mod view;
mod words;

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::exit::Exit;
use crate::http::{Endpoint, HttpUrl, Patience};
use crate::standard_output;
use crate::stop_signal::StopSignal;
use look::Look;
use picture::Picture;
use screen::Screen;
use view::History;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon a signal is noticed.
const NOTICE: Duration = Duration::from_millis(50);
/// How long the broker may take for an answer.
const PATIENCE: Patience = Patience::Whole(10);

/// Watch a Forebay live: rates, latencies, queues, and who waits for whom, in seconds of waiting a second. Ends with
/// Ctrl-C. On a terminal a screen; elsewhere a text a second.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: HttpUrl,
    /// Print JSON instead, an object a second on a line of its own
    #[arg(long)]
    json: bool,
    /// Look for one second, print that, and end
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    let endpoint = match args.broker.endpoint() {
        Ok(endpoint) => endpoint,
        Err(sentence) => return Exit::Usage.because(sentence),
    };
    match watch(&args, &Arc::new(endpoint)) {
        Ok(()) => Exit::Done,
        Err(sentence) => Exit::Failed.because(sentence),
    }
}

fn watch(args: &Args, endpoint: &Arc<Endpoint>) -> Result<(), String> {
    let stop = StopSignal::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
    // The first one tells whether there is anything to look at; later ones may fail and be tried again.
    let Some(before) = look_until(&stop, endpoint) else { return Ok(()) };
    let mut before = before?;
    let mut screen = Screen::new();
    let mut history = History::default();
    let broker = endpoint.host();
    loop {
        if pause(&stop) {
            return Ok(());
        }
        let now = match look_until(&stop, endpoint) {
            None => return Ok(()),
            Some(Ok(now)) => now,
            Some(Err(sentence)) if args.once || args.json => return Err(sentence),
            Some(Err(sentence)) => {
                let lines = [sentence, "trying again every second; Ctrl-C ends".to_owned()];
                if let Err(error) = screen.draw(&lines) {
                    return standard_output::written(Err(error));
                }
                continue;
            }
        };
        if let Some(picture) = Picture::between(&before, &now) {
            history.note(&picture);
            let drawn = if args.json {
                let text = serde_json::to_string(&picture).expect("plain data");
                let mut out = io::stdout().lock();
                writeln!(out, "{text}").and_then(|()| out.flush())
            } else {
                screen.draw(&view::lines(&picture, &history, broker, screen.size()))
            };
            if args.once || drawn.is_err() {
                return standard_output::written(drawn);
            }
        } else if args.once {
            return Err(format!("{} was started again while it was looked at", endpoint.base()));
        }
        before = now;
    }
}

/// Until the next look; true if the user wants to end.
fn pause(stop: &StopSignal) -> bool {
    let until = Instant::now() + INTERVAL;
    while !stop.came() && Instant::now() < until {
        thread::sleep(NOTICE.min(until.saturating_duration_since(Instant::now())));
    }
    stop.came()
}

/// A look; `None` if the user wants to end before there is an answer: a broker that hangs is no reason to leave the screen to a second
/// signal.
fn look_until(stop: &StopSignal, endpoint: &Arc<Endpoint>) -> Option<Result<Look, String>> {
    let endpoint = endpoint.clone();
    stop.or_blocking(move || look(&endpoint))
}

fn look(endpoint: &Endpoint) -> Result<Look, String> {
    let (code, body) = endpoint.get("/api/forebay/overview", PATIENCE)?;
    match code {
        200 => serde_json::from_slice(&body).map_err(|error| {
            format!("{} answers with something else than a Forebay: {error}", endpoint.base())
        }),
        404 => Err(stranger(endpoint)),
        _ => Err(endpoint.refusal(code, &body)),
    }
}

/// A sentence about an endpoint that does not know what only a Forebay has.
fn stranger(endpoint: &Endpoint) -> String {
    let base = endpoint.base();
    let overview: Option<Value> = endpoint
        .get("/api/overview", PATIENCE)
        .ok()
        .filter(|(code, _)| *code == 200)
        .and_then(|(_, body)| serde_json::from_slice(&body).ok());
    let product = overview.and_then(|overview| {
        let version = overview["rabbitmq_version"].as_str()?;
        Some(format!("a RabbitMQ {version}"))
    });
    match product {
        Some(product) => format!(
            "{base} is {product}: who waits for whom is counted by a Forebay only; there is the management page"
        ),
        None => format!(
            "{base} has no /api/forebay/overview: it is no Forebay, or an older one than this command"
        ),
    }
}
