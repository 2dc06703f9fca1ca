//! Checks settings that are dangerous or slow for any load.

use super::context::{CheckContext, CheckResult, count};
use super::finding::{Check, Finding};
use pgspate_base::numbers::bytes;
use pgspate_target::quote_ident;
use pgspate_target::server::{Flavour, format_size_setting};

const FSYNC: Check = Check {
    id: "fsync",
    question: "Do commits survive a crash of the machine?",
    rule: "PostgreSQL manual, fsync: off only for data that can be recreated",
};
const FULL_PAGE_WRITES: Check = Check {
    id: "full-page-writes",
    question: "Can half-written pages be repaired after a crash of the machine?",
    rule: "PostgreSQL manual, full_page_writes",
};
const AUTOVACUUM: Check = Check {
    id: "autovacuum",
    question: "Does autovacuum remove dead rows?",
    rule: "PostgreSQL manual, routine vacuuming; off only for single tables, for a limited time",
};
const SYNCHRONOUS_COMMIT: Check = Check {
    id: "synchronous-commit",
    question: "Do the commits of all sessions wait for the disk?",
    rule: "a session may switch synchronous_commit off for itself; the server should not do so for \
           all",
};
const MAINTENANCE: Check = Check {
    id: "maintenance-work-mem",
    question: "Is there enough memory to build indexes and to vacuum?",
    rule: "measured: an index of up to 16 times maintenance_work_mem is sorted in one pass",
};

/// Smaller indexes are ignored, because building them takes little time.
const INDEX_BYTES_MIN: u64 = 8 << 20;

/// Checks `fsync` and `full_page_writes`.
pub(super) async fn check_crash_safety(context: &CheckContext<'_>) -> CheckResult {
    let danger = "A crash of the machine can damage the database beyond repair.";
    let both = [(FSYNC, "fsync"), (FULL_PAGE_WRITES, "full_page_writes")];
    if context.flavour == Flavour::Aurora {
        let text = |name| format!("Aurora's storage guarantees this, whatever {name} is");
        return Ok(both.into_iter().map(|(check, name)| check.ok(text(name))).collect());
    }
    Ok(both.into_iter().map(|(check, name)| must_be_on(context, check, name, danger)).collect())
}

/// Warns if a setting is off. Reports a setting that the role cannot see.
fn must_be_on(context: &CheckContext<'_>, check: Check, name: &str, danger: &str) -> Finding {
    match context.setting(name) {
        Some("off") => {
            let finding = check.warning(format!("{name} is off")).about(name).advice(danger);
            let finding = finding.weight(f64::MAX);
            context.statements_to_set(name, "on").into_iter().fold(finding, Finding::remedy)
        }
        Some(value) => check.ok(format!("{name} is {value}")),
        None => check
            .cannot_see(format!("this role cannot see {name}"))
            .remedy(context.grant_statement("pg_read_all_settings")),
    }
}

/// Tables with autovacuum off. If another session has locked a table exclusively, or waits for this
/// lock, the size is null, because reading the size would wait.
const TABLES_OFF: &str = "\
select format('%I.%I', n.nspname, c.relname),
       case when not exists (select from pg_locks l
                             where l.relation = c.oid and l.mode = 'AccessExclusiveLock'
                               and l.pid is distinct from pg_backend_pid())
            then pg_relation_size(c.oid) end
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'm') and ($1::oid = 0 or c.oid = $1)
  and exists (select from pg_options_to_table(c.reloptions)
              where option_name = 'autovacuum_enabled'
                and option_value in ('off', 'false', 'no', '0'))
order by 2 desc nulls last";

/// Checks autovacuum, for the server and for single tables.
pub(super) async fn check_autovacuum(context: &CheckContext<'_>) -> CheckResult {
    let danger = "Dead rows accumulate, and in the end the server refuses writes to prevent \
                  transaction ID wraparound.";
    let mut found = vec![must_be_on(context, AUTOVACUUM, "autovacuum", danger)];
    if context.setting("track_counts") == Some("off") {
        found.push(must_be_on(context, AUTOVACUUM, "track_counts", danger));
    }
    for row in context.query_with_table_oid(TABLES_OFF).await? {
        let table: String = row.get(0);
        // Unknown if another session has locked the table, or has just dropped it.
        let size = row.get::<_, Option<i64>>(1).map(i64::unsigned_abs);
        let table_size = size.map_or("locked by another session".to_owned(), bytes);
        let text = format!("autovacuum is off for this table ({table_size})");
        found.push(
            AUTOVACUUM
                .note(text)
                .about(&table)
                .weight(size.unwrap_or_default() as f64)
                .advice("Do not run this during a load: the load resets autovacuum_enabled itself.")
                .remedy(format!("alter table {table} reset (autovacuum_enabled);")),
        );
    }
    Ok(found)
}

