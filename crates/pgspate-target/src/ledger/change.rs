//! What was changed on a table for the time of a load, and how it is put back.
//!
//! A change is recorded in the transaction that makes it, together with the statements that undo
//! it. Each of them runs in a transaction that also counts it, so that whoever comes next, after
//! whatever crash, goes on with the one that is due.

use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::identity::lock_key;
use super::job::JobId;
use super::trust::is_role_trusted_sql;
use super::{lock, schema, status};
use crate::{
    AUTOVACUUM, Ask, Error, ErrorKind, Parameter, Recipe, Result, quote_literal, server_error,
};

/// What a change of one of the server's settings is called.
pub const SETTING: &str = "setting";

/// A change that is about to be made.
#[derive(Debug, Clone)]
pub struct NewChange {
    /// What it is about: `index`, `primary key`, `autovacuum`.
    pub kind: String,
    /// The name of what was changed, unquoted.
    pub object: String,
    /// What puts it back: a recipe, and the names of further steps. Each step is a transaction.
    pub steps: Vec<String>,
    /// Whether the first step can run beside those of other changes.
    pub beside: bool,
}

/// A change that is not put back, or not wholly.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// The job that made it.
    pub job: i64,
    #[serde(skip)]
    ordinal: i32,
    /// The table's oid.
    #[serde(skip)]
    pub table_oid: u32,
    /// What it is about: `index`, `primary key`, `autovacuum`.
    pub kind: String,
    /// The name of what was changed, unquoted.
    pub object: String,
    /// What puts it back: a recipe as JSON, and the names of further steps. The first are done.
    pub steps: Vec<String>,
    /// How many are done.
    pub done: usize,
    /// Whether its first step can run beside those of other changes.
    #[serde(skip)]
    pub beside: bool,
    /// The role that made it.
    pub role: String,
    /// Whether that role can do all that the current role can, so that it may run its recipes.
    #[serde(skip)]
    is_trusted: bool,
}

fn columns() -> String {
    format!(
        "job, ordinal, table_oid, kind, object, steps, done, beside, role::text, \
         {}",
        is_role_trusted_sql()
    )
}

impl Change {
    /// `index "a"`.
    pub fn name(&self) -> String {
        match self.object.as_str() {
            "" => self.kind.clone(),
            object => format!("{} \"{object}\"", self.kind),
        }
    }

    /// The step that is due.
    pub fn step(&self) -> Option<&str> {
        self.steps.get(self.done).map(String::as_str)
    }

    /// What makes it again; none for statements, which earlier versions recorded.
    pub fn recipe(&self) -> Option<Recipe> {
        Recipe::read(&self.steps)
    }

    /// Refuses statements of a role that could not run them itself.
    pub fn check_trust(&self) -> Result<()> {
        if self.is_trusted {
            return Ok(());
        }
        let (name, role) = (self.name(), &self.role);
        let message = format!(
            "{name} was changed by role \"{role}\", whose statements this role does not run"
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "Connect as \"{role}\" for `pgspate status --restore {}`. Statements are read from the \
             ledger, and run only for a role that can do no more than those who wrote them.",
            self.job
        )))
    }

    /// Whether it is something that refuses rows.
    pub fn refuses(&self) -> bool {
        !matches!(self.kind.as_str(), "index" | AUTOVACUUM)
    }

    /// Whether the step that is due can run beside others.
    pub fn is_beside(&self) -> bool {
        self.beside && self.done == 0
    }

    /// By which changes are put back one after the other.
    pub fn order(&self) -> (i64, i32) {
        (self.job, self.ordinal)
    }

    /// The same change after the statement that is due.
    pub fn after_step(mut self) -> Change {
        self.done += 1;
        self
    }

    /// Counts the step that is due as done; to be run in its transaction. Fails, as
    /// [`is_renamed`] tells, where the table of that name is another one by now.
    pub fn count_sql(&self, table: &str) -> String {
        let Change { job, ordinal, done, table_oid, .. } = self;
        format!(
            "update pgspate.change \
             set done = case when pg_catalog.to_regclass({})::oid = {table_oid}::oid then {} end \
             where (job, ordinal, done) = ({job}, {ordinal}, {done})",
            quote_literal(table),
            done + 1
        )
    }
}

