//! What the consumers compute: twelve months of count, mean, minimum and maximum.

use super::readings::Reading;

/// One month; values in tenths of their units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Month {
    pub(super) count: u64,
    temperature_sum: i64,
    temperature_min: i64,
    temperature_max: i64,
    pressure_sum: i64,
    wind_sum: i64,
}

const EMPTY: Month = Month {
    count: 0,
    temperature_sum: 0,
    temperature_min: i64::MAX,
    temperature_max: i64::MIN,
    pressure_sum: 0,
    wind_sum: 0,
};

impl Month {
    fn mean(&self, sum: i64) -> f64 {
        if self.count == 0 { 0.0 } else { sum as f64 / 10.0 / self.count as f64 }
    }

    /// °C
    pub(super) fn temperature_mean(&self) -> f64 {
        self.mean(self.temperature_sum)
    }

    /// °C; 0 of an empty month.
    pub(super) fn temperature_min(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.temperature_min as f64 / 10.0 }
    }

    /// °C; 0 of an empty month.
    pub(super) fn temperature_max(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.temperature_max as f64 / 10.0 }
    }

    /// hPa
    pub(super) fn pressure_mean(&self) -> f64 {
        self.mean(self.pressure_sum)
    }

    /// m/s
    pub(super) fn wind_mean(&self) -> f64 {
        self.mean(self.wind_sum)
    }

    fn add(&mut self, other: &Month, times: u64) {
        if times == 0 || other.count == 0 {
            return;
        }
        self.count += other.count * times;
        self.temperature_sum += other.temperature_sum * times as i64;
        self.temperature_min = self.temperature_min.min(other.temperature_min);
        self.temperature_max = self.temperature_max.max(other.temperature_max);
        self.pressure_sum += other.pressure_sum * times as i64;
        self.wind_sum += other.wind_sum * times as i64;
    }
}

/// Twelve months.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statistics(pub(super) [Month; 12]);

impl Default for Statistics {
    fn default() -> Self {
        Statistics([EMPTY; 12])
    }
}

impl Statistics {
    /// Adds one reading, its values in tenths.
    pub(super) fn take(&mut self, month: usize, temperature: i64, pressure: i64, wind: i64) {
        let one = Month {
            count: 1,
            temperature_sum: temperature,
            temperature_min: temperature,
            temperature_max: temperature,
            pressure_sum: pressure,
            wind_sum: wind,
        };
        self.0[month].add(&one, 1);
    }

    /// Adds all of another computation, `times` over.
    pub(super) fn add(&mut self, other: &Statistics, times: u64) {
        for (month, other) in self.0.iter_mut().zip(&other.0) {
            month.add(other, times);
        }
    }

    /// What must come out when publisher `p` of `published.len()` publishers sent `published[p]`
    /// readings: readings p, p + P, p + 2P, … of the endlessly repeated file. The number of
    /// publishers and the length of the file have no common divisor, so each run of `len` messages
    /// of one publisher holds the whole file once; only the rest is computed reading by reading.
    pub(super) fn expected(readings: &[Reading], published: &[u64]) -> Statistics {
        let take = |statistics: &mut Statistics, reading: &Reading| {
            statistics.take(reading.month, reading.temperature, reading.pressure, reading.wind);
        };
        let mut whole_file = Statistics::default();
        for reading in readings {
            take(&mut whole_file, reading);
        }
        let (step, len) = (published.len() as u64, readings.len() as u64);
        let mut expected = Statistics::default();
        for (first, &count) in published.iter().enumerate() {
            expected.add(&whole_file, count / len);
            for k in count - count % len..count {
                take(&mut expected, &readings[((first as u64 + k * step) % len) as usize]);
            }
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::super::readings::seattle;
    use super::*;

    #[test]
    fn the_shortcut_gives_what_counting_gives() {
        let readings = seattle().unwrap();
        let published = [20_000, 8_759, 3, 0];
        let mut counted = Statistics::default();
        for (first, &count) in published.iter().enumerate() {
            for k in 0..count as usize {
                let reading = &readings[(first + 4 * k) % readings.len()];
                counted.take(reading.month, reading.temperature, reading.pressure, reading.wind);
            }
        }
        assert_eq!(Statistics::expected(&readings, &published), counted);
        assert_eq!(counted.0.iter().map(|month| month.count).sum::<u64>(), 28_762);
    }
}
