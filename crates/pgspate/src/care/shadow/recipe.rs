//! Generates the statements that make a shadow table like the table. The server generates them from
//! its catalog.
//!
//! [`table_properties`](pgspate_target::table_properties) finds any remaining difference before
//! the tables are exchanged. Every query runs under the settings for definitions, so that names and
//! constants are complete.

use tokio_postgres::Client;

use pgspate_target::table_properties::COLUMN_OPTIONS;
use pgspate_target::{TargetTable, TypedQuery, quote_ident, quote_literal};

/// The names of the table and its shadow.
#[derive(Debug, Clone)]
pub(super) struct ShadowNames {
    /// The table's oid.
    pub(super) oid: u32,
    /// The table's name in SQL.
    pub(super) table: String,
    /// The shadow's schema, which needs no quotes.
    pub(super) schema: String,
    /// The shadow's name in SQL.
    pub(super) shadow: String,
}

impl ShadowNames {
    pub(super) fn new(table: &TargetTable, oid: u32, schema: String) -> ShadowNames {
        let shadow = format!("{schema}.{}", quote_ident(&table.name));
        ShadowNames { oid, table: table.sql_name.clone(), schema, shadow }
    }

    /// Replaces the placeholders of a query by the names as literals, and `:options` by
    /// [`COLUMN_OPTIONS`]. `:printed` is the table's name as definitions have it: the server may
    /// quote a name that needs no quotes.
    fn fill(&self, sql: &str) -> String {
        let printed = format!(
            "(select format('%I.%I', n.nspname, c.relname) from pg_class c \
             join pg_namespace n on n.oid = c.relnamespace where c.oid = {})",
            self.oid
        );
        let words = [
            (":printed", printed),
            (":oid", self.oid.to_string()),
            (":table", quote_literal(&self.table)),
            (":schema", quote_literal(&self.schema)),
            (":shadow", quote_literal(&self.shadow)),
            (":options", COLUMN_OPTIONS.to_owned()),
        ];
        let mut filled = String::with_capacity(sql.len() * 2);
        let mut rest = sql;
        // One pass, because a table may be named like a placeholder.
        while let Some(at) = rest.find(':') {
            let (before, from) = rest.split_at(at);
            filled.push_str(before);
            let found = words.iter().find(|(word, _)| from.starts_with(word));
            let (put, len) = found.map_or((":", 1), |(word, literal)| (literal, word.len()));
            filled.push_str(put);
            rest = &from[len..];
        }
        filled + rest
    }
}

