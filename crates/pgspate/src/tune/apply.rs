//! Applies proposals by `ALTER SYSTEM`, and puts back what was.
//!
//! The way back of every setting is in the ledger, committed, before the first is changed. Each is
//! a statement that can be run any number of times, so it does not matter where either way was
//! interrupted. Settings are the whole server's and a ledger is one database's: a marker beside the
//! settings, [`MARKER`], names that database to all others, and what somebody else has set
//! meanwhile stays as it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Advice, Proposal, SETTING};
use crate::ledger::{self, Change, JobId, NewChange};
use crate::target::connect::Connection;
use crate::target::server_error;
use crate::{Error, Kind, Result};

/// Settings are no load's: they have this number in the ledger.
const JOB: JobId = JobId(0);
/// One `tune` at a time.
const LOCK: i64 = 0x7067_7370_6174_6574;
/// A setting without a use: the database whose ledger has the way back.
const MARKER: &str = "pgspate.tuned";
/// What is between a way back and the value that `apply` has set.
const INSTEAD: &str = " -- instead of ";
/// How long the server may take to read its files again.
const RELOAD: Duration = Duration::from_secs(5);

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Settings that were changed or put back, each with its value now.
    pub changed: Vec<(String, String)>,
    /// Settings that were left alone, as they would need a restart.
    pub left: Vec<String>,
    /// Settings that did not follow: the command line, a role or a database says otherwise.
    pub overruled: Vec<String>,
    /// Settings that somebody else has changed since `apply`, and that `revert` left to them.
    pub kept: Vec<String>,
}

/// Applies what is proposed, but for what needs a restart.
///
/// # Errors
/// When this kind of server has no ALTER SYSTEM, the role may not use it, an earlier `tune` is not
/// reverted, or the ledger cannot be written. Settings are as they were then.
pub async fn apply(connection: &Connection, advice: &Advice) -> Result<Applied> {
    let client = &connection.client;
    if !advice.flavour.has_alter_system() {
        let message = format!("{} has no ALTER SYSTEM", advice.flavour.name());
        return Err(Error::new(Kind::Plan, message).hint(
            "Have the settings printed with `--emit rds` or `--emit terraform`, and apply them \
             there.",
        ));
    }
    let (later, now): (Vec<_>, Vec<_>) =
        advice.proposals.iter().partition(|proposal| proposal.needs_restart);
    let left = later.iter().map(|proposal| proposal.name.to_owned()).collect();
    if now.is_empty() {
        return Ok(Applied { left, ..Applied::default() });
    }
    alone(client).await?;
    ledger::ensure(client).await?;
    let outstanding = recorded(client).await?;
    if let Some(first) = outstanding.first() {
        let message = format!("{} was tuned before and not put back", first.object);
        return Err(Error::new(Kind::Ledger, message)
            .hint("Put back what was with `pgspate tune --revert` first."));
    }
    let names: Vec<&str> = now.iter().map(|proposal| proposal.name).collect();
    let before = auto_conf(client).await?;
    let database = database(client).await?;
    elsewhere(before.get(MARKER), &database)?;
    let ways_back: Vec<NewChange> = now.iter().map(|it| way_back(it, &before)).collect();
    record(client, &ways_back).await?;
    let marker = (MARKER, literal(&database));
    let settings = now.iter().map(|it| (it.name, literal(&it.value)));
    // A session knows the marker once it has set it.
    let known = client.batch_execute(&format!("set {MARKER} = ''")).await;
    known.map_err(|error| refused(MARKER, error))?;
    for (name, value) in [marker].into_iter().chain(settings) {
        if let Err(error) =
            client.batch_execute(&format!("alter system set {name} = {value}")).await
        {
            // What was changed so far is put back; if that fails, the ledger still knows.
            let _ = revert(connection).await;
            return Err(refused(name, error));
        }
    }
    let overruled = reload(client, &names, |name| {
        let wanted = now.iter().find(|proposal| proposal.name == name);
        wanted.map(|proposal| proposal.bare_value.clone())
    });
    let overruled = overruled.await?;
    let changed = now.iter().map(|it| (it.name.to_owned(), it.value.clone())).collect();
    Ok(Applied { changed, left, overruled, kept: Vec::new() })
}

