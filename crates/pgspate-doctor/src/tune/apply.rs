//! Applies proposals with ALTER SYSTEM, and puts the old values back.
//!
//! - The old values of all settings are committed to the ledger before the first setting changes.
//! - Settings belong to the server, but a ledger belongs to one database. So a marker, the setting
//!   [`MARKER`], names that database to all others. It also names the ledger rows of this `apply`:
//!   older rows may be left, and another role may have added rows.
//! - Every session sees the marker before the first setting changes, and until the last is back.
//!   An `apply` that finds another marker than its own stops and undoes what it has done.
//!   Without the marker nothing is put back, whatever a ledger says.
//! - Each step can be repeated, so `apply` and `revert` may be interrupted anywhere.
//! - A setting that another session has changed since `apply` keeps its value.

use std::ops::RangeInclusive;

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::server::{
    self, MARKER, TuneMarker, alter, alter_marker, auto_conf, marker_value, reload,
};
use super::undo::{SettingState, SettingUndo};
use super::{SettingProposal, TuneAdvice, rights};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, JobId, NewChange, RecordedChange, SETTING_CHANGE};
use pgspate_target::server_error;

/// The job number of settings in the ledger; no load has it.
const SETTINGS_JOB: JobId = JobId(0);
/// The key of the advisory lock that lets one `tune` of a database run at a time.
const ADVISORY_LOCK_KEY: i64 = 0x7067_7370_6174_6574;

/// The result of `apply` or `revert`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TuneOutcome {
    /// Settings that were changed or put back, each with its new value.
    pub changed: Vec<(String, String)>,
    /// Settings that were not changed because they need a restart.
    pub left: Vec<String>,
    /// Settings that were changed without effect on the session, because the command line, its role
    /// or its database sets another value.
    pub overruled: Vec<String>,
    /// Settings that another session has changed since `apply`; `revert` did not change them.
    pub kept: Vec<String>,
}

/// Applies the proposals, except those that need a restart.
///
/// # Errors
/// [`ErrorKind::Plan`] if the server has no ALTER SYSTEM. [`ErrorKind::Ledger`] if the server is
/// already tuned, or another `tune` is running. [`ErrorKind::Server`] if the role lacks a
/// privilege, the ledger or a setting cannot be written, or the server does not reload its files.
/// After an error the settings have their old values, unless the hint asks for `revert`.
pub async fn apply(connection: &Connection, advice: &TuneAdvice) -> Result<TuneOutcome> {
    let client = &connection.client;
    if !advice.flavour.has_alter_system() {
        return Err(super::no_alter_system(advice.flavour));
    }
    let (later, now): (Vec<_>, Vec<_>) =
        advice.proposals.iter().partition(|proposal| proposal.needs_restart);
    let left = later.iter().map(|proposal| proposal.name.to_owned()).collect();
    if now.is_empty() {
        return Ok(TuneOutcome { left, ..TuneOutcome::default() });
    }
    let names: Vec<&str> = now.iter().map(|proposal| proposal.name).collect();
    rights::check(client, &names, true).await?;
    lock_against_other_tune(client).await?;
    server::check_files(client).await?;
    if let Some(marker) = server::read_marker(client).await? {
        check_here(&marker)?;
        return Err(Error::new(ErrorKind::Ledger, "the server was already tuned and not put back")
            .hint("Put the old values back with `pgspate tune --revert` first."));
    }
    ledger::ensure_ledger(client).await?;
    // Rows may be left of an interrupted `apply`, or of a role whose rows the reverting role could
    // not mark as restored. Rows that this role cannot mark stay, with lower numbers than its own.
    ledger::mark_kind_restored(client, SETTING_CHANGE).await?;
    let before = auto_conf(client).await?;
    let undos: Vec<_> = now.iter().map(|it| SettingUndo::new(it, before.get(it.name))).collect();
    let changes: Vec<_> = undos.iter().map(SettingUndo::to_change).collect();
    let rows = record_old_values(client, &changes).await?;
    let claim = MarkerClaim { client, marker: marker_value(client, &rows).await?, undos };
    let (error, undone) = match claim.set_marker().await {
        Ok(()) => match claim.change_settings(&now).await {
            Ok(overruled) => return Ok(outcome(&now, &overruled, left)),
            Err(error) => (error, claim.undo_settings().await),
        },
        Err(error) => (error, claim.withdraw_marker().await),
    };
    Err(match undone {
        Ok(()) => error,
        Err(_) => error.hint_also(
            "The ledger has the old values of all changed settings: put them back with \
             `pgspate tune --revert`.",
        ),
    })
}

/// Returns the outcome of an `apply` of the proposals `now`.
fn outcome(now: &[&SettingProposal], overruled: &[&str], left: Vec<String>) -> TuneOutcome {
    let followed = now.iter().filter(|it| !overruled.contains(&it.name));
    let changed = followed.map(|it| (it.name.to_owned(), it.value.clone())).collect();
    let overruled = overruled.iter().map(|name| (*name).to_owned()).collect();
    TuneOutcome { changed, left, overruled, kept: Vec::new() }
}

