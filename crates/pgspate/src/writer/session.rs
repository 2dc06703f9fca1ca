//! A lane's session, and the three ways in which it writes units.

use std::collections::HashMap;

use tokio_postgres::types::{Kind as TypeKind, ToSql};
use tokio_postgres::{Row, Statement};

use super::rows::{FieldParameter, RecordArray};
use super::shape::InsertShape;
use super::unit::{InsertOutcome, Unit};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::{TypedQuery, send_in_order, server_error, users_path_sql};

/// The most shapes whose statements a session keeps.
const SHAPES_MAX: usize = 200;

/// Commits of the session wait for the disk, whatever the role's default is.
const COMMIT_DURABLY: &str = "\
select pg_catalog.set_config('synchronous_commit', 'on', false)
where pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.=) 'off'";

/// Why units were not written.
pub(super) enum WriteFailure {
    /// Their statement was not sent, so they were certainly not written.
    Unsent(Error),
    /// Their statement was sent. If the session was lost, they may have been written.
    Sent(Error),
}

/// A session that writes units.
pub(super) struct RecordSession {
    connection: Connection,
    /// The prepared statements, by the shape's number.
    prepared: HashMap<u64, PreparedShape>,
    /// The statement by which commits wait for the disk again, and that waits for all before it.
    flush_sql: String,
}

#[derive(Default, Clone)]
struct PreparedShape {
    single: Option<Statement>,
    /// The statement for many records, and the OID of the table's row type.
    set: Option<(Statement, u32)>,
}

impl RecordSession {
    /// Opens a session. A statement that waits longer than `lock_timeout` (in milliseconds; 0 is
    /// without limit) for a lock fails.
    pub(super) async fn open(dsn: &Dsn, lock_timeout: i32) -> Result<RecordSession> {
        let connection = dsn.connect("pgspate write").await?;
        let client = &connection.client;
        let settings = format!(
            "{COMMIT_DURABLY}; {}; set lock_timeout = {lock_timeout}; \
             set plan_cache_mode = force_generic_plan; \
             select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings \
             where name operator(pg_catalog.=) any (array['idle_session_timeout'])",
            users_path_sql(false)
        );
        let failed = || server_error("could not prepare a session to write records".to_owned());
        client.batch_execute(&settings).await.map_err(failed())?;
        let asked = "select pg_catalog.current_setting('synchronous_commit')";
        let level: String = client.fetch_one(asked, &[]).await.map_err(failed())?.get(0);
        // WAL is one sequence. So a commit that waits for the disk waits for all commits before it,
        // if it writes WAL itself.
        let flush_sql = format!(
            "set synchronous_commit = {level}; \
             select pg_catalog.pg_logical_emit_message(true, 'pgspate', '')"
        );
        Ok(RecordSession { connection, prepared: HashMap::new(), flush_sql })
    }

    /// Returns whether the session has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Ends the session properly.
    pub(super) async fn close(self) {
        self.connection.close().await;
    }

    /// Writes units by one statement, which commits. All of them are written, or none.
    pub(super) async fn write_set(
        &mut self,
        units: &[Unit],
    ) -> Result<Vec<InsertOutcome>, WriteFailure> {
        let Some(first) = units.first() else { return Ok(Vec::new()) };
        let prepared = self.prepare_set(&first.shape).await;
        let (statement, element) = prepared.map_err(WriteFailure::Unsent)?;
        let rows = units.iter().map(|unit| &unit.rows);
        let array = RecordArray::new(&first.shape, element, rows);
        let parameters: [&(dyn ToSql + Sync); 1] = [&array];
        let written = self.run(&first.shape, &statement, &parameters).await;
        let written = written.map_err(WriteFailure::Sent)?;
        let rows: usize = units.iter().map(|unit| unit.rows.len()).sum();
        if units.len() > 1 && written.rows != rows as u64 {
            let message = format!("{} of {rows} records were written", written.rows);
            return Err(WriteFailure::Sent(Error::new(ErrorKind::OutcomeUnknown, message)));
        }
        if let [_] = units {
            return Ok(vec![written]);
        }
        // The server returns the rows in the order in which it has read them from the array.
        let mut returned = written.returned.into_iter();
        let outcome = |unit: &Unit| InsertOutcome {
            rows: unit.rows.len() as u64,
            returned: returned.by_ref().take(unit.rows.len()).collect(),
        };
        Ok(units.iter().map(outcome).collect())
    }

    /// Writes each unit by a statement of its own, which commits. All statements are sent before the
    /// first answer arrives, and one flush to the disk serves all their commits.
    ///
    /// # Errors
    /// If the statements cannot be prepared. Then nothing was sent.
    pub(super) async fn write_each(
        &mut self,
        units: &[Unit],
    ) -> Result<Vec<Result<InsertOutcome>>> {
        let statements = self.prepare_each(units).await?;
        Ok(self.run_each(units, &statements).await)
    }

    async fn prepare_each(&mut self, units: &[Unit]) -> Result<Vec<(Statement, Option<u32>)>> {
        let mut statements = Vec::with_capacity(units.len());
        for unit in units {
            statements.push(match unit.rows.len() {
                1 => (self.prepare_single(&unit.shape).await?, None),
                _ => {
                    let (statement, element) = self.prepare_set(&unit.shape).await?;
                    (statement, Some(element))
                }
            });
        }
        Ok(statements)
    }

