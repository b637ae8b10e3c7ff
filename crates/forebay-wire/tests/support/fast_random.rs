//! Seeded random numbers for bounded fuzzing: repeatable, no more.

/// xorshift64*; the seed is printed by whoever starts one, so that a failure can be repeated.
pub struct FastRandom(u64);

impl FastRandom {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The seed in `FOREBAY_SEED`, else one from the clock; printed.
    pub fn from_environment() -> Self {
        let seed = match std::env::var("FOREBAY_SEED") {
            Ok(seed) => seed.parse().expect("FOREBAY_SEED is a number"),
            Err(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |elapsed| elapsed.as_micros() as u64),
        };
        println!("FOREBAY_SEED={seed}");
        Self::new(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// Changes `data` a little: bytes, lengths, cuts, doublings, splices with `other`.
    pub fn mutate(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(3) {
            if data.is_empty() {
                data.push(self.next() as u8);
            }
            let at = self.below(data.len());
            match self.below(8) {
                0 => data[at] = self.next() as u8,
                1 => data[at] ^= 1 << self.below(8),
                2 => data[at] = [0, 1, 4, 127, 128, 254, 255, 206][self.below(8)],
                3 => data[at] = b"SxAFVtbBsuIilLTdfDU"[self.below(19)],
                4 => data.truncate(at),
                5 => data.insert(at, self.next() as u8),
                6 => {
                    data.remove(at);
                }
                _ => {
                    let from = self.below(other.len());
                    let end = (from + self.below(32)).min(other.len());
                    data.splice(at..at, other[from..end].iter().copied());
                    data.truncate(16 * 1024);
                }
            }
        }
    }
}
