//! The survey: what pgspate reads of the inputs, the server and the table before it makes a plan.
//!
//! A survey changes nothing. Its queries about the settings, the table and the ledger are sent
//! together as soon as the connection is open.

use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{InputOrigin, ReadingOptions, SniffedInputs, hint_encoding_name};
use crate::fleet::FleetEntry;
use crate::format::infer;
use crate::job::ControlSession;
use crate::numbers::counted;
use crate::plan::RowRequest;
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn, SessionQuery};
use pgspate_target::session::{TimeoutScope, WaitLimits};
use pgspate_target::{
    FoundTable, SessionSettings, TableLocks, TargetTable, TypedQuery, begin_pinned_sql, ledger,
    locking_sessions, read_session, server_error,
};

/// The result of a survey, from which a load or sync is planned.
pub(crate) struct Survey {
    pub(crate) control_session: ControlSession,
    pub(crate) reading: SniffedInputs,
    pub(crate) session: SessionSettings,
    /// The table's name as the user gave it, or a name made from the first input's name.
    pub(crate) name: String,
    /// The table; `None` if it does not exist.
    pub(crate) table: Option<TargetTable>,
    /// The user's options for rows. The encoding may come from PGCLIENTENCODING.
    pub(crate) rows: RowRequest,
    /// The facts that only a load needs; `None` if they were not asked for.
    pub(crate) load_facts: Option<LoadFacts>,
}

/// What only a load needs to know of the server.
pub(crate) struct LoadFacts {
    /// The number of connections that the server can still accept.
    pub(crate) free_connections: Result<i64>,
    /// Whether the database has a ledger.
    pub(crate) has_ledger: Result<bool>,
}

/// How much of a stream a member of a fleet reads before it connects.
const STREAM_BYTES_FIRST: usize = 64 << 20;

impl Survey {
    /// Reads the first bytes of the inputs, connects to the server and looks up the table. Reads
    /// [`LoadFacts`], too, if the survey is for a load. Blocks the calling thread.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] or [`ErrorKind::Format`] if an input cannot be read or its format is
    /// not detected. [`ErrorKind::Connect`] if the server cannot be reached, [`ErrorKind::Server`]
    /// if a query fails. [`ErrorKind::Usage`] if the table's name is missing or invalid, or if the
    /// table is in the ledger's schema.
    pub(crate) fn take(
        options: &ReadingOptions,
        table: Option<&str>,
        limits: WaitLimits,
        dsn: Dsn,
        mut fleet: Option<FleetEntry>,
        is_for_load: bool,
        runtime: &Handle,
    ) -> Result<Survey> {
        let dsn = dsn.with_stall_timeout(limits.stall_timeout);
        let (inputs, skipped) = resolve_inputs(options, runtime)?;
        let name = table_name(table, &inputs)?;
        let lock_timeout_millis = FIRST_LOCK_TIMEOUT_MILLIS;
        let query = SurveyQuery { table: &name, lock_timeout_millis, limits: &limits, is_for_load };
        let application_name = if is_for_load { "pgspate load" } else { "pgspate sync" };
        let (connection, answer) = match &mut fleet {
            None => runtime.block_on(dsn.connect_and_query(application_name, &query))?,
            Some(fleet) => {
                if !matches!(options.origin, InputOrigin::Batches(_)) {
                    read_streams(&inputs)?;
                }
                let connection = fleet.connect(&dsn, limits, runtime)?;
                let answer = runtime.block_on(query.run(&connection.client));
                (connection, answer)
            }
        };
        let session = ControlSession {
            dsn,
            application_name,
            runtime: runtime.clone(),
            connection: connection.into(),
            limits,
            connection_was_lost: false,
            fleet,
        };
        Survey::of_answer(options, name, (inputs, skipped), session, answer)
    }

    /// Takes the survey in an open connection. The table must be named. Blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`Survey::take`].
    pub(crate) fn take_in(
        connection: Connection,
        options: &ReadingOptions,
        table: &str,
        limits: WaitLimits,
        dsn: Dsn,
        runtime: &Handle,
    ) -> Result<Survey> {
        let inputs = resolve_inputs(options, runtime)?;
        let lock_timeout_millis = FIRST_LOCK_TIMEOUT_MILLIS;
        let query = SurveyQuery { table, lock_timeout_millis, limits: &limits, is_for_load: false };
        let answer = runtime.block_on(query.run(&connection.client));
        let session = ControlSession {
            dsn,
            application_name: "pgspate fleet",
            runtime: runtime.clone(),
            connection: connection.into(),
            limits,
            connection_was_lost: false,
            fleet: None,
        };
        Survey::of_answer(options, table.to_owned(), inputs, session, answer)
    }

