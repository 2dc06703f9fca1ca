//! The stream of a slot: events as they are committed, and what has been confirmed of them.
//!
//! A task reads and answers the server, also while nobody asks for events, so that the server does
//! not take a busy caller for a dead one. What waits to be asked for is bounded; the server waits
//! beyond that. Confirmed is only what [`Replication::confirm`] was told.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_postgres::error::SqlState;

use super::EPOCH_SECS;
use super::pgoutput::Pgoutput;
use super::read::Read;
use crate::{Error, ErrorKind, Result};
use pgspate_events::decode::{Decode, TargetTypes};
use pgspate_events::{ChangeEvent, Lsn, SourceTable};
use pgspate_target::connect::{Connection, Dsn, Walsender};
use pgspate_target::quote_ident;

/// How often the server hears of us at least.
const STATUS_MAX: Duration = Duration::from_secs(10);
/// Either side ends the session when it has not heard of the other for `wal_sender_timeout`; so
/// often in that time we are heard.
const STATUSES: u32 = 4;
/// How long a farewell may take, in which the server is waited for.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of messages that are put together before they are handed over.
const PIECE_BYTES: usize = 1 << 20;
/// The server sends each change by itself. When so many reads in a row have each come as soon as
/// this after the last one, changes are left to gather for a moment before the next, unless a read
/// was full of fewer large ones, when more is there, and until one brings few: waking up for each
/// costs both sides more than the change. A Unix socket holds a few hundred of them and then the
/// server waits, so there nothing is gained.
const QUICK_READS: u32 = 32;
const QUICK: Duration = Duration::from_micros(300);
const NAP: Duration = Duration::from_millis(1);
const FEW: usize = 8;
const MUCH_BYTES: usize = 32 << 10;
const MANY: usize = 250;
/// What to do when a publication was made after the changes that are to be read.
const TOO_YOUNG: &str = "The publication is there now, but was not when these changes were made. \
                         Drop the slot and make it anew, after the publication; what is committed \
                         before that it cannot send.";
/// Pieces that wait to be asked for.
const PIECES: usize = 4;

/// Events of a stream.
#[derive(Debug, Default)]
pub struct Received {
    /// In the order of their commits. A transaction may be in several pieces; its last event says
    /// that it is the last.
    pub events: Vec<ChangeEvent>,
    /// What may be confirmed once all events up to here are committed on the target: where the
    /// last whole transaction ends, or how far the log holds nothing more of the publication.
    pub end: Option<Lsn>,
    /// When the last whole transaction was committed, by the server's clock.
    pub committed: Option<SystemTime>,
}

/// Tells a stream's server what is committed on the target, from wherever that is known.
#[derive(Debug, Clone)]
pub(crate) struct Confirmer(watch::Sender<Orders>);

impl Confirmer {
    /// As [`Replication::confirm`].
    pub(crate) fn confirm(&self, end: Lsn) {
        self.0.send_if_modified(|orders| {
            let is_further = end > orders.confirmed;
            orders.confirmed = orders.confirmed.max(end);
            is_further
        });
    }
}

/// A slot's stream. Dropping it closes the connection; [`Replication::close`] sends first what was
/// confirmed.
#[derive(Debug)]
pub struct Replication {
    pieces: mpsc::Receiver<Result<Received>>,
    confirmer: Confirmer,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy)]
struct Orders {
    confirmed: Lsn,
    close: bool,
}

