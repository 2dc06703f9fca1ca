//! The stream of a slot: reads committed events, and confirms them to the server.
//!
//! A task reads from the server and answers it, also while the caller is busy, so that the server
//! does not end the session. At most `WAITING_PIECES_MAX` pieces wait for the caller. Then the
//! task stops reading, and the server waits. Only positions passed to [`SlotStream::confirm`] are
//! confirmed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_postgres::error::SqlState;

use super::EPOCH_SECS;
use super::message_bytes::MessageBytes;
use super::pgoutput::Pgoutput;
use crate::{Error, ErrorKind, Result};
use pgspate_events::decode::{Decode, TargetTypes};
use pgspate_events::{ChangeEvent, Lsn, SourceTable};
use pgspate_target::connect::{Connection, Dsn, ReplicationSession};
use pgspate_target::quote_ident;

/// The longest interval between two status messages to the server.
const STATUS_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// The number of status messages within `wal_sender_timeout`. A side that has received nothing for
/// `wal_sender_timeout` ends the session.
const STATUSES_PER_TIMEOUT: u32 = 4;
/// How long closing the session may wait for the server.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
/// The size at which a piece of messages is complete.
const PIECE_BYTES: usize = 1 << 20;
/// Pacing of reads. The server sends each change by itself, and waking up for each change costs
/// both sides more than the change. So after `QUICK_READS` reads in a row, each within
/// `QUICK_READ_TIME` of the last read, the task waits for `GATHER_TIME` before each read. Waiting
/// stops when a read brings at most `FEW_MESSAGES`. A read of `FULL_READ_BYTES` with fewer than
/// `MANY_MESSAGES` is followed by the next read at once, because more data is waiting. A Unix
/// socket holds only a few hundred changes before the server waits, so waiting gains nothing there.
const QUICK_READS: u32 = 32;
const QUICK_READ_TIME: Duration = Duration::from_micros(300);
const GATHER_TIME: Duration = Duration::from_millis(1);
const FEW_MESSAGES: usize = 8;
const FULL_READ_BYTES: usize = 32 << 10;
const MANY_MESSAGES: usize = 250;
/// The hint for a publication that was created after the changes that the slot has to send.
const PUBLICATION_TOO_NEW: &str = "The publication exists now, but did not exist when these \
                                   changes were made. Drop the slot and create it again. The \
                                   new slot cannot send changes that were committed before.";
/// The most pieces that wait for the caller.
const WAITING_PIECES_MAX: usize = 4;

/// A piece of a stream's events.
#[derive(Debug, Default)]
pub struct ReceivedEvents {
    /// The events, in the order of their commits. A transaction may span several pieces; its last
    /// event is marked.
    pub events: Vec<ChangeEvent>,
    /// The position that may be confirmed once all events so far are committed on the target. The
    /// position is the end of the last whole transaction, or a later place up to which the log has
    /// no changes of the publication.
    pub end: Option<Lsn>,
    /// The commit time of the last whole transaction, by the server's clock.
    pub committed: Option<SystemTime>,
}

/// Tells a stream's server which events are committed on the target. Any thread may hold a
/// confirmer.
#[derive(Debug, Clone)]
pub(crate) struct Confirmer(watch::Sender<StreamOrders>);

impl Confirmer {
    /// Confirms all events up to `end`, as [`SlotStream::confirm`] does.
    pub(crate) fn confirm(&self, end: Lsn) {
        self.0.send_if_modified(|orders| {
            let is_further = end > orders.confirmed;
            orders.confirmed = orders.confirmed.max(end);
            is_further
        });
    }
}

/// A slot's stream. Dropping it closes the connection at once. [`SlotStream::close`] sends the last
/// confirmed position before that.
#[derive(Debug)]
pub struct SlotStream {
    pieces: mpsc::Receiver<Result<ReceivedEvents>>,
    confirmer: Confirmer,
    task: JoinHandle<()>,
}

/// The caller's orders to the task that reads the stream.
#[derive(Debug, Clone, Copy)]
struct StreamOrders {
    confirmed: Lsn,
    close: bool,
}

