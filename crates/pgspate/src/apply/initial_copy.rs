//! Copies the rows that the tables have when a slot begins, through the lanes of a load.
//!
//! The ledger first records that rows are being copied. When all rows are committed, the ledger
//! records where the slot begins. An interrupted copy cannot continue without its snapshot.
//! The next run truncates the tables on the ledger's list and starts again with a new slot. These
//! tables were empty before the first copy. No other table is ever truncated.

use std::future::pending;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::runtime::Handle;

use super::route::{ApplyTable, Router, UnknownColumns, parents_first};
use super::run::ApplyRun;
use super::watch::ApplyWatch;
use super::write::BatchWriter;
use crate::format::sniff::{Format, SniffOverrides};
use crate::plan::{self, RowRequest};
use crate::reading::{self, InputOrigin};
use crate::source::Input;
use crate::{Error, ErrorKind, Result, load};
use pgspate_events::Lsn;
use pgspate_replication::postgres::{PublishedTable, SlotSnapshot, create_slot, drop_slot};
use pgspate_replication::slot::{Slot, TablesBeingCopied};
use pgspate_target::ledger::{StreamPosition, digest_texts};
use pgspate_target::session::POLL_INTERVAL;
use pgspate_target::{UnloggedExtent, under_users_path_sql};

/// Pieces of 256 KiB that may wait for the load.
const PIECES_WAITING_MAX: usize = 8;
/// The most lanes for a table. One session of the source cannot keep more lanes busy.
const LANES_MAX: usize = 4;
/// How long the sessions of an earlier copy may take to end.
const OLD_SESSIONS_WAIT: Duration = Duration::from_secs(30);

/// A table whose rows were copied.
#[derive(Debug, Clone, Serialize)]
pub struct CopiedTable {
    /// The table, as SQL writes it.
    pub table: String,
    /// The number of rows copied.
    pub rows: u64,
}

/// The initial copy of a slot's tables.
pub(super) struct InitialCopy<'a> {
    pub(super) run: &'a ApplyRun<'a>,
    pub(super) slot: &'a Slot,
    pub(super) router: &'a Router,
}

/// A published table, and the target table of its rows.
type TablePair = (PublishedTable, Arc<ApplyTable>);

