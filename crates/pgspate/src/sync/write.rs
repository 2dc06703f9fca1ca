//! The transactions that write what differs: one for each session that has staged rows, or, for one
//! session, several.

use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::doubt::SyncRefusal;
use super::part::{self, number};
use super::report::{AdviceFacts, advice};
use super::statements::Scope;
use super::turns::{self, CommittedTransactions};
use super::{SyncReport, PreparedSync, vacuum};
use crate::copy::LaneSession;
use crate::reading::LoadWatch;
use crate::{Error, Result, stage};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::check_no_keys_down;
use pgspate_target::measure::{self, Measurement};
use pgspate_target::{Ask, server_error};

/// The table's fillfactor; indexes that no query has used and which are not unique, by names and by
/// columns; updates of the table, and HOT ones.
const FACTS: &str = "\
select coalesce((select option_value::int from pg_class c, pg_options_to_table(c.reloptions)
                 where c.oid = $1::oid and option_name = 'fillfactor'), 100),
       array(select i.indexrelid::regclass::text
             from pg_index i join pg_stat_user_indexes s on s.indexrelid = i.indexrelid
             where i.indrelid = $1 and s.idx_scan = 0 and not i.indisunique
               and i.indkey::int2[] operator(pg_catalog.&&) array(select attnum from pg_attribute
                                            where attrelid = $1 and attname = any($2))
             order by 1),
       array(select pg_catalog.array_to_string(array(select a.attname from pg_attribute a
                                          where a.attrelid = $1 and a.attnum = any(i.indkey)), ', ')
             from pg_index i join pg_stat_user_indexes s on s.indexrelid = i.indexrelid
             where i.indrelid = $1 and s.idx_scan = 0 and not i.indisunique
               and i.indkey::int2[] operator(pg_catalog.&&) array(select attnum from pg_attribute
                                            where attrelid = $1 and attname = any($2))
             order by i.indexrelid::regclass::text),
       coalesce(sum(pg_stat_get_tuples_updated(relid)), 0)::int8,
       coalesce(sum(pg_stat_get_tuples_hot_updated(relid)), 0)::int8
from (select relid::oid from pg_partition_tree($1::oid::regclass)
      union select $1::oid) parts(relid)";

/// Servers that hand over what they count only after a pause are asked when so many bytes are
/// staged.
const WORTH_A_PAUSE: u64 = 16 << 20;

/// Whether the transaction may pass when it is tried again: another session was in its way.
pub(super) fn may_pass(error: &Error) -> bool {
    error.sqlstate().is_some_and(|code| matches!(code.code(), "40001" | "40P01"))
}

/// Likewise, when all rows of the source are staged: the source may have the key of a row that was
/// not, or the table was changed since it was read.
pub(super) fn may_pass_as_a_whole(error: &Error) -> bool {
    may_pass(error) || error.sqlstate() == Some(&SqlState::UNIQUE_VIOLATION)
}

/// A sync whose rows are staged, over as many attempts as it takes.
pub(super) struct SyncAttempts<'a> {
    sync: &'a PreparedSync,
    sessions: &'a [LaneSession],
    bytes_staged: u64,
    watch: &'a LoadWatch,
    /// What was counted before the first attempt.
    pub(super) before: Option<Measurement>,
    /// What each session has committed.
    done: Vec<Option<SyncReport>>,
    /// What one session has committed of several transactions.
    pub(super) committed: CommittedTransactions,
    /// What differs is found, and is being written or is written.
    pub(super) has_begun: bool,
}