    fn of_answer(
        options: &ReadingOptions,
        name: String,
        (inputs, skipped): (Vec<Input>, Vec<String>),
        control_session: ControlSession,
        mut answer: SurveyAnswer,
    ) -> Result<Survey> {
        let ControlSession { runtime, connection, limits, .. } = &control_session;
        if answer.table.as_ref().is_err_and(is_lock_error) {
            let is_for_load = answer.load_facts.is_some();
            let again = query_again(&connection.client, &name, limits, is_for_load);
            answer = runtime.block_on(again);
        }
        let SurveyAnswer { session, table, load_facts } = answer;
        let (session, table) = (session?, table.map_err(invalid_name_error)?);
        table.as_ref().map_or(Ok(()), TargetTable::check_is_user_schema)?;
        let (mut reading, rows) = sniff_inputs(inputs, table.as_ref(), options, &control_session)?;
        reading.note_skipped(skipped_note(&skipped));
        Ok(Survey { control_session, reading, session, name, table, rows, load_facts })
    }
}

/// Returns the inputs, and the names of files that are skipped.
fn resolve_inputs(options: &ReadingOptions, runtime: &Handle) -> Result<(Vec<Input>, Vec<String>)> {
    match &options.origin {
        InputOrigin::Batches(own) => {
            Ok((vec![Input::memory(own.name(), own.bytes(), own.is_stream())], Vec::new()))
        }
        InputOrigin::Stream(stream) => Ok((vec![stream.clone()], Vec::new())),
        InputOrigin::Sources(all) => {
            let inputs = source::resolve(all, &options.source, runtime.clone())?;
            Ok(source::without_texts_beside_data(all, inputs))
        }
    }
}

/// Reads the beginning of streams, or small streams to their end, before a member of a fleet takes
/// one of the fleet's connections. The program that writes a stream may take long.
fn read_streams(inputs: &[Input]) -> Result<()> {
    inputs
        .iter()
        .filter(|input| input.is_stream())
        .try_for_each(|input| input.peek(STREAM_BYTES_FIRST).map(drop))
}

/// Detects the format and the columns of inputs, and completes the options for rows. `table` is the
/// table that is written, if it exists. Blocks the calling thread.
///
/// # Errors
/// [`ErrorKind::Source`] or [`ErrorKind::Format`] if an input cannot be read or its format is not
/// detected. [`ErrorKind::Usage`] if a NULL string is given for a format without one.
/// [`ErrorKind::Server`] if the server cannot decode a name.
pub(crate) fn sniff_inputs(
    inputs: Vec<Input>,
    table: Option<&TargetTable>,
    options: &ReadingOptions,
    session: &ControlSession,
) -> Result<(SniffedInputs, RowRequest)> {
    let names = |it: &TargetTable| it.columns.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    let known = table.map(names);
    let encoding = options.rows.encoding.as_deref().or(session.dsn.client_encoding());
    let decode =
        |name: &[u8]| session.runtime.block_on(decode_name(&session.connection, encoding, name));
    let reading = SniffedInputs::sniff(inputs, known.as_deref(), options, &decode)?;
    let mut rows = options.rows.clone();
    if reading.facts().is_delimited {
        // PGCLIENTENCODING applies only to text without another encoding.
        rows.encoding = encoding.map(str::to_owned);
    } else if options.read.null.is_some() {
        let message = "`--null` does not apply to this format, which has a NULL of its own";
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Leave it out. Convert strings that stand for NULL before the load."));
    }
    Ok((reading, rows))
}

/// Returns which files are not read because their names are those of texts for people, in words.
fn skipped_note(names: &[String]) -> Option<String> {
    let first = names.first()?;
    let more = match names.len() - 1 {
        0 => String::new(),
        more => format!(" and {}", counted(more as u64, "other file")),
    };
    Some(format!("skipped \"{first}\"{more}: not data, by the name"))
}