impl SlotStream {
    /// Starts to read a slot's changes of a publication. The server skips transactions that end at
    /// or before `from`, the position up to which the caller has received them. With `from` zero
    /// the server sends all transactions that are not confirmed. `confirmed` is confirmed to the
    /// server at once. Must run inside a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] or [`ErrorKind::Server`] if the slot or the publication does not
    /// exist, the role may not replicate, or another session reads the slot.
    pub async fn start(
        dsn: &Dsn,
        slot: &str,
        publication: &str,
        from: Lsn,
        confirmed: Lsn,
    ) -> Result<SlotStream> {
        let connection = dsn.connect("pgspate").await?;
        check_publication(&connection, publication).await?;
        let wal_sender_timeout = read_wal_sender_timeout(&connection).await?;
        let mut wire = dsn.open_replication_session(&connection, "pgspate").await?;
        connection.close().await;
        // The settings of a subscriber: every server reads such values in the same way.
        let settings = "set search_path = ''; \
                        set datestyle = 'ISO'; set intervalstyle = 'postgres'; \
                        set extra_float_digits = 3; set bytea_output = 'hex'";
        wire.command(settings, "prepare the session for replication").await?;
        let names = quote_ident(publication).replace('\'', "''");
        let start = format!(
            "START_REPLICATION SLOT {} LOGICAL {from} \
             (proto_version '1', publication_names '{names}')",
            quote_ident(slot)
        );
        wire.start(&start, &format!("read replication slot \"{slot}\"")).await?;
        let (pieces, received) = mpsc::channel(WAITING_PIECES_MAX);
        let (confirmer, orders) = watch::channel(StreamOrders { confirmed, close: false });
        let driver = StreamDriver {
            wire,
            decoder: Pgoutput::new(),
            orders,
            received_upto: from,
            wal_sender_timeout,
        };
        let task = tokio::spawn(driver.run(pieces));
        Ok(SlotStream { pieces: received, confirmer: Confirmer(confirmer), task })
    }

    /// Waits for the next piece: events, or a position before which there are no more events.
    /// Cancel safe: if the future is dropped, nothing is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the connection is lost: start again from the position that is
    /// committed on the target. After an error the stream has ended.
    pub async fn next(&mut self) -> Result<ReceivedEvents> {
        match self.pieces.recv().await {
            Some(piece) => piece,
            None => Err(Error::new(ErrorKind::Connect, "the stream of changes has ended")),
        }
    }

    /// Confirms to the server that all events up to `end` are committed on the target and will
    /// never be read again. The position is sent at once and repeated with each status message.
    pub fn confirm(&self, end: Lsn) {
        self.confirmer.confirm(end);
    }

    /// Returns a handle that confirms positions.
    pub(crate) fn confirmer(&self) -> Confirmer {
        self.confirmer.clone()
    }

    /// Sends the last confirmed position and ends the session, so that the slot is free.
    pub async fn close(mut self) {
        self.confirmer.0.send_modify(|orders| orders.close = true);
        // The caller does not want the waiting pieces any more.
        self.pieces.close();
        let _ = timeout(CLOSE_TIMEOUT, &mut self.task).await;
    }
}

/// Checks that the publication exists. Without this check, the stream would fail only at its first
/// change.
pub(crate) async fn check_publication(connection: &Connection, publication: &str) -> Result<()> {
    let known = connection
        .client
        .query("select 1 from pg_catalog.pg_publication where pubname = $1", &[&publication])
        .await
        .map_err(|error| connection.explain("could not look for the publication", error))?;
    if !known.is_empty() {
        return Ok(());
    }
    Err(no_publication_error(publication, format!("publication \"{publication}\" does not exist")))
}

pub(super) fn no_publication_error(name: &str, message: String) -> Error {
    Error::new(ErrorKind::Server, message).hint(format!(
        "Create it on the source: `create publication {} for all tables`, or for the tables to \
         read.",
        quote_ident(name)
    ))
}

/// Reads the server's `wal_sender_timeout`, which pgspate observes, too. Returns `None` if the
/// timeout is off.
async fn read_wal_sender_timeout(connection: &Connection) -> Result<Option<Duration>> {
    let sql = "select setting::pg_catalog.int8 from pg_catalog.pg_settings \
               where name = 'wal_sender_timeout'";
    let rows = connection.client.query(sql, &[]).await;
    let rows =
        rows.map_err(|error| connection.explain("could not read wal_sender_timeout", error))?;
    let millis = rows.first().map_or(0, |row| row.get::<_, i64>(0));
    let millis = u64::try_from(millis).ok().filter(|millis| *millis > 0);
    Ok(millis.map(Duration::from_millis))
}

impl Drop for SlotStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task that reads the stream and answers the server.
struct StreamDriver {
    wire: ReplicationSession,
    decoder: Pgoutput,
    orders: watch::Receiver<StreamOrders>,
    /// The position up to which the log was received.
    received_upto: Lsn,
    /// The server's `wal_sender_timeout`.
    wal_sender_timeout: Option<Duration>,
}

/// Tracks how long the server has sent nothing.
struct SilenceWatch {
    /// When the last message came.
    last_message: Instant,
    /// Whether an answer was requested since then.
    has_asked: bool,
}

impl SilenceWatch {
    fn new() -> SilenceWatch {
        SilenceWatch { last_message: Instant::now(), has_asked: false }
    }
}

