//! Hints about how an input is read, for errors of the plan and of the server.

use tokio_postgres::error::SqlState;

use super::SniffedInputs;
use crate::Error;
use crate::plan::RowPlan;

impl SniffedInputs {
    /// Adds a hint to an error about the names or the number of fields, if the first line is a
    /// title or a comment.
    pub(crate) fn hint_title(&self, error: Error) -> Error {
        const OF_FIELDS: [SqlState; 2] =
            [SqlState::UNDEFINED_COLUMN, SqlState::BAD_COPY_FILE_FORMAT];
        let is_of_fields = error.sqlstate().is_some_and(|code| OF_FIELDS.contains(code));
        let Some((first, fields)) = self.sniffed.title.filter(|_| is_of_fields) else {
            return error;
        };
        let remedy = match first {
            '#' => "`--comment '#'` leaves out such lines",
            _ => "leave out the lines above the header: `tail -n +2 FILE | pgspate load -`",
        };
        error.hint_also(&format!(
            "The first line has 1 field, and most other lines have {fields}. If it is a title, \
             {remedy}."
        ))
    }

    /// Adds a hint to the error that a name of the header is not a column, if the header may be a
    /// row.
    pub(crate) fn hint_header(&self, error: Error) -> Error {
        let is_of_name = error.sqlstate() == Some(&SqlState::UNDEFINED_COLUMN);
        match self.sniffed.header_doubt {
            Some(doubt) if is_of_name && self.sniffed.header => error.hint_also(&format!(
                "If the first line is a row, load with `--header no`: it was taken for a header, \
                 although {doubt}."
            )),
            _ => self.hint_title(error),
        }
    }
}

/// Adds a hint about `--encoding` to the server's error about bytes that are not UTF-8. No encoding
/// allows NUL bytes.
pub(crate) fn hint_encoding(error: Error, plan: &RowPlan) -> Error {
    let is_utf8 = plan.encoding.is_none();
    let is_not_utf8 = is_utf8 && error.sqlstate() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE);
    if !is_not_utf8 {
        return error;
    }
    if error.messages().iter().any(|it| it.contains("0x00")) {
        return error.hint(
            "No text of PostgreSQL has NUL bytes. `tr -d '\\000'` removes them, and `--rejects \
             FILE` sets such rows aside.",
        );
    }
    // A later byte may be a quote or a euro sign of Windows, which LATIN1 would store as a control
    // character. WIN1252 has all printable characters of LATIN1.
    error
        .hint("Name the encoding of the input with `--encoding`, for example `--encoding WIN1252`.")
}
