//! A TCP socket that is kept full over a distance.
//!
//! ```text
//!   4 MiB that the peer has not acknowledged
//!   ├──────────────────────────────────────────────┤ full: nothing more is taken
//!   ├───────────────────────────────┤                a third is free: only now the kernel says that it is writable,
//!                                                    and then all of that third leaves at once
//! ```
//! Until the kernel says so a sixth of the socket is empty, on average, and of what it could carry as much is not carried where
//! the socket is what limits a connection: one publisher of 5 kB over 10 ms had 60 k/s in place of 75, and what waited
//! in front of the socket waited for most of a round trip. What is read comes with acknowledgements. So once something was read a
//! full socket is tried again, which costs a system call for a read at most.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct KeptFull {
    stream: TcpStream,
    /// Something was read since the full socket was last tried.
    heard: bool,
}

impl KeptFull {
    pub(crate) fn new(stream: TcpStream) -> KeptFull {
        KeptFull { stream, heard: false }
    }

    /// The socket itself.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The kernel does not call it writable. Room that there is all the same takes what fits; what is wrong with the socket it
    /// tells by being writable.
    fn fill(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let heard = std::mem::take(&mut self.heard);
        #[cfg(target_os = "linux")]
        if heard {
            use rustix::net::{SendFlags, send};
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            if let Ok(count @ 1..) = send(&self.stream, bytes, flags) {
                return Poll::Ready(Ok(count));
            }
        }
        let _ = (heard, bytes);
        Poll::Pending
    }
}

impl AsyncRead for KeptFull {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        self.heard |= matches!(polled, Poll::Ready(Ok(())));
        polled
    }
}

impl AsyncWrite for KeptFull {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.fill(bytes),
            ready => ready,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, bytes) {
            Poll::Pending => match bytes.iter().find(|part| !part.is_empty()) {
                Some(first) => self.fill(first),
                None => Poll::Pending,
            },
            ready => ready,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Whether it takes something that it has not taken before.
    fn takes_more(socket: &mut KeptFull) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(socket).poll_write(&mut cx, &[7; 1_000]) {
            Poll::Ready(taken) => taken.unwrap() > 0,
            Poll::Pending => false,
        }
    }

    #[tokio::test]
    async fn after_something_was_read_a_full_socket_is_tried_before_the_kernel_calls_it_writable() {
        // Otherwise tokio calls a socket full after 128 writes.
        tokio::task::unconstrained(a_full_socket_is_tried()).await;
    }

    async fn a_full_socket_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        let mut ours = KeptFull::new(ours);
        while takes_more(&mut ours) {}
        // So much of it is acknowledged that there is room, and so little that no third of the socket is free.
        let mut heard = [0; 1];
        let mut rounds = 0;
        loop {
            assert!(!takes_more(&mut ours), "nothing was read since it was full");
            theirs.read_exact(&mut vec![0; 4_096]).await.unwrap();
            theirs.write_all(&[1]).await.unwrap();
            ours.read_exact(&mut heard).await.unwrap();
            rounds += 1;
            if takes_more(&mut ours) {
                break;
            }
        }
        let mut cx = Context::from_waker(Waker::noop());
        assert!(ours.stream.poll_write_ready(&mut cx).is_pending(), "after {rounds} rounds");
        // What is full becomes writable as any socket does.
        while takes_more(&mut ours) {}
        let read = async { while theirs.read(&mut vec![0; 65_536]).await.unwrap() > 0 {} };
        tokio::select! {
            () = read => unreachable!("we are open"),
            taken = poll_fn(|cx| Pin::new(&mut ours).poll_write(cx, &[7])) => assert_eq!(taken.unwrap(), 1),
        }
    }
}
