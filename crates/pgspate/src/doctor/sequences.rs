//! Sequences near their end, and columns too narrow for theirs.

use tokio_postgres::Row;

use super::finding::Check;
use super::scene::{Found, Scene};
use crate::numbers::thousands;

const SEQUENCES: Check = Check {
    id: "sequences",
    question: "Which sequences come to their end?",
    rule: "at three quarters there is time to widen a column, at nine tenths there is little",
};

/// The end is the sequence's own or that of its column's type, whichever comes first.
const LAST: &str = "\
select format('%I.%I', q.schemaname, q.sequencename), q.last_value,
       case when q.increment_by > 0
            then least(q.max_value, case a.atttypid when 'int2'::regtype then 32767
                                        when 'int4'::regtype then 2147483647
                                        else q.max_value end)
            else q.min_value end,
       q.start_value, a.atttypid::regtype::text,
       case when a.attname is not null
            then (select format('alter table %I.%I alter column %I type bigint;',
                                tn.nspname, t.relname, a.attname)
                  from pg_class t join pg_namespace tn on tn.oid = t.relnamespace
                  where t.oid = d.refobjid) end,
       q.data_type::text, q.cycle,
       has_sequence_privilege(s.oid, 'select, usage')
from pg_sequences q join pg_namespace n on n.nspname = q.schemaname
join pg_class s on s.relnamespace = n.oid and s.relname = q.sequencename and s.relkind = 'S'
left join pg_depend d on d.objid = s.oid and d.classid = 'pg_class'::regclass
     and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i') and d.refobjsubid > 0
left join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
where n.nspname <> 'pgspate' and ($1::oid = 0 or d.refobjid = $1)";

/// Sequences of which three quarters are used.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.rows(LAST).await?;
    let hidden: Vec<String> =
        rows.iter().filter(|row| !row.get::<_, bool>(8)).map(|row| row.get(0)).collect();
    let mut found: Vec<_> = rows.iter().filter_map(finding).collect();
    if let Some(first) = hidden.first() {
        let text = format!("{} sequences of {} hide their value", hidden.len(), rows.len());
        let role = crate::target::quote_ident(&scene.rights.role).into_owned();
        let sql = format!("grant select on sequence {first} to {role};");
        found.push(SEQUENCES.cannot_see(text).run(sql));
    }
    if found.is_empty() {
        found.push(SEQUENCES.ok(format!("{} sequences, all with room", rows.len())));
    }
    Ok(found)
}

fn finding(row: &Row) -> Option<super::Finding> {
    let (last, end, start): (Option<i64>, i64, i64) = (row.get(1), row.get(2), row.get(3));
    let last = last?;
    let whole = (end as f64 - start as f64).abs().max(1.0);
    let share = (last as f64 - start as f64).abs() / whole;
    if share < 0.75 || row.get::<_, bool>(7) {
        return None;
    }
    let sequence: String = row.get(0);
    let text = format!(
        "at {} of {} ({:.1} %)",
        thousands(last.unsigned_abs()),
        thousands(end.unsigned_abs()),
        share * 100.0
    );
    let finding = SEQUENCES
        .worse(share >= 0.9, text)
        .on(&sequence)
        .number("share", share)
        .weighs(share * 1e15);
    let widen: Option<String> = row.get(5);
    let finding = match widen.filter(|_| row.get::<_, Option<&str>>(4) != Some("bigint")) {
        Some(sql) => {
            finding.advice("This rewrites the table and locks everybody out meanwhile.").run(sql)
        }
        None => finding,
    };
    Some(match row.get::<_, &str>(6) {
        "bigint" => finding,
        _ => finding.run(format!("alter sequence {sequence} as bigint;")),
    })
}
