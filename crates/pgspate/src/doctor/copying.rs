//! What makes COPY insert row by row instead of a page at a time.

use tokio_postgres::Row;

use super::finding::Check;
use super::scene::{Found, Scene};

const COPYING: Check = Check {
    id: "row-by-row",
    question: "Which tables does COPY fill row by row?",
    rule: "PostgreSQL's source, copyfrom.c: BEFORE or INSTEAD OF row triggers and volatile \
           defaults switch off multi-insert",
};

/// Triggers, and columns whose default calls a volatile function other than `nextval`.
const TABLES: &str = "\
select format('%I.%I', n.nspname, c.relname),
       array(select t.tgname::text from pg_trigger t
             where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 4 = 4
               and t.tgtype & 1 = 1 and t.tgtype & 66 <> 0 and t.tgenabled in ('O', 'A')
             order by 1),
       array(select a.attname::text from pg_attrdef d
             join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
             where d.adrelid = c.oid and a.attgenerated = '' and not a.attisdropped
               and exists (select from regexp_matches(d.adbin::text,
                                                      ':(?:func|opfunc)id (\\d+)', 'g') as m(id)
                           join pg_proc p on p.oid = m.id[1]::oid
                           where p.provolatile = 'v'
                             and p.oid <> 'nextval(regclass)'::regprocedure)
             order by a.attnum),
       pg_table_size(c.oid), pg_stat_get_tuples_inserted(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition
  and n.nspname !~ '^(pg_|information_schema$|pgspate$)' and ($1::oid = 0 or c.oid = $1)
order by 5 desc";

/// Tables with such triggers or defaults.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.rows(TABLES).await?;
    let mut found: Vec<_> = rows.iter().filter_map(finding).collect();
    if found.is_empty() {
        found.push(COPYING.ok("none"));
    }
    Ok(found)
}

fn finding(row: &Row) -> Option<super::Finding> {
    let table: String = row.get(0);
    let (triggers, columns): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
    let mut why = Vec::new();
    if !triggers.is_empty() {
        why.push(format!("its trigger {} runs before each row", triggers.join(", ")));
    }
    if !columns.is_empty() {
        why.push(format!("the default of {} is volatile", columns.join(", ")));
    }
    if why.is_empty() {
        return None;
    }
    let advice = match triggers.is_empty() {
        true => "Give the column in the input, and COPY need not ask for its default.",
        false => "Make it a trigger AFTER, a generated column or a check, if that does the same.",
    };
    let text = format!("{}: COPY inserts row by row", why.join("; "));
    let finding = COPYING.note(text).on(&table).advice(advice);
    Some(finding.weighs(row.get::<_, i64>(3) as f64))
}
