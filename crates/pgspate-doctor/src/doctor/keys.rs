//! Finds tables without a primary key, and foreign keys without an index.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, count};
use super::finding::{Check, Finding};
use pgspate_base::numbers::{bytes, thousands};

const PRIMARY: Check = Check {
    id: "primary-keys",
    question: "Which tables have no primary key?",
    rule: "logical replication, `pgspate sync` and `pgspate apply` find rows by the primary key",
};
const FOREIGN: Check = Check {
    id: "foreign-key-indexes",
    question: "Which foreign keys have no index on the referencing columns?",
    rule: "PostgreSQL manual, constraints: without an index, each delete of a referenced row scans \
           the referencing table",
};

/// Smaller tables are not checked: a scan of them takes no time.
const ROWS_MIN: i64 = 1000;

/// About how many rows a table `c` has; queries write it as `ROWS`. For a partitioned table the
/// rows of its partitions are added up. Its own `reltuples` is set only by a manual ANALYZE, from
/// version 14 on.
pub(super) const ROWS: &str = "\
case when c.relkind <> 'p' then greatest(c.reltuples::int8, pg_stat_get_live_tuples(c.oid))
     else (with recursive part(oid) as (
               select c.oid union all
               select h.inhrelid from pg_inherits h join part on h.inhparent = part.oid)
           select sum(greatest(x.reltuples::int8, pg_stat_get_live_tuples(x.oid)))::int8
           from part join pg_class x on x.oid = part.oid where x.relkind <> 'p') end";

/// Tables without a primary key, each with a unique index that could become the key. If the server
/// refuses such an index as a key, its columns are listed, for a new index. A partition is listed
/// only if it is the table of the argument; otherwise its parent is listed.
///
/// The key can have no index of a constraint, and no index with other operators, collations or
/// orders than the default ones.
const WITHOUT_KEY: &str = "\
select c.name,
       ROWS,
       case when candidate.is_usable then candidate.name end, pg_table_size(c.oid),
       exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'id'
                 and not a.attisdropped), c.relkind = 'p', c.relname::text,
       exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'id'
                 and a.attnotnull),
       case when not candidate.is_usable then candidate.columns end, candidate.name
from tables c
left join lateral (
    select u.relname::text as name,
           not exists (select from pg_constraint k where k.conindid = i.indexrelid
                         and k.conrelid = i.indrelid and k.contype in ('p', 'u', 'x'))
             and 0 = all(i.indoption::int2[])
             and not exists (select from pg_opclass o where o.oid = any(i.indclass::oid[])
                               and not o.opcdefault)
             and not exists (select from unnest(i.indkey::int2[], i.indcollation::oid[])
                                    with ordinality as key(attnum, collation_oid, nth)
                             join pg_attribute a on a.attrelid = c.oid and a.attnum = key.attnum
                             where key.nth <= i.indnkeyatts
                               and a.attcollation <> key.collation_oid)
             -- Read through JSON, because servers before 15 have no such column.
             and coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') = 'false' as is_usable,
           (select string_agg(quote_ident(a.attname), ', ' order by key.nth)
            from unnest(i.indkey::int2[]) with ordinality as key(attnum, nth)
            join pg_attribute a on a.attrelid = c.oid and a.attnum = key.attnum
            where key.nth <= i.indnkeyatts) as columns
    from pg_index i join pg_class u on u.oid = i.indexrelid
    where i.indrelid = c.oid and i.indisunique and i.indimmediate and i.indpred is null
      and i.indexprs is null and i.indisvalid
      and not exists (select from unnest(i.indkey::int2[]) as key(attnum)
                      join pg_attribute a on a.attrelid = c.oid and a.attnum = key.attnum
                      where not a.attnotnull)
    order by is_usable desc, i.indnatts limit 1) candidate on true
where c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and (not c.relispartition or c.oid = $1)
  and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
  and ROWS >= $2::int8
order by WHOLE desc limit 20";

/// Finds tables without a primary key.
pub(super) async fn check_primary_keys(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.query_tables(&WITHOUT_KEY.replace("ROWS", ROWS), &[&ROWS_MIN]).await?;
    let finding = |row: &Row| {
        let table: String = row.get(0);
        let (rows, size) = (count(row, 1), count(row, 3));
        let text = match row.get(5) {
            true => format!("{} rows in its partitions", thousands(rows)),
            false => format!("{} rows, {}", thousands(rows), bytes(size)),
        };
        let finding = PRIMARY.note(text).about(&table).count("rows", rows).weight(size as f64);
        add_key_statements(finding, row, &table)
    };
    Ok(PRIMARY.findings_or_ok(rows.iter().map(finding), "every table has a primary key"))
}