/// Whether a change was not counted, as its table has got another name meanwhile.
pub fn is_renamed(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::NOT_NULL_VIOLATION)
        && error.refusal().is_some_and(|said| said.is_about("pgspate", "change"))
}

/// Forgets the changes of job $1 that are put back. No other statement of pgspate deletes changes,
/// but those of old jobs, which are put back as well, and those of tables that are no more.
pub(super) const FORGET_DONE: &str =
    "delete from pgspate.change where job = $1 and done >= cardinality(steps)";

fn failed() -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error("could not use the ledger, schema \"pgspate\"".to_owned())
}

/// Records changes behind those that the job has made before; to be called in the transaction
/// that makes them.
pub async fn record(client: &Client, job: JobId, table: u32, changes: &[NewChange]) -> Result<()> {
    let sql = "insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside) \
               select $1, coalesce(max(ordinal), 0) + 1, $2, $3, $4, $5, $6 \
               from pgspate.change where job = $1";
    for it in changes {
        let values: [&dyn Parameter; 6] =
            [&job.0, &table, &it.kind, &it.object, &it.steps, &it.beside];
        client.tell(sql, &values).await.map_err(failed())?;
    }
    Ok(())
}

/// The changes of a job, or of all, that are not put back, in the order in which they are to be.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn outstanding(client: &Client, job: Option<i64>) -> Result<Vec<Change>> {
    if !schema::exists(client).await? {
        return Ok(Vec::new());
    }
    let sql = format!(
        "select {} from pgspate.change \
         where ($1::bigint is null or job = $1) and done < cardinality(steps) \
         order by job, ordinal",
        columns()
    );
    let rows =
        client.ask_all(&sql, &[&job]).await.map_err(|error| schema::refused(failed()(error)))?;
    Ok(rows.iter().map(change).collect())
}

/// The changes of a job, or of every job that no session works on, whose locks this session holds
/// from now on.
///
/// # Errors
/// When there is no such job, or a session works on it.
pub async fn claim(client: &Client, job: Option<i64>) -> Result<Vec<Change>> {
    if let Some(job) = job {
        status::list(client, Some(job)).await?;
    }
    if !schema::exists(client).await? {
        return Ok(Vec::new());
    }
    forget_void(client).await?;
    let mut claimed = Vec::new();
    let mut changes = of_jobs(client, job).await?;
    changes.dedup_by_key(|it| it.job);
    for it in &changes {
        let sql = "select key from pgspate.job where job = $1";
        let key = client.ask_opt(sql, &[&it.job]).await.map_err(failed())?;
        if let Some(key) = key.map(|row| lock_key(row.get(0))) {
            match (lock::holder(client, key).await?, job) {
                (None, _) => lock::hold(client, key).await?,
                (Some(_), None) => continue,
                (Some(worker), Some(job)) => {
                    let message = format!("job {job} is under way in {worker}");
                    return Err(Error::new(ErrorKind::Ledger, message)
                        .hint("It puts everything back itself when it is done."));
                }
            }
        }
        // Read anew: its last session may have put something back.
        claimed.extend(of_jobs(client, Some(it.job)).await?);
    }
    Ok(claimed)
}

/// The same without settings of the server, which are no job's: what is recorded of them are
/// values, and no transaction can put them back.
async fn of_jobs(client: &Client, job: Option<i64>) -> Result<Vec<Change>> {
    let mut changes = outstanding(client, job).await?;
    changes.retain(|it| it.kind != SETTING);
    Ok(changes)
}

