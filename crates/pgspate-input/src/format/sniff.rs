//! What an input is, from its name and its first bytes.
//!
//! A guess is never silent: each one is in `evidence`, in words for the user, and each one can be
//! given instead. Nothing here reads anything; a sample may end within a record.

mod table;

use super::RowForm;
use super::infer::columns_of_json;
use super::json::{self, mark_len};
use crate::json::skip_space;
use crate::{Error, ErrorKind, InputPlace, Result};

/// A format that can be read.
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
    /// All of them, in the order in which they are named to users.
    pub const ALL: [Format; 6] =
        [Format::Csv, Format::Tsv, Format::Text, Format::Json, Format::Parquet, Format::Arrow];

    /// Its name, its help, how its rows are written, and what names of its files end with.
    fn facts(self) -> (&'static str, &'static str, RowForm, &'static [&'static str]) {
        use RowForm::{Columnar, Delimited, Keyed};
        match self {
            Format::Csv => ("csv", "Delimited, quoted as COPY's csv", Delimited, &["csv"]),
            Format::Tsv => ("tsv", "Delimited by tabs", Delimited, &["tsv", "tab"]),
            Format::Text => {
                let help = "COPY's text: tabs, \\N and backslash escapes";
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

    /// Its name as the flag `--format` and evidence have it.
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// What the help of the flag says of it.
    pub fn help(self) -> &'static str {
        self.facts().1
    }

    /// How its rows are written.
    pub fn rows(self) -> RowForm {
        self.facts().2
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

/// What the user has said; it is taken as given.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// The format.
    pub format: Option<Format>,
    /// The delimiter.
    pub delimiter: Option<u8>,
    /// The quote; `Some(None)` for none.
    pub quote: Option<Option<u8>>,
    /// The escape within quotes.
    pub escape: Option<u8>,
    /// Whether the first record is a header.
    pub header: Option<bool>,
    /// The spelling of NULL.
    pub null: Option<String>,
}

/// What an input is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sniffed {
    /// Its format. What follows down to `line_end` is of use for delimited formats only.
    pub format: Format,
    /// Between two fields.
    pub delimiter: u8,
    /// Around a field, if anything is.
    pub quote: Option<u8>,
    /// Before a quote within quotes; the quote itself by default.
    pub escape: u8,
    /// Whether the first record names the columns.
    pub header: bool,
    /// An unquoted field that is NULL.
    pub null: String,
    /// Each line ends with a delimiter that begins no field.
    pub trailing_delimiter: bool,
    /// What ends a line.
    pub line_end: LineEnd,
    /// Bytes of a UTF-8 byte order mark at the front: 3 or 0.
    pub mark_bytes: usize,
    /// How many columns there are; 0 where the sample does not say.
    pub columns: usize,
    /// What led to each guess, in words for the user.
    pub evidence: Vec<String>,
}

impl Sniffed {
    /// An input of which nothing is known but its format.
    pub fn of(format: Format) -> Sniffed {
        Sniffed {
            format,
            delimiter: b',',
            quote: None,
            escape: b'"',
            header: false,
            null: String::new(),
            trailing_delimiter: false,
            line_end: LineEnd::Lf,
            mark_bytes: 0,
            columns: 0,
            evidence: Vec::new(),
        }
    }
}

/// Finds out what an input is. `name` is its path or URL, `sample` its first decompressed bytes,
/// `complete` whether they are all of it, `known` the columns of the table it goes to.
///
/// # Errors
/// [`ErrorKind::Format`] for UTF-16 and for what is no format that can be read;
/// [`ErrorKind::Usage`] when neither name nor content tell the format.
pub fn sniff(
    name: &str,
    sample: &[u8],
    complete: bool,
    known: Option<&[String]>,
    given: &Overrides,
) -> Result<Sniffed> {
    let mut evidence = Vec::new();
    let format = match given.format {
        Some(format) => {
            evidence.push(format!("format {}: as given", format.name()));
            Some(format)
        }
        None => by_magic(sample, &mut evidence),
    };
    let format = match format {
        Some(format) => Some(format),
        None => {
            refuse_wide(name, sample)?;
            by_extension(name, &mut evidence).or_else(|| by_content(sample, &mut evidence))
        }
    };
    if let Some(RowForm::Delimited | RowForm::Keyed(_)) = format.map(Format::rows) {
        refuse_wide(name, sample)?;
    }
    let mut sniffed = Sniffed::of(format.unwrap_or(Format::Csv));
    (sniffed.mark_bytes, sniffed.evidence) = (mark_len(sample), evidence);
    if sniffed.mark_bytes > 0 {
        sniffed.evidence.push("encoding: a UTF-8 byte order mark, passed over".to_string());
    }
    match sniffed.format.rows() {
        RowForm::Columnar => {}
        RowForm::Keyed(keyed) => sniffed.columns = (keyed.columns)(sample).len(),
        RowForm::Delimited => {
            let body = &sample[sniffed.mark_bytes..];
            // Zero bytes occur in no text, so this is a binary file of another kind.
            if given.format.is_none() && body.contains(&0) {
                return Err(undecided(name, "it holds zero bytes, so it is no text"));
            }
            let sure = table::describe(body, complete, known, given, name, &mut sniffed);
            if format.is_none() && !sure {
                return Err(undecided(name, "no delimiter stands equally often in its lines"));
            }
        }
    }
    Ok(sniffed)
}

fn undecided(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("could not tell the format of the input: {why}"))
        .at(InputPlace { source: Some(name.to_string()), ..InputPlace::default() })
        .hint("Name it with `--format csv`, `text`, `json`, `parquet` or `arrow`.")
}