/// Adds advice, and the statements that make a primary key. The key has a unique index or its
/// columns, or else a column `id`, or else a new column. Only a new column needs a rewrite of the
/// table.
fn add_key_statements(finding: Finding, row: &Row, table: &str) -> Finding {
    const WHY: &str = "Without one, equal rows cannot be told apart, and updates and deletes \
                       cannot be replicated.";
    let index: Option<String> = row.get(2);
    let (has_id, is_partitioned, is_not_null): (bool, bool, bool) =
        (row.get(4), row.get(5), row.get(7));
    if is_partitioned {
        return finding.advice(format!(
            "{WHY} The primary key of a partitioned table must contain the partition columns. One \
             statement would lock the table until all indexes are built. To lock it only briefly, \
             run `alter table only ... add primary key`, then create a unique index on each \
             partition concurrently and attach it."
        ));
    }
    let name = pgspate_target::truncate_ident(row.get(6));
    let name = format!("{}_pkey", &name[..name.floor_char_boundary(50)]);
    let name = pgspate_target::quote_ident(&name);
    let brief = "Adding the constraint blocks readers and writers";
    let (columns, unique): (Option<&str>, Option<&str>) = (row.get(8), row.get(9));
    if let (Some(columns), Some(unique)) = (columns, unique) {
        return finding
            .advice(format!(
                "{WHY} Index {} is unique, but the server does not accept it for a primary key, \
                 so a new index is built. {brief} for a moment.",
                pgspate_target::quote_ident(unique)
            ))
            .remedy(format!("create unique index concurrently {name} on {table} ({columns});"))
            .remedy(format!("alter table {table} add primary key using index {name};"));
    }
    match (index, has_id) {
        (Some(index), _) => {
            let index = pgspate_target::quote_ident(&index);
            finding
                .advice(format!("{WHY} {brief} for a moment."))
                .remedy(format!("alter table {table} add primary key using index {index};"))
        }
        (None, true) => {
            let scan = match is_not_null {
                true => " for a moment.",
                false => " while it scans the table once, because id may be null.",
            };
            finding
                .advice(format!("{WHY} Run this only if id identifies a row. {brief}{scan}"))
                .remedy(format!("create unique index concurrently {name} on {table} (id);"))
                .remedy(format!("alter table {table} add primary key using index {name};"))
        }
        (None, false) => finding
            .advice(format!(
                "{WHY} If some columns identify a row, make them the key instead. The statement \
                 below rewrites the table and blocks all readers and writers meanwhile."
            ))
            .remedy(format!(
                "alter table {table} add column id bigint generated always as identity primary \
                 key;"
            )),
    }
}

/// Foreign keys without a usable index. An index is usable if its first columns are those of the
/// key, in any order, and the index has no predicate.
const WITHOUT_INDEX: &str = "\
select k.conname::text, c.name,
       (select string_agg(quote_ident(a.attname), ', ' order by key.nth)
        from unnest(k.conkey) with ordinality as key(attnum, nth)
        join pg_attribute a on a.attrelid = c.oid and a.attnum = key.attnum),
       ROWS,
       k.confrelid::regclass::text,
       pg_stat_get_tuples_deleted(k.confrelid), pg_table_size(c.oid), c.relkind = 'p'
from pg_constraint k join ours c on c.oid = k.conrelid
where k.contype = 'f' and k.conparentid = 0
  and ($1::oid = 0 or c.oid in (select oid from asked)
       or k.confrelid in (select oid from asked))
  and ROWS >= $2::int8
  and not exists (
      select from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indpred is null
        and (i.indkey::int2[])[0:cardinality(k.conkey) - 1] operator(pg_catalog.@>) k.conkey)
order by 6 desc, c.relpages desc limit 20";

/// Finds foreign keys without an index.
pub(super) async fn check_foreign_keys(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.query_tables(&WITHOUT_INDEX.replace("ROWS", ROWS), &[&ROWS_MIN]).await?;
    let finding = |row: &Row| {
        let (name, table): (String, String) = (row.get(0), row.get(1));
        let (columns, other): (String, String) = (row.get(2), row.get(4));
        let (rows, deleted, size) = (count(row, 3), count(row, 5), count(row, 6));
        let advice = "Each update of the referenced key reads them, too.";
        // The server cannot build the index of a partitioned table concurrently.
        let (how, advice) = match row.get(7) {
            true => (
                "",
                format!(
                    "{advice} Writers of all partitions wait while this index is built. To avoid \
                     that, create an index `on only` the table, then one on each partition \
                     concurrently, and attach them."
                ),
            ),
            false => (" concurrently", advice.to_owned()),
        };
        let rows_read = thousands(rows);
        let text = match deleted {
            0 => format!(
                "{name} references {other}: each delete in {other} would read {rows_read} rows \
                 of this table"
            ),
            _ => format!(
                "{name} references {other}: each delete in {other}, {} so far, reads {rows_read} \
                 rows of this table",
                thousands(deleted)
            ),
        };
        FOREIGN
            .note_or_warning(deleted > 0, text)
            .about(&table)
            .count("rows", rows)
            .count("deletes", deleted)
            .weight(size as f64 * (1.0 + deleted as f64))
            .advice(advice)
            .remedy(format!("create index{how} on {table} ({columns});"))
    };
    Ok(FOREIGN.findings_or_ok(
        rows.iter().map(finding),
        "every foreign key has an index, or its table is small",
    ))
}
