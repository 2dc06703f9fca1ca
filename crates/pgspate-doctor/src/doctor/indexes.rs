//! Finds indexes that cost more than they are worth: unused and duplicate ones.
//!
//! Each finding states the cost of the index: its size, and how many entries were written to it. A
//! partition of a partitioned index cannot be dropped alone, so it is never reported.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, SINCE, count, query_in_savepoint};
use super::finding::{Check, Finding};
use pgspate_base::numbers::{bytes, thousands};
use pgspate_target::ledger;

const UNUSED: Check = Check {
    id: "unused-indexes",
    question: "Which indexes does no query read?",
    rule: "pg_stat_all_indexes.idx_scan since the statistics began, or since the index was \
           created; replicas count their scans themselves",
};
const DUPLICATE: Check = Check {
    id: "duplicate-indexes",
    question: "Which indexes can another index replace?",
    rule: "same columns, operators, order and predicate; or a btree on the first columns of \
           another btree",
};

/// Smaller unused indexes are not reported.
const UNUSED_BYTES_MIN: i64 = 1 << 20;

/// Two columns: how many entries were written to each index of table `t` since the statistics
/// began, and how many indexes the table has. Each inserted row and each update that is not HOT
/// writes one entry. For a partitioned table the rows of its partitions count.
pub(super) const WRITES: &str = "\
(with recursive part(oid) as (
     select t.oid union all
     select h.inhrelid from pg_inherits h join part on h.inhparent = part.oid
     where t.relkind = 'p')
 select sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
            - pg_stat_get_tuples_hot_updated(oid))::int8 from part),
(select count(*) from pg_index o where o.indrelid = t.oid)";

/// Describes the cost of an index in words, and returns the number of entries written to it. The
/// two columns of [`WRITES`] begin at `first_column`.
pub(super) fn write_cost(row: &Row, first_column: usize) -> (String, u64) {
    let (written, siblings) = (count(row, first_column), count(row, first_column + 1));
    let entries = if written == 1 { "entry" } else { "entries" };
    let written_words = thousands(written);
    let among = match siblings {
        1 => "the only index".to_owned(),
        _ => format!("one of {siblings} indexes"),
    };
    (format!("{written_words} {entries} written, {among}"), written)
}

/// Excludes indexes that are useful without scans: unique indexes, and indexes of exclusion
/// constraints, of a replica identity and of CLUSTER. Also excludes indexes that support a foreign
/// key: deletes of referenced rows use these indexes, but may be rare.
const UNUSED_INDEXES: &str = "\
select format('%I.%I', n.nspname, c.relname), t.name, pg_relation_size(c.oid), WRITES,
       SINCE::timestamptz(0)::text, coalesce(now() - SINCE < interval '7 days', true), t.oid
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

/// Finds unused and duplicate indexes. An index that is both is reported as unused only. Of two
/// indexes that can replace each other, one is kept.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let mut found = find_unused(context).await?;
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    dropped.extend(found.iter().filter_map(|finding| finding.object.clone()));
    for (finding, other) in find_duplicates(context).await? {
        let is_dropped = |name: &String| dropped.contains(name);
        if !finding.object.iter().any(is_dropped) && !is_dropped(&other) {
            dropped.extend(finding.object.clone());
            kept.push(finding);
        }
    }
    found.extend(DUPLICATE.findings_or_ok(kept, "no duplicate index"));
    Ok(found)
}

/// The tables that jobs of the last 7 days have written to, as one array. Such a job may have built
/// the table's indexes again.
const RECENTLY_LOADED: &str = "\
select coalesce(array_agg(distinct table_oid), '{}') from pgspate.job
where coalesce(finished, now()) > now() - interval '7 days'";

/// Reads the tables of [`RECENTLY_LOADED`]. Returns `None` if this role may not read the ledger.
async fn read_recently_loaded(context: &CheckContext<'_>) -> Option<Vec<u32>> {
    match ledger::ledger_exists(context.client).await {
        Ok(false) => Some(Vec::new()),
        Ok(true) => query_in_savepoint(context.client, RECENTLY_LOADED).await.map(|row| row.get(0)),
        Err(_) => None,
    }
}