/// Tracks how densely changes come, to decide whether the next read waits.
struct ReadPacing {
    last_read: Instant,
    /// The number of quick reads in a row, up to `QUICK_READS`.
    quick_reads: u32,
    /// Whether the last read was full, so that more data is waiting.
    has_more: bool,
}

impl ReadPacing {
    fn new() -> ReadPacing {
        ReadPacing { last_read: Instant::now(), quick_reads: 0, has_more: false }
    }

    fn is_dense(&self) -> bool {
        self.quick_reads >= QUICK_READS
    }

    /// Returns whether the next read waits, so that changes gather.
    fn is_gathering(&self) -> bool {
        self.is_dense() && !self.has_more
    }

    /// Notes a read of a number of messages and bytes.
    fn note(&mut self, messages: usize, bytes: usize, now: Instant) {
        let is_quick = match self.is_dense() {
            // The rest of a large read may have few messages.
            true => messages > FEW_MESSAGES || self.has_more,
            false => now - self.last_read < QUICK_READ_TIME,
        };
        self.quick_reads = if is_quick { (self.quick_reads + 1).min(QUICK_READS) } else { 0 };
        self.has_more = bytes >= FULL_READ_BYTES && messages < MANY_MESSAGES;
        self.last_read = now;
    }
}

/// A piece that is being collected.
#[derive(Default)]
struct EventPiece {
    received: ReceivedEvents,
    bytes: usize,
}

impl StreamDriver {
    /// Reads the stream to its end. Sends the error that ended the stream to the caller.
    async fn run(mut self, pieces: mpsc::Sender<Result<ReceivedEvents>>) {
        match self.drive(&pieces).await {
            Ok(()) => self.wire.close().await,
            Err(error) => {
                // The publication exists: it was checked before the stream began.
                let is_too_new = error.sqlstate() == Some(&SqlState::UNDEFINED_OBJECT);
                let error = if is_too_new { error.hint(PUBLICATION_TOO_NEW) } else { error };
                let _ = pieces.send(Err(error)).await;
            }
        }
    }

