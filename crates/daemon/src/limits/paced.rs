//! A connection that the kernel paces: an answer beside a multicast session must not fill the link's queue at once,
//! since the session would take that for congestion.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How fast a connection may send, for the requests on it to say.
#[derive(Debug, Clone)]
pub(crate) struct SendRate(Arc<AtomicU64>);

impl SendRate {
    /// Bits per second from the next write on; `None`: as fast as TCP can.
    pub(crate) fn set(&self, rate: Option<u64>) {
        self.0.store(rate.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// See the module.
pub(crate) struct Paced {
    stream: TcpStream,
    wanted: SendRate,
    /// The rate that the kernel has.
    rate: u64,
}

impl Paced {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, wanted: SendRate(Arc::new(AtomicU64::new(u64::MAX))), rate: u64::MAX }
    }

    pub(crate) fn send_rate(&self) -> SendRate {
        self.wanted.clone()
    }

    fn pace(&mut self) {
        let wanted = self.wanted.0.load(Ordering::Relaxed);
        if wanted != self.rate {
            self.rate = wanted;
            net::tcp::pace(&self.stream, Some(wanted).filter(|&rate| rate < u64::MAX));
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.pace();
        Pin::new(&mut self.stream).poll_write(context, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.pace();
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const BYTES: usize = 1_000_000;

    /// A connection that is sent `BYTES` at `rate`.
    async fn receive(rate: Option<u64>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut stream = Paced::new(listener.accept().await.unwrap().0);
        stream.send_rate().set(rate);
        tokio::spawn(async move { stream.write_all(&vec![7; BYTES]).await });
        receiver
    }

    #[tokio::test]
    async fn what_is_paced_still_comes_when_the_same_without_pace_has_come() {
        let mut slow = receive(Some(4_000_000)).await;
        let mut fast = receive(None).await;
        let mut bytes = vec![0; BYTES];
        fast.read_exact(&mut bytes).await.unwrap();
        let came = slow.try_read(&mut bytes).unwrap_or(0);
        assert!(came < BYTES, "a connection of 4 Mbit/s was as fast as one without a limit");
        assert!(slow.read(&mut bytes).await.unwrap() > 0, "the rest comes");
    }
}
