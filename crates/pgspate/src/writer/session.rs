//! A lane's session, and the three ways in which it writes units.

use std::collections::{HashMap, HashSet};

use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::core::WriterCore;
use super::rows::{ColumnArray, FieldParameter};
use super::shape::{InsertShape, StatementKind};
use super::unit::{InsertOutcome, WriteUnit};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{find_request, join_record_writers, record_written_request_sql};
use pgspate_target::{
    COMMITS_WAIT, ServerRefusal, TypedParameter, TypedQuery, send_in_order, server_error,
    users_path_sql,
};

/// The most prepared statements of a session.
const STATEMENTS_MAX: usize = 500;

/// Why units were not written.
pub(super) enum WriteFailure {
    /// Their statement was not sent, so they were certainly not written.
    Unsent(Error),
    /// Their statement was sent. If the session was lost, they may have been written.
    Sent(Error),
}

/// How durable the session's commits are, and whether the role may write a message into the WAL.
const DURABILITY: &str = "\
select pg_catalog.current_setting('synchronous_commit'),
       (select coalesce(pg_catalog.bool_and(pg_catalog.has_function_privilege(oid, 'execute')),
                        false)
        from pg_catalog.pg_proc
        where proname operator(pg_catalog.=) 'pg_logical_emit_message'
          and pronamespace operator(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace)";

/// How long the statements of a pipeline may wait for locks in total, in milliseconds, though each
/// may wait for one. The answers of all arrive at its end.
const PIPELINE_LOCK_WAIT: usize = 200;

/// The errors that say that another row has the record's key.
const KEY_EXISTS: [SqlState; 2] = [SqlState::UNIQUE_VIOLATION, SqlState::EXCLUSION_VIOLATION];

/// A session that writes units.
pub(super) struct RecordSession {
    connection: Connection,
    /// The prepared statements, by the shape's number and their kind.
    prepared: HashMap<(u64, StatementKind), Statement>,
    /// The schemas and names of the tables whose keys no load drops while this session is open.
    joined: HashSet<(String, String)>,
    /// The statement by which commits wait for the disk again, and that waits for all before it.
    /// `None` if the role may not run it.
    flush_sql: Option<String>,
    /// The session's `lock_timeout`, in milliseconds.
    lock_timeout: i32,
    /// Whether the session's commits may no longer wait for the disk.
    is_unsafe: bool,
}

impl RecordSession {
    /// Opens a session. A statement that waits longer than `lock_timeout` (in milliseconds; 0 is
    /// without limit) for a lock fails.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`], whatever the reason: no record is at fault.
    pub(super) async fn open(core: &WriterCore, lock_timeout: i32) -> Result<RecordSession> {
        RecordSession::try_open(core, lock_timeout).await.map_err(|error| connect_error(&error))
    }

    async fn try_open(core: &WriterCore, lock_timeout: i32) -> Result<RecordSession> {
        let connection = core.dsn.connect("pgspate write").await?;
        let client = &connection.client;
        let settings = format!(
            "{COMMITS_WAIT}; {}; {}; set lock_timeout = {lock_timeout}; \
             set plan_cache_mode = force_generic_plan; \
             select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings \
             where name operator(pg_catalog.=) 'idle_session_timeout'",
            core.value_settings,
            users_path_sql(false)
        );
        let failed = || server_error("could not prepare a session to write records".to_owned());
        client.batch_execute(&settings).await.map_err(failed())?;
        let row = client.fetch_one(DURABILITY, &[]).await.map_err(failed())?;
        let (level, may_flush): (String, bool) = (row.get(0), row.get(1));
        // WAL is one sequence. So a commit that waits for the disk waits for all commits before it,
        // if it writes WAL itself.
        let flush_sql = format!(
            "set synchronous_commit = {level}; \
             select pg_catalog.pg_logical_emit_message(true, 'pgspate', '')"
        );
        let flush_sql = may_flush.then_some(flush_sql);
        let (prepared, joined) = (HashMap::new(), HashSet::new());
        let is_unsafe = false;
        Ok(RecordSession { connection, prepared, joined, flush_sql, lock_timeout, is_unsafe })
    }

    /// Returns whether the session has ended, or must not be used any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_unsafe || self.connection.is_closed()
    }

    /// Ends the session properly.
    pub(super) async fn close(self) {
        self.connection.close().await;
    }

    /// Changes how long a statement waits for a lock: `millis`, or without limit if that is 0.
    pub(super) async fn limit_lock_wait(&mut self, millis: i32) -> Result<()> {
        self.lock_timeout = millis;
        let set = format!("set lock_timeout = {millis}");
        let failed = server_error("could not change lock_timeout".to_owned());
        self.connection.client.batch_execute(&set).await.map_err(failed)
    }

    /// Writes several units by one statement, which commits. All of them are written, or none.
    pub(super) async fn write_set(
        &mut self,
        units: &[WriteUnit],
    ) -> Result<Vec<InsertOutcome>, WriteFailure> {
        let Some(first) = units.first() else { return Ok(Vec::new()) };
        let prepared = self.prepare(&first.shape, SET).await.map_err(WriteFailure::Unsent)?;
        let rows = units.iter().map(|unit| &unit.rows);
        let arrays = ColumnArray::of_calls(&first.shape, rows);
        let written = self.run(&first.shape, &prepared, &as_parameters(&arrays)).await;
        let written = written.map_err(WriteFailure::Sent)?;
        let rows: usize = units.iter().map(|unit| unit.rows.len()).sum();
        if written.rows != rows as u64 {
            let message = format!("{} of {rows} records were written", written.rows);
            return Err(WriteFailure::Sent(Error::new(ErrorKind::OutcomeUnknown, message)));
        }
        // The server returns the rows in the order in which it has read them from the arrays.
        let mut returned = written.returned.into_iter();
        let outcome = |unit: &WriteUnit| InsertOutcome {
            rows: unit.rows.len() as u64,
            returned: returned.by_ref().take(unit.rows.len()).collect(),
            is_repeat: false,
        };
        Ok(units.iter().map(outcome).collect())
    }

    /// Writes each unit by a statement of its own, which commits. All statements are sent before
    /// the first answer arrives, and one flush to the disk serves all their commits.
    ///
    /// # Errors
    /// If the statements cannot be prepared. Then nothing was sent.
    pub(super) async fn write_each(
        &mut self,
        units: &[WriteUnit],
    ) -> Result<Vec<Result<InsertOutcome>>> {
        let statements = self.prepare_each(units).await?;
        let answers = self.run_each(units, &statements).await;
        Ok(self.confirm(units, answers).await)
    }

    async fn prepare_each(&mut self, units: &[WriteUnit]) -> Result<Vec<Statement>> {
        let mut statements = Vec::with_capacity(units.len());
        for unit in units {
            let kind =
                StatementKind { takes_rows: unit.rows.len() > 1, records_key: unit.key.is_some() };
            statements.push(self.prepare(&unit.shape, kind).await?);
        }
        Ok(statements)
    }

    async fn run_each(
        &mut self,
        units: &[WriteUnit],
        statements: &[Statement],
    ) -> Vec<Result<InsertOutcome>> {
        // A crash would lose commits that no flush has reached on one node and not on another.
        let spans_nodes = units.iter().any(|it| it.shape.commits_across_nodes);
        let flush = self.flush_sql.clone().filter(|_| units.len() > 1 && !spans_nodes);
        let writes = units.iter().zip(statements).map(|(unit, it)| self.run_unit(unit, it));
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        if let Some(timeout) = self.pipeline_lock_timeout(units.len()) {
            begin.push(format!("set lock_timeout = {timeout}"));
            end.push(format!("set lock_timeout = {}", self.lock_timeout));
        }
        if let Some(flush) = flush {
            begin.push("set synchronous_commit = off".to_owned());
            end.push(flush);
        }
        if begin.is_empty() {
            return send_in_order(writes).await;
        }
        let (client, begin, end) = (&self.connection.client, begin.join("; "), end.join("; "));
        let (begun, answers, ended) = tokio::join!(
            biased;
            client.batch_execute(&begin),
            send_in_order(writes),
            client.batch_execute(&end)
        );
        match begun.and(ended) {
            Ok(()) => answers,
            Err(error) => self.distrust(answers, error),
        }
    }

    /// Returns the `lock_timeout` of a pipeline, if the session's own is too long for it.
    fn pipeline_lock_timeout(&self, units: usize) -> Option<i32> {
        let share = i32::try_from(PIPELINE_LOCK_WAIT / units.max(1)).unwrap_or(i32::MAX).max(1);
        (units > 1 && share < self.lock_timeout).then_some(share)
    }

    /// Returns answers whose commits the disk may lack, so no caller may rely on them.
    fn distrust(
        &mut self,
        answers: Vec<Result<InsertOutcome>>,
        error: tokio_postgres::Error,
    ) -> Vec<Result<InsertOutcome>> {
        self.is_unsafe = true;
        let lost = self.explain("could not flush the records", error);
        let lost = Error::new(ErrorKind::Connect, lost.messages().join(": "));
        let answer = |answer: Result<_>| match answer {
            Err(error) if !error.sqlstate().is_some_and(|it| KEY_EXISTS.contains(it)) => Err(error),
            _ => Err(copy_error(&lost)),
        };
        answers.into_iter().map(answer).collect()
    }

    /// Looks up the keys of refused calls. Where an answer rests on rows of another session, whose
    /// commit the disk may lack, waits for that commit.
    async fn confirm(
        &mut self,
        units: &[WriteUnit],
        answers: Vec<Result<InsertOutcome>>,
    ) -> Vec<Result<InsertOutcome>> {
        let mut confirmed = Vec::with_capacity(answers.len());
        let mut rests_on_others = false;
        for (unit, answer) in units.iter().zip(answers) {
            let was_refused = answer.is_err();
            let answer = self.look_up_key(unit, answer).await;
            let is_ignored = |it: &InsertOutcome| it.rows < unit.rows.len() as u64;
            rests_on_others |= match &answer {
                Ok(outcome) => was_refused || is_ignored(outcome),
                Err(error) => error.sqlstate().is_some_and(|it| KEY_EXISTS.contains(it)),
            };
            confirmed.push(answer);
        }
        let Some(flush) = self.flush_sql.as_ref().filter(|_| rests_on_others) else {
            return confirmed;
        };
        match self.connection.client.batch_execute(flush).await {
            Ok(()) => confirmed,
            Err(error) => self.distrust(confirmed, error),
        }
    }

    /// Writes a unit by its own statement.
    async fn run_unit(&self, unit: &WriteUnit, statement: &Statement) -> Result<InsertOutcome> {
        let (arrays, fields);
        let mut parameters = if unit.rows.len() > 1 {
            arrays = ColumnArray::of_calls(&unit.shape, std::iter::once(&unit.rows));
            as_parameters(&arrays)
        } else {
            fields = unit.rows.parameters(unit.shape.column_count());
            fields.first().map_or(Vec::new(), |row| as_parameters(row))
        };
        let Some(key) = &unit.key else {
            return self.run(&unit.shape, statement, &parameters).await;
        };
        parameters.extend([&key.key as &(dyn ToSql + Sync), &key.fingerprint]);
        let recorded = self.connection.client.query_one(statement, &parameters).await;
        let row = recorded.map_err(|error| self.explain_write(&unit.shape, error))?;
        let rows = row.get::<_, i64>(0).unsigned_abs();
        Ok(InsertOutcome { rows, returned: row.get(1), is_repeat: false })
    }

    /// Returns the answer of a call with a known key. Such a call is refused for its key, or for
    /// its records, which exist already.
    async fn look_up_key(
        &self,
        unit: &WriteUnit,
        answer: Result<InsertOutcome>,
    ) -> Result<InsertOutcome> {
        let (Some(key), Err(error)) = (&unit.key, &answer) else { return answer };
        if error.kind() != ErrorKind::Server {
            return answer;
        }
        let Some(known) = find_request(&self.connection.client, &key.key).await? else {
            return answer;
        };
        if known.fingerprint != key.fingerprint {
            let message = "the idempotency key was used for another table, other records or other \
                           returned columns";
            return Err(Error::new(ErrorKind::KeyReused, message)
                .hint("Send each call that writes or returns something else with its own key."));
        }
        let rows = known.rows.unsigned_abs();
        Ok(InsertOutcome { rows, returned: known.answer, is_repeat: true })
    }

    /// Writes the records of a unit by a statement each, in one transaction.
    ///
    /// # Errors
    /// If the statement cannot be prepared. Then nothing was sent.
    pub(super) async fn write_transaction(
        &mut self,
        unit: &WriteUnit,
    ) -> Result<Result<InsertOutcome>> {
        let prepared = self.prepare(&unit.shape, SINGLE).await?;
        let answer = self.run_transaction(unit, &prepared).await;
        let mut answers = self.confirm(std::slice::from_ref(unit), vec![answer]).await;
        let missing = || Err(Error::new(ErrorKind::Bug, "a transaction has no answer"));
        Ok(answers.pop().unwrap_or_else(missing))
    }

    async fn run_transaction(
        &self,
        unit: &WriteUnit,
        statement: &Statement,
    ) -> Result<InsertOutcome> {
        let shape = &unit.shape;
        let client = &self.connection.client;
        let failed = |error| self.explain_write(shape, error);
        let rows = unit.rows.parameters(shape.column_count());
        let run_row = async |fields: &Vec<FieldParameter<'_>>| {
            self.run(shape, statement, &as_parameters(fields)).await
        };
        let answers = async {
            client.batch_execute("begin").await.map_err(failed)?;
            // The server skips what follows a refused record.
            let mut outcome = InsertOutcome::default();
            for answer in send_in_order(rows.iter().map(run_row)).await {
                let written = answer?;
                outcome.rows += written.rows;
                outcome.returned.extend(written.returned);
            }
            if let Some(key) = &unit.key {
                let rows = outcome.rows.cast_signed();
                let parameters: [&dyn TypedParameter; 4] =
                    [&key.key, &key.fingerprint, &rows, &outcome.returned];
                let record = record_written_request_sql(shape.keep_keys);
                client.run_statement(&record, &parameters).await.map_err(failed)?;
            }
            Ok(outcome)
        };
        let outcome = match answers.await {
            Ok(outcome) => client.batch_execute("commit").await.map(|()| outcome).map_err(failed),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            // A COMMIT that was cancelled before it ran leaves the transaction open, too. If the
            // connection is lost, the next statement fails.
            let _ = client.batch_execute("rollback").await;
        }
        outcome
    }

    /// Runs a statement of a shape.
    async fn run(
        &self,
        shape: &InsertShape,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<InsertOutcome> {
        let client = &self.connection.client;
        let outcome = match shape.returns_rows() {
            false => client
                .execute(statement, parameters)
                .await
                .map(|rows| InsertOutcome { rows, ..InsertOutcome::default() }),
            true => client.query(statement, parameters).await.map(|rows| InsertOutcome {
                rows: rows.len() as u64,
                returned: rows.iter().map(|row: &Row| row.get(0)).collect(),
                is_repeat: false,
            }),
        };
        outcome.map_err(|error| self.explain_write(shape, error))
    }

    /// Converts an error of a statement. An error that ends the session leaves the outcome open:
    /// its commit may be replayed after a crash. Any other error is the server's refusal.
    fn explain(&self, message: &str, error: tokio_postgres::Error) -> Error {
        match error.as_db_error() {
            Some(refusal) if refusal.parsed_severity() == Some(Severity::Error) => {
                Error::new(ErrorKind::Server, message)
                    .hint_if(refusal.hint())
                    .because(ServerRefusal::new(refusal))
            }
            Some(refusal) => {
                let reason = Error::new(ErrorKind::Connect, refusal.message().to_owned());
                Error::new(ErrorKind::Connect, message).because(reason)
            }
            None => self.connection.explain(message, error),
        }
    }

    /// Converts an error of a shape's statement.
    fn explain_write(&self, shape: &InsertShape, error: tokio_postgres::Error) -> Error {
        if error.as_db_error().is_some_and(InsertShape::is_refused_for_types) {
            return shape.outdated_error();
        }
        self.explain(&format!("could not write to {}", shape.request.table), error)
    }

    /// Returns a statement of a shape, prepared in this session. Without the table's keys, the
    /// statement would write duplicates.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] with SQLSTATE 55006 if a load has dropped keys of the table.
    async fn prepare(&mut self, shape: &InsertShape, kind: StatementKind) -> Result<Statement> {
        if let Some(prepared) = self.prepared.get(&(shape.id, kind)) {
            return Ok(prepared.clone());
        }
        if !self.joined.contains(&shape.table_name) {
            let (schema, table) = &shape.table_name;
            join_record_writers(&self.connection.client, schema, table).await?;
            self.joined.insert(shape.table_name.clone());
        }
        // With the types that the values were encoded for. If the table has others by now, the
        // server refuses the statement.
        let types = shape.parameter_types(kind);
        let prepared = self.connection.client.prepare_typed(&shape.sql(kind), &types).await;
        let statement = prepared.map_err(|error| self.explain_write(shape, error))?;
        if self.prepared.len() >= STATEMENTS_MAX {
            // The statements are closed when they are dropped.
            self.prepared.clear();
        }
        self.prepared.insert((shape.id, kind), statement.clone());
        Ok(statement)
    }
}

