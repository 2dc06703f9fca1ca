//! A session that speaks the replication protocol, which tokio-postgres does not.
//!
//! It is opened beside another session and goes the same way: the server, its address, the kind of
//! encryption and the role are those that were found there.

mod login;
mod wire;

use std::time::Duration;

use bytes::{BufMut, Bytes};
use postgres_protocol::message::frontend;

use super::attempt::at_address;
use super::connection::Connection;
use super::dsn::Dsn;
use super::guard::{Guarded, StallGuard};
use super::socket::Address;
use super::tap::Traffic;
use crate::{Error, ErrorKind, Result, search_path};
use wire::{Wire, lost, refusal, unsendable};

/// How long a farewell may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session for replication. Dropping it closes the socket.
pub struct Walsender {
    wire: Wire,
    place: String,
    is_tcp: bool,
    /// Watches the session as long as it lasts.
    _guard: Option<Guarded>,
}

/// A row of an answer: texts and NULLs.
pub(crate) type Row = Vec<Option<String>>;

impl Dsn {
    /// Opens a session for logical replication with the server of `beside`, to which these
    /// parameters have led.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] where the server cannot be reached any more or refuses, with its
    /// words.
    pub async fn walsender(
        &self,
        beside: &Connection,
        application_name: &str,
    ) -> Result<Walsender> {
        let place = beside.place().to_owned();
        let (route, tls) = beside.way();
        let is_it =
            |host: &&super::host::Host| at_address(host, &route.address).to_string() == place;
        let Some(host) = self.hosts.iter().find(is_it) else {
            return Err(Error::new(ErrorKind::Bug, "a connection to none of its servers"));
        };
        let traffic = Traffic::default();
        let opened = async {
            let (mut wire, end_point) = login::open(self, (route, &traffic), tls).await?;
            login::log_in(&mut wire, self, host, end_point, application_name).await?;
            query(&mut wire, &search_path::pin()).await?;
            Ok(wire)
        };
        let opened = match self.silence_max() {
            None => opened.await,
            Some(limit) => tokio::time::timeout(limit, opened)
                .await
                .unwrap_or_else(|_| Err(lost(format!("no answer within {} s", limit.as_secs())))),
        };
        match opened {
            Ok(wire) => {
                let is_tcp = !matches!(route.address, Address::Unix(_));
                let guard = StallGuard::start(self, host, route, &traffic);
                if let Some(guard) = &guard {
                    guard.identify(beside.backend_of(&traffic));
                }
                Ok(Walsender { wire, place, is_tcp, _guard: guard })
            }
            Err(cause) => {
                let message = format!("could not connect to {place} for replication");
                Err(wrapped(cause, message))
            }
        }
    }
}

impl Walsender {
    /// Which server this is, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Not over a Unix socket.
    pub fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    /// Runs a command and gives the rows of its answer. `what` completes "could not".
    pub async fn command(&mut self, sql: &str, what: &str) -> Result<Vec<Row>> {
        let answer = query(&mut self.wire, sql).await;
        answer.map_err(|cause| wrapped(cause, format!("could not {what}")))
    }

    /// Starts a command that copies both ways. `what` completes "could not".
    pub async fn start(&mut self, sql: &str, what: &str) -> Result<()> {
        let started = async {
            frontend::query(sql, &mut self.wire.output).map_err(unsendable)?;
            self.wire.flush().await?;
            let message = self.wire.receive().await?;
            match message.tag {
                b'W' => Ok(()),
                b'E' => Err(refusal(&message.body)),
                _ => Err(lost("the server does not speak the replication protocol")),
            }
        };
        started.await.map_err(|cause| wrapped(cause, format!("could not {what}")))
    }

    /// The next piece of what is copied; none at its end. It may be given up and asked again.
    pub async fn receive(&mut self) -> Result<Option<Bytes>> {
        let message = self.wire.receive().await;
        let message = message.map_err(|cause| self.broken(cause))?;
        match message.tag {
            b'd' => Ok(Some(message.body)),
            b'c' | b'C' | b'Z' => Ok(None),
            b'E' => Err(self.broken(refusal(&message.body))),
            _ => Err(self.broken(lost("the server does not speak the replication protocol"))),
        }
    }

    /// The next piece that has come already.
    pub fn received(&mut self) -> Result<Option<Bytes>> {
        while let Some(message) = self.wire.take().map_err(|cause| self.broken(cause))? {
            match message.tag {
                b'd' => return Ok(Some(message.body)),
                b'E' => return Err(self.broken(refusal(&message.body))),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Puts a piece of our own into what is to be sent.
    pub fn put(&mut self, piece: &[u8]) {
        let output = &mut self.wire.output;
        output.put_u8(b'd');
        output.put_u32(4 + piece.len() as u32);
        output.put_slice(piece);
    }

    /// Sends what was put. It may be given up and asked again.
    pub async fn flush(&mut self) -> Result<()> {
        let sent = self.wire.flush().await;
        sent.map_err(|cause| self.broken(cause))
    }

    /// Ends what is copied, and the session; when it returns the server has let go of its slot.
    pub async fn close(mut self) {
        frontend::copy_done(&mut self.wire.output);
        frontend::terminate(&mut self.wire.output);
        let ended = async {
            if self.wire.flush().await.is_ok() {
                // The socket is the last thing that the server closes.
                while self.wire.receive().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(PATIENCE, ended).await;
    }

    fn broken(&self, cause: Error) -> Error {
        wrapped(cause, format!("could not read changes from {}", self.place))
    }
}

/// Runs a command and returns the rows of its answer.
async fn query(wire: &mut Wire, sql: &str) -> Result<Vec<Row>> {
    frontend::query(sql, &mut wire.output).map_err(unsendable)?;
    wire.flush().await?;
    let (mut rows, mut refused) = (Vec::new(), None);
    loop {
        let message = wire.receive().await?;
        match message.tag {
            b'D' => rows.push(row(&message.body)?),
            b'E' => refused = Some(refusal(&message.body)),
            b'Z' => return refused.map_or(Ok(rows), Err),
            _ => {}
        }
    }
}

/// An error with what was being done; its kind, SQLSTATE and hint are the cause's.
fn wrapped(cause: Error, message: String) -> Error {
    Error::new(cause.kind(), message).because(cause)
}

/// The values of a row that came in answer to a simple query.
fn row(body: &[u8]) -> Result<Row> {
    let broken = || lost("the server sent a row that is cut off");
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
