//! Indexes that cost more than they give: unused, and duplicate.
//!
//! What each costs is said: its bytes, and how many entries rows that were written have written to
//! it. What is a part of a partitioned index cannot be dropped alone, and is never named.

use tokio_postgres::Row;

use super::finding::{Check, Finding};
use super::scene::{Found, SINCE, Scene, count};
use pgspate_base::numbers::{bytes, thousands};

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

/// Smaller ones cost too little.
const UNUSED_BYTES_MIN: i64 = 1 << 20;

/// Two columns: how many entries have been written to each index of table `t` since its statistics
/// began, as each row that is inserted and each update that is not HOT writes one; and how many
/// indexes it has. Of a partitioned table it is the rows of its parts.
pub(super) const WRITES: &str = "\
(with recursive part(oid) as (
     select t.oid union all
     select h.inhrelid from pg_inherits h join part on h.inhparent = part.oid
     where t.relkind = 'p')
 select sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
            - pg_stat_get_tuples_hot_updated(oid))::int8 from part),
(select count(*) from pg_index o where o.indrelid = t.oid)";

/// Those two columns in words, from the `nth` on, and in numbers.
pub(super) fn writes(row: &Row, nth: usize) -> (String, u64) {
    let (written, siblings) = (count(row, nth), count(row, nth + 1));
    let written_words = thousands(written);
    let among = match siblings {
        1 => "the only index".to_owned(),
        _ => format!("one of {siblings} indexes"),
    };
    (format!("{written_words} entries written, {among}"), written)
}

/// What enforces something, identifies rows for replication or is clustered on is used without
/// being scanned. So is what serves a foreign key on the day when a row that is referred to is
/// deleted.
const UNUSED_INDEXES: &str = "\
select format('%I.%I', n.nspname, c.relname), t.name, pg_relation_size(c.oid), WRITES,
       SINCE::timestamptz(0)::text, coalesce(now() - SINCE < interval '7 days', true)
from pg_stat_database d, tables t
join pg_index i on i.indrelid = t.oid join pg_class c on c.oid = i.indexrelid
join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'i' and i.indisvalid and not c.relispartition
  and d.datname = current_database()
  and not exists (select from pg_constraint k where k.contype = 'f' and k.conrelid = t.oid
                    and (i.indkey::int2[])[0:cardinality(k.conkey) - 1]
                        operator(pg_catalog.@>) k.conkey)
  and not i.indisunique and not i.indisexclusion and not i.indisreplident and not i.indisclustered
  and pg_stat_get_numscans(c.oid) = 0
  and case when t.is_stale then pg_relation_size(c.oid)
           else c.relpages::int8 * current_setting('block_size')::int8 end >= $2::int8
order by c.relpages desc limit 20";

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
    found.extend(DUPLICATE.found(kept, "none"));
    Ok(found)
}

/// Indexes that no query has read.
async fn unused(scene: &Scene<'_>) -> Found {
    let sql = UNUSED_INDEXES.replace("WRITES", WRITES).replace("SINCE", SINCE);
    let rows = scene.tables(&sql, &[&UNUSED_BYTES_MIN]).await?;
    let finding = |row: &Row| {
        let (index, table): (String, String) = (row.get(0), row.get(1));
        let (size, (cost, written)) = (count(row, 2), writes(row, 3));
        let since: Option<String> = row.get(5);
        let since = since.map_or("statistics began".to_owned(), |it| it);
        let text = format!("{} on {table}, no scan since {since}; {cost}", bytes(size));
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
    Ok(UNUSED.found(rows.iter().map(finding), "none of a megabyte or more"))
}

/// `b` can do what `a` does. Of two that are equal the one that enforces nothing goes, or the one
/// that was made later.
const DUPLICATES: &str = "\
, idx as (
    select i.*, c.relname, c.relam, c.relkind, c.relispartition, c.relpages,
           coalesce(c.reloptions::text, '') as options,
           -- Asked by name, as servers before 15 have no such column.
           coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') as distinct_nulls,
           format('%I.%I', n.nspname, c.relname) as name,
           coalesce(pg_get_expr(i.indpred, i.indrelid), '') as pred,
           coalesce(pg_get_expr(i.indexprs, i.indrelid), '') as exprs,
           i.indexrelid in (select conindid from pg_constraint) as is_constraint,
           (select amname from pg_am where oid = c.relam) as method
    from tables t join pg_index i on i.indrelid = t.oid join pg_class c on c.oid = i.indexrelid
    join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('i', 'I') and i.indisvalid and i.indislive),