/// Text in two bytes a character cannot be cut at newlines.
fn refuse_wide(name: &str, sample: &[u8]) -> Result<()> {
    let order = match sample {
        [0xFF, 0xFE, ..] => "UTF-16LE",
        [0xFE, 0xFF, ..] => "UTF-16BE",
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Format, format!("the input is {order}, which cannot be read"))
        .at(InputPlace { source: Some(name.to_string()), byte: Some(0), ..InputPlace::default() })
        .hint("Convert it first: `iconv -f UTF-16 -t UTF-8`."))
}

fn by_magic(sample: &[u8], evidence: &mut Vec<String>) -> Option<Format> {
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

/// The file name without folders, query and compression suffix, split at its extension.
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

/// The file name without folders and the extensions of formats and compressions.
pub(super) fn stem(name: &str) -> &str {
    let (base, extension) = split_name(name);
    match extension {
        Some(extension) if is_known(&extension) => &base[..base.len() - extension.len() - 1],
        _ => base,
    }
}

fn is_known(extension: &str) -> bool {
    format_of(extension).is_some() || matches!(extension, "txt" | "tbl" | "psv" | "dat" | "data")
}

fn format_of(extension: &str) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.facts().3.contains(&extension))
}

fn by_extension(name: &str, evidence: &mut Vec<String>) -> Option<Format> {
    let extension = split_name(name).1?;
    let format = match extension.as_str() {
        // Always delimited; by what, the content says.
        "tbl" | "psv" => Format::Csv,
        _ => format_of(&extension)?,
    };
    evidence.push(format!("format {}: the name ends with .{extension}", format.name()));
    Some(format)
}

/// The content alone: JSON shows in its first two characters, delimited text in the end.
fn by_content(sample: &[u8], evidence: &mut Vec<String>) -> Option<Format> {
    let start = skip_space(sample, mark_len(sample));
    let next = skip_space(sample, start + 1);
    let json = match (sample.get(start), sample.get(next)) {
        (Some(b'{'), Some(b'"' | b'}')) => true,
        (Some(b'['), Some(b'{' | b'[' | b']')) => true,
        (Some(b'['), Some(_)) => !columns_of_json(sample).is_empty(),
        _ => false,
    };
    if json {
        evidence.push("format json: begins like JSON".to_string());
    }
    json.then_some(Format::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, sample: &[u8]) -> Result<Sniffed> {
        sniff(name, sample, true, None, &Overrides::default())
    }

    #[test]
    fn magic_goes_before_name_before_content() {
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
        ] {
            assert_eq!(told(name, sample).unwrap().format, format, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_an_error_with_the_flag() {
        for sample in [&b"just words\nand more of them here\n"[..], b"", b"\x00\x01\x02"] {
            let error = told("notes", sample).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.hint_text().unwrap().contains("--format"));
        }
        let error = told("x.csv", b"\xFF\xFEa\0,\0b\0").unwrap_err();
        assert_eq!(error.to_string(), "the input is UTF-16LE, which cannot be read");
        assert!(error.hint_text().unwrap().contains("iconv -f UTF-16"));
    }

    #[test]
    fn what_is_given_is_taken() {
        let given = Overrides { format: Some(Format::Text), ..Overrides::default() };
        let sniffed = sniff("x.json", b"a\tb\n", true, None, &given).unwrap();
        assert_eq!((sniffed.format, sniffed.delimiter, sniffed.quote), (Format::Text, b'\t', None));
    }

    #[test]
    fn json_columns_are_counted() {
        let sniffed = told("x.json", b"\xEF\xBB\xBF{\"a\":1}\n{\"b\":1}").unwrap();
        assert_eq!((sniffed.columns, sniffed.mark_bytes), (2, 3));
    }
}