/// Runs a query of this module, and returns the statements that it generates. NULL stands for a
/// statement that could not be generated.
pub(super) async fn generate(
    client: &Client,
    names: &ShadowNames,
    sql: &str,
) -> Result<Vec<Option<String>>, tokio_postgres::Error> {
    let rows = client.fetch_all(&names.fill(sql), &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Runs a query of this module whose second column tells whether a statement makes COPY check keys.
/// Returns the statements that do.
pub(super) async fn generate_keys(
    client: &Client,
    names: &ShadowNames,
    sql: &str,
) -> Result<Vec<Option<String>>, tokio_postgres::Error> {
    let rows = client.fetch_all(&names.fill(sql), &[]).await?;
    Ok(rows.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect())
}

/// Query for the statements that create the shadow, without indexes and anything else that would
/// slow COPY down.
pub(super) const CREATE: &str = "\
with options as (
  select '' as prefix, o from pg_class, unnest(reloptions) o where oid = :oid
  union all
  select 'toast.', o from pg_class t join pg_class c on c.reltoastrelid = t.oid,
         unnest(t.reloptions) o where c.oid = :oid)
select format('create %stable %s (like %s including all excluding indexes excluding statistics) '
              'using heap%s%s',
              case relpersistence when 'u' then 'unlogged ' else '' end, :shadow, :table,
              (select ' with (' || string_agg(prefix || split_part(o, '=', 1) || ' = '
                                 || quote_literal(substr(o, strpos(o, '=') + 1)), ', ') || ')'
               from options),
              ' tablespace ' || quote_ident(spcname))
from pg_class c left join pg_tablespace s on s.oid = c.reltablespace where c.oid = :oid
union all
select format('alter table %s alter column %I set statistics %s', :shadow, attname, attstattarget)
from pg_attribute where attrelid = :oid and attnum > 0 and not attisdropped and attstattarget >= 0
union all
select format('alter table %s alter column %I set (%s)', :shadow, attname,
              (select string_agg(split_part(o, '=', 1) || ' = '
                                 || quote_literal(substr(o, strpos(o, '=') + 1)), ', ')
               from unnest(options) o))
from pg_attribute a, lateral (select :options as options) set_options
where attrelid = :oid and attnum > 0 and not attisdropped and cardinality(options) > 0
union all
select format(statement, n, r)
from pg_class c, (values ('grant all on schema %1$I to %2$I', :schema),
                         ('alter table %1$s owner to %2$I', :shadow)) v(statement, n),
     pg_get_userbyid(relowner) r
where c.oid = :oid and r <> current_user";

/// Query for the sequences of identity columns. Columns: the fields of [`IdentitySequences`].
const IDENTITIES: &str = "\
select o.relnamespace::regnamespace::text, quote_ident(o.relname),
       quote_ident(n.relname), q.seqtypid::regtype::text
from pg_depend d join pg_class o on o.oid = d.objid
join pg_sequence q on q.seqrelid = o.oid
join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
join pg_attribute b on b.attrelid = :shadow::regclass and b.attname = a.attname
join pg_depend e on e.refobjid = b.attrelid and e.refobjsubid = b.attnum
join pg_class n on n.oid = e.objid
where d.refobjid = :oid and d.deptype = 'i' and e.deptype = 'i' and o.relkind = 'S'
  and n.relkind = 'S' and d.classid = 'pg_class'::regclass and e.classid = 'pg_class'::regclass
  and d.refclassid = 'pg_class'::regclass and e.refclassid = 'pg_class'::regclass
order by a.attnum";

/// The two sequences of an identity column. Names are quoted as in SQL.
pub(super) struct IdentitySequences {
    /// The schema of the table's sequence.
    pub(super) schema: String,
    /// The name of the table's sequence.
    pub(super) name: String,
    /// The name of the shadow's sequence, in the shadow's schema.
    pub(super) new_name: String,
    /// The type of the table's sequence.
    pub(super) ty: String,
}

/// Returns the sequences of the table's identity columns and of the shadow's.
pub(super) async fn identities(
    client: &Client,
    names: &ShadowNames,
) -> Result<Vec<IdentitySequences>, tokio_postgres::Error> {
    let rows = client.fetch_all(&names.fill(IDENTITIES), &[]).await?;
    let read = |row: &tokio_postgres::Row| IdentitySequences {
        schema: row.get(0),
        name: row.get(1),
        new_name: row.get(2),
        ty: row.get(3),
    };
    Ok(rows.iter().map(read).collect())
}

/// Query for the statements that create the shadow's missing indexes, one statement for each index,
/// and whether the index is unique.
pub(super) const BUILD_INDEXES: &str = "\
select format('set local default_tablespace = %L; ', coalesce(s.spcname, ''))
       || case when starts_with(def, prefix) then
            format('create %sindex %I on %s %s', case when indisunique then 'unique ' else '' end,
                   i.relname, :shadow, substr(def, length(prefix) + 1)) end,
       indisunique
from pg_index x join pg_class i on i.oid = x.indexrelid
left join pg_tablespace s on s.oid = i.reltablespace,
pg_get_indexdef(i.oid) def,
format('CREATE %sINDEX %I ON %s ', case when indisunique then 'UNIQUE ' else '' end, i.relname,
       :printed) prefix
where x.indrelid = :oid and not x.indisexclusion
  and not exists (select from pg_class b where b.relname = i.relname
                    and b.relnamespace = to_regnamespace(:schema))
order by pg_relation_size(i.oid) desc";

/// Query for the statements that add the shadow's missing constraints, extended statistics and
/// replica identity, and the options and comments of indexes. The second column is true for keys
/// and foreign keys.
pub(super) const ADD_CONSTRAINTS: &str = "\
select statement, nth in (1, 6) from (
  select 1 as nth, conname as name, case
    when contype = 'x' or i.indisexclusion
      then format('alter table %s add constraint %I %s', :shadow, conname,
                  pg_get_constraintdef(c.oid))
    else format('alter table %1$s add constraint %2$I %3$s using index %2$I%4$s%5$s', :shadow,
                conname,
                case contype when 'p' then 'primary key' else 'unique' end,
                case when condeferrable then ' deferrable' end,
                case when condeferred then ' initially deferred' end) end as statement
  from pg_constraint c join pg_index i on i.indexrelid = c.conindid
  where conrelid = :oid and contype in ('p', 'u', 'x') and not exists (
    select from pg_constraint b where b.conrelid = to_regclass(:shadow) and b.conname = c.conname)
  union all
  select 2, relname, format('alter index %s.%I alter column %s set statistics %s', :schema, relname,
                         attnum, attstattarget)
  from pg_index join pg_class i on i.oid = indexrelid join pg_attribute a on attrelid = i.oid
  where indrelid = :oid and attstattarget >= 0
  union all
  select 3, relname, format('comment on index %s.%I is %L', :schema, relname, description)
  from pg_index join pg_class i on i.oid = indexrelid
  join pg_description on objoid = i.oid and classoid = 'pg_class'::regclass and objsubid = 0
  where indrelid = :oid
  union all
  select 4, relname, format('alter table %s cluster on %I', :shadow, relname)
  from pg_index join pg_class i on i.oid = indexrelid where indrelid = :oid and indisclustered
  union all
  select 5, '', case relreplident
    when 'n' then format('alter table %s replica identity nothing', :shadow)
    when 'f' then format('alter table %s replica identity full', :shadow)
    else (select format('alter table %s replica identity using index %I', :shadow, relname)
          from pg_index join pg_class i on i.oid = indexrelid
          where indrelid = :oid and indisreplident) end
  from pg_class where oid = :oid and relreplident <> 'd'
  union all
  select 6, conname, format('alter table %s add constraint %I %s', :shadow, conname,
                            pg_get_constraintdef(c.oid))
  from pg_constraint c where conrelid = :oid and contype = 'f'
    -- The server adds the parts of a key to a partitioned table itself.
    and not exists (select from pg_constraint k where k.oid = c.conparentid
                      and k.conrelid = c.conrelid)
    and not exists (
    select from pg_constraint b where b.conrelid = to_regclass(:shadow) and b.conname = c.conname)
  union all
  select 7, stxname, case when starts_with(def, prefix) and right(def, length(suffix)) = suffix then
    format('create statistics %s.%I%s from %s', :schema, stxname,
           substr(def, length(prefix) + 1, length(def) - length(prefix) - length(suffix)),
           :shadow) end
  from pg_statistic_ext e join pg_namespace n on n.oid = stxnamespace,
  pg_get_statisticsobjdef(e.oid) def,
  format('CREATE STATISTICS %I.%I', nspname, stxname) prefix,
  concat(' FROM ', :printed) suffix
  where stxrelid = :oid and not exists (
    select from pg_statistic_ext b where b.stxrelid = to_regclass(:shadow)
      and b.stxname = e.stxname)
  union all
  select 8, stxname, format(statement, :schema, stxname, value)
  from pg_statistic_ext e, lateral (values
    ('alter statistics %s.%I set statistics %s', nullif(coalesce(stxstattarget, -1), -1)::text),
    ('comment on statistics %s.%I is %3$L', obj_description(e.oid, 'pg_statistic_ext')),
    ('alter statistics %s.%I owner to %I',
     nullif(pg_get_userbyid(stxowner), current_user))) v(statement, value)
  where stxrelid = :oid and value is not null) s
