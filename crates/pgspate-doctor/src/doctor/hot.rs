//! Updates that have to write all indexes, as their page has no room or an indexed column changed.

use tokio_postgres::Row;

use super::finding::Check;
use super::scene::{Found, Scene, count};
use pgspate_base::numbers::thousands;

const HOT: Check = Check {
    id: "hot-updates",
    question: "Do updates have to write all indexes?",
    rule: "measured: ten nights of the usual mix left 1.97 M dead rows at fillfactor 100, 0.66 M \
           at 60",
};

/// Fewer updates say little.
const UPDATES_MIN: i64 = 1000;

const TABLES: &str = "\
select c.name, pg_stat_get_tuples_updated(c.oid), pg_stat_get_tuples_hot_updated(c.oid),
       c.fillfactor,
       (select count(*) from pg_index i where i.indrelid = c.oid), pg_relation_size(c.oid),
       NEWPAGE,
       not exists (select from pg_index i where i.indrelid = c.oid and not i.indisprimary)
from tables c
where c.relkind = 'r' and pg_stat_get_tuples_updated(c.oid) >= $2::int8
  and pg_stat_get_tuples_hot_updated(c.oid) < pg_stat_get_tuples_updated(c.oid) / 2
  and exists (select from pg_index i where i.indrelid = c.oid)
order by (pg_stat_get_tuples_updated(c.oid) - pg_stat_get_tuples_hot_updated(c.oid)) desc limit 20";

/// Tables of which less than half of the updates were HOT.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let newpage = match scene.version {
        160_000.. => "pg_stat_get_tuples_newpage_updated(c.oid)",
        _ => "null::int8",
    };
    let sql = TABLES.replace("NEWPAGE", newpage);
    let rows = scene.tables(&sql, &[&UPDATES_MIN]).await?;
    Ok(HOT.found(rows.iter().map(finding), "at least half of each table's updates are HOT"))
}

fn finding(row: &Row) -> super::Finding {
    let table: String = row.get(0);
    let (updated, hot, size) = (count(row, 1), count(row, 2), count(row, 5));
    let (fillfactor, indexes): (i32, i64) = (row.get(3), row.get(4));
    let newpage: Option<i64> = row.get(6);
    let moved = newpage.map_or(String::new(), |rows| {
        format!(", {} went to another page", thousands(rows.unsigned_abs()))
    });
    let text = format!(
        "{:.0} % of {} updates were HOT{moved}; fillfactor {fillfactor}, {indexes} index{}",
        100.0 * hot as f64 / updated as f64,
        thousands(updated),
        if indexes == 1 { "" } else { "es" }
    );
    let finding = HOT
        .note(text)
        .on(&table)
        .count("updates", updated)
        .count("hot_updates", hot)
        .number("fillfactor", fillfactor)
        .weighs(size as f64);
    // Where few moved it was not for want of room.
    let has_room = newpage.is_some_and(|rows| rows.unsigned_abs() < updated / 4);
    if fillfactor <= 70 || has_room {
        return finding.advice(
            "There is room in the pages: an index is on a column that the updates change. An \
             update is HOT only if none is.",
        );
    }
    // A primary key is not what updates change; of other indexes the server does not count it, and
    // a rewrite for nothing is dear.
    if !row.get::<_, bool>(7) {
        return finding.advice(format!(
            "Either an index is on a column that the updates change, and they can never be HOT; or \
             they find no room in their pages. If it is not the first, `alter table {table} set \
             (fillfactor = 70)` leaves room in the pages that are written from then on."
        ));
    }
    let name = table.replace('\'', "''");
    finding
        .advice(
            "Room in each page lets an updated row stay there. What is written already needs a \
             rewrite once, which locks everybody out meanwhile. Its counters begin anew with that.",
        )
        .run(format!("alter table {table} set (fillfactor = 70);"))
        .run(format!("vacuum (full) {table};"))
        .run(format!("select pg_stat_reset_single_table_counters('{name}'::regclass);"))
        .run(format!("vacuum (analyze) {table};"))
}
