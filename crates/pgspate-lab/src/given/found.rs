//! Inspects files and groups those that belong to one table.
//!
//! Candidates for one table are files of a pattern, files of a subfolder, and files of a folder
//! whose names differ only in digits. They are one table if their columns have the same names, and
//! their delimiters and quotes are equal. A file without rows joins the table of its place. The
//! inferred format holds for all files of the table.

use pgspate::encode::date_format::DateFormats;
use pgspate::format::sniff::{Format, SniffOverrides, SniffedFormat, sniff};
use pgspate::format::{RowForm, infer};
use pgspate::reading;
use pgspate::source::{self, Input};
use pgspate::{Error, ErrorKind, Result};

use super::FileTable;
use super::form::{FileHeader, copy_form, first_line, header, is_delimited, overrides};
use crate::dataset::LoadFile;

/// The default quote character.
const QUOTE: u8 = b'"';
/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// An inspected file.
pub(super) struct FoundFile {
    /// A text that all candidates for one table share.
    place: String,
    /// The table's name if this is its only file, and if it is one of several.
    names: [String; 2],
    source: String,
    input: Input,
    sniffed: SniffedFormat,
    header: FileHeader,
    /// The columns: names of a header in any order, keys, or names and types of a schema.
    columns: Vec<String>,
    /// Quote and escape, if the sample has a quote.
    quotes: Option<(Option<u8>, u8)>,
    /// The only line, parsed as a header, if it may be one.
    line: Option<FileHeader>,
    is_empty: bool,
}

impl FoundFile {
    /// Inspects one file of a path.
    pub(super) fn inspect(path: &str, source: String, input: Input) -> Result<FoundFile> {
        if input.is_stream() {
            let message = format!("\"{}\" can be read only once", input.name());
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Every trial reads the data again: save it to a file, and name the file."));
        }
        let sample = input.peek(reading::SAMPLE_BYTES)?;
        let complete = sample.len() < reading::SAMPLE_BYTES;
        let is_empty = sample.is_empty() || sample == MARK;
        // The format of an empty file is unknown, which is no error yet.
        let given =
            SniffOverrides { format: is_empty.then_some(Format::Csv), ..SniffOverrides::default() };
        let sniffed = sniff(input.name(), &sample, complete, None, &given)?;
        let (place, names) = belongs(path, input.name());
        let header = header(&sniffed, &sample, complete);
        let (mut quotes, mut line) = (None, None);
        if is_delimited(&sniffed) {
            // Without quotes in the sample, every quote option reads the same rows.
            let has_quotes = sample.contains(&QUOTE);
            quotes = has_quotes.then_some((sniffed.quote, sniffed.escape));
            let first = first_line(&sniffed, &sample, complete);
            line = first.filter(|it| it.is_only_line && complete && !sniffed.header);
        }
        let columns = columns(&input, &sample, &sniffed, &header)?;
        let line = line.map(|it| it.header);
        Ok(FoundFile {
            place,
            names,
            source,
            input,
            sniffed,
            header,
            columns,
            quotes,
            line,
            is_empty,
        })
    }

    /// Returns whether other files may show more about the table than this file does: it is empty,
    /// or its only line may be a header.
    fn is_doubtful(&self) -> bool {
        self.is_empty || self.line.is_some()
    }
}

/// Returns the columns, which must be equal in all files of a table.
fn columns(
    input: &Input,
    sample: &[u8],
    sniffed: &SniffedFormat,
    header: &FileHeader,
) -> Result<Vec<String>> {
    let mut columns: Vec<String> = match sniffed.format.rows() {
        RowForm::Keyed(format) => (format.columns)(sample, &DateFormats::default())
            .into_iter()
            .map(|column| column.name)
            .collect(),
        RowForm::Columnar => {
            let schema = reading::read_schema(input, sample, sniffed.format)?;
            let field = |name: &str, ty: &dyn std::fmt::Display| format!("{name} {ty}");
            let fields = schema.fields().iter();
            // The order matters: all files are read by the schema of the first.
            return Ok(fields.map(|it| field(it.name(), it.data_type())).collect());
        }
        RowForm::Delimited => header.names.clone(),
    };
    columns.sort();
    Ok(columns)
}

/// The files of one table. All are read alike, as `pgspate load` reads all by the first one.
pub(super) struct FileGroup {
    files: Vec<FoundFile>,
    /// The format of the first file, with quote and escape of the first file that has quotes.
    sniffed: SniffedFormat,
    quotes: Option<(Option<u8>, u8)>,
}

impl FileGroup {
    /// Groups files by table, in their order. Files without rows come last; of JSON files, the one
    /// with the most keys comes first.
    ///
    /// # Errors
    /// When a file is empty, and its table has no other file.
    pub(super) fn all(found: Vec<FoundFile>) -> Result<Vec<FileGroup>> {
        let mut groups: Vec<FileGroup> = Vec::new();
        let (doubtful, sure) = found.into_iter().partition::<Vec<_>, _>(FoundFile::is_doubtful);
        for mut one in sure.into_iter().chain(doubtful) {
            let fitting = groups.iter_mut().find(|group| group.completes(&one));
            if let Some(group) = fitting {
                one.header = one.line.take().unwrap_or(one.header);
                group.files.push(one);
            } else if one.is_empty {
                let message = format!("\"{}\" is empty", one.input.name());
                return Err(Error::new(ErrorKind::Source, message).hint(
                    "No other file shows which columns its table has: load without this file.",
                ));
            } else if let Some(group) = groups.iter_mut().find(|group| group.fits(&one)) {
                group.push(one);
            } else {
                let (sniffed, quotes) = (one.sniffed.clone(), one.quotes);
                groups.push(FileGroup { files: vec![one], sniffed, quotes });
            }
        }
        Ok(groups)
    }

