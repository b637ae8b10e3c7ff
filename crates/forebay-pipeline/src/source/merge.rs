//! Several sources as one.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_flow::Occupancy;

use super::{Later, Leaving, Past, Source, Taken};
use crate::needs::{Finding, Needs};
use crate::running::Control;

/// See [`merge`].
#[derive(Debug)]
pub struct Merged<S> {
    sources: Vec<S>,
    /// Whom to ask first.
    turn: usize,
}

/// Messages of several sources, which take turns where more than one has some. Each is told of all workers, since
/// at times one of them has all there is to do, and of how many are busy, whoever's messages they are busy with. It ends when all have ended, and fails with the first that fails.
pub fn merge<S: Source>(sources: impl IntoIterator<Item = S>) -> Merged<S> {
    Merged { sources: sources.into_iter().collect(), turn: 0 }
}

impl<S: Source> Source for Merged<S> {
    type Value = S::Value;
    type Receipt = S::Receipt;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        let mut silent = 0;
        while silent < self.sources.len() {
            let asked = self.turn % self.sources.len();
            match self.sources[asked].poll_next(cx) {
                Poll::Ready(Ok(None)) => {
                    // Who comes after it has its place, and the turn.
                    self.sources.remove(asked);
                    self.turn = asked;
                }
                Poll::Ready(taken) => {
                    self.turn = asked + 1;
                    return Poll::Ready(taken);
                }
                Poll::Pending => {
                    self.turn = asked + 1;
                    silent += 1;
                }
            }
        }
        if self.sources.is_empty() { Poll::Ready(Ok(None)) } else { Poll::Pending }
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut over = Poll::Ready(());
        for source in &mut self.sources {
            // All are asked, since each may be the last to end.
            if source.poll_over(cx).is_pending() {
                over = Poll::Pending;
            }
        }
        over
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        self.sources.iter_mut().flat_map(|source| source.needs(needs)).collect()
    }

    fn ack_timeout(&self) -> Option<Duration> {
        self.sources.iter().filter_map(Source::ack_timeout).filter(|limit| !limit.is_zero()).min()
    }

    fn occupancy(&mut self, occupancy: &Arc<Occupancy>) {
        self.sources.iter_mut().for_each(|source| source.occupancy(occupancy));
    }

    fn upstream(&self) -> Vec<Control> {
        self.sources.iter().flat_map(Source::upstream).collect()
    }

    fn past(value: &S::Value, receipt: &S::Receipt) -> Past {
        S::past(value, receipt)
    }

    fn later(value: &S::Value, receipt: &S::Receipt, later: Later) -> Option<Leaving> {
        S::later(value, receipt, later)
    }

    fn prefetch(&self) -> Option<u64> {
        // One that was left to itself takes what the pipeline needs.
        self.sources.iter().map(Source::prefetch).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::source::{iter, test};

    fn next<S: Source>(source: &mut S) -> Poll<Option<S::Value>> {
        let taken = source.poll_next(&mut Context::from_waker(Waker::noop()));
        taken.map(|taken| taken.unwrap().map(|(value, _)| value))
    }

    #[test]
    fn sources_take_turns_and_the_last_ends_it() {
        let mut merged = merge([iter(vec![1, 2, 3, 4]), iter(vec![10]), iter(vec![20, 21])]);
        let mut all = Vec::new();
        while let Poll::Ready(Some(number)) = next(&mut merged) {
            all.push(number);
        }
        assert_eq!(all, [1, 10, 20, 2, 21, 3, 4]);
        assert_eq!(
            next(&mut merge(Vec::<crate::source::Iter<std::ops::Range<u8>>>::new())),
            Poll::Ready(None)
        );
    }

    #[test]
    fn a_silent_source_holds_up_nobody() {
        let ((_silent, first), (busy, second)) = (test::<u32>(), test());
        let mut merged = merge([first, second]);
        assert_eq!(next(&mut merged), Poll::Pending);
        let _sent = [busy.send(1), busy.send(2)];
        assert_eq!(next(&mut merged), Poll::Ready(Some(1)));
        assert_eq!(next(&mut merged), Poll::Ready(Some(2)));
        assert_eq!(next(&mut merged), Poll::Pending);
    }
}