const COMMIT_OFF: &str = "\
select d.datname::text, r.rolname::text
from pg_db_role_setting s left join pg_database d on d.oid = s.setdatabase
left join pg_roles r on r.oid = s.setrole
where exists (select from unnest(s.setconfig) as it(setting)
              where lower(setting) in ('synchronous_commit=off', 'synchronous_commit=false',
                                       'synchronous_commit=0'))";

/// Checks whether `synchronous_commit` is off for the server, a database, or a role.
pub(super) async fn check_synchronous_commit(context: &CheckContext<'_>) -> CheckResult {
    let advice = "A crash of the server can lose transactions that were reported as committed. \
                  `pgspate load` switches it off for its own sessions only, and its last commit \
                  waits for the disk.";
    let mut found = Vec::new();
    let setting = context.settings.get("synchronous_commit");
    let is_global = setting.is_some_and(|it| {
        it.value == "off"
            && matches!(
                it.source.as_str(),
                "configuration file" | "command line" | "environment variable"
            )
    });
    if is_global {
        let finding = SYNCHRONOUS_COMMIT
            .warning("synchronous_commit is off for every session of the server")
            .about("synchronous_commit")
            .advice(advice);
        found.push(
            context
                .statements_to_set("synchronous_commit", "on")
                .into_iter()
                .fold(finding, Finding::remedy),
        );
    }
    for row in context.client.query(COMMIT_OFF, &[]).await? {
        let (database, role): (Option<String>, Option<String>) = (row.get(0), row.get(1));
        let (whose, sql) = match (&database, &role) {
            (Some(database), None) => {
                let name = quote_ident(database);
                (format!("database {name}"), format!("alter database {name} reset"))
            }
            (None, Some(role)) => {
                let name = quote_ident(role);
                (format!("role {name}"), format!("alter role {name} reset"))
            }
            (Some(database), Some(role)) => {
                let (name, database) = (quote_ident(role), quote_ident(database));
                (
                    format!("role {name} in database {database}"),
                    format!("alter role {name} in database {database} reset"),
                )
            }
            (None, None) => ("every role".to_owned(), "alter role all reset".to_owned()),
        };
        let text = format!("synchronous_commit is off for every session of {whose}");
        // A role may exist for loads only; a database is shared.
        let finding =
            SYNCHRONOUS_COMMIT.note_or_warning(role.is_none(), text).about(whose).advice(advice);
        found.push(finding.remedy(format!("{sql} synchronous_commit;")));
    }
    let value = context.setting("synchronous_commit").unwrap_or("unknown");
    Ok(SYNCHRONOUS_COMMIT.findings_or_ok(found, format!("synchronous_commit is {value}")))
}

const LARGEST_INDEX: &str = "\
select format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_index i on i.indexrelid = c.oid
where c.relkind = 'i' and n.nspname !~ '^pg_' and ($1::oid = 0 or i.indrelid = $1)
  and not exists (select from pg_locks l
                  where l.relation = c.oid and l.mode = 'AccessExclusiveLock'
                    and l.pid is distinct from pg_backend_pid())
order by c.relpages desc limit 1";

/// Compares `maintenance_work_mem` with the largest index.
pub(super) async fn check_maintenance_memory(context: &CheckContext<'_>) -> CheckResult {
    let Some(memory) = context.setting_bytes("maintenance_work_mem") else {
        return Ok(vec![MAINTENANCE.cannot_see("this role cannot see maintenance_work_mem")]);
    };
    let rows = context.query_with_table_oid(LARGEST_INDEX).await?;
    let Some(row) = rows.first() else {
        return Ok(vec![MAINTENANCE.ok(format!(
            "maintenance_work_mem is {}; there is no index",
            format_size_setting(memory)
        ))]);
    };
    let (index, size): (String, u64) = (row.get(0), count(row, 1));
    let text = format!(
        "maintenance_work_mem is {}; the largest index, {index}, takes {}",
        format_size_setting(memory),
        bytes(size)
    );
    if size < INDEX_BYTES_MIN || size <= 16 * memory {
        return Ok(vec![MAINTENANCE.ok(text)]);
    }
    let wanted = ((size / 16).clamp(64 << 20, 2 << 30) >> 20).next_power_of_two();
    if wanted << 20 <= memory {
        return Ok(vec![MAINTENANCE.ok(text)]);
    }
    let finding = MAINTENANCE
        .note(text)
        .about("maintenance_work_mem")
        .count("maintenance_work_mem", memory)
        .count("largest_index_bytes", size)
        .weight(size as f64)
        .advice(
            "Building such an index takes several sort passes. Set it only in the session that \
             builds it. `pgspate tune` proposes a value for the whole server from its memory.",
        );
    Ok(vec![finding.remedy(format!("set maintenance_work_mem = '{wanted}MB'; -- in a session"))])
}
