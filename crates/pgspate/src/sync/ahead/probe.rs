//! Whether it pays to read the table ahead, by the first rows of the source.

use std::sync::atomic::AtomicUsize;

use super::read::copy_out;
use super::recognition;
use crate::copy::fill;
use crate::encode::Encoded;
use crate::format::Mode;
use crate::stage::known::KnownRows;
use crate::stage::{NAME, pin};
use crate::sync::Sync;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{quote_ident, server_error};

/// Of a hundred rows, so many have to be in the table as they are. Where fewer are, what would be
/// staged about them costs more than what need not be staged.
const WORTHWHILE: u64 = 75;
/// Fewer rows tell nothing.
const ROWS_MIN: u64 = 100;

/// Whether enough of these rows are in the table. They are staged and found by the key's index, in
/// a transaction that is rolled back.
pub(in crate::sync) async fn pays(
    sync: &PreparedSync,
    session: &Connection,
    first: &Encoded,
) -> Result<bool> {
    let rows = first.binary_rows;
    if rows < ROWS_MIN || first.text_rows.len() as u64 > rows {
        return Ok(false);
    }
    let failed = || server_error("could not look for the first rows".to_owned());
    session.client.batch_execute("begin").await.map_err(failed())?;
    let found = find(sync, session, first).await;
    session.client.batch_execute("rollback").await.map_err(failed())?;
    Ok(found?.is_some_and(|met| met * 100 >= rows * WORTHWHILE))
}

/// How many of the rows the table has; `None` if no index finds them.
async fn find(sync: &PreparedSync, session: &Connection, first: &Encoded) -> Result<Option<u64>> {
    let rows = first.binary_rows;
    let failed = || server_error("could not look for the first rows".to_owned());
    let names: Vec<_> = sync.staging.plan.columns.iter().map(|it| quote_ident(&it.name)).collect();
    let columns = names.iter().map(|name| format!("t.{name}")).collect::<Vec<_>>().join(", ");
    sync.staging.stage.make(&session.client).await?;
    let copy = format!("copy {NAME} ({}) from stdin (format binary)", names.join(", "));
    let statement = session.client.prepare(&copy).await.map_err(failed())?;
    fill::copy(session, &statement, Mode::Binary, &first.binary, rows).await?;
    let matches = sync.build().matches("t", "s");
    let query =
        format!("select t.ctid, {columns} from {NAME} s join {} t on {matches}", sync.table());
    // By the index and nothing else.
    let settings = "set local enable_hashjoin = off; set local enable_mergejoin = off";
    session.client.batch_execute(settings).await.map_err(failed())?;
    if !pin::allow_nested_loop(&session.client, &query).await.map_err(failed())? {
        return Ok(None);
    }
    let recognition = recognition(sync);
    let copy = format!("copy ({query}) to stdout (format binary)");
    let seen = copy_out(session, &copy, &recognition, &AtomicUsize::new(0)).await?;
    let known = KnownRows::new(recognition, vec![seen]);
    let met = known.count_met(&first.binary);
    met.map(Some).ok_or_else(|| Error::new(ErrorKind::Bug, "an encoded row is not whole"))
}
