//! What the marks of messages add up to, for people and for machines: the end of `pipe --explain` and its like.

use forebay::Received;
use forebay::pipeline::explain::{
    Detour, Explanation, Journey, Pauses, Segment, Settings, Share, printable,
};
use serde_json::{Value, json};

/// Messages that are named as the slowest.
const NAMED_MAX: usize = 5;

/// What a message is called: its message-id, with whatever its publisher put there.
pub(crate) fn name(message: &Received) -> Option<String> {
    let id = message.properties().message_id?;
    Some(String::from_utf8_lossy(id.as_bytes()).into_owned())
}

/// Segments, cause, and the slowest messages.
pub(crate) fn lines(explanation: &Explanation, settings: &Settings) -> Vec<String> {
    let mut lines = vec![explanation.to_string()];
    lines.extend(explanation.cause(settings).map(|cause| cause.to_string()));
    if explanation.messages() > 1 && !explanation.slowest().is_empty() {
        lines.push("slowest:".into());
        let named = explanation.slowest().iter().take(NAMED_MAX);
        lines.extend(named.map(|journey| format!("  {journey}")));
    }
    lines
}

/// One message that was asked for.
pub(crate) fn message_lines(journey: &Journey, settings: &Settings) -> Vec<String> {
    let explanation = journey.explanation();
    let worker = journey.worker.map_or(String::new(), |worker| format!(", worker {worker}"));
    let name = printable(&journey.name);
    let mut lines = vec![format!("message {name}{worker}:"), explanation.to_string()];
    lines.extend(explanation.cause(settings).map(|cause| cause.to_string()));
    lines
}

/// The same numbers as an object, with what is known of the set-up. Durations are microseconds, and so are times, since
/// 1970.
pub(crate) fn json(explanation: &Explanation, settings: &Settings) -> Value {
    let cause = explanation.cause(settings);
    let share = |share: &Share| {
        let mut object = segment(share.segment);
        object["messages"] = share.messages.into();
        object["sum_us"] = share.sum_us.into();
        object["mean_us"] = share.sum_us.checked_div(share.messages).into();
        object["max_us"] = share.max_us.into();
        object
    };
    let slowest = explanation.slowest().iter().map(|journey| message_json(journey, settings));
    json!({
        "messages": explanation.messages(),
        "total_us": explanation.total_us(),
        "skew_us": explanation.skew_us(),
        "unattended_us": explanation.unattended_us(),
        "segments": explanation.shares().iter().map(share).collect::<Vec<_>>(),
        "cause": cause.as_ref().map(|cause| cause.name()),
        "says": cause.map(|cause| cause.to_string()),
        "settings": {
            "window_messages": settings.window_messages,
            "workers": settings.workers,
            "prefetch": settings.prefetch,
            "batch_messages": settings.batch_messages,
            "batch_delay_us": settings.batch_delay_us,
            "batch_workers": settings.batch_workers,
            "rate_per_s": settings.rate_per_s,
            "ordered": settings.ordered,
            "timeout_us": settings.timeout_us,
            "retries": settings.retries.map(pauses),
            "breaker": settings.breaker.map(pauses),
        },
        "slowest": slowest.collect::<Vec<_>>(),
    })
}

/// One message as an object.
pub(crate) fn message_json(journey: &Journey, settings: &Settings) -> Value {
    let cause = journey.explanation().cause(settings);
    let segments = journey.marks.segments().map(|(passed, us)| {
        let mut object = segment(passed);
        object["us"] = us.into();
        // A detour is a sum: it has no end.
        let until_us = journey.marks.at_us(passed.to).filter(|_| passed.detour.is_none());
        object["until_us"] = until_us.into();
        object
    });
    json!({
        "message": journey.name,
        "worker": journey.worker,
        "total_us": journey.marks.total_us(),
        "segments": segments.collect::<Vec<_>>(),
        "cause": cause.as_ref().map(|cause| cause.name()),
        "says": cause.map(|cause| cause.to_string()),
    })
}

fn pauses(pauses: Pauses) -> Value {
    let Pauses { count, first_us, max_us } = pauses;
    json!({ "count": count, "first_us": first_us, "max_us": max_us })
}

fn segment(segment: Segment) -> Value {
    json!({
        "name": segment.name(),
        "from": segment.from.name(),
        "to": segment.to.name(),
        "detour": segment.detour.map(Detour::name),
    })
}

#[cfg(test)]
mod tests {
    use forebay::pipeline::explain::{Mark, Marks};

    use super::*;

    #[test]
    fn a_terminal_does_nothing_that_stands_in_a_message_id() {
        let name = "\u{1b}]0;title\u{7}\nmessage 2, worker 1:".to_owned();
        let marks = Marks::new().with(Mark::Taken, 0).with(Mark::Handled, 5);
        let journey = Journey { name: name.clone(), worker: Some(2), marks };
        let settings = Settings::default();
        let lines = message_lines(&journey, &settings);
        assert_eq!(
            lines[0],
            "message \u{FFFD}]0;title\u{FFFD}\u{FFFD}message 2, worker 1:, worker 2:"
        );
        assert_eq!(
            message_json(&journey, &settings)["message"],
            *name,
            "machines are told what it is"
        );
    }
}
