//! Detects the format of an input from its name and its first bytes.
//!
//! `evidence` explains every guess in words for the user. The user can override each guess with an
//! option. This module reads no input: the caller passes a sample, which may end within a record.

mod delimiter;
mod dialect;

use self::delimiter::{DelimiterEvidence, display_delimiter};
use super::RowForm;
use super::infer::columns_of_json;
use super::json::{self, byte_order_mark_len};
use crate::encode::date_format::DateFormats;
use crate::json::skip_space;
use crate::{Error, ErrorKind, InputPlace, Result};

/// A supported format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Delimited, quoted as in COPY CSV.
    Csv,
    /// Delimited by tabs, quoted as in COPY CSV or not at all.
    Tsv,
    /// COPY text: backslash escapes, no quotes.
    Text,
    /// One JSON value per line, values one after another, or one array.
    Json,
    /// Parquet.
    Parquet,
    /// Arrow IPC, file or stream.
    Arrow,
}

impl Format {
    /// All formats, in the order of messages and help.
    pub const ALL: [Format; 6] =
        [Format::Csv, Format::Tsv, Format::Text, Format::Json, Format::Parquet, Format::Arrow];

    /// Returns the format's name, its help, the form of its rows, and the extensions of its files.
    fn properties(self) -> (&'static str, &'static str, RowForm, &'static [&'static str]) {
        use RowForm::{Columnar, Delimited, Keyed};
        match self {
            Format::Csv => {
                ("csv", "Delimited, quoted as in COPY's csv format", Delimited, &["csv"])
            }
            Format::Tsv => ("tsv", "Delimited by tabs", Delimited, &["tsv", "tab"]),
            Format::Text => {
                let help = "COPY's text format: tabs, \\N and backslash escapes";
                ("text", help, Delimited, &["copy", "pgcopy"])
            }
            Format::Json => {
                let help = "One object per line, or an array of objects";
                ("json", help, Keyed(&json::KEYED), &["json", "ndjson", "jsonl", "geojsonl"])
            }
            Format::Parquet => ("parquet", "Parquet", Columnar, &["parquet", "pq"]),
            Format::Arrow => {
                let extensions = &["arrow", "arrows", "feather", "ipc"];
                ("arrow", "Arrow IPC, file or stream", Columnar, extensions)
            }
        }
    }

    /// Returns the format's name in the flag `--format` and in evidence.
    pub fn name(self) -> &'static str {
        self.properties().0
    }

    /// Returns the format's help text.
    pub fn help(self) -> &'static str {
        self.properties().1
    }

    /// Returns the form of the format's rows.
    pub fn rows(self) -> RowForm {
        self.properties().2
    }
}

/// What ends a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnd {
    /// `\n`
    Lf,
    /// `\r\n`
    CrLf,
    /// `\r`
    Cr,
}

/// Marks that a sample does not show, so that their meaning is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnseenMarks {
    /// The quote.
    pub quote: bool,
    /// A quote that does not enclose a whole field, where a guess says that quotes enclose fields.
    pub misplaced_quote: bool,
    /// A quote within a quoted field without the escape before it, where the escape is a guess.
    pub unescaped_quote: bool,
    /// The unquoted field `\N`.
    pub null: bool,
    /// A backslash, where the input may be COPY text: it may begin an escape or be text.
    pub backslash: bool,
}

/// The options that the user gave. They override guesses.
#[derive(Debug, Clone, Default)]
pub struct SniffOverrides {
    /// The format.
    pub format: Option<Format>,
    /// The delimiter.
    pub delimiter: Option<u8>,
    /// The quote, or `Some(None)` for no quotes.
    pub quote: Option<Option<u8>>,
    /// The escape within quotes.
    pub escape: Option<u8>,
    /// The escape of other files, which holds unless it misplaces quotes and another does not.
    pub likely_escape: Option<u8>,
    /// Whether the first record is a header.
    pub header: Option<bool>,
    /// The text that stands for NULL.
    pub null: Option<String>,
}

