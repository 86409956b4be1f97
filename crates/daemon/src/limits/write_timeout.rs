//! A connection whose reader must go on reading: an answer that waits in the server's memory for a reader that takes
//! nothing ends after a while.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// After this time a write must be complete, or the reader must have taken [`PIECE_BYTES`] of it: 26 kbit/s are enough.
/// One write may be a whole system in memory, which a machine's firmware takes for a minute.
const WRITE_TIME_MAX: Duration = Duration::from_secs(20);
const PIECE_BYTES: usize = 64 << 10;

/// A stream whose writes fail if its reader is too slow.
pub(crate) struct WriteTimeout<S> {
    stream: S,
    /// The end of the present write's time, and the bytes that are still to be taken until then; `None` if no write
    /// waits.
    waits: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, waits: None }
    }

    /// Notes the outcome of a write of `bytes` bytes.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(done) = written {
            let taken = done.as_ref().copied().unwrap_or(0);
            self.waits.take_if(|(_, left)| {
                *left = left.saturating_sub(taken);
                *left == 0 || taken == bytes
            });
            return Poll::Ready(done);
        }
        let (deadline, _) = self.waits.get_or_insert_with(|| (Box::pin(sleep(WRITE_TIME_MAX)), PIECE_BYTES));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader is too slow")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, buf);
        self.judge(context, buf.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.judge(context, pieces.iter().map(|piece| piece.len()).sum(), written)
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (near, far) = duplex(1024);
            let mut near = WriteTimeout::new(near);
            let begin = Instant::now();
            let error = near.write_all(&[7; 4096]).await.unwrap_err();
            assert_eq!((error.kind(), begin.elapsed() >= WRITE_TIME_MAX), (io::ErrorKind::TimedOut, true));
            drop(far);

            let (near, mut far) = duplex(1024);
            let mut near = WriteTimeout::new(near);
            // The pause between two writes does not count.
            near.write_all(&[7; 1024]).await.unwrap();
            sleep(WRITE_TIME_MAX * 2).await;
            let reader = tokio::spawn(async move {
                let mut bytes = [0; 1024];
                while far.read_exact(&mut bytes).await.is_ok() {
                    sleep(Duration::from_millis(800)).await;
                }
            });
            for _ in 0..64 {
                near.write_all(&[7; 1 << 14]).await.unwrap();
            }
            drop(near);
            reader.await.unwrap();
        });
    }

    #[test]
    fn one_long_write_may_take_as_long_as_its_reader_goes_on() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let write = |piece: usize, pause: Duration| {
            runtime.block_on(async {
                let (near, mut far) = duplex(1024);
                let mut near = WriteTimeout::new(near);
                let reader = tokio::spawn(async move {
                    let mut bytes = vec![0; piece];
                    while far.read_exact(&mut bytes).await.is_ok() {
                        sleep(pause).await;
                    }
                });
                let begin = Instant::now();
                let written = near.write_all(&[7; 1 << 20]).await;
                let took = begin.elapsed();
                drop(near);
                reader.await.unwrap();
                (written.map_err(|error| error.kind()), took)
            })
        };
        let (written, took) = write(4096, Duration::from_secs(1));
        assert_eq!((written, took > WRITE_TIME_MAX * 10), (Ok(()), true));
        // Who takes a byte now and then does not hold the server's memory for ever.
        let (written, took) = write(1, Duration::from_millis(100));
        assert_eq!((written, took < WRITE_TIME_MAX * 2), (Err(io::ErrorKind::TimedOut), true));
    }
}
