//! Before a load: looks at the inputs, the server, the table and the ledger, and plans.
//!
//! Nothing is changed. Everything that depends on nothing else is asked at once: the session and
//! the table with the connection itself, the ledger and what the table needs when these are known.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::reading::Reading;
use super::{Load, Options, Watch, create, record, replace};
use crate::care;
use crate::copy::{Early, Lanes};
use crate::job::{JobSession, OwnSession};
use crate::ledger::{self, Known};
use crate::plan::{Plan, Request, Wish};
use crate::session::Limits;
use crate::source::{self, Input};
use crate::stage::Stage;
use crate::target::connect::{Connection, Dsn, Question};
use crate::target::{
    Ask, Session, Table, Unlogged, Upkeep, begin_pinned, read_session, server_error, users,
};
use crate::{Error, Result};

/// Looks at inputs and table, and plans. Changes nothing: a table that is to be made is made here
/// only to look at, and rolled back. Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Inputs that cannot be read or understood, a server that cannot be reached, a missing table, or
/// inputs that do not fit it.
pub fn prepare(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Load> {
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
    load.caring(&Watch::default()).plan()?;
    Ok(load)
}

/// What the table needs, while another session has it for itself: waits as long as for any lock.
async fn patient_upkeep(load: &Load) -> Result<Upkeep> {
    let Load { job, table, options: Options { limits, .. }, .. } = load;
    let patience = limits.lock_timeout_millis();
    match Upkeep::read_with_patience(job.client(), table, patience).await {
        Err(error) if is_locked(&error) => {
            Err(name_user(job.client(), Some(table.oid), limits.lock_timeout, error).await)
        }
        read => read,
    }
}

/// Adds to an error about a lock who held it.
async fn name_user(
    client: &Client,
    table: Option<u32>,
    lock_timeout: Duration,
    error: Error,
) -> Error {
    let users = match table {
        Some(table) => users(client, table).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let Some(user) = users.first() else { return error };
    let seconds = lock_timeout.as_secs();
    error.hint(format!(
        "The lock was held for {seconds} s by {user}. End that session, or wait longer with \
         `--lock-timeout`."
    ))
}

/// Looks at inputs and table, and plans to stage rows for the table rather than to write them.
pub(crate) fn prepare_stage(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Load> {
    let options = Options { lanes: Some(1), no_ledger: true, create: false, ..options };
    let (mut load, _) = look(options, dsn, runtime).map_err(|error| {
        let is_missing = error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE);
        let hint = "Make the table first; `pgspate load --create` does, with the types that the \
                    source needs.";
        if is_missing { error.hint(hint) } else { error }
    })?;
    // What makes writing to the table slow or special does not count for the stage.
    let bare = Table {
        kind: 'r',
        triggers: Vec::new(),
        foreign_keys: Vec::new(),
        self_references: Vec::new(),
        indexes: Vec::new(),
        partitions: 0,
        row_security: false,
        unlogged: Unlogged::No,
        ..load.table.clone()
    };
    load.plan = Plan::make(&bare, &load.session, &load.reading.facts(), &load.request)?;
    let columns = load.plan.columns.iter().map(|column| column.name.as_str());
    load.stage = Some(Stage::of(&load.table, columns));
    Ok(load)
}

/// What is asked first.
struct First<'a> {
    table: &'a str,
    /// How long locks are waited for, as SQL takes it.
    lock_timeout: &'a str,
}

/// To look a table up takes locks on its partitions, but what is asked first is part of connecting,
/// which has a limit of its own.
const HARDLY: &str = "'100ms'";

impl Question for First<'_> {
    type Answer = (Result<Session>, Result<Option<Table>>, Result<i64>, Result<bool>);

    /// In one transaction, so that the settings end with it. Between two questions it is idle for a
    /// moment.
    async fn ask(&self, client: &Client) -> Self::Answer {
        let begin = format!(
            "{}; set local idle_in_transaction_session_timeout = 0; set local lock_timeout = {}",
            begin_pinned(),
            self.lock_timeout
        );
        let (_, session, table, free, has_ledger, _) = tokio::join!(
            biased;
            client.batch_execute(&begin),
            read_session(client),
            Table::read(client, self.table),
            free_connections(client),
            ledger::is_there(client),
            client.batch_execute("rollback")
        );
        (session, table, free, has_ledger)
    }
}

/// Asks what is asked first again, and waits for locks as long as `lock_timeout`.
async fn ask_with_patience(
    client: &Client,
    table: &str,
    limits: &Limits,
) -> <First<'static> as Question>::Answer {
    let lock_timeout = limits.lock_timeout_millis().to_string();
    let mut answers = First { table, lock_timeout: &lock_timeout }.ask(client).await;
    answers.1 = match answers.1 {
        Err(error) if is_locked(&error) => {
            let table = Table::find_oid(client, table).await.ok().flatten();
            Err(name_user(client, table, limits.lock_timeout, error).await)
        }
        found => found,
    };
    answers
}

