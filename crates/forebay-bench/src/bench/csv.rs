//! Second by second, one line each, for spreadsheets.

use std::fmt::Write;

use super::record::Record;

const HEAD: &str = "broker,phase,window,prefetch,ack_every,repetition,second,published_per_s,confirmed_per_s,\
consumed_per_s,confirm_p50_us,confirm_p99_us,end_to_end_p50_us,end_to_end_p99_us,end_to_end_intended_p50_us,\
end_to_end_intended_p99_us,depth,unconfirmed,unacked,behind,window_messages,broker_cores,broker_bytes,\
generator_cores";

impl Record {
    /// All samples as comma-separated values; latencies count from the call unless their column says `intended`.
    pub fn csv(&self) -> String {
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

    #[test]
    fn text_with_commas_is_quoted() {
        assert_eq!(quoted("Forebay 0.1"), "Forebay 0.1");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert!(!HEAD.contains(' '));
    }
}
