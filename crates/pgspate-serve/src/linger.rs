//! Lets a client read its answer although it is still sending.
//!
//! If a socket is closed with unread bytes, the system resets the connection. The reset may destroy
//! an answer on its way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::listen::ClientStream;

/// How long the rest of what a client sends is read and dropped.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The most connections at the same time whose rest is read.
const LINGERING_MAX: usize = 256;

static LINGERING: Semaphore = Semaphore::const_new(LINGERING_MAX);

/// A connection whose rest is read after its end.
pub(crate) struct LingeringStream {
    stream: Option<ClientStream>,
    /// Whether the client has ended its side, or the connection is broken.
    is_ended: bool,
}

impl LingeringStream {
    pub(crate) fn new(stream: ClientStream) -> LingeringStream {
        LingeringStream { stream: Some(stream), is_ended: false }
    }

    /// Writes what can be written at once.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.as_ref().map_or(Ok(0), |stream| stream.try_write(bytes))
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut ClientStream>> {
        let stream = self.get_mut().stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for LingeringStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take().filter(|_| !self.is_ended) else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(drop_rest(stream));
        }
    }
}

/// Ends our side, and reads what the client still sends.
async fn drop_rest(mut stream: ClientStream) {
    let Ok(_permit) = LINGERING.try_acquire() else { return };
    let read = async {
        // Ignored: the client has gone.
        let _ = stream.shutdown().await;
        let mut rest = vec![0; 16 << 10];
        while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    };
    // Ignored: a client that sends on gets a reset.
    let _ = timeout(LINGER_TIMEOUT, read).await;
}

impl AsyncRead for LingeringStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        let read = self.as_mut().stream()?.poll_read(context, buf);
        let has_read = buf.remaining() < room || room == 0;
        if matches!(&read, Poll::Ready(result) if result.is_err() || !has_read) {
            self.get_mut().is_ended = true;
        }
        read
    }
}

impl AsyncWrite for LingeringStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}
