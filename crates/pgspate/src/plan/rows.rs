//! Plans how pgspate encodes input records as rows of COPY data. COPY writes the rows to a table or
//! to a stage.

use super::columns::{self, PlannedColumn};
use super::constants::ConstantTexts;
use super::{InputFacts, constants, date_formats, encoding};
use crate::encode::date_format::DateFormats;
use crate::format::EncodeMode;
use crate::format::guessed_type::GuessedType;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{SessionSettings, TargetTable, quote_ident};

/// Bytes of decompressed input in a chunk. The size limits a lane's memory: a lane holds two chunks
/// and some encoded pieces.
const CHUNK_BYTES: usize = 4 << 20;

/// The user's options for encoding input records as rows.
#[derive(Debug, Clone, Default)]
pub struct RowRequest {
    /// The table's column for each input field, in the order of the fields (`--columns`).
    pub columns: Option<Vec<String>>,
    /// Whether the fields' names are converted to snake case. Ignored if `columns` is given.
    pub snake_case: bool,
    /// Whether to skip fields and JSON keys that name no column of the table.
    pub ignore_unknown: bool,
    /// Whether columns of the input that the table lacks are added to the table.
    pub add_columns: bool,
    /// The columns of the table whose types were guessed from the input's first rows.
    pub guessed_columns: Vec<String>,
    /// PostgreSQL's name of the input's encoding. The default is UTF8.
    pub encoding: Option<String>,
    /// Columns in which a quoted NULL string means NULL.
    pub force_null: Vec<String>,
    /// Columns in which an unquoted NULL string is a value.
    pub force_not_null: Vec<String>,
    /// Columns that the input lacks, with the value for all rows: a text, or `None` for NULL.
    pub constants: Vec<(String, Option<String>)>,
    /// The texts of `constants`, if they depend on the types of the columns.
    pub constant_texts: Option<ConstantTexts>,
    /// The formats of dates and timestamps that the input has as text, if not ISO.
    pub date_formats: DateFormats,
    /// The column for the name of each row's file.
    pub file_name_column: Option<String>,
}

/// How input records are encoded as rows of COPY data, with the reasons.
#[derive(Debug, Clone)]
pub struct RowPlan {
    /// The columns that are written, in the order of COPY's column list. Columns whose values do
    /// not come from fields are the last ones.
    pub columns: Vec<PlannedColumn>,
    /// COPY's format: binary or text.
    pub mode: EncodeMode,
    /// The reason for COPY's format.
    pub mode_reason: String,
    /// Bytes of decompressed input after which a chunk ends.
    pub chunk_bytes: usize,
    /// The input's encoding, if it is not UTF-8.
    pub encoding: Option<String>,
    /// Whether the types of some columns were guessed from the first input.
    pub has_guessed_types: bool,
    /// The settings of the session on which encoders depend.
    pub session: SessionSettings,
}

impl RowPlan {
    /// Makes the plan. Uses only the table's kind and columns; its indexes, triggers and
    /// constraints do not matter.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] or [`ErrorKind::Usage`] when the input and the table do not fit
    /// together. [`ErrorKind::Type`] if a column of the input cannot be converted.
    pub fn make(
        table: &TargetTable,
        session: &SessionSettings,
        input: &InputFacts,
        request: &RowRequest,
    ) -> Result<RowPlan> {
        if matches!(table.kind, 'S' | 'i' | 'I' | 'm' | 'c' | 't') {
            let message = format!("cannot copy to \"{}\", which is not a table", table.name);
            return Err(Error::new(ErrorKind::Plan, message));
        }
        let mut columns = columns::plan_columns(table, session, input, request)?;
        let encoding = encoding::choose_encoding(input, request)?;
        date_formats::plan_date_formats(table, input, request, &mut columns)?;
        constants::plan_constants(table, session, input, request, &mut columns)?;
        let (mode, mode_reason) = choose_mode(&columns, encoding.as_deref());
        Ok(RowPlan {
            columns,
            mode,
            mode_reason,
            chunk_bytes: CHUNK_BYTES,
            encoding,
            has_guessed_types: !request.guessed_columns.is_empty(),
            session: session.clone(),
        })
    }

    /// Names the columns whose types were guessed from the input's first rows.
    pub(crate) fn set_guessed_columns(&mut self, names: &[String]) {
        self.has_guessed_types |= !names.is_empty();
        for column in self.columns.iter_mut().filter(|it| it.date_format.is_none()) {
            let is_guessed = column.constant().is_none() && names.contains(&column.name);
            column.guessed_type = GuessedType::of(&column.ty.name).filter(|_| is_guessed);
        }
    }

    /// Returns the columns whose values come from fields.
    pub(crate) fn field_columns(&self) -> impl Iterator<Item = &PlannedColumn> {
        self.columns.iter().filter(|column| column.constant().is_none())
    }

    /// Returns the names of the columns that are written, unquoted.
    pub fn column_names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Returns the columns that are written in binary, each with the oid of its type. None if every
    /// row is sent as text.
    pub(crate) fn binary_columns(&self) -> Vec<(String, u32)> {
        let columns = self.columns.iter().filter(|_| self.mode == EncodeMode::Binary);
        columns.map(|column| (column.name.clone(), column.ty.oid)).collect()
    }

    /// Returns the statement `copy TABLE (COLUMNS) from stdin` with the format `mode`. A text COPY
    /// names the input's encoding. `into` is the table's name, quoted for SQL.
    pub fn copy_sql(&self, mode: EncodeMode, into: &str) -> String {
        let quoted = self.columns.iter().map(|column| quote_ident(&column.name));
        let columns = quoted.collect::<Vec<_>>().join(", ");
        let mut options = format!("format {}", mode.name());
        if let (EncodeMode::Text, Some(encoding)) = (mode, &self.encoding) {
            options += &format!(", encoding '{}'", encoding.replace('\'', "''"));
        }
        format!("copy {into} ({columns}) from stdin ({options})")
    }
}

/// Chooses binary or text COPY, and returns the choice with its reason.
fn choose_mode(columns: &[PlannedColumn], encoding: Option<&str>) -> (EncodeMode, String) {
    if let Some(encoding) = encoding {
        return (EncodeMode::Text, format!("the server converts {encoding} only in text COPY"));
    }
    let text_column = columns.iter().find_map(|column| Some((column, column.text_reason()?)));
    if let Some((column, reason)) = text_column {
        let reason = format!("column \"{}\": {reason}", column.name);
        return (
            EncodeMode::Text,
            format!("all rows go as text, which the server parses: {reason}"),
        );
    }
    let reason = "all columns have exact encoders; unusual values go as text";
    (EncodeMode::Binary, reason.to_owned())
}