pairs as (
select distinct on (a.indexrelid) a.indexrelid, a.indrelid, a.name, b.name as other,
       a.indkey = b.indkey as is_same, a.relkind = 'I' as is_whole, a.relpages
from idx a join idx b on a.indrelid = b.indrelid and a.indexrelid <> b.indexrelid
     and a.relam = b.relam and a.pred = b.pred
where not a.is_constraint and not a.indisreplident and not a.indisclustered
  and not a.relispartition
  and (a.indkey = b.indkey and a.indclass = b.indclass and a.indcollation = b.indcollation
         and a.indoption = b.indoption and a.exprs = b.exprs and a.indnkeyatts = b.indnkeyatts
         and (not a.indisunique or b.indisunique and a.indimmediate = b.indimmediate
                                   and a.distinct_nulls = b.distinct_nulls)
         and a.options = b.options
         and (b.is_constraint or b.indisunique and not a.indisunique
              or a.indisunique = b.indisunique
                 and (b.relispartition or b.indisclustered or b.indisreplident
                      or a.indexrelid > b.indexrelid))
    or not a.indisunique and a.options = b.options and a.method = 'btree'
         and a.exprs = '' and b.exprs = ''
         and a.indnatts = a.indnkeyatts and a.indnkeyatts < b.indnkeyatts
         and b.indkey::text like a.indkey::text || ' %'
         and b.indclass::text like a.indclass::text || ' %'
         and b.indcollation::text like a.indcollation::text || ' %'
         and b.indoption::text like a.indoption::text || ' %')
order by a.indexrelid, a.indkey = b.indkey desc, b.relpages)
select a.name, t.name, a.other,
       (with recursive part(oid) as (
            select a.indexrelid union all
            select h.inhrelid from pg_inherits h join part on h.inhparent = part.oid)
        select sum(case when oid in (select oid from locked) then 0
                        else pg_relation_size(oid) end)::int8 from part),
       a.is_same, a.is_whole, WRITES
from pairs a join ours t on t.oid = a.indrelid order by a.is_same desc, 4 desc limit 20";

/// Indexes that another one makes superfluous, each with that one's name.
async fn duplicate(scene: &Scene<'_>) -> Result<Vec<(Finding, String)>, tokio_postgres::Error> {
    let rows = scene.tables(&DUPLICATES.replace("WRITES", WRITES), &[]).await?;
    let finding = |row: &Row| {
        let (index, table, other): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let (size, is_same, is_whole) = (count(row, 3), row.get::<_, bool>(4), row.get(5));
        let (cost, written) = writes(row, 6);
        let like = if is_same { "the same as" } else { "the beginning of" };
        let text = format!("{} on {table}, {like} {other}; {cost}", bytes(size));
        let advice = "Each row that is written writes an entry to both.";
        let (advice, how) = match is_whole {
            // The server has no other way for an index of a partitioned table.
            true => (
                format!("{advice} This locks the table and its partitions for a moment."),
                "drop index",
            ),
            false => (advice.to_owned(), "drop index concurrently"),
        };
        let finding = DUPLICATE
            .worse(is_same, text)
            .on(&index)
            .count("bytes", size)
            .count("entries_written", written)
            .weighs(size as f64)
            .advice(advice)
            .run(format!("{how} {index};"));
        (finding, other)
    };
    Ok(rows.iter().map(finding).collect())
}
