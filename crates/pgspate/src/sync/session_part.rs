//! One session's part of a sync: compares the rows that it has staged, and writes the differences
//! in its own transactions.
//!
//! Nothing is written before all sessions have found their differences and `--max-delete` is
//! checked.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::ahead::TableReadAhead;
use super::refusal::SyncRefusal;
use super::statements::{DIFF, SyncStatements};
use super::swap_values::{self, WrittenChanges};
use super::{Examples, PreparedSync, SyncReport, ahead};
use crate::copy::{COMMIT_DURABLY, LaneSession};
use crate::fleet::FleetEntry;
use crate::stage::temp_space::table_bytes_sql;
use crate::stage::{STAGE_NAME, planner};
use crate::{Error, ErrorKind, Result, stage};
use pgspate_target::ledger::{check_no_dropped_keys, check_no_dropped_keys_in_transaction};
use pgspate_target::measure::{StatementCost, TransactionCounters};
use pgspate_target::{
    ConcurrentChange, TargetTable, TypedQuery, has_types_sql, read_cascading_keys, server_error,
    users_path_sql,
};

/// The message of an INSERT that the server refused.
const INSERT_REFUSED: &str = "could not insert rows";

/// Bytes of a page, unless the server was built with another size.
const PAGE_BYTES: u64 = 8 << 10;

/// Maximum bytes of a table that the server is expected to have in its cache after a comparison.
const CACHED_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of differences whose table is not analyzed. Its size tells the server's planner
/// enough, and analyzing it would take longer than the statements.
const UNANALYZED_MAX: u64 = 5000;

/// Returns a statement that lowers the cost of pages that are read by their address, for this
/// transaction. The comparison has just read the table, so the server finds the rows in its cache.
/// By the default cost, it would read the whole table once more.
fn cheap_random_pages_sql(table: &TargetTable, changed: u64) -> String {
    let bytes_min = (changed + 1) * 4 * PAGE_BYTES;
    format!(
        "select pg_catalog.set_config('random_page_cost', '1.1', true) \
         from (select {} as size) as stored \
         where size operator(pg_catalog.>=) {bytes_min} \
           and size operator(pg_catalog.<=) {CACHED_BYTES_MAX} \
           and pg_catalog.current_setting('random_page_cost')::float8 \
               operator(pg_catalog.>) 1.1",
        table_bytes_sql(table)
    )
}

/// Begins a transaction that sees a single state of the table.
pub(super) const BEGIN: &str = "begin isolation level repeatable read; ";

/// Begins a transaction with the SQL `begin`, changes the planner settings, and checks that no load
/// has dropped keys of the table. If the transaction is open already, `begin` is empty.
///
/// # Errors
/// [`ErrorKind::Ledger`] if a load has dropped keys of the table. The error of an altered table if
/// the stage has other types than its rows were encoded for.
pub(super) async fn begin_transaction(
    session: &LaneSession,
    sync: &PreparedSync,
    begin: &str,
) -> Result<()> {
    let LaneSession { connection, .. } = session;
    let (staging, failed) = (&sync.staging, "could not begin the comparison");
    let timeout = sync.options.limits.lock_timeout_millis();
    let mut begin = format!("{begin}set local lock_timeout = {timeout}; {}", planner::SETTINGS);
    if staging.locks_table() && !sync.options.is_check {
        // The statement takes no snapshot.
        begin += &format!("; lock table only {} in access share mode", staging.table.sql_name);
    }
    // The snapshot of a table that was read ahead is older than the stage. The table was locked
    // before both, so the stage has the table's types.
    let relation = match staging.ahead() {
        Some(_) => format!("{}::pg_catalog.oid", staging.table.oid),
        None => format!("pg_catalog.to_regclass('{STAGE_NAME}')::pg_catalog.oid"),
    };
    let has_types = format!("select {}", has_types_sql(&relation, &staging.plan.binary_columns()));
    let (begun, has_types) = tokio::join!(
        biased;
        connection.client.batch_execute(&begin),
        connection.client.fetch_one(&has_types, &[])
    );
    begun.map_err(|error| connection.explain(failed, error))?;
    if !has_types.map_err(|error| connection.explain(failed, error))?.get::<_, bool>(0) {
        return Err(ConcurrentChange::Altered.to_error());
    }
    let (control, table) = (&staging.control().client, staging.table.oid);
    match (sync.options.is_check, staging.has_one_session()) {
        (true, _) => {}
        (false, true) => {
            let known = staging.control_session.fleet.as_ref().and_then(FleetEntry::ledger);
            check_no_dropped_keys_in_transaction(control, table, known).await?;
        }
        (false, false) => check_no_dropped_keys(control, table).await?,
    }
    if staging.has_one_session() {
        let set = connection.client.batch_execute(&users_path_sql(true)).await;
        set.map_err(|error| connection.explain(failed, error))?;
    }
    Ok(())
}