/// The marker of one `apply`, and the old values that it names. An `apply` in another database may
/// set its own marker at the same time: no lock covers several databases. So this `apply` looks at
/// the marker again after each of its steps.
struct MarkerClaim<'a> {
    client: &'a Client,
    marker: String,
    undos: Vec<SettingUndo>,
}

impl MarkerClaim<'_> {
    /// Sets the marker and waits until sessions see it. No setting may change from the moment at
    /// which the old values were read.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another `apply` has set its marker, or a setting has changed.
    async fn set_marker(&self) -> Result<()> {
        self.check_nothing_changed(None).await?;
        alter_marker(self.client, Some(&self.marker)).await?;
        reload(self.client).await?;
        self.check_nothing_changed(Some(&self.marker)).await
    }

    /// Checks that the server's file has this marker, and the recorded old values.
    async fn check_nothing_changed(&self, marker: Option<&str>) -> Result<()> {
        let now = auto_conf(self.client).await?;
        let is_old = |it: &SettingUndo| now.get(it.name) == it.before.as_ref();
        match now.get(MARKER).map(String::as_str) == marker && self.undos.iter().all(is_old) {
            true => Ok(()),
            false => Err(overtaken()),
        }
    }

    async fn is_marked(&self) -> Result<bool> {
        Ok(auto_conf(self.client).await?.get(MARKER) == Some(&self.marker))
    }

    /// Changes the settings. Returns the settings that did not take their new value.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another `apply` has replaced the marker meanwhile.
    async fn change_settings<'p>(&self, proposals: &[&'p SettingProposal]) -> Result<Vec<&'p str>> {
        for it in proposals {
            alter(self.client, it.name, Some(&it.value)).await?;
        }
        reload(self.client).await?;
        if !self.is_marked().await? {
            return Err(overtaken());
        }
        let now = pgspate_target::server::read_settings(self.client).await?;
        let follows =
            |it: &SettingProposal| now.get(it.name).is_some_and(|now| now.value == it.bare_value);
        Ok(proposals.iter().filter(|it| !follows(it)).map(|it| it.name).collect())
    }

    /// Removes the marker, if it is still this one. No setting was changed.
    async fn withdraw_marker(&self) -> Result<()> {
        if self.is_marked().await? {
            alter_marker(self.client, None).await?;
            reload(self.client).await?;
        }
        mark_as_done(self.client).await
    }

    /// Puts back the settings that this `apply` has changed, also if another `apply` has replaced
    /// the marker. The other one has recorded the same old values.
    async fn undo_settings(&self) -> Result<()> {
        if self.is_marked().await? {
            return put_old_values_back(self.client).await.map(drop);
        }
        let now = auto_conf(self.client).await?;
        for it in &self.undos {
            if it.state(now.get(it.name)) == SettingState::AsApplied {
                alter(self.client, it.name, it.before.as_deref()).await?;
            }
        }
        reload(self.client).await?;
        mark_as_done(self.client).await
    }
}

/// Returns the error for settings that another session changes at the same time.
fn overtaken() -> Error {
    let message = "another `pgspate tune` or another session has changed the server's settings";
    Error::new(ErrorKind::Ledger, message).hint("Wait until it has ended, and run this again.")
}

/// Puts the old values back, however far `apply` came and whichever role ran it. Returns an empty
/// outcome if there is nothing to put back.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the server was tuned from another database, the ledger does not have
/// the old values, or another `tune` is running. [`ErrorKind::Server`] if the role lacks a
/// privilege, or the server does not reload its files. The ledger keeps the old value of every
/// setting that is not back.
pub async fn revert(connection: &Connection) -> Result<TuneOutcome> {
    let client = &connection.client;
    lock_against_other_tune(client).await?;
    server::check_files(client).await?;
    put_old_values_back(client).await
}

async fn put_old_values_back(client: &Client) -> Result<TuneOutcome> {
    let Some(marker) = server::read_marker(client).await? else {
        return mark_as_done(client).await.map(|()| TuneOutcome::default());
    };
    check_here(&marker)?;
    let mut rows = recorded_settings(client).await?;
    rows.retain(|row| marker.has(row));
    let undos = SettingUndo::read_all(&rows)?;
    let now = match auto_conf(client).await {
        Ok(now) => now,
        Err(error) => {
            // The better error names everything that the role lacks.
            let names: Vec<&str> = undos.iter().map(|it| it.name).collect();
            return Err(rights::check(client, &names, false).await.err().unwrap_or(error));
        }
    };
    let is_marked = now.contains_key(MARKER);
    if is_marked && undos.is_empty() {
        return Err(old_values_lost(&marker.database));
    }
    let in_state = |state| {
        let all = undos.iter().filter(move |_| is_marked);
        all.filter(|it| it.state(now.get(it.name)) == state).collect::<Vec<_>>()
    };
    let (ours, others) =
        (in_state(SettingState::AsApplied), in_state(SettingState::ChangedByOthers));
    let names: Vec<&str> = ours.iter().map(|it| it.name).collect();
    rights::check(client, &names, false).await?;
    for it in ours {
        alter(client, it.name, it.before.as_deref()).await?;
    }
    if is_marked {
        alter_marker(client, None).await?;
    }
    // An interrupted `revert` may have left only the reload to do.
    reload(client).await?;
    // Only after the reload is it certain that the old values are in effect.
    mark_as_done(client).await?;
    let (now, _) = server::read_server_settings(client).await?;
    let shown = |name: &str| now.get(name).map_or(String::new(), super::settings::value_with_unit);
    let changed = names.iter().map(|name| ((*name).to_owned(), shown(name))).collect();
    let kept = others.iter().map(|it| it.name.to_owned()).collect();
    Ok(TuneOutcome { changed, kept, ..TuneOutcome::default() })
}

