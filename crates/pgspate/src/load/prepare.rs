//! Prepares a load: inspects the inputs, the server, the table and the ledger, and plans the load.
//!
//! Preparing changes nothing. Queries that do not depend on each other share a round trip.

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::add_columns::ColumnsToAdd;
use super::{
    FileCounts, Load, LoadOptions, LoadWatch, NewTable, create, ledger_job, member, replace,
    routing,
};
use crate::copy::{EarlySession, Lanes};
use crate::job::JobSession;
use crate::plan::{LoadPlan, PlanRequest, RowRequest};
use crate::reading::{
    InputOrigin, LoadFacts, Survey, check_constants, is_lock_error, name_lock_holder, parse_name,
};
use crate::{Error, ErrorKind, Result, care};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{self, LedgerState, WrittenChunks};
use pgspate_target::{MaintenanceFacts, SessionSettings, TargetTable, suggest_table};

/// Inspects the inputs and the table, and plans the load. Changes nothing: if the load will create
/// its table, the table is created, inspected and rolled back. Blocks; call it from a thread that
/// does not belong to `runtime`.
///
/// # Errors
/// If an input cannot be read or parsed, the server cannot be reached, the table is missing, or the
/// inputs do not fit the table.
pub fn prepare(options: LoadOptions, dsn: Dsn, runtime: &Handle) -> Result<Load> {
    let (mut load, has_ledger) = inspect(options, dsn, runtime)?;
    load.job.identity = match load.plan.ledger {
        true => Some(load.make_identity(ledger_job::read_fingerprints(&load.reading)?)),
        false => None,
    };
    load.check_member_is_recorded()?;
    let JobSession { identity, control_session, .. } = &mut load.job;
    if let (Some(identity), Ok(true)) = (identity, &has_ledger)
        && !identity.has_complete_key()
    {
        identity.hash_hidden_urls(
            &control_session
                .with_client(async |client: &Client| ledger::read_url_key(client).await)?,
        );
    }
    if matches!((&load.job.identity, &has_ledger), (Some(_), Ok(true))) {
        load.resolve_prepared()?;
    }
    let (client, table) = (load.job.client(), &load.table);
    let known = async {
        match &load.job.identity {
            Some(it) => LedgerState::read(client, has_ledger?, it, load.options.restart).await,
            None => Ok(LedgerState::default()),
        }
    };
    let maintenance_facts = async {
        match load.new_table {
            Some(_) => Ok(MaintenanceFacts {
                is_owner: true,
                may_create_indexes: true,
                ..MaintenanceFacts::default()
            }),
            None => MaintenanceFacts::read(client, table).await,
        }
    };
    let (known, maintenance_facts) =
        runtime.block_on(async { tokio::join!(biased; known, maintenance_facts) });
    let maintenance_facts = match maintenance_facts {
        Err(error) if is_lock_error(&error) => {
            runtime.block_on(read_maintenance_facts_with_timeout(&load))
        }
        maintenance_facts => maintenance_facts,
    };
    let known = known.map_err(|error| {
        let (client, limits) = (load.job.client(), &load.options.limits);
        runtime.block_on(name_lock_holder(client, load.table.oid, limits, error))
    })?;
    (load.job.ledger_state, load.table_changes.maintenance_facts) = (known, maintenance_facts?);
    load.warn_of_earlier_table();
    load.choose_files()?;
    load.add_recorded_keys()?;
    if load.options.reading.rows.add_columns && !load.is_loaded() {
        let types = &load.options.new_table.types;
        create::check_typed_columns(&load.table, &load.reading.inferred, types)?;
    }
    if load.options.create && load.job.ledger_state.has_created_table {
        load.adopt_table()?;
    }
    load.table_care(&LoadWatch::default()).plan()?;
    load.check_nodes();
    Ok(load)
}

/// Reads the table's indexes, sequences and options again, after another session's lock prevented
/// it. Waits for the lock up to `--lock-timeout`.
async fn read_maintenance_facts_with_timeout(load: &Load) -> Result<MaintenanceFacts> {
    let Load { job, table, options: LoadOptions { limits, .. }, .. } = load;
    let lock_timeout = limits.lock_timeout_millis();
    match MaintenanceFacts::read_with_timeout(job.client(), table, lock_timeout).await {
        Err(error) => Err(name_lock_holder(job.client(), table.oid, limits, error).await),
        read => read,
    }
}