/// The detected format of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SniffedFormat {
    /// The format. The fields from `delimiter` to `line_end` are for delimited formats only.
    pub format: Format,
    /// The byte between two fields.
    pub delimiter: u8,
    /// The byte around a quoted field, if fields can be quoted.
    pub quote: Option<u8>,
    /// The byte before a quote within a quoted field. By default the quote itself.
    pub escape: u8,
    /// Whether the first record names the columns.
    pub header: bool,
    /// Why `header` may be wrong. The words complete "could not tell whether the first line names
    /// the columns: ...".
    pub header_doubt: Option<&'static str>,
    /// Whether a field of the first record is a known name of a column.
    pub has_known_name: bool,
    /// The unquoted text that stands for NULL.
    pub null: String,
    /// What the sample does not show, so that its meaning is unknown.
    pub unseen: UnseenMarks,
    /// Whether a delimiter follows the last field of each line.
    pub trailing_delimiter: bool,
    /// What ends a line.
    pub line_end: LineEnd,
    /// The length of the UTF-8 byte order mark at the start: 3 or 0.
    pub mark_bytes: usize,
    /// If the first line has one field and most other lines have more: the first character of the
    /// line, and the number of fields of the others. Such a line is a title or a comment.
    pub title: Option<(char, usize)>,
    /// Whether the first line is empty, and later lines have several fields.
    pub begins_empty: bool,
    /// The number of columns, or 0 if the sample does not show it.
    pub columns: usize,
    /// The reason of each guess, in words for the user.
    pub evidence: Vec<String>,
}

impl SniffedFormat {
    /// Returns the defaults for `format`, before the sample is read.
    pub fn of(format: Format) -> SniffedFormat {
        SniffedFormat {
            format,
            delimiter: b',',
            quote: None,
            escape: b'"',
            header: false,
            header_doubt: None,
            has_known_name: false,
            null: String::new(),
            unseen: UnseenMarks::default(),
            trailing_delimiter: false,
            line_end: LineEnd::Lf,
            mark_bytes: 0,
            title: None,
            begins_empty: false,
            columns: 0,
            evidence: Vec::new(),
        }
    }
}

