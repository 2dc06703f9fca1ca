//! Rows in the parameters of a statement.

use super::{ACTION_COLUMN, PRESENCE_COLUMN};
use crate::apply::route::ApplyTable;
use pgspate_target::ledger::TRANSACTION_SETTING;
use pgspate_target::quote_ident;

/// Returns a FROM item for the rows in the parameters. The item has no rows outside of the batch's
/// own transaction, because the server may have refused to begin that transaction.
pub(super) fn parameter_rows(facts: &ApplyTable) -> String {
    let begun = format!("case when current_setting('{TRANSACTION_SETTING}', true) <> '' then");
    format!(
        "unnest({begun} $1::{}[] end, {begun} $2::int2[] end, {begun} $3::bytea[] end) {}",
        facts.table.sql_name,
        parameter_columns(facts)
    )
}

/// Returns the alias of the rows in the parameters, with their columns.
pub(super) fn parameter_columns(facts: &ApplyTable) -> String {
    let all: Vec<_> = facts.table.columns.iter().map(|column| quote_ident(&column.name)).collect();
    format!("s ({}, {ACTION_COLUMN}, {PRESENCE_COLUMN})", all.join(", "))
}
