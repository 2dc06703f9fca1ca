//! `--add-columns`: adds the columns of the input that the table lacks.
//!
//! The plan has the columns already, as if they were in the table. They are added in a transaction
//! of their own before the first row is sent. They stay if the load fails: another session may have
//! written to them.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::create;
use crate::copy::CopyProgress;
use crate::job::RetryAfterConnectionLoss;
use crate::plan::RowRequest;
use crate::reading::{SniffedInputs, is_lock_error};
use crate::{Error, ErrorKind, Result};
use pgspate_base::is_alike;
use pgspate_target::connect::Connection;
use pgspate_target::session::WaitLimits;
use pgspate_target::{
    TableLocks, TargetColumn, TargetTable, TypedQuery, locking_sessions, quote_ident, server_error,
    under_users_path_sql,
};

/// Lock timeout of one attempt. Other sessions queue behind the lock request for this time.
const LOCK_ATTEMPT: &str = "2s";
/// Pause between two attempts, in which other sessions get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(500);

/// Whether the role may alter the table, the table's owner, the role, and the partitioned table of
/// which the table is a partition. Then whether the role may run LOCK TABLE on it, and whether the
/// owner is a superuser.
const OWNER_SQL: &str = "\
select pg_has_role(c.relowner, 'usage'), quote_ident(pg_get_userbyid(c.relowner)),
       quote_ident(current_user),
       (select i.inhparent::regclass::text from pg_inherits i
        where i.inhrelid = c.oid and c.relispartition),
       c.relkind in ('r', 'p') and has_table_privilege(c.oid, 'update, delete, truncate'),
       (select rolsuper from pg_roles where oid = c.relowner)
from pg_class c where c.oid = $1";

/// A column that was added to the table.
#[derive(Debug, Clone, Serialize)]
pub struct AddedColumn {
    /// The column's name, unquoted.
    pub name: String,
    /// The column's type.
    #[serde(rename = "type")]
    pub ty: String,
}

/// Refuses `serial`, `smallserial` and `bigserial`: the rows before would get numbers, too, and the
/// column would be added without its sequence.
fn check_has_no_sequence(column: &AddedColumn, described: &TargetColumn) -> Result<()> {
    let default = described.default.as_deref().unwrap_or_default();
    if !(described.not_null && default.starts_with("nextval(")) {
        return Ok(());
    }
    let AddedColumn { name, ty } = column;
    let message = format!("`--add-columns` cannot add a column of type {ty}, which numbers rows");
    Err(Error::new(ErrorKind::Usage, message).hint(format!(
        "Give the type of the numbers: `--type {name}={}`. Or add the column by hand before the \
         load.",
        described.ty.name
    )))
}

/// The columns that are to be added to a table.
#[derive(Debug, Clone)]
pub(crate) struct ColumnsToAdd {
    table: String,
    table_oid: u32,
    /// Whether LOCK TABLE is allowed. It does not lock foreign tables, and needs more than ALTER.
    is_lockable: bool,
    pub(crate) columns: Vec<AddedColumn>,
    /// The columns whose types the user has chosen.
    typed_columns: Vec<String>,
}

impl ColumnsToAdd {
    /// Finds the columns that the table lacks, if the user wants them to be added. `types` are the
    /// types that the user has chosen. Adds the columns to `table`, and the names of those whose
    /// types are guessed to `request`. Changes nothing on the server.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the options contradict each other, or if a type is not a type.
    /// [`ErrorKind::Plan`] if the role may not add columns, or if the table is a partition.
    pub(crate) async fn plan(
        connection: &Connection,
        table: &mut TargetTable,
        reading: &SniffedInputs,
        request: &mut RowRequest,
        types: &[(String, String)],
    ) -> Result<Option<ColumnsToAdd>> {
        request.guessed_columns.clear();
        if !request.add_columns {
            return Ok(None);
        }
        if request.ignore_unknown {
            let message = "`--add-columns` and `--ignore-unknown` cannot be combined";
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Leave out `--add-columns` or `--ignore-unknown`."));
        }
        let mut missing = reading.missing_columns(table, request);
        if missing.is_empty() {
            return Ok(None);
        }
        create::check_types(connection, types).await?;
        let mut typed_columns = Vec::new();
        for (name, ty) in &mut missing {
            // A type for a column that the table has is ignored: a nightly load runs unchanged.
            if let Some((_, chosen)) = types.iter().find(|(typed, _)| is_alike(typed, name)) {
                chosen.clone_into(ty);
                typed_columns.push(name.clone());
            }
        }
        let columns = missing.into_iter().map(|(name, ty)| AddedColumn { name, ty }).collect();
        let (name, oid) = (table.sql_name.clone(), table.oid);
        let mut to_add = ColumnsToAdd {
            table: name,
            table_oid: oid,
            is_lockable: false,
            columns,
            typed_columns,
        };
        to_add.check_allowed(connection).await?;
        let described = to_add.describe(connection).await?;
        for (column, described) in to_add.columns.iter_mut().zip(&described) {
            check_has_no_sequence(column, described)?;
            described.ty.name.clone_into(&mut column.ty);
        }
        table.columns.extend(described);
        request.guessed_columns = to_add.guessed_columns().map(str::to_owned).collect();
        Ok(Some(to_add))
    }

