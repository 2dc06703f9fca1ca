//! Checks the values of `--set` before the first row is sent.

use crate::format::constants::ConstantValue;
use crate::plan::RowPlan;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{TypedQuery, quote_ident, quote_literal, server_error};

/// Lets the server read each value that all rows get. A wrong value is then refused once, and not
/// with each row.
///
/// # Errors
/// [`ErrorKind::Usage`] if the column's type does not accept the value.
pub(crate) async fn check_constants(connection: &Connection, plan: &RowPlan) -> Result<()> {
    for column in &plan.columns {
        let Some(ConstantValue::Text(text)) = column.constant().map(|it| it.value()) else {
            continue;
        };
        // The server reads a literal with the input function of the type, as COPY does.
        let sql = format!("select {}::{} is null", quote_literal(text), column.ty.name);
        let message = format!("could not set column {}", quote_ident(&column.name));
        match connection.client.fetch_one(&sql, &[]).await.map_err(server_error(message.clone())) {
            Ok(_) => {}
            Err(error) if error.sqlstate().is_some() => {
                return Err(Error::new(ErrorKind::Usage, message).because(error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
