//! A replication slot as the source of a run: inspects the slot, and decides where the run begins.
//!
//! Only the target's ledger has the stream's position. A slot is refused if its confirmed position
//! is after the ledger's position: the slot has then lost events.

mod position;
mod slot_source;
mod start;
mod tables_being_copied;
mod timeline;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::error::SqlState;

pub use position::SlotPosition;
pub use slot_source::SlotSource;
pub use start::SlotStart;
pub use tables_being_copied::TablesBeingCopied;
use timeline::{CurrentTimeline, digest};

use crate::postgres::{
    Confirmer, PublishedTable, SlotAddress, check_publication, list_published_tables,
};
use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;
use pgspate_target::connect::{Connection, Dsn, Environment};
use pgspate_target::ledger::StreamPosition;
use timeline::Timeline;

/// The `application_name` of sessions with the source.
const APPLICATION_NAME: &str = "pgspate apply";

/// A slot, which may not exist yet, and the state of its server.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The connection string of the server.
    pub dsn: Dsn,
    /// The name of the slot.
    pub name: String,
    /// The publication that is read.
    pub publication: String,
    /// The server's system identifier, the database and the slot's name: distinguishes slots of the
    /// same name.
    pub identity: String,
    pub(crate) timeline: Timeline,
    /// The timeline that the run reads. It is unknown for a standby, whose timeline may change at
    /// any time.
    pub(crate) read_from: CurrentTimeline,
    /// The end of the server's log when the server was asked.
    pub log_end: Lsn,
    /// Whether the server is a standby, which may not have received all log yet.
    pub(crate) is_standby: bool,
    /// The slot on the server, or `None` if it does not exist.
    pub(crate) found: Option<ExistingSlot>,
}

/// The state of a slot that exists.
#[derive(Debug, Clone)]
pub(crate) struct ExistingSlot {
    /// The confirmed position: the server does not send earlier transactions again.
    pub(crate) confirmed: Lsn,
    /// The process id of the backend that reads the slot now.
    pub(crate) reader: Option<i32>,
}

const SLOT_QUERY: &str = "\
select case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
            else pg_catalog.pg_current_wal_lsn() end::pg_catalog.text,
       pg_catalog.current_database()::pg_catalog.text, s.slot_name is not null, s.plugin::text,
       s.database::text, s.confirmed_flush_lsn::pg_catalog.text, s.active_pid,
       pg_catalog.pg_is_in_recovery(), pg_catalog.to_jsonb(s) ->> 'two_phase' = 'true'
from (select) as one left join pg_catalog.pg_replication_slots s on s.slot_name = $1";

impl Slot {
    /// Connects to the server that a source names and inspects the slot. Returns `None` if the
    /// source does not name a slot.
    ///
    /// # Errors
    /// When the server cannot be reached, the publication does not exist, the role may not
    /// replicate, or the slot belongs to another database or uses another output plugin.
    pub async fn inspect(source: &str, stall_timeout: Duration) -> Result<Option<Slot>> {
        let Some(address) = SlotAddress::parse(source)? else { return Ok(None) };
        let SlotAddress { dsn, slot: name, publication } = address;
        let Some(dsn) = Dsn::resolve(Some(&dsn), &Environment::capture()?)? else {
            return Err(Error::new(ErrorKind::Usage, "the URL names no server"));
        };
        let dsn = dsn.with_stall_timeout(stall_timeout);
        Slot::inspect_server(dsn, name, publication).await.map(Some)
    }

    /// Inspects the same slot again.
    ///
    /// # Errors
    /// The errors of [`Slot::inspect`].
    pub async fn inspect_again(&self) -> Result<Slot> {
        Slot::inspect_server(self.dsn.clone(), self.name.clone(), self.publication.clone()).await
    }

