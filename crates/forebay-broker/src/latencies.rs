//! How long things took: counts in buckets that grow with the time, so that memory and cost are fixed.

/// Buckets for each doubling: a bucket's ends are at most a quarter of it apart.
const PER_OCTAVE: u64 = 4;

/// Times of two hours and more are in the last one.
const BUCKETS: usize = 4 * 32;

/// A histogram of microseconds.
#[derive(Debug, Clone)]
pub struct Latencies {
    counts: Box<[u64; BUCKETS]>,
    sum_us: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: Box::new([0; BUCKETS]), sum_us: 0 }
    }
}

impl Latencies {
    /// Counts one.
    pub(crate) fn count(&mut self, us: u64) {
        self.counts[bucket(us)] += 1;
        self.sum_us += us;
    }

    /// Buckets that count something: the highest time that belongs to it, in microseconds, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(index, count)| (highest_us(index), *count))
    }

    /// How many took at most so long; exact where a power of two less one is asked for.
    pub fn count_upto(&self, us: u64) -> u64 {
        self.buckets().take_while(|(highest_us, _)| *highest_us <= us).map(|(_, count)| count).sum()
    }

    /// All times together, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }
}

/// 0 to 3 have one each, then each doubling has four.
fn bucket(us: u64) -> usize {
    if us < PER_OCTAVE {
        return us as usize;
    }
    let octave = u64::from(us.ilog2()) - 2;
    ((octave * PER_OCTAVE + (us >> octave)) as usize).min(BUCKETS - 1)
}

fn highest_us(index: usize) -> u64 {
    let index = index as u64;
    if index < PER_OCTAVE {
        return index;
    }
    let octave = index / PER_OCTAVE - 1;
    ((index % PER_OCTAVE + PER_OCTAVE + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_no_wider_than_a_quarter_of_its_times() {
        let mut before = None;
        for us in (0..5_000).chain([99_999, 1 << 20, 3_600_000_000]) {
            let highest = highest_us(bucket(us));
            assert!(highest >= us && highest - us <= us / 4, "{us}: {highest}");
            assert!(before.is_none_or(|before| before <= highest));
            before = Some(highest);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn counts_up_to_a_power_of_two_are_exact() {
        let mut latencies = Latencies::default();
        for us in 0..100 {
            latencies.count(us);
        }
        assert_eq!(latencies.count_upto(63), 64);
        assert_eq!(latencies.buckets().map(|(_, count)| count).sum::<u64>(), 100);
        assert_eq!(latencies.sum_us(), 99 * 50);
    }
}