    fn fits(&self, one: &FoundFile) -> bool {
        let (first, ours, its) = (&self.files[0], &self.sniffed, &one.sniffed);
        if first.place != one.place || ours.format != its.format {
            return false;
        }
        let has_all =
            |one: &[String], other: &[String]| other.iter().all(|name| one.contains(name));
        let (known, columns) = (&first.columns, &one.columns);
        match ours.format.rows() {
            // JSON records often omit keys without a value.
            RowForm::Keyed(_) => has_all(known, columns) || has_all(columns, known),
            RowForm::Columnar => known == columns,
            RowForm::Delimited => {
                let are_alike = |(own, other)| own == other;
                known == columns
                    && ours.columns == its.columns
                    && self.delimits_like(its)
                    && self.quotes.zip(one.quotes).is_none_or(are_alike)
            }
        }
    }

    /// Returns whether a file without rows is of this table: it has the same header, or is empty.
    fn completes(&self, one: &FoundFile) -> bool {
        let first = &self.files[0];
        if first.place != one.place {
            return false;
        }
        if one.is_empty {
            return !matches!(self.sniffed.format.rows(), RowForm::Columnar);
        }
        one.line.as_ref().is_some_and(|line| {
            let mut names = line.names.clone();
            names.sort();
            self.sniffed.header
                && self.sniffed.format == one.sniffed.format
                && self.delimits_like(&one.sniffed)
                && names == first.columns
        })
    }

    fn delimits_like(&self, other: &SniffedFormat) -> bool {
        let ours = &self.sniffed;
        (ours.delimiter, ours.trailing_delimiter) == (other.delimiter, other.trailing_delimiter)
    }

    fn push(&mut self, one: FoundFile) {
        if self.quotes.is_none() {
            self.quotes = one.quotes;
            if let Some((quote, escape)) = one.quotes {
                (self.sniffed.quote, self.sniffed.escape) = (quote, escape);
            }
        }
        let is_keyed = matches!(one.sniffed.format.rows(), RowForm::Keyed(_));
        if is_keyed && one.columns.len() > self.files[0].columns.len() {
            // The first file's keys become the table's columns.
            self.files.insert(0, one);
        } else {
            self.files.push(one);
        }
    }

    /// Returns the table's name.
    pub(super) fn name(&self) -> String {
        self.files[0].names[usize::from(self.files.len() > 1)].clone()
    }

    pub(super) fn table(self, name: String) -> FileTable {
        let mut copy_refusal = None;
        let file = |one: FoundFile| {
            let copy = copy_form(&self.sniffed, &one.header);
            if let Err(why) = &copy {
                let (_, name) = split(one.input.name());
                let reason = || format!("COPY does not read {name}: {why}");
                copy_refusal.get_or_insert_with(reason);
            }
            LoadFile { source: one.source, input: one.input, copy: copy.ok() }
        };
        let files = self.files.into_iter().map(file).collect();
        let (format, read) = (self.sniffed.format, overrides(&self.sniffed));
        FileTable { name, format, read, files, copy_refusal }
    }
}

/// Splits a name into folder and file name. A URL's query is left out, as a signature in it changes
/// each time.
pub(super) fn split(name: &str) -> (&str, &str) {
    let path = match name.contains("://") {
        true => name.split(['?', '#']).next().unwrap_or(name),
        false => name,
    };
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns the text that all candidates for one table share, and the table's name for one file and
/// for several.
fn belongs(path: &str, name: &str) -> (String, [String; 2]) {
    let (folder, file) = split(name);
    let names = [infer::table_name(name), shared_name(file)];
    if is_pattern(path) && path != name {
        return (path.to_owned(), names);
    }
    let below = name.strip_prefix(path).map(|rest| rest.trim_start_matches('/'));
    if let Some((within, _)) = below.and_then(|below| below.split_once('/')) {
        let table = infer::table_name(within);
        return (format!("{path}/{within}/"), [table.clone(), table]);
    }
    (format!("{folder}/{}", without_digits(file)), names)
}

/// Returns whether a path is a pattern. In a URL, only `*` is a wildcard.
pub(super) fn is_pattern(path: &str) -> bool {
    match path.contains("://") {
        true => path.contains('*'),
        false => source::is_pattern(path),
    }
}

/// Removes the digits, which number the files of one table.
fn without_digits(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Returns the table's name for several numbered files.
fn shared_name(file: &str) -> String {
    let stem = without_digits(file.split('.').next().unwrap_or(file));
    infer::table_name(if stem.contains(char::is_alphabetic) { &stem } else { "data" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_named_after_its_file() {
        let signed = |file: &str, date: &str| {
            let name = format!("https://h.example/in/{file}?X-Amz-Date={date}&X-Amz-Signature=...");
            belongs(&name, &name)
        };
        let (place, names) = signed("x-1.csv.gz", "20241104");
        assert_eq!(names, ["x_1", "x"]);
        assert_eq!(place, "https://h.example/in/x-.csv.gz");
        assert_eq!(signed("x-2.csv.gz", "20241105"), (place, ["x_2", "x"].map(str::to_owned)));
        assert_eq!(split("https://h.example/in/x.csv?a=b/c#d").1, "x.csv");
        assert_eq!(split("in/what?.csv"), ("in", "what?.csv"));
    }
}
