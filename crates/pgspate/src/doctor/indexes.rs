//! Indexes that cost more than they give: unused, duplicate, oversized.

use tokio_postgres::Row;

use super::finding::{Check, Finding};
use super::scene::{Found, Scene, attempt, count, schema_of};
use crate::numbers::{bytes, thousands};

const UNUSED: Check = Check {
    id: "unused-indexes",
    question: "Which indexes does no query read?",
    rule: "pg_stat_all_indexes.idx_scan since the statistics began; replicas count their own",
};
const DUPLICATE: Check = Check {
    id: "duplicate-indexes",
    question: "Which indexes does another one make superfluous?",
    rule: "same columns, operators, order and predicate; or the beginning of a longer btree",
};
const OVERSIZED: Check = Check {
    id: "oversized-indexes",
    question: "Which indexes are larger than their entries?",
    rule: "pgstatindex where there is one; else entries at their width, 90 % full, twice over",
};

/// Smaller ones cost too little.
const UNUSED_BYTES_MIN: i64 = 1 << 20;
const OVERSIZED_BYTES_MIN: i64 = 8 << 20;

/// Each row that is inserted, and each update that is not HOT, writes an entry. What enforces
/// something, identifies rows for replication or is clustered on is used without being scanned. So
/// is what serves a foreign key on the day when a row that is referred to is deleted, and what is
/// part of a partitioned index cannot be dropped alone.
const UNUSED_INDEXES: &str = "\
select format('%I.%I', n.nspname, c.relname), format('%I.%I', tn.nspname, t.relname),
       pg_relation_size(c.oid),
       pg_stat_get_tuples_inserted(t.oid) + pg_stat_get_tuples_updated(t.oid)
           - pg_stat_get_tuples_hot_updated(t.oid),
       (select count(*) from pg_index o where o.indrelid = t.oid),
       s.stats_reset::timestamptz(0)::text,
       now() - coalesce(s.stats_reset, pg_postmaster_start_time()) < interval '7 days'
from pg_stat_database s, pg_index i join pg_class c on c.oid = i.indexrelid
join pg_namespace n on n.oid = c.relnamespace
join pg_class t on t.oid = i.indrelid join pg_namespace tn on tn.oid = t.relnamespace
where c.relkind = 'i' and i.indisvalid and tn.nspname !~ '^(pg_|information_schema$|pgspate$)'
  and s.datname = current_database() and not c.relispartition
  and not exists (select from pg_constraint k where k.contype = 'f' and k.conrelid = t.oid
                    and (i.indkey::int2[])[0:cardinality(k.conkey) - 1] @> k.conkey)
  and not i.indisunique and not i.indisexclusion and not i.indisreplident and not i.indisclustered
  and pg_stat_get_numscans(c.oid) = 0 and pg_relation_size(c.oid) >= $2::int8
  and ($1::oid = 0 or t.oid = $1
       or t.oid in (select relid from pg_partition_tree($1::oid::regclass)))
order by 3 desc limit 20";

/// Indexes that no query has read, and those that another one makes superfluous. Where both are
/// true only the first is said: of two indexes that could stand for each other, one stays.
pub(super) async fn superfluous(scene: &Scene<'_>) -> Found {
    let mut found = unused(scene).await?;
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    dropped.extend(found.iter().filter_map(|finding| finding.object.clone()));
    for (finding, other) in duplicate(scene).await? {
        let is_there = |name: &String| dropped.contains(name);
        if !finding.object.iter().any(is_there) && !is_there(&other) {
            dropped.extend(finding.object.clone());
            kept.push(finding);
        }
    }
    if kept.is_empty() {
        kept.push(DUPLICATE.ok("none"));
    }
    found.extend(kept);
    Ok(found)
}