    /// Returns the names of the columns whose types were guessed from the input's first rows.
    fn guessed_columns(&self) -> impl Iterator<Item = &str> {
        let names = self.columns.iter().map(|column| column.name.as_str());
        names.filter(|name| !self.typed_columns.iter().any(|typed| typed == name))
    }

    /// Removes the columns from the table's description.
    pub(crate) fn remove_from(&self, table: &mut TargetTable) {
        let is_added = |it: &TargetColumn| self.columns.iter().any(|added| added.name == it.name);
        table.columns.retain(|column| !is_added(column));
    }

    /// Returns the statement that adds the columns.
    pub(crate) fn sql(&self) -> String {
        let columns: Vec<_> = self.definitions().map(|it| format!("add column {it}")).collect();
        format!("alter table {}\n    {}", self.table, columns.join(",\n    "))
    }

    fn definitions(&self) -> impl Iterator<Item = String> {
        self.columns.iter().map(|AddedColumn { name, ty }| format!("{} {ty}", quote_ident(name)))
    }

    /// Checks that the role may add columns to the table, and finds out whether it may lock it.
    async fn check_allowed(&mut self, connection: &Connection) -> Result<()> {
        let failed = server_error(format!("could not look up the owner of {}", self.table));
        let row = connection.client.fetch_opt(OWNER_SQL, &[&self.table_oid]).await;
        let Some(row) = row.map_err(failed)? else { return Ok(()) };
        let (is_owner, owner, role): (bool, String, String) = (row.get(0), row.get(1), row.get(2));
        let sql = self.sql();
        if let Some(parent) = row.get::<_, Option<String>>(3) {
            let message = format!("cannot add columns to {}, a partition of {parent}", self.table);
            return Err(Error::new(ErrorKind::Plan, message)
                .hint(format!("Load into {parent}, or add the columns to it first.")));
        }
        if is_owner {
            self.is_lockable = row.get(4);
            return Ok(());
        }
        let message = format!("must be owner of table {} to add columns", self.table);
        Err(Error::new(ErrorKind::Plan, message)
            .with_sqlstate(SqlState::INSUFFICIENT_PRIVILEGE)
            .hint(match row.get(5) {
                true => format!("Let {owner} run this statement:\n{sql};"),
                false => {
                    format!("Let {owner} run `grant {owner} to {role}`, or this statement:\n{sql};")
                }
            }))
    }

    /// Lets the server describe the columns, by a temporary table that is rolled back. So the
    /// table itself is not locked.
    async fn describe(&self, connection: &Connection) -> Result<Vec<TargetColumn>> {
        let client = &connection.client;
        let definitions: Vec<_> = self.definitions().collect();
        // The user's types are those of the user's path.
        let create = format!("create table pg_temp.pgspate_columns ({})", definitions.join(", "));
        let create = format!("begin; {}", under_users_path_sql(&create));
        let (created, table) = tokio::join!(
            biased;
            client.batch_execute(&create),
            TargetTable::read(client, "pg_temp.pgspate_columns")
        );
        let rolled_back = client.batch_execute("rollback").await;
        let failed = || server_error("could not look up the types of new columns".to_owned());
        created.map_err(|error| {
            let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
            match is_forbidden {
                true => failed()(error).hint("The role needs `grant temporary on database ...`."),
                false => failed()(error),
            }
        })?;
        let table = table?;
        rolled_back.map_err(failed())?;
        table.map(|table| table.columns).ok_or_else(|| {
            Error::new(ErrorKind::Bug, "the temporary table that was just created does not exist")
        })
    }

