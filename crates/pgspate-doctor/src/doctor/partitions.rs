//! Finds tables so large that partitions would be easier to load, vacuum and drop.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, count};
use super::finding::{Check, Finding};
use super::repartition::{LargeTable, PartitionBounds, SequenceColumn};
use pgspate_base::numbers::{bytes, thousands};
use pgspate_target::quote_ident;
use pgspate_target::table_properties::COLUMN_OPTIONS;

const PARTITIONS: Check = Check {
    id: "partitioning",
    question: "Which tables are large enough to be partitioned?",
    rule: "PostgreSQL manual, partitioning: worthwhile for a table larger than the server's memory",
};

/// Large tables that are not partitioned, each with a partition column if there is a suitable one.
/// The partition column is not null, part of every unique key, and growing: a date, or filled from
/// a sequence. Then follow the properties that the statements of `repartition` keep, and those that
/// they would lose.
///
/// A sequence's last value is read if the role may read it and the read would not wait.
const TABLES: &str = "\
, owned as not materialized (
    select d.refobjid as relid, d.refobjsubid as attnum, a.attname::text as owner, s.oid,
           d.deptype = 'i' as is_identity, format('%I.%I', n.nspname, s.relname) as name,
           q.seqincrement > 0 and not q.seqcycle
               and (d.deptype = 'i' or exists (
                    select from pg_attrdef f join pg_depend uses on uses.objid = f.oid
                    where f.adrelid = d.refobjid and f.adnum = d.refobjsubid
                      and uses.classid = 'pg_attrdef'::regclass
                      and uses.refobjid = s.oid)) as grows,
           s.oid not in (select oid from held)
               and not (s.relpersistence = 'u' and pg_is_in_recovery()) as answers
    from pg_depend d join pg_class s on s.oid = d.objid and s.relkind = 'S'
    join pg_namespace n on n.oid = s.relnamespace join pg_sequence q on q.seqrelid = s.oid
    join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
    where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
      and d.deptype in ('a', 'i')),
large as (
    select c.*, WHOLE as whole_bytes from tables c
    where c.relkind = 'r' and not c.relispartition and WHOLE >= $2::int8
    order by WHOLE desc limit 20)
select c.nspname::text as schema, c.relname::text as name, pg_table_size(c.oid) as bytes,
       pg_indexes_size(c.oid) as index_bytes, greatest(c.reltuples, 0)::int8 as rows,
       one.name as by, one.is_date, one.sequence, one.last, one.largest,
       extract(year from now() + interval '3 months')::int as year,
       (select a.attname::text from pg_index i
        join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
        where i.indrelid = c.oid and i.indisunique order by i.indisprimary desc limit 1) as key,
       pg_get_userbyid(c.relowner)::text as owner,
       coalesce((select ' with (' || string_agg(format('%I = %L', option_name, option_value), ', ')
                        || ')' from pg_options_to_table(c.reloptions)), '') as options,
       coalesce((select format(' tablespace %I', spcname) from pg_tablespace s
                 where s.oid = c.reltablespace), '') as place,
       array(select o.name from owned o where o.relid = c.oid order by o.name) as sequences,
       array(select o.owner from owned o where o.relid = c.oid order by o.name) as owners,
       array(select o.is_identity from owned o where o.relid = c.oid order by o.name) as identities,
       array(select format('alter table %s add constraint %I %s;', c.name, k.conname,
                           pg_get_constraintdef(k.oid))
             from pg_constraint k
             where k.contype = 'f' and k.conrelid = c.oid and k.conparentid = 0
             order by k.conname) as references,
       array(select format('grant %s on %s to %s%s;',
                           string_agg(lower(g.privilege_type), ', ' order by g.privilege_type),
                           c.name, case g.grantee when 0 then 'public'
                                   else quote_ident(pg_get_userbyid(g.grantee)) end,
                           case when g.is_grantable then ' with grant option' else '' end)
             from aclexplode(c.relacl) g where g.grantee <> c.relowner
             group by g.grantee, g.is_grantable order by g.grantee, g.is_grantable)
       || array(select format('comment on table %s is %L;', c.name, comment)
                from obj_description(c.oid, 'pg_class') comment
                where comment is not null) as grants,
       array_remove(array[LOST_PROPERTIES], null) as lost_properties