/// Returns the description of a binary file that pgspate does not read, and a hint.
fn unsupported_file(sample: &[u8]) -> Option<(&'static str, &'static str)> {
    let known: [(usize, &[u8], _, _); 6] = [
        (
            0,
            b"SQLite format 3\0",
            "a SQLite database",
            "Export a table: `sqlite3 -csv -header FILE 'select * from t' | pgspate load - ...`.",
        ),
        (
            8,
            b"DUCK",
            "a DuckDB database",
            "Export a table: `duckdb FILE \"copy t to 't.parquet'\"`. Python can pass a relation.",
        ),
        (0, b"Obj\x01", "an Avro file", "Convert it to Parquet or JSON."),
        (0, b"ORC", "an ORC file", "Convert it to Parquet, for example with `pyarrow.orc`."),
        (
            0,
            b"PGCOPY\n\xff\r\n\0",
            "a file of binary COPY",
            "Load it with psql: `\\copy TABLE from FILE (format binary)`.",
        ),
        (257, b"ustar", "a tar archive", "Unpack it, and name the files inside."),
    ];
    known
        .iter()
        .find(|(at, magic, ..)| sample.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
        .map(|(_, _, description, remedy)| (*description, *remedy))
}

/// Detects the format of an input. `name` is the input's path or URL, and `sample` its first
/// decompressed bytes. `complete` says whether `sample` is the whole input. `known` has the names
/// of the target table's columns, if the table exists. `given` has the options that the user gave.
///
/// # Errors
/// [`ErrorKind::Format`] if the input is UTF-16, or [`ErrorKind::Usage`] if neither the name nor
/// the content shows the format.
pub fn sniff(
    name: &str,
    sample: &[u8],
    complete: bool,
    known: Option<&[String]>,
    given: &SniffOverrides,
) -> Result<SniffedFormat> {
    let mut evidence = Vec::new();
    let format = match given.format {
        Some(format) => {
            evidence.push(format!("format {}: as given", format.name()));
            Some(format)
        }
        None => format_by_magic_bytes(sample, &mut evidence),
    };
    let format = match format {
        Some(format) => Some(format),
        None => {
            refuse_utf16(name, sample)?;
            format_by_extension(name, &mut evidence)
                .or_else(|| format_by_content(sample, &mut evidence))
        }
    };
    if let Some(RowForm::Delimited | RowForm::Keyed(_)) = format.map(Format::rows) {
        refuse_utf16(name, sample)?;
    }
    let mut sniffed = SniffedFormat::of(format.unwrap_or(Format::Csv));
    (sniffed.mark_bytes, sniffed.evidence) = (byte_order_mark_len(sample), evidence);
    if sniffed.mark_bytes > 0 {
        sniffed.evidence.push("encoding: a UTF-8 byte order mark, ignored".to_string());
    }
    match sniffed.format.rows() {
        RowForm::Columnar => {}
        RowForm::Keyed(keyed) => {
            sniffed.columns = (keyed.columns)(sample, &DateFormats::default()).len()
        }
        RowForm::Delimited => {
            let body = &sample[sniffed.mark_bytes..];
            refuse_separator_line(name, body)?;
            // Text has no NUL bytes, so the input is an unknown binary file.
            if given.format.is_none() && body.contains(&0) {
                if let Some((description, remedy)) = unsupported_file(sample) {
                    let message =
                        format!("the input is {description}, which pgspate does not read");
                    return Err(Error::new(ErrorKind::Format, message)
                        .at(InputPlace { source: Some(name.to_owned()), ..Default::default() })
                        .hint(remedy));
                }
                let error = unknown_format_error(name, "it contains NUL bytes, so it is not text");
                return Err(error.hint_also(
                    "If it is text with stray NUL bytes, `tr -d '\\000'` removes them.",
                ));
            }
            match dialect::sniff_dialect(body, complete, known, given, name, &mut sniffed) {
                DelimiterEvidence::Tied(one, other) => {
                    return Err(tied_delimiters_error(name, one, other));
                }
                DelimiterEvidence::Default | DelimiterEvidence::Doubtful(_) if format.is_none() => {
                    return Err(unknown_format_error(
                        name,
                        "no delimiter occurs equally often in its lines",
                    ));
                }
                // A table of one column, and COPY's own default, speak for the comma.
                DelimiterEvidence::Doubtful(likely)
                    if given.format.is_none() && known.is_none_or(|known| known.len() != 1) =>
                {
                    return Err(doubtful_delimiter_error(name, likely));
                }
                _ => {}
            }
        }
    }
    Ok(sniffed)
}

/// Returns the error for a csv file whose lines have different numbers of fields, and no comma in
/// the first line.
fn doubtful_delimiter_error(name: &str, likely: u8) -> Error {
    let likely = display_delimiter(likely);
    let message = format!(
        "could not detect the delimiter: most lines have {likely}, but in different numbers"
    );
    Error::new(ErrorKind::Usage, message)
        .at(InputPlace { source: Some(name.to_string()), ..InputPlace::default() })
        .hint(
            "Name the delimiter, for example `--delimiter ';'`. If each line is one field, name \
             the comma.",
        )
}

/// Returns the error for a file whose fields may be separated by either of two delimiters.
fn tied_delimiters_error(name: &str, one: u8, other: u8) -> Error {
    let (one, other) = (display_delimiter(one), display_delimiter(other));
    let message = format!(
        "could not detect the delimiter: {one} and {other} both occur equally often in each line"
    );
    Error::new(ErrorKind::Usage, message)
        .at(InputPlace { source: Some(name.to_string()), ..InputPlace::default() })
        .hint("Name the delimiter, for example `--delimiter ';'`.")
}

fn unknown_format_error(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("could not detect the format of the input: {why}"))
        .at(InputPlace { source: Some(name.to_string()), ..InputPlace::default() })
        .hint("Name the format with `--format csv`, `text`, `json`, `parquet` or `arrow`.")
}

/// Refuses UTF-16, which cannot be cut at newline bytes.
fn refuse_utf16(name: &str, sample: &[u8]) -> Result<()> {
    let encoding = match sample {
        [0xFF, 0xFE, ..] => "UTF-16LE",
        [0xFE, 0xFF, ..] => "UTF-16BE",
        _ => return Ok(()),
    };
    Err(Error::new(
        ErrorKind::Format,
        format!("the input is {encoding}, which pgspate does not read"),
    )
    .at(InputPlace { source: Some(name.to_string()), byte: Some(0), ..InputPlace::default() })
    .hint("Convert it first: `iconv -f UTF-16 -t UTF-8`."))
}

