//! What pgspate itself has changed and not put back.
//!
//! A load that is under way puts back what it has changed, and is no trouble. Settings are, for as
//! long as the server's marker says so, in whichever database one looks.

use super::finding::{Check, Finding};
use super::scene::{Found, Scene};
use crate::{Result, tune};
use pgspate_target::ledger::{self, Change};

const FORGOTTEN: Check = Check {
    id: "not-put-back",
    question: "Is anything changed for a load, or by `pgspate tune`, still as it was changed?",
    rule: "pgspate's ledger: whatever is changed is recorded first, with the way back; and the \
           setting pgspate.tuned, which is there for as long as others are not back",
};

/// Where it can be read what `tune` has set, if nothing else says it.
const SET: &str =
    "select name, setting from pg_file_settings where sourcefile like '%postgresql.auto.conf';";

/// Changes of loads and of tune that are not put back.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let mut found = Vec::new();
    if let Err(error) = look(scene, &mut found).await {
        let role = pgspate_target::quote_ident(&scene.rights.role).into_owned();
        let finding = FORGOTTEN.cannot_see(error.to_string());
        found.push(
            finding
                .run(format!("grant usage on schema pgspate to {role};"))
                .run(format!("grant select on all tables in schema pgspate to {role};")),
        );
    }
    Ok(FORGOTTEN.found(found, "nothing"))
}

async fn look(scene: &Scene<'_>, found: &mut Vec<Finding>) -> Result<()> {
    // Settings are the server's: every database is told, also one without a ledger.
    let mark = tune::mark(scene.client).await?;
    let changes = ledger::outstanding(scene.client, None).await;
    if let Some(mark) = mark {
        let names = changes.as_ref().ok().map(|changes| tune::names(&mark, changes));
        found.push(if mark.is_here { tuned(names) } else { tuned_elsewhere(&mark.database) });
    }
    let mut changes = changes?;
    changes.retain(|change| change.kind != ledger::SETTING);
    let mut jobs: Vec<i64> = changes.iter().map(|change| change.job).collect();
    jobs.dedup();
    for job in jobs {
        let of_job = changes.iter().filter(|change| change.job == job);
        let names = of_job.map(Change::name).collect::<Vec<_>>().join(", ");
        found.push(match ledger::is_under_way(scene.client, job).await? {
            true => FORGOTTEN.ok(format!("job {job} is under way, and will put back {names}")),
            false => FORGOTTEN
                .warning(format!("job {job} has not put back {names}"))
                .on(format!("job {job}"))
                .run(format!("pgspate status --restore {job}")),
        });
    }
    Ok(())
}

/// From this database, whose ledger has the way back of these settings, as far as it may be read.
fn tuned(names: Option<Vec<String>>) -> Finding {
    match names {
        None => FORGOTTEN.warning("tuned for a load and not put back").run("pgspate tune --revert"),
        Some(names) if names.is_empty() => FORGOTTEN
            .warning("tuned for a load, and this database's ledger has no way back any more")
            .advice("Reset by hand what `pgspate tune` has set, and its mark as the last.")
            .run(SET)
            .run(format!("alter system reset {};", tune::MARKER))
            .run("select pg_reload_conf();"),
        Some(names) => FORGOTTEN
            .warning(format!("tuned for a load and not put back: {}", names.join(", ")))
            .count("settings", names.len() as u64)
            .run("pgspate tune --revert"),
    }
}

fn tuned_elsewhere(database: &str) -> Finding {
    let text = format!("tuned for a load from database \"{database}\", and not put back");
    let advice = format!("In database \"{database}\", whose ledger has the way back.");
    FORGOTTEN.warning(text).advice(advice).run("pgspate tune --revert")
}