order by nth, name";

/// Query for the statements that detach the sequences of serial columns from the table, so that
/// dropping the table keeps the sequences.
pub(super) const DETACH_SEQUENCES: &str = "\
select format('alter sequence %s owned by none', s.oid::regclass)
from pg_depend d join pg_class s on s.oid = d.objid
where d.refobjid = :oid and d.deptype = 'a' and d.refobjsubid > 0 and s.relkind = 'S'
  and d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass";

/// Query for the statements that add sequence owners, privileges, row-level security, policies,
/// triggers and comments. The query runs before the exchange, and the statements run once the
/// shadow has the table's name.
pub(super) const ADD_PROPERTIES: &str = "\
with t as (select c.*, n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where c.oid = :oid),
serial as (
  select s.oid::regclass as name, a.attname from pg_depend d join pg_class s on s.oid = d.objid
  join pg_attribute a on a.attrelid = :oid and a.attnum = d.refobjsubid
  where d.refobjid = :oid and d.deptype = 'a' and d.refobjsubid > 0 and s.relkind = 'S'
    and d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass),
number as (
  select s.* from pg_depend d join pg_class s on s.oid = d.objid
  where d.refobjid = :oid and d.deptype = 'i' and s.relkind = 'S'
    and d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass),
-- Objects with privileges: their ACLs on the table's side and on the shadow's side.
holder as (
  select 'table' as kind, :table as name, coalesce(t.relacl, acldefault('r', t.relowner)) as acl,
         coalesce(s.relacl, acldefault('r', s.relowner)) as other
  from t, pg_class s where s.oid = to_regclass(:shadow)
  union all
  select 'sequence', format('%I.%I', t.nspname, o.relname),
         coalesce(o.relacl, acldefault('s', o.relowner)),
         coalesce(s.relacl, acldefault('s', s.relowner))
  from t, number o join pg_class s on s.relname = o.relname
    and s.relnamespace = to_regnamespace(:schema)),
