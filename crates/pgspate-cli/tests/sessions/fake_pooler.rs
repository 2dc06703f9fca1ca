//! A small connection pooler between the command and the server.
//!
//! Each client logs in over a new connection to the server. Then the connection goes into the pool,
//! or the client keeps the connection, which an earlier client has used.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::config::Host;

const SSL_REQUEST: i32 = 80_877_103;
const CANCEL_REQUEST: i32 = 80_877_102;

/// Which connection to the server a client's transaction uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The connection that the client logged in with.
    Session,
    /// The connection that was used last, as in PgBouncer.
    LastUsed,
    /// The connection that has been free for the longest time.
    InTurn,
}

/// A pooler on loopback. Its connections are closed when the value is dropped.
pub(crate) struct FakePooler {
    runtime: Option<Runtime>,
    address: SocketAddr,
    config: tokio_postgres::Config,
}

/// The free connections, and the settings that all clients share.
struct Pool {
    pooling: Pooling,
    config: tokio_postgres::Config,
    free: Mutex<VecDeque<PooledBackend>>,
    is_free: Notify,
    clients: Mutex<i32>,
}

/// A connection to the server, with a channel of the messages that the server sends.
struct PooledBackend {
    write: Box<dyn AsyncWrite + Send + Unpin>,
    read: mpsc::Receiver<Vec<u8>>,
}

impl FakePooler {
    /// Starts a pooler for the server that `dsn` names.
    pub(crate) fn start(dsn: &str, pooling: Pooling) -> FakePooler {
        let config: tokio_postgres::Config = dsn.parse().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let pool = Arc::new(Pool {
            pooling,
            config: config.clone(),
            free: Mutex::default(),
            is_free: Notify::new(),
            clients: Mutex::new(0),
        });
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let pool = Arc::clone(&pool);
                // The command notices a failed connection, so the error is not needed here.
                tokio::spawn(async move { drop(pool.serve(client).await) });
            }
        });
        FakePooler { runtime: Some(runtime), address, config }
    }

    /// Returns a connection string for the database through the pooler.
    pub(crate) fn dsn(&self) -> String {
        let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
        let mut dsn = format!("host={} port={}", self.address.ip(), self.address.port());
        let password = self.config.get_password().map(String::from_utf8_lossy);
        for (key, value) in [
            ("user", self.config.get_user()),
            ("dbname", self.config.get_dbname()),
            ("password", password.as_deref()),
        ] {
            if let Some(value) = value {
                let _ = write!(dsn, " {key}={}", quote(value));
            }
        }
        dsn
    }
}

impl Drop for FakePooler {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Pool {
    /// Serves a client until the connection is closed.
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let startup = loop {
            let startup = read_startup(&mut client).await?;
            match i32::from_be_bytes(startup[4..8].try_into().unwrap()) {
                SSL_REQUEST => client.write_all(b"N").await?,
                CANCEL_REQUEST => return Ok(()),
                _ => break startup,
            }
        };
        let mut held = Some(self.log_in(&startup, &mut client).await?);
        if self.pooling != Pooling::Session {
            self.free.lock().unwrap().push_front(held.take().unwrap());
            self.is_free.notify_one();
        }
        let (read, mut to_client) = client.into_split();
        let mut from_client = message_channel(read);
        let mut answers_due = 0;
        loop {
            tokio::select! {
                message = from_client.recv() => {
                    let Some(message) = message.filter(|it| it[0] != b'X') else { break };
                    answers_due += usize::from(b"QS".contains(&message[0]));
                    if held.is_none() {
                        held = Some(self.take().await);
                    }
                    held.as_mut().unwrap().write.write_all(&message).await?;
                }
                message = async { held.as_mut().unwrap().read.recv().await }, if held.is_some() => {
                    let Some(message) = message else { break };
                    to_client.write_all(&message).await?;
                    answers_due -= usize::from(message[0] == b'Z');
                    let is_over = message[0] == b'Z' && message[5] == b'I' && answers_due == 0;
                    if is_over && self.pooling != Pooling::Session {
                        self.free.lock().unwrap().push_back(held.take().unwrap());
                        self.is_free.notify_one();
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a free connection. Waits if no connection is free.
    async fn take(&self) -> PooledBackend {
        loop {
            let server = {
                let mut free = self.free.lock().unwrap();
                match self.pooling {
                    Pooling::InTurn => free.pop_front(),
                    _ => free.pop_back(),
                }
            };
            match server {
                Some(server) => return server,
                None => self.is_free.notified().await,
            }
        }
    }

    /// Logs a client in. The client gets a cancel key of the pooler instead of the server's.
    async fn log_in(&self, startup: &[u8], client: &mut TcpStream) -> io::Result<PooledBackend> {
        let (mut read, mut write) = self.connect().await?;
        write.write_all(startup).await?;
        loop {
            let mut message = read_message(&mut read).await?;
            if message[0] == b'K' {
                let mut clients = self.clients.lock().unwrap();
                *clients += 1;
                message[5..9].copy_from_slice(&(1_000_000_000 + *clients).to_be_bytes());
            }
            if message[0] == b'Z' && self.pooling == Pooling::Session {
                use_before(&mut read, &mut write).await?;
            }
            client.write_all(&message).await?;
            match message[0] {
                b'R' if !matches!(message[8], 0 | 12) => {
                    write.write_all(&self::read_message(client).await?).await?;
                }
                b'Z' => return Ok(PooledBackend { write, read: message_channel(read) }),
                b'E' => return Err(io::Error::other("refused")),
                _ => {}
            }
        }
    }

    async fn connect(
        &self,
    ) -> io::Result<(Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>)> {
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        Ok(match &self.config.get_hosts()[0] {
            Host::Tcp(name) => {
                let (read, write) = TcpStream::connect((name.as_str(), port)).await?.into_split();
                (Box::new(read), Box::new(write))
            }
            Host::Unix(folder) => {
                let path: PathBuf = folder.join(format!(".s.PGSQL.{port}"));
                let (read, write) = UnixStream::connect(path).await?.into_split();
                (Box::new(read), Box::new(write))
            }
        })
    }
}

/// Uses a connection as an earlier client of a pooler would: with a temporary table.
async fn use_before(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    for sql in ["create temporary table earlier as select 1 as n", "discard all"] {
        let length = i32::try_from(sql.len() + 5).unwrap();
        write.write_all(&[b"Q", &length.to_be_bytes()[..], sql.as_bytes(), b"\0"].concat()).await?;
        while read_message(read).await?[0] != b'Z' {}
    }
    Ok(())
}

/// Reads a packet without a type byte, with which a connection begins.
async fn read_startup(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = from.read_i32().await?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.resize(usize::try_from(length).unwrap(), 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(bytes)
}

/// Reads a message.
async fn read_message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut bytes = vec![from.read_u8().await?];
    let length = from.read_i32().await?;
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.resize(usize::try_from(length).unwrap() + 1, 0);
    from.read_exact(&mut bytes[5..]).await?;
    Ok(bytes)
}

/// Returns a channel of the received messages. The channel ends when the other side closes the
/// connection.
fn message_channel(mut from: impl AsyncRead + Send + Unpin + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (to, all) = mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok(message) = read_message(&mut from).await {
            if to.send(message).await.is_err() {
                break;
            }
        }
    });
    all
}
