//! Checks that the first bytes of a later input agree with what was guessed from the first input.
//!
//! Without this check, the header of a later file would be a row, or its first row a header, or its
//! NULLs and escapes texts.

use std::io::{Cursor, Read};

use super::{RecordShape, SniffedInputs, raw_names};
use crate::format::delimited::{Dialect, Eol, parse_records};
use crate::format::infer;
use crate::format::sniff::{Format, SniffOverrides, SniffedFormat, sniff};
use crate::plan::match_fields;
use crate::source::Input;
use crate::{Error, ErrorKind, Result, source};

/// How many bytes of each later input are looked at.
const FRONT_BYTES: u64 = 64 << 10;

/// What the user has not said about delimited inputs, so that it was guessed from the first one.
#[derive(Debug, Clone, Default)]
pub(super) struct GuessedDialect {
    pub(super) header: bool,
    pub(super) quote: bool,
    pub(super) null: bool,
    pub(super) escape: bool,
    /// The names by which a header is known: of `--columns`, or of the table's columns.
    pub(super) known_names: Option<Vec<String>>,
    /// The position of the input from which it was guessed.
    pub(super) sampled: usize,
}

impl SniffedInputs {
    /// Checks that an input has the format of the first input, as far as its first bytes tell.
    pub(super) fn check_format(&self, input: &Input) -> Result<()> {
        let expected = self.sniffed.format;
        // Reading the first bytes of a remote input costs a request. An input with the file
        // extension of the first input needs no check.
        if input.is_stream() || input.extension() == self.inputs[0].extension() {
            return Ok(());
        }
        let found = match input.peek(8)?.as_slice() {
            [b'P', b'A', b'R', b'1', ..] => Some(Format::Parquet),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Some(Format::Arrow),
            // The fields of a line may begin so, but then the file's name does not say json.
            [b'{', b'"' | b'}', ..] | [b'[', b'{' | b']', ..] if is_named_json(input) => {
                Some(Format::Json)
            }
            _ => None,
        };
        let name = expected.name();
        let message = match found.map(|found| (found == expected, found.name())) {
            Some((false, found)) => {
                format!("the format is {found}, but the format of the first input is {name}")
            }
            None if expected == Format::Parquet => {
                format!("the format is not {name}, but the format of the first input is {name}")
            }
            Some((true, _)) | None => return Ok(()),
        };
        Err(Error::new(ErrorKind::Format, message)
            .hint("Load inputs of different formats one after the other."))
    }

    /// Checks the first bytes of the input at position `index`, if they are delimited text and the
    /// input is not the one whose dialect was guessed. Returns a reader of the whole input.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the input has another header, quote, NULL or escape.
    pub(super) fn check_later_input(
        &self,
        index: usize,
        mut reader: Box<dyn Read + Send>,
    ) -> Result<Box<dyn Read + Send>> {
        let RecordShape::Delimited { dialect, header, .. } = &self.shape else { return Ok(reader) };
        let GuessedDialect { sampled, .. } = self.guessed;
        let name = self.inputs[index].name();
        if index == sampled {
            return Ok(reader);
        }
        let mut front = Vec::new();
        let read = reader.by_ref().take(FRONT_BYTES).read_to_end(&mut front);
        read.map_err(|error| source::read_error(error, name))?;
        let is_complete = (front.len() as u64) < FRONT_BYTES;
        let lines = super::sniff_inputs::without_skipped_lines(
            &front,
            dialect.comment,
            dialect.skip_blank_lines,
        );
        if !lines.trim_ascii().is_empty() {
            let given = SniffOverrides {
                format: Some(self.sniffed.format),
                delimiter: Some(dialect.delimiter),
                quote: (!self.guessed.quote).then_some(dialect.quote),
                likely_escape: Some(dialect.escape),
                ..SniffOverrides::default()
            };
            let known = header.as_deref().or(self.guessed.known_names.as_deref());
            let found = sniff(name, &lines, is_complete, known, &given)?;
            self.check_agrees(&found, first_names(dialect, &found, &lines, is_complete))?;
        }
        Ok(Box::new(Cursor::new(front).chain(reader)))
    }