    async fn run_each(
        &self,
        units: &[Unit],
        statements: &[(Statement, Option<u32>)],
    ) -> Vec<Result<InsertOutcome>> {
        let client = &self.connection.client;
        // A crash would lose commits that no flush has reached on one node and not on another.
        let flushes_once = units.len() > 1 && !units.iter().any(|it| it.shape.commits_across_nodes);
        let run_unit = async |(unit, (statement, element)): (&Unit, &(Statement, Option<u32>))| {
            let shape = &unit.shape;
            if let Some(element) = element {
                let array = RecordArray::new(shape, *element, std::iter::once(&unit.rows));
                return self.run(shape, statement, &[&array]).await;
            }
            let parameters = unit.rows.parameters(shape.column_count());
            let fields: &[FieldParameter<'_>] = parameters.first().map_or(&[], |row| row);
            let fields: Vec<&(dyn ToSql + Sync)> =
                fields.iter().map(|field| field as &(dyn ToSql + Sync)).collect();
            self.run(shape, statement, &fields).await
        };
        let writes = units.iter().zip(statements).map(run_unit);
        if !flushes_once {
            return send_in_order(writes).await;
        }
        let failed = |error| self.connection.explain("could not flush the records", error);
        let (begun, answers, flushed) = tokio::join!(
            biased;
            client.batch_execute("set synchronous_commit = off"),
            send_in_order(writes),
            client.batch_execute(&self.flush_sql)
        );
        match begun.and(flushed).map_err(failed) {
            Ok(()) => answers,
            // The disk may lack the commits, so nobody may rely on them.
            Err(lost) => {
                let lost = Error::new(ErrorKind::Connect, lost.messages().join(": "));
                let answer = |answer: Result<_>| answer.and_then(|_| Err(copy_error(&lost)));
                answers.into_iter().map(answer).collect()
            }
        }
    }

    /// Writes the records of a unit by a statement each, in one transaction.
    ///
    /// # Errors
    /// If the statement cannot be prepared. Then nothing was sent.
    pub(super) async fn write_transaction(
        &mut self,
        unit: &Unit,
    ) -> Result<Result<InsertOutcome>> {
        let statement = self.prepare_single(&unit.shape).await?;
        Ok(self.run_transaction(unit, &statement).await)
    }

    async fn run_transaction(&self, unit: &Unit, statement: &Statement) -> Result<InsertOutcome> {
        let shape = &unit.shape;
        let parameters = unit.rows.parameters(shape.column_count());
        let run_row = async |fields: &Vec<FieldParameter<'_>>| {
            let fields: Vec<&(dyn ToSql + Sync)> =
                fields.iter().map(|field| field as &(dyn ToSql + Sync)).collect();
            self.run(shape, statement, &fields).await
        };
        let client = &self.connection.client;
        let failed = |error| self.connection.explain("could not commit the records", error);
        client.batch_execute("begin").await.map_err(failed)?;
        // The server skips what follows a refused record, and the commit rolls back.
        let answers = send_in_order(parameters.iter().map(run_row)).await;
        let commit = client.batch_execute("commit").await;
        let mut outcome = InsertOutcome::default();
        for answer in answers {
            let written = answer?;
            outcome.rows += written.rows;
            outcome.returned.extend(written.returned);
        }
        commit.map_err(failed)?;
        Ok(outcome)
    }

    /// Runs a statement of a shape.
    async fn run(
        &self,
        shape: &InsertShape,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<InsertOutcome> {
        let client = &self.connection.client;
        let outcome = match shape.returns_rows {
            false => client.execute(statement, parameters).await.map(|rows| InsertOutcome {
                rows,
                returned: Vec::new(),
            }),
            true => client.query(statement, parameters).await.map(|rows| InsertOutcome {
                rows: rows.len() as u64,
                returned: rows.iter().map(|row: &Row| row.get(0)).collect(),
            }),
        };
        outcome.map_err(|error| self.explain(shape, error))
    }

    fn explain(&self, shape: &InsertShape, error: tokio_postgres::Error) -> Error {
        let table = &shape.request.table;
        self.connection.explain(format!("could not write to {table}"), error)
    }

    async fn prepare_single(&mut self, shape: &InsertShape) -> Result<Statement> {
        if let Some(single) = self.prepared.get(&shape.id).and_then(|it| it.single.clone()) {
            return Ok(single);
        }
        let prepared = self.connection.client.prepare(&shape.single_sql).await;
        let statement = prepared.map_err(|error| self.explain(shape, error))?;
        self.of_shape(shape).single = Some(statement.clone());
        Ok(statement)
    }

    async fn prepare_set(&mut self, shape: &InsertShape) -> Result<(Statement, u32)> {
        if let Some(set) = self.prepared.get(&shape.id).and_then(|it| it.set.clone()) {
            return Ok(set);
        }
        let sql = shape.set_sql.as_deref().unwrap_or_default();
        let prepared = self.connection.client.prepare(sql).await;
        let statement = prepared.map_err(|error| self.explain(shape, error))?;
        let element = statement.params().first().and_then(|ty| match ty.kind() {
            TypeKind::Array(element) => Some(element.oid()),
            _ => None,
        });
        let element = element.ok_or_else(|| {
            Error::new(ErrorKind::Bug, "the parameter of a set is not an array of rows")
        })?;
        self.of_shape(shape).set = Some((statement.clone(), element));
        Ok((statement, element))
    }

    fn of_shape(&mut self, shape: &InsertShape) -> &mut PreparedShape {
        if self.prepared.len() >= SHAPES_MAX {
            // The statements are closed when they are dropped.
            self.prepared.clear();
        }
        self.prepared.entry(shape.id).or_default()
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
