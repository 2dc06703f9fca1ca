//! Files of the user's own as the tables of an experiment.
//!
//! A file is a table, as `pgspate load` would make it. Files of a pattern, of a folder within the
//! folder that was named, and files side by side whose names differ in digits alone are parts of
//! one table, if their columns have the same names and they are delimited and quoted alike. Nothing
//! is guessed twice: what is found out about a table's files is told to all contenders.

mod form;

use std::collections::HashSet;

use pgspate::format::infer;
use pgspate::format::sniff::{Format, Overrides, Sniffed, sniff};
use pgspate::load;
use pgspate::plan::When;
use pgspate::source::{self, Input};
use pgspate::target::quote_ident;
use pgspate::{Error, Kind, Result};
use tokio::runtime::Handle;

use crate::dataset::{LoadFile, Loadable, TableFacts};
use crate::ground::Ground;
use crate::random::Random;
use form::{Header, copy_form, header, is_delimited, overrides};

/// What is looked at of a file, as `pgspate load` does.
const SAMPLE_BYTES: usize = 1 << 20;

/// The quote that is looked for where none is given.
const QUOTE: u8 = b'"';

/// What to do about a row that does not fit the others.
const MEND: &str = "Mend the row, or load without this file.";

/// A table, by its files.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its name, unquoted.
    name: String,
    format: Format,
    read: Overrides,
    pub(crate) files: Vec<LoadFile>,
    /// Why COPY cannot read them, if it cannot.
    pub(crate) not_copied: Option<String>,
}

impl Table {
    pub(crate) fn facts(&self) -> TableFacts {
        TableFacts {
            name: self.name.clone(),
            files: self.files.len(),
            bytes: self.bytes(),
            format: self.format.name().to_owned(),
        }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.input.stored_bytes()).sum()
    }
}

/// A file as it was found.
struct Found {
    /// Which files are of one table: those for which this is the same, if quotes do not differ.
    key: String,
    /// What the table is called if this is its only file, and if it is one of several.
    names: [String; 2],
    source: String,
    input: Input,
    sniffed: Sniffed,
    header: Header,
    /// Quote and escape, if there are any quotes to know them by.
    quotes: Option<(Option<u8>, u8)>,
}

/// The files of one table. All are read alike, as `pgspate load` reads all by the first one.
struct Group {
    files: Vec<Found>,
    /// How: as the first, but for quotes and escapes; they are those of the first that has any.
    sniffed: Sniffed,
    quotes: Option<(Option<u8>, u8)>,
}

impl Group {
    fn of(one: Found) -> Group {
        Group { sniffed: one.sniffed.clone(), quotes: one.quotes, files: vec![one] }
    }

    fn fits(&self, one: &Found) -> bool {
        let are_alike = |(own, other)| own == other;
        self.files[0].key == one.key && self.quotes.zip(one.quotes).is_none_or(are_alike)
    }

    fn push(&mut self, one: Found) {
        if self.quotes.is_none() {
            self.quotes = one.quotes;
            if let Some((quote, escape)) = one.quotes {
                (self.sniffed.quote, self.sniffed.escape) = (quote, escape);
            }
        }
        self.files.push(one);
    }

    fn table(self, name: String) -> Table {
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

/// The tables that these paths, folders, patterns and URLs stand for, the largest first.
///
/// # Errors
/// One of them is not there, can be read only once, or is of no format that can be read.
pub(crate) fn look(paths: &[String], runtime: &Handle) -> Result<Vec<Table>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut seen = HashSet::new();
    for path in paths {
        let options = source::Options::default();
        let inputs = source::resolve(std::slice::from_ref(path), &options, runtime.clone())?;
        let is_only = inputs.len() == 1;
        for input in inputs {
            if !seen.insert(input.name().to_owned()) {
                let message = format!("\"{}\" is named more than once", input.name());
                return Err(Error::new(Kind::Usage, message));
            }
            // The name of a URL lacks what must not be shown.
            let source = if is_only && !is_pattern(path) { path } else { input.name() }.to_owned();
            let one = find(path, source, input)?;
            match groups.iter_mut().find(|group| group.fits(&one)) {
                Some(group) => group.push(one),
                None => groups.push(Group::of(one)),
            }
        }
    }
    let plain = |group: &Group| group.files[0].names[usize::from(group.files.len() > 1)].clone();
    // As columns of one table: short enough, and none twice.
    let names = infer::column_names(groups.iter().map(plain));
    let pairs = groups.into_iter().zip(names);
    let mut tables: Vec<Table> = pairs.map(|(group, name)| group.table(name)).collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.bytes()));
    Ok(tables)
}

