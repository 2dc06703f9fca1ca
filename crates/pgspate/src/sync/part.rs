//! One session's part of a sync: the rows that it has staged, in transactions of its own.
//!
//! Nothing is written before all sessions have found what differs and the guard has seen it.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::ahead::TableReadAhead;
use super::doubt::SyncRefusal;
use super::statements::{DIFF, Scope, SyncStatements};
use super::{Examples, SyncReport, PreparedSync, ahead, exchange};
use crate::copy::{DURABLY, LaneSession};
use crate::stage::pin;
use crate::{Error, ErrorKind, Result, stage};
use pgspate_target::ledger::check_no_keys_down;
use pgspate_target::measure::{Own, StatementCost};
use pgspate_target::server_error;

/// Begins a transaction that sees one state of the table.
pub(super) const BEGIN: &str = "begin isolation level repeatable read; ";

/// Begins the transaction, unless `begin` is empty and it is open, with its settings.
pub(super) async fn begin(session: &LaneSession, sync: &PreparedSync, begin: &str) -> Result<()> {
    let LaneSession { connection, .. } = session;
    let timeout = sync.options.limits.lock_timeout_millis();
    let begin = format!("{begin}set local lock_timeout = {timeout}; {}", pin::SETTINGS);
    let begun = connection.client.batch_execute(&begin).await;
    begun.map_err(|error| connection.explain("could not begin to compare", error))
}

/// Begins the transaction and finds what differs; nothing is written yet.
pub(super) async fn find(session: &LaneSession, sync: &PreparedSync) -> Result<SyncReport> {
    let LaneSession { connection, rows } = session;
    let client = &connection.client;
    let statements = sync.build();
    let ahead = sync.staging.ahead();
    // Where the table was read ahead it has staged its rows in this transaction.
    begin(session, sync, if ahead.is_some() { "" } else { BEGIN }).await?;
    let (mut rows, mut is_all_in) = (*rows, true);
    if let Some(TableReadAhead { known, .. }) = ahead {
        is_all_in = ahead::tell(connection, known).await?;
        rows += known.met();
    }
    let rows = check_source(client, sync, &statements, rows).await?;
    if !is_all_in {
        ahead::admit(client, sync).await?;
    }
    let mut report = SyncReport { rows_in: rows, ..SyncReport::default() };
    compare(client, &statements, &mut report).await?;
    check_keys(client, sync, &statements, &report).await?;
    check_table_keys(client, sync, &statements).await?;
    if sync.options.is_check {
        report.examples = examples(client, &statements).await?;
    }
    Ok(report)
}

/// Writes what was found, and commits. What was done.
pub(super) async fn write(
    session: &LaneSession,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    found: SyncReport,
) -> Result<SyncReport> {
    let LaneSession { connection, .. } = session;
    let client = &connection.client;
    let oid = sync.staging.table.oid;
    let mut report = found;
    let own = Own::look(client, oid).await?;
    let cost = change(client, sync, statements, &report).await?;
    report.set_cost(cost);
    report.updated_hot = Own::look(client, oid).await?.since(own).updated_hot;
    // No keys can go while this has rows in the table.
    check_no_keys_down(&sync.staging.control().client, oid).await?;
    // Staging did not wait for the disk, this does.
    let committed = client.batch_execute(DURABLY).await;
    committed.map_err(|error| connection.explain("could not commit", error))?;
    Ok(report)
}

/// Looks whether what an earlier transaction has found is as it was: rows to write are at their
/// places, and keys to insert are not there.
pub(super) async fn look_again(
    client: &Client,
    statements: &SyncStatements<'_>,
    found: &SyncReport,
) -> Result<()> {
    let failed = || server_error("could not look again at what differs".to_owned());
    let sql = statements.look_again();
    pin::allow_nested_loop(client, &sql).await.map_err(failed())?;
    let row = client.query_one(&sql, &[]).await.map_err(failed())?;
    if number(&row, 0) == found.deleted + found.updated && number(&row, 1) == 0 {
        return Ok(());
    }
    let message = "rows that differ were changed by another session meanwhile";
    Err(Error::new(ErrorKind::Server, message).with_sqlstate(SqlState::T_R_SERIALIZATION_FAILURE))
}

/// Analyzes what is staged, and refuses what cannot be meant. The rows that count.
async fn check_source(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    staged: u64,
) -> Result<u64> {
    let failed = || server_error("could not look at the staged rows".to_owned());
    let options = &sync.options;
    let mut rows = staged;
    if statements.keeps_last {
        client.batch_execute(&statements.drop_duplicates()).await.map_err(failed())?;
        rows = stage::count(client).await?;
    }
    stage::analyze(client, &statements.finding()).await?;
    let deletes_all = rows == 0 && matches!(options.scope, Scope::All | Scope::Where(_));
    if deletes_all && !options.may_empty && !options.is_check {
        SyncRefusal::EmptySource.refuse("")?;
    }
    if let Some(sql) = statements.strays() {
        pin::allow_nested_loop(client, &sql).await.map_err(failed())?;
        let row = client.query_one(&sql, &[]).await.map_err(server_error(
            "could not compare the source with the predicate of `--scope`".to_owned(),
        ))?;
        SyncRefusal::OutsideScope { outside: number(&row, 0), taken: number(&row, 1) }.refuse("")?;
    }
    if let Some(sql) = statements.movers() {
        pin::allow_nested_loop(client, &sql).await.map_err(failed())?;
        let row = client.query_one(&sql, &[]).await.map_err(failed())?;
        SyncRefusal::KeysInOtherScopes(number(&row, 0)).refuse(sync.at_least())?;
    }
    Ok(rows)
}