/// Begins the transaction and finds the differences. Writes nothing yet.
pub(super) async fn find_differences(
    session: &LaneSession,
    sync: &PreparedSync,
) -> Result<SyncReport> {
    let LaneSession { connection, rows_written } = session;
    let client = &connection.client;
    let statements = sync.build_statements();
    let ahead = sync.staging.ahead();
    sync.begin_generation(client).await?;
    // If the table was read ahead, the transaction is open: the rows were staged in it.
    begin_transaction(session, sync, if ahead.is_some() { "" } else { BEGIN }).await?;
    let (mut rows, mut all_scopes_in_source) = (*rows_written, true);
    if let Some(TableReadAhead { known, .. }) = ahead {
        all_scopes_in_source = ahead::stage_unmatched(connection, known).await?;
        rows += known.matched();
    }
    let rows = check_source(client, sync, &statements, rows).await?;
    sync.claim_scopes(client).await?;
    if !all_scopes_in_source {
        ahead::mark_staged_scopes(client, sync).await?;
    }
    let mut report = SyncReport { rows_in: rows, ..SyncReport::default() };
    let keys = compare(client, &statements, &mut report).await?;
    check_keys(client, sync, &statements, &report, keys).await?;
    check_table_keys(client, sync, &statements).await?;
    if sync.options.is_check {
        report.examples = examples(client, &statements).await?;
    }
    Ok(report)
}

/// Writes the differences that were found, and commits. Returns the report. `has_written` says
/// whether the session may have written rows of the table in an earlier transaction.
pub(super) async fn write_differences(
    session: &LaneSession,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    found: SyncReport,
    has_written: bool,
) -> Result<SyncReport> {
    let LaneSession { connection, .. } = session;
    let client = &connection.client;
    let oid = sync.staging.table.oid;
    let mut report = found;
    let before = match has_written {
        true => TransactionCounters::read(client, oid).await?,
        false => TransactionCounters::default(),
    };
    let written = apply_changes(client, sync, statements, &report).await?;
    let is_measured_here = statements.storage.is_measured_here;
    report.set_cost(is_measured_here.then_some(written.cost));
    let counted = TransactionCounters::read(client, oid).await?.since(before).since(written.undone);
    report.updated_hot = is_measured_here.then_some(counted.updated_hot);
    if is_measured_here {
        let differing = report.deleted + report.updated;
        // An insert fires no action of a foreign key.
        if differing > 0 && counted.deleted + counted.updated > differing {
            SyncRefusal::Cascades(read_cascading_keys(client, oid).await?).refuse("")?;
        }
        report.note_kept_out(counted, &sync.staging.table.sql_name);
    }
    sync.finish_member(client, &mut report).await?;
    if !sync.staging.locks_table() {
        // The rows that this transaction has written lock the table, so no load can drop keys from
        // here on.
        check_no_dropped_keys(&sync.staging.control().client, oid).await?;
    }
    // This commit waits for the disk, unlike the commits of staging.
    let committed = client.batch_execute(COMMIT_DURABLY).await;
    committed.map_err(|error| explain_commit(connection.explain("could not commit", error)))?;
    Ok(report)
}

/// Adds a hint if the connection was lost, because the server may have committed.
fn explain_commit(error: Error) -> Error {
    if error.kind() != ErrorKind::Connect {
        return error;
    }
    error.hint_also(
        "The connection was lost during the commit, so the rows may be written. Run the same \
         command again: it writes only what still differs.",
    )
}

/// Checks that the differences found in an earlier transaction still hold: rows to write are still
/// in place, and keys to insert are still absent.
pub(super) async fn recheck_differences(
    client: &Client,
    statements: &SyncStatements<'_>,
    found: &SyncReport,
) -> Result<()> {
    let failed = || server_error("could not check the differences again".to_owned());
    let sql = statements.recheck();
    statements.planned(client).allow_nested_loop(&sql).await.map_err(failed())?;
    let row = client.query_one(&sql, &[]).await.map_err(failed())?;
    if count_at(&row, 0) == found.deleted + found.updated && count_at(&row, 1) == 0 {
        return Ok(());
    }
    Err(changed_meanwhile())
}

/// Returns the error after which the comparison is repeated.
fn changed_meanwhile() -> Error {
    let message = "another session has changed rows that are to be written";
    Error::new(ErrorKind::Server, message).with_sqlstate(SqlState::T_R_SERIALIZATION_FAILURE)
}

