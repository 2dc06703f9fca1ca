//! Attempts to compare and write, after the rows are staged: one transaction for each session, or
//! several for a single session.

use std::mem;

use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::refusal::SyncRefusal;
use super::report::{AdviceFacts, advice, may_be_advised};
use super::session_part::{self, count_at};
use super::statements::Scope;
use super::transactions::{self, CommittedTransactions};
use super::{PreparedSync, SyncReport, vacuum};
use crate::copy::LaneSession;
use crate::numbers::counted;
use crate::reading::LoadWatch;
use crate::{Error, Result, stage};
use pgspate_target::connect::Connection;
use pgspate_target::measure::{self, Measurement};
use pgspate_target::{UPDATES_PER_VACUUM, quote_ident, quote_literal, server_error};

/// From this number of rows on, a key that may be NULL is worth an advice.
const NULLABLE_KEY_ROWS_MIN: u64 = 100_000;

/// Query for the advice. Columns: the largest fillfactor of the table and its partitions; the names
/// of unused indexes that are not unique; the columns of these indexes. Then numbers: updates of
/// the table; HOT updates; updates between two vacuums; rows. The last column is whether the table
/// has partitions. Only they have a fillfactor then.
const ADVICE_FACTS_SQL: &str = "\
select coalesce(max(coalesce((select option_value::int from pg_options_to_table(part.reloptions)
                              where option_name = 'fillfactor'), 100)), 100)::int4,
       array(select i.indexrelid::regclass::text
             from pg_index i join pg_class c on c.oid = i.indrelid and c.relkind in ('r', 'm')
             where i.indrelid = $1 and pg_stat_get_numscans(i.indexrelid) = 0 and not i.indisunique
               and i.indkey::int2[] operator(pg_catalog.&&) array(select attnum from pg_attribute
                                            where attrelid = $1 and attname = any($2))
             order by 1),
       array(select pg_catalog.array_to_string(array(select a.attname from pg_attribute a
                                          where a.attrelid = $1 and a.attnum = any(i.indkey)), ', ')
             from pg_index i join pg_class c on c.oid = i.indrelid and c.relkind in ('r', 'm')
             where i.indrelid = $1 and pg_stat_get_numscans(i.indexrelid) = 0 and not i.indisunique
               and i.indkey::int2[] operator(pg_catalog.&&) array(select attnum from pg_attribute
                                            where attrelid = $1 and attname = any($2))
             order by i.indexrelid::regclass::text),
       coalesce(sum(pg_stat_get_tuples_updated(oid)), 0)::int8,
       coalesce(sum(pg_stat_get_tuples_hot_updated(oid)), 0)::int8,
       coalesce(sum(UPDATES_PER_VACUUM), 0)::int8,
       coalesce(sum(pg_stat_get_live_tuples(oid)), 0)::int8,
       coalesce(bool_or(oid <> $1::oid), false)
from (select oid, reloptions from pg_class
      where relkind <> 'p' and (oid = $1::oid or oid in
            (select relid from pg_partition_tree($1::oid::regclass)))) part";

/// Minimum staged bytes of a sync that is measured on servers that publish statistics only after a
/// pause. Waiting for the statistics would take longer than a smaller sync.
const MEASURED_BYTES_MIN: u64 = 16 << 20;

/// Returns whether a retry of the transaction may succeed, because another session caused the
/// error: a serialization failure or a deadlock.
pub(super) fn is_transient_conflict(error: &Error) -> bool {
    error.sqlstate().is_some_and(|code| matches!(code.code(), "40001" | "40P01"))
}

/// Returns whether an attempt with all source rows staged may succeed. The failed attempt staged
/// only some rows. A source row may have the key of a row that was not staged, or the table has
/// changed since it was read ahead.
pub(super) fn may_succeed_with_all_rows(error: &Error) -> bool {
    is_transient_conflict(error) || error.sqlstate() == Some(&SqlState::UNIQUE_VIOLATION)
}

