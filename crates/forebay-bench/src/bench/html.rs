//! The report: one file with the figures, the charts and all that draws them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::conclusion::conclusion;
use super::grid::Setting;
use super::points::Points;
use super::record::Record;
use super::table::{judged, remarks};
use crate::experiment::Found;

const PAGE: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
const JS: &str = include_str!("page/page.js");
const UPLOT_JS: &str = include_str!("page/uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("page/uplot/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("page/uplot/LICENSE");

/// What the page is given of one record.
#[derive(Serialize)]
struct Data<'a> {
    record: &'a Record,
    phases: Vec<Phase<'a>>,
    /// Of an experiment: a broker each, and none where it has no timelines.
    timelines: Vec<Option<String>>,
}

/// All brokers in one phase of the workload.
#[derive(Serialize)]
struct Phase<'a> {
    name: &'a str,
    /// Latency counts from the intended time.
    intended: bool,
    verdicts: Vec<String>,
    /// What else there is to say, a broker's after the other's.
    remarks: Vec<String>,
    brokers: Vec<Broker<'a>>,
}

#[derive(Serialize)]
struct Broker<'a> {
    name: &'a str,
    points: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    setting: Setting,
    tuned: bool,
    knee: bool,
    best: bool,
    /// Indexes into the record's.
    runs: Vec<usize>,
}

/// One report about all of them, in this order: where there are several, their self-tuned throughput side by side first.
pub fn page(records: &[Record]) -> String {
    let data: Vec<Data<'_>> = records.iter().map(Record::data).collect();
    let data = serde_json::to_string(&data).expect("a record is plain data");
    let parts = BTreeMap::from([
        ("TITLE", escaped(&title(records))),
        ("UPLOT_LICENCE", UPLOT_LICENCE.replace("--", "- -")),
        ("UPLOT_CSS", UPLOT_CSS.to_owned()),
        ("CSS", CSS.to_owned()),
        // In a script element only this could end it.
        ("DATA", data.replace("</", "<\\/").replace("<!--", "<\\u0021--")),
        ("UPLOT_JS", UPLOT_JS.to_owned()),
        ("JS", JS.to_owned()),
    ]);
    filled(PAGE, &parts)
}

fn title(records: &[Record]) -> String {
    let once = |of: fn(&Record) -> &str| {
        let mut names: Vec<&str> = Vec::new();
        for name in records.iter().map(of) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    };
    let workloads = once(|record| match &*record.workload {
        "free" => "A load",
        name => name,
    });
    format!("{workloads} on {}", once(|record| &record.occasion.broker))
}

impl Record {
    /// The report as one HTML file that needs nothing else: charts, tables, data.
    pub fn html(&self) -> String {
        page(std::slice::from_ref(self))
    }

    /// The timelines of the first broker that has some, as a picture.
    pub fn svg(&self) -> Option<String> {
        self.found.iter().find_map(Found::svg)
    }

    fn data(&self) -> Data<'_> {
        let mut phases: Vec<Phase<'_>> = Vec::new();
        let all = Points::of(self);
        for points in &all {
            let index = phases.iter().position(|phase| phase.name == points.phase);
            let index = index.unwrap_or_else(|| {
                // One page has one basis: what all brokers can be compared by.
                let here = |other: &&Points<'_>| other.phase == points.phase;
                phases.push(Phase {
                    name: points.phase,
                    intended: all.iter().filter(here).all(|other| other.intended),
                    verdicts: Vec::new(),
                    remarks: Vec::new(),
                    brokers: Vec::new(),
                });
                phases.len() - 1
            });
            let phase = &mut phases[index];
            let remarks = remarks(points, phase.intended).into_iter();
            phase.remarks.extend(remarks.map(|line| format!("{}: {line}", points.broker)));
            if let Some(lines) = conclusion(points) {
                phase.verdicts.push(format!("{}: {}", points.broker, lines.join(" ")));
            }
            let judgement = points.judge();
            if let Some(judgement) = &judgement {
                phase.verdicts.push(format!("{}: {}", points.broker, judged(judgement)));
            }
            let knee = points.knee();
            let point = |point: &super::points::Point<'_>| Point {
                setting: point.setting,
                tuned: point.setting.tunes_itself(),
                knee: knee == Some(point.setting),
                best: judgement.as_ref().is_some_and(|judgement| judgement.best == point.setting),
                runs: self.runs_of(points.broker, points.phase, point.setting),
            };
            let points_shown = points.points.iter().map(point).collect();
            phase.brokers.push(Broker { name: points.broker, points: points_shown });
        }
        Data { record: self, phases, timelines: self.found.iter().map(Found::svg).collect() }
    }

    fn runs_of(&self, broker: &str, phase: &str, setting: Setting) -> Vec<usize> {
        let runs = self.runs.iter().enumerate();
        runs.filter(|(_, run)| (&*run.broker, &*run.phase, run.setting) == (broker, phase, setting))
            .map(|(index, _)| index)
            .collect()
    }
}

