//! Finds sequences near their end, and columns whose type ends before their sequence.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, still_exists};
use super::finding::Check;
use super::keys::ROWS;
use pgspate_base::numbers::{counted, thousands};

const SEQUENCES: Check = Check {
    id: "sequences",
    question: "Which sequences will soon run out of values?",
    rule: "a note when three quarters are used, a warning at nine tenths: widening a column takes \
           time",
};

/// The most sequences that are checked, those of the largest tables first. The check holds a lock
/// on each sequence until the check ends, and the server has room for some thousands of locks.
const SEQUENCES_MAX: usize = 500;

/// Sequences with their last value and their end. The end is the limit of the sequence or of its
/// column's type, whichever comes first. Sequences that end at the bigint limit are left out, and
/// so are sequences that a session is altering, because reading them would wait.
const LAST: &str = "\
, sequence as (
    select s.oid, format('%I.%I', n.nspname, s.relname) as name, q.*,
           a.attname, a.atttypid, d.refobjid, s.relpersistence,
           case when q.seqincrement > 0
                then least(q.seqmax, case a.atttypid when 'int2'::regtype then 32767
                                                     when 'int4'::regtype then 2147483647
                                                     else q.seqmax end)
                else q.seqmin end as last_one,
           case when q.seqincrement > 0
                then q.seqmax < case q.seqtypid when 'int2'::regtype then 32767
                                                when 'int4'::regtype then 2147483647
                                                else 9223372036854775807 end
                else q.seqmin > case q.seqtypid when 'int2'::regtype then -32768
                                                when 'int4'::regtype then -2147483648
                                                else -9223372036854775808 end end as is_limited
    from pg_sequence q join pg_class s on s.oid = q.seqrelid
    join schemas n on n.oid = s.relnamespace
    left join pg_depend d on d.objid = s.oid and d.classid = 'pg_class'::regclass
         and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i') and d.refobjsubid > 0
    left join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
    where s.relpersistence <> 't' and not exists (select from members m where m.oid = s.oid)
      and s.oid not in (select oid from held) and not q.seqcycle
      and ($1::oid = 0 or d.refobjid in (select oid from asked))),
ending as (
    select q.*, c.relname, c.relnamespace
    from sequence q left join pg_class c on c.oid = q.refobjid
    where last_one not in (9223372036854775807, -9223372036854775808)
    order by ROWS desc nulls first limit $2::int8)
select q.name,
       case when has_sequence_privilege(q.oid, 'select, usage')
                 and not (q.relpersistence = 'u' and pg_is_in_recovery())
            then pg_sequence_last_value(q.oid) end,
       q.last_one, q.seqstart, q.atttypid::regtype::text,
       case when q.attname is not null
            then (select format('alter table %I.%I alter column %I type bigint;',
                                n.nspname, q.relname, q.attname)
                  from pg_namespace n where n.oid = q.relnamespace) end,
       q.seqtypid::regtype::text,
       case when not is_limited then '' when q.seqincrement > 0 then ' no maxvalue'
            else ' no minvalue' end,
       has_sequence_privilege(q.oid, 'select, usage'), q.seqincrement > 0
from ending q";

/// Finds sequences of which three quarters or more of the values are used.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let sql = LAST.replace("ROWS", ROWS);
    let mut rows = context.query_tables(&sql, &[&(SEQUENCES_MAX as i64)]).await?;
    rows.retain(|row| still_exists(row, 8));
    let hidden: Vec<String> =
        rows.iter().filter(|row| !row.get::<_, bool>(8)).map(|row| row.get(0)).collect();
    let mut found: Vec<_> = rows.iter().filter_map(finding).collect();
    if let Some(first) = hidden.first() {
        let text = format!(
            "this role cannot see the value of {}, among {} checked",
            counted(hidden.len() as u64, "sequence"),
            rows.len()
        );
        let role = pgspate_target::quote_ident(&context.rights.role).into_owned();
        let sql = format!("grant select on sequence {first} to {role};");
        found.push(SEQUENCES.cannot_see(text).remedy(sql));
    }
    let which = if rows.len() < SEQUENCES_MAX { "" } else { " of the largest tables" };
    let all = counted(rows.len() as u64, "sequence");
    let nothing = format!("{all}{which} with an end below bigint's checked, none near it");
    Ok(SEQUENCES.findings_or_ok(found, nothing))
}

fn finding(row: &Row) -> Option<super::Finding> {
    let (last, end, start): (Option<i64>, i64, i64) = (row.get(1), row.get(2), row.get(3));
    let last = last?;
    // A sequence that was set to a value before its start has used nothing.
    let way = |to: i64| match row.get(9) {
        true => to as f64 - start as f64,
        false => start as f64 - to as f64,
    };
    let share = way(last).max(0.0) / way(end).max(1.0);
    if share < 0.75 {
        return None;
    }
    let sequence: String = row.get(0);
    let text = format!("at {} of {} ({:.1} %)", signed(last), signed(end), share * 100.0);
    let finding = SEQUENCES
        .note_or_warning(share >= 0.9, text)
        .about(&sequence)
        .number("share", share)
        .weight(share * 1e15);
    let widen: Option<String> = row.get(5);
    let finding = match widen.filter(|_| row.get::<_, Option<&str>>(4) != Some("bigint")) {
        Some(sql) => {
            let advice = "Changing the column's type rewrites the table and blocks all readers and \
                          writers meanwhile.";
            finding.advice(advice).remedy(sql)
        }
        None => finding,
    };
    // A limit that was set explicitly stays when the type changes.
    let unlimited: &str = row.get(7);
    Some(match (row.get::<_, &str>(6), unlimited) {
        ("bigint", "") => finding,
        ("bigint", _) => finding.remedy(format!("alter sequence {sequence}{unlimited};")),
        _ => finding.remedy(format!("alter sequence {sequence} as bigint{unlimited};")),
    })
}

/// Formats a number with its sign and thousands separators: `-2,147,483,648`.
fn signed(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", thousands(value.unsigned_abs()))
}
