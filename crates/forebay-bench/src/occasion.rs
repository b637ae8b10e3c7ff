//! Where and when something was measured, for the records.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay_wire::AmqpUri;
use serde::{Deserialize, Serialize};

/// What a debug build says of itself.
const DEBUG: &str = "debug: no figures to quote";

/// The frame of a record; `cells`, or whatever was measured, is beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Occasion {
    /// Year, month and day.
    pub date: String,
    /// The command line, without passwords.
    pub command: String,
    /// `product version`, as it introduces itself.
    pub broker: String,
    /// Where.
    pub machine: Machine,
    /// `release`, or what else was measured by mistake.
    pub build: String,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    /// Runnable processes over the last minute, before we added to them.
    load_before: f64,
}

impl Occasion {
    /// Here and now; `program` is what the command line began with.
    pub(crate) fn now(program: &str, broker: String) -> Occasion {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let command: Vec<String> = std::env::args().skip(1).map(without_password).collect();
        Occasion {
            date: date(seconds),
            command: format!("{program} {}", command.join(" ")),
            broker,
            machine: Machine::here(),
            build: if cfg!(debug_assertions) { DEBUG } else { "release" }.to_owned(),
        }
    }

    /// For people.
    pub(crate) fn headline(&self) -> String {
        format!(
            "{}; {}; {} cores of {}, {}; load before {:.1}; {}",
            self.date,
            self.broker,
            self.machine.cores,
            self.machine.cpu,
            self.machine.kernel,
            self.machine.load_before,
            self.build
        )
    }
}

impl Machine {
    /// Whether they are of one kind, however busy.
    pub(crate) fn is_like(&self, other: &Machine) -> bool {
        (&self.cpu, self.cores, &self.kernel) == (&other.cpu, other.cores, &other.kernel)
    }

    fn here() -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let load = read("/proc/loadavg");
        Machine {
            cpu: cpu.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            load_before: load.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0),
        }
    }
}

fn without_password(argument: String) -> String {
    if argument.contains("://") { AmqpUri::shown(&argument) } else { argument }
}

/// The day of a time in seconds since 1970, by the calendar of all days (H. Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms").
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_767_225_599), "2025-12-31");
        assert_eq!(date(1_767_225_600), "2026-01-01");
    }

    #[test]
    fn a_record_does_not_tell_passwords() {
        let told = without_password("--url=amqp://me:secret@host/v".to_owned());
        assert_eq!(told, "--url=amqp://me:…@host/v");
        let of_key = "amqps://host/v?certfile=c&keyfile=k&password=secret".to_owned();
        assert_eq!(without_password(of_key), "amqps://host/v?certfile=c&keyfile=k&password=…");
        assert_eq!(without_password("--queue=a@b".to_owned()), "--queue=a@b");
        assert_eq!(without_password("--rtt".to_owned()), "--rtt");
    }
}
