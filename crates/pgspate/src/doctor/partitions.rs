//! Tables so large that parts of them would be easier to load, vacuum and drop.

use tokio_postgres::Row;

use super::finding::Check;
use super::scene::{Found, Scene, count};
use crate::numbers::{bytes, thousands};
use crate::target::quote_ident;

const PARTITIONS: Check = Check {
    id: "partitioning",
    question: "Which tables are large enough to be partitioned?",
    rule: "PostgreSQL manual, partitioning: when a table is larger than the server's memory",
};

/// With the column by which one would: the first date or timestamp that is never null, one of the
/// primary key before others; and the columns of the primary key.
const TABLES: &str = "\
select n.nspname::text, c.relname::text, pg_table_size(c.oid), pg_indexes_size(c.oid),
       greatest(c.reltuples::int8, 0),
       (select a.attname::text from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attnotnull
          and a.atttypid in ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)
        order by exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary
                           and a.attnum = any(i.indkey)) desc, a.attnum limit 1),
       array(select a.attname::text from pg_index i
             join unnest(i.indkey::int2[]) with ordinality as key(attnum, nth) on true
             join pg_attribute a on a.attrelid = c.oid and a.attnum = key.attnum
             where i.indrelid = c.oid and i.indisprimary order by key.nth),
       extract(year from now())::int
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relpersistence <> 't' and not c.relispartition
  and n.nspname !~ '^(pg_|information_schema$|pgspate$|_timescaledb_)'
  and ($1::oid = 0 or c.oid = $1) and pg_table_size(c.oid) >= $2::int8
order by 3 desc limit 20";

/// Large tables in one piece.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let least = scene.options.large_table_bytes;
    let least_sql = i64::try_from(least).unwrap_or(i64::MAX);
    let rows = scene.client.query(TABLES, &[&scene.table, &least_sql]).await?;
    if rows.is_empty() {
        return Ok(vec![PARTITIONS.ok(format!("none of {} or more", bytes(least)))]);
    }
    Ok(rows.iter().map(finding).collect())
}

fn finding(row: &Row) -> super::Finding {
    let (schema, name): (String, String) = (row.get(0), row.get(1));
    let (size, indexes, rows) = (count(row, 2), count(row, 3), count(row, 4));
    let (column, key): (Option<String>, Vec<String>) = (row.get(5), row.get(6));
    let table = format!("{}.{}", quote_ident(&schema), quote_ident(&name));
    let text = format!(
        "{} in one piece, its indexes {}, about {} rows",
        bytes(size),
        bytes(indexes),
        thousands(rows)
    );
    let finding = PARTITIONS
        .note(text)
        .on(&table)
        .count("bytes", size)
        .count("index_bytes", indexes)
        .weighs(size as f64)
        .advice(
            "Parts can be loaded, vacuumed and dropped one by one, and their indexes stay in \
                 the cache. What there is becomes one part, new rows go to new ones; put the \
                 bounds of what you have in place of these.",
        );
    let statements = statements(&schema, &name, column.as_deref(), &key, row.get(7));
    statements.into_iter().fold(finding, super::Finding::run)
}

/// Partitions a table without copying it: what there is becomes the first part.
fn statements(
    schema: &str,
    name: &str,
    column: Option<&str>,
    key: &[String],
    year: i32,
) -> Vec<String> {
    let schema = quote_ident(schema);
    let (next, after) = (format!("{}-01-01", year + 1), format!("{}-01-01", year + 2));
    let part = |suffix: &str| {
        let cut = crate::target::truncate_ident(name);
        let cut = &cut[..cut.floor_char_boundary(50)];
        quote_ident(&format!("{cut}{suffix}")).into_owned()
    };
    let (table, old, new) = (quote_ident(name).into_owned(), part("_old"), part("_new"));
    let Some(column) = column else {
        let by = key.first().map_or("a column".to_owned(), |it| quote_ident(it).into_owned());
        return vec![format!(
            "create table {schema}.{new} (like {schema}.{table} including all) partition by hash \
             ({by}); -- no date is never null, so only by hash, and rows have to be copied"
        )];
    };
    let by = quote_ident(column).into_owned();
    let mut statements = vec![
        format!(
            "alter table {schema}.{table} add constraint {old} check ({by} < '{next}') not \
             valid;"
        ),
        format!("alter table {schema}.{table} validate constraint {old};"),
        format!(
            "begin; alter table {schema}.{table} rename to {old}; create table {schema}.{table} \
             (like {schema}.{old} including defaults including constraints including generated \
             including storage) partition by range ({by}); alter table {schema}.{table} drop \
             constraint {old};"
        ),
        format!(
            "alter table {schema}.{table} attach partition {schema}.{old} for values from \
             (minvalue) to ('{next}');"
        ),
        format!(
            "create table {schema}.{new} partition of {schema}.{table} for values from \
             ('{next}') to ('{after}'); commit;"
        ),
    ];
    if !key.is_empty() && !key.iter().any(|it| it == column) {
        statements
            .insert(0, format!("-- a primary key has to contain {by}, and so have unique indexes"));
    }
    statements
}