/// Looks at inputs and table, and plans how the rows get there. Says, too, whether there is a
/// ledger.
fn look(options: Options, dsn: Dsn, runtime: &Handle) -> Result<(Load, Result<bool>)> {
    let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
    let inputs = match (&options.batches, &options.stream) {
        (Some(own), _) => vec![Input::memory(own.name(), own.bytes(), own.is_stream())],
        (None, Some(stream)) => vec![stream.clone()],
        (None, None) => source::resolve(&options.sources, &options.source, runtime.clone())?,
    };
    let name = table_name(&options, &inputs);
    let first = First { table: &name, lock_timeout: HARDLY };
    let asked = runtime.block_on(dsn.connect_asking("pgspate load", &first));
    let (connection, mut answers) = asked?;
    if answers.1.as_ref().is_err_and(is_locked) {
        let limits = &options.limits;
        answers = runtime.block_on(ask_with_patience(&connection.client, &name, limits));
    }
    let (session, table, free, has_ledger) = answers;
    let (session, table) = (session?, table.map_err(create::not_a_name)?);
    table.as_ref().map_or(Ok(()), Table::check_schema)?;
    let known: Option<Vec<String>> = table
        .as_ref()
        .map(|table| table.columns.iter().map(|column| column.name.clone()).collect());
    let encoding = options.encoding.as_deref().or(dsn.client_encoding());
    let decode = |name: &[u8]| runtime.block_on(decode(&connection, encoding, name));
    let reading = Reading::of(inputs, known.as_deref(), &options, &decode)?;
    let (table, new_table) = match table {
        Some(table) => (table, None),
        None => {
            let name = runtime.block_on(create::parse_name(&connection, &name))?;
            let sql = create::sql(&name, &reading.inferred, options.create)?;
            let (table, new) = runtime.block_on(create::try_out(&connection, &name, &sql))?;
            (table, Some(new))
        }
    };
    let mut request = request(&options, &dsn, &reading, &connection);
    let existing = new_table.is_none().then_some(&table);
    request.wish = runtime.block_on(replace::wish(&options, &connection, existing))?;
    let mut plan = Plan::make(&table, &session, &reading.facts(), &request)?;
    plan.lanes = limit_lanes(plan.lanes, free?);
    let load = Load {
        job: JobSession::new(OwnSession {
            dsn,
            runtime: runtime.clone(),
            connection: connection.into(),
            limits: options.limits,
            was_away: false,
        }),
        options,
        reading,
        session,
        table,
        new_table,
        made: None,
        request,
        plan,
        early: Early::default(),
        stage: None,
        rejects_guard: None,
        care: care::Standing::default(),
    };
    Ok((load, has_ledger))
}

/// Whether somebody else held a lock for too long, now or in the same transaction before.
fn is_locked(error: &Error) -> bool {
    let codes = [SqlState::LOCK_NOT_AVAILABLE, SqlState::IN_FAILED_SQL_TRANSACTION];
    error.sqlstate().is_some_and(|code| codes.contains(code))
}

/// What plans depend on besides facts. PGCLIENTENCODING tells of text that names no other encoding.
fn request(options: &Options, dsn: &Dsn, reading: &Reading, connection: &Connection) -> Request {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let of_session = dsn.client_encoding().filter(|_| reading.facts().is_delimited);
    Request {
        encoding: options.encoding.clone().or(of_session.map(str::to_owned)),
        columns: options.columns.clone(),
        ignore_unknown: options.ignore_unknown,
        lanes: options.lanes,
        commit: options.commit,
        ledger: !options.no_ledger,
        rejects: options.rejects.is_some(),
        wish: Wish::default(),
        shared_cores: connection.is_local().then(cores),
        force_null: options.force_null.clone(),
        force_not_null: options.force_not_null.clone(),
        rebuild_indexes: options.rebuild_indexes,
        pause_autovacuum: options.pause_autovacuum,
        analyze: options.analyze,
        vacuum: options.vacuum,
    }
}

/// A name in the input's encoding, as text.
async fn decode(connection: &Connection, encoding: Option<&str>, name: &[u8]) -> Result<String> {
    let Some(encoding) = encoding.filter(|_| !name.is_ascii()) else {
        return Ok(String::from_utf8_lossy(name).into_owned());
    };
    let sql = "select convert_from($1, $2)";
    let what = "could not read the names in the header";
    let row = connection.client.ask_one(sql, &[&name, &encoding]).await;
    Ok(row.map_err(server_error(what.to_owned()))?.get(0))
}

fn table_name(options: &Options, inputs: &[Input]) -> String {
    let derived = || {
        let first = inputs.first().map_or("data", Input::name);
        crate::target::quote_ident(&crate::format::infer::table_name(first)).into_owned()
    };
    options.table.clone().unwrap_or_else(derived)
}

/// Connections that the server has left, of which some stay free for others.
const FREE: &str = "\
select current_setting('max_connections')::int8 - count(*)
       - current_setting('superuser_reserved_connections')::int8
from pg_stat_activity where backend_type = 'client backend'";

async fn free_connections(client: &Client) -> Result<i64> {
    let failed = server_error("could not count the server's connections".to_owned());
    Ok(client.ask_one(FREE, &[]).await.map_err(failed)?.get(0))
}

fn limit_lanes(lanes: Lanes, free: i64) -> Lanes {
    let most = usize::try_from(free / 2).unwrap_or(0).max(1);
    match lanes {
        Lanes::Auto(first, last) => Lanes::Auto(first.min(most), last.min(most)),
        fixed => fixed,
    }
}
