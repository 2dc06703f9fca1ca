//! Begins a job, and aborts one.

use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{
    AbortOutcome, FleetCommit, FleetJobOptions, FleetMode, FleetTicket, StreamEpoch, merge,
};
use crate::care::JobShadow;
use crate::fleet::check_name;
use crate::plan::check_replaceable;
use crate::sync::{SyncOptions, check_can_compare};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{
    self, BegunFleetJob, EpochOfStream, FleetDestination, JobAndWarning, JobId, NewFleetJob,
};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use pgspate_target::{
    TableDependencies, TableLocks, TableStorage, TargetTable, TypedQuery, UnloggedExtent,
    begin_pinned_sql, locking_sessions, quote_ident, server_error, suggest_table,
};

/// Begins a job that writes a table. If an earlier run of the driver has begun a job of this name,
/// begins that job again, and its attempts no longer count. The job of an epoch is joined instead.
/// `sync` has the options of a job of [`FleetMode::Sync`]. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] if the options exclude each other. [`ErrorKind::Plan`] if the table does
/// not exist or cannot be written this way. [`ErrorKind::Server`] with SQLSTATE 55P03 if another
/// session locks the table for longer than the limit. The errors of [`ledger::begin_fleet_job`] and
/// of [`ledger::join_epoch`].
pub fn begin(
    table: &str,
    name: Option<&str>,
    options: FleetJobOptions,
    sync: Option<&SyncOptions>,
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<FleetTicket> {
    name.map_or(Ok(()), |name| check_name("job", name))?;
    options.check(name)?;
    sync.map_or(Ok(()), merge::check_options)?;
    let stored =
        FleetJobOptions { connections: None, buffer: 0, allow_empty: false, ..options.clone() };
    let stored = serde_json::to_string(&stored).map_err(|error| {
        Error::new(ErrorKind::Bug, "could not write the options").because(error)
    })?;
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    let connection = match options.epoch {
        // Tasks begin the job, and may do so all at once.
        Some(_) => connect_with_retries(&dsn, limits, runtime)?,
        None => runtime.block_on(dsn.connect("pgspate fleet"))?,
    };
    runtime.block_on(async {
        let client = &connection.client;
        limit_waits(client, limits).await?;
        match begin_once(&connection, table, name, options, sync, &stored).await {
            Err(error) => Err(hint_lock_holder(client, table, error).await),
            begun => begun,
        }
    })
}

/// Sets how long the session waits for locks, and switches the server's other timeouts off.
async fn limit_waits(client: &Client, limits: WaitLimits) -> Result<()> {
    let failed = server_error("could not set the session's time limits".to_owned());
    client.batch_execute(&limits.session_sql()).await.map_err(failed)
}

/// Begins a job over a connection. `stored` has the options as the ledger keeps them.
async fn begin_once(
    connection: &Connection,
    table: &str,
    name: Option<&str>,
    options: FleetJobOptions,
    sync: Option<&SyncOptions>,
    stored: &str,
) -> Result<FleetTicket> {
    let client = &connection.client;
    let target = read_table(client, table).await?;
    check_table(client, &target, name, &options).await?;
    sync.map_or(Ok(()), |_| check_can_compare(&target))?;
    let epoch_name = options.epoch.as_ref().map(StreamEpoch::title);
    let name = epoch_name.as_deref().or(name);
    let new = NewFleetJob {
        name,
        table_oid: target.oid,
        table: &target.sql_name,
        options: stored,
        destination: destination(client, &target, &options).await?,
        marks_attempts: options.max_rejects.is_some(),
    };
    let (begun, warning) = record_job(client, new, options.epoch.as_ref()).await?;
    let shadow = match new.destination == FleetDestination::CreatedLater && !begun.is_complete {
        true => create_shadow(connection, &target, &begun).await?,
        false => None,
    };
    let mut warnings: Vec<String> = warning.into_iter().collect();
    // Streams into the same table have unfinished jobs all the time.
    if options.epoch.is_none() {
        warnings.extend(ledger::abandoned_fleet_jobs(client, target.oid, begun.job).await?);
    }
    let has_shadow = shadow.is_some();
    let destination = match new.destination {
        FleetDestination::Table { .. } => target.sql_name.clone(),
        _ => shadow.unwrap_or_else(|| ledger::stage_name(begun.job, begun.fence)),
    };
    Ok(FleetTicket {
        job: begun.job,
        fence: begun.fence,
        name: name.map(str::to_owned),
        table: target.sql_name,
        table_oid: target.oid,
        destination,
        has_shadow,
        options,
        is_complete: begun.is_complete,
        warnings,
    })
}

/// Adds a hint to the error of a lock that was not granted in time: which session uses the table.
async fn hint_lock_holder(client: &Client, table: &str, error: Error) -> Error {
    if error.sqlstate() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return error;
    }
    let oid = TargetTable::find_oid(client, table).await.ok().flatten().unwrap_or_default();
    let holders = locking_sessions(client, oid, TableLocks::All).await.unwrap_or_default();
    let who = holders.first().map_or("another session", String::as_str);
    error.hint(format!("{table} is in use by {who}. End that session, or begin the job later."))
}

