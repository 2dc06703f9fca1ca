//! The stage: a temporary table that `copy` fills, and that SQL statements compare with the target.
//!
//! The stage has the target's columns and types, but no constraints, indexes or triggers. So every
//! row that the types accept can be staged. The server drops the stage when its session ends.

pub(crate) mod keys;
pub(crate) mod known_rows;
pub(crate) mod planner;
mod referrers;
pub(crate) mod temp_space;

pub(crate) use referrers::referrers;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::{Error, Result};
use pgspate_target::session::WaitLimits;
use pgspate_target::{TargetTable, TypedQuery, quote_ident, server_error};

/// The stage's name in SQL.
pub(crate) const STAGE_NAME: &str = "pg_temp.pgspate_stage";
/// The stage's name as the server's messages show it.
pub(crate) const STAGE_RELATION: &str = "pgspate_stage";

/// Memory of a session for pages of temporary tables. The server writes more pages to files.
pub(crate) const TEMP_BUFFERS: &str = "128MB";
/// Memory for those pages if the source has less than [`SMALL_SOURCE_BYTES`]. The server sets up an
/// entry for each page when a session first uses a temporary table. For [`TEMP_BUFFERS`] these are
/// a megabyte, which takes the server longer than staging a thousand rows.
const SMALL_TEMP_BUFFERS: &str = "8MB";
/// Stored bytes of a source whose rows fit in [`SMALL_TEMP_BUFFERS`], also if it is compressed.
const SMALL_SOURCE_BYTES: u64 = 1 << 20;

/// Column of a stage that numbers its rows: the order in which the rows were staged. `ctid` is not
/// in this order: the server may put a small row into the free space of an earlier page.
pub(crate) const ORDER_COLUMN: &str = "\"pgspate nth\"";

/// The statements that create a session's stage table.
#[derive(Debug, Clone)]
pub(crate) struct StageTable {
    create: Vec<String>,
    temp_buffers: &'static str,
}

impl StageTable {
    /// Returns the statements for a stage with these columns of `table`. With `numbers_rows`, the
    /// stage also has [`ORDER_COLUMN`].
    pub(crate) fn of<'a>(
        table: &TargetTable,
        columns: impl Iterator<Item = &'a str>,
        numbers_rows: bool,
    ) -> StageTable {
        let columns: Vec<_> = columns.map(quote_ident).collect();
        let mut create = vec![format!(
            "create temporary table pgspate_stage on commit preserve rows as \
             select {} from {} with no data",
            columns.join(", "),
            table.sql_name
        )];
        if numbers_rows {
            create.push(format!(
                "alter table {STAGE_NAME} add column {ORDER_COLUMN} bigint \
                 generated always as identity"
            ));
        }
        StageTable { create, temp_buffers: TEMP_BUFFERS }
    }

    /// Returns the stage for a source of this many stored bytes, if they are known.
    pub(crate) fn for_source(self, stored_bytes: Option<u64>) -> StageTable {
        let is_small = stored_bytes.is_some_and(|bytes| bytes < SMALL_SOURCE_BYTES);
        StageTable {
            temp_buffers: if is_small { SMALL_TEMP_BUFFERS } else { TEMP_BUFFERS },
            ..self
        }
    }

    /// Returns the statements, in order.
    pub(crate) fn create_statements(&self) -> &[String] {
        &self.create
    }

    /// Creates the stage in a session without a transaction.
    pub(crate) async fn create_in(&self, client: &Client, limits: &WaitLimits) -> Result<()> {
        let (_, created) = tokio::join!(
            biased;
            self.set_buffers(client),
            self.create_in_transaction(client, limits)
        );
        created
    }

    /// Sets the memory for the stage in a session without a transaction.
    pub(crate) async fn set_buffers(&self, client: &Client) {
        set_temp_buffers(client, self.temp_buffers).await;
    }

    /// Creates the stage in a session, perhaps in its transaction. The table whose columns the
    /// stage has may be locked.
    pub(crate) async fn create_in_transaction(
        &self,
        client: &Client,
        limits: &WaitLimits,
    ) -> Result<()> {
        let failed = server_error("could not create a temporary table to stage rows in".to_owned());
        let sql = format!("{}; {}", limits.lock_timeout_sql(), self.create.join("; "));
        client.batch_execute(&sql).await.map_err(|error| {
            let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
            let error = failed(error);
            match is_forbidden {
                true => error.hint(
                    "The role needs `grant temporary on database ...` and `grant select on table \
                     ...`.",
                ),
                false => error,
            }
        })
    }
}

/// Sets the memory for pages of temporary tables, outside of a transaction.
///
/// Behind a pooler, an earlier session may have used temporary tables in the same backend. Then the
/// server refuses to change the memory, and it stays as it is. That is no error. A lost connection
/// fails the next statement.
pub(crate) async fn set_temp_buffers(client: &Client, size: &str) {
    let _ = client.batch_execute(&format!("set temp_buffers = '{size}'")).await;
}

/// Adds a hint to an error about temporary space: how much was staged, and which setting to change.
/// `is_table_unchanged` says that this sync has committed nothing.
pub(crate) fn hint_space(error: Error, staged_bytes: u64, is_table_unchanged: bool) -> Error {
    let megabytes = staged_bytes.div_ceil(1 << 20);
    let state = if is_table_unchanged { " The table is unchanged." } else { "" };
    match error.sqlstate().map(SqlState::code) {
        Some("53400") => error.hint(format!(
            "The stage has {megabytes} MiB, and comparing may need another {megabytes} MiB of \
             temporary files. Raise temp_file_limit to at least {} MB for this role, or sync fewer \
             rows at a time with `--scope`.{state}",
            2 * megabytes
        )),
        Some("53100") => error.hint(format!(
            "The stage has {megabytes} MiB, and comparing may need another {megabytes} MiB. Free \
             space in the tablespaces that temp_tablespaces names. If temp_tablespaces is not set, \
             free space in the database's own tablespace.{state}"
        )),
        _ => error,
    }
}

/// Analyzes columns of the stage, because the server's query plans without statistics are
/// unreliable. A small sample is enough: only the numbers of rows and of distinct values matter.
pub(crate) async fn analyze(client: &Client, columns: &str) -> Result<()> {
    let failed = server_error("could not analyze the staged rows".to_owned());
    let sql = format!("set local default_statistics_target = 10; analyze {STAGE_NAME} ({columns})");
    client.batch_execute(&sql).await.map_err(failed)
}

/// Returns the number of staged rows.
pub(crate) async fn count(client: &Client) -> Result<u64> {
    let failed = server_error("could not count the staged rows".to_owned());
    let row = client.fetch_one(&format!("select count(*) from {STAGE_NAME}"), &[]).await;
    Ok(row.map_err(failed)?.get::<_, i64>(0).unsigned_abs())
}