impl Replication {
    /// Starts to read a slot's changes of a publication. Transactions that end at or before `from`
    /// are left out: up to where the caller has received them, or zero for all that was not
    /// confirmed. The server is told that the caller has committed all up to `confirmed`. Must run
    /// inside a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] or [`ErrorKind::Server`] with the server's words: no such slot or
    /// publication, no right to replicate, another session that reads the slot.
    pub async fn start(
        dsn: &Dsn,
        slot: &str,
        publication: &str,
        from: Lsn,
        confirmed: Lsn,
    ) -> Result<Replication> {
        let beside = dsn.connect("pgspate").await?;
        check_publication(&beside, publication).await?;
        let silence = silence_max(&beside).await?;
        let mut wire = dsn.walsender(&beside, "pgspate").await?;
        beside.close().await;
        // As a subscriber has them: what every server reads alike.
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
        let (pieces, received) = mpsc::channel(PIECES);
        let (orders, told) = watch::channel(Orders { confirmed, close: false });
        let driver = Driver { wire, decoder: Pgoutput::new(), told, seen: from, silence };
        let task = tokio::spawn(driver.run(pieces));
        Ok(Replication { pieces: received, confirmer: Confirmer(orders), task })
    }

    /// The next events, or the news that there were none up to some place. Waits until there are.
    /// It may be given up and asked again; nothing is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] when the connection is lost: start again from what is committed on
    /// the target. After an error there is nothing more.
    pub async fn next(&mut self) -> Result<Received> {
        match self.pieces.recv().await {
            Some(piece) => piece,
            None => Err(Error::new(ErrorKind::Connect, "the stream of changes has ended")),
        }
    }

    /// Tells the server that everything up to `end` is committed on the target and will never be
    /// asked for again. It is sent at once, and again until the server has heard it.
    pub fn confirm(&self, end: Lsn) {
        self.confirmer.confirm(end);
    }

    /// What confirms, for whoever knows what is committed.
    pub(crate) fn confirmer(&self) -> Confirmer {
        self.confirmer.clone()
    }

    /// Sends what was confirmed and ends the session, so that the slot is free.
    pub async fn close(mut self) {
        self.confirmer.0.send_modify(|orders| orders.close = true);
        // What waits to be asked for is not wanted any more.
        self.pieces.close();
        let _ = timeout(PATIENCE, &mut self.task).await;
    }
}

/// A stream of a publication that is not there would only fail at its first change.
pub(crate) async fn check_publication(beside: &Connection, publication: &str) -> Result<()> {
    let known = beside
        .client
        .query("select 1 from pg_catalog.pg_publication where pubname = $1", &[&publication])
        .await
        .map_err(|error| beside.explain("could not look for the publication", error))?;
    if !known.is_empty() {
        return Ok(());
    }
    Err(no_publication(publication, format!("publication \"{publication}\" does not exist")))
}

pub(super) fn no_publication(name: &str, message: String) -> Error {
    Error::new(ErrorKind::Server, message).hint(format!(
        "Make it on the source: `create publication {} for all tables`, or for those that are to \
         be read.",
        quote_ident(name)
    ))
}

/// How long the server waits for a sign of life, and we for one of its; none: for ever.
async fn silence_max(beside: &Connection) -> Result<Option<Duration>> {
    let sql = "select setting::pg_catalog.int8 from pg_catalog.pg_settings \
               where name = 'wal_sender_timeout'";
    let rows = beside.client.query(sql, &[]).await;
    let rows = rows.map_err(|error| beside.explain("could not read wal_sender_timeout", error))?;
    let millis = rows.first().map_or(0, |row| row.get::<_, i64>(0));
    let millis = u64::try_from(millis).ok().filter(|millis| *millis > 0);
    Ok(millis.map(Duration::from_millis))
}

impl Drop for Replication {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What reads and answers.
struct Driver {
    wire: Walsender,
    decoder: Pgoutput,
    told: watch::Receiver<Orders>,
    /// How far the log was received.
    seen: Lsn,
    /// How long both sides wait for a sign of life.
    silence: Option<Duration>,
}

/// How long the server has been silent.
struct Ear {
    heard: Instant,
    has_asked: bool,
}

impl Ear {
    fn new() -> Ear {
        Ear { heard: Instant::now(), has_asked: false }
    }
}

/// How densely changes come.
struct Pulse {
    last: Instant,
    quick: u32,
    has_more: bool,
}

impl Pulse {
    fn new() -> Pulse {
        Pulse { last: Instant::now(), quick: 0, has_more: false }
    }

