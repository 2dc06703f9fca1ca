//! The rows that there are when a slot begins, through the lanes of a load.
//!
//! The ledger says first that rows are being copied, and where the slot begins when all of them are
//! committed. A copy that has not come to its end cannot be resumed, as its snapshot is gone: its
//! tables, of which the ledger has the list and which were empty before, are emptied, and it begins
//! anew with a new slot. No other table is ever emptied.

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
use crate::format::sniff::{Format, Overrides};
use crate::plan::{self, RowRequest};
use crate::reading::{self, InputOrigin};
use crate::source::Input;
use crate::{Error, ErrorKind, Result, load};
use pgspate_events::Lsn;
use pgspate_replication::postgres::{PublishedTable, Snapshot, drop_slot, make_slot};
use pgspate_replication::slot::{Filling, Slot};
use pgspate_target::ledger::{Mark, digest};
use pgspate_target::session::LOOK;
use pgspate_target::{Unlogged, under_users_path};

/// Pieces of 256 KiB that may wait for the load.
const PIECES: usize = 8;
/// Lanes for a table: one session of the source fills no more.
const LANES_MAX: usize = 4;
/// How long the sessions of an earlier copy may take to end.
const LINGER: Duration = Duration::from_secs(30);

/// A table whose rows were copied.
#[derive(Debug, Clone, Serialize)]
pub struct CopiedTable {
    /// The table, as SQL writes it.
    pub table: String,
    /// Its rows.
    pub rows: u64,
}

/// What copies.
pub(super) struct InitialCopy<'a> {
    pub(super) run: &'a ApplyRun<'a>,
    pub(super) slot: &'a Slot,
    pub(super) router: &'a Router,
}

/// A table and where its rows go.
type TablePair = (PublishedTable, Arc<ApplyTable>);