/// Refuses the line `sep=;` that only Excel reads. It would be a header or a row.
fn refuse_separator_line(name: &str, body: &[u8]) -> Result<()> {
    let end = body.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(body.len());
    let [b's' | b'S', b'e' | b'E', b'p' | b'P', b'=', delimiter] = body[..end] else {
        return Ok(());
    };
    let delimiter = char::from(delimiter);
    let message = format!("the first line is `sep={delimiter}`, which only Excel reads");
    let shown = if delimiter == '\t' { "\\t".to_owned() } else { delimiter.to_string() };
    Err(Error::new(ErrorKind::Format, message)
        .at(InputPlace { source: Some(name.to_owned()), line: Some(1), ..InputPlace::default() })
        .hint(format!(
            "Leave the line out, for example by `tail -n +2 FILE`, and give `--delimiter \
             '{shown}'`."
        )))
}

fn format_by_magic_bytes(sample: &[u8], evidence: &mut Vec<String>) -> Option<Format> {
    let (format, what) = if sample.starts_with(b"PAR1") {
        (Format::Parquet, "begins with PAR1")
    } else if sample.starts_with(b"ARROW1") {
        (Format::Arrow, "begins with ARROW1")
    } else if sample.starts_with(&[0xFF; 4]) && sample.get(7).is_some_and(|size| *size < 0x10) {
        (Format::Arrow, "begins with an Arrow stream message")
    } else {
        return None;
    };
    evidence.push(format!("format {}: {what}", format.name()));
    Some(format)
}

const COMPRESSIONS: [&str; 10] =
    ["gz", "gzip", "bz2", "xz", "zst", "zstd", "lz4", "br", "snappy", "z"];

/// Splits the file name at its extension. Folders, the query and suffixes of compressions are left
/// out.
fn split_name(name: &str) -> (&str, Option<String>) {
    let path = match name.split_once("://") {
        Some((_, rest)) => rest.split(['?', '#']).next().unwrap_or(rest),
        None => name,
    };
    let mut base = path.rsplit(['/', '\\']).next().unwrap_or(path);
    loop {
        let Some((stem, extension)) = base.rsplit_once('.').filter(|(s, _)| !s.is_empty()) else {
            return (base, None);
        };
        let extension = extension.to_ascii_lowercase();
        if !COMPRESSIONS.contains(&extension.as_str()) {
            return (base, Some(extension));
        }
        base = stem;
    }
}

/// Returns the file name without folders, and without extensions of formats and compressions.
pub(super) fn stem(name: &str) -> &str {
    let (base, extension) = split_name(name);
    match extension {
        Some(extension) if is_format_extension(&extension) => {
            &base[..base.len() - extension.len() - 1]
        }
        _ => base,
    }
}

fn is_format_extension(extension: &str) -> bool {
    format_of(extension).is_some() || matches!(extension, "txt" | "tbl" | "psv" | "dat" | "data")
}

/// Returns whether an extension is that of a format, such as `csv`. `txt` may be anything.
pub fn names_format(extension: &str) -> bool {
    format_of(extension).is_some()
}

fn format_of(extension: &str) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.properties().3.contains(&extension))
}

fn format_by_extension(name: &str, evidence: &mut Vec<String>) -> Option<Format> {
    let extension = split_name(name).1?;
    let format = match extension.as_str() {
        // Files with these extensions are delimited. The content shows the delimiter.
        "tbl" | "psv" => Format::Csv,
        _ => format_of(&extension)?,
    };
    evidence.push(format!("format {}: the name ends with .{extension}", format.name()));
    Some(format)
}

