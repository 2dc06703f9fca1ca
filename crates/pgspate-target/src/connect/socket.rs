//! Opens sockets to a server: one for a session, and one for each cancel request.
//!
//! All sockets of a session connect to the same address with the same options. TCP options are set
//! before connecting, so that they apply to the connection attempt too.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use super::dsn::SocketTimeouts;
use super::traffic::{ConnectionTraffic, Tap};

/// The requested send buffer of Unix sockets; the kernel may give less. Linux starts with 208 KiB,
/// and loads are 4 % faster with 4 MiB. TCP buffers grow by themselves, and a fixed size would stop
/// that.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// The address of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SocketTarget {
    /// A Unix socket. Paths of Linux's abstract sockets begin with a zero byte.
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// An address, and the timeouts of sockets that connect to it.
#[derive(Debug, Clone)]
pub(super) struct SocketRoute {
    pub(super) address: SocketTarget,
    pub(super) timeouts: SocketTimeouts,
}

impl SocketRoute {
    /// Opens a connected socket. Waits as long as the kernel does.
    pub(super) async fn open(&self) -> io::Result<Socket> {
        Ok(match &self.address {
            SocketTarget::Unix(path) => Socket::new(open_unix(path).await?),
            SocketTarget::Tcp(address) => Socket::new(open_tcp(*address, &self.timeouts).await?),
        })
    }
}

async fn open_unix(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    // An error is ignored: a smaller buffer works too, but is slower.
    let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
    Ok(stream)
}

async fn open_tcp(address: SocketAddr, timeouts: &SocketTimeouts) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_nodelay(true)?;
    if timeouts.keepalives {
        SockRef::from(&socket).set_tcp_keepalive(&keepalive(timeouts))?;
    }
    #[cfg(target_os = "linux")]
    if timeouts.tcp_user.is_some() {
        SockRef::from(&socket).set_tcp_user_timeout(timeouts.tcp_user)?;
    }
    socket.connect(address).await
}

/// Returns keepalive options. An unset number keeps the operating system's default.
fn keepalive(timeouts: &SocketTimeouts) -> TcpKeepalive {
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

/// A connected TCP or Unix socket.
pub(super) struct Socket {
    stream: Box<dyn SocketStream>,
    /// Follows the messages, unless they are encrypted.
    tap: Option<Tap>,
    /// Notes moved bytes, if the messages are encrypted.
    traffic: Option<ConnectionTraffic>,
}

/// A stream of bytes in both directions.
trait SocketStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl SocketStream for TcpStream {}
impl SocketStream for UnixStream {}

impl Socket {
    fn new(stream: impl SocketStream + 'static) -> Socket {
        Socket { stream: Box::new(stream), tap: None, traffic: None }
    }

    /// Returns this socket with a tap that follows its messages.
    pub(super) fn tapped(self, traffic: &ConnectionTraffic) -> Socket {
        Socket { tap: Some(Tap::new(traffic.clone())), ..self }
    }

    /// Removes and returns the tap, since the following bytes are encrypted.
    pub(super) fn take_tap(&mut self) -> Option<Tap> {
        let tap = self.tap.take();
        self.traffic = tap.as_ref().map(|tap| tap.traffic().clone());
        tap
    }

    /// Returns whether the connection was abandoned, so that writes are discarded.
    fn is_abandoned(&self) -> bool {
        self.tap.as_ref().is_some_and(Tap::is_abandoned)
    }

    /// Notes that encrypted bytes have moved.
    fn note_encrypted(&self, has_moved: bool) {
        if let (true, Some(traffic)) = (has_moved, &self.traffic) {
            traffic.note_move();
        }
    }

    fn note_write<'a>(
        &mut self,
        written: &Poll<io::Result<usize>>,
        bufs: impl IntoIterator<Item = &'a [u8]>,
    ) {
        match &mut self.tap {
            Some(tap) => tap.note_write(written, bufs),
            None => self.note_encrypted(matches!(written, Poll::Ready(Ok(1..)))),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Socket { stream, tap, .. } = &mut *self;
        if let Some(tap) = tap {
            return tap.poll_read(cx, buf, |cx, buf| Pin::new(stream).poll_read(cx, buf));
        }
        let before = buf.filled().len();
        let polled = Pin::new(stream).poll_read(cx, buf);
        self.note_encrypted(buf.filled().len() > before);
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match self.is_abandoned() {
            true => Poll::Ready(Ok(buf.len())),
            false => Pin::new(&mut self.stream).poll_write(cx, buf),
        };
        self.note_write(&written, [buf]);
        written
    }

    /// Writes several buffers at once. Otherwise each TLS record of 16 KiB would need its own
    /// system call.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match self.is_abandoned() {
            true => Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum())),
            false => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        };
        self.note_write(&written, bufs.iter().map(|buf| &**buf));
        written
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::super::{Dsn, Environment};
    use super::*;

    fn timeouts(text: &str) -> SocketTimeouts {
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        Dsn::resolve(Some(text), &env).unwrap().unwrap().timeouts
    }

    async fn opened(text: &str) -> TcpStream {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        open_tcp(listener.local_addr().unwrap(), &timeouts(text)).await.unwrap()
    }

    /// Returns idle time, interval and count of a socket.
    fn probes(socket: &SockRef<'_>) -> (Duration, Duration, u32) {
        let (idle, interval) = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
        (idle.unwrap(), interval.unwrap(), socket.tcp_keepalive_retries().unwrap())
    }

    #[tokio::test]
    async fn keepalives_are_set_unless_parameters_switch_them_off() {
        let new_socket = TcpSocket::new_v4().unwrap();
        let system_defaults = probes(&SockRef::from(&new_socket));
        let secs = Duration::from_secs;
        for (text, expected) in [
            ("host=a", (secs(30), secs(10), 3)),
            ("host=a keepalives=1 keepalives_idle=77", (secs(77), secs(10), 3)),
            ("host=a keepalives_interval=5 keepalives_count=9", (secs(30), secs(5), 9)),
            ("host=a keepalives_idle=0 keepalives_interval=0 keepalives_count=0", system_defaults),
        ] {
            let stream = opened(text).await;
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap(), "{text}");
            assert_eq!(probes(&socket), expected, "{text}");
        }
        let stream = opened("host=a keepalives=0 keepalives_idle=77").await;
        assert!(!SockRef::from(&stream).keepalive().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn tcp_user_timeout_is_only_set_on_request() {
        for (text, millis) in [
            ("host=a", 0),
            ("host=a tcp_user_timeout=1500", 1500),
            ("host=a tcp_user_timeout=0", 0),
        ] {
            let stream = opened(text).await;
            let set = SockRef::from(&stream).tcp_user_timeout().unwrap().unwrap_or_default();
            assert_eq!(set, Duration::from_millis(millis), "{text}");
        }
    }

    #[tokio::test]
    async fn unix_sockets_have_a_large_send_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".s.PGSQL.1");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (stream, plain) = (open_unix(&path).await.unwrap(), UnixStream::connect(&path).await);
        let sizes =
            [&stream, &plain.unwrap()].map(|socket| SockRef::from(socket).send_buffer_size());
        let [large, usual] = sizes.map(Result::unwrap);
        assert!(large > usual, "{large} {usual}");
        drop(listener);
        assert_eq!(open_unix(&path).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn abstract_sockets_are_opened() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let name = format!("pgspate-test-{}/.s.PGSQL.1", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
        open_unix(Path::new(&format!("\0{name}"))).await.unwrap();
        drop(listener.unwrap());
        open_unix(Path::new(&format!("\0{name}"))).await.unwrap_err();
    }
}