    fn is_dense(&self) -> bool {
        self.quick >= QUICK_READS
    }

    /// Whether the next changes are to gather first.
    fn waits(&self) -> bool {
        self.is_dense() && !self.has_more
    }

    /// Notes a read of so many messages and bytes.
    fn note(&mut self, messages: usize, bytes: usize, now: Instant) {
        let is_quick = match self.is_dense() {
            // What was left of a large read may be little.
            true => messages > FEW || self.has_more,
            false => now - self.last < QUICK,
        };
        self.quick = if is_quick { (self.quick + 1).min(QUICK_READS) } else { 0 };
        self.has_more = bytes >= MUCH_BYTES && messages < MANY;
        self.last = now;
    }
}

/// What is put together.
#[derive(Default)]
struct Piece {
    received: Received,
    bytes: usize,
}

impl Driver {
    async fn run(mut self, pieces: mpsc::Sender<Result<Received>>) {
        match self.drive(&pieces).await {
            Ok(()) => self.wire.close().await,
            Err(error) => {
                // That it is there now was looked at before.
                let is_young = error.sqlstate() == Some(&SqlState::UNDEFINED_OBJECT);
                let error = if is_young { error.hint(TOO_YOUNG) } else { error };
                let _ = pieces.send(Err(error)).await;
            }
        }
    }

