//! The end of a job of a distributed engine that is not completed: it is aborted, or abandoned.

use tokio_postgres::{Client, Row};

use super::fleet_job::{BegunFleetJob, in_transaction};
use super::fleet_stage::end_writers;
use super::job::{JobId, ledger_error};
use super::policies::IS_OURS;
use super::shadow;
use crate::{Error, ErrorKind, Result, TypedQuery};
use pgspate_base::numbers::counted;

/// Raises the fence, so that no attempt can seal. Ends the sessions that write into `stage`, the
/// stage or shadow. Returns false if the job is complete, does not exist, or was begun again.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn fence_off(
    client: &Client,
    begun: &BegunFleetJob,
    stage: Option<&str>,
) -> Result<bool> {
    let sql = "update pgspate.fleet_job set fence = fence + 1 \
               where job = $1 and fence = $2 and report is null";
    let fenced = client.run_statement(sql, &[&begun.job, &begun.fence]).await;
    let is_fenced = fenced.map_err(ledger_error())? == 1;
    if let (true, Some(stage)) = (is_fenced, stage) {
        end_writers(client, stage).await;
    }
    Ok(is_fenced)
}

/// Returns whether an aborted job stays in the ledger because of parts that its tasks have
/// committed. A rerun of a named job must find these parts. `pgspate.reject` may have their
/// rejected rows. Waits for attempts that are sealed. Later ones are refused, as the fence was
/// raised.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, or if an attempt
/// does not end. [`ErrorKind::Connect`] if the connection fails.
pub async fn keeps_committed_parts(client: &Client, job: i64) -> Result<bool> {
    let look = async {
        let set = "set local lock_timeout = '20s'";
        client.batch_execute(set).await.map_err(ledger_error())?;
        let lock = "select from pgspate.fleet_job where job = $1 for update";
        client.fetch_opt(lock, &[&job]).await.map_err(ledger_error())?;
        // This statement sees what the attempts have committed.
        let sql = "select exists (select from pgspate.fleet_job f where f.job = $1 \
                       and exists (select from pgspate.part p where p.job = f.job) \
                       and (f.name is not null \
                            or exists (select from pgspate.reject r where r.job = f.job)))";
        Ok(client.fetch_one(sql, &[&job]).await.map_err(ledger_error())?.get(0))
    };
    in_transaction(client, look).await
}

/// Raises the fence of a job that is to be forgotten, so that no driver completes the job. Waits
/// for a driver that completes it. `fence` is that of the run that is to be forgotten.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job has ended or was begun again meanwhile. [`ErrorKind::Server`]
/// if the ledger cannot be written, or if the driver needs long. [`ErrorKind::Connect`] if the
/// connection fails.
pub(super) async fn fence_off_for_forgetting(client: &Client, job: i64, fence: i64) -> Result<()> {
    let fenced = async {
        let set = "set local lock_timeout = '20s'";
        client.batch_execute(set).await.map_err(ledger_error())?;
        let sql = "update pgspate.fleet_job set fence = fence + 1 \
                   where job = $1 and fence = $2 and report is null";
        client.run_statement(sql, &[&job, &fence]).await.map_err(ledger_error())
    };
    if in_transaction(client, fenced).await? == 1 {
        return Ok(());
    }
    let open = "select exists (select from pgspate.fleet_job where job = $1 and report is null)";
    if client.fetch_one(open, &[&job]).await.map_err(ledger_error())?.get(0) {
        return Err(begun_again_error(job));
    }
    let message = format!("job {job} was completed or aborted meanwhile");
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "The rows of a complete job are in the table. Forget the job only if they are to be \
         written again.",
    ))
}

/// Returns the error of a job that is not forgotten, because its driver has begun it again.
pub(super) fn begun_again_error(job: i64) -> Error {
    Error::new(ErrorKind::Ledger, format!("job {job} was begun again meanwhile"))
        .hint("A driver works on the job. Stop the driver first, or let it complete the job.")
}

/// Drops the stage or the shadow of a completed job.
///
/// # Errors
/// [`ErrorKind::Server`] if the stage cannot be dropped: an attempt may still write into it.
pub async fn drop_stage(client: &Client, job: i64, stage: &str) -> Result<()> {
    end_writers(client, stage).await;
    shadow::drop_shadow(client, JobId(job)).await.map(drop)
}

/// Returns the unfinished jobs of the table, other than `job`, each in words.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn abandoned_fleet_jobs(client: &Client, table: u32, job: i64) -> Result<Vec<String>> {
    // Policies hide the parts of other roles.
    let sql = format!(
        "select j.job, f.name, date_trunc('second', now() - j.started)::text, \
                j.options ->> 'commit' is not distinct from 'task', \
                (select count(*) from pgspate.part p where p.job = j.job), \
                case when row_security_active('pgspate.part'::regclass) and not {IS_OURS} \
                     then j.role::text end \
         from pgspate.job j join pgspate.fleet_job f on f.job = j.job \
         where j.table_oid = $1 and j.job <> $2 and j.finished is null order by j.job"
    );
    let rows = client.fetch_all(&sql, &[&table, &job]).await.map_err(ledger_error())?;
    Ok(rows.iter().map(describe_abandoned_job).collect())
}

/// Returns an unfinished job of another role that writes to the table, in words, if there is one.
/// The policies of the ledger do not let this role move the job to another table.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn fleet_job_of_other_role(client: &Client, table: u32) -> Result<Option<String>> {
    let sql = format!(
        "select job, role::text from pgspate.job \
         where table_oid = $1 and command = 'fleet' and finished is null \
           and row_security_active('pgspate.job'::regclass) and not {IS_OURS} \
         order by job limit 1"
    );
    let row = client.fetch_opt(&sql, &[&table]).await.map_err(ledger_error())?;
    Ok(row.map(|row| {
        let (job, role): (i64, &str) = (row.get(0), row.get(1));
        format!("job {job} of role \"{role}\" writes to it and is not complete")
    }))
}

/// Returns an unfinished job in words.
fn describe_abandoned_job(row: &Row) -> String {
    let (job, name, age): (i64, Option<&str>, &str) = (row.get(0), row.get(1), row.get(2));
    let (commits_parts, committed): (bool, i64) = (row.get(3), row.get(4));
    let other_role: Option<&str> = row.get(5);
    let advice = match (other_role, commits_parts, committed.unsigned_abs()) {
        (Some(_), true, _) => {
            "have that role delete the rows that its tasks have committed, and ".to_owned()
        }
        (Some(_), false, _) => "have that role ".to_owned(),
        (None, true, parts) if parts > 0 => {
            let again = name.map_or("", |_| "run its driver again, or ");
            let parts = counted(parts, "part");
            format!("{again}delete the rows of the {parts} that its tasks have committed, and ")
        }
        (None, ..) => String::new(),
    };
    let name = name.map_or_else(String::new, |name| format!(" \"{name}\""));
    let role = other_role.map_or_else(String::new, |role| format!(" by role \"{role}\""));
    format!(
        "job {job}{name} of this table was begun{role} {age} ago and is not complete; if no driver \
         works on it, {advice}run `pgspate status --forget {job}`"
    )
}
