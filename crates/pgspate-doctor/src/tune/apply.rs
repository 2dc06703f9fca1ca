//! Applies proposals by `ALTER SYSTEM`, and puts back what was.
//!
//! The way back of every setting is committed to the ledger before the first setting is changed.
//! Settings are the whole server's, and a ledger is one database's. So a marker beside the
//! settings, [`MARKER`], names the database to all others. It also says which rows of the ledger
//! are of this `apply`: rows of an earlier one may have stayed, and another role may have added
//! some. Every session sees the marker from before the first setting is changed until the last is
//! back. Without the marker nothing is put back, whatever a ledger says. Each step can be done any
//! number of times, so both ways may be interrupted anywhere. What somebody else has set meanwhile
//! stays.

use std::ops::RangeInclusive;

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::server::{self, MARKER, Mark, alter, alter_mark, auto_conf, marker, reload};
use super::way_back::{Doing, WayBack};
use super::{Advice, Proposal, rights};
use crate::{Error, Kind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, Change, JobId, NewChange, SETTING};
use pgspate_target::server_error;

/// Settings are no load's: they have this number in the ledger.
const JOB: JobId = JobId(0);
/// One `tune` at a time.
const LOCK: i64 = 0x7067_7370_6174_6574;

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Settings that were changed or put back, each with its value now.
    pub changed: Vec<(String, String)>,
    /// Settings that were left alone, as they would need a restart.
    pub left: Vec<String>,
    /// Settings that were changed and did not follow: the command line, a role or a database says
    /// otherwise.
    pub overruled: Vec<String>,
    /// Settings that somebody else has changed since `apply`, and that `revert` left to them.
    pub kept: Vec<String>,
}

/// Applies what is proposed, but for what needs a restart.
///
/// # Errors
/// When this server has no ALTER SYSTEM, the role lacks a right, an earlier `tune` is not reverted,
/// the ledger cannot be written, a setting cannot be changed, or the server does not read its
/// files. Settings are as they were then, unless the hint says that `revert` is needed.
pub async fn apply(connection: &Connection, advice: &Advice) -> Result<Applied> {
    let client = &connection.client;
    if !advice.flavour.has_alter_system() {
        return Err(super::no_alter_system(advice.flavour));
    }
    let (later, now): (Vec<_>, Vec<_>) =
        advice.proposals.iter().partition(|proposal| proposal.needs_restart);
    let left = later.iter().map(|proposal| proposal.name.to_owned()).collect();
    if now.is_empty() {
        return Ok(Applied { left, ..Applied::default() });
    }
    let names: Vec<&str> = now.iter().map(|proposal| proposal.name).collect();
    rights::check(client, &names, true).await?;
    alone(client).await?;
    server::check_files(client).await?;
    if let Some(mark) = server::mark(client).await? {
        check_here(&mark)?;
        return Err(Error::new(Kind::Ledger, "the server was tuned before and not put back")
            .hint("Put back what was with `pgspate tune --revert` first."));
    }
    ledger::ensure(client).await?;
    // Of somebody who came no further, or whose rows another role could not count. Those that this
    // one cannot count either stay, before all that it records.
    ledger::count_kind(client, SETTING).await?;
    let before = auto_conf(client).await?;
    let ways_back = now.iter().map(|it| WayBack::of(it, before.get(it.name)).recorded());
    let rows = record(client, &ways_back.collect::<Vec<_>>()).await?;
    let overruled = match set(client, &now, &rows).await {
        Ok(overruled) => overruled,
        Err(error) => {
            return Err(match put_back(client).await {
                Ok(_) => error,
                Err(_) => error.hint_also(
                    "What was changed so far is in the ledger: put it back with `pgspate tune \
                     --revert`.",
                ),
            });
        }
    };
    let followed = now.iter().filter(|it| !overruled.contains(&it.name));
    let changed = followed.map(|it| (it.name.to_owned(), it.value.clone())).collect();
    let overruled = overruled.into_iter().map(str::to_owned).collect();
    Ok(Applied { changed, left, overruled, kept: Vec::new() })
}

/// Sets the marker, and when every session sees it the settings. Names those that did not follow.
async fn set<'a>(
    client: &Client,
    proposals: &[&'a Proposal],
    rows: &RangeInclusive<i32>,
) -> Result<Vec<&'a str>> {
    alter_mark(client, Some(&marker(client, rows).await?)).await?;
    reload(client).await?;
    for it in proposals {
        alter(client, it.name, Some(&it.value)).await?;
    }
    reload(client).await?;
    let now = pgspate_target::server::read(client).await?;
    let follows = |it: &Proposal| now.get(it.name).is_some_and(|now| now.value == it.bare_value);
    Ok(proposals.iter().filter(|it| !follows(it)).map(|it| it.name).collect())
}

/// Puts back what `apply` has changed, however far it came, and whoever it was. Empty if there is
/// nothing.
///
/// # Errors
/// When the server was tuned from another database, the ledger cannot be read or does not have the
/// way back, the role lacks a right, or the server does not read its files. What is not back is
/// still in the ledger.
pub async fn revert(connection: &Connection) -> Result<Applied> {
    let client = &connection.client;
    alone(client).await?;
    server::check_files(client).await?;
    put_back(client).await
}

