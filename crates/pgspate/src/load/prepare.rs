//! Before a load: looks at the inputs, the server, the table and the ledger, and plans.
//!
//! Nothing is changed. What the ledger knows and what the table needs are asked at once.

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::{Load, LoadOptions, LoadWatch, create, record, replace};
use crate::copy::{EarlySession, Lanes};
use crate::job::JobSession;
use crate::plan::{LoadPlan, PlanRequest};
use crate::reading::{Survey, is_locked, name_user, parse_name};
use crate::{Result, care};
use pgspate_target::Upkeep;
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, Known};

/// Looks at inputs and table, and plans. Changes nothing: a table that is to be made is made here
/// only to look at, and rolled back. Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Inputs that cannot be read or understood, a server that cannot be reached, a missing table, or
/// inputs that do not fit it.
pub fn prepare(options: LoadOptions, dsn: Dsn, runtime: &Handle) -> Result<Load> {
    let (mut load, has_ledger) = look(options, dsn, runtime)?;
    load.job.identity = record::identity(&load.reading, &load.plan, &load.session, &load.table)?;
    let JobSession { identity, own, .. } = &mut load.job;
    if let (Some(identity), Ok(true)) = (identity, &has_ledger)
        && !identity.is_settled()
    {
        identity.settle(&own.ask(async |client: &Client| ledger::secret(client).await)?);
    }
    let (client, table) = (load.job.client(), &load.table);
    let known = async {
        match &load.job.identity {
            Some(it) => Known::ask(client, has_ledger?, it, load.options.restart).await,
            None => Ok(Known::default()),
        }
    };
    let upkeep = async {
        match load.new_table {
            Some(_) => Ok(Upkeep { is_owner: true, may_create: true, ..Upkeep::default() }),
            None => Upkeep::read(client, table).await,
        }
    };
    let (known, upkeep) = runtime.block_on(async { tokio::join!(biased; known, upkeep) });
    let upkeep = match upkeep {
        Err(error) if is_locked(&error) => runtime.block_on(patient_upkeep(&load)),
        upkeep => upkeep,
    };
    (load.job.known, load.care.upkeep) = (known?, upkeep?);
    load.recognise()?;
    if load.options.create && load.job.known.made_table {
        load.adopt_table()?;
    }
    load.caring(&LoadWatch::default()).plan()?;
    Ok(load)
}

/// What the table needs, while another session has it for itself: waits as long as for any lock.
async fn patient_upkeep(load: &Load) -> Result<Upkeep> {
    let Load { job, table, options: LoadOptions { limits, .. }, .. } = load;
    let patience = limits.lock_timeout_millis();
    match Upkeep::read_with_patience(job.client(), table, patience).await {
        Err(error) if is_locked(&error) => {
            Err(name_user(job.client(), Some(table.oid), limits.lock_timeout, error).await)
        }
        read => read,
    }
}

/// Looks at inputs and table, and plans how the rows get there. Says, too, whether there is a
/// ledger.
fn look(options: LoadOptions, dsn: Dsn, runtime: &Handle) -> Result<(Load, Result<bool>)> {
    let (table, limits) = (options.table.as_deref(), options.limits);
    let survey = Survey::take(&options.reading, table, limits, dsn, runtime)?;
    let Survey { own, reading, session, name, table, rows, free_connections, has_ledger } = survey;
    let connection = &own.connection;
    let (table, new_table) = match table {
        Some(table) => (table, None),
        None => {
            let name = runtime.block_on(parse_name(connection, &name))?;
            let sql = create::sql(&name, &reading.inferred, options.create)?;
            let (table, new) = runtime.block_on(create::try_out(connection, &name, &sql))?;
            (table, Some(new))
        }
    };
    let existing = new_table.is_none().then_some(&table);
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let request = PlanRequest {
        options: options.plan.clone(),
        rows,
        shared_cores: connection.is_local().then(cores),
        rejects: options.rejects.is_some(),
        bonds: runtime.block_on(replace::bonds(&options, connection, existing))?,
    };
    let mut plan = LoadPlan::make(&table, &session, &reading.facts(), &request)?;
    plan.lanes = limit_lanes(plan.lanes, free_connections?);
    let load = Load {
        options,
        reading,
        session,
        table,
        new_table,
        made: None,
        request,
        plan,
        job: JobSession::new(own),
        early: EarlySession::default(),
        rejects_guard: None,
        care: care::TableChanges::default(),
    };
    Ok((load, has_ledger))
}

fn limit_lanes(lanes: Lanes, free: i64) -> Lanes {
    let most = usize::try_from(free / 2).unwrap_or(0).max(1);
    match lanes {
        Lanes::Auto(first, last) => Lanes::Auto(first.min(most), last.min(most)),
        fixed => fixed,
    }
}
