//! Flags for how rows are read, shared by the commands that read files.

use std::sync::Arc;

use clap::builder::TypedValueParser;
use pgspate::encode::date_format::{DateFormat, DateFormats};
use pgspate::format::sniff::Format;
use pgspate::reading::ReadingOptions;

use super::shared::source_option;
use super::{Flag, choice, column_names, part, switch, text, under, value, values};

pub(super) fn reading() -> Vec<Flag<ReadingOptions>> {
    let mut flags = dialect();
    flags.extend(columns());
    flags.extend(part(|it: &mut ReadingOptions| &mut it.source, vec![source_option()]));
    under("Reading", flags)
}

/// Returns the flags for the format of records and fields.
fn dialect() -> Vec<Flag<ReadingOptions>> {
    vec![
        value("format", "FORMAT", format_parser(), |it: &mut ReadingOptions, format| {
            it.read.format = Some(format)
        })
        .help("Read this format [default: detected from name and content]"),
        value("header", "HEADER", header_parser(), |it: &mut ReadingOptions, header| {
            it.read.header = header
        })
        .default("auto")
        .help("Say whether the first record names the columns"),
        value("delimiter", "CHAR", byte, |it: &mut ReadingOptions, byte| {
            it.read.delimiter = Some(byte)
        })
        .help("Split fields at this byte; write a tab as \\t"),
        value("quote", "CHAR", parse_quote, |it: &mut ReadingOptions, quote| {
            it.read.quote = Some(quote)
        })
        .help("Take this byte for the quote character; `none` for no quoting"),
        value("escape", "CHAR", byte, |it: &mut ReadingOptions, byte| it.read.escape = Some(byte))
            .help(
                "Escape quotes within quoted fields with this byte [default: the quote character]",
            ),
        value("null", "STRING", text(), |it: &mut ReadingOptions, null| it.read.null = Some(null))
            .help("Read this unquoted field as NULL"),
        column_names("force-null", "COLUMNS", |it: &mut ReadingOptions, names| {
            it.rows.force_null = names
        })
        .help("Read the NULL string as NULL in these columns even if it is quoted"),
        column_names("force-not-null", "COLUMNS", |it: &mut ReadingOptions, names| {
            it.rows.force_not_null = names
        })
        .help("Read the NULL string as a string in these columns"),
        value("comment", "CHAR", byte, |it: &mut ReadingOptions, byte| it.comment = Some(byte))
            .help("Skip lines that begin with this byte"),
        switch("skip-blank-lines", |it: &mut ReadingOptions| it.skip_blank_lines = true)
            .help("Skip empty lines, which COPY would read as records of one empty field"),
        values("date-format", "FORMAT", date_format, |it: &mut ReadingOptions, formats| {
            it.rows.date_formats = DateFormats(formats)
        })
        .help("Read dates in this format, such as %d.%m.%Y; COLUMN=FORMAT for one column"),
        value("encoding", "ENCODING", text(), |it: &mut ReadingOptions, name| {
            it.rows.encoding = Some(name)
        })
        .help("Read the input in this encoding, as PostgreSQL names it"),
    ]
}

/// Returns the flags for the columns that the fields go to.
fn columns() -> Vec<Flag<ReadingOptions>> {
    vec![
        column_names("columns", "COLUMNS", |it: &mut ReadingOptions, names| {
            it.rows.columns = Some(names)
        })
        .help("Write the fields to these columns, in the order of the fields"),
        values("set", "COLUMN=VALUE", constant, |it: &mut ReadingOptions, constants| {
            it.rows.constants = constants
        })
        .help("Write this value to a column that the input lacks; \\N for NULL"),
        value("file-name-column", "COLUMN", text(), |it: &mut ReadingOptions, name| {
            it.rows.file_name_column = Some(name)
        })
        .help("Write the name of each row's file to this column"),
        switch("snake-case", |it: &mut ReadingOptions| it.rows.snake_case = true)
            .help("Read the fields' names in snake case: OrderId and \"Order ID\" as order_id"),
        switch("ignore-unknown", |it: &mut ReadingOptions| it.rows.ignore_unknown = true)
            .help("Ignore fields and keys that match no column, or a generated column"),
        switch("add-columns", |it: &mut ReadingOptions| it.rows.add_columns = true)
            .with(|arg| arg.conflicts_with("ignore-unknown"))
            .help("Add columns that the table lacks, with types that fit the input"),
    ]
}

/// Parses a format of dates, with the column that it is for.
fn date_format(value: &str) -> Result<(Option<String>, Arc<DateFormat>), String> {
    let (column, format) = match value.split_once('=') {
        Some((column, format)) if !column.is_empty() && !column.contains('%') => {
            (Some(column.to_owned()), format)
        }
        _ => (None, value),
    };
    Ok((column, Arc::new(DateFormat::parse(format)?)))
}

/// Parses a column and its value for all rows. `\N` is NULL, as in COPY text.
fn constant(value: &str) -> Result<(String, Option<String>), &'static str> {
    match value.split_once('=') {
        Some((column, value)) if !column.is_empty() => {
            Ok((column.to_owned(), (value != "\\N").then(|| value.to_owned())))
        }
        _ => Err("expected COLUMN=VALUE, such as tenant=acme"),
    }
}

fn format_parser() -> impl TypedValueParser<Value = Format> {
    choice(Format::ALL.map(|format| (format.name(), format.help(), format)))
}

fn header_parser() -> impl TypedValueParser<Value = Option<bool>> {
    choice([
        ("auto", "Detect it from the content", None),
        ("yes", "The first record names the columns", Some(true)),
        ("no", "The first record is data", Some(false)),
    ])
}

fn parse_quote(value: &str) -> Result<Option<u8>, String> {
    match value {
        "none" | "" => Ok(None),
        _ => byte(value).map(Some),
    }
}

/// Parses a single byte that is not a line end, as COPY does.
pub(super) fn byte(value: &str) -> Result<u8, String> {
    match value {
        "\\t" | "tab" => Ok(b'\t'),
        "\n" | "\r" | "\\n" | "\\r" => {
            Err("expected one single-byte character, found a line end".to_owned())
        }
        _ => match value.as_bytes() {
            [byte] => Ok(*byte),
            _ => Err("expected one single-byte character, or \\t".to_owned()),
        },
    }
}
