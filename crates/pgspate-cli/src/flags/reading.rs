//! How rows are read: flags of every command that reads some.

use clap::builder::TypedValueParser;
use pgspate::format::sniff::Format;
use pgspate::reading::Options;

use super::shared::source_option;
use super::{Flag, choice, names, part, switch, text, under, value};

pub(super) fn reading() -> Vec<Flag<Options>> {
    let mut flags = dialect();
    flags.extend(columns());
    flags.extend(part(|it: &mut Options| &mut it.source, vec![source_option()]));
    under("Reading", flags)
}

/// What records and fields are.
fn dialect() -> Vec<Flag<Options>> {
    vec![
        value("format", "FORMAT", formats(), |it: &mut Options, format| {
            it.read.format = Some(format)
        })
        .help("Format of the input; found out by default"),
        value("header", "HEADER", headers(), |it: &mut Options, header| it.read.header = header)
            .default("auto")
            .help("Whether the first record names the columns"),
        value("delimiter", "CHAR", byte, |it: &mut Options, byte| it.read.delimiter = Some(byte))
            .help("Between two fields: one byte, or \\t"),
        value("quote", "CHAR", quote, |it: &mut Options, quote| it.read.quote = Some(quote))
            .help("Around a field: one byte, or none"),
        value("escape", "CHAR", byte, |it: &mut Options, byte| it.read.escape = Some(byte))
            .help("Before a quote that is data; the quote itself by default"),
        value("null", "STRING", text(), |it: &mut Options, null| it.read.null = Some(null))
            .help("The unquoted field that means NULL"),
        names("force-null", "COLUMNS", |it: &mut Options, names| it.rows.force_null = names)
            .help("Columns in which a quoted NULL string is NULL too"),
        names("force-not-null", "COLUMNS", |it: &mut Options, names| {
            it.rows.force_not_null = names
        })
        .help("Columns in which an unquoted NULL string is itself"),
        value("comment", "CHAR", byte, |it: &mut Options, byte| it.comment = Some(byte))
            .help("Pass over lines that begin with this"),
        switch("skip-blank-lines", |it: &mut Options| it.skip_blank_lines = true)
            .help("Pass over empty lines, which to COPY are records of one empty field"),
        value("encoding", "ENCODING", text(), |it: &mut Options, name| {
            it.rows.encoding = Some(name)
        })
        .help("Encoding of the input, as PostgreSQL names it"),
    ]
}

/// Where fields go.
fn columns() -> Vec<Flag<Options>> {
    vec![
        names("columns", "COLUMNS", |it: &mut Options, names| it.rows.columns = Some(names))
            .help("The columns that the fields go to, in the fields' order"),
        switch("ignore-unknown", |it: &mut Options| it.rows.ignore_unknown = true)
            .help("Pass over fields and keys that no column is named after"),
    ]
}

fn formats() -> impl TypedValueParser<Value = Format> {
    choice(Format::ALL.map(|format| (format.name(), format.help(), format)))
}

fn headers() -> impl TypedValueParser<Value = Option<bool>> {
    choice([
        ("auto", "Find out", None),
        ("yes", "It does", Some(true)),
        ("no", "It does not", Some(false)),
    ])
}

fn quote(value: &str) -> Result<Option<u8>, String> {
    match value {
        "none" | "" => Ok(None),
        _ => byte(value).map(Some),
    }
}

/// As in COPY: one byte that is neither a line end nor, for a delimiter, hard to tell from data.
pub(super) fn byte(value: &str) -> Result<u8, String> {
    match value {
        "\\t" | "tab" => Ok(b'\t'),
        "\n" | "\r" | "\\n" | "\\r" => Err("a line end cannot be one".to_owned()),
        _ => match value.as_bytes() {
            [byte] => Ok(*byte),
            _ => Err("expected one single-byte character, or \\t".to_owned()),
        },
    }
}
