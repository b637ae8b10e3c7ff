//! What came out of a run.

use super::Cell;
use super::flow::Flow;

pub const BIN_US: u64 = 250_000;

/// Confirmed messages and their latencies.
pub struct Outcome {
    warm_us: u64,
    end_us: u64,
    latencies_us: Vec<u32>, // sorted by `finish`
    bins: Vec<(u64, u64)>,  // per 250 ms: confirmed, sum of latencies
    shares: Vec<u64>,
    flooded: u64,
    /// The largest window at the end.
    pub window_messages: u32,
}

impl Outcome {
    pub fn new(cell: &Cell) -> Outcome {
        Outcome {
            warm_us: cell.warm_us,
            end_us: cell.end_us,
            latencies_us: Vec::new(),
            bins: vec![(0, 0); (cell.end_us / BIN_US + 1) as usize],
            shares: Vec::new(),
            flooded: 0,
            window_messages: 0,
        }
    }

    pub fn confirmed(&mut self, now_us: u64, latency_us: u64) {
        if now_us >= self.warm_us {
            self.latencies_us.push(u32::try_from(latency_us).unwrap_or(u32::MAX));
        }
        let bin = &mut self.bins[(now_us / BIN_US) as usize];
        bin.0 += 1;
        bin.1 += latency_us;
    }

    pub fn finish(&mut self, flows: &[Flow], flooded: u64) {
        self.flooded = flooded;
        self.latencies_us.sort_unstable();
        self.shares = flows.iter().map(|flow| flow.confirmed).collect();
        self.window_messages =
            flows.iter().map(|flow| flow.window.window_messages()).max().unwrap_or(0);
    }

    pub fn per_s(&self) -> f64 {
        self.latencies_us.len() as f64 * 1e6 / (self.end_us - self.warm_us) as f64
    }

    pub fn latency_ms(&self, quantile: f64) -> f64 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us
            .get((last as f64 * quantile) as usize)
            .map_or(0.0, |us| f64::from(*us) / 1e3)
    }

    /// Messages a second between two times.
    pub fn per_s_between(&self, from_us: u64, to_us: u64) -> f64 {
        let (confirmed, _) = self.sums(from_us, to_us);
        confirmed as f64 * 1e6 / (to_us - from_us) as f64
    }

    /// Mean latency between two times, in milliseconds.
    pub fn mean_ms_between(&self, from_us: u64, to_us: u64) -> f64 {
        let (confirmed, latency_us) = self.sums(from_us, to_us);
        latency_us as f64 / 1e3 / confirmed.max(1) as f64
    }

    /// Jain's index over the flows: 1 if all got the same.
    pub fn fairness(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|&share| share as f64).sum();
        let squares: f64 = self.shares.iter().map(|&share| (share as f64).powi(2)).sum();
        sum * sum / (self.shares.len() as f64 * squares)
    }

    /// What each flow got of an equal share of all that was taken, publishers without confirms included.
    pub fn fair_parts(&self, floods: usize) -> Vec<f64> {
        let all = self.flooded + self.shares.iter().sum::<u64>();
        let equal = all as f64 / (self.shares.len() + floods) as f64;
        self.shares.iter().map(|&share| share as f64 / equal).collect()
    }

    /// Standard deviation of the throughput per 250 ms, over its mean.
    pub fn variation(&self) -> f64 {
        let bins = &self.bins[(self.warm_us / BIN_US) as usize..(self.end_us / BIN_US) as usize];
        let mean = bins.iter().map(|bin| bin.0 as f64).sum::<f64>() / bins.len() as f64;
        let square = bins.iter().map(|bin| (bin.0 as f64 - mean).powi(2)).sum::<f64>();
        (square / bins.len() as f64).sqrt() / mean
    }

    fn sums(&self, from_us: u64, to_us: u64) -> (u64, u64) {
        let bins = &self.bins[(from_us / BIN_US) as usize..(to_us / BIN_US) as usize];
        bins.iter().fold((0, 0), |sum, bin| (sum.0 + bin.0, sum.1 + bin.1))
    }
}
