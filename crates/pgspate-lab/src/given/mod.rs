//! Files of the user's own as the tables of an experiment.
//!
//! A file is a table, as `pgspate load` would make it. Files of a pattern, of a folder within the
//! folder that was named, and files side by side whose names differ in digits alone are parts of
//! one table, if their columns have the same names. Nothing is guessed twice: what is found out
//! about a file is told to all contenders.

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
use form::{copy_form, header, is_delimited, overrides};

/// What is looked at of a file, as `pgspate load` does.
const SAMPLE_BYTES: usize = 1 << 20;

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
    /// Which files are of one table: those for which this is the same.
    key: String,
    /// What the table is called if this is its only file, and if it is one of several.
    names: [String; 2],
    file: LoadFile,
    sniffed: Sniffed,
    not_copied: Option<String>,
}

/// The tables that these paths, folders, patterns and URLs stand for, the largest first.
///
/// # Errors
/// One of them is not there, can be read only once, or is of no format that can be read.
pub(crate) fn look(paths: &[String], runtime: &Handle) -> Result<Vec<Table>> {
    let mut groups: Vec<Vec<Found>> = Vec::new();
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
            match groups.iter_mut().find(|group| group[0].key == one.key) {
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
    }
    let mut tables: Vec<Table> = Vec::new();
    for group in groups {
        let plain = &group[0].names[usize::from(group.len() > 1)];
        let named = |nth: usize| if nth == 1 { plain.clone() } else { format!("{plain}_{nth}") };
        let is_free = |name: &String| tables.iter().all(|table| table.name != *name);
        let name = (1..).map(named).find(is_free).unwrap_or_default();
        tables.push(Table {
            name,
            format: group[0].sniffed.format,
            read: overrides(&group[0].sniffed),
            not_copied: group.iter().find_map(|one| one.not_copied.clone()),
            files: group.into_iter().map(|one| one.file).collect(),
        });
    }
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
    let count = if is_delimited(&sniffed) { sniffed.columns } else { 0 };
    let key = format!("{place}\n{}\n{count}\n{columns:?}", sniffed.format.name());
    let form = copy_form(&sniffed, &header);
    let not_copied = form.as_ref().err().map(|why| {
        let name = input.name().rsplit('/').next().unwrap_or_default();
        format!("COPY does not read {name}: {why}")
    });
    let file = LoadFile { source, input, copy: form.ok() };
    Ok(Found { key, names, file, sniffed, not_copied })
}

/// Which files an input is of one table with, as a text that they share, and what the table is
/// called with one file and with several.
fn belongs(path: &str, name: &str) -> (String, [String; 2]) {
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let names = [infer::table_name(file), shared_name(file)];
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
        let name = file.input.name().rsplit('/').next().unwrap_or_default();
        all += &format!("{name} {}\n", file.input.fingerprint().unwrap_or_default());
    }
    format!("{:016x}", Random::new(0, &all).next())
}

/// Loads a table's files once, as `pgspate load --create` does, to know which columns all of their
/// rows fit, and how many there are. The table is gone afterwards.
///
/// # Errors
/// A row that does not fit the others, with its file and line.
pub(crate) fn try_out(table: &Table, ground: &Ground) -> Result<Loadable> {
    let name = quote_ident(&table.name);
    let options = load::Options {
        sources: table.files.iter().map(|file| file.source.clone()).collect(),
        table: Some(ground.table(&name)),
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
    Ok(Loadable {
        name: table.name.clone(),
        create: format!("create table {name} ({columns})"),
        indexes: &[],
        rows: report.rows_written,
        read: table.read.clone(),
        columns: None,
        files: table.files.clone(),
    })
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
