//! What pgspate itself has changed and not put back.

use super::finding::Check;
use super::scene::{Found, Scene};
use crate::ledger;

const FORGOTTEN: Check = Check {
    id: "not-put-back",
    question: "Is anything changed for a load, or by `pgspate tune`, still as it was changed?",
    rule: "pgspate's ledger: whatever is changed is recorded first, with the way back",
};

/// Changes of loads and of tune that are not put back.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let changes = match ledger::outstanding(scene.client, None).await {
        Ok(changes) => changes,
        Err(error) => {
            let role = crate::target::quote_ident(&scene.rights.role).into_owned();
            return Ok(vec![FORGOTTEN.cannot_see(error.to_string()).run(format!(
                "grant usage on schema pgspate to {role}; grant select on all tables in schema \
                 pgspate to {role};"
            ))]);
        }
    };
    if changes.is_empty() {
        return Ok(vec![FORGOTTEN.ok("nothing")]);
    }
    let (settings, tables): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| change.kind == crate::tune::SETTING);
    let mut found = Vec::new();
    if !settings.is_empty() {
        let names: Vec<&str> = settings.iter().map(|change| change.object.as_str()).collect();
        let text = format!("tuned for a load and not put back: {}", names.join(", "));
        let finding = FORGOTTEN.warning(text).count("settings", names.len() as u64);
        found.push(finding.run("pgspate tune --revert"));
    }
    let mut jobs: Vec<i64> = tables.iter().map(|change| change.job).collect();
    jobs.dedup();
    for job in jobs {
        let of_job = tables.iter().filter(|change| change.job == job);
        let names: Vec<String> = of_job.map(|change| change.name()).collect();
        let text = format!("job {job} has not put back {}", names.join(", "));
        let finding = FORGOTTEN.warning(text).on(format!("job {job}"));
        found.push(
            finding
                .advice("Unless it is under way.")
                .run(format!("pgspate status --restore {job}")),
        );
    }
    Ok(found)
}
