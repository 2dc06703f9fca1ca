//! Tables whose pages are largely empty or dead.
//!
//! Exact where `pgstattuple` is installed and the role may use it, else estimated from the
//! statistics of the columns, and said to be.

use tokio_postgres::Row;

use super::finding::{Check, Finding};
use super::scene::{Found, Scene, count, tuples};
use crate::numbers::bytes;

const BLOAT: Check = Check {
    id: "bloat",
    question: "Which tables are larger than their rows?",
    rule: "pgstattuple where there is one; else rows times their width from pg_stats, give or take \
           a fifth",
};

/// Smaller tables are not worth a word.
const BYTES_MIN: i64 = 8 << 20;
/// Tables that are looked at exactly.
const EXACT_MAX: usize = 20;
/// Of a table larger than this even the quick look takes long.
const EXACT_BYTES_MAX: u64 = 16 << 30;
/// From that share on it is worth a word, and a warning.
const SHARES: (f64, f64) = (0.4, 0.7);

/// Rows at their width, with header, null bitmap and padding; what a fillfactor keeps free is no
/// bloat. Tables without statistics, or that the role may not read, have no estimate.
const TABLES: &str = "\
select format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid), c.oid,
       case when w.columns = (select count(*) from pg_attribute a where a.attrelid = c.oid
                              and a.attnum > 0 and not a.attisdropped)
                 and c.reltuples >= 0
            then (ceil(greatest(c.reltuples, 0)
                       / greatest(floor((current_setting('block_size')::int8 - 24)
                                        * fill.factor / 100.0
                                        / ((24 + w.width + 7)::int8 / 8 * 8 + 4)), 1))
                  * current_setting('block_size')::int8)::int8 end,
       fill.factor, has_table_privilege(c.oid, 'select')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
cross join lateral (select count(*) as columns,
                           coalesce(sum((1 - null_frac) * avg_width), 0)::int8 as width
                    from pg_stats s
                    where s.schemaname = n.nspname and s.tablename = c.relname
                      and not s.inherited) w
cross join lateral (select coalesce((select option_value::int
                                     from pg_options_to_table(c.reloptions)
                                     where option_name = 'fillfactor'), 100) as factor) fill
where c.relkind in ('r', 'm') and c.relpersistence <> 't'
  and n.nspname !~ '^(pg_|information_schema$|pgspate$)'
  and ($1::oid = 0 or c.oid = $1
       or c.oid in (select relid from pg_partition_tree($1::oid::regclass)))
  and pg_relation_size(c.oid) >= $2::int8
order by 2 desc limit 1000";

/// Tables of which much is not live.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.client.query(TABLES, &[&scene.table, &BYTES_MIN]).await?;
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for (nth, row) in rows.iter().enumerate() {
        let size = count(row, 1);
        let exact = match nth < EXACT_MAX && size <= EXACT_BYTES_MAX {
            true => tuples(scene.client, row.get(2)).await,
            false => None,
        };
        match (exact, row.get::<_, Option<i64>>(3)) {
            (Some((dead, free)), _) => found.extend(judge_exact(row, dead, free)),
            (None, Some(expected)) => found.extend(judge_estimate(row, expected)),
            (None, None) => unknown.push((row.get(0), row.get(5))),
        }
    }
    found.extend(hidden(scene, &unknown));
    if found.is_empty() {
        found.push(BLOAT.ok(format!("{} tables of {} or more", rows.len(), bytes(8 << 20))));
    }
    Ok(found)
}

/// Tables without statistics, and those whose statistics this role does not see.
fn hidden(scene: &Scene<'_>, tables: &[(String, bool)]) -> Vec<Finding> {
    let role = crate::target::quote_ident(&scene.rights.role);
    let finding = |is_readable: bool, why: &str| {
        let mine = tables.iter().filter(|(_, readable)| *readable == is_readable);
        let names: Vec<&str> = mine.map(|(name, _)| name.as_str()).collect();
        let first = *names.first()?;
        let more =
            if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        let finding = BLOAT.cannot_see(format!("{why} {first}{more}"));
        Some(match is_readable {
            true => finding.run(format!("analyze {first};")),
            false => finding.run(format!("grant select on {first} to {role};")),
        })
    };
    let never = finding(true, "there are no statistics of");
    let closed = finding(false, "this role does not see the statistics of");
    never.into_iter().chain(closed).collect()
}

fn judge_exact(row: &Row, dead: f64, free: f64) -> Option<Finding> {
    let size = count(row, 1);
    let kept = f64::from(100 - row.get::<_, i32>(4));
    let share = (dead + (free - kept).max(0.0)) / 100.0;
    let text = format!("{dead:.0} % dead and {free:.0} % free of {}", bytes(size));
    finding(row, size, share, text)
}

fn judge_estimate(row: &Row, expected: i64) -> Option<Finding> {
    let size = count(row, 1);
    let share = 1.0 - expected as f64 / size.max(1) as f64;
    let text = format!(
        "{} for rows that need about {} (estimated)",
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
