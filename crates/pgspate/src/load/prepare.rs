//! Prepares a load: inspects the inputs, the server, the table and the ledger, and plans.
//!
//! Nothing is changed. Queries that do not depend on each other share a round trip.

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::{Load, LoadOptions, LoadWatch, create, ledger_job, replace};
use crate::copy::{EarlySession, Lanes};
use crate::job::JobSession;
use crate::plan::{LoadPlan, PlanRequest};
use crate::reading::{Survey, is_lock_error, name_lock_holder, parse_name};
use crate::{Result, care};
use pgspate_target::MaintenanceFacts;
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, LedgerState};

/// Inspects inputs and table, and plans. Changes nothing: a table to be created is created,
/// inspected and rolled back. Blocks; call it from a thread that does not belong to `runtime`.
///
/// # Errors
/// When an input cannot be read or parsed, the server cannot be reached, the table is missing, or
/// the inputs do not fit the table.
pub fn prepare(options: LoadOptions, dsn: Dsn, runtime: &Handle) -> Result<Load> {
    let (mut load, has_ledger) = inspect(options, dsn, runtime)?;
    load.job.identity =
        ledger_job::identity(&load.reading, &load.plan, &load.session, &load.table)?;
    let JobSession { identity, own, .. } = &mut load.job;
    if let (Some(identity), Ok(true)) = (identity, &has_ledger)
        && !identity.has_complete_key()
    {
        identity.hash_hidden_urls(
            &own.ask(async |client: &Client| ledger::read_url_key(client).await)?,
        );
    }
    let (client, table) = (load.job.client(), &load.table);
    let known = async {
        match &load.job.identity {
            Some(it) => LedgerState::read(client, has_ledger?, it, load.options.restart).await,
            None => Ok(LedgerState::default()),
        }
    };
    let upkeep = async {
        match load.new_table {
            Some(_) => Ok(MaintenanceFacts {
                is_owner: true,
                may_create_indexes: true,
                ..MaintenanceFacts::default()
            }),
            None => MaintenanceFacts::read(client, table).await,
        }
    };
    let (known, upkeep) = runtime.block_on(async { tokio::join!(biased; known, upkeep) });
    let upkeep = match upkeep {
        Err(error) if is_lock_error(&error) => runtime.block_on(read_upkeep_with_timeout(&load)),
        upkeep => upkeep,
    };
    (load.job.known, load.table_changes.upkeep) = (known?, upkeep?);
    load.verify_unproven_sources()?;
    if load.options.create && load.job.known.made_table {
        load.adopt_table()?;
    }
    load.table_care(&LoadWatch::default()).plan()?;
    Ok(load)
}

/// Reads the table's indexes, sequences and options while another session has locked the table.
/// Waits up to `--lock-timeout`.
async fn read_upkeep_with_timeout(load: &Load) -> Result<MaintenanceFacts> {
    let Load { job, table, options: LoadOptions { limits, .. }, .. } = load;
    let backoff = limits.lock_timeout_millis();
    match MaintenanceFacts::read_with_timeout(job.client(), table, backoff).await {
        Err(error) if is_lock_error(&error) => {
            Err(name_lock_holder(job.client(), Some(table.oid), limits.lock_timeout, error).await)
        }
        read => read,
    }
}

/// Inspects inputs and table, and plans how to encode and copy the rows. Also returns whether the
/// server has a ledger.
fn inspect(options: LoadOptions, dsn: Dsn, runtime: &Handle) -> Result<(Load, Result<bool>)> {
    let (table, limits) = (options.table.as_deref(), options.limits);
    let survey = Survey::take(&options.reading, table, limits, dsn, runtime)?;
    let Survey { own, reading, session, name, table, rows, free_connections, has_ledger } = survey;
    let connection = &own.connection;
    let (table, new_table) = match table {
        Some(table) => (table, None),
        None => {
            let name = runtime.block_on(parse_name(connection, &name))?;
            let sql = create::create_table_sql(&name, &reading.inferred, options.create)?;
            let (table, new) =
                runtime.block_on(create::create_and_roll_back(connection, &name, &sql))?;
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
        created_oid: None,
        request,
        plan,
        job: JobSession::new(own),
        early_session: EarlySession::default(),
        rejects_guard: None,
        table_changes: care::TableChanges::default(),
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
