//! An iterator as a source.

use std::task::{Context, Poll};

use super::{Source, Taken};

/// See [`iter`].
#[derive(Debug)]
pub struct Iter<I>(I);

/// Each element is a message. Nobody is told what becomes of it.
pub fn iter<I: IntoIterator>(elements: I) -> Iter<I::IntoIter> {
    Iter(elements.into_iter())
}

impl<I> Source for Iter<I>
where
    I: Iterator + Send + 'static,
    I::Item: Send + Sync + 'static,
{
    type Value = I::Item;
    type Receipt = ();

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Taken<Self>> {
        Poll::Ready(Ok(self.0.next().map(|value| (value, ()))))
    }

    fn poll_over(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.0.size_hint().1 == Some(0) { Poll::Ready(()) } else { Poll::Pending }
    }
}
