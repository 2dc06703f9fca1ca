//! Changes that a load makes to a table for the load's duration, and how to put the changes back.
//!
//! The transaction that makes a change also records the change and the steps that undo it. Each
//! step runs in a transaction that also counts the step as done. So after a crash, the next run
//! continues with the next step.

use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::identity::lock_key;
use super::job::{JobId, ledger_error};
use super::policies::IS_OURS;
use super::trust::is_role_trusted_sql;
use super::{lock, schema, status};
use crate::{
    AUTOVACUUM_CHANGE, Error, ErrorKind, RestoreRecipe, Result, TypedParameter, TypedQuery,
    quote_literal,
};

/// The kind of a recorded change of a server setting.
pub const SETTING_CHANGE: &str = "setting";

/// A change that is about to be made.
#[derive(Debug, Clone)]
pub struct NewChange {
    /// The kind of the changed object: `index`, `primary key`, `autovacuum`.
    pub kind: String,
    /// The name of the changed object, unquoted.
    pub object: String,
    /// The steps that put the change back: a recipe, then names of further steps. Each step is a
    /// transaction.
    pub steps: Vec<String>,
    /// Whether the first step can run in parallel with other changes.
    pub parallel_build: bool,
}

/// A recorded change that is not yet put back completely.
#[derive(Debug, Clone, Serialize)]
pub struct RecordedChange {
    /// The job that made the change.
    pub job: i64,
    #[serde(skip)]
    ordinal: i32,
    /// The table's oid.
    #[serde(skip)]
    pub table_oid: u32,
    /// The kind of the changed object: `index`, `primary key`, `autovacuum`.
    pub kind: String,
    /// The name of the changed object, unquoted.
    pub object: String,
    /// The steps that put the change back: a recipe as JSON, then names of further steps. The first
    /// `done` steps are done.
    pub steps: Vec<String>,
    /// The number of steps that are done.
    pub done: usize,
    /// Whether the first step can run in parallel with other changes.
    #[serde(skip)]
    pub parallel_build: bool,
    /// The role that made the change.
    pub role: String,
    /// Whether `role` is trusted. Only then may the current role run the recorded steps.
    #[serde(skip)]
    is_trusted: bool,
    /// Whether the current role may count steps of the change as done.
    #[serde(skip)]
    is_ours: bool,
}

fn columns_sql() -> String {
    format!(
        "job, ordinal, table_oid, kind, object, steps, done, beside, role::text, {}, \
         not row_security_active('pgspate.change'::regclass) or {IS_OURS}",
        is_role_trusted_sql()
    )
}

impl RecordedChange {
    /// Returns kind and name: `index "a"`.
    pub fn name(&self) -> String {
        match self.object.as_str() {
            "" => self.kind.clone(),
            object => format!("{} \"{object}\"", self.kind),
        }
    }

    /// Returns the next step.
    pub fn step(&self) -> Option<&str> {
        self.steps.get(self.done).map(String::as_str)
    }

    /// Returns the recipe. `None` for plain SQL statements, which earlier versions recorded.
    pub fn recipe(&self) -> Option<RestoreRecipe> {
        RestoreRecipe::from_ledger_steps(&self.steps)
    }

    /// Refuses steps of a role that is not trusted to act as the current role, and of a role for
    /// which the current role may not act.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] for such a role.
    pub fn check_trust(&self) -> Result<()> {
        if self.is_trusted && self.is_ours {
            return Ok(());
        }
        let (name, role) = (self.name(), &self.role);
        if self.is_trusted {
            let message = format!(
                "could not put {name} back: role \"{role}\" recorded the change, and the current \
                 role is no member of it"
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
                "Connect as \"{role}\" or as the ledger's owner, and run `pgspate status --restore \
                 {}`.",
                self.job
            )));
        }
        let message = format!(
            "could not put {name} back: role \"{role}\" recorded the change, and is not trusted"
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "Connect as \"{role}\" and run `pgspate status --restore {}`. The current role runs \
             recorded statements only of roles that could act as the current role anyway.",
            self.job
        )))
    }

    /// Returns whether the changed object can reject rows.
    pub fn can_reject_rows(&self) -> bool {
        !matches!(self.kind.as_str(), "index" | AUTOVACUUM_CHANGE)
    }

    /// Returns whether the next step can run in parallel with other changes.
    pub fn can_run_in_parallel(&self) -> bool {
        self.parallel_build && self.done == 0
    }

    /// Returns the sort key of the order in which changes are put back.
    pub fn order(&self) -> (i64, i32) {
        (self.job, self.ordinal)
    }

    /// Returns the change with its next step done.
    pub fn after_step(mut self) -> RecordedChange {
        self.done += 1;
        self
    }

    /// Returns the statement that counts the next step as done. Must run in the step's transaction.
    /// Fails if `table` now names another table; [`is_table_renamed`] detects this error.
    pub fn count_step_sql(&self, table: &str) -> String {
        let RecordedChange { job, ordinal, done, table_oid, .. } = self;
        format!(
            "update pgspate.change \
             set done = case when pg_catalog.to_regclass({})::oid = {table_oid}::oid then {} end \
             where (job, ordinal, done) = ({job}, {ordinal}, {done})",
            quote_literal(table),
            done + 1
        )
    }
}