/// Puts back what `apply` has changed, however far it came. Empty if there is nothing.
///
/// # Errors
/// When the ledger cannot be read, its statements are another role's, or the role may not use
/// ALTER SYSTEM. What is not back is still in the ledger.
pub async fn revert(connection: &Connection) -> Result<Applied> {
    let client = &connection.client;
    alone(client).await?;
    let changes = recorded(client).await?;
    changes.iter().try_for_each(Change::check_trust)?;
    if changes.is_empty() {
        let sql = format!("select current_setting('{MARKER}', true)");
        let failed = server_error("could not look up the server's settings".to_owned());
        let marker: Option<String> = client.query_one(&sql, &[]).await.map_err(failed)?.get(0);
        elsewhere(marker.as_ref(), &database(client).await?)?;
        return Ok(Applied::default());
    }
    let now = auto_conf(client).await?;
    let (mine, others): (Vec<&Change>, Vec<&Change>) =
        changes.iter().partition(|change| is_mine(change, now.get(&change.object)));
    for change in &mine {
        let Some(step) = change.step() else { continue };
        let run = client.batch_execute(step).await;
        run.map_err(|error| refused(&change.object, error))?;
    }
    let names: Vec<&str> = mine.iter().map(|change| change.object.as_str()).collect();
    if now.contains_key(MARKER) {
        for sql in [format!("set {MARKER} = ''"), format!("alter system reset {MARKER}")] {
            client.batch_execute(&sql).await.map_err(|error| refused(MARKER, error))?;
        }
    }
    reload(client, &names, |_| None).await?;
    // Only now is it certain that all of it counts.
    for change in &changes {
        let failed = server_error("could not use the ledger, schema \"pgspate\"".to_owned());
        client.batch_execute(&change.count_sql()).await.map_err(failed)?;
    }
    let now = crate::doctor::scene::settings(client).await?;
    let shown = |name: &str| now.get(name).map_or(String::new(), super::settings::shown);
    let changed = names.iter().map(|name| ((*name).to_owned(), shown(name))).collect();
    let kept = others.iter().map(|change| change.object.clone()).collect();
    Ok(Applied { changed, kept, ..Applied::default() })
}

async fn database(client: &Client) -> Result<String> {
    let failed = server_error("could not look up the database".to_owned());
    let row = client.query_one("select current_database()::text", &[]).await;
    Ok(row.map_err(failed)?.get(0))
}

/// Refuses where the ledger of another database has the way back.
fn elsewhere(marker: Option<&String>, database: &str) -> Result<()> {
    match marker.filter(|it| !it.is_empty() && *it != database) {
        None => Ok(()),
        Some(other) => {
            let message = format!("the server was tuned from database \"{other}\"");
            Err(Error::new(Kind::Ledger, message).hint(format!(
                "Run `pgspate tune --revert` there. If that database is gone, so is the way back: \
                 reset what is in pg_file_settings by hand, and then `alter system reset {MARKER}`."
            )))
        }
    }
}

/// Whether a setting is as `apply` has made it, or back already. `now` is what
/// `postgresql.auto.conf` says of it.
fn is_mine(change: &Change, now: Option<&String>) -> bool {
    let step = change.step().unwrap_or_default();
    match step.rsplit_once(INSTEAD) {
        // Of a ledger that did not record it.
        None => true,
        Some((back, set)) => {
            now.is_some_and(|now| now == set) || back == step_back(&change.object, now)
        }
    }
}

fn step_back(name: &str, before: Option<&String>) -> String {
    match before {
        Some(value) => format!("alter system set {name} = {}", literal(value)),
        None => format!("alter system reset {name}"),
    }
}

