//! A replication slot as the source of a run: what it is, where to begin, and where to end.
//!
//! Where the stream is, is in the target's ledger and nowhere else. A slot that was read further
//! than that, by whomever, has lost events and is refused.

mod begin;
mod filling;
mod position;
mod pump;
mod timeline;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::error::SqlState;

pub use begin::Begin;
pub use filling::Filling;
pub use position::SlotPosition;
pub use pump::SlotSource;
use timeline::digest;

use crate::postgres::{Confirmer, PublishedTable, SlotAddress, check_publication, published};
use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;
use pgspate_target::connect::{Connection, Dsn, Environment};
use pgspate_target::ledger::Mark;
use timeline::Timeline;

/// What sessions with the source are called.
const NAME: &str = "pgspate apply";

/// A slot, or one that is to be, and what its server says.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The server.
    pub dsn: Dsn,
    /// Its name there.
    pub name: String,
    /// The publication that is read.
    pub publication: String,
    /// Tells this slot from others of the same name: server, database and slot.
    pub identity: String,
    pub(crate) timeline: Timeline,
    /// The timeline that is read; 0 of a standby, whose timeline may change at any time.
    pub(crate) read_from: Arc<AtomicU32>,
    /// Where the server's log ended when it was asked.
    pub log_end: Lsn,
    /// Whether the server is a standby, whose log is yet to come.
    pub(crate) is_standby: bool,
    /// `None`: there is no such slot.
    pub(crate) found: Option<Found>,
}

/// A slot that is there.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// All before it was confirmed, and is not sent again.
    pub(crate) confirmed: Lsn,
    /// The server's process for whoever reads it now.
    pub(crate) reader: Option<i32>,
}

const LOOK: &str = "\
select case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
            else pg_catalog.pg_current_wal_lsn() end::pg_catalog.text,
       pg_catalog.current_database()::pg_catalog.text, s.slot_name is not null, s.plugin::text,
       s.database::text, s.confirmed_flush_lsn::pg_catalog.text, s.active_pid,
       pg_catalog.pg_is_in_recovery(), pg_catalog.to_jsonb(s) ->> 'two_phase' = 'true'
from (select) as one left join pg_catalog.pg_replication_slots s on s.slot_name = $1";

impl Slot {
    /// Asks the server that a source names. `None` when the source names no slot.
    ///
    /// # Errors
    /// A server that cannot be reached or has no such publication, a role that may not replicate,
    /// a slot of another database or for another decoder.
    pub async fn look(source: &str, stall_timeout: Duration) -> Result<Option<Slot>> {
        let Some(address) = SlotAddress::parse(source)? else { return Ok(None) };
        let SlotAddress { dsn, slot: name, publication } = address;
        let Some(dsn) = Dsn::resolve(Some(&dsn), &Environment::capture()?)? else {
            return Err(Error::new(ErrorKind::Usage, "the URL names no server"));
        };
        let dsn = dsn.with_stall_timeout(stall_timeout);
        Slot::ask(dsn, name, publication).await.map(Some)
    }

    /// Asks the server for the same slot as it is now.
    ///
    /// # Errors
    /// As [`Slot::look`].
    pub async fn again(&self) -> Result<Slot> {
        Slot::ask(self.dsn.clone(), self.name.clone(), self.publication.clone()).await
    }

    async fn ask(dsn: Dsn, name: String, publication: String) -> Result<Slot> {
        let beside = dsn.connect(NAME).await?;
        check_publication(&beside, &publication).await?;
        let mut wire = dsn.walsender(&beside, NAME).await?;
        let rows = wire.command("IDENTIFY_SYSTEM", "ask the source which server it is").await?;
        let row = rows.into_iter().next().unwrap_or_default();
        let said = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let (system, id) = (said(0), said(1).parse().unwrap_or(0));
        let mut history = None;
        if id > 1 {
            let what = "ask the source for the history of its timeline";
            // One that has lost it may still be on the timeline that is known.
            let rows = match wire.command(&format!("TIMELINE_HISTORY {id}"), what).await {
                Err(error) if error.is_retryable() => return Err(error),
                answer => answer.unwrap_or_default(),
            };
            history = rows.into_iter().next().and_then(|row| row.into_iter().nth(1)?);
        }
        wire.close().await;
        let timeline = Timeline::new(id, history.as_deref());
        let row = beside.client.query_one(LOOK, &[&name]).await;
        let row = row.map_err(|error| beside.explain("could not look for the slot", error))?;
        let log_end = row.get::<_, Option<&str>>(0).unwrap_or("0/0").parse()?;
        let database: String = row.get(1);
        let found = match row.get(2) {
            false => None,
            true => {
                let of = |at| row.get::<_, Option<&str>>(at).unwrap_or_default();
                let is_two_phase = row.get::<_, Option<bool>>(8) == Some(true);
                check(&name, &database, of(3), of(4), is_two_phase)?;
                let confirmed = row.get::<_, Option<&str>>(5).unwrap_or("0/0").parse()?;
                Some(Found { confirmed, reader: row.get(6) })
            }
        };
        let is_standby: bool = row.get(7);
        let read_from = Arc::new(AtomicU32::new(if is_standby { 0 } else { id }));
        beside.close().await;
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

    /// Returns what people call it, which is also the stream's name by default.
    pub fn title(&self) -> String {
        format!("slot {}", self.name)
    }

    /// Returns whether the server has it.
    pub fn exists(&self) -> bool {
        self.found.is_some()
    }

    /// Reads which tables its publication has now.
    ///
    /// # Errors
    /// A server that cannot be reached, a publication that is not there.
    pub async fn tables(&self) -> Result<Vec<PublishedTable>> {
        let beside = self.connect().await?;
        let tables = published(&beside, &self.publication).await;
        beside.close().await;
        tables
    }

    async fn connect(&self) -> Result<Connection> {
        self.dsn.connect(NAME).await
    }

    /// Returns the mark of a place in its stream.
    pub fn mark(&self, ordinal: u64, at: Lsn) -> Mark {
        Mark { ordinal, source: at.to_string(), digest: self.digest() }
    }

    /// Returns the digest of marks of what is read now.
    pub fn digest(&self) -> String {
        digest(&self.identity, self.read_from.load(Relaxed))
    }
}

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
        "" => "is a physical one".to_owned(),
        "pgoutput" => format!("is of database \"{of_database}\""),
        _ => format!("is for the decoder \"{plugin}\""),
    };
    Err(Error::new(ErrorKind::Usage, format!("replication slot \"{name}\" {what}"))
        .hint("Name a slot of this database for pgoutput, or a new one with `--create-slot`."))
}

/// Returns whether the error says that another session reads the slot.
pub fn is_active(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::OBJECT_IN_USE)
}

/// What is committed on the target, for whoever reads the slot.
#[derive(Debug, Default)]
pub struct Confirmed {
    upto: AtomicU64,
    to: Mutex<Option<Confirmer>>,
}

impl Confirmed {
    /// Notes that all up to here is committed.
    pub fn note(&self, upto: Lsn) {
        self.upto.fetch_max(upto.0, Relaxed);
        if let Some(to) = &*self.to.lock().unwrap_or_else(PoisonError::into_inner) {
            to.confirm(upto);
        }
    }

    fn upto(&self) -> Lsn {
        Lsn(self.upto.load(Relaxed))
    }

    /// Whom to tell from now on.
    fn tell(&self, confirmer: Confirmer) {
        // What is noted from now on is either seen here, or told to this one.
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        confirmer.confirm(self.upto());
        *to = Some(confirmer);
    }
}
