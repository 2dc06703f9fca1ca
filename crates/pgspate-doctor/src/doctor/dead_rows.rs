//! Finds tables with many dead rows, and tables that were never vacuumed.

use super::context::{CheckContext, CheckResult, count};
use super::finding::Check;
use pgspate_base::numbers::{bytes, thousands};

const DEAD: Check = Check {
    id: "dead-rows",
    question: "Which tables have many dead rows?",
    rule: "PostgreSQL manual, routine vacuuming: by default, autovacuum starts when dead rows \
           reach a fifth of the rows",
};
const NEVER: Check = Check {
    id: "never-vacuumed",
    question: "Which tables were filled and never vacuumed?",
    rule: "PostgreSQL manual, visibility map: only VACUUM sets it, and index-only scans need it",
};

/// Tables with fewer dead rows are not reported.
const DEAD_MIN: i64 = 1000;
/// Smaller tables are not reported as never vacuumed.
const ROWS_MIN: i64 = 10_000;
/// The proposed `autovacuum_vacuum_scale_factor` of a table that autovacuum reached too late.
const SCALE_FACTOR: f64 = 0.05;

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

/// Finds tables of which a fifth or more of the row versions are dead.
pub(super) async fn check_dead(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.query_tables(DEAD_ROWS, &[&DEAD_MIN]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let (table, is_off): (String, bool) = (row.get(0), row.get(4));
        let (live, dead, size) = (count(row, 1), count(row, 2), count(row, 3));
        let share = dead as f64 / (live + dead).max(1) as f64;
        let last: Option<String> = row.get(5);
        let last = last.map_or("never vacuumed".to_owned(), |it| format!("last vacuumed {it}"));
        let off = if is_off { ", autovacuum is off for this table" } else { "" };
        let text = format!(
            "{} of {} row versions are dead ({:.0} %) in {}; {last}{off}",
            thousands(dead),
            thousands(live + dead),
            share * 100.0,
            bytes(size)
        );
        let finding = DEAD
            .note_or_warning(share >= 0.5, text)
            .about(&table)
            .count("dead_rows", dead)
            .count("live_rows", live)
            .number("share", share)
            .weight(share * size as f64)
            .remedy(format!("vacuum (analyze) {table};"));
        if is_off {
            return finding.remedy(format!("alter table {table} reset (autovacuum_enabled);"));
        }
        let advice =
            "If a nightly job rewrites the table, `pgspate sync` writes only rows that differ.";
        let global = context.setting_number("autovacuum_vacuum_scale_factor").unwrap_or(0.2);
        match row.get::<_, Option<f64>>(6).unwrap_or(global) > SCALE_FACTOR {
            true => finding.advice(advice).remedy(format!(
                "alter table {table} set (autovacuum_vacuum_scale_factor = {SCALE_FACTOR});"
            )),
            false => finding.advice(format!(
                "{advice} Autovacuum should have run long ago: its workers are busy elsewhere, or \
                 something keeps it from removing the rows (see the check `held-back`)."
            )),
        }
    };
    Ok(DEAD.findings_or_ok(rows.iter().map(finding), "no table has a fifth or more of dead rows"))
}

const NEVER_VACUUMED: &str = "\
select c.name, pg_stat_get_live_tuples(c.oid), pg_relation_size(c.oid)
from tables c
where c.relkind in ('r', 'm') and c.relallvisible = 0
  and pg_stat_get_live_tuples(c.oid) >= $2::int8
  and pg_stat_get_vacuum_count(c.oid) + pg_stat_get_autovacuum_count(c.oid) = 0
  and pg_stat_get_tuples_updated(c.oid) + pg_stat_get_tuples_deleted(c.oid) = 0
order by ABOUT desc limit 20";

/// Finds tables that were only inserted into, and never vacuumed.
pub(super) async fn check_never_vacuumed(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.query_tables(NEVER_VACUUMED, &[&ROWS_MIN]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let table: String = row.get(0);
        let (live, size) = (count(row, 1), count(row, 2));
        let text = format!("{} rows, {}, never vacuumed", thousands(live), bytes(size));
        NEVER
            .note(text)
            .about(&table)
            .count("rows", live)
            .weight(size as f64)
            .advice(
                "Index-only scans must read the table, and one day all rows must be frozen at \
                 once. `pgspate load --vacuum` vacuums the table after the load.",
            )
            .remedy(format!("vacuum (freeze, analyze) {table};"))
    };
    Ok(NEVER.findings_or_ok(
        rows.iter().map(finding),
        "every insert-only table was vacuumed, or is small",
    ))
}