/// Returns whether a step was not counted because its table was renamed.
pub fn is_table_renamed(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::NOT_NULL_VIOLATION)
        && error.refusal().is_some_and(|refusal| refusal.is_about("pgspate", "change"))
}

/// Forgets the changes of job $1 that are put back. Other statements also delete changes that are
/// put back: of jobs that finished more than 7 days ago, and of a job that the user forgets. A
/// change that is not put back is deleted only if its table no longer exists.
pub(super) const FORGET_DONE: &str =
    "delete from pgspate.change where job = $1 and done >= cardinality(steps)";

/// Records changes after the job's earlier changes. Must run in the transaction that makes the
/// changes.
pub async fn record_changes(
    client: &Client,
    job: JobId,
    table: u32,
    changes: &[NewChange],
) -> Result<()> {
    let sql = "insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside) \
               select $1, coalesce(max(ordinal), 0) + 1, $2, $3, $4, $5, $6 \
               from pgspate.change where job = $1";
    for change in changes {
        let NewChange { kind, object, steps, parallel_build } = change;
        let values: [&dyn TypedParameter; 6] =
            [&job.0, &table, kind, object, steps, parallel_build];
        client.run_statement(sql, &values).await.map_err(ledger_error())?;
    }
    Ok(())
}

/// Reads the changes of a job, or of all jobs, that are not put back, in the order in which to put
/// them back.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn outstanding_changes(client: &Client, job: Option<i64>) -> Result<Vec<RecordedChange>> {
    if !schema::check_exists(client).await? {
        return Ok(Vec::new());
    }
    let sql = format!(
        "select {} from pgspate.change \
         where ($1::bigint is null or job = $1) and done < cardinality(steps) \
         order by job, ordinal",
        columns_sql()
    );
    let rows = client
        .fetch_all(&sql, &[&job])
        .await
        .map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    Ok(rows.iter().map(read_change).collect())
}

/// Reads the changes of a job, or of every job that no session works on. This session then holds
/// the locks of these jobs.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job does not exist, or if a session works on the job.
pub async fn claim_changes(client: &Client, job: Option<i64>) -> Result<Vec<RecordedChange>> {
    if let Some(job) = job {
        status::list_jobs(client, Some(job)).await?;
    }
    if !schema::check_exists(client).await? {
        return Ok(Vec::new());
    }
    forget_changes_of_dropped_tables(client).await?;
    let mut claimed = Vec::new();
    let mut changes = outstanding_table_changes(client, job).await?;
    changes.dedup_by_key(|change| change.job);
    for first_change in &changes {
        let sql = "select key from pgspate.job where job = $1";
        let key = client.fetch_opt(sql, &[&first_change.job]).await.map_err(ledger_error())?;
        if let Some(key) = key.map(|row| lock_key(row.get(0))) {
            match (lock::lock_holder(client, key).await?, job) {
                (None, _) => lock::hold_job_lock(client, key).await?,
                (Some(_), None) => continue,
                (Some(worker), Some(job)) => {
                    let message = format!("job {job} is running in {worker}");
                    return Err(Error::new(ErrorKind::Ledger, message)
                        .hint("That session puts everything back when it is done."));
                }
            }
        }
        // Read the changes again: the job's last session may have put some changes back.
        claimed.extend(outstanding_table_changes(client, Some(first_change.job)).await?);
    }
    Ok(claimed)
}

/// Reads outstanding changes, except changes of server settings. Changes of settings belong to no
/// job, and no transaction can put them back.
async fn outstanding_table_changes(
    client: &Client,
    job: Option<i64>,
) -> Result<Vec<RecordedChange>> {
    let mut changes = outstanding_changes(client, job).await?;
    changes.retain(|change| change.kind != SETTING_CHANGE);
    Ok(changes)
}

/// Counts all changes of this kind as put back, except rows that row-level security hides from the
/// current role. Does nothing without a ledger.
///
/// # Errors
/// [`ErrorKind::Server`] if the role may not write the ledger.
pub async fn mark_kind_restored(client: &Client, kind: &str) -> Result<()> {
    if !schema::check_exists(client).await? {
        return Ok(());
    }
    let sql = "update pgspate.change set done = cardinality(steps) \
               where kind = $1 and done < cardinality(steps)";
    client.run_statement(sql, &[&kind]).await.map(drop).map_err(ledger_error())
}

