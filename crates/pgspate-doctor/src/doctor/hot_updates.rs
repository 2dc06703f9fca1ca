//! Finds tables whose updates write all indexes, because the page has no room for the new row
//! version or an indexed column changed.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, count};
use super::finding::Check;
use pgspate_base::numbers::thousands;
use pgspate_target::{UPDATES_PER_VACUUM, advised_fillfactor};

const HOT: Check = Check {
    id: "hot-updates",
    question: "Do updates have to write all indexes?",
    rule: "measured: after ten nights of a typical update job, fillfactor 100 left 1.97 M dead \
           rows, fillfactor 60 left 0.66 M",
};

/// A table with fewer updates is not judged.
const UPDATES_MIN: i64 = 1000;

const TABLES: &str = "\
select c.name, pg_stat_get_tuples_updated(c.oid), pg_stat_get_tuples_hot_updated(c.oid),
       c.fillfactor,
       (select count(*) from pg_index i where i.indrelid = c.oid), pg_relation_size(c.oid),
       NEWPAGE,
       not exists (select from pg_index i where i.indrelid = c.oid and not i.indisprimary),
       UPDATES_PER_VACUUM, pg_stat_get_live_tuples(c.oid)
from tables c
where c.relkind = 'r' and pg_stat_get_tuples_updated(c.oid) >= $2::int8
  and pg_stat_get_tuples_hot_updated(c.oid) < pg_stat_get_tuples_updated(c.oid) / 2
  and exists (select from pg_index i where i.indrelid = c.oid)
order by (pg_stat_get_tuples_updated(c.oid) - pg_stat_get_tuples_hot_updated(c.oid)) desc limit 20";

/// Finds tables of which less than half of the updates were HOT.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let newpage = match context.version {
        160_000.. => "pg_stat_get_tuples_newpage_updated(c.oid)",
        _ => "null::int8",
    };
    let sql = TABLES.replace("NEWPAGE", newpage).replace("UPDATES_PER_VACUUM", UPDATES_PER_VACUUM);
    let rows = context.query_tables(&sql, &[&UPDATES_MIN]).await?;
    Ok(HOT
        .findings_or_ok(rows.iter().map(finding), "at least half of each table's updates are HOT"))
}

fn finding(row: &Row) -> super::Finding {
    let table: String = row.get(0);
    let (updated, hot, size) = (count(row, 1), count(row, 2), count(row, 5));
    let (fillfactor, indexes): (i32, i64) = (row.get(3), row.get(4));
    let newpage: Option<i64> = row.get(6);
    let moved = newpage.map_or(String::new(), |rows| {
        format!(", {} moved to another page", thousands(rows.unsigned_abs()))
    });
    let text = format!(
        "{:.0} % of {} updates were HOT{moved}; fillfactor {fillfactor}, {indexes} index{}",
        100.0 * hot as f64 / updated as f64,
        thousands(updated),
        if indexes == 1 { "" } else { "es" }
    );
    let finding = HOT
        .note(text)
        .about(&table)
        .count("updates", updated)
        .count("hot_updates", hot)
        .number("fillfactor", fillfactor)
        .weight(size as f64);
    // If few rows moved to another page, the pages had room.
    let has_room = newpage.is_some_and(|rows| rows.unsigned_abs() < updated / 4);
    let advised = advised_fillfactor(count(row, 8), count(row, 9));
    if fillfactor <= advised || has_room {
        return finding.advice(
            "The pages have room, so an index is on a column that the updates change. An update is \
             HOT only if it changes no indexed column.",
        );
    }
    // Updates rarely change a primary key. Whether they change columns of other indexes is unknown,
    // and a needless rewrite is expensive.
    if !row.get::<_, bool>(7) {
        return finding.advice(format!(
            "Either an index is on a column that the updates change, so they can never be HOT, or \
             the updates find no room in their pages. In the second case, `alter table {table} set \
             (fillfactor = {advised})` leaves room in all pages that are written from then on."
        ));
    }
    let name = table.replace('\'', "''");
    finding
        .advice(
            "With free room in its page, an updated row can stay there. Existing pages need one \
             rewrite, which blocks all readers and writers meanwhile. The counters are reset so \
             that this check judges only later updates.",
        )
        .remedy(format!("alter table {table} set (fillfactor = {advised});"))
        .remedy(format!("vacuum (full) {table};"))
        .remedy(format!("select pg_stat_reset_single_table_counters('{name}'::regclass);"))
        .remedy(format!("vacuum (analyze) {table};"))
}