    /// Works until it is told to close.
    async fn drive(&mut self, pieces: &mpsc::Sender<Result<Received>>) -> Result<()> {
        // It ends the session when it does not hear of us.
        let status = self.silence.map_or(STATUS_MAX, |silence| silence / STATUSES);
        let mut status = interval(status.min(STATUS_MAX));
        let (mut ear, mut pulse) = (Ear::new(), Pulse::new());
        status.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut piece = Piece::default();
        loop {
            self.wire.flush().await?;
            let has_some = !piece.received.events.is_empty() || piece.received.end.is_some();
            // Of a large row that may be its transaction's last nothing is there yet.
            let has_room = piece.bytes < PIECE_BYTES || !has_some;
            tokio::select! {
                permit = pieces.reserve(), if has_some => match permit {
                    Ok(permit) => permit.send(Ok(std::mem::take(&mut piece).received)),
                    // Nobody asks any more: closed, or about to be aborted.
                    Err(_) => {
                        self.put_status(false);
                        return Ok(());
                    }
                },
                message = receive(&mut self.wire, &pulse), if has_room => match message? {
                    Some(message) => {
                        ear = Ear::new();
                        let before = piece.bytes;
                        let messages = self.take_all(message, &mut piece)?;
                        pulse.note(messages, piece.bytes - before, Instant::now());
                    }
                    None => {
                        let place = self.wire.place();
                        let message = format!("{place} has ended the stream of changes");
                        return Err(Error::new(ErrorKind::Connect, message));
                    }
                },
                // Who does not listen cannot say that it is silent.
                _ = status.tick() => match has_room {
                    true => self.listen(&mut ear)?,
                    false => {
                        ear = Ear::new();
                        self.put_status(false);
                    }
                },
                changed = self.told.changed() => {
                    self.put_status(false);
                    if changed.is_err() || self.told.borrow().close {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes a message and those that have come with it; how many.
    fn take_all(&mut self, message: Bytes, piece: &mut Piece) -> Result<usize> {
        self.take(message, piece)?;
        let mut taken = 1;
        while piece.bytes < PIECE_BYTES
            && let Some(next) = self.wire.received()?
        {
            self.take(next, piece)?;
            taken += 1;
        }
        Ok(taken)
    }

    fn take(&mut self, message: Bytes, piece: &mut Piece) -> Result<()> {
        let mut read = Read::new(&message);
        match read.byte()? {
            b'w' => {
                let start = Lsn(read.u64()?);
                read.u64()?;
                read.u64()?;
                let record = read.rest();
                self.seen = self.seen.max(start);
                piece.bytes += message.len();
                self.decoder.decode(record, &NoTypes, &mut piece.received.events)?;
                if let Some((end, committed)) = self.decoder.take_end() {
                    self.seen = self.seen.max(end);
                    piece.received.end = Some(end);
                    piece.received.committed = Some(committed);
                }
            }
            b'k' => {
                let end = Lsn(read.u64()?);
                read.u64()?;
                self.seen = self.seen.max(end);
                // Between transactions, all that was committed before this has been sent.
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

    /// Sends a status, which is to be answered when the server has long been silent.
    fn listen(&mut self, ear: &mut Ear) -> Result<()> {
        let silent = ear.heard.elapsed();
        let asks = self.silence.is_some_and(|limit| silent >= limit / 2) && !ear.has_asked;
        if ear.has_asked && self.silence.is_some_and(|limit| silent >= limit) {
            let (place, seconds) = (self.wire.place(), silent.as_secs());
            let message = format!("{place} has sent nothing for {seconds} s");
            return Err(Error::new(ErrorKind::Connect, message));
        }
        ear.has_asked |= asks;
        self.put_status(asks);
        Ok(())
    }

    /// Says what has been received, and what of it is committed. `asks` for an answer.
    fn put_status(&mut self, asks: bool) {
        let confirmed = self.told.borrow_and_update().confirmed.0;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = since_1970.saturating_sub(Duration::from_secs(EPOCH_SECS));
        let mut status = [0; 34];
        status[0] = b'r';
        let numbers = [self.seen.0.max(confirmed), confirmed, confirmed, now.as_micros() as u64];
        for (at, number) in numbers.iter().enumerate() {
            status[1 + 8 * at..9 + 8 * at].copy_from_slice(&number.to_be_bytes());
        }
        status[33] = u8::from(asks);
        self.wire.put(&status);
    }
}

/// The next message. It may be given up and asked again.
async fn receive(wire: &mut Walsender, pulse: &Pulse) -> Result<Option<Bytes>> {
    if pulse.waits() && wire.is_tcp() {
        sleep(NAP).await;
    }
    wire.receive().await
}

/// Values of pgoutput are text as they come.
struct NoTypes;

impl TargetTypes for NoTypes {
    fn of(&self, _: &SourceTable, _: &str) -> Option<Arc<str>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_gather_while_they_come_densely() {
        let (mut pulse, mut now) = (Pulse::new(), Instant::now());
        let mut reads = |pulse: &mut Pulse, count: u32, messages: usize, after: Duration| {
            for _ in 0..count {
                now += after;
                pulse.note(messages, 1000 * messages, now);
            }
        };
        let quick = QUICK / 2;
        reads(&mut pulse, 1, 1, QUICK * 10);
        reads(&mut pulse, QUICK_READS - 1, 3, quick);
        assert!(!pulse.waits());
        // A lone transaction is not held up by those before it.
        reads(&mut pulse, 1, 3, QUICK * 2);
        reads(&mut pulse, QUICK_READS - 1, 3, quick);
        assert!(!pulse.waits());
        reads(&mut pulse, 1, 3, quick);
        assert!(pulse.waits());
        reads(&mut pulse, 100, FEW + 1, NAP * 2);
        assert!(pulse.waits());
        reads(&mut pulse, 1, MANY, NAP * 2);
        assert!(pulse.waits());
        // There is more than one read takes: it is read at once, to its end.
        reads(&mut pulse, 1, MUCH_BYTES / 1000 + 1, NAP * 2);
        assert!(!pulse.waits());
        reads(&mut pulse, 1, 1, quick);
        assert!(pulse.waits());
        reads(&mut pulse, 1, FEW, NAP * 2);
        assert!(!pulse.waits());
    }
}
