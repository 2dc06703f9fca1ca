//! The socket on which clients connect.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use pgspate::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};

use crate::options::ListenAddress;

/// How many connections the system keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// A socket on which clients connect.
pub(crate) enum Front {
    Tcp(TcpListener),
    Unix(UnixListener, #[allow(dead_code, reason = "its drop removes the file")] SocketFile),
}

/// The file of a Unix socket, which is removed in the end.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode. A file that another process has put in its place is kept.
    identity: (u64, u64),
}

/// A connection of a client.
pub(crate) enum ClientStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Front {
    /// Listens. `is_open` says that clients need neither token nor certificate: then only the
    /// user's own programs may connect to a Unix socket.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the address is in use or not valid.
    pub(crate) async fn listen(address: &ListenAddress, is_open: bool) -> Result<Front> {
        let listening = match address {
            ListenAddress::Tcp(address) => TcpListener::bind(address).await.map(Front::Tcp),
            ListenAddress::Unix(path) => listen_on_file(path, is_open).await,
        };
        listening.map_err(|error| {
            let shown = match address {
                ListenAddress::Tcp(address) => address.to_string(),
                ListenAddress::Unix(path) => format!("socket \"{}\"", path.display()),
            };
            Error::new(ErrorKind::Usage, format!("could not listen on {shown}"))
                .hint("Name another address with `--listen`.")
                .because(error)
        })
    }

    /// Returns the address that the system has given, if it is a TCP address.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Front::Tcp(listener) => listener.local_addr().ok(),
            Front::Unix(..) => None,
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<ClientStream> {
        match self {
            Front::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                // An answer is one small write, which must not wait for another one.
                let _ = stream.set_nodelay(true);
                Ok(ClientStream::Tcp(stream))
            }
            Front::Unix(listener, _) => Ok(ClientStream::Unix(listener.accept().await?.0)),
        }
    }
}

async fn listen_on_file(path: &Path, is_open: bool) -> io::Result<Front> {
    if let Ok(facts) = fs::symlink_metadata(path) {
        if !facts.file_type().is_socket() {
            return Err(io::Error::other("the file exists, and is not a socket"));
        }
        match UnixStream::connect(path).await {
            Ok(_) => return Err(io::Error::other("another process listens on it")),
            // Left by a process that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            Err(error) => return Err(error),
        }
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    // Before the socket listens, so that no other user connects in between.
    let mode = if is_open { 0o600 } else { 0o666 };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    let facts = fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), identity: (facts.dev(), facts.ino()) };
    Ok(Front::Unix(socket.listen(BACKLOG)?, file))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|facts| (facts.dev(), facts.ino()) == self.identity);
        if is_ours {
            // Ignored: the next start replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl ClientStream {
    /// Writes what can be written at once.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Tcp(stream) => stream.try_write(bytes),
            ClientStream::Unix(stream) => stream.try_write(bytes),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_read(context, buf),
            ClientStream::Unix(stream) => Pin::new(stream).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
