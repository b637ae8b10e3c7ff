//! What `forebay pipe` tells at its end: where time went, of all messages and of single ones, and who worked on what when.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use forebay::Received;
use forebay::pipeline::explain::{Journey, printable, svg};
use forebay::pipeline::{Control, Explaining, Report};
use serde_json::{Value, json};

use crate::explained;
use crate::output::{can_be_written, write_text};
use crate::standard_output;

/// Of a timeline on standard error.
const COLUMNS: usize = 100;
/// Ways of messages that were asked for by their ids; some come more than once.
const ASKED_MAX: usize = 100;

/// What is to be told.
#[derive(clap::Args, Debug)]
pub(super) struct Asked {
    /// Mark messages on their way, and at the end say where their time went and why
    #[arg(long)]
    explain: bool,
    /// The same, and where the time of the message with this message-id went; may be given several times
    #[arg(long, value_name = "ID")]
    message: Vec<String>,
    /// The same, and draw when the slowest messages waited and were worked on, and by whom: on standard error, and to
    /// this file as SVG
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Print what was done, and what is explained, as a JSON object: the last line on standard output
    #[arg(long)]
    json: bool,
}

/// It, and what is known of messages that were asked for.
pub(super) struct Telling<'a> {
    asked: &'a Asked,
    journeys: Arc<Mutex<Vec<Journey>>>,
}

impl Asked {
    /// # Errors
    /// A sentence: what is to be drawn has no place.
    pub(super) fn check(&self) -> Result<(), String> {
        self.timeline.as_deref().map_or(Ok(()), can_be_written)
    }

    pub(super) fn telling(&self) -> Telling<'_> {
        Telling { asked: self, journeys: Arc::default() }
    }
}

impl Telling<'_> {
    /// How messages are marked, if they are.
    pub(super) fn explaining(&self) -> Option<Explaining<Received>> {
        let Asked { explain, message, timeline, .. } = self.asked;
        if !explain && message.is_empty() && timeline.is_none() {
            return None;
        }
        // Next to a program, marks cost nothing.
        let explaining = Explaining::new(1, Received::marks).named(explained::name);
        if message.is_empty() {
            return Some(explaining);
        }
        let (ids, journeys) = (message.clone(), self.journeys.clone());
        Some(explaining.each(move |journey| {
            if ids.contains(&journey.name) {
                let mut journeys = journeys.lock().unwrap_or_else(PoisonError::into_inner);
                if journeys.len() < ASKED_MAX {
                    journeys.push(journey.clone());
                }
            }
        }))
    }

    /// The pipeline has ended.
    ///
    /// # Errors
    /// A sentence: the timeline, or what is for machines, cannot be written.
    pub(super) fn tell(&self, control: &Control) -> Result<(), String> {
        let journeys = self.journeys.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(explanation) = control.explanation() else {
            return if self.asked.json { print(&json(&control.report())) } else { Ok(()) };
        };
        let settings = control.settings();
        let mut printed = Ok(());
        if self.asked.json {
            let mut object = json(&control.report());
            object["explanation"] = explained::json(&explanation, &settings);
            let each = journeys.iter().map(|journey| explained::message_json(journey, &settings));
            object["asked"] = each.collect();
            printed = print(&object);
        } else {
            let mut lines = explained::lines(&explanation, &settings);
            for id in &self.asked.message {
                let of_id = || journeys.iter().filter(|journey| journey.name == *id);
                lines.extend(of_id().flat_map(|each| explained::message_lines(each, &settings)));
                if of_id().next().is_none() {
                    lines.push(format!("message {} was not settled here", printable(id)));
                }
            }
            lines.iter().for_each(|line| say!("{line}"));
        }
        let Some(file) = &self.asked.timeline else { return printed };
        let timeline = explanation.timeline("messages that took longest");
        begin_to_say!("{}", timeline.text(COLUMNS));
        write_text(file, &svg(&[timeline]))
            .map_err(|error| format!("cannot write the timeline: {error}"))
            .and(printed)
    }
}

/// What waits in the broker for another attempt was acknowledged, and comes again: it is not done.
fn json(report: &Report) -> Value {
    let Report { taken, acked, rejected, requeued, postponed, failed, .. } = report;
    json!({
        "taken": taken,
        "acked": acked - postponed,
        "rejected": rejected,
        "requeued": requeued,
        "postponed": postponed,
        "failed": failed,
    })
}

fn print(object: &Value) -> Result<(), String> {
    standard_output::print(&format!("{object}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_that_what_was_left_for_later_is_not_done() {
        let mut report = Report::default();
        (report.taken, report.acked, report.requeued) = (6, 5, 1);
        (report.postponed, report.failed) = (3, 4);
        let told = json!({
            "taken": 6, "acked": 2, "rejected": 0, "requeued": 1, "postponed": 3, "failed": 4
        });
        assert_eq!(json(&report), told);
    }
}
