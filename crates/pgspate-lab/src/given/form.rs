//! How a file of the user's own is read: what pgspate is told of it, and what COPY is.
//!
//! Both follow from one look at the file, so that both see the same rows; or COPY cannot read it,
//! and the reason is said.

use pgspate::format::RowForm;
use pgspate::format::delimited::{self, Eol, parse_records};
use pgspate::format::infer;
use pgspate::format::sniff::{Format, Overrides, Sniffed};
use pgspate::reading;
use pgspate::target::quote_ident;

use crate::dataset::CopyForm;

/// A quote that stands in no text, where a quote is a character like any other.
const NO_QUOTE: u8 = 8;

/// Whether its rows are lines of fields.
pub(super) fn is_delimited(sniffed: &Sniffed) -> bool {
    matches!(sniffed.format.rows(), RowForm::Delimited)
}

/// The first record of a file, if it names columns.
pub(super) struct Header {
    /// Bytes before the first row.
    skip: u64,
    /// The columns' names as a table that is made has them.
    pub(super) names: Vec<String>,
    /// Whether they are UTF-8.
    is_text: bool,
}

/// The first line of a file.
pub(super) struct FirstLine {
    /// As a header.
    pub(super) header: Header,
    /// Whether nothing follows.
    pub(super) is_all: bool,
}

/// The header of a file that begins with this sample.
pub(super) fn header(sniffed: &Sniffed, sample: &[u8], complete: bool) -> Header {
    if is_delimited(sniffed)
        && sniffed.header
        && let Some(first) = first_line(sniffed, sample, complete)
    {
        return first.header;
    }
    Header { skip: sniffed.mark_bytes as u64, names: Vec::new(), is_text: true }
}

/// The first line of delimited text, if there is any.
pub(super) fn first_line(sniffed: &Sniffed, sample: &[u8], complete: bool) -> Option<FirstLine> {
    let dialect = reading::dialect(sniffed, &reading::Options::default());
    let eol = Eol::from(sniffed.line_end);
    let body = &sample[sniffed.mark_bytes.min(sample.len())..];
    let mut records = parse_records(&dialect, eol, body, complete, 2).into_iter();
    let mut fields = records.next()?;
    fields.truncate(fields.len().saturating_sub(usize::from(sniffed.trailing_delimiter)));
    let names = fields.into_iter().map(Option::unwrap_or_default).map(String::from_utf8);
    let names: Vec<_> = names.collect();
    let header = Header {
        skip: (sniffed.mark_bytes + delimited::first_line(&dialect, eol, body).len()) as u64,
        is_text: names.iter().all(Result::is_ok),
        names: infer::column_names(names.into_iter().map(Result::unwrap_or_default)),
    };
    Some(FirstLine { header, is_all: records.next().is_none() })
}

/// What was found out, to be told, so that it is not found out anew.
pub(super) fn overrides(sniffed: &Sniffed) -> Overrides {
    let is_csv = sniffed.format != Format::Text;
    if !is_delimited(sniffed) {
        return Overrides { format: Some(sniffed.format), ..Overrides::default() };
    }
    Overrides {
        format: Some(sniffed.format),
        delimiter: Some(sniffed.delimiter),
        quote: is_csv.then_some(sniffed.quote),
        escape: (is_csv && sniffed.quote.is_some()).then_some(sniffed.escape),
        header: Some(sniffed.header),
        null: Some(sniffed.null.clone()),
    }
}

/// How COPY is told to read a file; in words, why it cannot.
pub(super) fn copy_form(sniffed: &Sniffed, header: &Header) -> Result<CopyForm, String> {
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
        let sniffed = sniff(name, text.as_bytes(), true, None, &Overrides::default()).unwrap();
        copy_form(&sniffed, &header(&sniffed, text.as_bytes(), true))
    }

    #[test]
    fn copy_is_told_what_was_found() {
        let csv = form("a.csv", "\u{feff}id;Full name\n1;\"x;y\"\n2;z\n").unwrap();
        // The mark and the header.
        assert_eq!((csv.skip, csv.columns.as_str()), (16, "(id, \"Full name\")"));
        assert!(csv.options.starts_with("with (format csv, delimiter E'\\x3b', quote E'\\x22'"));
        let tsv = form("d.tsv", "id\tname\n1\t5\" disk\n2\t\\N\n3\tx\n").unwrap();
        assert!(tsv.options.contains("quote E'\\x08'"), "{}", tsv.options);
        assert!(tsv.options.contains("null '\\N'"), "{}", tsv.options);
        let bare = form("e.csv", "1,2.5\n3,4.5\n").unwrap();
        assert_eq!((bare.skip, bare.columns.as_str()), (0, ""));
    }

    #[test]
    fn copy_is_left_out_where_it_cannot_read() {
        let why = form("b.tbl", "1|x|\n2|y|\n").unwrap_err();
        assert_eq!(why, "its lines end with a delimiter");
        assert_eq!(form("c.json", "{\"a\": 1}\n").unwrap_err(), "it is json");
    }
}