/// Detects JSON from the first two characters of the content. Delimited text is detected later.
fn format_by_content(sample: &[u8], evidence: &mut Vec<String>) -> Option<Format> {
    let start = skip_space(sample, byte_order_mark_len(sample));
    let next = skip_space(sample, start + 1);
    let is_json = match (sample.get(start), sample.get(next)) {
        (Some(b'{'), Some(b'"' | b'}')) => true,
        (Some(b'['), Some(b'{' | b'[' | b']')) => true,
        (Some(b'['), Some(_)) => !columns_of_json(sample, &DateFormats::default()).is_empty(),
        _ => false,
    };
    if is_json {
        evidence.push("format json: begins like JSON".to_string());
    }
    is_json.then_some(Format::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sniff_complete(name: &str, sample: &[u8]) -> Result<SniffedFormat> {
        sniff(name, sample, true, None, &SniffOverrides::default())
    }

    #[test]
    fn magic_bytes_win_over_the_name_and_the_name_over_the_content() {
        for (name, sample, format) in [
            ("x.csv", &b"PAR1...."[..], Format::Parquet),
            ("x", b"ARROW1\0\0", Format::Arrow),
            ("x", b"\xFF\xFF\xFF\xFF\x10\x01\0\0", Format::Arrow),
            ("X.NDJSON.gz", b"", Format::Json),
            ("https://h/a.tsv?x=y.csv", b"a\tb\n", Format::Tsv),
            ("x.tab.zst", b"a\tb\n", Format::Tsv),
            ("-", b" {\"a\":1}", Format::Json),
            ("-", b"[[1,2]]", Format::Json),
            ("-", b"[1,2]\n[3,4]\n", Format::Json),
            ("-", b"a,b\n1,2\n", Format::Csv),
            ("x.log", b"a\tb\n1\t2\n", Format::Tsv),
            ("x.log", b"a\tb\n1\t2\n\\.\n", Format::Text),
            ("x.tsv", b"a\tb\n1\t2\n\\.\n", Format::Tsv),
            ("x.log", b"a,b\n1,2\n\\.\n", Format::Csv),
        ] {
            assert_eq!(sniff_complete(name, sample).unwrap().format, format, "{name}");
        }
    }

    #[test]
    fn an_unknown_format_is_an_error_that_names_the_flag() {
        for sample in [&b"just words\nand more of them here\n"[..], b"", b"\x00\x01\x02"] {
            let error = sniff_complete("notes", sample).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.hint_text().unwrap().contains("--format"));
        }
        let error = sniff_complete("x.csv", b"\xFF\xFEa\0,\0b\0").unwrap_err();
        assert_eq!(error.to_string(), "the input is UTF-16LE, which pgspate does not read");
        assert!(error.hint_text().unwrap().contains("iconv -f UTF-16"));
    }

    #[test]
    fn given_options_override_guesses() {
        let given = SniffOverrides { format: Some(Format::Text), ..SniffOverrides::default() };
        let sniffed = sniff("x.json", b"a\tb\n", true, None, &given).unwrap();
        assert_eq!((sniffed.format, sniffed.delimiter, sniffed.quote), (Format::Text, b'\t', None));
    }

    #[test]
    fn data_with_an_end_marker_is_copy_text_without_a_header() {
        let many = [b"ann\tbob\n".as_slice(), &b"kim\tlee\n".repeat(2000), b"\\.\n"].concat();
        for (sample, columns) in [
            (&b"ann\tbob\nkim\tlee\n\\.\n"[..], 2),
            (b"one\n\\.\n\n", 1),
            (b"\\.\r\n", 0),
            (&many, 2),
        ] {
            let sniffed = sniff_complete("t.dump", sample).unwrap();
            assert_eq!((sniffed.format, sniffed.header), (Format::Text, false));
            assert_eq!((sniffed.columns, &*sniffed.null), (columns, "\\N"));
        }
        let known = ["id".to_owned(), "name".to_owned()];
        let sample = b"id\tname\nkim\tlee\n\\.\n";
        let sniffed = sniff("t.dump", sample, true, Some(&known), &SniffOverrides::default());
        assert!(sniffed.unwrap().header);
        let named = sniff_complete("t.csv", b"one\ntwo\n\\.\n").unwrap();
        assert_eq!((named.format, named.delimiter), (Format::Csv, b','));
        for sample in [&b"a\tb\nc\t\\.\n"[..], b"a\tb\n\\.\nc\td\ne\tf\n"] {
            assert_eq!(sniff_complete("t", sample).unwrap().format, Format::Tsv);
        }
    }

    #[test]
    fn json_columns_are_counted() {
        let sniffed = sniff_complete("x.json", b"\xEF\xBB\xBF{\"a\":1}\n{\"b\":1}").unwrap();
        assert_eq!((sniffed.columns, sniffed.mark_bytes), (2, 3));
    }
}