impl InitialCopy<'_> {
    /// Makes the slot, and copies if `copies`. Where the slot begins. Blocks.
    ///
    /// # Errors
    /// Tables that are not empty and that no earlier try has filled; whatever the source, the
    /// target or a load says.
    pub(super) fn run(&self, writer: &mut BatchWriter, copies: bool) -> Result<(Lsn, Vec<CopiedTable>)> {
        self.run.runtime.block_on(writer.hold())?;
        if !copies {
            let (dsn, name) = (&self.slot.dsn, &self.slot.name);
            let made = make_slot(dsn, name, self.run.watch.stop.requested());
            let lsn = self.run.runtime.block_on(made)?;
            self.run.runtime.block_on(writer.move_to(self.slot.mark(0, lsn)))?;
            return Ok((lsn, Vec::new()));
        }
        let mut filling = Filling::parse(&writer.mark().source).unwrap_or_default();
        let tables = self.run.runtime.block_on(self.slot.tables())?;
        self.claim(writer, &self.pairs(&tables)?, &mut filling)?;
        if self.slot.exists() {
            let (dsn, name) = (&self.slot.dsn, &self.slot.name);
            let stop = self.run.watch.stop.requested();
            self.run.runtime.block_on(drop_slot(dsn, name, stop))?;
        }
        let snapshot = match self.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.give_up(writer, &filling, &error, false);
                return Err(error);
            }
        };
        let lsn = snapshot.lsn();
        let copied = self.fill(&snapshot, writer, &mut filling);
        self.run.runtime.block_on(snapshot.close());
        match copied {
            Ok(copied) => {
                self.run.runtime.block_on(writer.move_to(self.slot.mark(0, lsn)))?;
                Ok((lsn, copied))
            }
            Err(error) => {
                self.give_up(writer, &filling, &error, true);
                Err(error)
            }
        }
    }

    /// Copies what the snapshot has, also of tables that were published only a moment ago.
    fn fill(
        &self,
        snapshot: &Snapshot,
        writer: &mut BatchWriter,
        filling: &mut Filling,
    ) -> Result<Vec<CopiedTable>> {
        let pairs = self.pairs(snapshot.tables())?;
        let late: Vec<_> =
            pairs.iter().filter(|(_, facts)| !filling.has(&facts.table)).cloned().collect();
        if !late.is_empty() {
            self.claim(writer, &late, filling)?;
        }
        let mut copied = Vec::new();
        for (table, facts) in pairs {
            let rows = self.copy(snapshot, &table, &facts)?;
            copied.push(CopiedTable { table: facts.table.sql_name.clone(), rows });
        }
        Ok(copied)
    }

    /// Sees to it that the tables are empty, and puts them on the ledger's list.
    fn claim(&self, writer: &mut BatchWriter, pairs: &[TablePair], filling: &mut Filling) -> Result<()> {
        if pairs.iter().any(|(_, facts)| facts.table.unlogged != Unlogged::No) {
            self.run.runtime.block_on(writer.bind(true))?;
        }
        self.empty(writer, pairs, filling)?;
        pairs.iter().for_each(|(_, facts)| filling.add(&facts.table));
        let digest = self.slot.digest();
        let mark = Mark { ordinal: 0, source: filling.position(), digest };
        self.run.runtime.block_on(writer.move_to(mark))
    }

    /// After a failure: if no row was committed it is as if nothing had been begun. Otherwise, and
    /// if any of this fails, too, the ledger keeps the list.
    fn give_up(&self, writer: &mut BatchWriter, filling: &Filling, error: &Error, has_slot: bool) {
        // A lost session may still commit.
        if error.is_retryable() {
            return;
        }
        for name in filling.names() {
            if !matches!(self.has_rows(writer, name), Ok(false)) {
                return;
            }
        }
        // Before the ledger: a slot that it does not know would be read without the rows before.
        if has_slot
            && self
                .run
                .runtime
                .block_on(drop_slot(&self.slot.dsn, &self.slot.name, pending()))
                .is_err()
        {
            return;
        }
        let _ = self.run.runtime.block_on(writer.move_to(Mark::default()));
    }

    fn has_rows(&self, writer: &mut BatchWriter, name: &str) -> Result<bool> {
        let sql = format!("select exists (select from {name})");
        self.run.runtime.block_on(writer.ask(&sql, "look whether the table is empty"))
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let Slot { dsn, name, publication, .. } = self.slot;
        let stop = self.run.watch.stop.requested();
        self.run.runtime.block_on(Snapshot::create(dsn, name, publication, stop))
    }

    /// The tables that are wanted, and their targets, those that are referred to first.
    fn pairs(&self, tables: &[PublishedTable]) -> Result<Vec<TablePair>> {
        let mut pairs = Vec::new();
        for table in tables {
            if let Some(facts) = self.router.facts(&table.name)? {
                pairs.push((self.fitting(table, &facts)?, facts));
            }
        }
        let places = parents_first(&pairs.iter().map(|(_, facts)| &**facts).collect::<Vec<_>>());
        let mut placed: Vec<_> = places.into_iter().zip(pairs).collect();
        placed.sort_by_key(|(place, _)| *place);
        Ok(placed.into_iter().map(|(_, pair)| pair).collect())
    }

    /// The table with the columns that the target takes.
    fn fitting(&self, table: &PublishedTable, facts: &ApplyTable) -> Result<PublishedTable> {
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
                    "Add the column to the table, or leave it out with `--unknown-columns ignore`.",
                ));
            }
        }
        Ok(table)
    }

    /// Sees to it that the tables are empty: what is in those that an earlier try was `filling` is
    /// what that has copied. Nothing is emptied if any other has rows.
    fn empty(&self, writer: &mut BatchWriter, pairs: &[TablePair], filling: &Filling) -> Result<()> {
        if !filling.is_empty() {
            self.wait_for_lanes(writer)?;
        }
        let (mut ours, mut has_rows) = (Vec::new(), false);
        for (_, facts) in pairs {
            let (name, is_ours) = (facts.itself(), filling.has(&facts.table));
            if self.has_rows(writer, &name)? {
                if !is_ours {
                    return Err(is_filled(&facts.table.sql_name));
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
        // Those without rows, too: they may refer to the others.
        let what = "empty the tables that an earlier copy has filled";
        let sql = under_users_path(&format!("truncate {}", ours.join(", ")));
        self.run.runtime.block_on(writer.run(&sql, what))
    }

    /// What the sessions of its loads are called, and no others.
    fn name(&self) -> String {
        let digest = digest(["copy", &self.slot.identity]);
        format!("pgspate copy {}", &digest[..16])
    }

    /// Sessions of an earlier copy end by themselves, but may still commit what they had in hand.
    fn wait_for_lanes(&self, writer: &mut BatchWriter) -> Result<()> {
        let name = self.name();
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name = '{name}'"
        );
        let since = Instant::now();
        loop {
            let asked = writer.ask::<i64>(&sql, "look for sessions of an earlier copy");
            if self.run.runtime.block_on(asked)? == 0 {
                return Ok(());
            }
            if since.elapsed() > LINGER {
                let message = "sessions of an earlier copy of rows are still at work";
                return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
                    "End them with `select pg_terminate_backend(pid) from pg_stat_activity where \
                     application_name = '{name}'`, and run the same command again."
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Copies a table through the lanes of a load. Its rows.
    fn copy(&self, snapshot: &Snapshot, table: &PublishedTable, facts: &ApplyTable) -> Result<u64> {
        let (tx, rx) = sync_channel(PIECES);
        let name = &facts.table.sql_name;
        let load_watch = Arc::new(self.run.watch.of_copy());
        self.run.watch.show_copy(Some((name.clone(), Arc::clone(&load_watch))));
        let is_over = &AtomicBool::new(false);
        let (read, loaded) = std::thread::scope(|scope| {
            let (runtime, watch) = (self.run.runtime, &**self.run.watch);
            let reading = scope.spawn(move || read(snapshot, table, runtime, tx, watch, is_over));
            let loaded = self.load(table, facts, rx, &load_watch);
            is_over.store(true, Relaxed);
            (reading.join(), loaded)
        });
        self.run.watch.show_copy(None);
        let Ok(read) = read else {
            return Err(Error::new(ErrorKind::Bug, "the thread that reads rows died"));
        };
        match (read, loaded) {
            // A load that has failed reads no more, which is no failure of its own.
            (Ok(true), Ok(rows)) => Ok(rows),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(false), Ok(_)) => Err(Error::new(ErrorKind::Bug, "a load ended before its input")),
        }
    }

    fn load(
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
                origin: InputOrigin::Stream(Input::given(&title, Box::new(source))),
                read: Overrides {
                    format: Some(Format::Text),
                    delimiter: Some(b'\t'),
                    header: Some(false),
                    null: Some("\\N".to_owned()),
                    ..Overrides::default()
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
                // The source has no key twice, so that no two lanes wait for each other.
                lanes: is_plain.then_some(cores.clamp(2, LANES_MAX)),
                no_ledger: true,
                ..plan::PlanOptions::default()
            },
            limits: self.run.options.limits,
            ..load::LoadOptions::default()
        };
        let load =
            load::prepare(options, self.run.settings.dsn.called(&self.name()), self.run.runtime)?;
        Ok(load.run(watch)?.rows_written)
    }
}

fn is_filled(name: &str) -> Error {
    let message = format!("{name} is not empty, and the copy of rows needs empty tables");
    Error::new(ErrorKind::Usage, message).hint(
        "Empty the table, leave it out with `--tables`, or say `--create-slot` instead of \
         `--snapshot` to apply only what changes from now on.",
    )
}

/// Reads the table's rows. False when they are not wanted any more, as their load `is_over`; the
/// source, which may keep silent, is waited for no longer than that.
fn read(
    snapshot: &Snapshot,
    table: &PublishedTable,
    runtime: &Handle,
    tx: SyncSender<io::Result<Vec<u8>>>,
    watch: &ApplyWatch,
    is_over: &AtomicBool,
) -> Result<bool> {
    let mut is_wanted = true;
    let take = &mut |piece: &[u8]| {
        is_wanted = tx.send(Ok(piece.to_vec())).is_ok();
        match is_wanted {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Cancelled, "the rows are not wanted any more")),
        }
    };
    let over = async {
        while !is_over.load(Relaxed) && !watch.is_cancelled() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let copied = runtime.block_on(snapshot.copy(table, take, over));
    match copied {
        Ok(()) if is_wanted => Ok(true),
        Err(error) if is_wanted && (watch.is_cancelled() || !is_over.load(Relaxed)) => {
            // Without it the rows so far would pass for all.
            let _ = tx.send(Err(io::Error::other("the source was lost")));
            Err(error)
        }
        _ => Ok(false),
    }
}

/// Pieces of rows as bytes.
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