/// Looks at one file of those that a path stands for.
fn find(path: &str, source: String, input: Input) -> Result<Found> {
    if input.is_stream() {
        let message = format!("\"{}\" can be read only once", input.name());
        return Err(Error::new(Kind::Usage, message)
            .hint("Every trial reads the data anew: save it to a file, and name the file."));
    }
    let sample = input.peek(SAMPLE_BYTES)?;
    let complete = sample.len() < SAMPLE_BYTES;
    let sniffed = sniff(input.name(), &sample, complete, None, &Overrides::default())?;
    let header = header(&sniffed, &sample, complete);
    let (place, names) = belongs(path, input.name());
    let mut columns = header.names.clone();
    columns.sort();
    let mut key = format!("{place}\n{}\n{columns:?}", sniffed.format.name());
    let mut quotes = None;
    if is_delimited(&sniffed) {
        let (count, delimiter) = (sniffed.columns, sniffed.delimiter);
        key += &format!("\n{count} {delimiter} {}", sniffed.trailing_delimiter);
        // Without any, each way of quoting reads the same rows.
        let has_quotes = sample.contains(&QUOTE);
        quotes = has_quotes.then_some((sniffed.quote, sniffed.escape));
    }
    Ok(Found { key, names, source, input, sniffed, header, quotes })
}

