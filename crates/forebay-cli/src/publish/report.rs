//! What became of the messages of `forebay publish`, for people and for machines.

use forebay_client::{Refusal, Unconfirmed, UnknownReason};
use serde::Serialize;

use super::telling::Telling;
use crate::standard_output;

/// Stretches of unconfirmed lines that are told; the rest is only counted.
const STRETCHES_MAX: usize = 100;

/// Lines one after another that were not confirmed, for one reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Stretch {
    /// From 1; 1 for a whole input.
    line: u64,
    last_line: u64,
    reason: String,
}

/// Counts, and what to do again.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) published: u64,
    pub(super) confirmed: u64,
    returned: u64,
    rejected: u64,
    /// Published, and the connection was lost before an answer came.
    unknown: u64,
    /// The input was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stopped: Option<String>,
    /// The first line that was not sent, and none after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_sent_from: Option<u64>,
    pub(super) seconds: f64,
    /// Where its time went, for those who ask.
    #[serde(skip)]
    pub(super) telling: Option<Telling>,
    /// The first of the lines that were not confirmed.
    unconfirmed: Vec<Stretch>,
    /// How many lines they are.
    #[serde(skip)]
    named: u64,
    /// The message that was too large is found.
    #[serde(skip)]
    too_large_found: bool,
}

impl Report {
    pub(super) fn complete(&self) -> bool {
        self.confirmed == self.published && self.stopped.is_none()
    }

    /// `line`, with a message of so many bytes, was not confirmed.
    pub(super) fn failed(&mut self, line: u64, body_bytes: u64, why: &Unconfirmed) {
        let reason = match why {
            Unconfirmed::Rejected => {
                self.rejected += 1;
                "rejected by the broker".to_owned()
            }
            Unconfirmed::Returned(why) => {
                self.returned += 1;
                format!("returned: {why}")
            }
            // The channel is closed for one message; what becomes of the others on it is not known.
            Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal))
                if !self.too_large_found && too_large_bytes(refusal) == Some(body_bytes) =>
            {
                self.too_large_found = true;
                self.rejected += 1;
                format!("refused by the broker: {refusal}")
            }
            unknown => {
                self.unknown += 1;
                match unknown {
                    Unconfirmed::Unknown(UnknownReason::Lost(lost)) => {
                        format!("sent, not confirmed: {lost}")
                    }
                    Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal)) => {
                        format!("sent, not confirmed: the broker closed the channel: {refusal}")
                    }
                    other => format!("not confirmed: {other}"),
                }
            }
        };
        self.name(line, reason);
    }

    /// Nobody waits any more for what becomes of `line`.
    pub(super) fn unanswered(&mut self, line: u64) {
        self.unknown += 1;
        self.name(line, "sent, not confirmed: no answer came".to_owned());
    }

    fn name(&mut self, line: u64, reason: String) {
        let is_full = self.unconfirmed.len() >= STRETCHES_MAX;
        match self.unconfirmed.last_mut() {
            Some(last) if last.last_line + 1 == line && last.reason == reason => {
                last.last_line = line;
            }
            _ if is_full => return,
            _ => self.unconfirmed.push(Stretch { line, last_line: line, reason }),
        }
        self.named += 1;
    }

    /// Lines that say what to do again.
    fn unconfirmed_lines(&self) -> Vec<String> {
        let told = |stretch: &Stretch| match stretch {
            Stretch { line, last_line, reason } if line == last_line => {
                format!("line {line}: {reason}")
            }
            Stretch { line, last_line, reason } => format!("lines {line} to {last_line}: {reason}"),
        };
        let mut lines: Vec<String> = self.unconfirmed.iter().map(told).collect();
        let failed = self.returned + self.rejected + self.unknown;
        let unnamed = failed.saturating_sub(self.named);
        if unnamed > 0 {
            lines.push(format!("… and {unnamed} more"));
        }
        lines.extend(self.not_sent_from.map(|line| format!("from line {line} on: not sent")));
        lines
    }

    /// # Errors
    /// A sentence: the summary for machines cannot be written.
    pub(super) fn print(&self, json: bool) -> Result<(), String> {
        self.unconfirmed_lines().iter().for_each(|line| say!("{line}"));
        if let Some(reason) = &self.stopped {
            say!("forebay: stopped early: {reason}");
        }
        let per_second = self.confirmed as f64 / self.seconds.max(1e-6);
        begin_to_say!(
            "published {}, confirmed {} in {:.2} s ({:.0} a second)",
            self.published,
            self.confirmed,
            self.seconds,
            per_second
        );
        for (count, what) in [
            (self.returned, "returned"),
            (self.rejected, "rejected"),
            (self.unknown, "without an answer"),
        ] {
            if count > 0 {
                begin_to_say!(", {count} {what}");
            }
        }
        say!("");
        if let Some(telling) = self.telling.as_ref().filter(|_| !json) {
            telling.lines().iter().for_each(|line| say!("{line}"));
        }
        if !json {
            return Ok(());
        }
        let mut json = serde_json::to_value(self).expect("a report is plain data");
        if let Some(telling) = &self.telling {
            json["explanation"] = telling.json();
        }
        standard_output::print(&format!("{json}\n"))
    }
}