    async fn inspect_server(dsn: Dsn, name: String, publication: String) -> Result<Slot> {
        let connection = dsn.connect(APPLICATION_NAME).await?;
        check_publication(&connection, &publication).await?;
        let mut wire = dsn.open_replication_session(&connection, APPLICATION_NAME).await?;
        let rows = wire.command("IDENTIFY_SYSTEM", "ask the source which server it is").await?;
        let row = rows.into_iter().next().unwrap_or_default();
        let said = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let (system, id) = (said(0), said(1).parse().unwrap_or(0));
        let mut history = None;
        if id > 1 {
            let what = "ask the source for the history of its timeline";
            // A server without its history file may still be on the known timeline.
            let rows = match wire.command(&format!("TIMELINE_HISTORY {id}"), what).await {
                Err(error) if error.is_retryable() => return Err(error),
                answer => answer.unwrap_or_default(),
            };
            history = rows.into_iter().next().and_then(|row| row.into_iter().nth(1)?);
        }
        wire.close().await;
        let timeline = Timeline::new(id, history.as_deref());
        let row = connection.client.query_one(SLOT_QUERY, &[&name]).await;
        let row = row.map_err(|error| connection.explain("could not look for the slot", error))?;
        let log_end = row.get::<_, Option<&str>>(0).unwrap_or("0/0").parse()?;
        let database: String = row.get(1);
        let found = match row.get(2) {
            false => None,
            true => {
                let of = |at| row.get::<_, Option<&str>>(at).unwrap_or_default();
                let is_two_phase = row.get::<_, Option<bool>>(8) == Some(true);
                check(&name, &database, of(3), of(4), is_two_phase)?;
                let confirmed = row.get::<_, Option<&str>>(5).unwrap_or("0/0").parse()?;
                Some(ExistingSlot { confirmed, reader: row.get(6) })
            }
        };
        let is_standby: bool = row.get(7);
        let read_from = match is_standby {
            true => CurrentTimeline::default(),
            false => CurrentTimeline::new(timeline.mark()),
        };
        connection.close().await;
        let identity = format!("{system}/{database}/{name}");
        Ok(Slot {
            dsn,
            name,
            publication,
            identity,
            timeline,
            read_from,
            log_end,
            is_standby,
            found,
        })
    }

    /// Returns the slot's name in messages, which is also the default name of the stream.
    pub fn title(&self) -> String {
        format!("slot {}", self.name)
    }

    /// Returns whether the slot exists.
    pub fn exists(&self) -> bool {
        self.found.is_some()
    }

    /// Lists the tables that the slot's publication has now.
    ///
    /// # Errors
    /// When the server cannot be reached or the publication does not exist.
    pub async fn tables(&self) -> Result<Vec<PublishedTable>> {
        let connection = self.connect().await?;
        let tables = list_published_tables(&connection, &self.publication).await;
        connection.close().await;
        tables
    }

    async fn connect(&self) -> Result<Connection> {
        self.dsn.connect(APPLICATION_NAME).await
    }

    /// Returns the ledger's form of a position in the slot's stream.
    pub fn mark(&self, ordinal: u64, at: Lsn) -> StreamPosition {
        StreamPosition { ordinal, source: at.to_string(), digest: self.digest() }
    }

    /// Returns the digest of positions on the timeline that is read now.
    pub fn digest(&self) -> String {
        digest(&self.identity, self.read_from.get())
    }
}

/// Checks that pgspate can read a slot with these properties.
fn check(
    name: &str,
    database: &str,
    plugin: &str,
    of_database: &str,
    is_two_phase: bool,
) -> Result<()> {
    let is_ours = plugin == "pgoutput" && of_database == database;
    if is_ours && !is_two_phase {
        return Ok(());
    }
    let what = match plugin {
        _ if is_ours => "sends prepared transactions (two_phase)".to_owned(),
        "" => "is a physical slot".to_owned(),
        "pgoutput" => format!("belongs to database \"{of_database}\""),
        _ => format!("uses the output plugin \"{plugin}\""),
    };
    Err(Error::new(ErrorKind::Usage, format!("replication slot \"{name}\" {what}")).hint(
        "Name a slot of this database that uses pgoutput, or a new one with `--create-slot`.",
    ))
}

/// Returns whether the error says that another session reads the slot.
pub fn is_active(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::OBJECT_IN_USE)
}

/// The position up to which events are committed on the target. The position is confirmed to the
/// slot's server.
#[derive(Debug, Default)]
pub struct ConfirmedPosition {
    upto: AtomicU64,
    to: Mutex<Option<Confirmer>>,
}

impl ConfirmedPosition {
    /// Notes that all events up to `upto` are committed on the target, and confirms these events
    /// to the slot's server.
    pub fn note(&self, upto: Lsn) {
        self.upto.fetch_max(upto.0, Relaxed);
        if let Some(to) = &*self.to.lock().unwrap_or_else(PoisonError::into_inner) {
            to.confirm(upto);
        }
    }

    fn confirmed_lsn(&self) -> Lsn {
        Lsn(self.upto.load(Relaxed))
    }

    /// Sets the stream whose server gets the confirmations.
    fn set_confirmer(&self, confirmer: Confirmer) {
        // The lock makes sure that no position is missed. A call of `note` either has stored its
        // position before this function reads it, or confirms the position to the new stream.
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        confirmer.confirm(self.confirmed_lsn());
        *to = Some(confirmer);
    }
}
