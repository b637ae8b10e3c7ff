//! Something that happens in the middle of a measurement.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What happens, and when.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Step {
    /// Seconds after the measurement began.
    pub at_s: f64,
    /// What.
    pub what: StepKind,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepKind {
    /// Each consumer works so many times slower than it did in the second before; 1: as at the start.
    Consumers(f64),
    /// The broker's process stands still for so many seconds. Only a broker of our own.
    StallSeconds(f64),
    /// The emulated link gets this round trip, in milliseconds.
    RttMs(f64),
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        let wrong = || {
            format!(
                "`{text}` is not a step: 10:consumers/10, 20:stall=2 or 30:rtt=50, for instance"
            )
        };
        let (at, what) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| {
            text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(wrong)
        };
        let what = if let Some(factor) = what.strip_prefix("consumers/") {
            StepKind::Consumers(number(factor).ok().filter(|&n| n > 0.0).ok_or_else(wrong)?)
        } else if let Some(seconds) = what.strip_prefix("stall=") {
            StepKind::StallSeconds(number(seconds)?)
        } else if let Some(ms) = what.strip_prefix("rtt=") {
            StepKind::RttMs(number(ms)?)
        } else {
            return Err(wrong());
        };
        Ok(Step { at_s: number(at)?, what })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.at_s)?;
        match self.what {
            StepKind::Consumers(factor) => write!(f, "consumers/{factor}"),
            StepKind::StallSeconds(seconds) => write!(f, "stall={seconds}"),
            StepKind::RttMs(ms) => write!(f, "rtt={ms}"),
        }
    }
}

impl From<Step> for String {
    fn from(step: Step) -> String {
        step.to_string()
    }
}

impl TryFrom<String> for Step {
    type Error = String;

    fn try_from(text: String) -> Result<Step, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_are_written() {
        for text in ["10:consumers/10", "20.5:stall=2", "30:rtt=0.5"] {
            assert_eq!(text.parse::<Step>().unwrap().to_string(), text);
        }
        for text in ["", "10", "10:consumers/0", "x:stall=1", "1:stall=-1", "1:sleep=3"] {
            assert!(text.parse::<Step>().unwrap_err().contains("10:consumers/10"), "{text}");
        }
    }
}
