//! How many messages a stage works on at a time.

use forebay_flow::Workers;

/// Messages in work of [`Concurrency::auto`] at first, and at most.
const AUTO_START: usize = 8;
const AUTO_MAX: usize = 256;

/// How many messages are in work at a time: a number, which stays, or what the pipeline finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fixed(usize),
    Auto { min: usize, max: usize },
}

impl Concurrency {
    /// As many as the handlers gain from, between 1 and 256: more while that makes them faster together, fewer when
    /// they only wait for one another, which shows that what they use is full. For handlers that wait for something (a
    /// service, a database, a disk). [How](forebay_flow::workers).
    ///
    /// It begins with 8. Each step takes about three times as long as a call: seconds for calls of 100 ms, minutes
    /// for calls of 20 s, which are better given a number.
    #[must_use]
    pub fn auto() -> Concurrency {
        Concurrency(Kind::Auto { min: 1, max: AUTO_MAX })
    }

    /// At least so many, at least 1. No effect on a number.
    #[must_use]
    pub fn min(self, least: usize) -> Concurrency {
        match self.0 {
            Kind::Auto { max, .. } => {
                let min = least.max(1);
                Concurrency(Kind::Auto { min, max: max.max(min) })
            }
            Kind::Fixed(_) => self,
        }
    }

    /// At most so many, at least 1: a source may be asked for as many at a time. No effect on a number.
    #[must_use]
    pub fn max(self, most: usize) -> Concurrency {
        match self.0 {
            Kind::Auto { min, .. } => {
                let max = most.max(1);
                Concurrency(Kind::Auto { min: min.min(max), max })
            }
            Kind::Fixed(_) => self,
        }
    }

    /// The most there may be.
    pub(crate) fn most(self) -> usize {
        match self.0 {
            Kind::Fixed(number) => number.max(1),
            Kind::Auto { max, .. } => max,
        }
    }

    /// How many to have now, of which there are `now` if the stage runs already.
    pub(crate) fn first(self, now: Option<usize>) -> usize {
        match self.0 {
            Kind::Fixed(number) => number.max(1),
            Kind::Auto { min, max } => now.unwrap_or(AUTO_START).clamp(min, max),
        }
    }

    /// What finds the number, beginning with `first`; none if it is fixed.
    pub(crate) fn tuner(self, first: usize) -> Option<Workers> {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        match self.0 {
            Kind::Fixed(_) => None,
            Kind::Auto { min, max } => Some(Workers::new(count(first), count(min), count(max))),
        }
    }
}

/// Always so many, at least 1.
impl From<usize> for Concurrency {
    fn from(number: usize) -> Concurrency {
        Concurrency(Kind::Fixed(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_whatever_their_order() {
        assert_eq!(Concurrency::auto().first(None), AUTO_START);
        assert_eq!(Concurrency::auto().max(4).first(None), 4);
        assert_eq!(Concurrency::auto().min(500).most(), 500);
        assert_eq!(Concurrency::auto().min(20).max(10).first(Some(100)), 10);
        assert_eq!(Concurrency::auto().max(0).most(), 1);
        let fixed = Concurrency::from(0);
        assert_eq!((fixed.first(Some(7)), fixed.most()), (1, 1));
        assert!(fixed.tuner(1).is_none());
    }
}