/// A template with its `@NAME@` filled in, once: what is filled in is not looked at again.
fn filled(template: &str, parts: &BTreeMap<&str, String>) -> String {
    let mut text =
        String::with_capacity(template.len() + parts.values().map(String::len).sum::<usize>());
    let mut pieces = template.split('@');
    text.push_str(pieces.next().unwrap_or_default());
    let mut literal = true;
    for piece in pieces {
        match parts.get(piece) {
            Some(part) => {
                text.push_str(part);
                literal = false;
            }
            None => {
                // The sign that ended a name is the name's.
                if std::mem::replace(&mut literal, true) {
                    text.push('@');
                }
                text.push_str(piece);
            }
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Outcome, Run};
    use crate::occasion::Occasion;
    use crate::report::Report;

    fn run(broker: &str, outcome: Outcome) -> Run {
        Run { outcome, ..Run::measured(broker, Report::default()) }
    }

    #[test]
    fn what_had_not_arrived_was_rejected_or_failed_is_on_the_page() {
        let report = Report {
            consumed_per_s: 100.0,
            left_over: 250,
            rejected: 7,
            blocked: 3,
            generator_cores: 1.0,
            ..Report::default()
        };
        let mut record = Record::new(Occasion::default(), "free", "");
        record.runs.push(run("B", Outcome::Report(report)));
        record.runs.push(run("B", Outcome::Failed("it hung up".into())));
        let data = record.data();
        let remarks = data.phases[0].remarks.join("\n");
        for told in [
            "B: window none: at the end 2.5 s of the load had not arrived, and is in no latency",
            "7 messages were rejected",
            "3 times connection.blocked came",
            "the generator used up its core",
            "FAILED: it hung up",
        ] {
            assert!(remarks.contains(told), "{told} in {remarks}");
        }
    }

    #[test]
    fn a_template_is_filled_once() {
        let parts = BTreeMap::from([("A", "@B@".to_owned()), ("B", "2".to_owned())]);
        assert_eq!(filled("x@A@y@B@ me@home", &parts), "x@B@y2 me@home");
    }

    #[test]
    fn a_page_about_several_records_names_each_once() {
        let record = |name: &str, broker: &str| {
            let occasion = Occasion { broker: broker.into(), ..Occasion::default() };
            Record::new(occasion, name, "")
        };
        let records = [record("stress-1", "F"), record("free", "F"), record("stress-1", "R")];
        assert_eq!(title(&records), "stress-1, A load on F, R");
    }

    #[test]
    fn nothing_in_the_data_ends_the_script_and_nothing_is_fetched() {
        let mut record = Record::new(Occasion::default(), "free", "</script><b>");
        record.runs.push(run("<B>", Outcome::Failed("no".into())));
        let page = record.html();
        assert!(!page.contains("</script><b>") && page.contains("<\\/script><b>"));
        assert!(!page.contains("@DATA@") && page.contains("MIT License"));
        for fetched in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(fetched), "{fetched}");
        }
    }
}
