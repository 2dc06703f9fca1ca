//! A file as it is found, and which files are of one table.
//!
//! Files of a pattern, of a folder within the folder that was named, and files side by side whose
//! names differ in digits alone may be. They are if they can be read alike: their columns have the
//! same names, and they are delimited and quoted in the same way. A file without rows is of
//! whichever table is there for its place. What is found out holds for all files of the table.

use pgspate::format::sniff::{Format, Overrides, Sniffed, sniff};
use pgspate::format::{RowForm, infer};
use pgspate::reading;
use pgspate::source::{self, Input};
use pgspate::{Error, Kind, Result};

use super::Table;
use super::form::{Header, copy_form, first_line, header, is_delimited, overrides};
use crate::dataset::LoadFile;

/// The quote that is looked for where none is given.
const QUOTE: u8 = b'"';
/// What may stand before the first byte of a text.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// A file as it was found.
pub(super) struct Found {
    /// The same for all files that may be of one table.
    place: String,
    /// What the table is called if this is its only file, and if it is one of several.
    names: [String; 2],
    source: String,
    input: Input,
    sniffed: Sniffed,
    header: Header,
    /// Its columns: names of a header in any order, keys, or names and types of a schema.
    columns: Vec<String>,
    /// Quote and escape, if there are any quotes to know them by.
    quotes: Option<(Option<u8>, u8)>,
    /// Its only line as a header, if it may be one.
    line: Option<Header>,
    is_empty: bool,
}

impl Found {
    /// Looks at one file of those that a path stands for.
    pub(super) fn look(path: &str, source: String, input: Input) -> Result<Found> {
        if input.is_stream() {
            let message = format!("\"{}\" can be read only once", input.name());
            return Err(Error::new(Kind::Usage, message)
                .hint("Every trial reads the data anew: save it to a file, and name the file."));
        }
        let sample = input.peek(reading::SAMPLE_BYTES)?;
        let complete = sample.len() < reading::SAMPLE_BYTES;
        let is_empty = sample.is_empty() || sample == MARK;
        // Nothing can be found out about it, and that is no fault yet.
        let given = Overrides { format: is_empty.then_some(Format::Csv), ..Overrides::default() };
        let sniffed = sniff(input.name(), &sample, complete, None, &given)?;
        let (place, names) = belongs(path, input.name());
        let header = header(&sniffed, &sample, complete);
        let (mut quotes, mut line) = (None, None);
        if is_delimited(&sniffed) {
            // Without any, each way of quoting reads the same rows.
            let has_quotes = sample.contains(&QUOTE);
            quotes = has_quotes.then_some((sniffed.quote, sniffed.escape));
            let first = first_line(&sniffed, &sample, complete);
            line = first.filter(|it| it.is_all && complete && !sniffed.header);
        }
        let columns = columns(&input, &sample, &sniffed, &header)?;
        let line = line.map(|it| it.header);
        Ok(Found { place, names, source, input, sniffed, header, columns, quotes, line, is_empty })
    }

    /// Whether other files may tell more of it than it does.
    fn is_doubtful(&self) -> bool {
        self.is_empty || self.line.is_some()
    }
}

/// What must be the same in files of one table.
fn columns(
    input: &Input,
    sample: &[u8],
    sniffed: &Sniffed,
    header: &Header,
) -> Result<Vec<String>> {
    let mut columns: Vec<String> = match sniffed.format.rows() {
        RowForm::Keyed(format) => {
            (format.columns)(sample).into_iter().map(|column| column.name).collect()
        }
        RowForm::Columnar => {
            let schema = reading::schema(input, sample, sniffed.format)?;
            let field = |name: &str, ty: &dyn std::fmt::Display| format!("{name} {ty}");
            let fields = schema.fields().iter();
            // In this order, as all are read by the schema of the first.
            return Ok(fields.map(|it| field(it.name(), it.data_type())).collect());
        }
        RowForm::Delimited => header.names.clone(),
    };
    columns.sort();
    Ok(columns)
}

/// The files of one table. All are read alike, as `pgspate load` reads all by the first one.
pub(super) struct Group {
    files: Vec<Found>,
    /// How: as the first, but for quotes and escapes; they are those of the first that has any.
    sniffed: Sniffed,
    quotes: Option<(Option<u8>, u8)>,
}

