//! What keeps dead rows from being cleaned away: old snapshots, forgotten prepared transactions,
//! replication slots that nobody reads.

use tokio_postgres::Row;

use super::finding::Check;
use super::scene::{Found, Scene, count};
use pgspate_base::numbers::thousands;

const HELD: Check = Check {
    id: "held-back",
    question: "Does anything keep dead rows from being cleaned away?",
    rule: "PostgreSQL manual, routine vacuuming: what the oldest snapshot may see stays",
};

/// Fewer transactions since then are no matter.
const AGE_MIN: i64 = 100_000;
/// From here on it is worse.
const AGE_WORSE: u64 = 10_000_000;

/// What holds rows of this database: its sessions' snapshots and transactions, those of replicas,
/// its prepared transactions, and slots, whatever their database is. What VACUUM sees is no matter
/// to another one. A slot that only decodes holds the rows of catalogs alone.
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
                       ''), 'of a role whose sessions this one does not see'), false
from session s where s.age >= $1::int8
union all
select 'prepared transaction', gid, age(transaction)::int8,
       concat('since ', prepared::timestamptz(0)::text), false
from pg_prepared_xacts where database = current_database() and age(transaction) >= $1::int8
union all
select 'replication slot', slot_name::text,
       case when age(xmin) >= $1::int8 then age(xmin) else age(catalog_xmin) end::int8,
       case when active then 'active' else 'nobody reads it' end,
       coalesce(age(xmin), 0) < $1::int8
from pg_replication_slots where greatest(age(xmin), age(catalog_xmin)) >= $1::int8
order by 3 desc limit 20";

/// Sessions, prepared transactions and slots that hold an old snapshot.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.client.query(HOLDERS, &[&AGE_MIN]).await?;
    let limit = thousands(AGE_MIN.unsigned_abs());
    let nothing = format!("no snapshot is older than {limit} transactions");
    Ok(HELD.found(rows.iter().map(finding), nothing))
}

fn finding(row: &Row) -> super::Finding {
    let (kind, name): (&str, &str) = (row.get(0), row.get(1));
    let (age, how) = (count(row, 2), row.get::<_, &str>(3));
    let quoted = name.replace('\'', "''");
    let mut advice = "No VACUUM can remove what it might still see.".to_owned();
    let sql = match kind {
        "session" => format!("select pg_terminate_backend({name});"),
        // Ending it would only have the replica come again; what holds is over there.
        "walsender" => {
            advice.push_str(
                " A replica holds it: a long query there with hot_standby_feedback on, or the \
                 first copy of a subscription.",
            );
            format!("select * from pg_stat_replication where pid = {name};")
        }
        "prepared transaction" => {
            format!("rollback prepared '{quoted}'; -- or commit prepared, in its database")
        }
        _ if how == "active" => {
            advice.push_str(" Its reader is there and behind: see what it waits for.");
            format!("select * from pg_replication_slots where slot_name = '{quoted}';")
        }
        _ => {
            advice.push_str(
                " Without the slot its reader can never go on where it was: a subscriber or a \
                 replica has to be copied anew, and changes that were not read are lost to it.",
            );
            format!("select pg_drop_replication_slot('{quoted}'); -- if nobody comes back for it")
        }
    };
    let place = if row.get(4) { " in the system catalogs" } else { "" };
    let age_words = thousands(age);
    let text = format!("{how}: what {age_words} transactions have left dead{place} has to stay");
    HELD.worse(age >= AGE_WORSE, text)
        .on(format!("{kind} {name}"))
        .count("age", age)
        .weighs(age as f64)
        .advice(advice)
        .run(sql)
}
