//! The byte stream under a connection: TCP, TLS over TCP, or whatever else carries bytes both ways.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::kept_full::KeptFull;

/// A stream of somebody else's making, for instance an in-process pipe.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// One stream. TCP is named, for its calls are on the hot path.
pub(crate) enum Stream {
    Tcp(KeptFull),
    Tls(Box<TlsStream<KeptFull>>),
    Other(Box<dyn ByteStream>),
}

impl Stream {
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        let polled = match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Stream::Other(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        };
        polled.map_ok(|()| buffer.filled().len())
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Other(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    /// What was taken and not passed on (TLS records) goes out.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Other(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Other(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// What fills no packet waits until the packet before that was not full is acknowledged, or with what comes meanwhile it fills
    /// one (Nagle's algorithm, RFC 896, as Minshall changed it); or leaves at once, as in the beginning. No socket, no
    /// packets: then it does nothing.
    pub(crate) fn set_full_packets(&self, wanted: bool) {
        if let Some(tcp) = self.tcp() {
            let _ = tcp.set_nodelay(!wanted);
        }
    }

    /// The TCP connection below, if there is one.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(stream.stream()),
            Stream::Tls(stream) => Some(stream.get_ref().0.stream()),
            Stream::Other(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn full_packets_are_the_socket_s_and_may_be_taken_back() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        let stream = Stream::Tcp(KeptFull::new(tcp));
        for wanted in [true, false] {
            stream.set_full_packets(wanted);
            assert_eq!(stream.tcp().unwrap().nodelay().unwrap(), !wanted);
        }
    }
}