/// Indexes that no query has read.
async fn unused(scene: &Scene<'_>) -> Found {
    let rows = scene.client.query(UNUSED_INDEXES, &[&scene.table, &UNUSED_BYTES_MIN]).await?;
    if rows.is_empty() {
        return Ok(vec![UNUSED.ok("none of a megabyte or more")]);
    }
    let finding = |row: &Row| {
        let (index, table): (String, String) = (row.get(0), row.get(1));
        let (size, written, siblings) = (count(row, 2), count(row, 3), count(row, 4));
        let since: Option<String> = row.get(5);
        let since = since.map_or("statistics began".to_owned(), |it| it);
        let text = format!(
            "{} on {table}, no scan since {since}, {} entries written; one of {siblings} indexes",
            bytes(size),
            thousands(written)
        );
        // What runs once a week has not had its turn in a younger count.
        let is_young: bool = row.get(6);
        UNUSED
            .worse(written > 0 && size >= 64 << 20 && !is_young, text)
            .on(&index)
            .count("bytes", size)
            .count("entries_written", written)
            .weighs(size as f64)
            .advice(
                "Each row that is written writes an entry here, too. Ask the replicas first: \
                 they count their own scans; and let statistics be older than what runs seldom.",
            )
            .run(format!("drop index concurrently {index};"))
    };
    Ok(rows.iter().map(finding).collect())
}

/// `b` can do what `a` does. Of two that are equal the one that enforces nothing goes, or the one
/// that was made later.
const DUPLICATES: &str = "\
with idx as (
    select i.*, c.relname, c.relam, coalesce(c.reloptions::text, '') as options,
           -- Asked by name, as servers before 15 have no such column.
           coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') as distinct_nulls,
           format('%I.%I', n.nspname, c.relname) as name,
           format('%I.%I', tn.nspname, t.relname) as tab, pg_relation_size(c.oid) as bytes,
           coalesce(pg_get_expr(i.indpred, i.indrelid), '') as pred,
           coalesce(pg_get_expr(i.indexprs, i.indrelid), '') as exprs,
           exists (select from pg_constraint k where k.conindid = i.indexrelid) as is_constraint,
           (select amname from pg_am where oid = c.relam) as method
    from pg_index i join pg_class c on c.oid = i.indexrelid
    join pg_namespace n on n.oid = c.relnamespace join pg_class t on t.oid = i.indrelid
    join pg_namespace tn on tn.oid = t.relnamespace
    where c.relkind = 'i' and i.indisvalid and i.indislive
      and tn.nspname !~ '^(pg_|information_schema$|pgspate$)'
      and ($1::oid = 0 or t.oid = $1))
select distinct on (a.indexrelid) a.name, a.tab, b.name, a.bytes,
       a.indkey = b.indkey as is_same
from idx a join idx b on a.indrelid = b.indrelid and a.indexrelid <> b.indexrelid
     and a.relam = b.relam and a.pred = b.pred
where not a.is_constraint and not a.indisreplident
  and (a.indkey = b.indkey and a.indclass = b.indclass and a.indcollation = b.indcollation
         and a.indoption = b.indoption and a.exprs = b.exprs and a.indnkeyatts = b.indnkeyatts
         and (not a.indisunique or b.indisunique and a.indimmediate = b.indimmediate
                                   and a.distinct_nulls = b.distinct_nulls)
         and a.options = b.options
         and (b.is_constraint or b.indisunique and not a.indisunique
              or a.indisunique = b.indisunique and a.indexrelid > b.indexrelid)
    or not a.indisunique and a.options = b.options and a.method = 'btree'
         and a.exprs = '' and b.exprs = ''
         and a.indnatts = a.indnkeyatts and a.indnkeyatts < b.indnkeyatts
         and b.indkey::text like a.indkey::text || ' %'
         and b.indclass::text like a.indclass::text || ' %'
         and b.indcollation::text like a.indcollation::text || ' %'
         and b.indoption::text like a.indoption::text || ' %')
order by a.indexrelid, a.indkey = b.indkey desc, b.bytes";

