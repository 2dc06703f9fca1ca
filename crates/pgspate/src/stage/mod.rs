//! The stage: a temporary table that is filled through `copy`, for statements that compare.
//!
//! It has the target's columns and types and none of its constraints, indexes or triggers, so
//! whatever the types take can be staged. It lives and dies with its session.

pub(crate) mod keys;
pub(crate) mod known;
pub(crate) mod pin;
mod referrers;
pub(crate) mod space;

pub(crate) use referrers::referrers;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::{Error, Result};
use pgspate_target::{Ask, Table, quote_ident, server_error};

/// The table, as statements name it.
pub(crate) const NAME: &str = "pg_temp.pgspate_stage";

/// Memory for the pages of temporary tables: what does not fit is written to temporary files.
pub(crate) const TEMP_BUFFERS: &str = "128MB";

/// What a session runs before rows are staged in it.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    create: String,
}

impl Stage {
    /// For these columns of the table.
    pub(crate) fn of<'a>(table: &Table, columns: impl Iterator<Item = &'a str>) -> Stage {
        let columns: Vec<_> = columns.map(quote_ident).collect();
        let create = format!(
            "create temporary table pgspate_stage on commit preserve rows as \
             select {} from {} with no data",
            columns.join(", "),
            table.sql_name
        );
        Stage { create }
    }

    /// The statement that makes it.
    pub(crate) fn create(&self) -> &str {
        &self.create
    }

    /// Makes it in a session.
    pub(crate) async fn make(&self, client: &Client) -> Result<()> {
        let failed = server_error("could not make a temporary table to stage rows in".to_owned());
        let sql = format!("set temp_buffers = '{TEMP_BUFFERS}'; {}", self.create);
        client.batch_execute(&sql).await.map_err(|error| {
            let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
            let error = failed(error);
            match is_forbidden {
                true => error.hint(
                    "The role needs `grant temporary on database` the database, and SELECT on the \
                     table.",
                ),
                false => error,
            }
        })
    }
}

/// For temporary space that ran out: how much there was to stage, and what to change.
pub(crate) fn hint_space(error: Error, staged_bytes: u64, is_untouched: bool) -> Error {
    let megabytes = staged_bytes.div_ceil(1 << 20);
    let state = if is_untouched { " The table is as it was." } else { "" };
    match error.sqlstate().map(SqlState::code) {
        Some("53400") => error.hint(format!(
            "{megabytes} MiB are staged, and comparing them may take as much again in temporary \
             files: raise temp_file_limit to at least {} MB for this role, or sync fewer rows at a \
             time with `--scope`.{state}",
            2 * megabytes
        )),
        Some("53100") => error.hint(format!(
            "{megabytes} MiB are staged, and comparing them may take as much again: there is too \
             little space where temp_tablespaces points to, or else in the database's own \
             tablespace.{state}"
        )),
        _ => error,
    }
}

/// Makes statistics of columns of what is staged, without which no plan is to be trusted. A small
/// sample will do: what has to be known is how many rows there are, and how many values.
pub(crate) async fn analyze(client: &Client, columns: &str) -> Result<()> {
    let failed = server_error("could not analyze the staged rows".to_owned());
    let sql = format!("set local default_statistics_target = 10; analyze {NAME} ({columns})");
    client.batch_execute(&sql).await.map_err(failed)
}

/// How many rows are staged.
pub(crate) async fn count(client: &Client) -> Result<u64> {
    let failed = server_error("could not count the staged rows".to_owned());
    let row = client.ask_one(&format!("select count(*) from {NAME}"), &[]).await;
    Ok(row.map_err(failed)?.get::<_, i64>(0).unsigned_abs())
}