/// Marks the recorded settings in the ledger as put back, as far as possible. Rows of roles that
/// this role is no member of stay, and so do all rows on a standby. Without the marker these rows
/// have no effect.
async fn mark_as_done(client: &Client) -> Result<()> {
    let tolerable = [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::READ_ONLY_SQL_TRANSACTION];
    match ledger::mark_kind_restored(client, SETTING_CHANGE).await {
        Err(error) if error.sqlstate().is_some_and(|code| tolerable.contains(code)) => Ok(()),
        result => result,
    }
}

/// Checks that the old values are in the ledger of the connected database.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the old values are in another database's ledger.
fn check_here(marker: &TuneMarker) -> Result<()> {
    if marker.is_here {
        return Ok(());
    }
    let message = format!("the server was tuned from database \"{}\"", marker.database);
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Run `pgspate tune --revert` in that database. If it was dropped, the old values are lost: \
         {RESET_BY_HAND}"
    )))
}

/// Returns the error for a ledger that does not have the rows of the marker.
fn old_values_lost(database: &str) -> Error {
    let message = format!(
        "the ledger of database \"{database}\" does not have the old values of the settings"
    );
    Error::new(ErrorKind::Ledger, message)
        .hint(format!("If the ledger was dropped or replaced, {RESET_BY_HAND}"))
}

const RESET_BY_HAND: &str = "run `alter system reset NAME` for each setting that \
                             pg_file_settings shows, and for pgspate.tuned last.";

/// Takes the lock against another `tune` of this database, after waiting a little.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another `tune` keeps the lock.
async fn lock_against_other_tune(client: &Client) -> Result<()> {
    ledger::hold_job_lock(client, ADVISORY_LOCK_KEY).await.map_err(|error| match error.kind() {
        ErrorKind::Ledger => Error::new(ErrorKind::Ledger, "another `pgspate tune` is running")
            .hint("Wait until it has ended."),
        _ => error,
    })
}

/// Returns the settings that `apply` has changed from this database and that are not put back yet.
///
/// # Errors
/// [`ErrorKind::Server`] if the marker or the ledger cannot be read.
pub async fn outstanding(connection: &Connection) -> Result<Vec<String>> {
    let client = &connection.client;
    match server::read_marker(client).await? {
        Some(marker) if marker.is_here => {
            Ok(super::changed_settings(&marker, &recorded_settings(client).await?))
        }
        _ => Ok(Vec::new()),
    }
}

/// Reads the changes of settings that the ledger has as not put back, of any `apply`.
async fn recorded_settings(client: &Client) -> Result<Vec<RecordedChange>> {
    let changes = ledger::outstanding_changes(client, Some(SETTINGS_JOB.0)).await;
    let mut changes = changes.map_err(|error| match error.sqlstate() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => error.hint(
            "Have the ledger's owner run `grant usage on schema pgspate to ROLE` and `grant select \
             on all tables in schema pgspate to ROLE`.",
        ),
        _ => error,
    })?;
    changes.retain(|change| change.kind == SETTING_CHANGE);
    Ok(changes)
}

/// Records the old values in one transaction that waits for the disk. Returns the `ordinal` numbers
/// of the rows. The table lock keeps other roles from adding rows in between.
async fn record_old_values(client: &Client, changes: &[NewChange]) -> Result<RangeInclusive<i32>> {
    let failed = || server_error("could not record the old values in the ledger".to_owned());
    // A change needs a table: for settings, a catalog that exists everywhere with the same OID.
    let sql = "select 'pg_catalog.pg_db_role_setting'::regclass::oid";
    let catalog: u32 = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    let begin = "begin; set local synchronous_commit = on; \
                 lock table pgspate.change in share row exclusive mode";
    client.batch_execute(begin).await.map_err(failed())?;
    let recorded = async {
        ledger::record_changes(client, SETTINGS_JOB, catalog, changes).await?;
        let sql = "select max(ordinal) from pgspate.change where job = $1";
        let last: i32 = client.query_one(sql, &[&SETTINGS_JOB.0]).await.map_err(failed())?.get(0);
        client.batch_execute("commit").await.map_err(failed())?;
        Ok(last + 1 - changes.len() as i32..=last)
    };
    let recorded = recorded.await;
    if recorded.is_err() {
        let _ = client.batch_execute("rollback").await;
    }
    recorded
}
