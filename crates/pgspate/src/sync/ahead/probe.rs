//! Decides whether reading the table ahead of the source saves time, from the source's first rows.

use std::sync::atomic::AtomicUsize;

use super::read::copy_out;
use super::row_hasher;
use crate::copy::temp_table;
use crate::encode::Encoded;
use crate::format::EncodeMode;
use crate::stage::STAGE_NAME;
use crate::stage::known_rows::KnownRows;
use crate::sync::PreparedSync;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{quote_ident, server_error};

/// Reading ahead needs at least this percentage of unchanged rows among the source's first rows.
/// With fewer, staging the addresses of the table's unmatched rows costs more than reading ahead
/// saves.
const UNCHANGED_PERCENT_MIN: u64 = 75;
/// With fewer first rows than this, pgspate does not read ahead.
const PROBED_ROWS_MIN: u64 = 100;

/// Returns whether reading the table ahead saves time. `first` are the source's first rows: enough
/// of them must be unchanged in the table. pgspate stages these rows and looks them up by the
/// key's index, in a transaction that it rolls back.
pub(in crate::sync) async fn saves_time(
    sync: &PreparedSync,
    session: &Connection,
    first: &Encoded,
) -> Result<bool> {
    let rows = first.binary_rows;
    if rows < PROBED_ROWS_MIN || first.text_rows.len() as u64 > rows {
        return Ok(false);
    }
    let failed =
        || server_error("could not look up the source's first rows in the table".to_owned());
    sync.staging.stage.set_buffers(&session.client).await;
    session.client.batch_execute("begin").await.map_err(failed())?;
    let unchanged = count_unchanged(sync, session, first).await;
    session.client.batch_execute("rollback").await.map_err(failed())?;
    Ok(unchanged?.is_some_and(|unchanged| unchanged * 100 >= rows * UNCHANGED_PERCENT_MIN))
}

/// Returns how many of the source's first rows are unchanged in the table. Returns `None` if the
/// server cannot look up the rows by an index.
async fn count_unchanged(
    sync: &PreparedSync,
    session: &Connection,
    first: &Encoded,
) -> Result<Option<u64>> {
    let rows = first.binary_rows;
    let failed =
        || server_error("could not look up the source's first rows in the table".to_owned());
    let names: Vec<_> = sync.staging.plan.columns.iter().map(|it| quote_ident(&it.name)).collect();
    let columns = names.iter().map(|name| format!("t.{name}")).collect::<Vec<_>>().join(", ");
    sync.staging.stage.create_in_transaction(&session.client, &sync.options.limits).await?;
    let copy = format!("copy {STAGE_NAME} ({}) from stdin (format binary)", names.join(", "));
    let statement = session.client.prepare(&copy).await.map_err(failed())?;
    temp_table::copy_rows(session, &statement, EncodeMode::Binary, &first.binary, rows).await?;
    let statements = sync.build_statements();
    let matches = statements.matches("t", "s");
    let query = format!(
        "select t.ctid, {columns} from {STAGE_NAME} s join {} t on {matches}",
        sync.table()
    );
    // Forces the server to look up the rows by the index.
    let settings = "set local enable_hashjoin = off; set local enable_mergejoin = off";
    session.client.batch_execute(settings).await.map_err(failed())?;
    let planned = statements.planned(&session.client);
    if !planned.allow_nested_loop(&query).await.map_err(failed())? {
        return Ok(None);
    }
    let row_hasher = row_hasher(sync);
    let copy = format!("copy ({query}) to stdout (format binary)");
    let read = copy_out(session, &copy, &row_hasher, &AtomicUsize::new(0)).await?;
    let known = KnownRows::new(row_hasher, vec![read]);
    let unchanged = known.count_matched(&first.binary);
    unchanged.map(Some).ok_or_else(|| Error::new(ErrorKind::Bug, "an encoded row is incomplete"))
}