differing as (
  select * from holder where array(select x::text from aclexplode(acl) x order by 1)
                          <> array(select x::text from aclexplode(other) x order by 1)),
statement(nth, name, text) as (
  select 1, name::text, format('alter sequence %s owned by %s.%I', name, :table, attname)
  from serial
  union all
  select 2, stxname::text, format('alter statistics %s.%I set schema %I', :schema, stxname, nspname)
  from pg_statistic_ext join pg_namespace n on n.oid = stxnamespace where stxrelid = :oid
  union all
  select distinct 3, name, format('revoke all on %s %s from %s', kind, name,
    case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end)
  from differing, aclexplode(other)
  union all
  select 4, name, format('grant %s on %s %s to %s%s', privilege_type, kind, name,
    case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end,
    case when is_grantable then ' with grant option' end)
  from differing, aclexplode(acl)
  union all
  select 5, attname::text, format('grant %s (%I) on table %s to %s%s', privilege_type, attname,
    :table,
    case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end,
    case when is_grantable then ' with grant option' end)
  from pg_attribute, aclexplode(attacl) where attrelid = :oid and not attisdropped
  union all
  select 6, 'r', format('alter table %s enable row level security', :table)
  from t where relrowsecurity
  union all
  select 6, 'f', format('alter table %s force row level security', :table)
  from t where relforcerowsecurity
  union all
  select 7, polname::text, format('create policy %I on %s as %s for %s to %s%s%s', polname, :table,
    case when polpermissive then 'permissive' else 'restrictive' end,
    case polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update'
                when 'd' then 'delete' else 'all' end,
    (select string_agg(case role when 0 then 'public'
                       else quote_ident(pg_get_userbyid(role)) end, ', ')
     from unnest(polroles) role),
    ' using (' || pg_get_expr(polqual, polrelid) || ')',
    ' with check (' || pg_get_expr(polwithcheck, polrelid) || ')')
  from pg_policy where polrelid = :oid
  union all
  select 8, tgname::text, pg_get_triggerdef(oid) from pg_trigger
  where tgrelid = :oid and not tgisinternal
  union all
  select 9, tgname::text, format('alter table %s %s trigger %I', :table,
    case tgenabled when 'D' then 'disable' when 'A' then 'enable always' else 'enable replica' end,
    tgname)
  from pg_trigger where tgrelid = :oid and not tgisinternal and tgenabled <> 'O'
  union all
  select 10, 'table', format('comment on table %s is %L', :table, obj_description(:oid, 'pg_class'))
  where obj_description(:oid, 'pg_class') is not null
  union all
  select 11, conname::text, format('comment on constraint %I on %s is %L', conname, :table,
    description)
  from pg_constraint c
  join pg_description on objoid = c.oid and classoid = 'pg_constraint'::regclass
  where conrelid = :oid
  union all
  select 12, tgname::text, format('comment on trigger %I on %s is %L', tgname, :table, description)
  from pg_trigger g join pg_description on objoid = g.oid and classoid = 'pg_trigger'::regclass
  where tgrelid = :oid and not tgisinternal
  union all
  select 13, polname::text, format('comment on policy %I on %s is %L', polname, :table, description)
  from pg_policy p join pg_description on objoid = p.oid and classoid = 'pg_policy'::regclass
  where polrelid = :oid
  union all
  select 14, number.relname::text, format('comment on sequence %I.%I is %L', t.nspname,
    number.relname, description)
  from t, number join pg_description on objoid = number.oid and classoid = 'pg_class'::regclass)
select text from statement order by nth, name";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placeholder_is_filled_once_and_quoted() {
        let names = ShadowNames {
            oid: 7,
            table: "public.\":shadow'\"".to_owned(),
            schema: "pgspate_job_1".to_owned(),
            shadow: "pgspate_job_1.\":shadow'\"".to_owned(),
        };
        let filled = names.fill("where a = :oid and b::text = :table or :shadow::regclass = c :");
        assert_eq!(
            filled,
            "where a = 7 and b::text = 'public.\":shadow''\"' or \
             'pgspate_job_1.\":shadow''\"'::regclass = c :"
        );
    }
}