/// A sync whose rows are staged, over all attempts to compare and write.
pub(super) struct SyncAttempts<'a> {
    sync: &'a PreparedSync,
    sessions: &'a [LaneSession],
    bytes_staged: u64,
    watch: &'a LoadWatch,
    /// Server counters from before the first attempt.
    pub(super) before: Option<Measurement>,
    /// The report of each session that has committed.
    done: Vec<Option<SyncReport>>,
    /// Transactions that a single session has committed.
    pub(super) committed: CommittedTransactions,
    /// Whether the differences are found and writing has begun.
    pub(super) has_begun: bool,
}

impl<'a> SyncAttempts<'a> {
    /// Creates the attempts of a sync that has compared nothing yet.
    pub(super) fn new(
        sync: &'a PreparedSync,
        sessions: &'a [LaneSession],
        bytes_staged: u64,
        watch: &'a LoadWatch,
    ) -> SyncAttempts<'a> {
        let (done, committed) =
            (sessions.iter().map(|_| None).collect(), CommittedTransactions::default());
        let (before, has_begun) = (None, false);
        SyncAttempts { sync, sessions, bytes_staged, watch, before, done, committed, has_begun }
    }

    /// Sets the server counters from before the first attempt, and the transactions that earlier
    /// attempts have committed.
    pub(super) fn resuming(
        self,
        before: Option<Measurement>,
        committed: CommittedTransactions,
    ) -> SyncAttempts<'a> {
        SyncAttempts { before, committed, ..self }
    }

    /// Compares and writes the parts that are not committed yet. If several sessions share the
    /// scopes and one fails, the parts of the others stay committed.
    pub(super) async fn attempt(&mut self) -> Result<SyncReport> {
        let first = &self.sessions[0].connection;
        lock_scope(first, self.sync).await?;
        if self.before.is_none() {
            self.before = measure_before(self.sync, first, self.bytes_staged).await;
        }
        let result = self.locked_attempt().await;
        // If unlocking fails, the lock ends with the session.
        let _ = unlock_scope(first, self.sync).await;
        result
    }

    /// Compares and writes like [`SyncAttempts::attempt`], while the caller holds the lock on the
    /// scope.
    pub(super) async fn locked_attempt(&mut self) -> Result<SyncReport> {
        let result = self.compare_and_write().await;
        if result.is_err() {
            // The transaction's error is reported; an error of the rollback is ignored, because a
            // lost session rolls back anyway.
            roll_back(self.sessions).await;
        }
        result.map_err(|error| {
            let is_unchanged = self.committed.is_empty() && self.sessions_done() == 0;
            self.explain(stage::hint_space(error, self.bytes_staged, is_unchanged))
        })
    }

    /// Compares, checks `--max-delete`, and writes unless this is a check.
    async fn compare_and_write(&mut self) -> Result<SyncReport> {
        let (sync, sessions) = (self.sync, self.sessions);
        let left: Vec<usize> =
            (0..sessions.len()).filter(|nth| self.done[*nth].is_none()).collect();
        self.watch.copy.set_phase(Some("comparing".to_owned()));
        let finding = left.iter().map(|nth| session_part::find_differences(&sessions[*nth], sync));
        let found = join_all(finding).await.into_iter().collect::<Result<Vec<_>>>()?;
        if sync.options.is_check {
            roll_back(sessions).await;
            let mut report = self.report(&found).await?;
            let allowed = match report.rows_in {
                0 if sync.must_have_rows() => SyncRefusal::EmptySource.refuse(""),
                _ => check_max_delete(sync, &report),
            };
            if let Err(refusal) = allowed {
                let why = refusal.messages().join(": ");
                report.warnings.push(format!("without `--check`, this sync is refused: {why}"));
            }
            return Ok(report);
        }
        let all = SyncReport::of_parts(self.done.iter().flatten().chain(&found));
        check_max_delete(sync, &all)?;
        let differences = counted(all.inserted + all.updated + all.deleted, "difference");
        self.watch.copy.set_phase(Some(format!("writing {differences}")));
        let has_written = mem::replace(&mut self.has_begun, true);
        match &sync.split {
            Some(_) => {
                transactions::write_differences(
                    &sessions[0],
                    sync,
                    self.watch,
                    &mut self.committed,
                )
                .await?;
                let written = self.committed.written.clone();
                self.done[0] = Some(SyncReport { rows_in: found[0].rows_in, ..written });
            }
            None => self.write(&left, found, has_written).await?,
        }
        let all: Vec<SyncReport> = self.done.iter_mut().filter_map(Option::take).collect();
        self.report(&all).await
    }

    /// Writes the differences of the sessions with the indexes `left`, which have not committed
    /// yet. `has_written` says whether an earlier attempt may have written rows in them.
    async fn write(
        &mut self,
        left: &[usize],
        found: Vec<SyncReport>,
        has_written: bool,
    ) -> Result<()> {
        let (sync, sessions) = (self.sync, self.sessions);
        let statements = sync.build_statements();
        let writing = left.iter().zip(found);
        let writing = writing.map(|(nth, found)| {
            session_part::write_differences(&sessions[*nth], sync, &statements, found, has_written)
        });
        let mut failure: Option<Error> = None;
        for (nth, written) in left.iter().zip(join_all(writing).await) {
            match written {
                Ok(report) => self.done[*nth] = Some(report),
                // If several sessions fail, report an error that a retry cannot avoid.
                Err(error) if failure.as_ref().is_none_or(is_transient_conflict) => {
                    failure = Some(error)
                }
                Err(_) => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns how many sessions have committed their parts.
    fn sessions_done(&self) -> usize {
        self.done.iter().flatten().count()
    }

    /// Adds a hint to the error: which sessions or transactions have committed.
    fn explain(&self, error: Error) -> Error {
        let (done, all) = (self.sessions_done(), self.sessions.len());
        if self.sync.split.is_some() || done == 0 {
            return self.committed.explain(error);
        }
        error.hint_also(&format!(
            "{done} of {all} sessions committed their scopes. Run the same command again to write \
             the rest. `--lanes 1` writes everything in one transaction."
        ))
    }

    /// Combines the reports of all sessions, and adds measurements and advice.
    ///
    /// # Errors
    /// Only for a check. Otherwise the rows are committed, and failures are warnings.
    async fn report(&self, parts: &[SyncReport]) -> Result<SyncReport> {
        let sync = self.sync;
        let first = &self.sessions[0].connection;
        let mut report = SyncReport {
            table: sync.staging.table.sql_name.clone(),
            is_check: sync.options.is_check,
            insert_only: sync.options.scope == Scope::InsertOnly,
            rows_known: sync.staging.ahead().map(|ahead| ahead.known.matched()),
            transactions: self.committed.transactions.max(1),
            ..SyncReport::of_parts(parts)
        };
        flush_statistics(&self.sessions[1..]).await;
        sync.report_member(first, &mut report).await;
        let is_vacuumed = sync.split.is_some()
            || report.is_check
            || report.dead_rows == 0
            || sync.member.is_some();
        if sync.options.vacuums && !is_vacuumed {
            self.watch.copy.set_phase(Some("vacuum".to_owned()));
            vacuum::run(first, sync.table(), &mut report).await;
        }
        if let Some(before) = &self.before {
            let table = [sync.staging.table.oid];
            let measured = Measurement::take(&first.client, &table).await.since(before);
            report.set_measured(measured, sync.options.price_per_million);
        }
        // The last member advises for all members, as the statistics are those of the table.
        let is_last = report.fleet.as_ref().is_none_or(|member| member.completed);
        if is_last && may_be_advised(&report) {
            match self.read_advice(&report).await {
                Ok(advice) => report.advice = advice,
                Err(error) if report.is_check => return Err(error),
                Err(error) => {
                    let why = error.messages().join(": ");
                    report.warnings.push(format!("no advice: {why}; the rows are written"));
                }
            }
        }
        report.advice.extend(nullable_key_advice(sync, report.rows_in).filter(|_| is_last));
        report.warnings.extend(sync.staging.reading.warnings());
        report.warnings.extend(self.watch.other_types_warning());
        if report.rows_in == 0 && matches!(sync.options.scope, Scope::By(_)) {
            let warning = "the source has no rows, so `--scope-by` finds no scope, and no row is \
                           deleted; `--scope` names the rows by a condition";
            report.warnings.push(warning.to_owned());
        }
        report.input.clone_from(&sync.evidence);
        report.names_warning.clone_from(&sync.staging.reading.names_warning);
        Ok(report)
    }

    /// Returns advice that would make the next sync cheaper.
    async fn read_advice(&self, report: &SyncReport) -> Result<Vec<String>> {
        let (sync, first) = (self.sync, &self.sessions[0].connection);
        let mut facts = read_advice_facts(&first.client, sync).await?;
        facts.can_split = report.has_grown() && can_split(sync, first).await;
        Ok(advice(report, &facts))
    }
}

/// Takes the advisory locks of the sync, and so waits for other syncs of the same rows. Must be
/// called before a snapshot is taken, so that the snapshot includes the other syncs' commits.
pub(super) async fn lock_scope(connection: &Connection, sync: &PreparedSync) -> Result<()> {
    let locks = SyncLock::of_sync(sync);
    for (nth, lock) in locks.iter().enumerate() {
        let call = lock.call_sql("lock");
        if let Err(error) = connection.client.batch_execute(&format!("select {call}")).await {
            let what = "could not wait for another sync of the same rows";
            let error = connection.explain(what, error);
            // The caller takes all locks again. If unlocking fails, they end with the session.
            let _ = unlock(connection, &locks[..nth]).await;
            return Err(error);
        }
    }
    Ok(())
}

/// Releases the advisory locks of the sync.
pub(super) async fn unlock_scope(connection: &Connection, sync: &PreparedSync) -> Result<()> {
    unlock(connection, &SyncLock::of_sync(sync)).await
}

async fn unlock(connection: &Connection, locks: &[SyncLock]) -> Result<()> {
    for lock in locks.iter().rev() {
        let sql = format!("select {}", lock.call_sql("unlock"));
        connection.client.batch_execute(&sql).await.map_err(|error| {
            connection.explain("could not release the lock against other syncs", error)
        })?;
    }
    Ok(())
}

/// Reads the server's counters. Returns `None` if reading them would take longer than the sync, or
/// if other servers store the rows. Counters of a member would include the work of other members,
/// so they are not read either.
pub(super) async fn measure_before(
    sync: &PreparedSync,
    connection: &Connection,
    bytes: u64,
) -> Option<Measurement> {
    let is_measured_here = sync.staging.table.storage.facts().is_measured_here;
    let takes_long =
        !Measurement::can_force_flush(connection.server_version()) && bytes < MEASURED_BYTES_MIN;
    if takes_long || !is_measured_here || sync.member.is_some() {
        return None;
    }
    Some(Measurement::take(&connection.client, &[sync.staging.table.oid]).await)
}

/// Lets the server publish the statistics of the sessions.
async fn flush_statistics(sessions: &[LaneSession]) {
    let all = sessions.iter().map(|session| &session.connection);
    join_all(all.map(|it| measure::flush_counters(&it.client, it.server_version()))).await;
}

async fn roll_back(sessions: &[LaneSession]) {
    let all = sessions.iter().map(|session| session.connection.client.batch_execute("rollback"));
    drop(join_all(all).await);
}

/// Refuses to delete more of the scope than `--max-delete` allows. `--allow-empty` allows a source
/// without rows to delete all rows.
fn check_max_delete(sync: &PreparedSync, report: &SyncReport) -> Result<()> {
    if report.rows_in == 0 && sync.options.may_empty {
        return Ok(());
    }
    let deleted = report.deleted;
    let all = deleted + report.rows_in.saturating_sub(report.inserted);
    let max_percent = sync.options.max_delete;
    let hint = "Raise `--max-delete` if the deletion is intended.";
    let refused = SyncRefusal::TooManyDeletes { deleted, all, max_percent }.refuse("");
    refused.map_err(sync.hint_for_job(hint))
}

/// Advises NOT NULL for the key's columns. The server compares values that may be NULL as arrays,
/// which takes several times as long.
fn nullable_key_advice(sync: &PreparedSync, rows: u64) -> Option<String> {
    let table = &sync.staging.table;
    let is_key = |name: &str| sync.columns.key.iter().any(|column| column.name == name);
    let nullable: Vec<_> = table
        .columns
        .iter()
        .filter(|column| !column.not_null)
        .map(|column| quote_ident(&column.name))
        .filter(|name| is_key(name))
        .map(|name| format!("alter column {name} set not null"))
        .collect();
    (rows >= NULLABLE_KEY_ROWS_MIN && !nullable.is_empty()).then(|| {
        format!(
            "columns of the key may be NULL, which slows the comparison down; if they never are, \
             run `alter table {} {}`",
            table.sql_name,
            nullable.join(", ")
        )
    })
}

async fn read_advice_facts(client: &Client, sync: &PreparedSync) -> Result<AdviceFacts> {
    let table = &sync.staging.table;
    let failed = server_error("could not look up the table's indexes".to_owned());
    let set: Vec<&str> =
        sync.staging.plan.columns.iter().map(|column| column.name.as_str()).collect();
    let sql = ADVICE_FACTS_SQL.replace("UPDATES_PER_VACUUM", UPDATES_PER_VACUUM);
    let row = client.query_one(&sql, &[&table.oid, &set]).await.map_err(failed)?;
    let (names, columns): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
    Ok(AdviceFacts {
        fillfactor: row.get(0),
        unused: names.into_iter().zip(columns).collect(),
        history: [count_at(&row, 3), count_at(&row, 4)],
        updates_per_vacuum: count_at(&row, 5),
        rows: count_at(&row, 6),
        has_partitions: row.get(7),
        can_split: false,
    })
}

/// Returns whether several transactions, with a vacuum after each, could have written the changes.
async fn can_split(sync: &PreparedSync, session: &Connection) -> bool {
    if sync.split.is_some() || sync.staging.is_shared() {
        return false;
    }
    let may = vacuum::is_allowed(session, sync.staging.table.oid).await;
    let shares = super::choose_shares(&sync.staging, &sync.options, &sync.columns).await;
    may.unwrap_or(false) && shares.is_ok_and(|shares| shares.is_ok())
}

/// An advisory lock against other syncs of the same table.
pub(super) struct SyncLock {
    name: String,
    table: u32,
    is_shared: bool,
}

impl SyncLock {
    /// Returns the locks of a sync, in the order in which every sync takes them.
    ///
    /// Syncs of the same scope wait for each other. Syncs of different scopes may insert the same
    /// key. A unique index refuses the second row. Without one, only one sync of the table may
    /// compare and write at a time: members of a fleet too, because other fleets have other claims.
    pub(super) fn of_sync(sync: &PreparedSync) -> Vec<SyncLock> {
        let table = sync.staging.table.oid;
        let of_table = SyncLock {
            name: "pgspate sync without a unique key".to_owned(),
            table,
            is_shared: false,
        };
        let of_scope =
            SyncLock { name: scope_lock_name(sync), table, is_shared: sync.shares_scope_lock() };
        let locks = [(!sync.columns.key_is_unique).then_some(of_table), Some(of_scope)];
        locks.into_iter().flatten().collect()
    }

    /// Returns the call of PostgreSQL's function that does this to the lock: `lock`, `unlock` or
    /// `xact_lock`.
    pub(super) fn call_sql(&self, action: &str) -> String {
        let shared = if self.is_shared { "_shared" } else { "" };
        let (name, table) = (quote_literal(&self.name), self.table);
        format!(
            "pg_catalog.pg_advisory_{action}{shared}(pg_catalog.hashtextextended({name}, {table}))"
        )
    }
}

/// Returns the name of the lock of the sync's scope.
fn scope_lock_name(sync: &PreparedSync) -> String {
    let scope = match &sync.options.scope {
        Scope::By(columns) => format!("by {}", columns.join(",")),
        Scope::Where(predicate) => format!("where {predicate}"),
        Scope::All => "all".to_owned(),
        Scope::NoDelete | Scope::InsertOnly => "some".to_owned(),
    };
    format!("pgspate sync {scope}")
}
