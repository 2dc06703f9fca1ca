//! `--create` of a sync: creates the missing table before the rows are staged.
//!
//! A table that this sync has created is dropped again unless the sync succeeds, or another session
//! has inserted rows.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::SyncOptions;
use crate::load::{NewTable, NewTableOptions, create};
use crate::{Error, ErrorKind, Result};
use pgspate_target::TargetTable;
use pgspate_target::connect::{Connection, Dsn};

/// How long dropping the table may take, beside the wait for its lock.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);

/// A table that this sync has created. Dropping the value drops the table, unless it is kept.
pub(super) struct CreatedTable {
    pub(super) new: NewTable,
    oid: u32,
    dsn: Dsn,
    runtime: Handle,
    is_kept: bool,
}

impl CreatedTable {
    /// Creates the table `name` for the inferred columns of the source. Without another choice, the
    /// key of the sync becomes the primary key. Returns the table alone if another session has
    /// created it meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if an option names a column that the source does not have. The server's
    /// refusal.
    pub(super) fn create(
        connection: &Connection,
        name: &str,
        columns: &[(String, String)],
        options: &SyncOptions,
        (dsn, runtime): (Dsn, Handle),
    ) -> Result<(TargetTable, Option<CreatedTable>)> {
        let mut choices = NewTableOptions::clone(&options.new_table);
        if choices.primary_key.is_empty() {
            choices.primary_key.clone_from(&options.key);
        }
        if choices.primary_key.is_empty() {
            return Err(Error::new(ErrorKind::Usage, format!("no key is named for {name}"))
                .hint("Name the columns that identify a row with `--key`."));
        }
        let new = NewTable::of_columns(name, columns, &choices)?;
        let created = runtime.block_on(async {
            create::check_types(connection, &choices.types).await?;
            let (mut table, new) = create::create_and_roll_back(connection, new).await?;
            let oid = create::create(connection, &new).await?;
            if let Some(created) = TargetTable::read(&connection.client, &new.table).await? {
                table = created;
            }
            Ok::<_, Error>((table, new, oid))
        });
        match created {
            Ok((table, new, oid)) => {
                Ok((table, Some(CreatedTable { new, oid, dsn, runtime, is_kept: false })))
            }
            Err(error) => {
                let reading = create::read_created_meanwhile(connection, name, error);
                Ok((runtime.block_on(reading)?, None))
            }
        }
    }

    /// Keeps the table.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Drops the table after `error`. Adds a hint if the table could not be dropped.
    pub(super) fn drop_after(mut self, error: Error) -> Error {
        match self.drop_table() {
            Ok(()) => error,
            Err(failed) => {
                let table = &self.new.table;
                error.hint_also(&format!("Table {table} was created and stays: {failed}."))
            }
        }
    }

    fn drop_table(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_kept, true) {
            return Ok(());
        }
        // The connections of the sync may be lost, or still be in a transaction.
        let dropping = async {
            let connection = self.dsn.connect("pgspate sync").await?;
            create::drop_created_table(&connection, &self.new, self.oid).await
        };
        let timed_out = |_| Error::new(ErrorKind::Connect, "the server does not reply");
        self.runtime.block_on(async { timeout(DROP_TIMEOUT, dropping).await.map_err(timed_out)? })
    }
}

impl Drop for CreatedTable {
    fn drop(&mut self) {
        // A caller that can report the failure uses `drop_after`.
        let _ = self.drop_table();
    }
}