impl<'a> SyncAttempts<'a> {
    /// Nothing is compared yet.
    pub(super) fn new(
        sync: &'a PreparedSync,
        sessions: &'a [LaneSession],
        bytes_staged: u64,
        watch: &'a LoadWatch,
    ) -> SyncAttempts<'a> {
        let (done, committed) = (sessions.iter().map(|_| None).collect(), CommittedTransactions::default());
        let (before, has_begun) = (None, false);
        SyncAttempts { sync, sessions, bytes_staged, watch, before, done, committed, has_begun }
    }

    /// With what was counted before, and committed since then.
    pub(super) fn since(self, before: Option<Measurement>, committed: CommittedTransactions) -> SyncAttempts<'a> {
        SyncAttempts { before, committed, ..self }
    }

    /// Compares and writes what is not done yet. Where several sessions share the scopes, what the
    /// others have committed stays when one of them fails.
    pub(super) async fn attempt(&mut self) -> Result<SyncReport> {
        let first = &self.sessions[0].connection;
        lock(first, self.sync).await?;
        if self.before.is_none() {
            self.before = measure_before(self.sync, first, self.bytes_staged).await;
        }
        let result = self.locked_attempt().await;
        // If this fails, the lock ends with the session.
        let _ = unlock(first, self.sync).await;
        result
    }

    /// The same under a lock that is held.
    pub(super) async fn locked_attempt(&mut self) -> Result<SyncReport> {
        let result = self.carry_out().await;
        if result.is_err() {
            // What a transaction has failed of is told; if the session is gone, so is its work.
            roll_back(self.sessions).await;
        }
        result.map_err(|error| {
            let is_untouched = self.committed.is_empty() && self.sessions_done() == 0;
            self.explain(stage::hint_space(error, self.bytes_staged, is_untouched))
        })
    }

    async fn carry_out(&mut self) -> Result<SyncReport> {
        let (sync, sessions) = (self.sync, self.sessions);
        if !sync.options.is_check {
            check_no_keys_down(&sync.staging.control().client, sync.staging.table.oid).await?;
        }
        let left: Vec<usize> =
            (0..sessions.len()).filter(|nth| self.done[*nth].is_none()).collect();
        let finding = left.iter().map(|nth| part::find(&sessions[*nth], sync));
        let found = join_all(finding).await.into_iter().collect::<Result<Vec<_>>>()?;
        if sync.options.is_check {
            roll_back(sessions).await;
            return self.report(&found).await;
        }
        guard(sync, &SyncReport::of_parts(self.done.iter().flatten().chain(&found)))?;
        self.has_begun = true;
        match &sync.turns {
            Some(_) => {
                turns::write(&sessions[0], sync, self.watch, &mut self.committed).await?;
                let written = self.committed.written.clone();
                self.done[0] = Some(SyncReport { rows_in: found[0].rows_in, ..written });
            }
            None => self.write(&left, found).await?,
        }
        let all: Vec<SyncReport> = self.done.iter_mut().filter_map(Option::take).collect();
        self.report(&all).await
    }

    /// Has the sessions that are left write what each has found.
    async fn write(&mut self, left: &[usize], found: Vec<SyncReport>) -> Result<()> {
        let (sync, sessions) = (self.sync, self.sessions);
        let statements = sync.build();
        let writing = left.iter().zip(found);
        let writing =
            writing.map(|(nth, found)| part::write(&sessions[*nth], sync, &statements, found));
        let mut failure: Option<Error> = None;
        for (nth, written) in left.iter().zip(join_all(writing).await) {
            match written {
                Ok(report) => self.done[*nth] = Some(report),
                // What will not pass is what has to be told.
                Err(error) if failure.as_ref().is_none_or(may_pass) => failure = Some(error),
                Err(_) => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// How many of several sessions have committed their parts.
    fn sessions_done(&self) -> usize {
        self.done.iter().flatten().count()
    }

    /// The error, and what is committed all the same.
    fn explain(&self, error: Error) -> Error {
        let (done, all) = (self.sessions_done(), self.sessions.len());
        if self.sync.turns.is_some() || done == 0 {
            return self.committed.explain(error);
        }
        error.hint_also(&format!(
            "Of {all} transactions with scopes of their own {done} are committed; the same command \
             again does the rest. `--lanes 1` makes it one transaction."
        ))
    }

    /// What all of them have come to, and what follows.
    async fn report(&self, parts: &[SyncReport]) -> Result<SyncReport> {
        let sync = self.sync;
        let first = &self.sessions[0].connection;
        let mut report = SyncReport {
            table: sync.staging.table.sql_name.clone(),
            is_check: sync.options.is_check,
            rows_known: sync.staging.ahead().map(|ahead| ahead.known.met()),
            transactions: self.committed.transactions.max(1),
            ..SyncReport::of_parts(parts)
        };
        flush(&self.sessions[1..]).await;
        let is_vacuumed = sync.turns.is_some() || report.is_check || report.dead_rows == 0;
        if sync.options.vacuums && !is_vacuumed {
            vacuum::run(first, sync.table(), &mut report).await;
        }
        if let Some(before) = &self.before {
            let table = [sync.staging.table.oid];
            let measured = Measurement::take(&first.client, &table).await.since(before);
            report.set_measured(measured, sync.options.price_per_million);
        }
        let mut facts = facts(&first.client, sync).await?;
        facts.may_take_turns = report.has_grown() && may_take_turns(sync, first).await;
        report.advice = advice(&report, &facts);
        Ok(report)
    }
}

/// Waits for other syncs of the same rows, until this session or its lock ends. To be called before
/// snapshots are taken: whoever had the lock has committed by then.
pub(super) async fn lock(connection: &Connection, sync: &PreparedSync) -> Result<()> {
    let (scope, oid) = (scope(sync), i64::from(sync.staging.table.oid));
    let sql = "select pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended($1, $2))";
    let locked = connection.client.ask_one(sql, &[&scope, &oid]).await;
    let what = "could not wait for another sync of the same scope";
    locked.map(drop).map_err(|error| connection.explain(what, error))
}

/// Lets the others in.
pub(super) async fn unlock(connection: &Connection, sync: &PreparedSync) -> Result<()> {
    let (scope, oid) = (scope(sync), i64::from(sync.staging.table.oid));
    let sql = "select pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended($1, $2))";
    let unlocked = connection.client.ask_one(sql, &[&scope, &oid]).await;
    unlocked.map(drop).map_err(|error| connection.explain("could not let other syncs in", error))
}

/// What was counted before, unless looking takes longer than what there is to do.
pub(super) async fn measure_before(
    sync: &PreparedSync,
    connection: &Connection,
    bytes: u64,
) -> Option<Measurement> {
    if !Measurement::is_prompt(connection.server_version()) && bytes < WORTH_A_PAUSE {
        return None;
    }
    Some(Measurement::take(&connection.client, &[sync.staging.table.oid]).await)
}

/// Has what sessions counted seen by everybody.
async fn flush(sessions: &[LaneSession]) {
    let all = sessions.iter().map(|session| &session.connection);
    join_all(all.map(|it| measure::flush(&it.client, it.server_version()))).await;
}

async fn roll_back(sessions: &[LaneSession]) {
    let all = sessions.iter().map(|session| session.connection.client.batch_execute("rollback"));
    drop(join_all(all).await);
}

/// Refuses to delete more of the scope than may be.
fn guard(sync: &PreparedSync, report: &SyncReport) -> Result<()> {
    let deleted = report.deleted;
    let all = deleted + report.rows_in.saturating_sub(report.inserted);
    let may = sync.options.max_delete;
    SyncRefusal::TooManyDeletes { deleted, all, may }.refuse("")
}

async fn facts(client: &Client, sync: &PreparedSync) -> Result<AdviceFacts> {
    let table = &sync.staging.table;
    let failed = server_error("could not look up the table's indexes".to_owned());
    let set: Vec<&str> =
        sync.staging.plan.columns.iter().map(|column| column.name.as_str()).collect();
    let row = client.query_one(FACTS, &[&table.oid, &set]).await.map_err(failed)?;
    let (names, columns): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
    Ok(AdviceFacts {
        fillfactor: row.get(0),
        unused: names.into_iter().zip(columns).collect(),
        history: [number(&row, 3), number(&row, 4)],
        may_take_turns: false,
    })
}

/// Whether several transactions could have written what one did, with a vacuum after each.
async fn may_take_turns(sync: &PreparedSync, session: &Connection) -> bool {
    if sync.turns.is_some() || sync.staging.is_shared() {
        return false;
    }
    let may = vacuum::is_allowed(session, sync.staging.table.oid).await;
    let shares = super::share(&sync.staging, &sync.options, &sync.columns).await;
    may.unwrap_or(false) && shares.is_ok_and(|shares| shares.is_ok())
}

/// What two syncs of the same rows of a table have in common.
pub(super) fn scope(sync: &PreparedSync) -> String {
    let scope = match &sync.options.scope {
        Scope::By(columns) => format!("by {}", columns.join(",")),
        Scope::Where(predicate) => format!("where {predicate}"),
        Scope::All => "all".to_owned(),
        Scope::NoDelete | Scope::InsertOnly => "some".to_owned(),
    };
    format!("pgspate sync {scope}")
}