from large c
left join lateral (
    select a.attname::text as name, is_date, o.name as sequence, largest,
           case when not is_date and o.answers
                     and has_sequence_privilege(o.oid, 'select, usage')
                then pg_sequence_last_value(o.oid) end as last
    from pg_attribute a
    left join owned o on o.relid = a.attrelid and o.attnum = a.attnum and o.grows
    cross join lateral (
        select a.atttypid in ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)
                   as is_date,
               case a.atttypid when 'int2'::regtype then 32767 when 'int4'::regtype then 2147483647
                               when 'int8'::regtype then 9223372036854775807 end as largest) kind
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attnotnull
      and a.attgenerated = '' and (is_date or (o.grows and largest is not null))
      and not exists (select from pg_index i where i.indrelid = c.oid and i.indisunique
                      and a.attnum <> all ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    order by is_date desc, a.atthasdef desc, a.atttypid = 'date'::regtype, a.attnum limit 1
    ) one on true
order by c.whole_bytes desc";

/// Properties of a table `c` that the statements of `repartition` would lose; each a name or null.
const LOST_PROPERTIES: &str = "\
case when exists (select from pg_constraint k where k.contype = 'f' and k.confrelid = c.oid)
     then 'foreign keys that reference it' end,
case when exists (select from pg_index i where i.indrelid = c.oid and i.indisexclusion)
     then 'exclusion constraints' end,
case when exists (select from pg_index i where i.indrelid = c.oid and i.indisclustered)
     then 'the index of CLUSTER' end,
case when c.relreplident <> 'd' then 'its replica identity' end,
case when exists (select from pg_seclabel l where l.classoid = 'pg_class'::regclass
                    and l.objoid = c.oid) then 'security labels' end,
case when exists (select from pg_default_acl d where d.defaclobjtype = 'r'
                    and d.defaclnamespace in (0, c.relnamespace)
                    and d.defaclrole in (c.relowner, (select r.oid from pg_roles r
                                                      where r.rolname = current_user)))
     then 'default privileges' end,
case when exists (select from pg_subscription_rel s where s.srrelid = c.oid)
     then 'a subscription' end,
case when exists (select from pg_constraint k where k.conrelid = c.oid and not k.convalidated)
     then 'constraints that are not validated' end,
case when exists (select from pg_constraint k where k.conrelid = c.oid and k.connoinherit
                    and k.contype in ('c', 'n'))
     then 'constraints that partitions do not inherit' end,
case when exists (select from pg_index i where i.indrelid = c.oid and not i.indisvalid)
     then 'an index that is not valid' end,
case when exists (select from pg_depend d where d.refclassid = 'pg_class'::regclass
                    and d.refobjid = c.oid and d.classid = 'pg_rewrite'::regclass)
     then 'views or rules' end,
case when exists (select from pg_depend d where d.refclassid = 'pg_class'::regclass
                    and d.refobjid = c.oid
                    and d.classid in ('pg_proc'::regclass, 'pg_policy'::regclass))
     then 'functions or policies that use it' end,
case when exists (select from pg_depend d where d.refclassid = 'pg_type'::regclass
                    and d.refobjid in (c.reltype, (select t.typarray from pg_type t
                                                   where t.oid = c.reltype))
                    and d.deptype = 'n')
     then 'objects that use its row type' end,
case when exists (select from pg_trigger g where g.tgrelid = c.oid and not g.tgisinternal)
     then 'triggers' end,
case when c.relrowsecurity or exists (select from pg_policy p where p.polrelid = c.oid)
     then 'row level security' end,
case when exists (select from pg_publication p where p.puballtables)
       or exists (select from pg_publication_rel p where p.prrelid = c.oid)
       or c.relnamespace in (
           select d.refobjid from pg_depend d where d.refclassid = 'pg_namespace'::regclass
             and d.classid = (select to_regclass('pg_catalog.pg_publication_namespace')))
     then 'publications' end,
case when exists (select from pg_inherits h where c.oid in (h.inhrelid, h.inhparent))
     then 'inheritance' end,
case when c.reloftype <> 0 then 'its composite type' end,
case when c.relpersistence = 'u' then 'its unlogged state' end,
case when exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
                    and not a.attisdropped
                    and (a.attstattarget >= 0 or cardinality(COLUMN_OPTIONS) > 0))
     then 'statistics targets' end,
case when exists (select from pg_class x where x.oid = c.reltoastrelid
                    and x.reloptions is not null) then 'storage options of its TOAST table' end,
case when (select amname from pg_am where oid = c.relam)
          <> current_setting('default_table_access_method') then 'its access method' end,
case when exists (select from pg_attribute a where a.attrelid = c.oid and a.attacl is not null)
     then 'grants on columns' end,
case when exists (select from owned o join pg_class s on s.oid = o.oid
                  where o.relid = c.oid and o.is_identity and s.relacl is not null)
     then 'grants on the sequence of an identity column' end,