/// Analyzes the stage, and refuses suspicious sources. Returns the number of source rows, without
/// the earlier rows of a key that `--keep last` drops.
async fn check_source(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    staged: u64,
) -> Result<u64> {
    let failed = || server_error("could not check the staged rows".to_owned());
    let options = &sync.options;
    let mut rows = staged;
    if statements.keeps_last {
        client.batch_execute(&statements.drop_duplicates()).await.map_err(failed())?;
        rows = stage::count(client).await?;
    }
    stage::analyze(client, &statements.lookup_columns()).await?;
    if !sync.columns.key_is_unique && !statements.keeps_last {
        // Later queries join the stage and the table, and might match each row with many others.
        refuse_duplicates(client, sync, statements).await?;
    }
    if rows == 0 && sync.must_have_rows() && !options.is_check {
        SyncRefusal::EmptySource.refuse("")?;
    }
    if let Some(sql) = statements.rows_outside_scope() {
        let refused = |error| {
            let message = "could not compare the source with the predicate of `--scope`";
            sync.staging.explain_scope_error(server_error(message.to_owned())(error))
        };
        statements.planned(client).allow_nested_loop(&sql).await.map_err(refused)?;
        let row = client.query_one(&sql, &[]).await.map_err(refused)?;
        SyncRefusal::OutsideScope { outside: count_at(&row, 0), taken: count_at(&row, 1) }
            .refuse("")?;
    }
    if let Some(sql) = statements.keys_in_other_scopes() {
        statements.planned(client).allow_nested_loop(&sql).await.map_err(failed())?;
        let row = client.query_one(&sql, &[]).await.map_err(failed())?;
        let example = row.get::<_, Option<String>>(1).unwrap_or_default();
        SyncRefusal::KeysInOtherScopes { keys: count_at(&row, 0), example }
            .refuse(sync.at_least())?;
    }
    Ok(rows)
}

/// Refuses duplicate keys of the source, if the table's key is unique. Otherwise they were refused
/// before the comparison.
///
/// A cheap check comes first. There are no duplicates if each kept row of the scope matched one
/// source row, and the rows to insert have distinct keys.
async fn check_keys(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    report: &SyncReport,
    counted: Option<KeyCounts>,
) -> Result<()> {
    let failed = || server_error("could not check the staged rows".to_owned());
    if statements.keeps_last || !sync.columns.key_is_unique {
        return Ok(());
    }
    let known = sync.known_rows();
    let must_check_now = sync.options.is_check || sync.split.is_some();
    if known > 0 && report.inserted > 0 && must_check_now {
        // Otherwise the server refuses the insert, and nothing is written.
        let taken = statements.count_taken_keys();
        statements.planned(client).allow_nested_loop(&taken).await.map_err(failed())?;
        if count_at(&client.query_one(&taken, &[]).await.map_err(failed())?, 0) > 0 {
            // A second attempt stages the whole source, and its error names the key.
            return Err(Error::new(ErrorKind::Plan, "a key of the source occurs more than once"));
        }
    }
    if let Some(KeyCounts { scope, inserts_have_duplicates: false }) = counted
        && report.rows_in - known - report.inserted == scope - report.deleted
    {
        return Ok(());
    }
    refuse_duplicates(client, sync, statements).await
}

/// Refuses keys that the source has more than once.
async fn refuse_duplicates(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
) -> Result<()> {
    let failed = server_error("could not check the staged rows".to_owned());
    let duplicates = client.query(&statements.duplicates(), &[]).await.map_err(failed)?;
    let (keys, examples) = parse_duplicates(&duplicates);
    let hint = "Name more columns with `--key`, or write one row of each key.";
    let refused = SyncRefusal::DuplicateSourceKeys { keys, examples }.refuse(sync.at_least());
    refused.map_err(sync.hint_for_job(hint))
}

/// Refuses keys of the source that the table has more than once, because one source row would be
/// written to several rows of the table.
async fn check_table_keys(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
) -> Result<()> {
    let failed = || server_error("could not look for duplicate keys in the table".to_owned());
    let Some(sql) = statements.duplicates_in_table() else { return Ok(()) };
    statements.planned(client).allow_nested_loop(&sql).await.map_err(failed())?;
    let duplicates = client.query(&sql, &[]).await.map_err(failed())?;
    let (keys, examples) = parse_duplicates(&duplicates);
    SyncRefusal::DuplicateTableKeys { keys, examples }.refuse(sync.at_least())
}

/// Returns the number of duplicate keys, and some of them with their counts.
fn parse_duplicates(rows: &[Row]) -> (u64, Vec<(String, u64)>) {
    let examples = rows.iter().map(|row| (row.get(1), count_at(row, 2))).collect();
    (rows.first().map_or(0, |row| count_at(row, 0)), examples)
}

/// What tells whether the source may have duplicate keys.
struct KeyCounts {
    /// Rows in the scope.
    scope: u64,
    /// Whether several rows to insert have the same key.
    inserts_have_duplicates: bool,
}

