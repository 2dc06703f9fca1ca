//! The options of `serve`, the address it listens on, and its report.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pgspate::writer::{WriterOptions, WriterReport};
use serde::Serialize;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Default for ListenAddress {
    fn default() -> ListenAddress {
        ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 8480)))
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ListenAddress, &'static str> {
        let expected = "expected ADDRESS:PORT, such as 127.0.0.1:8480, or unix:/path";
        match text.strip_prefix("unix:") {
            Some("") => Err(expected),
            Some(path) => Ok(ListenAddress::Unix(path.into())),
            None => {
                let text = match text.strip_prefix("localhost:") {
                    Some(port) => format!("127.0.0.1:{port}"),
                    None => text.to_owned(),
                };
                text.parse().map(ListenAddress::Tcp).map_err(|_| expected)
            }
        }
    }
}

/// The files of TLS, in PEM.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// The server's certificate, and the certificates between it and its authority.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities of client certificates. With them, each client must have a certificate.
    pub client_authority: Option<PathBuf>,
}

/// The largest limit of a body's size. The records of a body are found by offsets of 32 bits.
pub const BODY_BYTES_MAX: usize = u32::MAX as usize;

/// What each client may use.
#[derive(Debug, Clone)]
pub struct HttpLimits {
    /// The most connections. Further connections are closed, without TLS after status 503.
    pub connections: usize,
    /// The most bytes of a body.
    pub body_bytes: usize,
    /// The most bytes of bodies that are being read or written.
    pub queue_bytes: usize,
    /// How long the head of a request, and how long its body may take. A connection without a
    /// request is closed after this time.
    pub request_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections: 2000,
            body_bytes: 16 << 20,
            queue_bytes: 64 << 20,
            request_timeout: Duration::from_secs(60),
        }
    }
}

/// How records are served.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The tables that clients may write into, as SQL names them.
    pub tables: Vec<String>,
    /// Where to listen.
    pub listen: ListenAddress,
    /// The file with the tokens, one of which each client must send.
    pub tokens: Option<PathBuf>,
    /// The files of TLS. Without them, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// The limits of clients.
    pub limits: HttpLimits,
    /// How the writer works.
    pub writer: WriterOptions,
}

/// What was served.
#[derive(Debug, Clone, Serialize)]
pub struct ServeReport {
    /// The address.
    pub address: String,
    /// How long records were served, in seconds.
    pub seconds: f64,
    /// Accepted connections.
    pub connections: u64,
    /// Connections that were closed because there were too many.
    pub refused_connections: u64,
    /// Answered requests.
    pub requests: u64,
    /// Answered requests by status.
    pub statuses: std::collections::BTreeMap<u16, u64>,
    /// The tables.
    pub tables: Vec<TableCounts>,
    /// What the writer has done.
    pub writer: WriterReport,
}

/// What was written into a table.
#[derive(Debug, Clone, Serialize)]
pub struct TableCounts {
    /// Schema and name.
    pub table: String,
    /// Requests with records.
    pub requests: u64,
    /// Written rows.
    pub rows: u64,
    /// Records that were refused. A refused request of several records counts once.
    pub refused: u64,
}