    /// Adds the columns. Returns false if the table has one of them meanwhile; then nothing is
    /// changed, and the load must be prepared again.
    ///
    /// # Errors
    /// The server's refusal, or [`ErrorKind::Server`] if other sessions keep their locks for longer
    /// than `--lock-timeout`.
    pub(crate) fn add(
        &self,
        session: &mut impl RetryAfterConnectionLoss,
        progress: &CopyProgress,
    ) -> Result<bool> {
        session.retry_after_connection_loss(progress, |session| {
            let session = session.control_session();
            let adding = self.add_when_unlocked(&session.connection, session.limits, progress);
            session.runtime.block_on(adding)
        })
    }

    async fn add_when_unlocked(
        &self,
        connection: &Connection,
        limits: WaitLimits,
        progress: &CopyProgress,
    ) -> Result<bool> {
        let message = format!("could not add columns to {}", self.table);
        let started = Instant::now();
        loop {
            progress.stop.check()?;
            let Err(error) = self.try_to_add(connection, progress, &message).await else {
                progress.set_phase(None);
                return Ok(true);
            };
            if error.kind() == ErrorKind::Connect {
                return Err(error);
            }
            let rolled_back = connection.client.batch_execute("rollback").await;
            rolled_back.map_err(server_error(message.clone()))?;
            if error.sqlstate() == Some(&SqlState::DUPLICATE_COLUMN) {
                return Ok(false);
            }
            if !is_lock_error(&error) {
                return Err(error);
            }
            let users =
                locking_sessions(&connection.client, self.table_oid, TableLocks::All).await?;
            let user = users.first().map_or("another session", String::as_str);
            let limit = limits.lock_timeout;
            if !limit.is_zero() && started.elapsed() >= limit {
                return Err(error.hint(format!(
                    "The table was used for {} s by {user}. End that session, or wait longer with \
                     `--lock-timeout`.",
                    limit.as_secs()
                )));
            }
            progress.set_phase(Some(format!("adding columns waits for {user}")));
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }

    /// Asks for the lock once, and adds the columns. Each statement is a separate message for
    /// Citus, which sends a message's whole text to its workers. ALTER TABLE on Citus first locks
    /// the table as a reader. It would deadlock with a session that has read the table and wants
    /// the table for itself. LOCK TABLE lets that session go first.
    async fn try_to_add(
        &self,
        connection: &Connection,
        progress: &CopyProgress,
        message: &str,
    ) -> Result<()> {
        let mut begin = format!(
            "begin isolation level read committed; set local lock_timeout = '{LOCK_ATTEMPT}'"
        );
        if self.is_lockable {
            begin += &format!("; lock table only {} in access exclusive mode", self.table);
        }
        for sql in [begin.as_str(), &self.sql(), "commit"] {
            connection.execute_until_stopped(sql, &progress.stop, message).await?;
        }
        Ok(())
    }

    /// Adds a hint to the error of a run that has added the columns and then failed.
    pub(crate) fn hint_stays(&self, error: Error) -> Error {
        let names: Vec<_> = self.columns.iter().map(|it| format!("\"{}\"", it.name)).collect();
        let (column, stay) = match names.len() {
            1 => ("Column", "was added and stays"),
            _ => ("Columns", "were added and stay"),
        };
        let names = names.join(", ");
        error.hint_also(&format!("{column} {names} of {} {stay}.", self.table))
    }

    /// Adds a hint to an error about a value that does not fit an added column.
    pub(crate) fn hint_type(&self, error: Error) -> Error {
        let is_value_error = error.sqlstate().is_some_and(|code| code.code().starts_with("22"));
        let place = error.place().and_then(|place| place.column.as_deref());
        let column = self.columns.iter().find(|column| Some(column.name.as_str()) == place);
        let (true, Some(AddedColumn { name, ty })) = (is_value_error, column) else { return error };
        if self.typed_columns.contains(name) {
            return error;
        }
        error.hint_also(&format!(
            "Column \"{name}\" was added as {ty}, because of the first rows. If this value is \
             right: `alter table {} alter column {} type text`.",
            self.table,
            quote_ident(name)
        ))
    }
}

/// Returns the error for columns that another session has added since they were planned, where the
/// input cannot be planned again.
pub(crate) fn added_meanwhile_error(table: &str) -> Error {
    let message = format!("another session has added columns to {table} meanwhile");
    Error::new(ErrorKind::Plan, message).hint("Run the same command again.")
}
