//! The transaction that writes what differs.

use tokio_postgres::{Client, Row};

use super::pin;
use super::report::{Facts, advice};
use super::statements::{Scope, Statements};
use super::{Examples, Report, Sync};
use crate::copy::Outcome;
use crate::measure::{Measurement, Own, StatementCost};
use crate::stage;
use crate::target::connect::Connection;
use crate::target::server_error;
use crate::{Error, Kind, Result};

/// The table's fillfactor; indexes that no query has used and which are not unique, by names and by
/// columns; updates of the table, and HOT ones.
const FACTS: &str = "\
select coalesce((select option_value::int from pg_class c, pg_options_to_table(c.reloptions)
                 where c.oid = $1::oid and option_name = 'fillfactor'), 100),
       array(select i.indexrelid::regclass::text
             from pg_index i join pg_stat_user_indexes s on s.indexrelid = i.indexrelid
             where i.indrelid = $1 and s.idx_scan = 0 and not i.indisunique
               and i.indkey::int2[] && array(select attnum from pg_attribute
                                            where attrelid = $1 and attname = any($2))
             order by 1),
       array(select array_to_string(array(select a.attname from pg_attribute a
                                          where a.attrelid = $1 and a.attnum = any(i.indkey)), ', ')
             from pg_index i join pg_stat_user_indexes s on s.indexrelid = i.indexrelid
             where i.indrelid = $1 and s.idx_scan = 0 and not i.indisunique
               and i.indkey::int2[] && array(select attnum from pg_attribute
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

/// Compares and writes, in one transaction.
pub(super) async fn write(session: &Connection, sync: &Sync, staged: &Outcome) -> Result<Report> {
    let client = &session.client;
    let (scope, oid) = (scope(sync), i64::from(sync.load.table().oid));
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| session.explain(what, error)
    };
    // Before the snapshot is taken: whoever had the lock has committed by then.
    let sql = "select pg_advisory_lock(hashtextextended($1, $2))";
    let locked = client.execute(sql, &[&scope, &oid]).await;
    locked.map_err(failed("could not wait for another sync of the same scope"))?;
    let table = [sync.load.table().oid];
    let measures =
        Measurement::is_prompt(session.server_version()) || staged.bytes_sent >= WORTH_A_PAUSE;
    let before = match measures {
        true => Some(Measurement::take(client, &table).await),
        false => None,
    };
    let mut result = in_transaction(session, sync, staged.rows_written).await;
    match (&mut result, before) {
        (Ok(report), Some(before)) => {
            let measured = Measurement::take(client, &table).await.since(&before);
            report.set_measured(measured, sync.options.price_per_million);
        }
        (Ok(_), None) => {}
        // What the transaction has failed of is told; if the session is gone, so is the lock.
        (Err(_), _) => drop(client.batch_execute("rollback").await),
    }
    let sql = "select pg_advisory_unlock(hashtextextended($1, $2))";
    let _ = client.execute(sql, &[&scope, &oid]).await;
    result.map_err(|error| stage::hint_space(error, staged.bytes_sent))
}

async fn in_transaction(session: &Connection, sync: &Sync, staged: u64) -> Result<Report> {
    let client = &session.client;
    let statements = sync.build();
    let table = sync.load.table();
    let timeout = sync.options.load.limits.lock_timeout_millis();
    let failed = || server_error("could not begin to compare".to_owned());
    let begin = format!(
        "begin isolation level repeatable read; set local lock_timeout = {timeout}; {}",
        pin::SETTINGS
    );
    client.batch_execute(&begin).await.map_err(failed())?;
    let rows = check_source(client, sync, &statements, staged).await?;
    let mut report = Report {
        table: table.sql_name.clone(),
        rows_in: rows,
        is_check: sync.options.is_check,
        ..Report::default()
    };
    let own = Own::look(client, table.oid).await?;
    compare(client, &statements, &mut report).await?;
    check_keys(client, &statements, &report).await?;
    if sync.options.is_check {
        report.examples = examples(client, &statements).await?;
        client.batch_execute("rollback").await.map_err(failed())?;
    } else {
        guard(sync, &report)?;
        let cost = change(client, sync, &statements, &mut report).await?;
        report.set_cost(cost);
        report.updated_hot = Own::look(client, table.oid).await?.since(own).updated_hot;
        let committed = client.batch_execute("commit").await;
        committed.map_err(|error| session.explain("could not commit", error))?;
    }
    let matched = rows.saturating_sub(report.inserted);
    report.unchanged = matched.saturating_sub(report.updated);
    report.advice = advice(&report, &facts(client, sync).await?);
    Ok(report)
}

/// Analyzes what is staged, and refuses what cannot be meant. The rows that count.
async fn check_source(
    client: &Client,
    sync: &Sync,
    statements: &Statements<'_>,
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
        let message = "the source has no rows: all rows of the scope would be deleted";
        return Err(
            Error::new(Kind::Plan, message).hint("Say `--allow-empty` if that is what is meant.")
        );
    }
    if let Some(sql) = statements.strays() {
        let row = client.query_one(&sql, &[]).await.map_err(server_error(
            "could not compare the source with the predicate of `--scope`".to_owned(),
        ))?;
        let (outside, taken) = (number(&row, 0), number(&row, 1));
        if outside + taken > 0 {
            let message = match outside {
                0 => format!(
                    "{} of the source: the key of a row out of the scope",
                    some(taken, "row")
                ),
                _ => format!("{} of the source out of the scope", some(outside, "row")),
            };
            return Err(Error::new(Kind::Plan, message)
                .hint("Widen `--scope`, or leave these rows out of the source."));
        }
    }
    if let Some(sql) = statements.movers() {
        pin::allow_nested_loop(client, &sql).await.map_err(failed())?;
        let row = client.query_one(&sql, &[]).await.map_err(failed())?;
        if number(&row, 0) > 0 {
            let message = format!(
                "{} of the source: the key of a row in a scope that the source does not have",
                some(number(&row, 0), "row")
            );
            return Err(Error::new(Kind::Plan, message)
                .hint("Add the columns of `--scope-by` to `--key`, or use `--scope all`."));
        }
    }
    Ok(rows)
}

