//! The lines of a reader as a source.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncBufRead;

use super::{Source, SourceError, Taken};

/// A longer line is an error: 16 MiB, as a broker's messages.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// See [`lines`].
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    /// The part of a line that was read; at most [`LINE_BYTES_MAX`].
    begun: Vec<u8>,
    number: u64,
}

/// Each line of a file, a socket or standard input is a message, without its line end. Lines are UTF-8 and have
/// [`LINE_BYTES_MAX`] bytes at most; anything else is an error of the source.
pub fn lines<R: AsyncBufRead>(reader: R) -> Lines<R> {
    Lines { reader, begun: Vec::new(), number: 0 }
}

impl<R> Lines<R> {
    fn line(&mut self) -> Result<(String, ()), SourceError> {
        self.number += 1;
        let mut line = std::mem::take(&mut self.begun);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        let number = self.number;
        match String::from_utf8(line) {
            Ok(line) => Ok((line, ())),
            Err(_) => Err(SourceError::new(format!("line {number} is not UTF-8"))),
        }
    }
}

impl<R: AsyncBufRead + Unpin + Send + 'static> Source for Lines<R> {
    type Value = String;
    type Receipt = ();

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        loop {
            let chunk = match ready!(Pin::new(&mut self.reader).poll_fill_buf(cx)) {
                Ok(chunk) => chunk,
                Err(error) => return Poll::Ready(Err(SourceError::new(error))),
            };
            if chunk.is_empty() {
                let last = (!self.begun.is_empty()).then(|| self.line()).transpose();
                return Poll::Ready(last);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(chunk.len());
            if self.begun.len() + taken > LINE_BYTES_MAX {
                let number = self.number + 1;
                let error = format!("line {number} is longer than {LINE_BYTES_MAX} bytes");
                return Poll::Ready(Err(SourceError::new(error)));
            }
            self.begun.extend_from_slice(&chunk[..taken]);
            Pin::new(&mut self.reader).consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                return Poll::Ready(self.line().map(Some));
            }
        }
    }
}
