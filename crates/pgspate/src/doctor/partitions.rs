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
select c.nspname::text, c.relname::text, pg_table_size(c.oid), pg_indexes_size(c.oid),
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
       extract(year from now())::int,
       array_remove(array[
           case when exists (select from pg_attribute a where a.attrelid = c.oid
                               and a.attidentity <> '') then 'an identity column' end,
           case when exists (select from pg_constraint k where k.contype = 'f'
                               and c.oid in (k.conrelid, k.confrelid)) then 'foreign keys' end,
           case when exists (select from pg_constraint k where k.conrelid = c.oid
                               and k.contype in ('p', 'u', 'x')) then 'a key' end,
           case when exists (select from pg_index i where i.indrelid = c.oid
                               and (i.indisunique or i.indisexclusion or not i.indisvalid))
                then 'a unique index' end,
           case when exists (select from pg_depend d where d.refclassid = 'pg_class'::regclass
                               and d.refobjid = c.oid and d.classid = 'pg_rewrite'::regclass)
                then 'views or rules' end,
           case when exists (select from pg_depend d where d.refobjid = c.reltype
                               and d.refclassid = 'pg_type'::regclass
                               and d.classid <> 'pg_class'::regclass and d.deptype = 'n')
                then 'functions that use its type' end,
           case when exists (select from pg_trigger g where g.tgrelid = c.oid
                               and not g.tgisinternal) then 'triggers' end,
           case when c.relrowsecurity or exists (select from pg_policy p where p.polrelid = c.oid)
                then 'row level security' end,
           case when exists (select from pg_publication p where p.puballtables)
                  or exists (select from pg_publication_rel p where p.prrelid = c.oid)
                then 'publications' end,
           case when exists (select from pg_inherits h where c.oid in (h.inhrelid, h.inhparent))
                then 'inheritance' end,
           case when c.reloftype <> 0 then 'its type' end,
           case when exists (select from pg_attribute a where a.attrelid = c.oid
                               and a.attnum > 0 and not a.attisdropped
                               and (a.attstattarget >= 0 or a.attoptions is not null))
                then 'statistics targets' end,
           case when exists (select from pg_class x where x.oid = c.reltoastrelid
                               and x.reloptions is not null) then 'options of its TOAST' end,
           case when (select amname from pg_am where oid = c.relam)
                     <> current_setting('default_table_access_method')
                then 'its access method' end,
           case when c.relacl is not null or exists (select from pg_attribute a
                    where a.attrelid = c.oid and a.attacl is not null) then 'grants' end,
           case when exists (select from pg_depend d join pg_class s on s.oid = d.objid
                             where d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid
                               and d.classid = 'pg_class'::regclass and s.relkind = 'S'
                               and d.deptype = 'a') then 'sequences that it owns' end],
           null),
       pg_get_userbyid(c.relowner)::text,
       coalesce((select ' with (' || string_agg(format('%I = %L', option_name, option_value), ', ')
                        || ')' from pg_options_to_table(c.reloptions)), ''),
       coalesce((select format(' tablespace %I', spcname) from pg_tablespace s
                 where s.oid = c.reltablespace), '')
from tables c
where c.relkind = 'r' and not c.relispartition and WHOLE >= $2::int8
order by WHOLE desc limit 20";

/// Large tables in one piece.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let least = scene.options.large_table_bytes;
    let least_sql = i64::try_from(least).unwrap_or(i64::MAX);
    let rows = scene.tables(TABLES, &[&least_sql]).await?;
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
        .weighs(size as f64);
    let good = "Parts can be loaded, vacuumed and dropped one by one, and their indexes stay in \
                the cache.";
    let in_the_way: Vec<String> = row.get(8);
    let Some(column) = column else {
        let by = key.first().map_or("a column".to_owned(), |it| quote_ident(it).into_owned());
        return finding.advice(format!(
            "{good} No date is never null in it, so only by hash ({by}), and rows have to be \
             copied."
        ));
    };
    if !in_the_way.is_empty() {
        return finding.advice(format!(
            "{good} It would be by {}, but no statements here bring over what hangs on it: {}.",
            quote_ident(&column),
            in_the_way.join(", ")
        ));
    }
    let finding = finding.advice(format!(
        "{good} What there is becomes one part, new rows go to new ones; put the bounds of what \
         you have in place of these. Nobody can use the table from begin to commit, which takes a \
         moment. If a statement fails, roll back."
    ));
    let like = Like { year: row.get(7), owner: row.get(9), with: row.get(10), place: row.get(11) };
    let statements = statements(&schema, &name, &column, &like);
    statements.into_iter().fold(finding, super::Finding::run)
}

/// What new parts have of what there is; the last two as SQL writes them.
struct Like {
    year: i32,
    owner: String,
    with: String,
    place: String,
}

/// Partitions a table without copying it: what there is becomes the first part. Its indexes become
/// parts of those of the whole, as they are the same.
fn statements(schema: &str, name: &str, column: &str, like: &Like) -> Vec<String> {
    let schema = quote_ident(schema);
    let Like { year, owner, with, place } = like;
    let (next, after) = (format!("{}-01-01", year + 1), format!("{}-01-01", year + 2));
    let part = |suffix: &str| {
        let cut = crate::target::truncate_ident(name);
        let cut = &cut[..cut.floor_char_boundary(50)];
        quote_ident(&format!("{cut}{suffix}")).into_owned()
    };
    let (table, old, new) = (quote_ident(name).into_owned(), part("_old"), part("_new"));
    let (rest, owner) = (part("_rest"), quote_ident(owner));
    let by = quote_ident(column).into_owned();
    let whole = format!("{schema}.{table}");
    vec![
        format!("alter table {whole} add constraint {old} check ({by} < '{next}') not valid;"),
        format!("alter table {whole} validate constraint {old};"),
        format!(
            "begin; alter table {whole} rename to {old}; create table {whole} (like {schema}.{old} \
             including all) partition by range ({by}){place}; alter table {whole} drop constraint \
             {old}; alter table {whole} owner to {owner};"
        ),
        format!(
            "alter table {whole} attach partition {schema}.{old} for values from (minvalue) to \
             ('{next}');"
        ),
        format!(
            "create table {schema}.{new} partition of {whole} for values from ('{next}') to \
             ('{after}'){with}{place}; create table {schema}.{rest} partition of {whole} \
             default{with}{place}; alter table {schema}.{new} owner to {owner}; alter table \
             {schema}.{rest} owner to {owner}; commit;"
        ),
    ]
}
