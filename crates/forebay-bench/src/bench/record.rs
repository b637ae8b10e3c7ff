//! What a session found, as it is written to a file and read again.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::grid::Setting;
use crate::experiment::Found;
use crate::occasion::Occasion;
use crate::report::Report;

/// A file with another number cannot be read.
const FORMAT: u32 = 1;

/// All runs of one `forebay bench run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// When, where and by which command.
    pub occasion: Occasion,
    /// The workload's name; `free` if flags alone say what it is.
    pub workload: String,
    /// What it is, in one line.
    pub about: String,
    /// The windows are those that a search for the knee asked for.
    #[serde(default)]
    pub searched: bool,
    /// Brokers on which that search was stopped before it had found one.
    #[serde(default)]
    pub unfinished: Vec<String>,
    /// Repetitions from this one on had no part in the choice of the best setting, and only they judge; `None`: all do both.
    #[serde(default)]
    pub judged_from: Option<usize>,
    /// Brokers whose capacity was measured while the generator was the bottleneck: it is the generator's.
    #[serde(default)]
    pub capacity_of_generator: Vec<String>,
    /// In the order in which they were made.
    pub runs: Vec<Run>,
    /// What an experiment found, a broker each; empty for loads.
    #[serde(default)]
    pub found: Vec<Found>,
    /// What it was asked; `None` for loads, whose plans say it, and in files of before.
    #[serde(default)]
    pub asked: Option<Asked>,
}

/// What an experiment is told by flags.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// How long it goes on, where that is not given by what it does.
    pub seconds: f64,
    /// How many connections; `None`: its own number, as below.
    pub connections: Option<usize>,
    /// Of a body.
    pub size_bytes: Option<usize>,
    /// How many messages.
    pub messages: Option<u64>,
    /// `x-queue-type` of its queues, where the broker does not say it.
    pub queue_type: Option<String>,
    /// Round trip of the emulated link.
    pub rtt_ms: Option<f64>,
    /// Its bandwidth.
    pub mbit: Option<f64>,
}

/// One run of one setting on one broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which broker, for people.
    pub broker: String,
    /// Which part of the workload; empty if it has only one.
    pub phase: String,
    /// What was varied.
    pub setting: Setting,
    /// From 0 on.
    pub repetition: usize,
    /// Messages a second that the broker was found to carry; `None`: nobody asked.
    pub capacity_per_s: Option<f64>,
    /// How it ended.
    pub outcome: Outcome,
}

#[cfg(test)]
impl Run {
    /// The first of its setting, of a workload with one part.
    pub(super) fn measured(broker: &str, report: Report) -> Run {
        Run {
            broker: broker.into(),
            phase: String::new(),
            setting: Setting::of(&report.plan),
            repetition: 0,
            capacity_per_s: None,
            outcome: Outcome::Report(report),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(clippy::large_enum_variant)] // there are few runs, and nearly all have a report
pub enum Outcome {
    /// With figures.
    Report(Report),
    /// Without, and why.
    Failed(String),
}

impl Outcome {
    /// The figures, if there are some.
    pub fn report(&self) -> Option<&Report> {
        match self {
            Outcome::Report(report) => Some(report),
            Outcome::Failed(_) => None,
        }
    }
}

impl Record {
    pub(crate) fn new(occasion: Occasion, workload: &str, about: &str) -> Record {
        Record {
            format: FORMAT,
            occasion,
            workload: workload.to_owned(),
            about: about.to_owned(),
            searched: false,
            unfinished: Vec::new(),
            judged_from: None,
            capacity_of_generator: Vec::new(),
            runs: Vec::new(),
            found: Vec::new(),
            asked: None,
        }
    }

    /// All of it as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain data, whose maps have texts as keys") + "\n"
    }

    /// Reads a file of what [`Record::json`] gave.
    ///
    /// # Errors
    /// The file cannot be read or is no such record; the sentence names it.
    pub fn read(path: &Path) -> Result<Record, String> {
        let named = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        let record: Record = serde_json::from_str(&text).map_err(|error| {
            named(format!("this is not a file that `forebay bench run --json` wrote: {error}"))
        })?;
        match record.format {
            FORMAT => Ok(record),
            other => Err(named(format!("format {other}; this program reads {FORMAT}"))),
        }
    }

    /// Whether nothing came of it, not even a failure.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.found.iter().all(|found| found.answers.is_empty())
    }

    /// Whether every run has figures.
    pub fn complete(&self) -> bool {
        let answered = |found: &Found| found.answers.iter().all(Result::is_ok);
        !(self.runs.is_empty() && self.found.is_empty())
            && self.runs.iter().all(|run| run.outcome.report().is_some())
            && self.found.iter().all(answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = Record::new(Occasion::default(), "stress-1", "about");
        let plan = Plan { rate: 7.0, steps: vec!["1:rtt=5".parse().unwrap()], ..Plan::default() };
        let report =
            Report { plan, curve: vec![(0.5, 9)], shares: vec![1, 2], ..Report::default() };
        for outcome in [Outcome::Report(report), Outcome::Failed("it hung up".into())] {
            record.runs.push(Run {
                broker: "Forebay 0".into(),
                phase: String::new(),
                setting: Setting::of(&Plan::default()),
                repetition: 3,
                capacity_per_s: Some(5.0),
                outcome,
            });
        }
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        assert!(!record.complete(), "one run failed");
    }

    #[test]
    fn what_is_not_a_record_is_named() {
        let error = Record::read(Path::new("Cargo.toml")).unwrap_err();
        assert!(error.starts_with("Cargo.toml: ") && error.contains("bench run --json"), "{error}");
        assert!(Record::read(Path::new("nowhere.json")).unwrap_err().starts_with("nowhere.json"));
    }
}
