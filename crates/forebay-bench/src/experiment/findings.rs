//! What experiments find, as it is printed, written to a file and read again.

use std::fmt::Write;

use forebay_flow::explain::{Bar, Timeline, svg};
use serde::{Deserialize, Serialize};

use crate::report::LatencyReport;
use crate::spread::median;

/// Of a timeline in a terminal.
const COLUMNS: usize = 100;

/// One number with its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit; empty if it has none.
    pub unit: String,
}

/// Figures that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What was varied.
    pub name: String,
    /// In the order in which they are read.
    pub figures: Vec<Figure>,
    /// How its jobs went, where that is worth a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Drawn>,
}

/// Jobs to be drawn as bars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// What is to be seen.
    pub title: String,
    /// In any order.
    pub jobs: Vec<Job>,
}

/// One job, in microseconds of one clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Who worked on it, for people.
    pub by: String,
    /// When it could have begun.
    pub came_us: u64,
    /// When it did.
    pub begun_us: u64,
    /// When it was done.
    pub done_us: u64,
}

impl Drawn {
    fn timeline(&self) -> Timeline {
        let bars = self.jobs.iter().map(|job| Bar {
            held_us: 0,
            name: job.by.clone(),
            came_us: job.came_us,
            begun_us: job.begun_us,
            done_us: job.done_us,
        });
        Timeline::new(&self.title, bars.collect())
    }
}

impl Case {
    pub(crate) fn new(name: impl Into<String>) -> Case {
        Case { name: name.into(), figures: Vec::new(), timeline: None }
    }

    /// One figure more.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: f64, unit: &str) -> Case {
        self.figures.push(Figure { name: name.into(), value, unit: unit.into() });
        self
    }

    /// The median of several, the least and the most of them: of one figure of a case.
    #[must_use]
    pub(crate) fn with_spread(self, name: &str, values: &[f64], unit: &str) -> Case {
        let (least, most) = (values.iter().copied(), values.iter().copied());
        self.with(name, median(values).unwrap_or(f64::NAN), unit)
            .with("least", least.fold(f64::NAN, f64::min), unit)
            .with("most", most.fold(f64::NAN, f64::max), unit)
    }

    /// The same if it is known.
    #[must_use]
    pub(crate) fn with_known(self, name: &str, value: Option<f64>, unit: &str) -> Case {
        match value {
            Some(value) => self.with(name, value, unit),
            None => self,
        }
    }

    /// The same with a picture.
    #[must_use]
    pub(crate) fn drawn(mut self, drawn: Drawn) -> Case {
        self.timeline = Some(drawn);
        self
    }

    /// Median and tail.
    #[must_use]
    pub(crate) fn with_latency(self, latency: &LatencyReport) -> Case {
        self.with("p50", latency.p50_us as f64 / 1e3, "ms").with(
            "p99",
            latency.p99_us as f64 / 1e3,
            "ms",
        )
    }
}

/// What is asked of a good broker, and whether it was met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// A sentence with the figure and its limit.
    pub what: String,
    /// Whether it was.
    pub met: bool,
}

impl Demand {
    /// `value` is to be at most `limit`.
    pub(crate) fn at_most(what: &str, value: f64, limit: f64, unit: &str) -> Demand {
        Demand { what: format!("{what}: {value:.2} {unit} (≤ {limit})"), met: value <= limit }
    }

    /// `value` is to be at least `limit`.
    pub(crate) fn at_least(what: &str, value: f64, limit: f64, unit: &str) -> Demand {
        Demand { what: format!("{what}: {value:.2} {unit} (≥ {limit})"), met: value >= limit }
    }
}

/// The answer to one question.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// What was measured.
    pub cases: Vec<Case>,
    /// What was asked.
    pub demands: Vec<Demand>,
    /// What could not be measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The answers of one broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Which broker, for people.
    pub broker: String,
    /// One a repetition, or why there is none.
    pub answers: Vec<Result<Findings, String>>,
}

/// One figure of one case, in all repetitions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row<'a> {
    pub(crate) case: &'a str,
    pub(crate) figure: &'a str,
    pub(crate) unit: &'a str,
    /// At least one.
    pub(crate) values: Vec<f64>,
}

impl Found {
    /// Repetitions that have an answer.
    fn answered(&self) -> impl Iterator<Item = &Findings> {
        self.answers.iter().flatten()
    }

    /// All figures, in the order in which they first came.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for case in self.answered().flat_map(|findings| &findings.cases) {
            for Figure { name, value, unit } in &case.figures {
                let same = |row: &&mut Row<'_>| (row.case, row.figure) == (&case.name, name);
                match rows.iter_mut().find(same) {
                    Some(row) => row.values.push(*value),
                    None => rows.push(Row {
                        case: &case.name,
                        figure: name,
                        unit,
                        values: vec![*value],
                    }),
                }
            }
        }
        rows
    }

    /// Those of the first repetition that has an answer.
    fn timelines(&self) -> Vec<Timeline> {
        let cases = self.answered().take(1).flat_map(|findings| &findings.cases);
        cases.filter_map(|case| case.timeline.as_ref()).map(Drawn::timeline).collect()
    }

    /// Its timelines below each other; `None` without any.
    pub(crate) fn svg(&self) -> Option<String> {
        let timelines = self.timelines();
        (!timelines.is_empty()).then(|| svg(&timelines))
    }

    /// How many demands were met, of how many.
    pub(crate) fn demands_met(&self) -> (usize, usize) {
        let demands = || self.answered().flat_map(|findings| &findings.demands);
        (demands().filter(|demand| demand.met).count(), demands().count())
    }

    /// Medians of all repetitions, a line a case; then every demand of each repetition, and timelines.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}", self.broker);
        for rows in self.rows().chunk_by(|a, b| a.case == b.case) {
            let _ = write!(text, "  {:<28}", rows[0].case);
            for Row { figure, unit, values, .. } in rows {
                let value = number(median(values).unwrap_or(f64::NAN));
                let _ = write!(text, "  {figure} {value} {unit}");
            }
            text.push('\n');
        }
        for answer in &self.answers {
            match answer {
                Ok(findings) => {
                    for Demand { what, met } in &findings.demands {
                        let _ = writeln!(text, "  {} {what}", if *met { "pass" } else { "FAIL" });
                    }
                    for note in &findings.notes {
                        let _ = writeln!(text, "  note {note}");
                    }
                }
                Err(why) => {
                    let _ = writeln!(text, "  FAILED: {why}");
                }
            }
        }
        for timeline in self.timelines() {
            let _ = write!(text, "\n{}", timeline.text(COLUMNS));
        }
        text
    }
}

/// Three digits that mean something, at least.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_demands_and_failures_are_told() {
        let answer = |value: f64| {
            let case = Case::new("idle").with("opened", value, "/s").with_known("none", None, "KB");
            Ok(Findings {
                cases: vec![case],
                demands: vec![Demand::at_most("memory", value, 20.0, "KB")],
                notes: if value > 20.0 { vec!["it was a busy day".into()] } else { Vec::new() },
            })
        };
        let found = Found {
            broker: "Forebay 0".into(),
            answers: vec![answer(5.0), answer(30.0), Err("it hung up".into()), answer(12.0)],
        };
        let expected = "
Forebay 0
  idle                          opened 12.0 /s
  pass memory: 5.00 KB (≤ 20)
  FAIL memory: 30.00 KB (≤ 20)
  note it was a busy day
  FAILED: it hung up
  pass memory: 12.00 KB (≤ 20)
";
        assert_eq!(found.text(), expected);
    }
}