/// Adds a hint to the error of a lock that was not granted in time: which sessions lock the table.
/// Other errors, and those with a hint, stay as they are.
pub(crate) async fn name_lock_holder(
    client: &Client,
    table: u32,
    limits: &WaitLimits,
    error: Error,
) -> Error {
    if error.sqlstate() != Some(&SqlState::LOCK_NOT_AVAILABLE) || error.hint_text().is_some() {
        return error;
    }
    hint_lock_holder(client, table, limits, error).await
}

async fn hint_lock_holder(client: &Client, table: u32, limits: &WaitLimits, error: Error) -> Error {
    let holders = locking_sessions(client, table, TableLocks::OfWriters).await.unwrap_or_default();
    let who = match &holders[..] {
        [] => return error,
        [only] => only.clone(),
        [first, others @ ..] => {
            format!("{first} or by {}", counted(others.len() as u64, "other session"))
        }
    };
    let seconds = limits.lock_timeout.as_secs();
    error.hint(format!(
        "The lock was held for {seconds} s by {who}. End that session, or wait longer with \
         `--lock-timeout`."
    ))
}

/// The queries that are sent as soon as the connection is open.
struct SurveyQuery<'a> {
    table: &'a str,
    /// How long the queries wait for locks, in milliseconds.
    lock_timeout_millis: i32,
    /// How long later statements of the session wait for locks.
    limits: &'a WaitLimits,
    /// Whether a load asks, which needs [`LoadFacts`].
    is_for_load: bool,
}

/// The results of a [`SurveyQuery`].
struct SurveyAnswer {
    session: Result<SessionSettings>,
    table: Result<Option<TargetTable>>,
    load_facts: Option<LoadFacts>,
}

/// The lock timeout of the first try. Looking up a table locks its partitions. The first try is
/// part of connecting, which has a time limit of its own, so the first try must not wait for long.
const FIRST_LOCK_TIMEOUT_MILLIS: i32 = 100;

impl SessionQuery for SurveyQuery<'_> {
    type Answer = SurveyAnswer;

    /// Sends all queries in one transaction, whose rollback also resets the settings. The role's
    /// timeouts are off: a query may wait for a lock, and the session may be idle between two
    /// queries.
    async fn run(&self, client: &Client) -> Self::Answer {
        let timeouts =
            TimeoutScope::Transaction.disable_with_lock_timeout_sql(self.lock_timeout_millis);
        let begin = format!("{}; {timeouts}", begin_pinned_sql());
        let roll_back = || client.batch_execute("rollback");
        let load_facts = async {
            if !self.is_for_load {
                return None;
            }
            let (free_connections, has_ledger) = tokio::join!(
                biased;
                count_free_connections(client),
                ledger::ledger_exists(client)
            );
            Some(LoadFacts { free_connections, has_ledger })
        };
        let limit_later_waits = self.limits.lock_timeout_sql();
        let (_, session, found, load_facts, ..) = tokio::join!(
            biased;
            client.batch_execute(&begin),
            read_session(client),
            FoundTable::find(client, self.table),
            load_facts,
            roll_back(),
            client.batch_execute(&limit_later_waits)
        );
        let table = match found {
            Ok(Some(found)) if found.is_incomplete() => {
                let (_, table, _) = tokio::join!(
                    biased;
                    client.batch_execute(&begin),
                    found.complete(client),
                    roll_back()
                );
                table.map(Some)
            }
            Ok(Some(found)) => found.complete(client).await.map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        SurveyAnswer { session, table, load_facts }
    }
}

/// Sends the queries again, and waits for locks as long as `--lock-timeout` allows.
async fn query_again(
    client: &Client,
    table: &str,
    limits: &WaitLimits,
    is_for_load: bool,
) -> SurveyAnswer {
    let lock_timeout_millis = limits.lock_timeout_millis();
    let query = SurveyQuery { table, lock_timeout_millis, limits, is_for_load };
    let mut answer = query.run(client).await;
    answer.table = match answer.table {
        Err(error) if is_lock_error(&error) => {
            match TargetTable::find_oid(client, table).await.ok().flatten() {
                Some(table) => Err(hint_lock_holder(client, table, limits, error).await),
                None => Err(error),
            }
        }
        result => result,
    };
    answer
}