/// Records the job in the ledger, or joins the job that another task of the epoch has recorded.
async fn record_job(
    client: &Client,
    new: NewFleetJob<'_>,
    epoch: Option<&StreamEpoch>,
) -> Result<JobAndWarning> {
    match epoch {
        Some(StreamEpoch { stream, number, query, is_gapless }) => {
            let (number, query, is_gapless) = (*number, query.as_deref(), *is_gapless);
            let epoch = EpochOfStream { stream, number, query, is_gapless };
            ledger::join_epoch(client, new, epoch).await
        }
        None => ledger::begin_fleet_job(client, new).await,
    }
}

/// Decides where attempts write. A shadow is tried if the table has no rows to keep.
async fn destination(
    client: &Client,
    target: &TargetTable,
    options: &FleetJobOptions,
) -> Result<FleetDestination> {
    let is_plain = target.kind == 'r' && target.storage == TableStorage::Plain;
    let needs_stage = options.epoch.is_some() || options.max_rejects.is_some();
    if needs_stage && options.commit == FleetCommit::Job {
        return Ok(FleetDestination::Stage);
    }
    Ok(match (options.commit, options.mode) {
        (FleetCommit::Task, _) => FleetDestination::Table { keeps_parts: options.stable_parts },
        (FleetCommit::Job, FleetMode::Replace) if is_plain => FleetDestination::CreatedLater,
        (FleetCommit::Job, FleetMode::Append) if is_plain && is_empty(client, target).await? => {
            FleetDestination::CreatedLater
        }
        (FleetCommit::Job, _) => FleetDestination::Stage,
    })
}

/// Returns whether the table is known to have no row. False if this role may not read the table, or
/// if it is locked.
async fn is_empty(client: &Client, target: &TargetTable) -> Result<bool> {
    let failed = || server_error("could not look up the table".to_owned());
    let begin = format!("{}; set local lock_timeout = '1s'", begin_pinned_sql());
    client.batch_execute(&begin).await.map_err(failed())?;
    // A policy may hide rows.
    let look = format!(
        "select not row_security_active($1::oid) and not exists (select from {})",
        target.sql_name
    );
    let empty = client.fetch_one(&look, &[&target.oid]).await;
    client.batch_execute("rollback").await.map_err(failed())?;
    Ok(empty.is_ok_and(|row| row.get(0)))
}

/// Creates the job's shadow and returns its name. If no other table can take the table's place,
/// creates the stage.
async fn create_shadow(
    connection: &Connection,
    target: &TargetTable,
    begun: &BegunFleetJob,
) -> Result<Option<String>> {
    let (client, version) = (&connection.client, connection.server_version());
    let name = quote_ident(&target.name);
    let shadow = JobShadow::new(begun.job, (target.oid, &target.sql_name, &name), version);
    ledger::end_writers(client, shadow.name()).await;
    if shadow.create(client, begun).await?.is_none() {
        return Ok(Some(shadow.name().to_owned()));
    }
    ledger::create_job_stage(client, begun, (target.oid, &target.sql_name)).await?;
    Ok(None)
}

impl FleetJobOptions {
    /// Refuses options that exclude each other.
    fn check(&self, name: Option<&str>) -> Result<()> {
        let is_epoch = self.epoch.is_some();
        let (appends, by_task) = (self.mode == FleetMode::Append, self.commit == FleetCommit::Task);
        let refused = [
            (by_task && !appends, "only rows that are appended can be committed by each task"),
            (self.stable_parts && !by_task, "stable parts are for tasks that commit their rows"),
            (self.mode != FleetMode::Sync && !self.sync.is_empty(), "the options are for a sync"),
            (self.mode != FleetMode::Replace && self.allow_empty, "no rows replace nothing"),
            (self.connections == Some(0), "a job needs at least one connection"),
            (is_epoch && name.is_some(), "the job of an epoch is named after its stream"),
            (is_epoch && by_task, "a repeated epoch may have other parts, so no task can commit"),
        ];
        match refused.iter().find(|(is_refused, _)| *is_refused) {
            Some((_, why)) => Err(Error::new(ErrorKind::Usage, *why)),
            None => self.epoch.as_ref().map_or(Ok(()), |it| check_name("stream", &it.stream)),
        }
    }
}