/// Returns whether a session works on the job. Such a session puts the job's changes back itself.
/// The check needs no privileges.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn is_job_running(client: &Client, job: i64) -> Result<bool> {
    let sql = "select key from pgspate.job where job = $1";
    let key = client.fetch_opt(sql, &[&job]).await.map_err(ledger_error())?;
    let Some(key) = key.map(|row| lock_key(row.get(0))) else { return Ok(false) };
    let sql = format!("select exists (select from pg_locks l where {})", lock::is_held_sql(key));
    Ok(client.fetch_one(&sql, &[]).await.map_err(ledger_error())?.get(0))
}

/// Returns whether jobs, except job `except`, have changed a table and not put the changes back. A
/// dropped foreign key that refers to the table counts. The ledger must exist.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn has_outstanding_on(client: &Client, table: u32, except: i64) -> Result<bool> {
    let sql = "select exists (select from pgspate.change \
               where job <> $2 and done < pg_catalog.cardinality(steps) \
                 and (table_oid = $1 or kind = 'foreign key' \
                        and (steps[1]::jsonb ->> 'far')::oid = $1))";
    let row = client.fetch_one(sql, &[&table, &except]).await;
    Ok(row.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?.get(0))
}

/// Reads the changes to a table that are not put back.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub(super) async fn outstanding_changes_on(
    client: &Client,
    table: u32,
) -> Result<Vec<RecordedChange>> {
    let mut changes = outstanding_changes(client, None).await?;
    changes.retain(|change| change.table_oid == table);
    Ok(changes)
}

/// Assigns outstanding changes to the table to `job`, so that `job` puts them back. Leaves changes
/// of jobs on which another session works, and of jobs of untrusted roles. Returns these jobs, in
/// words.
pub async fn adopt_changes(client: &Client, job: JobId, table: u32) -> Result<Vec<String>> {
    let sql = "select distinct c.job, j.key from pgspate.change c \
               left join pgspate.job j on j.job = c.job \
               where c.table_oid = $1 and c.job <> $2 and c.done < cardinality(c.steps) \
               order by 1";
    let rows = client.fetch_all(sql, &[&table, &job.0]).await.map_err(ledger_error())?;
    let mut left_jobs = Vec::new();
    for row in &rows {
        let (other, key): (i64, Option<&str>) = (row.get(0), row.get(1));
        let worker = match key {
            Some(key) => lock::lock_holder(client, lock_key(key)).await?,
            None => None,
        };
        match worker {
            Some(worker) => left_jobs.push(format!("job {other} in {worker}")),
            None => {
                let changes = outstanding_changes(client, Some(other)).await?;
                match changes.iter().find(|change| change.check_trust().is_err()) {
                    Some(untrusted) => {
                        left_jobs.push(format!("job {other} of role \"{}\"", untrusted.role));
                    }
                    None => reassign_changes(client, job, &[other], Some(table)).await?,
                }
            }
        }
    }
    Ok(left_jobs)
}

/// Assigns the outstanding changes of the jobs `from` to `job`, after the changes that `job` has.
/// With `table`, only the changes of this table.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written, [`ErrorKind::Connect`] if the connection
/// fails.
pub(super) async fn reassign_changes(
    client: &Client,
    job: JobId,
    from: &[i64],
    table: Option<u32>,
) -> Result<()> {
    let sql = "update pgspate.change c \
               set job = $1, ordinal = n.nth + (select coalesce(max(ordinal), 0) \
                                                from pgspate.change where job = $1) \
               from (select job, ordinal, row_number() over (order by job, ordinal)::int4 as nth \
                     from pgspate.change where job = any($2) and done < cardinality(steps) \
                       and table_oid = coalesce($3, table_oid)) n \
               where (c.job, c.ordinal) = (n.job, n.ordinal)";
    let from = from.to_vec();
    client.run_statement(sql, &[&job.0, &from, &table]).await.map(drop).map_err(ledger_error())
}

/// Forgets changes of tables that no longer exist.
pub async fn forget_changes_of_dropped_tables(client: &Client) -> Result<()> {
    let sql = "delete from pgspate.change where not exists \
               (select from pg_class where pg_class.oid = table_oid)";
    client.run_statement(sql, &[]).await.map(drop).map_err(ledger_error())
}

fn read_change(row: &Row) -> RecordedChange {
    RecordedChange {
        job: row.get(0),
        ordinal: row.get(1),
        table_oid: row.get(2),
        kind: row.get(3),
        object: row.get(4),
        steps: row.get(5),
        done: usize::try_from(row.get::<_, i32>(6)).unwrap_or_default(),
        parallel_build: row.get(7),
        role: row.get(8),
        is_trusted: row.get(9),
        is_ours: row.get(10),
    }
}
