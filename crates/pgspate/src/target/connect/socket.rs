//! Opening sockets to a server: one for a session, one more for each request to cancel.
//!
//! Both go to the same address with the same options, which are set before the kernel connects, so
//! that they count for connecting too.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use super::dsn::Timeouts;

/// The send buffer asked for where the socket is a file; the kernel gives what it allows. Linux
/// starts with 208 KiB, and loads are 4 % faster with 4 MiB. TCP is left alone: its buffers grow
/// to what the connection can use, and a size that is set ends that.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// Where a socket leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// A Unix socket; Linux's abstract ones begin with a zero byte.
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// An address and how to treat sockets that lead there.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) address: Address,
    pub(super) timeouts: Timeouts,
}

impl Route {
    /// A connected socket. It waits as long as the kernel does.
    pub(super) async fn open(&self) -> io::Result<Socket> {
        Ok(match &self.address {
            Address::Unix(path) => Socket(Box::new(open_unix(path).await?)),
            Address::Tcp(address) => Socket(Box::new(open_tcp(*address, &self.timeouts).await?)),
        })
    }
}

async fn open_unix(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    // A smaller buffer works as well, only slower.
    let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
    Ok(stream)
}

async fn open_tcp(address: SocketAddr, timeouts: &Timeouts) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_nodelay(true)?;
    if timeouts.keepalives {
        SockRef::from(&socket).set_tcp_keepalive(&keepalive(timeouts))?;
    }
    #[cfg(target_os = "linux")]
    SockRef::from(&socket).set_tcp_user_timeout(timeouts.tcp_user)?;
    socket.connect(address).await
}

/// What is none stays as the operating system has it.
fn keepalive(timeouts: &Timeouts) -> TcpKeepalive {
    let mut keepalive = TcpKeepalive::new();
    if let Some(idle) = timeouts.keepalives_idle {
        keepalive = keepalive.with_time(idle);
    }
    if let Some(interval) = timeouts.keepalives_interval {
        keepalive = keepalive.with_interval(interval);
    }
    if let Some(count) = timeouts.keepalives_count {
        keepalive = keepalive.with_retries(count);
    }
    keepalive
}

/// A connected socket of either family.
pub(super) struct Socket(Box<dyn Stream>);

/// Bytes both ways.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    /// Without this each record of TLS, 16 KiB, would be a call to the kernel of its own.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