/// Inspects the inputs and the table, and plans how to encode and copy the rows. Also returns
/// whether the database has a ledger.
fn inspect(mut options: LoadOptions, dsn: Dsn, runtime: &Handle) -> Result<(Load, Result<bool>)> {
    check_rejects_have_file(&options)?;
    options.new_table.check_use(options.create, options.reading.rows.add_columns)?;
    let (fleet, tending) = member::prepare(&mut options)?;
    let (table, limits) = (options.table.as_deref(), options.limits);
    let Survey { control_session, mut reading, session, name, table, mut rows, load_facts } =
        Survey::take(&options.reading, table, limits, dsn, fleet, true, runtime)?;
    let Some(LoadFacts { free_connections, has_ledger }) = load_facts else {
        return Err(Error::new(ErrorKind::Bug, "the survey has no facts for a load"));
    };
    reading.name_columns(&options.new_table.types);
    let connection = &control_session.connection;
    let (mut table, new_table) = match table {
        Some(table) => (table, None),
        None => {
            let planning = plan_new_table(connection, &name, &reading.inferred, &options);
            runtime.block_on(planning)?
        }
    };
    let to_add = match &new_table {
        None => {
            let unused = create::unused_choices(connection, &table, &options.new_table);
            reading.unused_options = runtime.block_on(unused)?;
            let types = &options.new_table.types;
            let adding = ColumnsToAdd::plan(connection, &mut table, &reading, &mut rows, types);
            runtime.block_on(adding)?
        }
        Some(new) => {
            rows.guessed_columns = new.guessed_columns().to_vec();
            None
        }
    };
    let existing = new_table.is_none().then_some(&table);
    let request = read_plan_request(&options, rows, connection, existing, &session);
    let request = runtime.block_on(request)?;
    let plan = LoadPlan::make(&table, &session, &reading.facts(), &request);
    let mut plan = plan.map_err(|error| reading.hint_header(error))?;
    let free_connections = free_connections?;
    plan.lanes = limit_lanes(plan.lanes, free_connections);
    runtime.block_on(check_constants(connection, &mut plan.rows))?;
    let load = Load {
        options,
        reading,
        session,
        table,
        new_table,
        to_add,
        added_columns: Vec::new(),
        created_oid: None,
        request,
        plan,
        free_connections,
        files: FileCounts::default(),
        job: JobSession::new(control_session),
        chunks_before: WrittenChunks::default(),
        early_session: EarlySession::default(),
        rejects_guard: None,
        table_changes: care::TableChanges::default(),
        member: None,
        tending,
    };
    Ok((load, has_ledger))
}

/// Checks that the rejected rows are kept, if the user limits their number.
fn check_rejects_have_file(options: &LoadOptions) -> Result<()> {
    if options.rejects_max.is_none() || options.rejects.is_some() {
        return Ok(());
    }
    let message = "`--max-rejects` needs a file for the rejected rows, or they would be lost";
    // Rows of a program are written as JSON.
    let is_program = matches!(options.reading.origin, InputOrigin::Batches(_));
    let example = if is_program { "rejected.ndjson" } else { "rejected.csv" };
    Err(Error::new(ErrorKind::Usage, message)
        .hint(format!("Name the file with `--rejects`, for example `--rejects {example}`.")))
}

/// Plans the missing table `name` for the inferred columns of the input. Returns the table alone
/// if another session has created it meanwhile.
///
/// # Errors
/// The error for a missing table, without `--create`. [`ErrorKind::Usage`] if an option does not
/// fit the columns.
async fn plan_new_table(
    connection: &Connection,
    name: &str,
    columns: &[(String, String)],
    options: &LoadOptions,
) -> Result<(TargetTable, Option<NewTable>)> {
    let name = parse_name(connection, name).await?;
    create::check_types(connection, &options.new_table.types).await?;
    let new = NewTable::of_columns(&name, columns, &options.new_table)?;
    if !options.create {
        let error = create::missing_table_error_with_sql(&new);
        return Err(suggest_table(&connection.client, &name, error).await);
    }
    match create::create_and_roll_back(connection, new).await {
        Ok((table, new)) => Ok((table, Some(new))),
        Err(error) => Ok((create::read_created_meanwhile(connection, &name, error).await?, None)),
    }
}

/// Reads what the plan depends on beside the input and the table's columns. `existing` is the
/// table, unless the load creates it.
async fn read_plan_request(
    options: &LoadOptions,
    rows: RowRequest,
    connection: &Connection,
    existing: Option<&TargetTable>,
    session: &SessionSettings,
) -> Result<PlanRequest> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    Ok(PlanRequest {
        options: options.plan.clone(),
        rows,
        local_server_cores: connection.is_local().then(cores),
        rejects: options.rejects.is_some(),
        dependencies: replace::read_dependencies(options, connection, existing).await?,
        shards: match existing.filter(|_| options.plan.into_shards) {
            Some(table) => routing::read_shards(connection, table, session).await?,
            None => None,
        },
    })
}

/// Limits an automatic number of lanes to half of the server's free connections.
pub(super) fn limit_lanes(lanes: Lanes, free_connections: i64) -> Lanes {
    let limit = usize::try_from(free_connections / 2).unwrap_or(0).max(1);
    match lanes {
        Lanes::Auto(initial, max) => Lanes::Auto(initial.min(limit), max.min(limit)),
        fixed => fixed,
    }
}