async fn put_back(client: &Client) -> Result<Applied> {
    let Some(mark) = server::mark(client).await? else {
        return count(client).await.map(|()| Applied::default());
    };
    check_here(&mark)?;
    let mut rows = recorded(client).await?;
    rows.retain(|row| mark.has(row));
    let ways_back = WayBack::read_all(&rows)?;
    let now = match auto_conf(client).await {
        Ok(now) => now,
        Err(error) => {
            // With all else that the role lacks.
            let names: Vec<&str> = ways_back.iter().map(|it| it.name).collect();
            return Err(rights::check(client, &names, false).await.err().unwrap_or(error));
        }
    };
    let is_marked = now.contains_key(MARKER);
    if is_marked && ways_back.is_empty() {
        return Err(lost(&mark.database));
    }
    let of = |doing| {
        let all = ways_back.iter().filter(move |_| is_marked);
        all.filter(|it| it.doing(now.get(it.name)) == doing).collect::<Vec<_>>()
    };
    let (ours, others) = (of(Doing::Ours), of(Doing::Others));
    let names: Vec<&str> = ours.iter().map(|it| it.name).collect();
    rights::check(client, &names, false).await?;
    for it in ours {
        alter(client, it.name, it.before.as_deref()).await?;
    }
    if is_marked {
        alter_mark(client, None).await?;
    }
    // Also where only this was left to be done.
    reload(client).await?;
    // Only now is it certain that all of it counts.
    count(client).await?;
    let now = pgspate_target::server::read(client).await?;
    let shown = |name: &str| now.get(name).map_or(String::new(), super::settings::shown);
    let changed = names.iter().map(|name| ((*name).to_owned(), shown(name))).collect();
    let kept = others.iter().map(|it| it.name.to_owned()).collect();
    Ok(Applied { changed, kept, ..Applied::default() })
}

/// Counts what is back, as far as that is possible: rows of roles that the role is no member of
/// stay, as do all on a standby, and mean nothing without the marker that was set with them.
async fn count(client: &Client) -> Result<()> {
    let tolerable = [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::READ_ONLY_SQL_TRANSACTION];
    match ledger::count_kind(client, SETTING).await {
        Err(error) if error.sqlstate().is_some_and(|code| tolerable.contains(code)) => Ok(()),
        counted => counted,
    }
}

/// Refuses where the ledger of another database has the way back.
fn check_here(mark: &Mark) -> Result<()> {
    if mark.is_here {
        return Ok(());
    }
    let message = format!("the server was tuned from database \"{}\"", mark.database);
    Err(Error::new(Kind::Ledger, message).hint(format!(
        "Run `pgspate tune --revert` there. If that database is gone, so is the way back: {}.",
        by_hand()
    )))
}

/// The ledger that the marker speaks of is not the one that is here.
fn lost(database: &str) -> Error {
    let message = format!("the ledger of database \"{database}\" has no way back of the settings");
    Error::new(Kind::Ledger, message)
        .hint(format!("If it was dropped or is another one now, {}.", by_hand()))
}

fn by_hand() -> String {
    format!(
        "reset what is in pg_file_settings by hand, with `alter system reset {MARKER}` as the last"
    )
}

/// Waits a little for another `tune` of this database, and refuses to run beside it.
async fn alone(client: &Client) -> Result<()> {
    ledger::hold(client, LOCK).await.map_err(|error| match error.kind() {
        Kind::Ledger => Error::new(Kind::Ledger, "another `pgspate tune` is under way")
            .hint("Wait until it is done."),
        _ => error,
    })
}

/// Settings that `apply` has changed from this database and nobody has put back yet, by name.
///
/// # Errors
/// When the server cannot be asked, or the ledger cannot be read.
pub async fn outstanding(connection: &Connection) -> Result<Vec<String>> {
    let client = &connection.client;
    match server::mark(client).await? {
        Some(mark) if mark.is_here => Ok(super::names(&mark, &recorded(client).await?)),
        _ => Ok(Vec::new()),
    }
}

/// Changes of settings that are in the ledger and not counted as put back, of whichever `apply`.
async fn recorded(client: &Client) -> Result<Vec<Change>> {
    let changes = ledger::outstanding(client, Some(JOB.0)).await;
    let mut changes = changes.map_err(|error| match error.sqlstate() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => error.hint(
            "Have the ledger's owner run `grant usage on schema pgspate to ROLE` and `grant select \
             on all tables in schema pgspate to ROLE`.",
        ),
        _ => error,
    })?;
    changes.retain(|change| change.kind == SETTING);
    Ok(changes)
}

/// In one transaction that waits for the disk: all ways back, or none. Which rows they are: other
/// roles can add rows of their own, but none between these.
async fn record(client: &Client, changes: &[NewChange]) -> Result<RangeInclusive<i32>> {
    let failed = || server_error("could not record the way back in the ledger".to_owned());
    // What belongs to no table belongs to a catalog that is always there, by the same number.
    let sql = "select 'pg_catalog.pg_db_role_setting'::regclass::oid";
    let catalog: u32 = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    let begin = "begin; set local synchronous_commit = on; \
                 lock table pgspate.change in share row exclusive mode";
    client.batch_execute(begin).await.map_err(failed())?;
    let recorded = async {
        ledger::record(client, JOB, catalog, changes).await?;
        let sql = "select max(ordinal) from pgspate.change where job = $1";
        let last: i32 = client.query_one(sql, &[&JOB.0]).await.map_err(failed())?.get(0);
        client.batch_execute("commit").await.map_err(failed())?;
        Ok(last + 1 - changes.len() as i32..=last)
    };
    let recorded = recorded.await;
    if recorded.is_err() {
        let _ = client.batch_execute("rollback").await;
    }
    recorded
}