/// Finds the differences, reading the source and the scope once.
async fn compare(
    client: &Client,
    statements: &SyncStatements<'_>,
    report: &mut SyncReport,
) -> Result<Option<KeyCounts>> {
    if statements.split.is_some() {
        // An earlier attempt may have left its table of differences.
        let drop = format!("drop table if exists {DIFF}");
        client.batch_execute(&drop).await.map_err(compare_error)?;
    }
    let (create, rows) = (statements.create_diff(), statements.diff_rows());
    let planned = statements.planned(client);
    let differences = planned.create_table(&create, &rows).await.map_err(compare_error)?;
    if differences > UNANALYZED_MAX || statements.split.is_some() {
        client.batch_execute(&statements.analyze_diff()).await.map_err(compare_error)?;
    }
    let with_keys = statements.count_differences_and_keys();
    let has_keys = with_keys.is_some();
    let count = with_keys.unwrap_or_else(|| statements.count_differences());
    let row = client.fetch_one(&count, &[]).await.map_err(compare_error)?;
    (report.deleted, report.updated) = (count_at(&row, 0), count_at(&row, 1));
    report.inserted = count_at(&row, 2);
    Ok(has_keys
        .then(|| KeyCounts { scope: count_at(&row, 3), inserts_have_duplicates: row.get(4) }))
}

fn compare_error(error: tokio_postgres::Error) -> Error {
    server_error("could not compare the source with the table".to_owned())(error)
}

/// Deletes rows, then updates rows, then inserts rows. In this order, unique values may move
/// between rows.
async fn apply_changes(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    report: &SyncReport,
) -> Result<WrittenChanges> {
    let mut all = StatementCost::default();
    let mut undone = TransactionCounters::default();
    let failed_to = |what: &str| server_error(format!("could not {what}"));
    let planned = statements.planned(client);
    let changed = report.deleted + report.updated;
    if changed > 0 {
        let set = client.batch_execute(&cheap_random_pages_sql(&sync.staging.table, changed)).await;
        set.map_err(failed_to("set up the session"))?;
    }
    let (deletes, updates) = sync.allowed_writes();
    if deletes && report.deleted > 0 {
        let deleted = planned.execute(&statements.delete()).await;
        let deleted = deleted.map_err(failed_to("delete rows"));
        all.add(deleted.map_err(|error| hint_self_reference(error, sync))?);
    }
    if updates && report.updated > 0 {
        let updates = swap_values::update(client, sync, statements).await?;
        all.add(updates.cost);
        undone = updates.undone;
    }
    if report.inserted > 0 {
        let refused = server_error(INSERT_REFUSED.to_owned());
        all.add(planned.execute_unjoined(&statements.insert()).await.map_err(refused)?);
    }
    let found = report.deleted + report.updated + report.inserted;
    if all.rows != found && !statements.storage.has_row_addresses {
        // The rows were found by key, so other sessions may have changed them in between.
        return Err(changed_meanwhile());
    }
    if all.rows != found {
        let message = format!("{found} rows differ, but {} were written", all.rows);
        return Err(Error::new(ErrorKind::Server, message).hint(
            "The deletes or updates of this sync changed rows that were still to be written: by a \
             trigger, or by a foreign key of the table to itself that deletes or clears. Declare \
             the foreign key without an action and `deferrable initially deferred`.",
        ));
    }
    Ok(WrittenChanges { cost: all, undone })
}

/// Returns whether the INSERT was refused because of a unique value that the table has. Another
/// session may have inserted the value after the snapshot was taken.
pub(super) fn is_refused_as_duplicate(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::UNIQUE_VIOLATION)
        && error.messages().iter().any(|message| message == INSERT_REFUSED)
}

/// Adds a hint, if a deleted row is still referred to by a row of the same table.
fn hint_self_reference(error: Error, sync: &PreparedSync) -> Error {
    let is_refused = error.sqlstate() == Some(&SqlState::FOREIGN_KEY_VIOLATION);
    if !is_refused || sync.staging.table.self_references.is_empty() {
        return error;
    }
    error.hint(
        "Rows are deleted before others are updated, so children move off a deleted parent too \
         late. Declare the foreign key `deferrable initially deferred`.",
    )
}

/// Returns example keys of the differences.
async fn examples(client: &Client, statements: &SyncStatements<'_>) -> Result<Examples> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for (sql, keys) in statements.examples().iter().zip(&mut all) {
        let failed = server_error("could not read examples of the differences".to_owned());
        let rows = client.query(sql.as_str(), &[]).await.map_err(failed)?;
        *keys = rows.iter().map(|row| row.get(0)).collect();
    }
    let [delete, update, insert] = all;
    Ok(Examples { insert, update, delete })
}

/// Returns the count in a column of `row`.
pub(super) fn count_at(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column).unsigned_abs()
}
