//! Dead rows, and tables that nobody has ever vacuumed.

use super::finding::Check;
use super::scene::{Found, Scene, count};
use pgspate_base::numbers::{bytes, thousands};

const DEAD: Check = Check {
    id: "dead-rows",
    question: "Which tables carry many dead rows?",
    rule: "PostgreSQL manual, routine vacuuming: autovacuum should come at a fifth of the rows",
};
const NEVER: Check = Check {
    id: "never-vacuumed",
    question: "Which tables were filled and never vacuumed?",
    rule: "PostgreSQL manual, visibility map: only VACUUM fills it, and index-only scans need it",
};

/// Fewer dead rows cost nothing.
const DEAD_MIN: i64 = 1000;
/// Smaller tables are read faster than one could think of them.
const ROWS_MIN: i64 = 10_000;
/// Autovacuum should come at this share of dead rows, where it came too late.
const SCALE: f64 = 0.05;

const DEAD_ROWS: &str = "\
select c.name, pg_stat_get_live_tuples(c.oid),
       pg_stat_get_dead_tuples(c.oid), pg_relation_size(c.oid),
       coalesce((select not option_value::bool from pg_options_to_table(c.reloptions)
                 where option_name = 'autovacuum_enabled'), false),
       greatest(pg_stat_get_last_vacuum_time(c.oid),
                pg_stat_get_last_autovacuum_time(c.oid))::timestamptz(0)::text,
       (select option_value::float8 from pg_options_to_table(c.reloptions)
        where option_name = 'autovacuum_vacuum_scale_factor')
from tables c
where c.relkind in ('r', 'm') and pg_stat_get_dead_tuples(c.oid) >= $2::int8
  and pg_stat_get_dead_tuples(c.oid) >= pg_stat_get_live_tuples(c.oid) / 4
order by pg_stat_get_dead_tuples(c.oid) desc limit 20";

/// Tables of which a fifth or more is dead.
pub(super) async fn dead(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(DEAD_ROWS, &[&DEAD_MIN]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let (table, is_off): (String, bool) = (row.get(0), row.get(4));
        let (live, dead, size) = (count(row, 1), count(row, 2), count(row, 3));
        let share = dead as f64 / (live + dead).max(1) as f64;
        let last: Option<String> = row.get(5);
        let last = last.map_or("never vacuumed".to_owned(), |it| format!("last vacuumed {it}"));
        let off = if is_off { ", autovacuum is off for it" } else { "" };
        let text = format!(
            "{} of {} row versions are dead ({:.0} %) in {}; {last}{off}",
            thousands(dead),
            thousands(live + dead),
            share * 100.0,
            bytes(size)
        );
        let finding = DEAD
            .worse(share >= 0.5, text)
            .on(&table)
            .count("dead_rows", dead)
            .count("live_rows", live)
            .number("share", share)
            .weighs(share * size as f64)
            .run(format!("vacuum (analyze) {table};"));
        if is_off {
            return finding.run(format!("alter table {table} reset (autovacuum_enabled);"));
        }
        let advice = "If a nightly job rewrites it, `pgspate sync` writes only what differs.";
        let global = scene.setting_number("autovacuum_vacuum_scale_factor").unwrap_or(0.2);
        match row.get::<_, Option<f64>>(6).unwrap_or(global) > SCALE {
            true => finding.advice(advice).run(format!(
                "alter table {table} set (autovacuum_vacuum_scale_factor = {SCALE});"
            )),
            false => finding.advice(format!(
                "{advice} Autovacuum should have come long ago: its workers are busy elsewhere, or \
                 something held the rows back."
            )),
        }
    };
    Ok(DEAD.found(rows.iter().map(finding), "no table has a fifth of dead rows"))
}

const NEVER_VACUUMED: &str = "\
select c.name, pg_stat_get_live_tuples(c.oid), pg_relation_size(c.oid)
from tables c
where c.relkind in ('r', 'm') and c.relallvisible = 0
  and pg_stat_get_live_tuples(c.oid) >= $2::int8
  and pg_stat_get_vacuum_count(c.oid) + pg_stat_get_autovacuum_count(c.oid) = 0
  and pg_stat_get_tuples_updated(c.oid) + pg_stat_get_tuples_deleted(c.oid) = 0
order by ABOUT desc limit 20";

/// Tables that have been inserted into, and never vacuumed.
pub(super) async fn never(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(NEVER_VACUUMED, &[&ROWS_MIN]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let table: String = row.get(0);
        let (live, size) = (count(row, 1), count(row, 2));
        let text = format!("{} rows, {}, never vacuumed", thousands(live), bytes(size));
        NEVER
            .note(text)
            .on(&table)
            .count("rows", live)
            .weighs(size as f64)
            .advice(
                "Queries cannot take rows from an index alone, and all rows have to be frozen \
                     one day, at once. `pgspate load --vacuum` does it after the load.",
            )
            .run(format!("vacuum (freeze, analyze) {table};"))
    };
    Ok(NEVER.found(rows.iter().map(finding), "no table of rows that are only inserted"))
}
