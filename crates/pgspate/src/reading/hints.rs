//! Hints about how an input is read, for errors of the plan and of the server.

use tokio_postgres::error::SqlState;

use super::{RecordShape, SniffedInputs, raw_names};
use crate::format::delimited::{Eol, parse_records};
use crate::format::sniff::names_format;
use crate::plan::{RowPlan, encoding_name_hint};
use crate::source::Input;
use crate::{Error, ErrorKind, InputPlace};

impl SniffedInputs {
    /// Adds a hint to an error about the names or the number of fields, if the first line is a
    /// title, a comment or empty.
    pub(crate) fn hint_title(&self, error: Error) -> Error {
        const OF_FIELDS: [SqlState; 2] =
            [SqlState::UNDEFINED_COLUMN, SqlState::BAD_COPY_FILE_FORMAT];
        let is_of_fields = error.sqlstate().is_some_and(|code| OF_FIELDS.contains(code));
        if is_of_fields && self.sniffed.begins_empty {
            return error
                .hint_also("The first line is empty. Skip such lines with `--skip-blank-lines`.");
        }
        let Some((first, fields)) = self.sniffed.title.filter(|_| is_of_fields) else {
            return error;
        };
        let remedy = match first {
            '#' => "`--comment '#'` leaves out such lines",
            _ => "leave out the lines above the header, for example by `tail -n +2 FILE`",
        };
        error.hint_also(&format!(
            "The first line has 1 field, and most other lines have {fields}. If it is a title, \
             {remedy}."
        ))
    }

    /// Adds a hint to the error that a name of the header is not a column, if the header may be a
    /// row. Names the input with the header if there are several inputs.
    pub(crate) fn hint_header(&self, error: Error) -> Error {
        let is_of_name = error.sqlstate() == Some(&SqlState::UNDEFINED_COLUMN);
        let error = match self.inputs.get(self.guessed.sampled) {
            Some(input) if self.inputs.len() > 1 && self.unknown_field(&error).is_some() => {
                let source = Some(input.name().to_owned());
                error.at(InputPlace { source, ..InputPlace::default() })
            }
            _ => error,
        };
        match self.sniffed.header_doubt {
            Some(doubt) if is_of_name && self.sniffed.header => error.hint_also(&format!(
                "If the first line is a row, load with `--header no`: it was taken for a header, \
                 although {doubt}."
            )),
            _ => self.hint_title(self.hint_repeated_name(error)),
        }
    }

    /// Returns the position of the header's name that is not a column, if this is the error.
    fn unknown_field(&self, error: &Error) -> Option<usize> {
        let RecordShape::Delimited { header: Some(names), .. } = &self.shape else { return None };
        let message = error.to_string();
        let unknown = |name: &str| message.starts_with(&format!("column \"{name}\" of relation"));
        names.iter().position(|name| unknown(name))
    }

    /// Adds a hint to the error that a name is not a column, if the header does not have the name.
    /// Names are made if the header repeats a name or leaves it empty.
    fn hint_repeated_name(&self, error: Error) -> Error {
        let RecordShape::Delimited { dialect, header: Some(made), .. } = &self.shape else {
            return error;
        };
        let eol = Eol::from(self.sniffed.line_end);
        let Some(read) = parse_records(dialect, eol, &self.header_line, true, 1).pop() else {
            return error;
        };
        let read: Vec<_> = read.into_iter().map(Option::unwrap_or_default).collect();
        let nth = self.unknown_field(&error);
        let Some((nth, name)) = nth.and_then(|nth| Some((nth, raw_names(&read).get(nth)?.clone())))
        else {
            return error;
        };
        let why = match name.trim() {
            same if *same == made[nth] => return error,
            "" => format!("Field {} of the header has no name.", nth + 1),
            name => format!("The header has \"{name}\" more than once."),
        };
        match error.hint_text().map(str::to_owned) {
            Some(how) => error.hint(format!("{why} {how}")),
            None => error.hint(why),
        }
    }
}

/// Adds a hint to the error that `input` does not fit the others: a pattern that names them alone.
/// They must have the extension of a format, and `input` must not.
pub(super) fn hint_pattern(error: Error, input: &Input, inputs: &[Input]) -> Error {
    if error.kind() == ErrorKind::Source {
        return error;
    }
    let is_named = |it: &&Input| it.extension().is_some_and(|it| names_format(&it));
    let Some(other) = inputs.iter().find(is_named).filter(|_| !is_named(&input)) else {
        return error;
    };
    let name = other.name();
    let folder = name.rfind('/').map_or("", |slash| &name[..=slash]);
    let extension = other.extension().unwrap_or_default();
    error.hint_also(&format!(
        "If \"{}\" is not data, name the other files by a pattern: `'{folder}*.{extension}'`.",
        input.name()
    ))
}

