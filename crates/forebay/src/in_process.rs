//! The broker's in-process stream as tokio's traits.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_server::InProcessStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One connection inside the process.
#[derive(Debug)]
pub(crate) struct InProcess(pub(crate) InProcessStream);

impl AsyncRead for InProcess {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buffer.initialize_unfilled()).map_ok(|count| buffer.advance(count))
    }
}

impl AsyncWrite for InProcess {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shutdown())
    }
}
