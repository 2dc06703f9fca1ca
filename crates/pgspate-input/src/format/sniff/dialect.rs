//! Detects the dialect of delimited text: line ends, delimiter, quotes, NULL, header.
//!
//! Each candidate dialect splits the whole sample, so a delimiter or newline within quotes does not
//! count.

use std::collections::HashSet;

use super::delimiter::{DelimiterEvidence, choose_delimiter, display_delimiter};
use super::{Format, LineEnd, SniffOverrides, SniffedFormat, split_name};
use crate::format::infer::{InferredClass, classify};

/// The most records and bytes of the sample that are examined.
const RECORDS_MAX: usize = 1000;
const BYTES_MAX: usize = 256 << 10;

/// The longest name of a column. Letters beyond ASCII take several bytes.
const NAME_BYTES_MAX: usize = 126;

/// A field of the sample, without its quotes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SampleField {
    pub(super) text: Vec<u8>,
    pub(super) quoted: bool,
}

/// The sample, split into records and fields.
#[derive(Debug, Default)]
pub(super) struct SplitSample {
    pub(super) records: Vec<Vec<SampleField>>,
    /// The number of misplaced quotes: fields that continue after the closing quote, or have no
    /// closing quote.
    pub(super) misplaced_quotes: usize,
    /// The number of fields with an opening and a closing quote.
    pub(super) quoted: usize,
}

/// Detects the dialect of `body` and stores it in `sniffed`. Returns how certain its delimiter is.
pub(super) fn sniff_dialect(
    body: &[u8],
    complete: bool,
    known: Option<&[String]>,
    given: &SniffOverrides,
    name: &str,
    sniffed: &mut SniffedFormat,
) -> DelimiterEvidence {
    let (body, complete) = match body.get(..BYTES_MAX) {
        Some(front) if front.len() < body.len() => (front, false),
        _ => (body, complete),
    };
    let quote = given.quote.unwrap_or(Some(b'"')).filter(|_| sniffed.format == Format::Csv);
    sniffed.line_end = detect_line_end(body, quote);
    let end = if sniffed.line_end == LineEnd::Cr { b'\r' } else { b'\n' };
    let rows = without_end_marker(body).filter(|_| complete);
    let (body, has_marker) = (rows.unwrap_or(body), rows.is_some());
    let is_csv_named = given.format.is_some() || split_name(name).1.is_some_and(|e| e == "csv");
    let may_be_dump = has_marker && !is_csv_named;
    let sample = DelimitedSample { body, complete, end, may_be_dump };
    let evidence = choose_delimiter(&sample, known, given, name, sniffed);
    if sniffed.format == Format::Csv && sniffed.delimiter == b'\t' && !is_csv_named {
        sniffed.format = Format::Tsv;
        if may_be_dump && is_copy_text(body) {
            sniffed.format = Format::Text;
            sniffed.evidence.push("format text: the last line is \\.".to_string());
        }
    }
    choose_quotes(&sample, given, sniffed);
    let mut records = sample.split(sniffed.delimiter, sniffed.quote, sniffed.escape).records;
    let is_empty = |record: &Vec<SampleField>| record.len() == 1 && record[0].text.is_empty();
    let begins_empty = records.first().is_some_and(is_empty);
    records.retain(|record| !is_empty(record));
    sniffed.title = find_title(&records);
    detect_trailing_delimiter(&mut records, known, sniffed);
    detect_null(&records, given, sniffed);
    sniffed.columns = records.first().map_or(0, Vec::len);
    sniffed.begins_empty = begins_empty && sniffed.columns > 1;
    detect_header(&records, has_marker && sniffed.format == Format::Text, known, given, sniffed);
    if !complete && sniffed.header_doubt == Some(ONLY_LINE) {
        sniffed.header_doubt = Some("the first 256 KiB have no other whole line");
    }
    // PostgreSQL writes COPY text with tabs, without a header, with \N, and with its own escapes
    // only.
    let has_copy_nulls = sniffed.null == "\\N";
    if given.format.is_none()
        && sniffed.format == Format::Tsv
        && !split_name(name).1.is_some_and(|e| matches!(e.as_str(), "tsv" | "tab"))
        && has_copy_nulls
        && !sniffed.header
        && is_copy_text(body)
    {
        sniffed.format = Format::Text;
        sniffed.quote = None;
        sniffed.evidence.push("format text: tabs, \\N and no header".to_string());
    }
    sniffed.unseen.backslash = given.format.is_none()
        && sniffed.format == Format::Tsv
        && sniffed.delimiter == b'\t'
        && !sniffed.header
        && !matches!(given.quote, Some(Some(_)))
        && is_copy_text(body);
    if sniffed.format == Format::Text { DelimiterEvidence::Certain } else { evidence }
}