/// Adds a hint to the server's error that `name` is not the name of an encoding.
pub(crate) fn hint_encoding_name(error: Error, name: &str) -> Error {
    // The message is translated, but for the name of COPY's option.
    let is_of_name = error.sqlstate() == Some(&SqlState::INVALID_PARAMETER_VALUE)
        && error.messages().iter().any(|it| it.contains("encoding"));
    match is_of_name {
        true => error.hint(encoding_name_hint(name)),
        false => error,
    }
}

/// Returns the value in the context of a refusal: `COPY t, line 5, column a: "12a"`.
pub(crate) fn refused_value(error: &Error) -> Option<&str> {
    let context = error.refusal()?.context()?;
    let (_, quoted) = context
        .lines()
        .find_map(|line| line.starts_with("COPY ").then(|| line.split_once(": \""))?)?;
    quoted.strip_suffix('"').or(Some(quoted))
}

/// Returns whether the server refused JSON because of NaN or Infinity. The detail of the refusal,
/// in any language, quotes the token.
pub(crate) fn is_json_nan(error: &Error) -> bool {
    let tokens = ["\"NaN\"", "\"Infinity\"", "\"-Infinity\""];
    let detail = error.refusal().and_then(|refusal| refusal.detail()).unwrap_or_default();
    tokens.iter().any(|token| detail.contains(token))
}

/// Returns whether the server refused a date or time that is infinite in DuckDB. In Arrow and
/// Parquet it has the largest or smallest number. As text it would be another date.
pub(crate) fn is_exported_infinity(error: &Error) -> bool {
    let values =
        ["5881580-07-11", "5877642-06-24 BC", "292277026596-12-04 15:30:07", "290309-12-21 19:59"];
    error.sqlstate() == Some(&SqlState::DATETIME_FIELD_OVERFLOW)
        && error.messages().iter().any(|it| values.iter().any(|value| it.contains(value)))
}

/// Returns whether a value is a number with a decimal comma: `1.234,50`. The comma of `1,234` may
/// separate thousands.
fn has_decimal_comma(value: &str) -> bool {
    let number = value.trim().trim_start_matches(['-', '+']);
    let Some((whole, fraction)) = number.split_once(',') else { return false };
    let digits = |text: &str, others: &[char]| {
        let is_digit = |c: char| c.is_ascii_digit() || others.contains(&c);
        text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(is_digit)
    };
    let is_certain = whole.contains('.') || fraction.len() != 3;
    is_certain && digits(whole, &['.', ' ']) && digits(fraction, &[])
}

/// Adds a hint to the server's error about a value: about NaN in JSON, about a decimal comma, or
/// about the encoding.
pub(crate) fn hint_value(error: Error, plan: &RowPlan) -> Error {
    if is_exported_infinity(&error) {
        return error.hint(
            "DuckDB exports an infinite date or time as this value. Cast the column in the query: \
             `COLUMN::varchar` is `infinity`.",
        );
    }
    if error.sqlstate() != Some(&SqlState::INVALID_TEXT_REPRESENTATION) {
        return hint_encoding(error, plan);
    }
    if is_json_nan(&error) {
        return error.hint("JSON has neither NaN nor Infinity. Write null, or in Python None.");
    }
    if refused_value(&error).is_some_and(has_decimal_comma) {
        return error.hint(
            "The number has a decimal comma. Load the column as text, and convert it on the \
             server: `replace(replace(COLUMN, '.', ''), ',', '.')::numeric`.",
        );
    }
    error
}

/// Adds a hint about `--encoding` to the server's error about a name that is no encoding, or about
/// bytes that are not UTF-8. No encoding allows NUL bytes.
fn hint_encoding(error: Error, plan: &RowPlan) -> Error {
    if let Some(name) = &plan.encoding {
        return hint_encoding_name(error, name);
    }
    if error.sqlstate() != Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE) {
        return error;
    }
    if error.messages().iter().any(|it| it.contains("0x00")) {
        return error.hint(
            "No text of PostgreSQL has NUL bytes. `tr -d '\\000'` removes them from a file, and \
             `--rejects FILE` sets such rows aside.",
        );
    }
    // A later byte may be a quote or a euro sign of Windows, which LATIN1 would store as a control
    // character. WIN1252 has all printable characters of LATIN1.
    error
        .hint("Name the encoding of the input with `--encoding`, for example `--encoding WIN1252`.")
}
