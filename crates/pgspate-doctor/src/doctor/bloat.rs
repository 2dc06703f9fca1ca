//! Tables whose pages are largely empty or dead.
//!
//! Estimated from the statistics of the columns, and said to be; where `pgstattuple` is installed
//! and the role may use it, those that seem to be are looked at exactly, within a budget.

use tokio_postgres::Row;

use super::exact::Exact;
use super::finding::{Check, Finding};
use super::scene::{FINDINGS_MAX, Found, Scene, count, is_there};
use pgspate_base::numbers::bytes;

const BLOAT: Check = Check {
    id: "bloat",
    question: "Which tables are larger than their rows?",
    rule: "pgstattuple where there is one; else rows times their width from pg_stats, give or take \
           a fifth; pages that came since rows were counted are taken to be full",
};

/// Smaller tables are not worth a word.
const BYTES_MIN: i64 = 8 << 20;
/// From that share on it is worth a word, and a warning.
const SHARES: (f64, f64) = (0.4, 0.7);
/// As estimates are off by a fifth, a table below that needs no exact look.
const DOUBT: f64 = 0.2;

/// Rows at their width, with header, null bitmap and padding; what a fillfactor keeps free is no
/// bloat. Tables without statistics, or that the role may not read, have no estimate. Rows were
/// counted when pages were: what a load adds until the next time is no bloat either.
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

/// Tables of which much is not live.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let mut rows = scene.tables(LARGEST, &[&BYTES_MIN]).await?;
    rows.retain(|row| is_there(row, 5));
    // Where most may be to be gained is looked at first; of what is not known, half.
    let share = |row: &Row| Some(1.0 - row.get::<_, Option<i64>>(3)? as f64 / size(row));
    let gain = |row: &Row| share(row).unwrap_or(0.5) * size(row);
    rows.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    let mut exact = Exact::new(scene).await;
    for row in &rows {
        let looked = match share(row).is_none_or(|share| share >= DOUBT) {
            true => exact.table(row.get(2), count(row, 1)).await,
            false => None,
        };
        match (looked, row.get::<_, Option<i64>>(3)) {
            (Some((dead, free)), _) => found.extend(judge_exact(row, dead, free)),
            (None, Some(expected)) => {
                found.extend(judge_estimate(row, expected, exact.estimated()));
            }
            (None, None) => unknown.push((row.get(0), row.get(5))),
        }
    }
    found.sort_by(|a: &Finding, b| b.weight.total_cmp(&a.weight));
    found.truncate(FINDINGS_MAX);
    found.extend(BLOAT.without_statistics(&scene.rights.role, &unknown));
    Ok(BLOAT.found(found, format!("{} tables of {} or more", rows.len(), bytes(8 << 20))))
}

fn size(row: &Row) -> f64 {
    count(row, 1).max(1) as f64
}

fn judge_exact(row: &Row, dead: f64, free: f64) -> Option<Finding> {
    let size = count(row, 1);
    let kept = f64::from(100 - row.get::<_, i32>(4));
    let share = (dead + (free - kept).max(0.0)) / 100.0;
    let text = format!("{dead:.0} % dead and {free:.0} % free of {}", bytes(size));
    finding(row, size, share, text)
}

fn judge_estimate(row: &Row, expected: i64, estimated: &str) -> Option<Finding> {
    let size = count(row, 1);
    let share = 1.0 - expected as f64 / size.max(1) as f64;
    let text = format!(
        "{} for rows that need about {} ({estimated})",
        bytes(size),
        bytes(expected.unsigned_abs())
    );
    finding(row, size, share, text)
}

fn finding(row: &Row, size: u64, share: f64, text: String) -> Option<Finding> {
    if share < SHARES.0 {
        return None;
    }
    let table: String = row.get(0);
    let finding = BLOAT
        .worse(share >= SHARES.1, text)
        .on(&table)
        .count("bytes", size)
        .number("share", share)
        .weighs(share * size as f64)
        .advice(
            "New rows will use the space once it is vacuumed. To give it back, this rewrites the \
             table and locks everybody out meanwhile; pg_repack does it beside them.",
        );
    Some(finding.run(format!("vacuum (full, analyze) {table};")))
}