    /// Checks the dialect of a later input, and its first record as the names of a header.
    fn check_agrees(&self, found: &SniffedFormat, names: Vec<String>) -> Result<()> {
        let RecordShape::Delimited { dialect, .. } = &self.shape else { return Ok(()) };
        let first = self.inputs[self.guessed.sampled].name();
        let show_quotes = self.guessed.quote && !self.sniffed.unseen.quote && !found.unseen.quote;
        if show_quotes && found.quote != dialect.quote {
            let message = match dialect.quote {
                Some(_) => format!(
                    "quotes seem to be part of the fields, but they enclose fields of \"{first}\""
                ),
                None => format!(
                    "quotes seem to enclose fields, but they are part of the fields of \"{first}\""
                ),
            };
            let hint = "Say what holds for all files: `--quote none` if quotes are part of the \
                        fields, or `--quote '\"'` if they enclose fields.";
            return refused(message, hint);
        }
        self.check_header_agrees(found, &names)?;
        if self.guessed.null && dialect.null.is_empty() && found.null == "\\N" {
            let message = format!("some fields are \\N, unlike those of \"{first}\"");
            return refused(message, "If it stands for NULL in all files: `--null '\\N'`.");
        }
        if self.guessed.escape && dialect.quote.is_some() && found.escape != dialect.escape {
            let (one, other) = (char::from(found.escape), char::from(dialect.escape));
            let message = format!(
                "quotes within quotes follow {one}, but the escape of \"{first}\" is {other}"
            );
            return refused(message, &format!("If it holds for all files: `--escape '{one}'`."));
        }
        Ok(())
    }

    /// Checks the first record of a later input as the names of a header.
    fn check_header_agrees(&self, found: &SniffedFormat, names: &[String]) -> Result<()> {
        let RecordShape::Delimited { header, .. } = &self.shape else { return Ok(()) };
        let first = self.inputs[self.guessed.sampled].name();
        // Files of words alone may all be rows.
        let has_header = found.header && found.header_doubt.is_none();
        let header_hint = "Say what holds for all files: `--header yes`, or `--header no` if the \
                           first line is a row.";
        match header {
            None if self.guessed.header && !self.sniffed.header && has_header => {
                let message = format!(
                    "the first line seems to name the columns, but the first line of \"{first}\" \
                     is a row"
                );
                refused(message, header_hint)
            }
            Some(header)
                if self.guessed.header
                    && (!found.header
                        || self.header_overridden && found.header_doubt.is_some())
                    && (self.header_overridden || names.len() == header.len())
                    && match_fields(header, names).is_err() =>
            {
                let message =
                    format!("the first line is not the header of \"{first}\", so it may be a row");
                refused(message, header_hint)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the error for an input that disagrees with the first input.
fn refused(message: String, hint: &str) -> Result<()> {
    let hint = format!("{hint} Or load such files apart from the others.");
    Err(Error::new(ErrorKind::Format, message).hint(hint))
}

/// Returns the fields of the first record.
fn first_names(
    dialect: &Dialect,
    found: &SniffedFormat,
    lines: &[u8],
    is_complete: bool,
) -> Vec<String> {
    let body = &lines[found.mark_bytes.min(lines.len())..];
    let mut rows = parse_records(dialect, Eol::from(found.line_end), body, is_complete, 1);
    let mut first = if rows.is_empty() { Vec::new() } else { rows.remove(0) };
    first.truncate(first.len() - usize::from(dialect.trailing_delimiter && !first.is_empty()));
    let first: Vec<_> = first.into_iter().map(Option::unwrap_or_default).collect();
    infer::column_names(raw_names(&first))
}

/// Returns whether an input has the name of a JSON file.
fn is_named_json(input: &Input) -> bool {
    matches!(input.extension().as_deref(), Some("json" | "ndjson" | "jsonl" | "geojsonl"))
}