/// Returns the lines before COPY's end marker, if the last line is the marker.
fn without_end_marker(body: &[u8]) -> Option<&[u8]> {
    let rows = body.trim_ascii_end().strip_suffix(b"\\.")?;
    matches!(rows.last(), None | Some(b'\r' | b'\n')).then_some(rows)
}

/// The bytes of the sample, and the byte that ends its lines.
pub(super) struct DelimitedSample<'a> {
    /// The bytes, without COPY's end marker.
    body: &'a [u8],
    complete: bool,
    end: u8,
    /// Whether the marker was there, and neither the user nor the name says which format it is.
    pub(super) may_be_dump: bool,
}

impl DelimitedSample<'_> {
    /// Splits the sample into records and fields.
    pub(super) fn split(&self, delimiter: u8, quote: Option<u8>, escape: u8) -> SplitSample {
        let mut split = SplitSample::default();
        let mut record = Vec::new();
        let mut at = 0;
        while at < self.body.len() && split.records.len() < RECORDS_MAX {
            let mut field = SampleField { text: Vec::new(), quoted: false };
            if quote.is_some() && self.body.get(at).copied() == quote {
                at = self.read_quoted(at + 1, quote, escape, &mut field, &mut split);
            }
            let rest = &self.body[at..];
            let len = rest.iter().position(|b| *b == delimiter || *b == self.end);
            let plain = &rest[..len.unwrap_or(rest.len())];
            let plain = if len.is_some_and(|len| rest[len] == b'\n') {
                plain.strip_suffix(b"\r").unwrap_or(plain)
            } else {
                plain
            };
            if field.quoted && !plain.is_empty() {
                split.misplaced_quotes += 1;
            }
            field.text.extend_from_slice(plain);
            record.push(field);
            let Some(len) = len else { break };
            at += len + 1;
            if rest[len] == self.end {
                split.records.push(std::mem::take(&mut record));
            } else if at == self.body.len() {
                record.push(SampleField { text: Vec::new(), quoted: false });
            }
        }
        // The sample may end within the last record. An incomplete record is used only if the
        // sample has no other record.
        if !record.is_empty() && (self.complete || split.records.is_empty()) {
            split.records.push(record);
        }
        split
    }

    /// Reads a quoted field. `at` is the index after the opening quote. Returns the index after the
    /// closing quote.
    fn read_quoted(
        &self,
        mut at: usize,
        quote: Option<u8>,
        escape: u8,
        field: &mut SampleField,
        split: &mut SplitSample,
    ) -> usize {
        field.quoted = true;
        while let Some(&byte) = self.body.get(at) {
            let next = self.body.get(at + 1).copied();
            if byte == escape && next.is_some() && (next == quote || next == Some(escape)) {
                field.text.extend(next);
                at += 2;
            } else if Some(byte) == quote {
                split.quoted += 1;
                return at + 1;
            } else {
                field.text.push(byte);
                at += 1;
            }
        }
        split.misplaced_quotes += usize::from(self.complete);
        at
    }
}

