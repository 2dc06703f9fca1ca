//! A session that uses the replication protocol, which tokio-postgres does not support.
//!
//! The session is opened in addition to an existing connection, and uses the same server, address,
//! encryption and role.

mod login;
mod wire;

use std::time::Duration;

use bytes::{BufMut, Bytes};
use postgres_protocol::message::frontend;

use super::attempt::at_address;
use super::connection::Connection;
use super::dsn::Dsn;
use super::guard::{GuardHandle, StallGuard};
use super::socket::SocketTarget;
use super::traffic::ConnectionTraffic;
use crate::{Error, ErrorKind, Result, search_path};
use wire::{MessageSocket, connect_error, server_refusal, zero_byte_error};

/// How long closing the session may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A session for replication. Dropping it closes the socket.
pub struct ReplicationSession {
    socket: MessageSocket,
    place: String,
    is_tcp: bool,
    /// Watches the session as long as it exists.
    _guard: Option<GuardHandle>,
}

/// A row of text values and NULLs.
pub(crate) type TextRow = Vec<Option<String>>;

impl Dsn {
    /// Opens a session for logical replication with the server of `connection`, which was opened
    /// with these parameters.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the server cannot be reached any more, [`ErrorKind::Server`] if
    /// the server refuses the session. [`ErrorKind::Usage`] if channel binding is required and not
    /// available.
    pub async fn open_replication_session(
        &self,
        connection: &Connection,
        application_name: &str,
    ) -> Result<ReplicationSession> {
        let place = connection.place().to_owned();
        let (route, tls) = connection.route_and_tls();
        let is_connected =
            |host: &&super::host::Host| at_address(host, &route.address).to_string() == place;
        let Some(host) = self.hosts.iter().find(is_connected) else {
            return Err(Error::new(
                ErrorKind::Bug,
                "the connection leads to none of the servers in its parameters",
            ));
        };
        let traffic = ConnectionTraffic::default();
        let opened = async {
            let (mut socket, channel_binding_hash) =
                login::open_socket(self, (route, &traffic), tls).await?;
            login::log_in(&mut socket, self, host, channel_binding_hash, application_name).await?;
            run_query(&mut socket, &search_path::pin_sql()).await?;
            Ok(socket)
        };
        let opened = match self.connect_limit() {
            None => opened.await,
            Some(limit) => tokio::time::timeout(limit, opened).await.unwrap_or_else(|_| {
                Err(connect_error(format!("no answer within {} s", limit.as_secs())))
            }),
        };
        match opened {
            Ok(socket) => {
                let is_tcp = !matches!(route.address, SocketTarget::Unix(_));
                let guard = StallGuard::start(self, host, route, &traffic);
                if let Some(guard) = &guard {
                    guard.identify(connection.backend_of(&traffic));
                }
                Ok(ReplicationSession { socket, place, is_tcp, _guard: guard })
            }
            Err(cause) => {
                let message = format!("could not connect to {place} for replication");
                Err(wrapped(cause, message))
            }
        }
    }
}

impl ReplicationSession {
    /// Returns which server this is, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns whether the session uses TCP, not a Unix socket.
    pub fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    /// Runs a command and returns the rows of its answer. `action` completes "could not".
    pub async fn command(&mut self, sql: &str, action: &str) -> Result<Vec<TextRow>> {
        let answer = run_query(&mut self.socket, sql).await;
        answer.map_err(|cause| wrapped(cause, format!("could not {action}")))
    }

    /// Starts a command that copies in both directions. `action` completes "could not".
    pub async fn start(&mut self, sql: &str, action: &str) -> Result<()> {
        let started = async {
            frontend::query(sql, &mut self.socket.output).map_err(zero_byte_error)?;
            self.socket.flush().await?;
            let message = self.socket.receive().await?;
            match message.tag {
                b'W' => Ok(()),
                b'E' => Err(server_refusal(&message.body)),
                _ => Err(connect_error("the server does not speak the replication protocol")),
            }
        };
        started.await.map_err(|cause| wrapped(cause, format!("could not {action}")))
    }

    /// Waits for the next piece of COPY data. Returns `None` at its end. May be cancelled and
    /// called again.
    pub async fn receive(&mut self) -> Result<Option<Bytes>> {
        let message = self.socket.receive().await;
        let message = message.map_err(|cause| self.stream_error(cause))?;
        match message.tag {
            b'd' => Ok(Some(message.body)),
            b'c' | b'C' | b'Z' => Ok(None),
            b'E' => Err(self.stream_error(server_refusal(&message.body))),
            _ => Err(self
                .stream_error(connect_error("the server does not speak the replication protocol"))),
        }
    }

    /// Returns the next piece of COPY data that has arrived already.
    pub fn take_received(&mut self) -> Result<Option<Bytes>> {
        while let Some(message) =
            self.socket.take_message().map_err(|cause| self.stream_error(cause))?
        {
            match message.tag {
                b'd' => return Ok(Some(message.body)),
                b'E' => return Err(self.stream_error(server_refusal(&message.body))),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Queues a piece of COPY data for sending.
    pub fn queue_copy_data(&mut self, piece: &[u8]) {
        let output = &mut self.socket.output;
        output.put_u8(b'd');
        output.put_u32(4 + piece.len() as u32);
        output.put_slice(piece);
    }

    /// Sends all queued data. May be cancelled and called again.
    pub async fn flush(&mut self) -> Result<()> {
        let sent = self.socket.flush().await;
        sent.map_err(|cause| self.stream_error(cause))
    }

    /// Ends the COPY and the session. Returns when the server has released the slot, or after a
    /// timeout.
    pub async fn close(mut self) {
        frontend::copy_done(&mut self.socket.output);
        frontend::terminate(&mut self.socket.output);
        let ended = async {
            if self.socket.flush().await.is_ok() {
                // The socket is the last thing that the server closes.
                while self.socket.receive().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended).await;
    }

    /// Wraps an error of the stream of changes.
    fn stream_error(&self, cause: Error) -> Error {
        wrapped(cause, format!("could not read changes from {}", self.place))
    }
}

/// Runs a command and returns the rows of its answer.
async fn run_query(socket: &mut MessageSocket, sql: &str) -> Result<Vec<TextRow>> {
    frontend::query(sql, &mut socket.output).map_err(zero_byte_error)?;
    socket.flush().await?;
    let (mut rows, mut refused) = (Vec::new(), None);
    loop {
        let message = socket.receive().await?;
        match message.tag {
            b'D' => rows.push(parse_row(&message.body)?),
            b'E' => refused = Some(server_refusal(&message.body)),
            b'Z' => return refused.map_or(Ok(rows), Err),
            _ => {}
        }
    }
}

/// Wraps `cause` in a message. Kind, SQLSTATE and hint of `cause` are kept.
fn wrapped(cause: Error, message: String) -> Error {
    Error::new(cause.kind(), message).because(cause)
}

/// Parses a row of the answer to a simple query.
fn parse_row(body: &[u8]) -> Result<TextRow> {
    let broken = || connect_error("the server sent an incomplete row");
    let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(broken)?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (len, after) = rest.split_first_chunk::<4>().ok_or_else(broken)?;
        rest = after;
        let Ok(len) = usize::try_from(i32::from_be_bytes(*len)) else {
            row.push(None);
            continue;
        };
        let (value, after) = rest.split_at_checked(len).ok_or_else(broken)?;
        row.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Ok(row)
}
