//! Second by second, one line each, for spreadsheets; of an experiment, figure by figure.

use std::fmt::Write;

use super::record::Record;

const HEAD: &str = "broker,phase,window,prefetch,ack_every,repetition,second,published_per_s,confirmed_per_s,\
consumed_per_s,confirm_p50_us,confirm_p99_us,confirm_intended_p50_us,confirm_intended_p99_us,end_to_end_p50_us,end_to_end_p99_us,end_to_end_intended_p50_us,\
end_to_end_intended_p99_us,depth,unconfirmed,unacked,behind,window_messages,broker_cores,broker_bytes,\
generator_cores";

const FOUND_HEAD: &str = "broker,repetition,case,figure,value,unit";

impl Record {
    /// All samples as comma-separated values; latencies count from the call unless their column says `intended`.
    /// Of an experiment all figures, and what was asked for with 1 if it was met and 0 if not.
    pub fn csv(&self) -> String {
        if self.found.is_empty() { self.samples_csv() } else { self.found_csv() }
    }

    fn found_csv(&self) -> String {
        let mut text = format!("{FOUND_HEAD}\n");
        for found in &self.found {
            for (repetition, findings) in found.answers.iter().enumerate() {
                let mut line = |case: &str, figure: &str, value: f64, unit: &str| {
                    let [broker, case, figure, unit] =
                        [found.broker.as_str(), case, figure, unit].map(quoted);
                    let _ = writeln!(text, "{broker},{repetition},{case},{figure},{value},{unit}");
                };
                let Ok(findings) = findings else { continue };
                for case in &findings.cases {
                    for figure in &case.figures {
                        line(&case.name, &figure.name, figure.value, &figure.unit);
                    }
                }
                for demand in &findings.demands {
                    line("asked", &demand.what, f64::from(u8::from(demand.met)), "met");
                }
            }
        }
        text
    }

    fn samples_csv(&self) -> String {
        let mut text = String::from(HEAD);
        text.push('\n');
        for run in &self.runs {
            let mut second = 0.0;
            for sample in run.outcome.report().into_iter().flat_map(|report| &report.samples) {
                second += sample.seconds;
                let cells = [
                    quoted(&run.broker),
                    quoted(&run.phase),
                    run.setting.window.to_string(),
                    run.setting.prefetch.to_string(),
                    run.setting.ack_every.to_string(),
                    run.repetition.to_string(),
                    format!("{second:.3}"),
                    format!("{:.1}", sample.published),
                    format!("{:.1}", sample.confirmed),
                    format!("{:.1}", sample.consumed),
                    sample.confirm.p50_us.to_string(),
                    sample.confirm.p99_us.to_string(),
                    sample.confirm_intended.p50_us.to_string(),
                    sample.confirm_intended.p99_us.to_string(),
                    sample.end_to_end.p50_us.to_string(),
                    sample.end_to_end.p99_us.to_string(),
                    sample.end_to_end_intended.p50_us.to_string(),
                    sample.end_to_end_intended.p99_us.to_string(),
                    sample.depth.map_or_else(String::new, |depth| depth.to_string()),
                    sample.unconfirmed.to_string(),
                    sample.unacked.to_string(),
                    sample.behind.to_string(),
                    sample.window.to_string(),
                    sample.broker_cores.map_or_else(String::new, |cores| format!("{cores:.3}")),
                    sample.broker_bytes.map_or_else(String::new, |bytes| bytes.to_string()),
                    format!("{:.3}", sample.generator_cores),
                ];
                let _ = writeln!(text, "{}", cells.join(","));
            }
        }
        text
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::Run;
    use crate::experiment::{Case, Demand, Findings, Found};
    use crate::occasion::Occasion;
    use crate::report::{LatencyReport, Report, Sample};

    #[test]
    fn an_experiment_has_a_line_for_each_figure_and_each_demand() {
        let found = Found {
            broker: "F 1".into(),
            answers: vec![
                Err("it hung up".into()),
                Ok(Findings {
                    cases: vec![Case::new("48 callers, one socket").with("p99", 1.5, "ms")],
                    demands: vec![Demand::at_most("memory", 3.0, 2.0, "KB")],
                    ..Findings::default()
                }),
            ],
        };
        let mut record = Record::new(Occasion::default(), "enqueue", "");
        record.found.push(found);
        let expected = "broker,repetition,case,figure,value,unit
F 1,1,\"48 callers, one socket\",p99,1.5,ms
F 1,1,asked,memory: 3.00 KB (≤ 2),0,met
";
        assert_eq!(record.csv(), expected);
    }

    #[test]
    fn each_second_is_a_line_with_a_value_in_each_column() {
        let latency = |p99_us| LatencyReport { p99_us, ..LatencyReport::default() };
        let sample = Sample {
            seconds: 1.0,
            confirm: latency(7),
            confirm_intended: latency(900),
            ..Sample::default()
        };
        let report = Report { samples: vec![sample], ..Report::default() };
        let mut record = Record::new(Occasion::default(), "free", "");
        record.runs.push(Run::measured("B", report));
        let text = record.csv();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let [head, cells] = &lines[..] else { panic!("{text}") };
        assert_eq!(head.len(), cells.len());
        let value = |name| cells[head.iter().position(|column| *column == name).unwrap()];
        assert_eq!((value("confirm_p99_us"), value("confirm_intended_p99_us")), ("7", "900"));
    }

    #[test]
    fn text_with_commas_is_quoted() {
        assert_eq!(quoted("Forebay 0.1"), "Forebay 0.1");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert!(!HEAD.contains(' '));
    }
}