/// Refuses keys that the source has more than once. Where the table has each key once, it takes
/// little to see that there are none: as many rows of the source as of the scope have found each
/// other then, and the rest is in the difference.
async fn check_keys(client: &Client, statements: &Statements<'_>, report: &Report) -> Result<()> {
    let failed = || server_error("could not look at the staged rows".to_owned());
    if statements.keeps_last {
        return Ok(());
    }
    if let (true, Some(count)) = (statements.columns.key_is_unique, statements.count_scope()) {
        let scope = number(&client.query_one(&count, &[]).await.map_err(failed())?, 0);
        let is_paired = report.rows_in - report.inserted == scope - report.deleted;
        let inserts = statements.duplicates_in_inserts();
        if is_paired && client.query(&inserts, &[]).await.map_err(failed())?.is_empty() {
            return Ok(());
        }
    }
    let duplicates = client.query(&statements.duplicates(), &[]).await.map_err(failed())?;
    let Some(first) = duplicates.first() else { return Ok(()) };
    let examples: Vec<String> = duplicates
        .iter()
        .map(|row| format!("({}) {} times", row.get::<_, &str>(1), row.get::<_, i64>(2)))
        .collect();
    let keys = some(first.get::<_, i64>(0).unsigned_abs(), "key");
    let message = format!("{keys} of the source occur more than once: {}", examples.join(", "));
    Err(Error::new(Kind::Plan, message)
        .hint("Name more columns with `--key`, or keep the last of them with `--keep last`."))
}

/// Finds what differs, in one pass over the source and the scope.
async fn compare(client: &Client, statements: &Statements<'_>, report: &mut Report) -> Result<()> {
    let failed = || server_error("could not compare".to_owned());
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
    sync: &Sync,
    statements: &Statements<'_>,
    report: &mut Report,
) -> Result<StatementCost> {
    let mut all = StatementCost::default();
    let what = |what: &str| server_error(format!("could not {what}"));
    let (deletes, updates) = sync.writes();
    if deletes && report.deleted > 0 {
        all.add(pin::execute(client, &statements.delete()).await.map_err(what("delete rows"))?);
    }
    if updates && report.updated > 0 {
        all.add(pin::execute(client, &statements.update()).await.map_err(what("update rows"))?);
    }
    if report.inserted > 0 {
        all.add(pin::execute(client, &statements.insert()).await.map_err(what("insert rows"))?);
    }
    let found = report.deleted + report.updated + report.inserted;
    if all.rows != found {
        let message = format!("{found} rows differ, but {} were written", all.rows);
        return Err(Error::new(Kind::Bug, message));
    }
    Ok(all)
}

/// Refuses to delete more of the scope than may be.
fn guard(sync: &Sync, report: &Report) -> Result<()> {
    let deleted = report.deleted;
    let all = deleted + report.rows_in.saturating_sub(report.inserted);
    let may = sync.options.max_delete;
    if deleted as f64 <= all as f64 * may / 100.0 {
        return Ok(());
    }
    let share = 100.0 * deleted as f64 / all as f64;
    let message = format!(
        "{deleted} of {all} rows of the scope ({share:.1} %) would be deleted, and at most {may} % \
         may be"
    );
    Err(Error::new(Kind::Plan, message)
        .hint("See with `--check` which, and raise `--max-delete` if that is what is meant."))
}

/// Some keys of what differs.
async fn examples(client: &Client, statements: &Statements<'_>) -> Result<Examples> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for (sql, keys) in statements.examples().iter().zip(&mut all) {
        let failed = server_error("could not look up what differs".to_owned());
        let rows = client.query(sql.as_str(), &[]).await.map_err(failed)?;
        *keys = rows.iter().map(|row| row.get(0)).collect();
    }
    let [delete, update, insert] = all;
    Ok(Examples { insert, update, delete })
}

async fn facts(client: &Client, sync: &Sync) -> Result<Facts> {
    let table = sync.load.table();
    let failed = server_error("could not look up the table's indexes".to_owned());
    let set: Vec<&str> = sync.load.columns().iter().map(|column| column.name.as_str()).collect();
    let row = client.query_one(FACTS, &[&table.oid, &set]).await.map_err(failed)?;
    let (names, columns): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
    Ok(Facts {
        fillfactor: row.get(0),
        unused: names.into_iter().zip(columns).collect(),
        history: [number(&row, 3), number(&row, 4)],
    })
}

fn number(row: &Row, nth: usize) -> u64 {
    row.get::<_, i64>(nth).unsigned_abs()
}

/// What two syncs of the same rows of a table have in common.
pub(super) fn scope(sync: &Sync) -> String {
    let scope = match &sync.options.scope {
        Scope::By(columns) => format!("by {}", columns.join(",")),
        Scope::Where(predicate) => format!("where {predicate}"),
        Scope::All => "all".to_owned(),
        Scope::NoDelete | Scope::InsertOnly => "some".to_owned(),
    };
    format!("pgspate sync {scope}")
}

/// `1 row`, `2 rows`.
fn some(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}