/// A name's folder, and the file's name in it. What a URL asks for beside them is left out: it may
/// be a signature, which is another one each time.
fn split(name: &str) -> (&str, &str) {
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
fn is_pattern(path: &str) -> bool {
    match path.contains("://") {
        true => path.contains('*'),
        false => path.contains(['*', '?', '[', '{']),
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

/// A text that changes when a file is replaced, added or renamed.
pub(crate) fn fingerprint(tables: &[Table]) -> String {
    let mut all = String::new();
    for file in tables.iter().flat_map(|table| &table.files) {
        let (_, name) = split(file.input.name());
        all += &format!("{name} {}\n", file.input.fingerprint().unwrap_or_default());
    }
    format!("{:016x}", Random::new(0, &all).next())
}

/// Loads a table's files once, as `pgspate load --create` does, to know which columns all of their
/// rows fit, how many there are, and how many bytes they are for COPY. The table is gone
/// afterwards.
///
/// # Errors
/// A row that does not fit the others, with its file and line.
pub(crate) fn try_out(table: &Table, ground: &Ground) -> Result<(u64, Loadable)> {
    let name = ground.table(&quote_ident(&table.name));
    let options = load::Options {
        sources: table.files.iter().map(|file| file.source.clone()).collect(),
        table: Some(name.clone()),
        read: table.read.clone(),
        create: true,
        no_ledger: true,
        analyze: When::Never,
        ..load::Options::default()
    };
    let report = ground.load(options).map_err(|error| {
        if error.place().is_none_or(|place| place.line.is_none()) {
            return error;
        }
        let known = error.hint_text().map_or_else(String::new, |hint| format!("{hint} "));
        error.hint(format!("{known}{MEND}"))
    })?;
    let columns = columns(&name, ground)?;
    ground.sql("drop a table that was tried out", &format!("drop table {name}"))?;
    let table = Loadable {
        name: table.name.clone(),
        create: format!("create table {name} ({columns})"),
        indexes: &[],
        rows: report.rows_written,
        read: table.read.clone(),
        columns: None,
        files: table.files.clone(),
    };
    Ok((report.bytes_sent, table))
}

/// The columns of a table with their types, as SQL writes them.
fn columns(name: &str, ground: &Ground) -> Result<String> {
    let sql = "select string_agg(quote_ident(attname) || ' ' || format_type(atttypid, atttypmod), \
               ', ' order by attnum) from pg_attribute \
               where attrelid = to_regclass($1) and attnum > 0 and not attisdropped";
    let connection = ground.connect()?;
    ground.block_on(async {
        let row = connection.client.query_one(sql, &[&name]).await;
        let row =
            row.map_err(|error| connection.explain(format!("could not look at {name}"), error))?;
        Ok(row.get::<_, Option<String>>(0).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::dataset::CopyForm;

    fn write(folder: &std::path::Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn found(folder: &std::path::Path, paths: &[&str]) -> Result<Vec<Table>> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let paths = paths.iter().map(|path| folder.join(path).display().to_string());
        look(&paths.collect::<Vec<_>>(), runtime.handle())
    }

    fn named(tables: &[Table]) -> Vec<(String, usize)> {
        let mut all: Vec<_> =
            tables.iter().map(|table| (table.name.clone(), table.files.len())).collect();
        all.sort();
        all
    }

    #[test]
    fn files_are_tables_and_parts_are_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(
            folder,
            &[
                ("all/order.csv", "id,x\n1,2\n"),
                ("all/part-0001.csv", "b,a\n1,2\n"),
                ("all/part-0002.csv", "a,b\n1,2\n"),
                ("all/2023.csv", "x\n1\n"),
                ("all/2024.csv", "x\n2\n"),
                ("all/t1.csv", "c\n1\n"),
                ("all/t2.csv", "d\n1\n"),
                ("all/lines/year=2024/x.csv", "e\n1\n"),
                ("all/lines/year=2025/y.csv", "e\n1\n"),
            ],
        );
        let owned = |all: &[(&str, usize)]| -> Vec<(String, usize)> {
            all.iter().map(|(name, files)| ((*name).to_owned(), *files)).collect()
        };
        let tables = found(folder, &["all"]).unwrap();
        let expected = [("data", 2), ("lines", 2), ("order", 1), ("part", 2), ("t1", 1), ("t2", 1)];
        assert_eq!(named(&tables), owned(&expected));
        let one = found(folder, &["all/t*.csv"]).unwrap();
        assert_eq!(named(&one), owned(&[("t1", 1), ("t2", 1)]));
        let both = found(folder, &["all/part-0001.csv", "all/part-0002.csv"]).unwrap();
        assert_eq!(named(&both), owned(&[("part", 2)]));
        assert_eq!(both[0].files[0].copy.as_ref().unwrap().columns, "(b, a)");
        assert_eq!(both[0].files[1].copy.as_ref().unwrap().columns, "(a, b)");
        let twice = found(folder, &["all/t1.csv", "all/t1.csv"]).unwrap_err();
        assert!(twice.to_string().ends_with("is named more than once"), "{twice}");
        let missing = found(folder, &["all/none.csv"]).unwrap_err();
        assert!(missing.to_string().contains("none.csv"), "{missing}");
    }

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

    #[test]
    fn names_are_cut_and_stay_different() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let long = "n".repeat(70);
        write(folder, &[(&format!("a/{long}x.csv"), "id\n1\n")]);
        write(folder, &[(&format!("a/{long}y.csv"), "id\n1\n"), ("a/b.csv", "id\n1\n")]);
        write(folder, &[("c/b.csv", "id\n1\n")]);
        let tables = found(folder, &["a", "c/b.csv"]).unwrap();
        let mut names: Vec<_> = tables.iter().map(|table| table.name.clone()).collect();
        names.sort();
        let (first, second) = ("n".repeat(63), format!("{}_2", "n".repeat(61)));
        assert_eq!(names, ["b".to_owned(), "b_2".to_owned(), second, first]);
    }

    #[test]
    fn files_of_one_table_are_read_by_one_dialect() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(
            folder,
            &[
                ("null-1.csv", "id,v\n1,\\N\n2,x\n"),
                ("null-2.csv", "id,v\n3,\n4,y\n"),
                ("tab-1.tsv", "id\tv\n1\tx\n2\ty\n"),
                ("tab-2.tsv", "id\tv\n3\t5\" disk\n4\tz\n"),
                ("tab-3.tsv", "id\tv\n5\t\"q\"\n6\tz\n"),
                ("cut-1.csv", "id,v\n1,x\n2,y\n"),
                ("cut-2.csv", "id;v\n1;x\n2;y\n"),
            ],
        );
        let forms = |paths: &[&str]| -> Vec<Vec<CopyForm>> {
            let copy = |file: &LoadFile| file.copy.clone().unwrap();
            let of = |table: &Table| table.files.iter().map(copy).collect();
            found(folder, paths).unwrap().iter().map(of).collect()
        };
        // As the first one says, although the second has another spelling, or none.
        let nulls = forms(&["null-1.csv", "null-2.csv"]);
        assert_eq!(nulls[0].len(), 2);
        assert!(nulls[0].iter().all(|form| form.options.contains("null '\\N'")), "{nulls:?}");
        // What has no quotes can be read with those of the next.
        let tabs = forms(&["tab-1.tsv", "tab-2.tsv", "tab-3.tsv"]);
        let sizes: Vec<_> = tabs.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1]);
        assert!(tabs[0].iter().all(|form| form.options.contains("quote E'\\x08'")), "{tabs:?}");
        assert!(tabs[1][0].options.contains("quote E'\\x22'"), "{tabs:?}");
        let read = &found(folder, &["tab-1.tsv", "tab-2.tsv"]).unwrap()[0].read;
        assert_eq!(read.quote, Some(None));
        assert_eq!(forms(&["cut-1.csv", "cut-2.csv"]).len(), 2);
    }

    #[test]
    fn data_are_known_again_until_a_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, &[("a.csv", "id\n1\n")]);
        let of = || fingerprint(&found(folder, &["a.csv"]).unwrap());
        let before = of();
        assert_eq!(before, of());
        write(folder, &[("a.csv", "id\n1\n2\n")]);
        assert_ne!(before, of());
    }
}