    /// Reads and answers until the caller closes the stream.
    async fn drive(&mut self, pieces: &mpsc::Sender<Result<ReceivedEvents>>) -> Result<()> {
        // The server ends the session if it receives no status messages.
        let status = self
            .wal_sender_timeout
            .map_or(STATUS_INTERVAL_MAX, |timeout| timeout / STATUSES_PER_TIMEOUT);
        let mut status = interval(status.min(STATUS_INTERVAL_MAX));
        let (mut silence_watch, mut pacing) = (SilenceWatch::new(), ReadPacing::new());
        status.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut piece = EventPiece::default();
        loop {
            self.wire.flush().await?;
            let has_some = !piece.received.events.is_empty() || piece.received.end.is_some();
            // The decoder may hold back a large row, so a full piece without events keeps
            // collecting.
            let has_room = piece.bytes < PIECE_BYTES || !has_some;
            tokio::select! {
                permit = pieces.reserve(), if has_some => match permit {
                    Ok(permit) => permit.send(Ok(std::mem::take(&mut piece).received)),
                    // The caller has closed the stream, or is about to abort the task.
                    Err(_) => {
                        self.put_status(false);
                        return Ok(());
                    }
                },
                message = receive(&mut self.wire, &pacing), if has_room => match message? {
                    Some(message) => {
                        silence_watch = SilenceWatch::new();
                        let before = piece.bytes;
                        let messages = self.take_all(message, &mut piece)?;
                        pacing.note(messages, piece.bytes - before, Instant::now());
                    }
                    None => {
                        let place = self.wire.place();
                        let message = format!("{place} ended the stream of changes");
                        return Err(Error::new(ErrorKind::Connect, message));
                    }
                },
                // Without room nothing is read, so the server's silence means nothing.
                _ = status.tick() => match has_room {
                    true => self.check_silence(&mut silence_watch)?,
                    false => {
                        silence_watch = SilenceWatch::new();
                        self.put_status(false);
                    }
                },
                changed = self.orders.changed() => {
                    self.put_status(false);
                    if changed.is_err() || self.orders.borrow().close {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes a message and all messages that were received with this message. Returns the number
    /// of messages.
    fn take_all(&mut self, message: Bytes, piece: &mut EventPiece) -> Result<usize> {
        self.take(message, piece)?;
        let mut taken = 1;
        while piece.bytes < PIECE_BYTES
            && let Some(next) = self.wire.take_received()?
        {
            self.take(next, piece)?;
            taken += 1;
        }
        Ok(taken)
    }

    /// Decodes one message of the server into the piece.
    fn take(&mut self, message: Bytes, piece: &mut EventPiece) -> Result<()> {
        let mut read = MessageBytes::new(&message);
        match read.byte()? {
            // XLogData: a message of the output plugin.
            b'w' => {
                let start = Lsn(read.u64()?);
                read.u64()?;
                read.u64()?;
                let record = read.rest();
                self.received_upto = self.received_upto.max(start);
                piece.bytes += message.len();
                self.decoder.decode(record, &NoTargetTypes, &mut piece.received.events)?;
                if let Some((end, committed)) = self.decoder.take_end() {
                    self.received_upto = self.received_upto.max(end);
                    piece.received.end = Some(end);
                    piece.received.committed = Some(committed);
                }
            }
            // Keepalive: the end of the log, and whether the server requests an answer.
            b'k' => {
                let end = Lsn(read.u64()?);
                read.u64()?;
                self.received_upto = self.received_upto.max(end);
                // Between transactions, everything that was committed before `end` has been sent.
                if !self.decoder.is_inside() && piece.received.end.is_none_or(|own| own < end) {
                    piece.received.end = Some(end);
                }
                if read.byte()? != 0 {
                    self.put_status(false);
                }
            }
            _ => return Err(Error::new(ErrorKind::Connect, "unknown message of a walsender")),
        }
        Ok(())
    }

    /// Sends a status message. If the server has been silent for half its timeout, an answer is
    /// requested.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the server has not answered within the timeout.
    fn check_silence(&mut self, silence_watch: &mut SilenceWatch) -> Result<()> {
        let silent = silence_watch.last_message.elapsed();
        let asks = self.wal_sender_timeout.is_some_and(|limit| silent >= limit / 2)
            && !silence_watch.has_asked;
        if silence_watch.has_asked && self.wal_sender_timeout.is_some_and(|limit| silent >= limit) {
            let (place, seconds) = (self.wire.place(), silent.as_secs());
            let message = format!("{place} sent nothing for {seconds} s");
            return Err(Error::new(ErrorKind::Connect, message));
        }
        silence_watch.has_asked |= asks;
        self.put_status(asks);
        Ok(())
    }

    /// Queues a status message: the received and the confirmed position. `asks` requests an answer
    /// from the server.
    fn put_status(&mut self, asks: bool) {
        let confirmed = self.orders.borrow_and_update().confirmed.0;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = since_1970.saturating_sub(Duration::from_secs(EPOCH_SECS));
        let mut status = [0; 34];
        status[0] = b'r';
        let numbers =
            [self.received_upto.0.max(confirmed), confirmed, confirmed, now.as_micros() as u64];
        for (at, number) in numbers.iter().enumerate() {
            status[1 + 8 * at..9 + 8 * at].copy_from_slice(&number.to_be_bytes());
        }
        status[33] = u8::from(asks);
        self.wire.queue_copy_data(&status);
    }
}

/// Receives the next message. Cancel safe.
async fn receive(wire: &mut ReplicationSession, pacing: &ReadPacing) -> Result<Option<Bytes>> {
    if pacing.is_gathering() && wire.is_tcp() {
        sleep(GATHER_TIME).await;
    }
    wire.receive().await
}

/// Knows no types: pgoutput's values are text that the target reads without a change.
struct NoTargetTypes;

impl TargetTypes for NoTargetTypes {
    fn type_of(&self, _: &SourceTable, _: &str) -> Option<Arc<str>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_gathered_after_several_quick_reads() {
        let (mut pacing, mut now) = (ReadPacing::new(), Instant::now());
        let mut reads = |pacing: &mut ReadPacing, count: u32, messages: usize, after: Duration| {
            for _ in 0..count {
                now += after;
                pacing.note(messages, 1000 * messages, now);
            }
        };
        let quick = QUICK_READ_TIME / 2;
        reads(&mut pacing, 1, 1, QUICK_READ_TIME * 10);
        reads(&mut pacing, QUICK_READS - 1, 3, quick);
        assert!(!pacing.is_gathering());
        // A single transaction after a pause is not delayed.
        reads(&mut pacing, 1, 3, QUICK_READ_TIME * 2);
        reads(&mut pacing, QUICK_READS - 1, 3, quick);
        assert!(!pacing.is_gathering());
        reads(&mut pacing, 1, 3, quick);
        assert!(pacing.is_gathering());
        reads(&mut pacing, 100, FEW_MESSAGES + 1, GATHER_TIME * 2);
        assert!(pacing.is_gathering());
        reads(&mut pacing, 1, MANY_MESSAGES, GATHER_TIME * 2);
        assert!(pacing.is_gathering());
        // A read was full: the rest is read at once.
        reads(&mut pacing, 1, FULL_READ_BYTES / 1000 + 1, GATHER_TIME * 2);
        assert!(!pacing.is_gathering());
        reads(&mut pacing, 1, 1, quick);
        assert!(pacing.is_gathering());
        reads(&mut pacing, 1, FEW_MESSAGES, GATHER_TIME * 2);
        assert!(!pacing.is_gathering());
    }
}