impl InitialCopy<'_> {
    /// Creates the slot, and copies the rows of its tables if `copies`. Returns where the slot
    /// begins. Blocks.
    ///
    /// # Errors
    /// When a table has rows that no earlier copy wrote. When the source, the target or a load
    /// fails.
    pub(super) fn run(
        &self,
        writer: &mut BatchWriter,
        copies: bool,
    ) -> Result<(Lsn, Vec<CopiedTable>)> {
        self.run.runtime.block_on(writer.hold_stream())?;
        if !copies {
            let (dsn, name) = (&self.slot.dsn, &self.slot.name);
            let made = create_slot(dsn, name, self.run.watch.stop.wait_until_requested());
            let lsn = self.run.runtime.block_on(made)?;
            self.run.runtime.block_on(writer.move_stream_to(self.slot.mark(0, lsn)))?;
            return Ok((lsn, Vec::new()));
        }
        let mut copied_tables = TablesBeingCopied::parse(&writer.mark().source).unwrap_or_default();
        let tables = self.run.runtime.block_on(self.slot.tables())?;
        self.claim_empty_tables(writer, &self.pair_tables(&tables)?, &mut copied_tables)?;
        if self.slot.exists() {
            let (dsn, name) = (&self.slot.dsn, &self.slot.name);
            let stop = self.run.watch.stop.wait_until_requested();
            self.run.runtime.block_on(drop_slot(dsn, name, stop))?;
        }
        let snapshot = match self.create_snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.release_claim(writer, &copied_tables, &error, false);
                return Err(error);
            }
        };
        let lsn = snapshot.lsn();
        let copied = self.copy_tables(&snapshot, writer, &mut copied_tables);
        self.run.runtime.block_on(snapshot.close());
        match copied {
            Ok(copied) => {
                self.run.runtime.block_on(writer.move_stream_to(self.slot.mark(0, lsn)))?;
                Ok((lsn, copied))
            }
            Err(error) => {
                self.release_claim(writer, &copied_tables, &error, true);
                Err(error)
            }
        }
    }

    /// Copies all tables of the snapshot. A table published since the claim is claimed first.
    fn copy_tables(
        &self,
        snapshot: &SlotSnapshot,
        writer: &mut BatchWriter,
        copied_tables: &mut TablesBeingCopied,
    ) -> Result<Vec<CopiedTable>> {
        let pairs = self.pair_tables(snapshot.tables())?;
        let unclaimed: Vec<_> =
            pairs.iter().filter(|(_, facts)| !copied_tables.has(&facts.table)).cloned().collect();
        if !unclaimed.is_empty() {
            self.claim_empty_tables(writer, &unclaimed, copied_tables)?;
        }
        let mut copied = Vec::new();
        for (table, facts) in pairs {
            let rows = self.copy_table(snapshot, &table, &facts)?;
            copied.push(CopiedTable { table: facts.table.sql_name.clone(), rows });
        }
        Ok(copied)
    }

    /// Makes sure that the tables are empty, and adds them to the ledger's list of tables that are
    /// being copied.
    fn claim_empty_tables(
        &self,
        writer: &mut BatchWriter,
        pairs: &[TablePair],
        copied_tables: &mut TablesBeingCopied,
    ) -> Result<()> {
        if pairs.iter().any(|(_, facts)| facts.table.unlogged != UnloggedExtent::Nothing) {
            self.run.runtime.block_on(writer.note_unlogged_writes(true))?;
        }
        self.empty_claimed_tables(writer, pairs, copied_tables)?;
        pairs.iter().for_each(|(_, facts)| copied_tables.add(&facts.table));
        let digest = self.slot.digest();
        let mark = StreamPosition { ordinal: 0, source: copied_tables.position(), digest };
        self.run.runtime.block_on(writer.move_stream_to(mark))
    }

    /// Cleans up after a failure. If no row was committed, drops the slot and resets the position.
    /// If rows were committed or the cleanup fails, the ledger keeps the list.
    fn release_claim(
        &self,
        writer: &mut BatchWriter,
        copied_tables: &TablesBeingCopied,
        error: &Error,
        has_slot: bool,
    ) {
        // A session that was lost may still commit.
        if error.is_retryable() {
            return;
        }
        for name in copied_tables.names() {
            if !matches!(self.table_has_rows(writer, name), Ok(false)) {
                return;
            }
        }
        // Drop the slot before the ledger forgets it. A slot that the ledger does not know would be
        // read without the earlier rows.
        if has_slot
            && self
                .run
                .runtime
                .block_on(drop_slot(&self.slot.dsn, &self.slot.name, pending()))
                .is_err()
        {
            return;
        }
        let _ = self.run.runtime.block_on(writer.move_stream_to(StreamPosition::default()));
    }

    /// Checks whether a table of the target has rows.
    fn table_has_rows(&self, writer: &mut BatchWriter, name: &str) -> Result<bool> {
        let sql = format!("select exists (select 1 from {name})");
        self.run.runtime.block_on(writer.query_value(&sql, "check whether the table is empty"))
    }

    /// Creates the slot with a snapshot for the copy.
    fn create_snapshot(&self) -> Result<SlotSnapshot> {
        let Slot { dsn, name, publication, .. } = self.slot;
        let stop = self.run.watch.stop.wait_until_requested();
        self.run.runtime.block_on(SlotSnapshot::create(dsn, name, publication, stop))
    }

    /// Returns the published tables to copy and their target tables, referenced tables first.
    fn pair_tables(&self, tables: &[PublishedTable]) -> Result<Vec<TablePair>> {
        let mut pairs = Vec::new();
        for table in tables {
            if let Some(facts) = self.router.table_for(&table.name)? {
                pairs.push((self.with_known_columns(table, &facts)?, facts));
            }
        }
        let places = parents_first(&pairs.iter().map(|(_, facts)| &**facts).collect::<Vec<_>>());
        let mut placed: Vec<_> = places.into_iter().zip(pairs).collect();
        placed.sort_by_key(|(place, _)| *place);
        Ok(placed.into_iter().map(|(_, pair)| pair).collect())
    }

    /// Returns the published table with only the columns that the target has.
    fn with_known_columns(
        &self,
        table: &PublishedTable,
        facts: &ApplyTable,
    ) -> Result<PublishedTable> {
        let mut table = table.clone();
        let has = |name: &String| facts.columns.iter().any(|column| column.name == *name);
        let unknown =
            table.columns.iter().find(|name| !has(name) && !facts.generated.contains(name));
        match (unknown, self.run.options.unknown_columns) {
            (None, _) | (_, UnknownColumns::Ignore) => table.columns.retain(has),
            (Some(name), _) => {
                let message =
                    format!("column \"{name}\" of {} does not exist", facts.table.sql_name);
                return Err(Error::new(ErrorKind::Plan, message).hint(
                    "Add the column to the target table, or leave it out with \
                     `--unknown-columns ignore`. With `add`, columns are added for later events, \
                     but not for the first copy.",
                ));
            }
        }
        Ok(table)
    }

    /// Makes sure that the tables are empty. Truncates the tables on the list `copied_tables`, as
    /// their rows come from an earlier copy. Truncates nothing if any other table has rows.
    fn empty_claimed_tables(
        &self,
        writer: &mut BatchWriter,
        pairs: &[TablePair],
        copied_tables: &TablesBeingCopied,
    ) -> Result<()> {
        if !copied_tables.is_empty() {
            self.wait_for_lanes(writer)?;
        }
        let (mut ours, mut has_rows) = (Vec::new(), false);
        for (_, facts) in pairs {
            let (name, is_ours) = (facts.sql_without_children(), copied_tables.has(&facts.table));
            if self.table_has_rows(writer, &name)? {
                if !is_ours {
                    return Err(not_empty_error(&facts.table.sql_name));
                }
                has_rows = true;
            }
            if is_ours {
                ours.push(name);
            }
        }
        if !has_rows {
            return Ok(());
        }
        // Truncate the listed tables without rows too, because they may refer to the others.
        let task = "truncate the tables of an earlier copy";
        let sql = under_users_path_sql(&format!("truncate {}", ours.join(", ")));
        self.run.runtime.block_on(writer.run(&sql, task))
    }

    /// Returns the `application_name` of the loads' sessions. No other session has this name.
    fn session_name(&self) -> String {
        let digest = digest_texts(["copy", &self.slot.identity]);
        format!("pgspate copy {}", &digest[..16])
    }

    /// Waits for the sessions of an earlier copy. They end by themselves, but may still commit.
    fn wait_for_lanes(&self, writer: &mut BatchWriter) -> Result<()> {
        let name = self.session_name();
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name = '{name}'"
        );
        let since = Instant::now();
        loop {
            let asked = writer.query_value::<i64>(&sql, "look for sessions of an earlier copy");
            if self.run.runtime.block_on(asked)? == 0 {
                return Ok(());
            }
            if since.elapsed() > OLD_SESSIONS_WAIT {
                let message = "sessions of an earlier copy of rows are still running";
                return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
                    "End them with `select pg_terminate_backend(pid) from pg_stat_activity where \
                     application_name = '{name}'`, and run the same command again."
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Copies a table through the lanes of a load. Returns the number of rows.
    fn copy_table(
        &self,
        snapshot: &SlotSnapshot,
        table: &PublishedTable,
        facts: &ApplyTable,
    ) -> Result<u64> {
        let (tx, rx) = sync_channel(PIECES_WAITING_MAX);
        let name = &facts.table.sql_name;
        let load_watch = Arc::new(self.run.watch.load_watch());
        self.run.watch.show_copy(Some((name.clone(), Arc::clone(&load_watch))));
        let load_ended = &AtomicBool::new(false);
        let (read, loaded) = std::thread::scope(|scope| {
            let (runtime, watch) = (self.run.runtime, &**self.run.watch);
            let reading =
                scope.spawn(move || read_table(snapshot, table, runtime, tx, watch, load_ended));
            let loaded = self.load_pieces(table, facts, rx, &load_watch);
            load_ended.store(true, Relaxed);
            (reading.join(), loaded)
        });
        self.run.watch.show_copy(None);
        let Ok(read) = read else {
            return Err(Error::new(ErrorKind::Bug, "the thread that reads rows died"));
        };
        match (read, loaded) {
            // A failed load stops the reader. Then the load's error is reported.
            (Ok(true), Ok(rows)) => Ok(rows),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(false), Ok(_)) => Err(Error::new(ErrorKind::Bug, "a load ended before its input")),
        }
    }

    /// Loads the pieces that `rx` receives into the table. Returns the number of rows.
    fn load_pieces(
        &self,
        table: &PublishedTable,
        facts: &ApplyTable,
        rx: Receiver<io::Result<Vec<u8>>>,
        watch: &Arc<load::LoadWatch>,
    ) -> Result<u64> {
        let source = PieceReader { rx, piece: Vec::new(), at: 0 };
        let title = format!("{} of {}", table.name.table, self.slot.title());
        let is_plain = facts.table.triggers.is_empty() && facts.table.has_unique_index();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = load::LoadOptions {
            reading: reading::ReadingOptions {
                origin: InputOrigin::Stream(Input::uncompressed(&title, Box::new(source))),
                read: SniffOverrides {
                    format: Some(Format::Text),
                    delimiter: Some(b'\t'),
                    header: Some(false),
                    null: Some("\\N".to_owned()),
                    ..SniffOverrides::default()
                },
                rows: RowRequest {
                    encoding: Some("UTF8".to_owned()),
                    columns: Some(table.columns.clone()),
                    ..RowRequest::default()
                },
                ..reading::ReadingOptions::default()
            },
            table: Some(facts.table.sql_name.clone()),
            plan: plan::PlanOptions {
                // The source has no duplicate keys, so lanes never wait for each other.
                lanes: is_plain.then_some(cores.clamp(2, LANES_MAX)),
                no_ledger: true,
                ..plan::PlanOptions::default()
            },
            limits: self.run.options.limits,
            ..load::LoadOptions::default()
        };
        let load = load::prepare(
            options,
            self.run.settings.dsn.with_application_name(&self.session_name()),
            self.run.runtime,
        )?;
        Ok(load.run(watch)?.rows_written)
    }
}

