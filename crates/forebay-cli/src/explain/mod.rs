//! `forebay explain`: why messages of a queue wait.
//!
//! ```text
//!   /api/queues/VHOST/NAME ─▶ Seen ─┐
//!         some seconds later ─▶ Seen ─┴─▶ QueueLook ─▶ its cause (forebay-flow) ─▶ lines of text, or JSON
//! ```

mod seen;
mod view;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay::pipeline::explain::queue::QueueLook;

use crate::exit::Exit;
use crate::http::{Endpoint, HttpUrl, Patience};
use crate::standard_output;
use crate::stop_signal::StopSignal;
use seen::Seen;

/// How soon a signal is noticed.
const NOTICE: Duration = Duration::from_millis(50);
/// How long the broker may take for an answer.
const PATIENCE: Patience = Patience::Whole(10);
/// RabbitMQ tells figures that are up to 5 s old, so that less would show nothing.
const RABBITMQ_SECONDS_MIN: u64 = 11;

/// Say why messages of a queue wait, and what to change: looks at it twice, and takes nothing from it. Works on a RabbitMQ
/// as well, by its management plugin.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Where the time of single messages goes is known to those who publish and consume them: forebay publish \
--explain N marks one message in N, and forebay consume --explain and forebay pipe --explain say at their end \
where their time went.")]
pub(crate) struct Args {
    #[command(flatten)]
    broker: HttpUrl,
    /// The queue
    #[arg(long, value_name = "QUEUE")]
    queue: String,
    /// Its virtual host
    #[arg(long, value_name = "VHOST", default_value = "/")]
    vhost: String,
    /// Time between the two looks; at least 11 on a RabbitMQ, whose figures are up to 5 s old
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Print a JSON object instead
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    let endpoint = match args.broker.endpoint() {
        Ok(endpoint) => endpoint,
        Err(sentence) => return Exit::Usage.because(sentence),
    };
    match look(&args, &Arc::new(endpoint)) {
        Ok(None) => Exit::Done,
        Ok(Some(look)) => {
            let (vhost, queue) = (&args.vhost, &args.queue);
            let text = match args.json {
                true => format!("{}\n", view::json(vhost, queue, &look)),
                false => view::lines(vhost, queue, &look).join("\n") + "\n",
            };
            Exit::Done.once(standard_output::print(&text))
        }
        Err(sentence) => Exit::Failed.because(sentence),
    }
}

/// `None`: the user wants no answer any more.
fn look(args: &Args, endpoint: &Arc<Endpoint>) -> Result<Option<QueueLook>, String> {
    let stop = StopSignal::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
    let Some(before) = see_until(&stop, args, endpoint) else { return Ok(None) };
    let before = before?;
    let since = Instant::now();
    let seconds =
        if before.counts() { args.seconds } else { args.seconds.max(RABBITMQ_SECONDS_MIN) };
    let until = since + Duration::from_secs(seconds);
    while Instant::now() < until {
        if stop.came() {
            return Ok(None);
        }
        thread::sleep(NOTICE.min(until.saturating_duration_since(Instant::now())));
    }
    let Some(now) = see_until(&stop, args, endpoint) else { return Ok(None) };
    let mut now = now?;
    let looked_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    // Where the queue does not tell who holds what, their channels do.
    for channel in now.silent_channels() {
        let path = format!("/api/channels/{}", encoded(&channel));
        let endpoint = endpoint.clone();
        match stop.or_blocking(move || endpoint.get(&path, PATIENCE)) {
            None => return Ok(None),
            Some(Ok((200, body))) => now.hear_channel(&channel, &body),
            Some(_) => {}
        }
    }
    Ok(Some(now.since(&before, looked_us)))
}

/// `None` if the user wants to end before there is an answer.
fn see_until(
    stop: &StopSignal,
    args: &Args,
    endpoint: &Arc<Endpoint>,
) -> Option<Result<Seen, String>> {
    let (vhost, queue, endpoint) = (args.vhost.clone(), args.queue.clone(), endpoint.clone());
    stop.or_blocking(move || see(&vhost, &queue, &endpoint))
}

fn see(vhost: &str, queue: &str, endpoint: &Endpoint) -> Result<Seen, String> {
    let path = format!("/api/queues/{}/{}", encoded(vhost), encoded(queue));
    let (code, body) = endpoint.get(&path, PATIENCE)?;
    match code {
        200 => {}
        404 => {
            return Err(format!("{} has no queue '{queue}' in vhost '{vhost}'", endpoint.base()));
        }
        _ => return Err(endpoint.refusal(code, &body)),
    }
    serde_json::from_slice(&body).map_err(|error| {
        format!("{} answers with something else than a queue: {error}", endpoint.base())
    })
}

fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let each = text.as_bytes().iter().map(|byte| match byte {
        byte if plain(byte) => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_a_path_whatever_they_are() {
        assert_eq!(encoded("/"), "%2F");
        assert_eq!(encoded("a b.ä-1_2~"), "a%20b.%C3%A4-1_2~");
    }
}