/// The statement for one record.
const SINGLE: StatementKind = StatementKind { takes_rows: false, records_key: false };
/// The statement for the records of several calls.
const SET: StatementKind = StatementKind { takes_rows: true, records_key: false };

fn as_parameters<T: ToSql + Sync>(values: &[T]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

/// Returns the error of a session that could not be opened. Settings and TLS may be the reason, but
/// the caller's records are not.
pub(super) fn connect_error(error: &Error) -> Error {
    let kind = ErrorKind::Connect;
    let lost = Error::new(kind, error.to_string())
        .with_sqlstate(error.sqlstate().cloned())
        .hint_if(error.hint_text());
    match error.messages().get(1..) {
        Some(causes) if !causes.is_empty() => lost.because(Error::new(kind, causes.join(": "))),
        _ => lost,
    }
}

/// Returns an equal error for one more caller.
pub(super) fn copy_error(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.to_string())
        .with_sqlstate(error.sqlstate().cloned())
        .hint_if(error.hint_text());
    match error.refusal() {
        Some(refusal) => copy.because(refusal.clone()),
        None => match error.messages().get(1..) {
            Some(causes) if !causes.is_empty() => {
                copy.because(Error::new(error.kind(), causes.join(": ")))
            }
            _ => copy,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::error::SqlState;

    #[test]
    fn a_session_that_cannot_be_opened_is_an_error_of_the_connection() {
        let refused = SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
        for code in [None, Some(refused)] {
            let cause = Error::new(ErrorKind::Usage, "server does not support TLS");
            let error = Error::new(ErrorKind::Usage, "could not connect")
                .with_sqlstate(code.clone())
                .hint("Switch on `ssl`.")
                .because(cause);
            let lost = connect_error(&error);
            assert_eq!((lost.kind(), lost.sqlstate()), (ErrorKind::Connect, code.as_ref()));
            assert_eq!(lost.messages(), error.messages());
            assert_eq!(lost.hint_text(), error.hint_text());
        }
    }
}
