//! What became of the messages, while they move and at the end.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::exit::Exit;
use crate::standard_output;

/// How often progress is written where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Counts, and the progress bar.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Confirmed by the target.
    pub(super) moved: u64,
    /// Of these, marked: they may have been moved before.
    pub(super) marked: u64,
    /// Acked too late: the source has them again.
    pub(super) late: u64,
    /// Taken and not confirmed by the target; the source has them.
    pub(super) not_confirmed: u64,
    /// Why it ended before the queue was empty, or the count reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stopped: Option<String>,
    seconds: f64,
    #[serde(skip)]
    bar: ProgressBar,
    #[serde(skip)]
    line_due: Option<Instant>,
    #[serde(skip)]
    total: u64,
}

impl Report {
    /// Of a move of `total` messages, as far as is known.
    pub(super) fn begun(total: u64, follow: bool) -> Report {
        let terminal = io::stderr().is_terminal();
        let (bar, template) = match (terminal, follow) {
            (false, _) => (ProgressBar::hidden(), ""),
            (true, false) => {
                (ProgressBar::new(total), "{wide_bar:.cyan/blue} {pos}/{len} {msg} eta {eta}")
            }
            (true, true) => (ProgressBar::new_spinner(), "{spinner} {pos} moved {msg} {elapsed}"),
        };
        let style = ProgressStyle::with_template(template).expect("the template is constant");
        Report {
            moved: 0,
            marked: 0,
            late: 0,
            not_confirmed: 0,
            stopped: None,
            seconds: 0.0,
            bar: bar.with_style(style),
            line_due: (!terminal).then(|| Instant::now() + LINE_INTERVAL),
            total,
        }
    }

    /// How many are still to be taken.
    pub(super) fn left(&self, count: Option<u64>) -> u64 {
        count.map_or(u64::MAX, |count| count - self.moved)
    }

    /// Draws the bar, or writes a line every now and then.
    pub(super) fn show(&mut self, in_flight: usize, blocked: Option<String>) {
        let (moved, total) = (self.moved, self.total);
        self.bar.set_length(total.max(moved));
        self.bar.set_position(moved);
        let blocked =
            blocked.map_or_else(String::new, |reason| format!(", the target waits: {reason}"));
        self.bar.set_message(format!("({in_flight} in flight{blocked})"));
        if self.line_due.is_some_and(|due| Instant::now() >= due) {
            self.line_due = Some(Instant::now() + LINE_INTERVAL);
            say!("moved {moved} of {total}, {in_flight} in flight{blocked}");
        }
    }

    /// Tells of what happens to a connection.
    pub(super) fn happened(&mut self, which: &str, sentence: &str) {
        self.bar.suspend(|| say!("{which}: {sentence}"));
    }

    pub(super) fn finish(&mut self, took: Duration) {
        self.bar.finish_and_clear();
        self.seconds = took.as_secs_f64();
    }

    pub(super) fn exit(&self) -> Exit {
        if self.stopped.is_none() && self.not_confirmed == 0 {
            Exit::Done
        } else {
            Exit::NotAllConfirmed
        }
    }

    /// # Errors
    /// A sentence: the summary for machines cannot be written.
    pub(super) fn print(&self, json: bool) -> Result<(), String> {
        let per_second = self.moved as f64 / self.seconds.max(1e-6);
        begin_to_say!("moved {} in {:.2} s ({per_second:.0} a second)", self.moved, self.seconds);
        for (count, what) in [
            (self.marked, "marked, as they may have been moved before"),
            (self.late, "acknowledged too late, so that the source has them again"),
            (self.not_confirmed, "not confirmed by the target and left at the source"),
        ] {
            if count > 0 {
                begin_to_say!(", {count} {what}");
            }
        }
        say!("");
        if let Some(reason) = &self.stopped {
            say!("forebay: stopped early: {reason}");
        }
        if !json {
            return Ok(());
        }
        let json = serde_json::to_string(self).expect("a report is plain data");
        standard_output::print(&(json + "\n"))
    }
}
