//! How records become rows of COPY data, whatever table or stage they are for.

use super::columns::{self, PlannedColumn};
use super::{InputFacts, encoding};
use crate::format::Mode;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{Session, Table, quote_ident};

/// Bytes of decompressed input in a chunk. A lane holds two of them and some pieces.
const CHUNK_BYTES: usize = 4 << 20;

/// What the user asked for, as far as rows depend on it.
#[derive(Debug, Clone, Default)]
pub struct RowRequest {
    /// The columns that the fields go to, in the fields' order.
    pub columns: Option<Vec<String>>,
    /// Fields and keys that no column is named after are passed over.
    pub ignore_unknown: bool,
    /// The input's encoding, as PostgreSQL names it; UTF8 by default.
    pub encoding: Option<String>,
    /// Columns in which a quoted NULL string is NULL.
    pub force_null: Vec<String>,
    /// Columns in which an unquoted NULL string is itself.
    pub force_not_null: Vec<String>,
}

/// How records become rows, and why.
#[derive(Debug, Clone)]
pub struct RowPlan {
    /// The columns that are written, in COPY's order.
    pub columns: Vec<PlannedColumn>,
    /// Binary or text, and why.
    pub mode: Mode,
    /// The reason for it.
    pub mode_reason: String,
    /// Where chunks may end.
    pub chunk_bytes: usize,
    /// The input's encoding, where it is not UTF-8.
    pub encoding: Option<String>,
}

impl RowPlan {
    /// Decides. Only the table's columns and types count, not what writing to it needs.
    ///
    /// # Errors
    /// Of [`ErrorKind::Plan`] or [`ErrorKind::Usage`] where the input and the table do not fit
    /// together.
    pub fn make(
        table: &Table,
        session: &Session,
        input: &InputFacts,
        request: &RowRequest,
    ) -> Result<RowPlan> {
        if matches!(table.kind, 'S' | 'i' | 'I' | 'm' | 'c' | 't') {
            let message = format!("cannot copy to \"{}\", which is not a table", table.name);
            return Err(Error::new(ErrorKind::Plan, message));
        }
        let columns = columns::plan(table, session, input, request)?;
        let encoding = encoding::choose(input, request)?;
        let (mode, mode_reason) = choose_mode(&columns, encoding.as_deref());
        Ok(RowPlan { columns, mode, mode_reason, chunk_bytes: CHUNK_BYTES, encoding })
    }

    /// The columns' names, unquoted.
    pub fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// `COPY into (columns) FROM STDIN`, in binary or in text in the input's encoding. `into` is a
    /// table as SQL writes it.
    pub fn copy_sql(&self, mode: Mode, into: &str) -> String {
        let quoted = self.columns.iter().map(|column| quote_ident(&column.name));
        let columns = quoted.collect::<Vec<_>>().join(", ");
        let mut options = format!("format {}", mode.name());
        if let (Mode::Text, Some(encoding)) = (mode, &self.encoding) {
            options += &format!(", encoding '{}'", encoding.replace('\'', "''"));
        }
        format!("copy {into} ({columns}) from stdin ({options})")
    }
}

fn choose_mode(columns: &[PlannedColumn], encoding: Option<&str>) -> (Mode, String) {
    if let Some(encoding) = encoding {
        return (Mode::Text, format!("the server converts {encoding} in text only"));
    }
    let as_text = columns.iter().find_map(|column| Some((column, column.text_reason()?)));
    if let Some((column, reason)) = as_text {
        let reason = format!("column \"{}\": {reason}", column.name);
        return (Mode::Text, format!("all rows go as text, for the server to read: {reason}"));
    }
    let reason = "every column has an exact encoder; fields that it does not take go as text";
    (Mode::Binary, reason.to_owned())
}