impl StreamEpoch {
    /// Returns the epoch in words.
    fn title(&self) -> String {
        format!("stream {}, epoch {}", self.stream, self.number)
    }
}

/// Connects. A server that has no connection left, or that cannot be reached, is tried again.
fn connect_with_retries(dsn: &Dsn, limits: WaitLimits, runtime: &Handle) -> Result<Connection> {
    let mut backoff = ReconnectBackoff::new(limits.retry_for);
    loop {
        match runtime.block_on(dsn.connect("pgspate fleet")) {
            Err(error) if error.is_retryable() && backoff.wait(|| false) => {}
            connected => return connected,
        }
    }
}

/// Refuses a table that cannot be written in this way.
async fn check_table(
    client: &Client,
    target: &TargetTable,
    job_name: Option<&str>,
    options: &FleetJobOptions,
) -> Result<()> {
    let name = &target.sql_name;
    // After a crash, the ledger would count rows as written that no longer exist.
    let is_remembered =
        job_name.is_some() || options.epoch.is_some() || options.commit == FleetCommit::Task;
    if is_remembered && target.unlogged != UnloggedExtent::Nothing {
        let message = format!("{name} is unlogged, so a crash would empty it, but not the ledger");
        return Err(Error::new(ErrorKind::Plan, message).hint(format!(
            "Begin a job without a name that the driver completes. Or run `alter table {name} set \
             logged`."
        )));
    }
    if options.mode != FleetMode::Replace {
        return Ok(());
    }
    let dependencies = TableDependencies::read(client, target).await?;
    check_replaceable(target, &dependencies)?;
    let sync_all = "Make the table equal to the new rows by a sync of the whole table.";
    if let Some(key) = dependencies.references.first() {
        let message = format!(
            "foreign key {} of {} refers to {name}, so its rows cannot be replaced",
            key.name, key.table
        );
        return Err(Error::new(ErrorKind::Plan, message).hint(sync_all));
    }
    let failed = server_error("could not look up the table".to_owned());
    let may = "select has_table_privilege($1::oid, 'truncate')";
    match client.fetch_one(may, &[&target.oid]).await.map_err(failed)?.get(0) {
        true => Ok(()),
        false => {
            let message = format!("this role may not truncate {name}");
            let hint = format!("Run `grant truncate on {name} to ROLE`. {sync_all}");
            Err(Error::new(ErrorKind::Plan, message).hint(hint))
        }
    }
}

async fn read_table(client: &Client, table: &str) -> Result<TargetTable> {
    let failed = || server_error("could not look up the table".to_owned());
    client.batch_execute(&begin_pinned_sql()).await.map_err(failed())?;
    let found = TargetTable::read(client, table).await;
    client.batch_execute("rollback").await.map_err(failed())?;
    let Some(target) = found? else {
        let error = Error::new(ErrorKind::Plan, format!("table {table} does not exist"))
            .hint("Create the table first.");
        return Err(suggest_table(client, table, error).await);
    };
    target.check_is_user_schema()?;
    target.check_no_rule()?;
    let reason = match target.kind {
        'r' | 'p' if target.commits_across_nodes => "its rows may be on several servers",
        'r' | 'p' if target.has_foreign_parts => {
            "a partition is on another server, which commits for itself"
        }
        'r' | 'p' => return Ok(target),
        _ => "it is not a table",
    };
    let message = format!("{} cannot be written by a job with a driver: {reason}", target.sql_name);
    Err(Error::new(ErrorKind::Plan, message).hint("Use `load` or `sync` in each task."))
}

/// Aborts a job: nothing is left of it, except parts that are visible already. A named job with
/// such parts stays in the ledger, so that they are not written again. Does nothing if the job is
/// complete. Blocks.
///
/// # Errors
/// [`ErrorKind::Server`] if the stage cannot be dropped. Then `pgspate status` shows the job.
pub fn abort(
    ticket: &FleetTicket,
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<AbortOutcome> {
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    runtime.block_on(async {
        let connection = dsn.connect("pgspate fleet").await?;
        let client = &connection.client;
        // A completion may hold the lock on the job's row.
        limit_waits(client, limits).await?;
        if ledger::fence_off(client, &ticket.begun(), ticket.stage()).await? {
            let is_kept =
                ticket.commits_parts() && ledger::keeps_committed_parts(client, ticket.job).await?;
            return Ok(
                match is_kept || ledger::forget_aborted_job(client, &ticket.begun()).await? {
                    true => AbortOutcome::Aborted,
                    false => AbortOutcome::IsAnother,
                },
            );
        }
        Ok(match ledger::is_job_finished(client, JobId(ticket.job)).await? {
            true => AbortOutcome::IsComplete,
            false => AbortOutcome::IsAnother,
        })
    })
}