/// Indexes that another one makes superfluous, each with that one's name.
async fn duplicate(scene: &Scene<'_>) -> Result<Vec<(Finding, String)>, tokio_postgres::Error> {
    let rows = scene.rows(DUPLICATES).await?;
    let finding = |row: &Row| {
        let (index, table, other): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let (size, is_same) = (count(row, 3), row.get::<_, bool>(4));
        let text = match is_same {
            true => format!("{} on {table}, the same as {other}", bytes(size)),
            false => format!("{} on {table}, the beginning of {other}", bytes(size)),
        };
        let finding = DUPLICATE
            .worse(is_same, text)
            .on(&index)
            .count("bytes", size)
            .weighs(size as f64)
            .advice("Each row that is written writes an entry to both.")
            .run(format!("drop index concurrently {index};"));
        (finding, other)
    };
    Ok(rows.iter().map(finding).collect())
}

/// An entry has a header of 8 bytes, its columns padded to 8, and a line pointer of 4.
const SIZES: &str = "\
select format('%I.%I', n.nspname, c.relname), format('%I.%I', tn.nspname, t.relname),
       pg_relation_size(c.oid), c.oid,
       (select case when count(s.avg_width) = i.indnatts
                    then (greatest(c.reltuples, 0)
                          * (12 + (sum((1 - s.null_frac) * s.avg_width)::int8 + 7) / 8 * 8)
                          / 0.9)::int8 end
        from unnest(i.indkey::int2[]) as key(attnum)
        left join pg_attribute a on a.attrelid = t.oid and a.attnum = key.attnum
        left join pg_stats s on s.schemaname = tn.nspname and s.tablename = t.relname
             and s.attname = a.attname and not s.inherited)
from pg_index i join pg_class c on c.oid = i.indexrelid
join pg_namespace n on n.oid = c.relnamespace
join pg_class t on t.oid = i.indrelid join pg_namespace tn on tn.oid = t.relnamespace
where c.relkind = 'i' and i.indisvalid and c.relam = (select oid from pg_am where amname = 'btree')
  and tn.nspname !~ '^(pg_|information_schema$|pgspate$)' and c.reltuples >= 0
  and pg_relation_size(c.oid) >= $2::int8
  and ($1::oid = 0 or t.oid = $1
       or t.oid in (select relid from pg_partition_tree($1::oid::regclass)))
order by 3 desc limit 20";

/// Indexes that are largely empty.
pub(super) async fn oversized(scene: &Scene<'_>) -> Found {
    let rows = scene.client.query(SIZES, &[&scene.table, &OVERSIZED_BYTES_MIN]).await?;
    let schema = schema_of(scene.client, "pgstattuple").await;
    let mut found = Vec::new();
    for row in &rows {
        let (index, table): (String, String) = (row.get(0), row.get(1));
        let size = count(row, 2);
        let density = match &schema {
            Some(schema) => density(scene, schema, row.get(3)).await,
            None => None,
        };
        let text = match (density, row.get::<_, Option<i64>>(4)) {
            (Some(density), _) if density < 50.0 => {
                format!("{} on {table}, its pages {density:.0} % full", bytes(size))
            }
            (None, Some(expected)) if size > 2 * expected.unsigned_abs() => format!(
                "{} on {table} for entries that need about {} (estimated)",
                bytes(size),
                bytes(expected.unsigned_abs())
            ),
            _ => continue,
        };
        found.push(
            OVERSIZED
                .note(text)
                .on(&index)
                .count("bytes", size)
                .weighs(size as f64)
                .advice("It takes room in the cache that the table could have.")
                .run(format!("reindex index concurrently {index};")),
        );
    }
    if found.is_empty() {
        found.push(OVERSIZED.ok(format!("{} btrees of {} or more", rows.len(), bytes(8 << 20))));
    }
    Ok(found)
}

/// How full the leaves are, in percent.
async fn density(scene: &Scene<'_>, schema: &str, oid: u32) -> Option<f64> {
    let sql = format!("select avg_leaf_density from {schema}.pgstatindex({oid}::oid::regclass)");
    attempt(scene.client, &sql).await.map(|row| row.get(0))
}
