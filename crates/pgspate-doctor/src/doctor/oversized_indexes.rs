//! Finds indexes whose pages are largely empty.
//!
//! The check estimates this from column statistics, and labels it as an estimate. If `pgstattuple`
//! is installed and the role may use it, suspicious indexes are measured exactly, within a budget.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, FINDINGS_MAX, count, still_exists};
use super::exact_sizes::ExactSizes;
use super::finding::{Check, Finding};
use super::indexes::{WRITES, write_cost};
use pgspate_base::numbers::{bytes, counted};

const OVERSIZED: Check = Check {
    id: "oversized-indexes",
    question: "Which indexes take much more space than their entries need?",
    rule: "pgstatindex where pgstattuple is installed: pages less than half full; otherwise an \
           estimate: more than twice what the entries need in pages that are 90 % full; pages \
           added since the last ANALYZE or VACUUM count as full",
};

/// Smaller indexes are not checked.
const BYTES_MIN: i64 = 8 << 20;

/// The fifth column estimates the bytes that the entries need. An entry has a header of 8 bytes,
/// its columns padded to 8, and a line pointer of 4. The estimate is null if the index has an
/// expression, whose width is unknown. `reltuples` and `relpages` are equally old; pages added
/// since then count as needed.
const LARGEST: &str = "\
, largest as (
    select c.oid, c.relname, c.relnamespace, c.reltuples, c.relpages, t.oid as parent,
           t.nspname, t.relname as tab, i.indkey, i.indnatts
    from tables t join pg_index i on i.indrelid = t.oid join pg_class c on c.oid = i.indexrelid
    where c.relkind = 'i' and i.indisvalid and c.reltuples >= 0
      and c.relam = (select oid from pg_am where amname = 'btree')
      and case when t.is_stale then pg_relation_size(c.oid)
               else c.relpages::int8 * current_setting('block_size')::int8 end >= $2::int8
    order by c.relpages desc limit 1000)
select format('%I.%I', n.nspname, c.relname), t.name, file.size, c.oid,
       (select case when count(s.avg_width) = c.indnatts
                    then (greatest(c.reltuples, 0)
                          * (12 + (sum((1 - s.null_frac) * s.avg_width)::int8 + 7) / 8 * 8)
                          / 0.9)::int8
                         + greatest(file.size - c.relpages::int8
                                                * current_setting('block_size')::int8, 0) end
        from unnest(c.indkey::int2[]) as key(attnum)
        left join pg_attribute a on a.attrelid = c.parent and a.attnum = key.attnum
        left join pg_stats s on s.schemaname = c.nspname and s.tablename = c.tab
             and s.attname = a.attname and not s.inherited),
       has_table_privilege(c.parent, 'select'), 0 = any(c.indkey::int2[]), WRITES
from largest c join pg_namespace n on n.oid = c.relnamespace join ours t on t.oid = c.parent
cross join lateral (select pg_relation_size(c.oid) as size) file";

/// Finds indexes whose pages are largely empty.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let mut rows = context.query_tables(&LARGEST.replace("WRITES", WRITES), &[&BYTES_MIN]).await?;
    rows.retain(|row| still_exists(row, 5));
    // The indexes with most wasted bytes are measured first. Without an estimate, half
    // of the index counts as wasted.
    let expected = |row: &Row| row.get::<_, Option<i64>>(4).map(i64::unsigned_abs);
    let wasted_bytes = |row: &Row| {
        let size = count(row, 2);
        size as f64 - expected(row).unwrap_or(size / 2) as f64
    };
    rows.sort_by(|a, b| wasted_bytes(b).total_cmp(&wasted_bytes(a)));
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    let mut exact = ExactSizes::new(context).await;
    for row in &rows {
        let (size, expected) = (count(row, 2), expected(row));
        let is_suspect = expected.is_none_or(|expected| size as f64 > 1.3 * expected as f64);
        let density = match is_suspect {
            true => exact.leaf_density(row.get(3), size).await,
            false => None,
        };
        match (density, expected) {
            (Some(density), _) if density < 50.0 => {
                found.push(finding(row, &format!("its leaf pages are {density:.0} % full")));
            }
            (None, Some(expected)) if size > 2 * expected => {
                let (needed, how) = (bytes(expected), exact.estimate_label());
                found.push(finding(row, &format!("while its entries need about {needed} ({how})")));
            }
            (None, None) if !row.get::<_, bool>(6) => unknown.push((row.get(1), row.get(5))),
            _ => {}
        }
    }
    found.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    found.truncate(FINDINGS_MAX);
    found.extend(OVERSIZED.cannot_see_statistics(&context.rights.role, &unknown));
    Ok(OVERSIZED.findings_or_ok(
        found,
        format!("{} of {} or more checked", counted(rows.len() as u64, "btree"), bytes(8 << 20)),
    ))
}

fn finding(row: &Row, why: &str) -> Finding {
    let (index, table): (String, String) = (row.get(0), row.get(1));
    let (size, (cost, written)) = (count(row, 2), write_cost(row, 7));
    OVERSIZED
        .note(format!("{} on {table}, {why}; {cost}", bytes(size)))
        .about(&index)
        .count("bytes", size)
        .count("entries_written", written)
        .weight(size as f64)
        .advice("The index's empty space takes room in the cache that the table could use.")
        .remedy(format!("reindex index concurrently {index};"))
}
