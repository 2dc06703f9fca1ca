//! Finds what pgspate itself has changed for a load and not put back.
//!
//! A running load puts its changes back itself, so it is no problem. Settings of `pgspate tune` are
//! reported while the server has the marker setting, in every database.

use super::context::{CheckContext, CheckResult};
use super::finding::{Check, Finding};
use crate::{ErrorKind, Result, tune};
use pgspate_base::numbers::thousands;
use pgspate_target::ledger::{self, RecordedChange};
use pgspate_target::shards::{LeftPrepared, list_prepared};

const NOT_PUT_BACK: Check = Check {
    id: "not-put-back",
    question: "Is anything that a load or `pgspate tune` changed not put back yet?",
    rule: "pgspate's ledger has the old value of everything that pgspate changes; the setting \
           pgspate.tuned exists until all settings are put back",
};

/// The least age in seconds of a prepared transaction that is reported. A load needs less.
const PREPARED_SECONDS_MIN: u64 = 60;

/// Shows the settings of ALTER SYSTEM, if the ledger no longer has what `tune` has changed.
const SHOW_ALTER_SYSTEM: &str =
    "select name, setting from pg_file_settings where sourcefile like '%postgresql.auto.conf';";

/// Finds changes of loads and of `tune` that are not put back. For one table, only changes of this
/// table count.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let mut found = Vec::new();
    if let Err(error) = collect(context, &mut found).await {
        let finding = NOT_PUT_BACK.cannot_see(error.to_string());
        found.push(match error.hint_text() {
            Some(hint) if error.kind() == ErrorKind::Ledger => finding.advice(hint),
            _ => finding
                .remedy(context.grant_statement("usage on schema pgspate"))
                .remedy(context.grant_statement("select on all tables in schema pgspate")),
        });
    }
    if context.table == 0 {
        match list_prepared(context.client).await {
            Ok(list) => found.extend(list.transactions.iter().filter_map(left_prepared)),
            Err(error) => found.push(NOT_PUT_BACK.cannot_see(error.to_string())),
        }
    }
    Ok(NOT_PUT_BACK.findings_or_ok(found, "nothing"))
}

/// Reports a transaction that is prepared on a node of Citus, unless its load is committing it.
fn left_prepared(transaction: &LeftPrepared) -> Option<Finding> {
    let LeftPrepared { host, port, job, name, age_seconds, decision } = transaction;
    if *age_seconds < PREPARED_SECONDS_MIN || *decision == "pending" {
        return None;
    }
    let text = format!(
        "a load of job {job} left a transaction prepared on node {host}:{port} {} seconds ago; its \
         rows are invisible, and its locks stay",
        thousands(*age_seconds)
    );
    let finding = NOT_PUT_BACK
        .warning(text)
        .about(format!("prepared transaction {name}"))
        .count("age", *age_seconds);
    Some(match *decision {
        "unknown" => finding
            .advice("The ledger has forgotten the job. Compare the table with the load's input.")
            .remedy(format!("rollback prepared '{name}'; -- or commit prepared; on that node")),
        _ => finding.remedy("pgspate status --restore"),
    })
}

async fn collect(context: &CheckContext<'_>, found: &mut Vec<Finding>) -> Result<()> {
    // Settings belong to the whole server, so a database without a ledger reports them, too.
    let marker = tune::read_marker(context.client).await?;
    let changes = ledger::outstanding_changes(context.client, None).await;
    if let Some(marker) = marker.filter(|_| context.table == 0) {
        let names = changes.as_ref().ok().map(|changes| tune::changed_settings(&marker, changes));
        found.push(match marker.is_here {
            true => tuned_here(names),
            false => tuned_elsewhere(&marker.database),
        });
    }
    let mut changes = changes?;
    changes.retain(|change| match context.table {
        0 => change.kind != ledger::SETTING_CHANGE,
        table => change.table_oid == table,
    });
    let mut jobs: Vec<i64> = changes.iter().map(|change| change.job).collect();
    jobs.dedup();
    for job in jobs {
        let of_job = changes.iter().filter(|change| change.job == job);
        let names = of_job.map(RecordedChange::name).collect::<Vec<_>>().join(", ");
        found.push(match ledger::is_job_running(context.client, job).await? {
            true => NOT_PUT_BACK.ok(format!("job {job} is running and will put back {names}")),
            false => NOT_PUT_BACK
                .warning(format!("job {job} has not put back {names}"))
                .about(format!("job {job}"))
                .remedy(format!("pgspate status --restore {job}")),
        });
    }
    Ok(())
}

/// Reports a server that was tuned from this database. `names` are the settings whose old values
/// the ledger has; `None` if the role may not read the ledger.
fn tuned_here(names: Option<Vec<String>>) -> Finding {
    match names {
        None => {
            let text = "the server was tuned for a load and not put back";
            NOT_PUT_BACK.warning(text).remedy("pgspate tune --revert")
        }
        Some(names) if names.is_empty() => NOT_PUT_BACK
            .warning(
                "the server was tuned for a load, but this database's ledger no longer has the old \
                 values",
            )
            .advice(
                "Reset by hand the settings that `pgspate tune` changed, and pgspate.tuned last.",
            )
            .remedy(SHOW_ALTER_SYSTEM)
            .remedy(format!("alter system reset {};", tune::MARKER))
            .remedy("select pg_reload_conf();"),
        Some(names) => NOT_PUT_BACK
            .warning(format!(
                "the server was tuned for a load and not put back: {}",
                names.join(", ")
            ))
            .count("settings", names.len() as u64)
            .remedy("pgspate tune --revert"),
    }
}

fn tuned_elsewhere(database: &str) -> Finding {
    let text =
        format!("the server was tuned for a load from database \"{database}\" and not put back");
    let advice =
        format!("Run this in database \"{database}\": the ledger there has the old values.");
    NOT_PUT_BACK.warning(text).advice(advice).remedy("pgspate tune --revert")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_transactions_are_reported_unless_their_load_is_committing() {
        let left = |age_seconds, decision| LeftPrepared {
            host: "10.0.0.1".to_owned(),
            port: 5432,
            job: 3,
            name: "pgspate:1:2:3:4:5:6".to_owned(),
            age_seconds,
            decision,
        };
        let finding = left_prepared(&left(1200, "commit")).unwrap();
        assert_eq!(
            finding.evidence,
            "a load of job 3 left a transaction prepared on node 10.0.0.1:5432 1,200 seconds ago; \
             its rows are invisible, and its locks stay"
        );
        assert_eq!(finding.remedy, ["pgspate status --restore"]);
        let finding = left_prepared(&left(1200, "unknown")).unwrap();
        assert!(finding.remedy[0].starts_with("rollback prepared 'pgspate:1:2:3:4:5:6';"));
        assert!(left_prepared(&left(1200, "pending")).is_none());
        assert!(left_prepared(&left(5, "commit")).is_none());
    }
}