/// Returns the line end of the first line. Like COPY, pgspate expects the same line end in all
/// lines. Line ends within quotes are ignored.
fn detect_line_end(body: &[u8], quote: Option<u8>) -> LineEnd {
    let mut is_quoted = false;
    for (at, byte) in body.iter().enumerate() {
        match byte {
            _ if Some(*byte) == quote => is_quoted = !is_quoted,
            b'\n' if !is_quoted => return LineEnd::Lf,
            b'\r' if !is_quoted && body.get(at + 1) == Some(&b'\n') => return LineEnd::CrLf,
            b'\r' if !is_quoted => return LineEnd::Cr,
            _ => {}
        }
    }
    LineEnd::Lf
}

/// Returns the first character of the first record, if it has one field, and the number of fields
/// that most other records have, if they have more.
fn find_title(records: &[Vec<SampleField>]) -> Option<(char, usize)> {
    let ([field], rest) = records.split_first().map(|(first, rest)| (&first[..], rest))? else {
        return None;
    };
    let fields = rest.iter().map(Vec::len).max().filter(|fields| *fields > 1)?;
    let usual = rest.iter().filter(|record| record.len() == fields).count();
    (usual * 2 > rest.len()).then_some((char::from(*field.text.first()?), fields))
}

/// Decides whether fields are quoted, and how a quote within quotes is written.
fn choose_quotes(
    sample: &DelimitedSample<'_>,
    given: &SniffOverrides,
    sniffed: &mut SniffedFormat,
) {
    let quote = given.quote.unwrap_or(Some(b'"'));
    sniffed.quote = if sniffed.format == Format::Text { None } else { quote };
    sniffed.escape = given.escape.or(given.likely_escape).or(quote).unwrap_or(b'"');
    let Some(mark) = sniffed.quote else { return };
    let is_guess = given.quote.is_none() && sniffed.format == Format::Tsv;
    sniffed.unseen.misplaced_quote = is_guess;
    let split = sample.split(sniffed.delimiter, quote, sniffed.escape);
    if split.misplaced_quotes > 0 && given.escape.is_none() {
        let other = if sniffed.escape == b'\\' { mark } else { b'\\' };
        if sample.split(sniffed.delimiter, quote, other).misplaced_quotes == 0 {
            sniffed.escape = other;
            sniffed.unseen.unescaped_quote = true;
            sniffed.evidence.push("escape \\: quotes within quotes follow a backslash".to_string());
            return;
        }
    }
    if !is_guess {
        return;
    }
    let has_quotes = sample.body.contains(&mark);
    sniffed.unseen.quote = !has_quotes;
    if has_quotes && (split.misplaced_quotes > 0 || split.quoted == 0) {
        sniffed.quote = None;
        sniffed.evidence.push("quote none: quotes are part of the fields".to_string());
    }
}

/// Detects whether every line ends with a delimiter after its last field.
fn detect_trailing_delimiter(
    records: &mut [Vec<SampleField>],
    known: Option<&[String]>,
    sniffed: &mut SniffedFormat,
) {
    let ends_empty = |record: &Vec<SampleField>| {
        record.len() > 1 && record.last().is_some_and(|f| f.text.is_empty() && !f.quoted)
    };
    // Each column of the table has a field, so the empty field at the end is NULL.
    if known.is_some_and(|known| records.iter().any(|record| record.len() == known.len())) {
        return;
    }
    // Only `|` counts: a comma at the end may also mean that the last column is NULL.
    if sniffed.delimiter != b'|' || records.is_empty() || !records.iter().all(ends_empty) {
        return;
    }
    sniffed.trailing_delimiter = true;
    sniffed
        .evidence
        .push(format!("trailing {}: every line ends with this delimiter", display_delimiter(b'|')));
    for record in records {
        record.pop();
    }
}

