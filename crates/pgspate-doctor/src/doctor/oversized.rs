//! Indexes that are largely empty.
//!
//! Estimated from the statistics of the columns, and said to be; where `pgstattuple` is installed
//! and the role may use it, those that seem to be are looked at exactly, within a budget.

use tokio_postgres::Row;

use super::exact::Exact;
use super::finding::{Check, Finding};
use super::indexes::{WRITES, writes};
use super::scene::{FINDINGS_MAX, Found, Scene, count, is_there};
use pgspate_base::numbers::bytes;

const OVERSIZED: Check = Check {
    id: "oversized-indexes",
    question: "Which indexes are larger than their entries?",
    rule: "pgstatindex where there is one; else entries at their width, 90 % full, twice over; \
           pages that came since entries were counted are taken to be full",
};

/// Smaller ones cost too little.
const BYTES_MIN: i64 = 8 << 20;

/// An entry has a header of 8 bytes, its columns padded to 8, and a line pointer of 4. The width of
/// an expression is not known. Entries were counted when pages were: what a load adds until the
/// next time is taken to be needed.
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

/// Indexes that are largely empty.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let mut rows = scene.tables(&LARGEST.replace("WRITES", WRITES), &[&BYTES_MIN]).await?;
    rows.retain(|row| is_there(row, 5));
    // Where most may be to be gained is looked at first; of what is not known, half.
    let expected = |row: &Row| row.get::<_, Option<i64>>(4).map(i64::unsigned_abs);
    let gain = |row: &Row| {
        let size = count(row, 2);
        size as f64 - expected(row).unwrap_or(size / 2) as f64
    };
    rows.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    let mut exact = Exact::new(scene).await;
    for row in &rows {
        let (size, expected) = (count(row, 2), expected(row));
        let is_suspect = expected.is_none_or(|expected| size as f64 > 1.3 * expected as f64);
        let density = match is_suspect {
            true => exact.density(row.get(3), size).await,
            false => None,
        };
        match (density, expected) {
            (Some(density), _) if density < 50.0 => {
                found.push(finding(row, &format!("its pages {density:.0} % full")));
            }
            (None, Some(expected)) if size > 2 * expected => {
                let (needed, how) = (bytes(expected), exact.estimated());
                found.push(finding(row, &format!("for entries that need about {needed} ({how})")));
            }
            (None, None) if !row.get::<_, bool>(6) => unknown.push((row.get(1), row.get(5))),
            _ => {}
        }
    }
    found.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    found.truncate(FINDINGS_MAX);
    found.extend(OVERSIZED.without_statistics(&scene.rights.role, &unknown));
    Ok(OVERSIZED.found(found, format!("{} btrees of {} or more", rows.len(), bytes(8 << 20))))
}

fn finding(row: &Row, why: &str) -> Finding {
    let (index, table): (String, String) = (row.get(0), row.get(1));
    let (size, (cost, written)) = (count(row, 2), writes(row, 7));
    OVERSIZED
        .note(format!("{} on {table}, {why}; {cost}", bytes(size)))
        .on(&index)
        .count("bytes", size)
        .count("entries_written", written)
        .weighs(size as f64)
        .advice("It takes room in the cache that the table could have.")
        .run(format!("reindex index concurrently {index};"))
}
