//! A stream as a source.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::{Source, SourceError, Taken};

/// See [`stream`].
pub struct Streamed<S>(Pin<Box<S>>);

/// Each element is a message, an error the end. Nobody is told what becomes of a message.
pub fn stream<S>(elements: S) -> Streamed<S> {
    Streamed(Box::pin(elements))
}

impl<S, T, E> Source for Streamed<S>
where
    S: Stream<Item = Result<T, E>> + Send + 'static,
    T: Send + Sync + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    type Value = T;
    type Receipt = ();

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        self.0.as_mut().poll_next(cx).map(|element| match element {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some((value, ()))),
            Some(Err(error)) => Err(SourceError::new(error)),
        })
    }

    fn poll_over(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.0.size_hint().1 == Some(0) { Poll::Ready(()) } else { Poll::Pending }
    }
}
