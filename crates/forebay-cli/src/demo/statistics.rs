//! What the year is like: count, mean, minimum and maximum for each station and month.

use super::readings::Reading;
use super::station::STATION_COUNT;

/// One month; values in tenths of their units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Month {
    pub(super) count: u64,
    pub(super) temperature_sum: i64,
    pub(super) temperature_min: i64,
    pub(super) temperature_max: i64,
    pub(super) pressure_sum: i64,
    pub(super) wind_sum: i64,
}

impl Default for Month {
    fn default() -> Month {
        Month {
            count: 0,
            temperature_sum: 0,
            temperature_min: i64::MAX,
            temperature_max: i64::MIN,
            pressure_sum: 0,
            wind_sum: 0,
        }
    }
}

impl Month {
    /// One reading.
    pub(super) fn of(temperature: i64, pressure: i64, wind: i64) -> Month {
        Month {
            count: 1,
            temperature_sum: temperature,
            temperature_min: temperature,
            temperature_max: temperature,
            pressure_sum: pressure,
            wind_sum: wind,
        }
    }

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

    /// Adds another, `times` over.
    pub(super) fn add(&mut self, other: &Month, times: u64) {
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

/// Twelve months of each station.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statistics(Vec<[Month; 12]>);

impl Default for Statistics {
    fn default() -> Self {
        Statistics(vec![[Month::default(); 12]; STATION_COUNT as usize])
    }
}

impl Statistics {
    /// Adds to a month of a station.
    pub(super) fn add(&mut self, station: u16, month: usize, other: &Month) {
        self.0[usize::from(station)][month].add(other, 1);
    }

    fn add_all(&mut self, other: &Statistics, times: u64) {
        for (months, others) in self.0.iter_mut().zip(&other.0) {
            for (month, other) in months.iter_mut().zip(others) {
                month.add(other, times);
            }
        }
    }

    /// The months of all stations together.
    pub(super) fn months(&self) -> [Month; 12] {
        let mut sums = [Month::default(); 12];
        for station in &self.0 {
            for (sum, month) in sums.iter_mut().zip(station) {
                sum.add(month, 1);
            }
        }
        sums
    }

    /// Pairs of a station and a month that have readings.
    pub(super) fn rows(&self) -> usize {
        self.0.iter().flatten().filter(|month| month.count > 0).count()
    }

    /// What must come out when publisher `p` of `published.len()` publishers sent `published[p]` readings: number
    /// p, p + P, p + 2P, … of the endlessly repeated file, from the stations of the same numbers. The number of
    /// publishers divides that of the stations, and neither has a divisor in common with the length of the file: so
    /// after `period` messages a publisher begins anew, and only the rest is computed reading by reading.
    pub(super) fn expected(readings: &[Reading], published: &[u64]) -> Statistics {
        let step = published.len() as u64;
        let (len, period) = (readings.len() as u64, readings.len() as u64 * STATION_COUNT / step);
        let take = |statistics: &mut Statistics, number: u64| {
            let reading = &readings[(number % len) as usize];
            let values = Month::of(reading.temperature, reading.pressure, reading.wind);
            statistics.add((number % STATION_COUNT) as u16, reading.month, &values);
        };
        let mut expected = Statistics::default();
        for (first, &count) in published.iter().enumerate() {
            if count >= period {
                let mut whole = Statistics::default();
                (0..period).for_each(|k| take(&mut whole, first as u64 + k * step));
                expected.add_all(&whole, count / period);
            }
            (count - count % period..count)
                .for_each(|k| take(&mut expected, first as u64 + k * step));
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
        // A short file, so that a publisher is soon at its beginning again.
        let readings: Vec<Reading> = seattle().unwrap().into_iter().step_by(700).take(13).collect();
        let published = [20_000, 8_759, 3, 0];
        let mut counted = Statistics::default();
        for (first, &count) in published.iter().enumerate() {
            for k in 0..count as usize {
                let number = first + 4 * k;
                let reading = &readings[number % readings.len()];
                let values = Month::of(reading.temperature, reading.pressure, reading.wind);
                counted.add((number % 1_000) as u16, reading.month, &values);
            }
        }
        assert_eq!(Statistics::expected(&readings, &published), counted);
        assert_eq!(counted.months().iter().map(|month| month.count).sum::<u64>(), 28_762);
    }
}
