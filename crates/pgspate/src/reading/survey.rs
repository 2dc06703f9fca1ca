//! Before rows are read: a look at the inputs, the server and the table at the same time.
//!
//! Nothing is changed. Everything that depends on nothing else is asked at once, with the
//! connection itself: the session, the table, whether there is a ledger.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{InputOrigin, ReadingOptions, SniffedInputs};
use crate::job::OwnSession;
use crate::plan::RowRequest;
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn, Question};
use pgspate_target::session::Limits;
use pgspate_target::{
    Ask, Session, Table, begin_pinned, ledger, read_session, server_error, users,
};

/// What is known before anything is planned.
pub(crate) struct Survey {
    pub(crate) own: OwnSession,
    pub(crate) reading: SniffedInputs,
    pub(crate) session: Session,
    /// The table's name, as the user gave it.
    pub(crate) name: String,
    /// The table, if there is one.
    pub(crate) table: Option<Table>,
    /// What was asked for, with the encoding that the environment names where nothing else does.
    pub(crate) rows: RowRequest,
    /// Connections that the server has left.
    pub(crate) free_connections: Result<i64>,
    pub(crate) has_ledger: Result<bool>,
}

impl Survey {
    /// Looks at the inputs of `options` and at a table. Blocks.
    ///
    /// # Errors
    /// Inputs that cannot be read or understood, a server that cannot be reached, or a table that
    /// is none to write to.
    pub(crate) fn take(
        options: &ReadingOptions,
        table: Option<&str>,
        limits: Limits,
        dsn: Dsn,
        runtime: &Handle,
    ) -> Result<Survey> {
        let dsn = dsn.with_stall_timeout(limits.stall_timeout);
        let inputs = match &options.origin {
            InputOrigin::Batches(own) => {
                vec![Input::memory(own.name(), own.bytes(), own.is_stream())]
            }
            InputOrigin::Stream(stream) => vec![stream.clone()],
            InputOrigin::Sources(all) => source::resolve(all, &options.source, runtime.clone())?,
        };
        let name = table_name(table, &inputs);
        let first = SurveyQuestion { table: &name, lock_timeout: HARDLY };
        let asked = runtime.block_on(dsn.connect_asking("pgspate load", &first));
        let (connection, mut answers) = asked?;
        if answers.1.as_ref().is_err_and(is_locked) {
            answers = runtime.block_on(ask_with_patience(&connection.client, &name, &limits));
        }
        let (session, table, free_connections, has_ledger) = answers;
        let (session, table) = (session?, table.map_err(not_a_name)?);
        table.as_ref().map_or(Ok(()), Table::check_schema)?;
        let names = |it: &Table| it.columns.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        let known = table.as_ref().map(names);
        let encoding = options.rows.encoding.as_deref().or(dsn.client_encoding());
        let decode = |name: &[u8]| runtime.block_on(decode(&connection, encoding, name));
        let reading = SniffedInputs::of(inputs, known.as_deref(), options, &decode)?;
        let mut rows = options.rows.clone();
        if reading.facts().is_delimited {
            // PGCLIENTENCODING tells of text that names no other encoding.
            rows.encoding = encoding.map(str::to_owned);
        }
        let (runtime, connection) = (runtime.clone(), connection.into());
        let own = OwnSession { dsn, runtime, connection, limits, was_away: false };
        Ok(Survey { own, reading, session, name, table, rows, free_connections, has_ledger })
    }
}

/// Adds to an error about a lock who held it.
pub(crate) async fn name_user(
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

/// What is asked first.
struct SurveyQuestion<'a> {
    table: &'a str,
    /// How long locks are waited for, as SQL takes it.
    lock_timeout: &'a str,
}

/// To look a table up takes locks on its partitions, but what is asked first is part of connecting,
/// which has a limit of its own.
const HARDLY: &str = "'100ms'";

impl Question for SurveyQuestion<'_> {
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
) -> <SurveyQuestion<'static> as Question>::Answer {
    let lock_timeout = limits.lock_timeout_millis().to_string();
    let mut answers = SurveyQuestion { table, lock_timeout: &lock_timeout }.ask(client).await;
    answers.1 = match answers.1 {
        Err(error) if is_locked(&error) => {
            let table = Table::find_oid(client, table).await.ok().flatten();
            Err(name_user(client, table, limits.lock_timeout, error).await)
        }
        found => found,
    };
    answers
}

/// Whether somebody else held a lock for too long, now or in the same transaction before.
pub(crate) fn is_locked(error: &Error) -> bool {
    let codes = [SqlState::LOCK_NOT_AVAILABLE, SqlState::IN_FAILED_SQL_TRANSACTION];
    error.sqlstate().is_some_and(|code| codes.contains(code))
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

/// The table that is named, or one that is named after the first input.
fn table_name(given: Option<&str>, inputs: &[Input]) -> String {
    let derived = || {
        let first = inputs.first().map_or("data", Input::name);
        pgspate_target::quote_ident(&crate::format::infer::table_name(first)).into_owned()
    };
    given.map_or_else(derived, str::to_owned)
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

/// The name as SQL reads it, each part quoted where it has to be, so that it can stand in a
/// statement.
pub(crate) async fn parse_name(connection: &Connection, name: &str) -> Result<String> {
    let sql = "select string_agg(quote_ident(part), '.' order by nth) \
               from unnest(parse_ident($1)) with ordinality as parts(part, nth)";
    let row = connection.client.ask_one(sql, &[&name]).await;
    Ok(row.map_err(|error| not_a_name(server_error(unreadable(name))(error)))?.get(0))
}

/// For a name that the server cannot read: a hint how to write it.
pub(crate) fn not_a_name(error: Error) -> Error {
    let refused = [SqlState::INVALID_NAME, SqlState::INVALID_PARAMETER_VALUE];
    if !error.sqlstate().is_some_and(|code| refused.contains(code)) {
        return error;
    }
    Error::new(ErrorKind::Usage, error.to_string()).because(error).hint(
        "Write the table as SQL does, with quotes around a name with other characters than \
         letters, digits and _: `--table 'schema.\"the name\"'`.",
    )
}

fn unreadable(name: &str) -> String {
    format!("could not look up table {name}")
}

/// For a table that is not there.
pub(crate) fn missing(name: &str) -> Error {
    Error::new(ErrorKind::Plan, format!("relation {name} does not exist"))
        .with_sqlstate(SqlState::UNDEFINED_TABLE)
}