/// Waits a little for another `tune` of this database, and refuses to run beside it.
async fn alone(client: &Client) -> Result<()> {
    ledger::hold(client, LOCK).await.map_err(|error| match error.kind() {
        Kind::Ledger => Error::new(Kind::Ledger, "another `pgspate tune` is under way")
            .hint("Wait until it is done."),
        _ => error,
    })
}

/// Settings that `apply` has changed and nobody has put back yet, by name.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn outstanding(connection: &Connection) -> Result<Vec<String>> {
    let changes = recorded(&connection.client).await?;
    Ok(changes.into_iter().map(|change| change.object).collect())
}

/// Changes of settings that are in the ledger and not put back.
async fn recorded(client: &Client) -> Result<Vec<Change>> {
    let mut changes = ledger::outstanding(client, Some(JOB.0)).await?;
    changes.retain(|change| change.kind == SETTING);
    Ok(changes)
}

/// What `postgresql.auto.conf` says now.
async fn auto_conf(client: &Client) -> Result<HashMap<String, String>> {
    let sql = "select name, coalesce(setting, '') from pg_file_settings \
               where sourcefile like '%postgresql.auto.conf' and name is not null order by seqno";
    let rows = client.query(sql, &[]).await.map_err(|error| {
        let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        let error = server_error("could not read pg_file_settings".to_owned())(error);
        match is_forbidden {
            true => error.hint(
                "Without it there is no way back. A superuser may read it, and a role with \
                 `grant select on pg_file_settings` and `grant execute on function \
                 pg_show_all_file_settings()`.",
            ),
            false => error,
        }
    })?;
    // Of two lines the later one counts.
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// The statement that puts back what `postgresql.auto.conf` said before, and the value by which it
/// is known then that nobody else has changed it.
fn way_back(proposal: &Proposal, before: &HashMap<String, String>) -> NewChange {
    let step = step_back(proposal.name, before.get(proposal.name));
    NewChange {
        kind: SETTING.to_owned(),
        object: proposal.name.to_owned(),
        steps: vec![format!("{step}{INSTEAD}{}", proposal.value)],
        beside: false,
    }
}

/// In one transaction that waits for the disk: all ways back, or none.
async fn record(client: &Client, changes: &[NewChange]) -> Result<()> {
    let failed = || server_error("could not record the way back in the ledger".to_owned());
    // What belongs to no table belongs to a catalog that is always there, by the same number.
    let sql = "select 'pg_catalog.pg_db_role_setting'::regclass::oid";
    let catalog: u32 = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    let begin = "begin; set local synchronous_commit = on";
    client.batch_execute(begin).await.map_err(failed())?;
    let recorded = ledger::record(client, JOB, catalog, changes).await;
    if recorded.is_err() {
        let _ = client.batch_execute("rollback").await;
        return recorded;
    }
    client.batch_execute("commit").await.map_err(failed())
}

/// Has the server read its files, and waits until this session sees the new values. Names those
/// that stay what they were.
async fn reload(
    client: &Client,
    names: &[&str],
    wanted: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>> {
    let failed = || server_error("could not have the server read its settings".to_owned());
    let sql = "select pg_conf_load_time()::text";
    let loaded: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    client.batch_execute("select pg_reload_conf()").await.map_err(failed())?;
    let started = Instant::now();
    loop {
        let now: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
        let settings = crate::doctor::scene::settings(client).await?;
        let differs = |name: &&&str| {
            let value = settings.get(**name).map(|setting| &setting.value);
            wanted(name).is_some_and(|wanted| value != Some(&wanted))
        };
        let overruled: Vec<String> =
            names.iter().filter(differs).map(|name| (*name).to_owned()).collect();
        if (now != loaded && overruled.is_empty()) || started.elapsed() > RELOAD {
            return Ok(overruled);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

fn refused(name: &str, error: tokio_postgres::Error) -> Error {
    let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let error = server_error(format!("could not change {name}"))(error);
    match is_forbidden {
        true => error.hint(format!(
            "Have a superuser run `grant alter system on parameter {name} to ROLE` (from \
             PostgreSQL 15 on), or the statements that `--emit sql` prints."
        )),
        false => error,
    }
}
