//! Finds what keeps VACUUM from removing dead rows: old snapshots, forgotten prepared transactions,
//! and replication slots without a reader.

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, count};
use super::finding::Check;
use pgspate_base::numbers::thousands;

const HELD_BACK: Check = Check {
    id: "held-back",
    question: "Does anything keep VACUUM from removing dead rows?",
    rule: "PostgreSQL manual, routine vacuuming: rows that the oldest snapshot may see are kept",
};

/// A snapshot with fewer transactions since then is not reported.
const AGE_MIN: i64 = 100_000;
/// The least age in transactions at which the finding is a warning.
const AGE_WARNING: u64 = 10_000_000;

/// Sessions, prepared transactions and slots that hold back VACUUM in this database. Sessions of
/// other databases do not count, but replicas and slots of any database do. A session that runs
/// VACUUM does not hold back another VACUUM. A logical slot holds back only the system catalogs.
const HOLDERS: &str = "\
with session as (
    select a.*, greatest(age(a.backend_xmin), age(a.backend_xid))::int8 as age
    from pg_stat_activity a
    where a.pid <> pg_backend_pid() and a.usesysid is not null
      and (a.datid is null or a.datname = current_database())
      and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid))
select case when exists (select from pg_stat_replication r where r.pid = s.pid)
            then 'walsender' else 'session' end, s.pid::text, s.age,
       coalesce(nullif(concat_ws(' since ', s.state,
                                 coalesce(s.xact_start, s.backend_start)::timestamptz(0)::text),
                       ''), 'its state is hidden from this role'), false
from session s where s.age >= $1::int8
union all
select 'prepared transaction', gid, age(transaction)::int8,
       concat('since ', prepared::timestamptz(0)::text), false
from pg_prepared_xacts where database = current_database() and age(transaction) >= $1::int8
union all
select 'replication slot', slot_name::text,
       case when age(xmin) >= $1::int8 then age(xmin) else age(catalog_xmin) end::int8,
       case when active then 'active' else 'no reader is connected' end,
       coalesce(age(xmin), 0) < $1::int8
from pg_replication_slots where greatest(age(xmin), age(catalog_xmin)) >= $1::int8
order by 3 desc limit 20";

/// Finds sessions, prepared transactions and slots that hold an old snapshot.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.client.query(HOLDERS, &[&AGE_MIN]).await?;
    let limit = thousands(AGE_MIN.unsigned_abs());
    let nothing = format!("no snapshot is older than {limit} transactions");
    Ok(HELD_BACK.findings_or_ok(rows.iter().map(finding), nothing))
}

fn finding(row: &Row) -> super::Finding {
    let (kind, name): (&str, &str) = (row.get(0), row.get(1));
    let (age, how) = (count(row, 2), row.get::<_, &str>(3));
    let quoted = name.replace('\'', "''");
    let mut advice = "VACUUM keeps every row that this snapshot might still see.".to_owned();
    let sql = match kind {
        "session" => format!("select pg_terminate_backend({name});"),
        // Terminating the walsender is useless: the replica would connect again.
        "walsender" => {
            advice.push_str(
                " The cause is on the replica: a long query with hot_standby_feedback on, or the \
                 initial copy of a subscription.",
            );
            format!("select * from pg_stat_replication where pid = {name};")
        }
        "prepared transaction" if name.starts_with("pgspate:") => {
            "pgspate status --restore -- on the coordinator, whose ledger knows how it ends".into()
        }
        "prepared transaction" => {
            format!("rollback prepared '{quoted}'; -- or commit prepared; in its own database")
        }
        _ if how == "active" => {
            advice.push_str(" The slot's reader is connected but lags behind: find out why.");
            format!("select * from pg_replication_slots where slot_name = '{quoted}';")
        }
        _ => {
            advice.push_str(
                " Without the slot, its reader cannot continue: the subscriber or replica must be \
                 copied anew, and loses the changes that it has not read.",
            );
            format!(
                "select pg_drop_replication_slot('{quoted}'); -- if its reader is gone for good"
            )
        }
    };
    let place = if row.get(4) { " in the system catalogs" } else { "" };
    let text = format!(
        "{how}; VACUUM cannot remove rows{place} that died in the last {} transactions",
        thousands(age)
    );
    HELD_BACK
        .note_or_warning(age >= AGE_WARNING, text)
        .about(format!("{kind} {name}"))
        .count("age", age)
        .weight(age as f64)
        .advice(advice)
        .remedy(sql)
}