/// Detects the text that stands for NULL.
fn detect_null(records: &[Vec<SampleField>], given: &SniffOverrides, sniffed: &mut SniffedFormat) {
    let is_whole_field =
        |text: &[u8]| records.iter().flatten().any(|field| !field.quoted && field.text == text);
    // PostgreSQL's csv has empty fields for NULL. In such a file \N is ordinary text.
    let is_csv_null = sniffed.format == Format::Csv && is_whole_field(b"");
    let has_backslash_null = is_whole_field(b"\\N") && !is_csv_null;
    sniffed.null = match &given.null {
        Some(null) => null.clone(),
        None if has_backslash_null || sniffed.format == Format::Text => "\\N".to_string(),
        None => String::new(),
    };
    sniffed.unseen.null = given.null.is_none() && sniffed.null.is_empty() && !is_csv_null;
    if has_backslash_null && given.null.is_none() {
        sniffed.evidence.push("null \\N: some unquoted fields are \\N".to_string());
    }
}

/// Decides whether the first record names the columns. `is_dump` means that the sample is COPY text
/// with an end marker.
fn detect_header(
    records: &[Vec<SampleField>],
    is_dump: bool,
    known: Option<&[String]>,
    given: &SniffOverrides,
    sniffed: &mut SniffedFormat,
) {
    sniffed.has_known_name = records.first().is_some_and(|first| known_names(first, known) > 0);
    let (header, why) = match (given.header, records.split_first()) {
        (Some(header), _) => (header, "as given"),
        (None, None) => (false, "there are no records"),
        (None, Some((first, _))) if is_dump && known_names(first, known) == 0 => {
            (false, "PostgreSQL writes no header above data with an end marker")
        }
        (None, Some((first, rest))) => {
            let (header, why) = judge_header(first, rest, known, sniffed);
            sniffed.header_doubt = match why {
                ONLY_LINE | FEW_NAMES => looks_like_names(first).then_some(why),
                VALUES if are_years(first) && !rest.iter().any(|row| are_years(row)) => {
                    Some("the first line has successive years, and the other lines have not")
                }
                ONLY_WORDS => (known_names(first, known) == 0).then_some("all columns are text"),
                _ => None,
            };
            (header, why)
        }
    };
    sniffed.header = header;
    let answer = if header { "yes" } else { "no" };
    sniffed.evidence.push(format!("header {answer}: {why}"));
}

const VALUES: &str = "the first line contains values";
const ONLY_LINE: &str = "there is only one line";
const FEW_NAMES: &str = "the other lines have values, but several fields of the first are empty";
const ONLY_WORDS: &str = "the first line looks like names, which do not occur again";
const NO_NAMES: &str = "fields of the first line are empty or equal";

/// Returns whether the numbers of a record are at least two successive years, beside words.
fn are_years(record: &[SampleField]) -> bool {
    let texts = record.iter().map(|it| it.text.trim_ascii()).filter(|it| !is_name(it));
    let years: Option<Vec<u16>> =
        texts.map(|text| std::str::from_utf8(text).ok()?.parse().ok()).collect();
    years.is_some_and(|years| {
        years.len() > 1
            && years.iter().all(|year| (1900..2100).contains(year))
            && (years.is_sorted_by(|a, b| a + 1 == *b) || years.is_sorted_by(|a, b| *a == b + 1))
    })
}

/// Returns whether all fields with text look like names of columns, and there is such a field.
fn looks_like_names(record: &[SampleField]) -> bool {
    let mut texts = record.iter().map(|it| it.text.trim_ascii()).filter(|it| !it.is_empty());
    texts.clone().next().is_some() && texts.all(is_name)
}

/// Returns how many fields of the record are known names of columns.
pub(super) fn known_names(record: &[SampleField], known: Option<&[String]>) -> usize {
    let known: HashSet<String> =
        known.unwrap_or_default().iter().map(|name| name.to_lowercase()).collect();
    let name = |it: &SampleField| String::from_utf8_lossy(it.text.trim_ascii()).to_lowercase();
    record.iter().filter(|field| known.contains(&name(field))).count()
}