/// Returns the error for a table with rows that no earlier copy wrote.
fn not_empty_error(name: &str) -> Error {
    let message = format!("could not copy rows into {name}: the table is not empty");
    Error::new(ErrorKind::Usage, message).hint(
        "Empty the table, leave it out with `--tables`, or give `--create-slot` instead of \
         `--snapshot` to apply only what changes from now on.",
    )
}

/// Reads the table's rows. Returns false when the load has ended (`load_ended`) and needs no more
/// rows. Does not wait for a silent source after that.
fn read_table(
    snapshot: &SlotSnapshot,
    table: &PublishedTable,
    runtime: &Handle,
    tx: SyncSender<io::Result<Vec<u8>>>,
    watch: &ApplyWatch,
    load_ended: &AtomicBool,
) -> Result<bool> {
    let mut is_wanted = true;
    let take = &mut |piece: &[u8]| {
        is_wanted = tx.send(Ok(piece.to_vec())).is_ok();
        match is_wanted {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Cancelled, "the load has ended")),
        }
    };
    let over = async {
        while !load_ended.load(Relaxed) && !watch.is_cancelled() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let copied = runtime.block_on(snapshot.copy(table, take, over));
    match copied {
        Ok(()) if is_wanted => Ok(true),
        Err(error) if is_wanted && (watch.is_cancelled() || !load_ended.load(Relaxed)) => {
            // Without this error the rows so far would look complete.
            let _ = tx.send(Err(io::Error::other("the source was lost")));
            Err(error)
        }
        _ => Ok(false),
    }
}

/// A reader over the pieces of a table's rows.
struct PieceReader {
    rx: Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for PieceReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            match self.rx.recv() {
                Ok(piece) => (self.piece, self.at) = (piece?, 0),
                Err(_) => return Ok(0),
            }
        }
        let count = buf.len().min(self.piece.len() - self.at);
        buf[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
