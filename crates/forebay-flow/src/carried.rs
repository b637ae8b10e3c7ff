//! How fast a broker is, by what all publishers of a process have had confirmed by it.
//!
//! ```text
//!   reading   messages since the last reading / time since then; none after more than 1 s
//!   rate      average of readings, the new one a quarter
//!   carried   the most of it in the last 5 to 10 s
//! ```
//!
//! A publisher sees its own rate. One of twenty that keep a broker busy sees a twentieth of what it carries, and cannot tell that
//! from a broker that is twenty times slower. Those that share a process can.
//!
//! - **The most of some seconds**: a pause of the publishers, or of the broker, does not make it a slower one.

use crate::ewma::Ewma;
use crate::windowed_max::WindowedMax;

const WEIGHT: f64 = 0.25;
const BUCKET_US: u64 = 5_000_000;
/// Over a longer time than this a rate is that of a pause.
const READING_MAX_US: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Carried {
    /// When it was last told, and how many messages there had been.
    last: Option<(u64, u64)>,
    per_s: Ewma,
    most_per_s: WindowedMax,
}

impl Default for Carried {
    fn default() -> Carried {
        Carried { last: None, per_s: Ewma::new(WEIGHT), most_per_s: WindowedMax::new(BUCKET_US) }
    }
}

impl Carried {
    /// So many messages were confirmed so far.
    pub(crate) fn add(&mut self, now_us: u64, messages: u64) {
        let Some((before_us, before)) = self.last.replace((now_us, messages)) else { return };
        let took_us = now_us.saturating_sub(before_us);
        if took_us == 0 || took_us > READING_MAX_US {
            return;
        }
        self.per_s.add(messages.saturating_sub(before) as f64 * 1e6 / took_us as f64);
        self.most_per_s.add(now_us, self.per_s.get().unwrap_or(0.0) as u64);
    }

    /// Messages a microsecond; `None`: nobody has told yet, or there were none.
    pub(crate) fn per_us(&self) -> Option<f64> {
        let most_per_s = self.most_per_s.get();
        (most_per_s > 0).then(|| most_per_s as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many messages in each tenth of a second from `from` on.
    fn tell(carried: &mut Carried, from: u64, tenths: &[u64]) {
        let mut total = 1_000_000;
        carried.add(from * 100_000, total);
        for (at, &messages) in (from + 1..).zip(tenths) {
            total += messages;
            carried.add(at * 100_000, total);
        }
    }

    #[test]
    fn it_is_a_rate_that_pauses_do_not_lower() {
        let mut carried = Carried::default();
        assert_eq!(carried.per_us(), None);
        tell(&mut carried, 0, &[]);
        assert_eq!(carried.per_us(), None, "one reading is no rate");
        tell(&mut carried, 20, &[5_000; 10]);
        assert_eq!(carried.per_us(), Some(0.05));
        tell(&mut carried, 45, &[0; 20]);
        assert_eq!(carried.per_us(), Some(0.05));
        tell(&mut carried, 80, &[500; 110]);
        let slower = carried.per_us().expect("it was told");
        assert!((slower - 0.005).abs() < 0.000_1, "{slower}");
    }

    #[test]
    fn one_reading_is_a_quarter_of_it_and_what_came_after_a_pause_is_none() {
        let mut carried = Carried::default();
        tell(&mut carried, 0, &[1_000, 1_000, 9_000]);
        assert_eq!(carried.per_us(), Some(0.03));
        let mut carried = Carried::default();
        carried.add(0, 0);
        carried.add(60_000_000, 600);
        assert_eq!(carried.per_us(), None, "ten a second are not what it can carry");
    }
}
