//! Finds tables whose pages hold much free space or many dead rows.
//!
//! The check estimates bloat from column statistics, and labels it as an estimate. If `pgstattuple`
//! is installed and the role may use it, suspicious tables are measured exactly, within a budget.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, FINDINGS_MAX, count, still_exists};
use super::exact_sizes::ExactSizes;
use super::finding::{Check, Finding};
use pgspate_base::numbers::{bytes, counted};

const BLOAT: Check = Check {
    id: "bloat",
    question: "Which tables take much more space than their rows need?",
    rule: "pgstattuple where it is installed; otherwise an estimate from row count and widths in \
           pg_stats, within about 20 %; pages added since the last ANALYZE or VACUUM count as full",
};

/// Smaller tables are not checked.
const BYTES_MIN: i64 = 8 << 20;
/// The least share of wasted space at which the finding is a note.
const NOTE_SHARE: f64 = 0.4;
/// The least share of wasted space at which the finding is a warning.
const WARNING_SHARE: f64 = 0.7;
/// The least estimated share at which a table is measured exactly. Estimates are off by up to 20 %.
const SUSPECT_SHARE: f64 = 0.2;

/// The fourth column estimates the bytes that the rows need: their width with header, null bitmap
/// and padding, at the table's fillfactor. The column is null without statistics, or if the role
/// may not read the table. `reltuples` and `relpages` are equally old; pages added since then count
/// as needed, so a running load is no bloat.
const LARGEST: &str = "\
, largest as (
    select c.oid, c.name, c.nspname, c.relname, c.reltuples, c.relpages, c.fillfactor
    from tables c where c.relkind in ('r', 'm') and ABOUT >= $2::int8
    order by ABOUT desc limit 1000)
select c.name, file.size, c.oid,
       case when w.columns = (select count(*) from pg_attribute a where a.attrelid = c.oid
                              and a.attnum > 0 and not a.attisdropped)
                 and c.reltuples >= 0 and c.relpages > 0
            then (ceil(greatest(c.reltuples, 0)
                       / greatest(floor((current_setting('block_size')::int8 - 24)
                                        * c.fillfactor / 100.0
                                        / ((24 + w.width + 7)::int8 / 8 * 8 + 4)), 1))
                  * current_setting('block_size')::int8)::int8
                 + greatest(file.size
                            - c.relpages::int8 * current_setting('block_size')::int8, 0) end,
       c.fillfactor, has_table_privilege(c.oid, 'select')
from largest c
cross join lateral (select pg_relation_size(c.oid) as size) file
cross join lateral (select count(*) as columns,
                           coalesce(sum((1 - null_frac) * avg_width), 0)::int8 as width
                    from pg_stats s
                    where s.schemaname = c.nspname and s.tablename = c.relname
                      and not s.inherited) w";

/// Finds tables that hold much free space or many dead rows.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let mut rows = context.query_tables(LARGEST, &[&BYTES_MIN]).await?;
    rows.retain(|row| still_exists(row, 5));
    // The tables with most wasted bytes are measured first. Without an estimate, half
    // of the table counts as wasted.
    let share = |row: &Row| Some(1.0 - row.get::<_, Option<i64>>(3)? as f64 / size(row));
    let wasted_bytes = |row: &Row| share(row).unwrap_or(0.5) * size(row);
    rows.sort_by(|a, b| wasted_bytes(b).total_cmp(&wasted_bytes(a)));
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    let mut exact = ExactSizes::new(context).await;
    for row in &rows {
        let measured = match share(row).is_none_or(|share| share >= SUSPECT_SHARE) {
            true => exact.dead_and_free_percent(row.get(2), count(row, 1)).await,
            false => None,
        };
        match (measured, row.get::<_, Option<i64>>(3)) {
            (Some((dead, free)), _) => found.extend(judge_exact(row, dead, free)),
            (None, Some(expected)) => {
                found.extend(judge_estimate(row, expected, exact.estimate_label()));
            }
            (None, None) => unknown.push((row.get(0), row.get(5))),
        }
    }
    found.sort_by(|a: &Finding, b| b.weight.total_cmp(&a.weight));
    found.truncate(FINDINGS_MAX);
    found.extend(BLOAT.cannot_see_statistics(&context.rights.role, &unknown));
    Ok(BLOAT.findings_or_ok(
        found,
        format!("{} of {} or more checked", counted(rows.len() as u64, "table"), bytes(8 << 20)),
    ))
}

fn size(row: &Row) -> f64 {
    count(row, 1).max(1) as f64
}

fn judge_exact(row: &Row, dead: f64, free: f64) -> Option<Finding> {
    let size = count(row, 1);
    let kept = f64::from(100 - row.get::<_, i32>(4));
    let share = (dead + (free - kept).max(0.0)) / 100.0;
    let text = format!("of {}, {dead:.0} % is dead rows and {free:.0} % is free", bytes(size));
    finding(row, size, share, text)
}

fn judge_estimate(row: &Row, expected: i64, label: &str) -> Option<Finding> {
    let size = count(row, 1);
    let share = 1.0 - expected as f64 / size.max(1) as f64;
    let text = format!(
        "{} for rows that need about {} ({label})",
        bytes(size),
        bytes(expected.unsigned_abs())
    );
    finding(row, size, share, text)
}

fn finding(row: &Row, size: u64, share: f64, text: String) -> Option<Finding> {
    if share < NOTE_SHARE {
        return None;
    }
    let table: String = row.get(0);
    let finding = BLOAT
        .note_or_warning(share >= WARNING_SHARE, text)
        .about(&table)
        .count("bytes", size)
        .number("share", share)
        .weight(share * size as f64)
        .advice(
            "After a VACUUM, new rows reuse the space. VACUUM FULL returns it to the system, but \
             rewrites the table and blocks all readers and writers meanwhile. The tool pg_repack \
             rewrites it without blocking them.",
        );
    Some(finding.remedy(format!("vacuum (full, analyze) {table};")))
}