/// Finds indexes that no query has scanned.
async fn find_unused(context: &CheckContext<'_>) -> CheckResult {
    let sql = UNUSED_INDEXES.replace("WRITES", WRITES).replace("SINCE", SINCE);
    let rows = context.query_tables(&sql, &[&UNUSED_BYTES_MIN]).await?;
    let loaded = match rows.is_empty() {
        true => Some(Vec::new()),
        false => read_recently_loaded(context).await,
    };
    let finding = |row: &Row| {
        let (index, table): (String, String) = (row.get(0), row.get(1));
        let (size, (cost, written)) = (count(row, 2), write_cost(row, 3));
        let since: Option<String> = row.get(5);
        let since = since.map_or("statistics began".to_owned(), |it| it);
        // The server does not record when an index was created.
        let since = format!("since {since}, or since it was created");
        let text = format!("{} on {table}, no scan {since}; {cost}", bytes(size));
        // Statistics are young for 7 days: a weekly job may not have run since they began.
        let (is_young, table): (bool, u32) = (row.get(6), row.get(7));
        let may_be_rebuilt = match &loaded {
            Some(loaded) if !loaded.contains(&table) => None,
            Some(_) => Some(" A load of the last 7 days may have built this index again."),
            None => Some(" A load may have built this index again: pgspate's ledger is hidden."),
        };
        let is_young = is_young || may_be_rebuilt.is_some();
        UNUSED
            .note_or_warning(written > 0 && size >= 64 << 20 && !is_young, text)
            .about(&index)
            .count("bytes", size)
            .count("entries_written", written)
            .weight(size as f64)
            .advice(format!(
                "Each inserted row also writes an entry to this index. Before dropping it, check \
                 the scans that replicas count themselves, and jobs that run rarely.{}",
                may_be_rebuilt.unwrap_or_default()
            ))
            .remedy(format!("drop index concurrently {index};"))
    };
    Ok(UNUSED.findings_or_ok(rows.iter().map(finding), "no unused index of 1 MiB or more"))
}

/// Pairs of indexes in which `b` can replace `a`. An index of a constraint, of a replica identity
/// or of CLUSTER is never `a`. Of two equal indexes, `a` is the one that is not unique, or the one
/// with the higher OID; a partition of an index is never `a`.
const DUPLICATES: &str = "\
, idx as (
    select i.*, c.relname, c.relam, c.relkind, c.relispartition, c.relpages,
           coalesce(c.reloptions::text, '') as options,
           -- Read through JSON, because servers before 15 have no such column.
           coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') as nulls_not_distinct,
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
                                   and a.nulls_not_distinct = b.nulls_not_distinct)
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

/// Finds indexes that another index can replace, each with the name of the other index.
async fn find_duplicates(
    context: &CheckContext<'_>,
) -> Result<Vec<(Finding, String)>, tokio_postgres::Error> {
    let rows = context.query_tables(&DUPLICATES.replace("WRITES", WRITES), &[]).await?;
    let finding = |row: &Row| {
        let (index, table, other): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let (size, is_same, is_whole) = (count(row, 3), row.get::<_, bool>(4), row.get(5));
        let (cost, written) = write_cost(row, 6);
        let like = if is_same { "the same as" } else { "on the first columns of" };
        let text = format!("{} on {table}, {like} {other}; {cost}", bytes(size));
        let advice = "Each inserted row writes an entry to both indexes.";
        let (advice, how) = match is_whole {
            // The server cannot drop the index of a partitioned table concurrently.
            true => (
                format!("{advice} Dropping it locks the table and its partitions for a moment."),
                "drop index",
            ),
            false => (advice.to_owned(), "drop index concurrently"),
        };
        let finding = DUPLICATE
            .note_or_warning(is_same, text)
            .about(&index)
            .count("bytes", size)
            .count("entries_written", written)
            .weight(size as f64)
            .advice(advice)
            .remedy(format!("{how} {index};"));
        (finding, other)
    };
    Ok(rows.iter().map(finding).collect())
}
