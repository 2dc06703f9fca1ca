//! Settings that are dangerous or slow whatever the load is.

use super::finding::{Check, Finding};
use super::scene::{Found, Scene, count};
use pgspate_base::numbers::bytes;
use pgspate_target::quote_ident;
use pgspate_target::server::{Flavour, words};

const FSYNC: Check = Check {
    id: "fsync",
    question: "Does what is committed survive a crash of the machine?",
    rule: "PostgreSQL manual, fsync: off only for data that can be made again",
};
const FULL_PAGE_WRITES: Check = Check {
    id: "full-page-writes",
    question: "Do half-written pages survive a crash of the machine?",
    rule: "PostgreSQL manual, full_page_writes",
};
const AUTOVACUUM: Check = Check {
    id: "autovacuum",
    question: "Are dead rows cleaned away by themselves?",
    rule: "PostgreSQL manual, routine vacuuming; off for one table at most, for a time",
};
const SYNCHRONOUS_COMMIT: Check = Check {
    id: "synchronous-commit",
    question: "Do commits of everybody wait for the disk?",
    rule: "an anti-pattern: a session may switch it off for itself, the server should not",
};
const MAINTENANCE: Check = Check {
    id: "maintenance-work-mem",
    question: "Is there memory enough to build indexes and to vacuum?",
    rule: "measured: an index is sorted in one pass while it is below 16 times the memory",
};

/// Builds of indexes below this take no time worth a word.
const INDEX_MIN: u64 = 8 << 20;

/// `fsync` and `full_page_writes`.
pub(super) async fn safety(scene: &Scene<'_>) -> Found {
    let danger = "A crash of the machine can leave the database beyond repair.";
    let both = [(FSYNC, "fsync"), (FULL_PAGE_WRITES, "full_page_writes")];
    if scene.flavour == Flavour::Aurora {
        let text = |name| format!("Aurora's storage sees to that, whatever {name} is");
        return Ok(both.into_iter().map(|(check, name)| check.ok(text(name))).collect());
    }
    Ok(both.into_iter().map(|(check, name)| must_be_on(scene, check, name, danger)).collect())
}

fn must_be_on(scene: &Scene<'_>, check: Check, name: &str, danger: &str) -> Finding {
    match scene.setting(name) {
        Some("off") => {
            let finding = check.warning(format!("{name} is off")).on(name).advice(danger);
            let finding = finding.weighs(f64::MAX);
            scene.set(name, "on").into_iter().fold(finding, Finding::run)
        }
        Some(value) => check.ok(format!("{name} is {value}")),
        None => check
            .cannot_see(format!("{name} is not shown"))
            .run(scene.grant("pg_read_all_settings")),
    }
}

/// Who has a table to itself, or waits to, would make a look at its size wait in line.
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

/// Autovacuum, of all tables and of single ones.
pub(super) async fn autovacuum(scene: &Scene<'_>) -> Found {
    let danger = "Dead rows pile up, and in the end the server stops writing to keep transaction \
                  ids from wrapping around.";
    let mut found = vec![must_be_on(scene, AUTOVACUUM, "autovacuum", danger)];
    if scene.setting("track_counts") == Some("off") {
        found.push(must_be_on(scene, AUTOVACUUM, "track_counts", danger));
    }
    for row in scene.rows(TABLES_OFF).await? {
        let table: String = row.get(0);
        // Unknown where somebody has it locked, or has just dropped it.
        let size = row.get::<_, Option<i64>>(1).map(i64::unsigned_abs);
        let words = size.map_or("locked by somebody".to_owned(), bytes);
        let text = format!("autovacuum is off for this table ({words})");
        found.push(
            AUTOVACUUM
                .note(text)
                .on(&table)
                .weighs(size.unwrap_or_default() as f64)
                .advice("Unless a load is under way that puts it back itself.")
                .run(format!("alter table {table} reset (autovacuum_enabled);")),
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

/// `synchronous_commit` off for everybody, a database, or a role.
pub(super) async fn synchronous_commit(scene: &Scene<'_>) -> Found {
    let advice = "Whoever commits anything may lose it in a crash without noticing. `pgspate load` \
                  switches it off for its own sessions, and waits for the last commit.";
    let mut found = Vec::new();
    let setting = scene.settings.get("synchronous_commit");
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
            .on("synchronous_commit")
            .advice(advice);
        found.push(scene.set("synchronous_commit", "on").into_iter().fold(finding, Finding::run));
    }
    for row in scene.client.query(COMMIT_OFF, &[]).await? {
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
        // A role may be the one that loads; a database is everybody's.
        let finding = SYNCHRONOUS_COMMIT.worse(role.is_none(), text).on(whose).advice(advice);
        found.push(finding.run(format!("{sql} synchronous_commit;")));
    }
    let value = scene.setting("synchronous_commit").unwrap_or("unknown");
    Ok(SYNCHRONOUS_COMMIT.found(found, format!("synchronous_commit is {value}")))
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

/// `maintenance_work_mem` beside the largest index.
pub(super) async fn maintenance(scene: &Scene<'_>) -> Found {
    let Some(memory) = scene.setting_bytes("maintenance_work_mem") else {
        return Ok(vec![MAINTENANCE.cannot_see("maintenance_work_mem is not shown")]);
    };
    let rows = scene.rows(LARGEST_INDEX).await?;
    let Some(row) = rows.first() else {
        return Ok(vec![MAINTENANCE.ok(format!("{} and no index", words(memory)))]);
    };
    let (index, size): (String, u64) = (row.get(0), count(row, 1));
    let text = format!("{} for the largest index, {index} of {}", words(memory), bytes(size));
    if size < INDEX_MIN || size <= 16 * memory {
        return Ok(vec![MAINTENANCE.ok(text)]);
    }
    let wanted = ((size / 16).clamp(64 << 20, 2 << 30) >> 20).next_power_of_two();
    if wanted << 20 <= memory {
        return Ok(vec![MAINTENANCE.ok(text)]);
    }
    let finding = MAINTENANCE
        .note(text)
        .on("maintenance_work_mem")
        .count("maintenance_work_mem", memory)
        .count("largest_index_bytes", size)
        .weighs(size as f64)
        .advice(
            "Sorting it takes several passes. For the session that builds it, as nobody here \
             knows the server's memory; `pgspate tune` proposes a value for all by its size.",
        );
    Ok(vec![finding.run(format!("set maintenance_work_mem = '{wanted}MB'; -- in a session"))])
}
