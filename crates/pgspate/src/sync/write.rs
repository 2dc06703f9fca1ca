//! The transactions that write what differs: one for each session that has staged rows.

use std::time::Instant;

use futures_util::future::join_all;
use tokio_postgres::Client;

use super::group::{self, number};
use super::report::{Facts, advice};
use super::statements::Scope;
use super::{Report, Sync};
use crate::copy::Kept;
use crate::measure::{self, Measurement};
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

/// Compares and writes. What can be refused is refused before anything is committed.
pub(super) async fn write(sessions: &[Kept], sync: &Sync, bytes_staged: u64) -> Result<Report> {
    let first = &sessions[0].connection;
    let client = &first.client;
    let (scope, oid) = (scope(sync), i64::from(sync.load.table().oid));
    // Before snapshots are taken: whoever had the lock has committed by then.
    let sql = "select pg_advisory_lock(hashtextextended($1, $2))";
    let locked = client.execute(sql, &[&scope, &oid]).await;
    locked.map_err(|error| {
        first.explain("could not wait for another sync of the same scope", error)
    })?;
    let table = [sync.load.table().oid];
    let measures = Measurement::is_prompt(first.server_version()) || bytes_staged >= WORTH_A_PAUSE;
    let before = match measures {
        true => Some(Measurement::take(client, &table).await),
        false => None,
    };
    let mut result = carry_out(sessions, sync).await;
    match (&mut result, before) {
        (Ok(report), Some(before)) => {
            flush(&sessions[1..]).await;
            let measured = Measurement::take(client, &table).await.since(&before);
            report.set_measured(measured, sync.options.price_per_million);
        }
        (Ok(_), None) => {}
        // What a transaction has failed of is told; if the session is gone, so is its work.
        (Err(_), _) => roll_back(sessions).await,
    }
    let sql = "select pg_advisory_unlock(hashtextextended($1, $2))";
    let _ = client.execute(sql, &[&scope, &oid]).await;
    result.map_err(|error| stage::hint_space(error, bytes_staged))
}

async fn carry_out(sessions: &[Kept], sync: &Sync) -> Result<Report> {
    let mut report = together(sessions, sync).await?;
    if sync.options.vacuums && !report.is_check && report.dead_rows > 0 {
        // What is counted after it would call for another one.
        flush(sessions).await;
        report.vacuum_seconds = Some(vacuum(&sessions[0].connection, sync.table()).await?);
    }
    Ok(report)
}

/// Each session finds and then writes its part; they go on only when all have come so far.
async fn together(sessions: &[Kept], sync: &Sync) -> Result<Report> {
    let finding = sessions.iter().map(|kept| group::find(kept, sync));
    let mut parts = join_all(finding).await.into_iter().collect::<Result<Vec<_>>>()?;
    let whole = |parts: &[Report]| Report {
        table: sync.load.table().sql_name.clone(),
        is_check: sync.options.is_check,
        ..Report::of_parts(parts)
    };
    if sync.options.is_check {
        roll_back(sessions).await;
    } else {
        guard(sync, &whole(&parts))?;
        let writing = sessions.iter().zip(&mut parts);
        let writing = writing.map(|(kept, part)| group::write(&kept.connection, sync, part));
        join_all(writing).await.into_iter().collect::<Result<()>>()?;
        commit(sessions).await?;
    }
    let mut report = whole(&parts);
    report.advice = advice(&report, &facts(&sessions[0].connection.client, sync).await?);
    Ok(report)
}

/// Whether the role may vacuum the table; a server that it may not says so in a warning only.
pub(super) async fn may_vacuum(client: &Client, table: u32) -> Result<bool> {
    let sql = "select pg_has_role(relowner, 'usage') or coalesce(
                   (select rolsuper from pg_roles where rolname = current_user), false)
               from pg_class where oid = $1";
    let failed = server_error("could not look up the table's owner".to_owned());
    Ok(client.query_one(sql, &[&table]).await.map_err(failed)?.get(0))
}

/// Lets the space of dead rows be used again. The seconds that it took.
async fn vacuum(session: &Connection, table: &str) -> Result<f64> {
    let started = Instant::now();
    let vacuumed = session.client.batch_execute(&format!("vacuum {table}")).await;
    vacuumed.map_err(|error| {
        let error = session.explain(format!("could not vacuum {table}"), error);
        error.hint("The rows are written; autovacuum comes in its own time.")
    })?;
    Ok(started.elapsed().as_secs_f64())
}

/// Has what sessions counted seen by everybody.
async fn flush(sessions: &[Kept]) {
    let all = sessions.iter().map(|kept| &kept.connection);
    join_all(all.map(|it| measure::flush(&it.client, it.server_version()))).await;
}

/// Commits one after the other. Only a lost connection or server can come between them.
async fn commit(sessions: &[Kept]) -> Result<()> {
    for (nth, Kept { connection, .. }) in sessions.iter().enumerate() {
        let Err(error) = connection.client.batch_execute("commit").await else { continue };
        let error = connection.explain("could not commit", error);
        return Err(match nth {
            0 => error,
            _ => error.hint(format!(
                "{nth} of {} transactions with scopes of their own are committed; the same command \
                 again does the rest.",
                sessions.len()
            )),
        });
    }
    Ok(())
}

async fn roll_back(sessions: &[Kept]) {
    let all = sessions.iter().map(|kept| kept.connection.client.batch_execute("rollback"));
    drop(join_all(all).await);
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
