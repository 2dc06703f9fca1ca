//! Tables without a primary key, and foreign keys without an index.

use tokio_postgres::Row;

use super::finding::{Check, Finding};
use super::scene::{Found, Scene, count};
use pgspate_base::numbers::{bytes, thousands};

const PRIMARY: Check = Check {
    id: "primary-keys",
    question: "Which tables have no primary key?",
    rule: "logical replication, `pgspate sync` and `pgspate apply` find rows by it",
};
const FOREIGN: Check = Check {
    id: "foreign-key-indexes",
    question: "Which foreign keys have no index on the referring side?",
    rule: "PostgreSQL manual, constraints: a delete of what is referred to scans the table without",
};

/// Smaller tables are scanned in no time.
const ROWS_MIN: i64 = 1000;

/// About how many rows a table `c` has: `ROWS` in queries. Of a partitioned one only its parts
/// count them, and nothing but an ANALYZE by hand, from version 14 on, tells it.
pub(super) const ROWS: &str = "\
case when c.relkind <> 'p' then greatest(c.reltuples::int8, pg_stat_get_live_tuples(c.oid))
     else (with recursive part(oid) as (
               select c.oid union all
               select h.inhrelid from pg_inherits h join part on h.inhparent = part.oid)
           select sum(greatest(x.reltuples::int8, pg_stat_get_live_tuples(x.oid)))::int8
           from part join pg_class x on x.oid = part.oid where x.relkind <> 'p') end";

/// With a unique index that could become the key, if there is one. A partition has the key of the
/// whole, unless it was asked for alone.
const WITHOUT_KEY: &str = "\
select c.name,
       ROWS,
       (select u.relname::text from pg_index i join pg_class u on u.oid = i.indexrelid
        where i.indrelid = c.oid and i.indisunique and i.indimmediate and i.indpred is null
          and i.indexprs is null and i.indisvalid
          and not exists (select from unnest(i.indkey::int2[]) as key(attnum)
                          join pg_attribute a on a.attrelid = c.oid and a.attnum = key.attnum
                          where not a.attnotnull)
        order by i.indnatts limit 1), pg_table_size(c.oid),
       exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'id'
                 and not a.attisdropped), c.relkind = 'p', c.relname::text,
       exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'id'
                 and a.attnotnull)
from tables c
where c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and (not c.relispartition or c.oid = $1)
  and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
  and ROWS >= $2::int8
order by WHOLE desc limit 20";

/// Tables without a primary key.
pub(super) async fn primary(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(&WITHOUT_KEY.replace("ROWS", ROWS), &[&ROWS_MIN]).await?;
    let finding = |row: &Row| {
        let table: String = row.get(0);
        let (rows, size) = (count(row, 1), count(row, 3));
        let text = match row.get(5) {
            true => format!("{} rows in its partitions", thousands(rows)),
            false => format!("{} rows, {}", thousands(rows), bytes(size)),
        };
        let finding = PRIMARY.note(text).on(&table).count("rows", rows).weighs(size as f64);
        add_key(finding, row, &table)
    };
    Ok(PRIMARY.found(rows.iter().map(finding), "every table has one"))
}

/// What makes a primary key of what there is, with as little locked as can be.
fn add_key(finding: Finding, row: &Row, table: &str) -> Finding {
    const WHY: &str =
        "Without one a row cannot be told from its copy, and changes cannot be replicated.";
    let index: Option<String> = row.get(2);
    let (has_id, is_partitioned, is_not_null): (bool, bool, bool) =
        (row.get(4), row.get(5), row.get(7));
    if is_partitioned {
        return finding.advice(format!(
            "{WHY} The key of a partitioned table has to contain the columns it is partitioned \
             by. `alter table only ... add primary key` and an index of each partition, made \
             concurrently and attached to it, lock it briefly; in one statement it is locked for \
             as long as all indexes take."
        ));
    }
    let name = pgspate_target::truncate_ident(row.get(6));
    let name = format!("{}_pkey", &name[..name.floor_char_boundary(50)]);
    let name = pgspate_target::quote_ident(&name);
    let brief = "Adding the constraint locks everybody out for a moment";
    match (index, has_id) {
        (Some(index), _) => {
            let index = pgspate_target::quote_ident(&index);
            finding
                .advice(format!("{WHY} {brief}."))
                .run(format!("alter table {table} add primary key using index {index};"))
        }
        (None, true) => {
            let scan = match is_not_null {
                true => ".",
                false => ", and for as long as one pass over the table takes, as id may be null.",
            };
            finding
                .advice(format!("{WHY} If id identifies a row. {brief}{scan}"))
                .run(format!("create unique index concurrently {name} on {table} (id);"))
                .run(format!("alter table {table} add primary key using index {name};"))
        }
        (None, false) => finding
            .advice(format!(
                "{WHY} Take the columns that identify a row if there are some; else this \
                 rewrites the table and locks everybody out meanwhile."
            ))
            .run(format!(
                "alter table {table} add column id bigint generated always as identity primary \
                 key;"
            )),
    }
}

/// An index serves if its first columns are those of the key, in whatever order, and it is whole.
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

/// Foreign keys without an index.
pub(super) async fn foreign(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(&WITHOUT_INDEX.replace("ROWS", ROWS), &[&ROWS_MIN]).await?;
    let finding = |row: &Row| {
        let (name, table): (String, String) = (row.get(0), row.get(1));
        let (columns, other): (String, String) = (row.get(2), row.get(4));
        let (rows, deleted, size) = (count(row, 3), count(row, 5), count(row, 6));
        let advice = "So does each update of the key there.";
        // The server builds no index of a partitioned table beside writers.
        let (how, advice) = match row.get(7) {
            true => (
                "",
                format!(
                    "{advice} Writers of all its partitions wait while this is built; an index of \
                     each, made concurrently and attached to one that is made `on only`, spares \
                     them that."
                ),
            ),
            false => (" concurrently", advice.to_owned()),
        };
        let rows_read = thousands(rows);
        let text = match deleted {
            0 => format!("{name} to {other}: a delete there would read {rows_read} rows here"),
            _ => format!(
                "{name} to {other}: each of {} deletes there reads {rows_read} rows here",
                thousands(deleted)
            ),
        };
        FOREIGN
            .worse(deleted > 0, text)
            .on(&table)
            .count("rows", rows)
            .count("deletes", deleted)
            .weighs(size as f64 * (1.0 + deleted as f64))
            .advice(advice)
            .run(format!("create index{how} on {table} ({columns});"))
    };
    Ok(FOREIGN.found(rows.iter().map(finding), "each has one, or its table is small"))
}