/// Refuses keys that the source has more than once. Where the table has each key once, it takes
/// little to see that there are none: as many rows of the source as of the scope have found each
/// other then, and the rest is in the difference.
async fn check_keys(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    report: &SyncReport,
) -> Result<()> {
    let failed = || server_error("could not look at the staged rows".to_owned());
    if statements.keeps_last {
        return Ok(());
    }
    let known = sync.known();
    let is_late = sync.options.is_check || sync.turns.is_some();
    if known > 0 && report.inserted > 0 && is_late {
        // Elsewhere the insert is refused, and nothing is written then.
        let taken = statements.taken();
        pin::allow_nested_loop(client, &taken).await.map_err(failed())?;
        if number(&client.query_one(&taken, &[]).await.map_err(failed())?, 0) > 0 {
            // Which one, the whole source tells.
            return Err(Error::new(ErrorKind::Plan, "a key of the source occurs more than once"));
        }
    }
    if let (true, Some(count)) = (statements.columns.key_is_unique, statements.count_scope()) {
        let scope = number(&client.query_one(&count, &[]).await.map_err(failed())?, 0);
        let is_paired = report.rows_in - known - report.inserted == scope - report.deleted;
        let inserts = statements.duplicates_in_inserts();
        if is_paired && client.query(&inserts, &[]).await.map_err(failed())?.is_empty() {
            return Ok(());
        }
    }
    let duplicates = client.query(&statements.duplicates(), &[]).await.map_err(failed())?;
    let (keys, examples) = equal_keys(&duplicates);
    SyncRefusal::DuplicateSourceKeys { keys, examples }.refuse(sync.at_least())
}

/// Refuses keys of the source that the table has more than once: several rows would become that of
/// the source, which has it once.
async fn check_table_keys(client: &Client, sync: &PreparedSync, statements: &SyncStatements<'_>) -> Result<()> {
    let failed = || server_error("could not look for equal keys in the table".to_owned());
    let Some(sql) = statements.duplicates_in_table() else { return Ok(()) };
    pin::allow_nested_loop(client, &sql).await.map_err(failed())?;
    let duplicates = client.query(&sql, &[]).await.map_err(failed())?;
    let (keys, examples) = equal_keys(&duplicates);
    SyncRefusal::DuplicateTableKeys { keys, examples }.refuse(sync.at_least())
}

/// How many keys occur more than once; some of them, and how often.
fn equal_keys(rows: &[Row]) -> (u64, Vec<(String, u64)>) {
    let examples = rows.iter().map(|row| (row.get(1), number(row, 2))).collect();
    (rows.first().map_or(0, |row| number(row, 0)), examples)
}

/// Finds what differs, in one pass over the source and the scope.
async fn compare(client: &Client, statements: &SyncStatements<'_>, report: &mut SyncReport) -> Result<()> {
    let failed = || server_error("could not compare".to_owned());
    if statements.turns.is_some() {
        // What an earlier attempt has found.
        let drop = format!("drop table if exists {DIFF}");
        client.batch_execute(&drop).await.map_err(failed())?;
    }
    let diff = statements.diff();
    pin::allow_nested_loop(client, &diff).await.map_err(failed())?;
    client.batch_execute(&diff).await.map_err(failed())?;
    client.batch_execute(&statements.analyze_diff()).await.map_err(failed())?;
    let row = client.query_one(&statements.count(), &[]).await.map_err(failed())?;
    (report.deleted, report.updated) = (number(&row, 0), number(&row, 1));
    report.inserted = number(&row, 2);
    Ok(())
}

/// Deletes, updates, inserts: in this order values may move between rows.
async fn change(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    report: &SyncReport,
) -> Result<StatementCost> {
    let mut all = StatementCost::default();
    let what = |what: &str| server_error(format!("could not {what}"));
    let execute = async |sql: String| match statements.columns.found_by_key {
        true => pin::execute_plainly(client, &sql).await,
        false => pin::execute(client, &sql).await,
    };
    let (deletes, updates) = sync.writes();
    if deletes && report.deleted > 0 {
        all.add(execute(statements.delete()).await.map_err(what("delete rows"))?);
    }
    if updates && report.updated > 0 {
        all.add(exchange::update(client, sync, statements).await?);
    }
    if report.inserted > 0 {
        all.add(execute(statements.insert()).await.map_err(what("insert rows"))?);
    }
    let found = report.deleted + report.updated + report.inserted;
    if all.rows != found {
        let message = format!("{found} rows differ, but {} were written", all.rows);
        return Err(Error::new(ErrorKind::Bug, message));
    }
    Ok(all)
}

/// Some keys of what differs.
async fn examples(client: &Client, statements: &SyncStatements<'_>) -> Result<Examples> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for (sql, keys) in statements.examples().iter().zip(&mut all) {
        let failed = server_error("could not look up what differs".to_owned());
        let rows = client.query(sql.as_str(), &[]).await.map_err(failed)?;
        *keys = rows.iter().map(|row| row.get(0)).collect();
    }
    let [delete, update, insert] = all;
    Ok(Examples { insert, update, delete })
}

pub(super) fn number(row: &Row, nth: usize) -> u64 {
    row.get::<_, i64>(nth).unsigned_abs()
}
