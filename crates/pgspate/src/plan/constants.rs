//! Plans the columns whose values are not in the input: `--set` and `--file-name-column`.

use super::columns::{ColumnRoute, PlannedColumn, find_column, text_encoder};
use super::{InputFacts, RowRequest};
use crate::format::constants::{ConstantColumn, ConstantValue};
use crate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_target::{PgType, SessionSettings, TargetTable};
use std::fmt;
use std::sync::Arc;

/// Returns the text of a constant for a column of this name and type; `None` for NULL.
type ConstantText = dyn Fn(&str, &PgType) -> Result<Option<String>> + Send + Sync;

/// The texts of constants that a program gives as values of its own. How such a value is written
/// depends on the type of its column.
#[derive(Clone)]
pub struct ConstantTexts(Arc<ConstantText>);

impl ConstantTexts {
    /// Takes the function that returns the text for a column of this name and type, or `None` for
    /// NULL. Its errors say that the type does not take the value.
    pub fn new(
        text_for: impl Fn(&str, &PgType) -> Result<Option<String>> + Send + Sync + 'static,
    ) -> ConstantTexts {
        ConstantTexts(Arc::new(text_for))
    }
}

impl fmt::Debug for ConstantTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConstantTexts")
    }
}

/// Returns the names of the columns whose values are not in the input, as the user gave them.
pub(crate) fn constant_names(request: &RowRequest) -> impl Iterator<Item = &str> {
    let constants = request.constants.iter().map(|(name, _)| name.as_str());
    constants.chain(request.file_name_column.as_deref())
}

/// Adds the columns whose values are not in the input to the columns of the input's fields.
///
/// # Errors
/// [`ErrorKind::Plan`] if the table lacks a column. [`ErrorKind::Usage`] if the input has a column
/// too, if a column is named twice, or if the input has no file name. Errors of [`ConstantTexts`].
pub(super) fn plan_constants(
    table: &TargetTable,
    session: &SessionSettings,
    input: &InputFacts,
    request: &RowRequest,
    planned: &mut Vec<PlannedColumn>,
) -> Result<()> {
    let constants = request.constants.iter().map(|(name, text)| ("--set", name, Some(text)));
    let file_name = request.file_name_column.iter();
    let file_name = file_name.map(|name| ("--file-name-column", name, None));
    for (flag, name, text) in constants.chain(file_name) {
        let Some(column) = find_column(table, name) else {
            return Err(unknown_column(table, flag, name));
        };
        if let Some(other) = planned.iter().find(|it| it.name == column.name) {
            return Err(repeated_column(flag, other));
        }
        if text.is_none() && !input.has_file_names {
            let message = format!("`{flag}` needs files, but the input has no file name");
            return Err(Error::new(ErrorKind::Usage, message)
                .hint(format!("Give the rows a constant instead, with `--set {name}=...`.")));
        }
        let value = match (text, &request.constant_texts) {
            (None, _) => ConstantValue::InputName,
            (Some(text), None) => constant_value(text.clone()),
            (Some(_), Some(texts)) => constant_value((texts.0)(name, &column.ty)?),
        };
        let encoder = text_encoder(column, session).ok();
        planned.push(PlannedColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            field: 0,
            route: ColumnRoute::Constant(ConstantColumn::new(value, encoder)),
            date_format: None,
            guessed_type: None,
            force_null: false,
            force_not_null: false,
        });
    }
    Ok(())
}

fn constant_value(text: Option<String>) -> ConstantValue {
    text.map_or(ConstantValue::Null, ConstantValue::Text)
}

fn unknown_column(table: &TargetTable, flag: &str, name: &str) -> Error {
    let message = format!(
        "column \"{name}\" of relation \"{}\", which `{flag}` names, does not exist",
        table.name
    );
    let names = table.columns.iter().map(|column| column.name.as_str());
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(tokio_postgres::error::SqlState::UNDEFINED_COLUMN)
        .hint_if(did_you_mean("column", name, names))
        .hint_also("`--add-columns` adds the column to the table.")
}

fn repeated_column(flag: &str, other: &PlannedColumn) -> Error {
    let name = &other.name;
    if other.constant().is_some() {
        let message = format!("column \"{name}\" is named more than once");
        return Error::new(ErrorKind::Usage, message);
    }
    let message = format!("the input has column \"{name}\", which `{flag}` names");
    Error::new(ErrorKind::Usage, message).hint(format!(
        "Leave `{flag}` out for this column. Or name the columns for the input's fields with \
         `--columns a,b,...`."
    ))
}

/// Checks that values for all rows can be sent in the input's encoding, of which only the ASCII
/// characters are known.
///
/// # Errors
/// [`ErrorKind::Usage`] if a value has another character.
pub(crate) fn check_encoding(
    encoding: &str,
    columns: &[PlannedColumn],
    inputs: &[String],
) -> Result<()> {
    for column in columns {
        let is_ascii = match column.constant().map(ConstantColumn::value) {
            Some(ConstantValue::Text(text)) => text.is_ascii(),
            Some(ConstantValue::InputName) => inputs.iter().all(|name| name.is_ascii()),
            Some(ConstantValue::Null) | None => true,
        };
        if !is_ascii {
            let message = format!(
                "the value for column \"{}\" has characters other than ASCII, which are not \
                 converted to {encoding}",
                column.name
            );
            return Err(Error::new(ErrorKind::Usage, message).hint(format!(
                "Convert the input first: `iconv -f {encoding} -t UTF-8 FILE`. Then leave \
                 `--encoding` out."
            )));
        }
    }
    Ok(())
}