/// Returns whether the first record is a header, and why.
fn judge_header(
    first: &[SampleField],
    rest: &[Vec<SampleField>],
    known: Option<&[String]>,
    sniffed: &SniffedFormat,
) -> (bool, &'static str) {
    let names: Vec<_> =
        first.iter().map(|field| String::from_utf8_lossy(field.text.trim_ascii())).collect();
    if known_names(first, known) * 2 > names.len() {
        return (true, "the first line names the table's columns");
    }
    let is_null = |field: &SampleField| !field.quoted && field.text == sniffed.null.as_bytes();
    // `t`, `no` and `on` may be booleans or names of columns.
    let is_word = |field: &SampleField| {
        matches!(classify(&field.text), InferredClass::Text | InferredClass::Boolean)
    };
    if first.iter().any(|field| !field.text.is_empty() && !is_word(field)) {
        return (false, VALUES);
    }
    // One name may be missing, because exports often leave the name of the index column empty.
    let nameless = first.iter().filter(|f| f.text.trim_ascii().is_empty() || is_null(f)).count();
    // Names that differ in upper and lower case are different names.
    let unique: HashSet<_> = names.iter().collect();
    let are_nameless = nameless > usize::from(first.len() > 2);
    let are_equal = unique.len() < names.len();
    if rest.is_empty() {
        return (false, if are_nameless || are_equal { NO_NAMES } else { ONLY_LINE });
    }
    // More than half of the values suffice, because a column may also have words for unknown
    // values.
    let are_mostly = |column: usize, matches: fn(InferredClass) -> bool| {
        let values = rest.iter().filter_map(|r| r.get(column)).filter(|f| !is_null(f));
        let (mut found, mut total) = (0, 0);
        for field in values {
            total += 1;
            found += usize::from(matches(classify(&field.text)));
        }
        found * 2 > total
    };
    let is_bool = |column: usize| classify(&first[column].text) == InferredClass::Boolean;
    let has_values = |column: usize| {
        !is_bool(column) && are_mostly(column, |class| class != InferredClass::Text)
    };
    if are_nameless {
        let is_named = |column: usize| !first[column].text.is_empty() && !is_null(&first[column]);
        let is_doubtful = (0..first.len()).any(|column| is_named(column) && has_values(column));
        return (false, if is_doubtful { FEW_NAMES } else { NO_NAMES });
    }
    if (0..first.len()).any(has_values) {
        return (true, "the first line has names, the other lines have values");
    }
    if are_equal {
        return (false, NO_NAMES);
    }
    if (0..first.len()).any(|column| {
        is_bool(column) && are_mostly(column, |class| class == InferredClass::Boolean)
    }) {
        return (false, "the first line contains values");
    }
    let are_names = first.iter().all(|field| is_name(field.text.trim_ascii()));
    let occur_again = rest.iter().any(|row| row.iter().zip(first).any(|(a, b)| a.text == b.text));
    match (are_names, occur_again) {
        (true, false) => (true, ONLY_WORDS),
        (true, true) => (false, "words of the first line occur again in other lines"),
        (false, _) => (false, "the first line does not look like names"),
    }
}

/// Returns whether a text may be the name of a column. Bytes beyond ASCII are letters, in whatever
/// encoding they are.
fn is_name(text: &[u8]) -> bool {
    const MARKS: &[u8] = b"_ .-()[]/%#&+:'";
    let is_letter = |b: u8| b.is_ascii_alphabetic() || !b.is_ascii();
    text.len() <= NAME_BYTES_MAX
        && text.first().is_some_and(|b| is_letter(*b) || *b == b'_')
        && text.iter().all(|b| is_letter(*b) || b.is_ascii_digit() || MARKS.contains(b))
}

/// Returns whether every backslash begins an escape that COPY text writes.
fn is_copy_text(body: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &body[at..]) {
        at += found + 2;
        match body.get(at - 1) {
            Some(b'\\' | b'N' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'.') => {}
            None => return true,
            Some(_) => return false,
        }
    }
    true
}