/// Returns whether a lock timed out: in the failed statement, or in an earlier statement of its
/// transaction.
pub(crate) fn is_lock_error(error: &Error) -> bool {
    let codes = [SqlState::LOCK_NOT_AVAILABLE, SqlState::IN_FAILED_SQL_TRANSACTION];
    error.sqlstate().is_some_and(|code| codes.contains(code))
}

/// Converts a name from the input's encoding to UTF-8.
async fn decode_name(
    connection: &Connection,
    encoding: Option<&str>,
    name: &[u8],
) -> Result<String> {
    let Some(encoding) = encoding.filter(|_| !name.is_ascii()) else {
        return Ok(String::from_utf8_lossy(name).into_owned());
    };
    let sql = "select convert_from($1, $2)";
    let what = "could not read the names in the header";
    let row = connection.client.fetch_one(sql, &[&name, &encoding]).await;
    let failed = server_error(what.to_owned());
    Ok(row.map_err(|error| hint_encoding_name(failed(error), encoding))?.get(0))
}

/// Returns the table's name: the user's name, or the one that the names of all inputs give.
///
/// # Errors
/// [`ErrorKind::Usage`] if the names of the inputs give different names.
fn table_name(user_name: Option<&str>, inputs: &[Input]) -> Result<String> {
    if let Some(name) = user_name {
        return Ok(name.to_owned());
    }
    let derive = |name| pgspate_target::quote_ident(&infer::table_name(name)).into_owned();
    let first = derive(inputs.first().map_or("data", Input::name));
    let mut others = inputs.iter().map(|input| derive(input.name()));
    match others.find(|other| *other != first) {
        None => Ok(first),
        Some(other) => {
            let message = format!(
                "no table is named, and the names of the sources are those of several tables: \
                 {first}, {other}"
            );
            Err(Error::new(ErrorKind::Usage, message).hint("Name the table with `--table`."))
        }
    }
}

/// Query for the number of free connections, without those that the server reserves for superusers
/// and for members of `pg_use_reserved_connections`.
///
/// Without `pg_read_all_stats`, `backend_type` is NULL for sessions of other roles. These sessions
/// count. The server's own processes have no role.
const FREE_CONNECTIONS_SQL: &str = "\
select current_setting('max_connections')::int8 - count(*)
       - current_setting('superuser_reserved_connections')::int8
       - coalesce(current_setting('reserved_connections', true)::int8, 0)
from pg_stat_activity
where usesysid is not null and coalesce(backend_type, 'client backend') = 'client backend'";

/// Counts the free connections of the server.
async fn count_free_connections(client: &Client) -> Result<i64> {
    let failed = server_error("could not count the server's connections".to_owned());
    Ok(client.fetch_one(FREE_CONNECTIONS_SQL, &[]).await.map_err(failed)?.get(0))
}

/// Returns a table's name for use in SQL, with each part quoted if necessary.
///
/// # Errors
/// [`ErrorKind::Usage`] if `name` is not a name in SQL.
pub(crate) async fn parse_name(connection: &Connection, name: &str) -> Result<String> {
    let sql = "select string_agg(quote_ident(part), '.' order by nth) \
               from unnest(parse_ident($1)) with ordinality as parts(part, nth)";
    let row = connection.client.fetch_one(sql, &[&name]).await;
    Ok(row.map_err(|error| invalid_name_error(server_error(lookup_failure(name))(error)))?.get(0))
}

/// Adds a hint to the server's error about an invalid name.
pub(crate) fn invalid_name_error(error: Error) -> Error {
    let refused = [SqlState::INVALID_NAME, SqlState::INVALID_PARAMETER_VALUE];
    if !error.sqlstate().is_some_and(|code| refused.contains(code)) {
        return error;
    }
    Error::new(ErrorKind::Usage, error.to_string()).because(error).hint(
        "Write the table's name as in SQL. Quote a name that has other characters than letters, \
         digits and _: `--table 'schema.\"the name\"'`.",
    )
}

/// Returns the message for a failed lookup of a table's name.
fn lookup_failure(name: &str) -> String {
    format!("could not look up table {name}")
}

/// Returns the error for a table that does not exist.
pub(crate) fn missing_table_error(name: &str) -> Error {
    Error::new(ErrorKind::Plan, format!("relation {name} does not exist"))
        .with_sqlstate(SqlState::UNDEFINED_TABLE)
}