/// The size of the message for which a broker, Forebay or RabbitMQ, closed the channel, if it was for that.
fn too_large_bytes(refusal: &Refusal) -> Option<u64> {
    let (size, rest) = refusal.text.split_once("message size ")?.1.split_once(' ')?;
    let is_it = refusal.code == 406 && rest.starts_with("is larger than ");
    size.parse().ok().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(text: &str) -> Unconfirmed {
        let refusal = Refusal { code: 406, text: text.to_owned() };
        Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal))
    }

    #[test]
    fn a_report_with_a_return_is_not_complete() {
        let report = Report { published: 2, confirmed: 1, returned: 1, ..Report::default() };
        assert!(!report.complete());
        assert!(Report { published: 2, confirmed: 2, ..Report::default() }.complete());
    }

    #[test]
    fn lines_that_failed_together_are_one_line_and_the_rest_is_counted() {
        let mut report = Report { not_sent_from: Some(993_805), ..Report::default() };
        (971_727..=993_804).for_each(|line| report.unanswered(line));
        let mut told = vec![
            "lines 971727 to 993804: sent, not confirmed: no answer came".to_owned(),
            "from line 993805 on: not sent".to_owned(),
        ];
        assert_eq!(report.unconfirmed_lines(), told);
        let mut report = Report::default();
        told =
            (0..100).map(|each| format!("line {}: rejected by the broker", 2 * each + 1)).collect();
        (0..150).for_each(|each| report.failed(2 * each + 1, 1, &Unconfirmed::Rejected));
        told.push("… and 50 more".to_owned());
        assert_eq!(report.unconfirmed_lines(), told);
    }

    #[test]
    fn what_was_too_large_is_refused_and_the_others_are_not_known() {
        let why =
            closed("PRECONDITION_FAILED - message size 9 is larger than configured max size 8");
        let mut report = Report::default();
        [3, 9, 9].into_iter().zip(1..).for_each(|(size, line)| report.failed(line, size, &why));
        assert_eq!((report.rejected, report.unknown), (1, 2));
        let told = report.unconfirmed_lines();
        assert!(told[0].starts_with("line 1: sent, not confirmed: the broker closed"), "{told:?}");
        assert!(told[1].starts_with("line 2: refused by the broker: PRECONDITION"), "{told:?}");
        assert!(told[2].starts_with("line 3: sent, not confirmed: the broker closed"), "{told:?}");
        let mut report = Report::default();
        report.failed(
            1,
            9,
            &closed("PRECONDITION_FAILED - delivery tag 9 is larger than the last"),
        );
        assert_eq!((report.rejected, report.unknown), (0, 1));
    }
}
