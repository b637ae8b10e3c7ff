//! What a broker has taken of a publisher, by the publisher's own count of its writes.
//!
//! A broker that can [`NAMED_PUBLISHERS`] counts what it takes of a publisher under its name. channel.open says
//! which of its channels this is (from 1, so that none overtakes a later one), which count the first publish there
//! will have, and the name; channel.open-ok answers: `upto`, then pairs `(first, last)`, all u64 big-endian. All up to `upto` was taken and is as good as confirmed, except that
//! of each range some were returned, its first and its last among them.

/// What a broker calls it.
pub(crate) const NAMED_PUBLISHERS: &str = "forebay.named_publishers";

/// What became of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Taken,
    /// Taken, or returned.
    InDoubt,
    NeverArrived,
}

/// A broker's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    upto: u64,
    returned: Vec<(u64, u64)>,
}

impl Taken {
    /// `None`: the broker knows nothing of the publisher, or the answer is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Taken> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let mut numbers = numbers.iter().map(|eight| u64::from_be_bytes(*eight));
        let upto = numbers.next()?;
        let mut returned = Vec::new();
        while let Some(first) = numbers.next() {
            returned.push((first, numbers.next()?));
        }
        Some(Taken { upto, returned })
    }

    /// The last write that was taken.
    pub(super) fn upto(&self) -> u64 {
        self.upto
    }

    pub(super) fn fate(&self, write: u64) -> Fate {
        if write > self.upto {
            Fate::NeverArrived
        } else if self.returned.iter().any(|&(first, last)| (first..=last).contains(&write)) {
            Fate::InDoubt
        } else {
            Fate::Taken
        }
    }
}

/// The words of channel.open.
pub(super) fn open_words(opening: u64, first: u64, name: &str) -> String {
    format!("{opening} {first} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    #[test]
    fn an_answer_tells_the_fate_of_each_write() {
        let taken = Taken::parse(&bytes(&[9, 3, 4, 7, 7])).unwrap();
        let fates: Vec<Fate> = (1..=10).map(|write| taken.fate(write)).collect();
        let of = |fate| fates.iter().filter(|each| **each == fate).count();
        assert_eq!((of(Fate::Taken), of(Fate::InDoubt), of(Fate::NeverArrived)), (6, 3, 1));
        assert_eq!((fates[6], fates[9]), (Fate::InDoubt, Fate::NeverArrived));
    }

    #[test]
    fn what_is_no_answer_says_that_nothing_is_known() {
        for bytes in [bytes(&[]), bytes(&[9, 3]), vec![0; 7], vec![0; 9]] {
            assert_eq!(Taken::parse(&bytes), None);
        }
    }
}
