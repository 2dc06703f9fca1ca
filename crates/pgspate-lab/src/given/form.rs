//! How pgspate and COPY read one of the user's files.
//!
//! Both get their options from one inspection of the file, so both read the same rows. If COPY
//! cannot read the file, the reason is reported.

use pgspate::format::RowForm;
use pgspate::format::delimited::{self, Eol, parse_records};
use pgspate::format::infer;
use pgspate::format::sniff::{Format, SniffOverrides, SniffedFormat};
use pgspate::reading;
use pgspate::target::quote_ident;

use crate::dataset::CopyForm;

/// The quote option of COPY for files without quoting: a byte that occurs in no text.
const NO_QUOTE: u8 = 8;

/// Returns whether the rows are lines of fields.
pub(super) fn is_delimited(sniffed: &SniffedFormat) -> bool {
    matches!(sniffed.format.rows(), RowForm::Delimited)
}

/// The first record of a file, if it names columns.
pub(super) struct FileHeader {
    /// Bytes before the first row.
    skip: u64,
    /// The names of the columns, as `--create` makes them.
    pub(super) names: Vec<String>,
    /// Whether the names are UTF-8.
    is_text: bool,
}

/// The first line of a file.
pub(super) struct FirstLine {
    /// The line, parsed as a header.
    pub(super) header: FileHeader,
    /// Whether the file has no other line.
    pub(super) is_only_line: bool,
}

/// Parses the header of a file from its sample.
pub(super) fn header(sniffed: &SniffedFormat, sample: &[u8], complete: bool) -> FileHeader {
    if is_delimited(sniffed)
        && sniffed.header
        && let Some(first) = first_line(sniffed, sample, complete)
    {
        return first.header;
    }
    FileHeader { skip: sniffed.mark_bytes as u64, names: Vec::new(), is_text: true }
}

/// Parses the first line of delimited text, if there is one.
pub(super) fn first_line(
    sniffed: &SniffedFormat,
    sample: &[u8],
    complete: bool,
) -> Option<FirstLine> {
    let dialect = reading::dialect(sniffed, &reading::ReadingOptions::default());
    let eol = Eol::from(sniffed.line_end);
    let body = &sample[sniffed.mark_bytes.min(sample.len())..];
    let mut records = parse_records(&dialect, eol, body, complete, 2).into_iter();
    let mut fields = records.next()?;
    fields.truncate(fields.len().saturating_sub(usize::from(sniffed.trailing_delimiter)));
    let names = fields.into_iter().map(Option::unwrap_or_default).map(String::from_utf8);
    let names: Vec<_> = names.collect();
    let header = FileHeader {
        skip: (sniffed.mark_bytes + delimited::first_line(&dialect, eol, body).len()) as u64,
        is_text: names.iter().all(Result::is_ok),
        names: infer::column_names(names.into_iter().map(Result::unwrap_or_default)),
    };
    Some(FirstLine { header, is_only_line: records.next().is_none() })
}

/// Returns the inferred format as explicit options, so that it is not inferred again.
pub(super) fn overrides(sniffed: &SniffedFormat) -> SniffOverrides {
    let is_csv = sniffed.format != Format::Text;
    if !is_delimited(sniffed) {
        return SniffOverrides { format: Some(sniffed.format), ..SniffOverrides::default() };
    }
    SniffOverrides {
        format: Some(sniffed.format),
        delimiter: Some(sniffed.delimiter),
        quote: is_csv.then_some(sniffed.quote),
        escape: (is_csv && sniffed.quote.is_some()).then_some(sniffed.escape),
        likely_escape: None,
        header: Some(sniffed.header),
        null: Some(sniffed.null.clone()),
    }
}

/// Returns COPY's options for a file, or the reason why COPY cannot read it.
pub(super) fn copy_form(sniffed: &SniffedFormat, header: &FileHeader) -> Result<CopyForm, String> {
    let byte = |byte: u8| format!("E'\\x{byte:02x}'");
    let null = format!("'{}'", sniffed.null.replace('\'', "''"));
    let delimiter = byte(sniffed.delimiter);
    let options = match sniffed.format {
        format if !is_delimited(sniffed) => return Err(format!("it is {}", format.name())),
        _ if sniffed.trailing_delimiter => return Err("its lines end with a delimiter".to_owned()),
        _ if !header.is_text => return Err("its header is not UTF-8".to_owned()),
        Format::Text => format!("with (format text, delimiter {delimiter}, null {null})"),
        _ => {
            let quote = sniffed.quote.unwrap_or(NO_QUOTE);
            let escape = sniffed.quote.map_or(NO_QUOTE, |_| sniffed.escape);
            format!(
                "with (format csv, delimiter {delimiter}, quote {}, escape {}, null {null})",
                byte(quote),
                byte(escape)
            )
        }
    };
    let names: Vec<_> = header.names.iter().map(|name| quote_ident(name)).collect();
    let columns = if names.is_empty() { String::new() } else { format!("({})", names.join(", ")) };
    Ok(CopyForm { skip: header.skip, columns, options })
}

#[cfg(test)]
mod tests {
    use pgspate::format::sniff::sniff;

    use super::*;

    fn form(name: &str, text: &str) -> Result<CopyForm, String> {
        let sniffed = sniff(name, text.as_bytes(), true, None, &SniffOverrides::default()).unwrap();
        copy_form(&sniffed, &header(&sniffed, text.as_bytes(), true))
    }

    #[test]
    fn copy_gets_the_inferred_options() {
        let csv = form("a.csv", "\u{feff}id;Full name\n1;\"x;y\"\n2;z\n").unwrap();
        // Byte order mark and header.
        assert_eq!((csv.skip, csv.columns.as_str()), (16, "(id, \"Full name\")"));
        assert!(csv.options.starts_with("with (format csv, delimiter E'\\x3b', quote E'\\x22'"));
        let tsv = form("d.tsv", "id\tname\n1\t5\" disk\n2\t\\N\n3\tx\n").unwrap();
        assert!(tsv.options.contains("quote E'\\x08'"), "{}", tsv.options);
        assert!(tsv.options.contains("null '\\N'"), "{}", tsv.options);
        let bare = form("e.csv", "1,2.5\n3,4.5\n").unwrap();
        assert_eq!((bare.skip, bare.columns.as_str()), (0, ""));
    }

    #[test]
    fn the_reason_says_why_copy_cannot_read_a_file() {
        let why = form("b.tbl", "1|x|\n2|y|\n").unwrap_err();
        assert_eq!(why, "its lines end with a delimiter");
        assert_eq!(form("c.json", "{\"a\": 1}\n").unwrap_err(), "it is json");
    }
}
