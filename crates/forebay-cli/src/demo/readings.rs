//! The input: a year of hourly climate normals of Seattle, by NOAA (see data/README.md).
//!
//! All values have one decimal, so they are kept as whole tenths: sums are exact and results of
//! different orders of addition can be compared for equality.

use std::fmt;

/// The file itself.
const SEATTLE: &str = include_str!("../../data/seattle-weather-hourly-normals.csv");

/// One hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    /// 0 = January.
    pub(super) month: usize,
    /// Tenths of hPa.
    pub(super) pressure: i64,
    /// Tenths of °C.
    pub(super) temperature: i64,
    /// Tenths of m/s.
    pub(super) wind: i64,
    /// The message from `"time"` on; what comes before it names the station.
    pub(super) json_tail: String,
}

/// A line that is no reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadLine {
    line: usize,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the readings is not `date,pressure,temperature,wind`", self.line)
    }
}

/// The readings of the file.
pub(super) fn seattle() -> Result<Vec<Reading>, BadLine> {
    parse(SEATTLE)
}

fn parse(csv: &str) -> Result<Vec<Reading>, BadLine> {
    let lines = csv.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| reading(line.trim()).ok_or(BadLine { line: at + 1 })).collect()
}

fn reading(line: &str) -> Option<Reading> {
    let mut fields = line.split(',');
    let time = fields.next()?;
    let (pressure, temperature, wind) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() {
        return None;
    }
    Some(Reading {
        month: month_of(time)?,
        pressure: tenths_of(pressure)?,
        temperature: tenths_of(temperature)?,
        wind: tenths_of(wind)?,
        json_tail: format!(
            "\"time\":\"{time}\",\"pressure\":{pressure},\"temperature\":{temperature},\"wind\":{wind}}}"
        ),
    })
}

/// The month of `2010-01-31T23:00:00`, 0 = January.
pub(super) fn month_of(time: &str) -> Option<usize> {
    let month: usize = time.get(5..7)?.parse().ok()?;
    (1..=12).contains(&month).then(|| month - 1)
}

fn tenths_of(text: &str) -> Option<i64> {
    text.parse().ok().map(tenths)
}

/// A value with one decimal as whole tenths.
pub(super) fn tenths(value: f64) -> i64 {
    (value * 10.0).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_a_year_of_hours() {
        let readings = seattle().unwrap();
        assert_eq!(readings.len(), 8759);
        for month in 0..12 {
            assert!(
                readings.iter().filter(|reading| reading.month == month).count() >= 28 * 24 - 1
            );
        }
        assert_eq!(readings[0].temperature, 40);
    }

    #[test]
    fn a_bad_line_is_named() {
        assert_eq!(parse("head\n2010-13-01T01:00:00,1,2,3"), Err(BadLine { line: 2 }));
        assert_eq!(parse("head\n\n2010-12-01T01:00:00,1,2"), Err(BadLine { line: 3 }));
    }
}
