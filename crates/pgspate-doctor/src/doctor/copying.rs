//! What makes COPY insert row by row instead of a page at a time.

use tokio_postgres::Row;

use super::finding::Check;
use super::scene::{Found, Scene, count};

const COPYING: Check = Check {
    id: "row-by-row",
    question: "Which tables does COPY fill row by row?",
    rule: "PostgreSQL's source, copyfrom.c: BEFORE or INSTEAD OF row triggers, transition tables \
           of partitioned tables and volatile defaults switch off multi-insert",
};

/// Triggers, and columns whose default calls a volatile function other than `nextval`. Of a
/// partition they are those of its own: rows that come by way of the whole meet its triggers, and
/// not its defaults.
const TABLES: &str = "\
, hindered as (
    select c.name, c.oid, c.relispartition and c.oid <> $1 as is_part,
           array(select t.tgname::text from pg_trigger t
                 where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 4 = 4
                   and (t.tgtype & 1 = 1 and t.tgtype & 66 <> 0
                        or c.relkind = 'p' and t.tgnewtable is not null)
                   and t.tgenabled in ('O', 'A')
                   and (t.tgparentid = 0 or not c.relispartition or c.oid = $1)
                 order by 1) as triggers,
           array(select a.attname::text from pg_attrdef d
                 join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
                 where d.adrelid = c.oid and a.attgenerated = '' and not a.attisdropped
                   and (not c.relispartition or c.oid = $1)
                   and exists (select from regexp_matches(d.adbin::text,
                                                          ':(?:func|opfunc)id (\\d+)', 'g') as m(id)
                               join pg_proc p on p.oid = m.id[1]::oid
                               where p.provolatile = 'v'
                                 and p.oid <> 'nextval(regclass)'::regprocedure)
                 order by a.attnum) as columns
    from tables c where c.relkind in ('r', 'p'))
select name, triggers, columns, pg_table_size(oid), is_part
from hindered where cardinality(triggers) + cardinality(columns) > 0
order by is_part, pg_stat_get_tuples_inserted(oid) desc limit 20";

/// Tables with such triggers or defaults.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(TABLES, &[]).await?;
    Ok(COPYING.found(rows.iter().map(finding), "none"))
}

fn finding(row: &Row) -> super::Finding {
    let table: String = row.get(0);
    let (triggers, columns): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
    let mut why = Vec::new();
    let mut advice = Vec::new();
    if !triggers.is_empty() {
        why.push(format!("its trigger {} has to see each row by itself", triggers.join(", ")));
        advice.push(
            "Make it a trigger AFTER without a transition table, a generated column or a check, \
             if that does the same.",
        );
    }
    if !columns.is_empty() {
        why.push(format!("the default of {} is volatile", columns.join(", ")));
        advice.push(
            "Give the column in the input, and COPY need not ask for its default; or take one \
             that is not volatile, as now() instead of clock_timestamp().",
        );
    }
    let text = format!("{}: COPY inserts row by row", why.join("; "));
    COPYING.note(text).on(&table).advice(advice.join(" ")).weighs(count(row, 3) as f64)
}