impl Group {
    /// The tables' files, in the order in which these were found; what has no rows comes last, and
    /// of JSON what has the most keys first.
    ///
    /// # Errors
    /// A file is empty, and there is no other of its table.
    pub(super) fn all(found: Vec<Found>) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        let (doubtful, sure) = found.into_iter().partition::<Vec<_>, _>(Found::is_doubtful);
        for mut one in sure.into_iter().chain(doubtful) {
            let fitting = groups.iter_mut().find(|group| group.completes(&one));
            if let Some(group) = fitting {
                one.header = one.line.take().unwrap_or(one.header);
                group.files.push(one);
            } else if one.is_empty {
                let message = format!("\"{}\" is empty", one.input.name());
                return Err(Error::new(Kind::Source, message).hint(
                    "No other file tells which columns its table has: load without this file.",
                ));
            } else if let Some(group) = groups.iter_mut().find(|group| group.fits(&one)) {
                group.push(one);
            } else {
                let (sniffed, quotes) = (one.sniffed.clone(), one.quotes);
                groups.push(Group { files: vec![one], sniffed, quotes });
            }
        }
        Ok(groups)
    }

    fn fits(&self, one: &Found) -> bool {
        let (first, ours, its) = (&self.files[0], &self.sniffed, &one.sniffed);
        if first.place != one.place || ours.format != its.format {
            return false;
        }
        let has_all =
            |one: &[String], other: &[String]| other.iter().all(|name| one.contains(name));
        let (known, columns) = (&first.columns, &one.columns);
        match ours.format.rows() {
            // Keys without a value are often left out.
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

    /// Whether a file without rows is of this table: it has the same header, or nothing.
    fn completes(&self, one: &Found) -> bool {
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

    fn delimits_like(&self, other: &Sniffed) -> bool {
        let ours = &self.sniffed;
        (ours.delimiter, ours.trailing_delimiter) == (other.delimiter, other.trailing_delimiter)
    }

    fn push(&mut self, one: Found) {
        if self.quotes.is_none() {
            self.quotes = one.quotes;
            if let Some((quote, escape)) = one.quotes {
                (self.sniffed.quote, self.sniffed.escape) = (quote, escape);
            }
        }
        let is_keyed = matches!(one.sniffed.format.rows(), RowForm::Keyed(_));
        if is_keyed && one.columns.len() > self.files[0].columns.len() {
            // The first one's keys are the table's columns.
            self.files.insert(0, one);
        } else {
            self.files.push(one);
        }
    }

    /// What its table is to be called.
    pub(super) fn name(&self) -> String {
        self.files[0].names[usize::from(self.files.len() > 1)].clone()
    }

    pub(super) fn table(self, name: String) -> Table {
        let mut not_copied = None;
        let file = |one: Found| {
            let copy = copy_form(&self.sniffed, &one.header);
            if let Err(why) = &copy {
                let (_, name) = split(one.input.name());
                let reason = || format!("COPY does not read {name}: {why}");
                not_copied.get_or_insert_with(reason);
            }
            LoadFile { source: one.source, input: one.input, copy: copy.ok() }
        };
        let files = self.files.into_iter().map(file).collect();
        let (format, read) = (self.sniffed.format, overrides(&self.sniffed));
        Table { name, format, read, files, not_copied }
    }
}

/// A name's folder, and the file's name in it. What a URL asks for beside them is left out: it may
/// be a signature, which is another one each time.
pub(super) fn split(name: &str) -> (&str, &str) {
    let path = match name.contains("://") {
        true => name.split(['?', '#']).next().unwrap_or(name),
        false => name,
    };
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Which files an input is of one table with, as a text that they share, and what the table is
/// called with one file and with several.
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

/// In a URL of a web server a question mark is none.
pub(super) fn is_pattern(path: &str) -> bool {
    match path.contains("://") {
        true => path.contains('*'),
        false => source::is_pattern(path),
    }
}

/// A name without the digits that count its like.
fn without_digits(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// What the table of files like this one is called.
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