case when exists (select privilege_type from aclexplode(acldefault('r', c.relowner))
                  except select privilege_type from aclexplode(c.relacl)
                  where grantee = c.relowner) and c.relacl is not null
     then 'privileges that its owner lacks' end";

/// Finds large tables that are not partitioned.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let least = context.options.large_table_bytes;
    let least_sql = i64::try_from(least).unwrap_or(i64::MAX);
    // With an empty search path, every name in a constraint has its schema.
    context.client.batch_execute("set local search_path = ''").await?;
    let sql = TABLES
        .replace("LOST_PROPERTIES", LOST_PROPERTIES)
        .replace("COLUMN_OPTIONS", COLUMN_OPTIONS);
    let rows = context.query_tables(&sql, &[&least_sql]).await?;
    Ok(PARTITIONS.findings_or_ok(
        rows.iter().map(finding),
        format!("no unpartitioned table of {} or more", bytes(least)),
    ))
}

const BENEFIT: &str = "Partitions can be loaded, vacuumed and dropped one by one, and their \
                       smaller indexes stay in the cache.";

fn finding(row: &Row) -> Finding {
    let (size, indexes, rows) = (count(row, 2), count(row, 3), count(row, 4));
    let (schema, name): (&str, &str) = (row.get("schema"), row.get("name"));
    let text = format!(
        "{} unpartitioned, its indexes {}, about {} rows",
        bytes(size),
        bytes(indexes),
        thousands(rows)
    );
    let finding = PARTITIONS
        .note(text)
        .about(format!("{}.{}", quote_ident(schema), quote_ident(name)))
        .count("bytes", size)
        .count("index_bytes", indexes)
        .weight(size as f64);
    let Some(by) = row.get::<_, Option<&str>>("by") else {
        return finding.advice(hash_advice(row.get("key")));
    };
    let lost_properties: Vec<&str> = row.get("lost_properties");
    if !lost_properties.is_empty() {
        return finding.advice(format!(
            "{BENEFIT} The partition column would be {}, but pgspate has no statements that keep \
             these properties of the table: {}.",
            quote_ident(by),
            lost_properties.join(", ")
        ));
    }
    let bounds = match row.get("is_date") {
        true => PartitionBounds::after_year(row.get("year")),
        false => match PartitionBounds::after_number(row.get("last"), row.get("largest")) {
            Some(bounds) => bounds,
            None => return finding.advice(no_bounds_advice(by, row)),
        },
    };
    let large = read_large_table(row, by);
    let advice = format!("{BENEFIT} {}", large.advice(&bounds));
    large.statements(&bounds).into_iter().fold(finding.advice(advice), Finding::remedy)
}

/// Advises on a table without a suitable partition column.
fn hash_advice(key: Option<&str>) -> String {
    let why = match key {
        Some(_) => "The table's unique keys have no date and no sequence column in common",
        None => "The table has no date column and no sequence column that is not null",
    };
    let by = key.map_or("a column".to_owned(), |it| quote_ident(it).into_owned());
    format!("{BENEFIT} {why}, so it can only be partitioned by hash ({by}), copying all rows.")
}

/// Advises on a table whose sequence has an unknown last value, or is near its end.
fn no_bounds_advice(by: &str, row: &Row) -> String {
    let (by, sequence) = (quote_ident(by), row.get::<_, &str>("sequence"));
    let why = match row.get::<_, Option<i64>>("last") {
        Some(last) if last < 1 => format!("but its sequence is at {last}, still below 1"),
        Some(_) => format!("but its type has few values left. Widen {by} first"),
        None => format!(
            "but the last value of {sequence} is unknown: this role cannot see it, or the sequence \
             was never used"
        ),
    };
    format!("{BENEFIT} The partition column would be {by}, {why}.")
}

/// Reads a row of the query into the facts that `repartition` needs.
fn read_large_table<'a>(row: &'a Row, by: &'a str) -> LargeTable<'a> {
    let sequences = row.get::<_, Vec<&str>>("sequences").into_iter();
    let owners: Vec<&str> = row.get("owners");
    let identities: Vec<bool> = row.get("identities");
    LargeTable {
        schema: row.get("schema"),
        name: row.get("name"),
        by,
        owner: row.get("owner"),
        options: row.get("options"),
        tablespace: row.get("place"),
        sequence_columns: sequences
            .zip(owners.into_iter().zip(identities))
            .map(|(sequence, (name, is_identity))| SequenceColumn { name, sequence, is_identity })
            .collect(),
        references: row.get("references"),
        grants: row.get("grants"),
    }
}
