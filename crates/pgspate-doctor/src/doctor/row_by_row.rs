//! Finds triggers and defaults that make COPY insert row by row and not many rows at once.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, count};
use super::finding::Check;
use pgspate_target::NO_HYPERTABLE_GUARD;

const ROW_BY_ROW: Check = Check {
    id: "row-by-row",
    question: "Into which tables does COPY insert row by row?",
    rule: "PostgreSQL's source, copyfrom.c: BEFORE or INSTEAD OF row triggers, transition tables \
           of partitioned tables and volatile defaults switch off multi-insert",
};

/// Tables with such triggers, or with columns whose default calls a volatile function other than
/// `nextval`. A partition is listed for its own triggers only: rows routed from the parent fire
/// the partition's triggers, but the parent's defaults apply.
const TABLES: &str = "\
, hindered as (
    select c.name, c.oid, c.relispartition and c.oid <> $1 as is_part,
           array(select t.tgname::text from pg_trigger t
                 where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 4 = 4
                   and (t.tgtype & 1 = 1 and t.tgtype & 66 <> 0
                        or c.relkind = 'p' and t.tgnewtable is not null)
                   and t.tgenabled in ('O', 'A') and NO_GUARD
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

/// Finds tables with such triggers or defaults.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let sql = TABLES.replace("NO_GUARD", NO_HYPERTABLE_GUARD);
    let rows = context.query_tables(&sql, &[]).await?;
    Ok(ROW_BY_ROW.findings_or_ok(rows.iter().map(finding), "no table"))
}

fn finding(row: &Row) -> super::Finding {
    let table: String = row.get(0);
    let (triggers, columns): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
    let mut why = Vec::new();
    let mut advice = Vec::new();
    if !triggers.is_empty() {
        let s = if triggers.len() == 1 { "" } else { "s" };
        why.push(format!("trigger{s} {} must see each row", triggers.join(", ")));
        advice.push(
            "If possible, use an AFTER trigger without a transition table, a generated column or a \
             check constraint instead.",
        );
    }
    if !columns.is_empty() {
        why.push(match columns.len() {
            1 => format!("the default of {} is volatile", columns[0]),
            _ => format!("the defaults of {} are volatile", columns.join(", ")),
        });
        advice.push(
            "Supply the column in the input, so that COPY does not evaluate its default; or use a \
             default that is not volatile, such as now() instead of clock_timestamp().",
        );
    }
    let text = format!("COPY inserts row by row: {}", why.join("; "));
    ROW_BY_ROW.note(text).about(&table).advice(advice.join(" ")).weight(count(row, 3) as f64)
}