/// Counts all changes of this kind as put back, but for those that row-level security keeps from
/// the role: those of roles that it is no member of. Nothing where there is no ledger.
///
/// # Errors
/// When the role may not write the ledger.
pub async fn count_kind(client: &Client, kind: &str) -> Result<()> {
    if !schema::exists(client).await? {
        return Ok(());
    }
    let sql = "update pgspate.change set done = cardinality(steps) \
               where kind = $1 and done < cardinality(steps)";
    client.tell(sql, &[&kind]).await.map(drop).map_err(failed())
}

/// Whether a session works on a job: it puts back itself what it has changed. Any role may ask.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn is_under_way(client: &Client, job: i64) -> Result<bool> {
    let sql = "select key from pgspate.job where job = $1";
    let key = client.ask_opt(sql, &[&job]).await.map_err(failed())?;
    let Some(key) = key.map(|row| lock_key(row.get(0))) else { return Ok(false) };
    let sql = format!("select exists (select from pg_locks l where {})", lock::is_held(key));
    Ok(client.ask_one(&sql, &[]).await.map_err(failed())?.get(0))
}

/// Whether there are changes to a table that are not put back, in a ledger that is there.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn is_left_on(client: &Client, table: u32) -> Result<bool> {
    let sql = "select exists (select from pgspate.change \
               where table_oid = $1 and done < cardinality(steps))";
    let row = client.ask_one(sql, &[&table]).await;
    Ok(row.map_err(|error| schema::refused(failed()(error)))?.get(0))
}

/// The changes to a table that are not put back, as the plan shows them.
///
/// # Errors
/// When the ledger cannot be read.
pub(super) async fn outstanding_on(client: &Client, table: u32) -> Result<Vec<Change>> {
    let mut changes = outstanding(client, None).await?;
    changes.retain(|it| it.table_oid == table);
    Ok(changes)
}

/// Makes the changes to this table that nobody is at work on the job's own: it will put them
/// back. The sessions that work on others, in words.
pub async fn adopt(client: &Client, job: JobId, table: u32) -> Result<Vec<String>> {
    let sql = "select distinct c.job, j.key from pgspate.change c \
               left join pgspate.job j on j.job = c.job \
               where c.table_oid = $1 and c.job <> $2 and c.done < cardinality(c.steps) \
               order by 1";
    let rows = client.ask_all(sql, &[&table, &job.0]).await.map_err(failed())?;
    let mut workers = Vec::new();
    for row in &rows {
        let (other, key): (i64, Option<&str>) = (row.get(0), row.get(1));
        let worker = match key {
            Some(key) => lock::holder(client, lock_key(key)).await?,
            None => None,
        };
        match worker {
            Some(worker) => workers.push(format!("job {other} in {worker}")),
            None => {
                let theirs = outstanding(client, Some(other)).await?;
                match theirs.iter().find(|it| !it.is_trusted) {
                    Some(it) => workers.push(format!("job {other} of role \"{}\"", it.role)),
                    None => take_over(client, job, other, table).await?,
                }
            }
        }
    }
    Ok(workers)
}

async fn take_over(client: &Client, job: JobId, from: i64, table: u32) -> Result<()> {
    let sql = "update pgspate.change set job = $1, \
                      ordinal = ordinal + (select coalesce(max(ordinal), 0) from pgspate.change \
                                           where job = $1) \
               where job = $2 and table_oid = $3 and done < cardinality(steps)";
    client.tell(sql, &[&job.0, &from, &table]).await.map(drop).map_err(failed())
}

/// Forgets how to put back what was changed on tables that are no more.
pub async fn forget_void(client: &Client) -> Result<()> {
    let sql = "delete from pgspate.change where not exists \
               (select from pg_class where pg_class.oid = table_oid)";
    client.tell(sql, &[]).await.map(drop).map_err(failed())
}

fn change(row: &Row) -> Change {
    Change {
        job: row.get(0),
        ordinal: row.get(1),
        table_oid: row.get(2),
        kind: row.get(3),
        object: row.get(4),
        steps: row.get(5),
        done: usize::try_from(row.get::<_, i32>(6)).unwrap_or_default(),
        beside: row.get(7),
        role: row.get(8),
        is_trusted: row.get(9),
    }
}
