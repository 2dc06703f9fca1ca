//! Checks the values of `--set` before the first row is sent.

use crate::format::constants::{ConstantColumn, ConstantValue};
use crate::plan::{ColumnRoute, RowPlan};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{TypedQuery, quote_ident, quote_literal, server_error};

/// Words that the input functions of dates and times read as the time of the transaction.
const CLOCK_WORDS: [&str; 4] = ["now", "today", "tomorrow", "yesterday"];
/// Oids of date, time, timestamp, timestamp with time zone, and time with time zone.
const DATE_AND_TIME: [u32; 5] = [1082, 1083, 1114, 1184, 1266];

/// Lets the server read each value that all rows get. A wrong value is then refused once, and not
/// with each row. A value such as `now` becomes the time of this moment, because each chunk has a
/// transaction of its own.
///
/// # Errors
/// [`ErrorKind::Usage`] if the column's type does not accept the value.
pub(crate) async fn check_constants(connection: &Connection, plan: &mut RowPlan) -> Result<()> {
    for column in &mut plan.columns {
        let Some(ConstantValue::Text(text)) = column.constant().map(|it| it.value()) else {
            continue;
        };
        let lowercase = text.to_ascii_lowercase();
        let depends_on_clock = DATE_AND_TIME.contains(&column.ty.base().oid)
            && CLOCK_WORDS.iter().any(|word| lowercase.contains(word));
        // The server reads a literal with the input function of the type, as COPY does.
        let shown = if depends_on_clock { "::text" } else { " is null" };
        let sql = format!("select {}::{}{shown}", quote_literal(text), column.ty.name);
        let message = format!("could not set column {}", quote_ident(&column.name));
        match connection.client.fetch_one(&sql, &[]).await.map_err(server_error(message.clone())) {
            Ok(row) if depends_on_clock => {
                let text: String = row.get(0);
                column.route =
                    ColumnRoute::Constant(ConstantColumn::new(ConstantValue::Text(text), None));
            }
            Ok(_) => {}
            Err(error) if error.sqlstate().is_some() => {
                return Err(Error::new(ErrorKind::Usage, message).because(error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
