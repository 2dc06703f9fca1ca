//! What pgspate itself has changed and not put back.
//!
//! A load that is under way puts back what it has changed, and is no trouble. Settings are, for as
//! long as the server's marker says so, in whichever database one looks.

use super::finding::{Check, Finding};
use super::scene::{Found, Scene};
use crate::ledger::{self, Change};
use crate::{Result, tune};

const FORGOTTEN: Check = Check {
    id: "not-put-back",
    question: "Is anything changed for a load, or by `pgspate tune`, still as it was changed?",
    rule: "pgspate's ledger: whatever is changed is recorded first, with the way back; and the \
           setting pgspate.tuned, which is there for as long as others are not back",
};

/// Changes of loads and of tune that are not put back.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    match look(scene).await {
        Ok(found) if found.is_empty() => Ok(vec![FORGOTTEN.ok("nothing")]),
        Ok(found) => Ok(found),
        Err(error) => {
            let role = crate::target::quote_ident(&scene.rights.role).into_owned();
            Ok(vec![FORGOTTEN.cannot_see(error.to_string()).run(format!(
                "grant usage on schema pgspate to {role}; grant select on all tables in schema \
                 pgspate to {role};"
            ))])
        }
    }
}

async fn look(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    // Settings are the server's: every database is told, also one without a ledger.
    let mark = tune::mark(scene.client).await?;
    let mut found = Vec::new();
    if let Some(mark) = mark.as_ref().filter(|mark| !mark.is_here) {
        found.push(tuned_elsewhere(&mark.database));
    }
    let changes = match ledger::outstanding(scene.client, None).await {
        Ok(changes) => changes,
        // What is said already is seen.
        Err(_) if !found.is_empty() => return Ok(found),
        Err(error) => return Err(error),
    };
    if mark.is_some_and(|mark| mark.is_here) {
        found.push(tuned(&tune::names(&changes)));
    }
    let (_, tables): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| change.kind == tune::SETTING);
    let mut jobs: Vec<i64> = tables.iter().map(|change| change.job).collect();
    jobs.dedup();
    for job in jobs {
        let of_job = tables.iter().filter(|change| change.job == job);
        let names = of_job.map(Change::name).collect::<Vec<_>>().join(", ");
        found.push(match ledger::is_under_way(scene.client, job).await? {
            true => FORGOTTEN.ok(format!("job {job} is under way, and will put back {names}")),
            false => FORGOTTEN
                .warning(format!("job {job} has not put back {names}"))
                .run(format!("pgspate status --restore {job}")),
        });
    }
    Ok(found)
}

/// From this database, whose ledger has these ways back.
fn tuned(names: &[String]) -> Finding {
    if names.is_empty() {
        let text = "tuned for a load, and this database's ledger has no way back any more";
        let set = "select name, setting from pg_file_settings where sourcefile like '%.auto.conf';";
        let advice = "Reset by hand what `pgspate tune` has set, and its mark as the last.";
        let reset = format!("alter system reset {}; select pg_reload_conf();", tune::MARKER);
        return FORGOTTEN.warning(text).advice(advice).run(set).run(reset);
    }
    let text = format!("tuned for a load and not put back: {}", names.join(", "));
    FORGOTTEN.warning(text).count("settings", names.len() as u64).run("pgspate tune --revert")
}

fn tuned_elsewhere(database: &str) -> Finding {
    let text = format!("tuned for a load from database \"{database}\", and not put back");
    let advice = format!("In database \"{database}\", whose ledger has the way back.");
    FORGOTTEN.warning(text).advice(advice).run("pgspate tune --revert")
}
