//! The user's own files as tables of an experiment.
//!
//! One or more files make one table, as in `pgspate load`. The lab infers a format once, and passes
//! the options to all contenders.

mod form;
mod found;

use std::collections::HashSet;

use pgspate::format::infer;
use pgspate::format::sniff::{Format, SniffOverrides};
use pgspate::load;
use pgspate::plan::{self, AutoChoice};
use pgspate::reading;
use pgspate::source;
use pgspate::target::quote_ident;
use pgspate::{Error, ErrorKind, Result};
use tokio::runtime::Handle;

use crate::context::TrialContext;
use crate::dataset::{LoadFile, TableFacts, TableToLoad};
use crate::random::SeededRandom;
use found::{FileGroup, FoundFile, is_pattern, split};

/// The hint for a row that does not fit the other rows.
const MEND: &str = "Correct the row, or load without this file.";

/// A table and its files.
#[derive(Debug)]
pub(crate) struct FileTable {
    /// Its name, unquoted.
    name: String,
    format: Format,
    read: SniffOverrides,
    pub(crate) files: Vec<LoadFile>,
    /// Why COPY cannot read the files, if so.
    pub(crate) copy_refusal: Option<String>,
}

impl FileTable {
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

/// Finds the tables of these paths, folders, patterns and URLs; returns the largest first.
///
/// # Errors
/// When a file does not exist, can be read only once, or has an unknown format; or when a file is
/// empty, and its table has no other file.
pub(crate) fn find_tables(paths: &[String], runtime: &Handle) -> Result<Vec<FileTable>> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for path in paths {
        let options = source::SourceOptions::default();
        let inputs = source::resolve(std::slice::from_ref(path), &options, runtime.clone())?;
        let is_only = inputs.len() == 1;
        for input in inputs {
            if !seen.insert(input.name().to_owned()) {
                let message = format!("\"{}\" is named more than once", input.name());
                return Err(Error::new(ErrorKind::Usage, message));
            }
            // An input's name lacks the secrets of its URL, so use the given path.
            let source = if is_only && !is_pattern(path) { path } else { input.name() }.to_owned();
            found.push(FoundFile::inspect(path, source, input)?);
        }
    }
    let groups = FileGroup::all(found)?;
    // This makes the tables' names short enough and unique.
    let names = infer::column_names(groups.iter().map(FileGroup::name));
    let pairs = groups.into_iter().zip(names);
    let mut tables: Vec<FileTable> = pairs.map(|(group, name)| group.table(name)).collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.bytes()));
    Ok(tables)
}

/// Returns a hash that changes when a file is replaced, added or renamed.
pub(crate) fn fingerprint(tables: &[FileTable]) -> String {
    let mut all = String::new();
    for file in tables.iter().flat_map(|table| &table.files) {
        let (_, name) = split(file.input.name());
        all += &format!("{name} {}\n", file.input.fingerprint().unwrap_or_default());
    }
    format!("{:016x}", SeededRandom::new(0, &all).next())
}

/// Loads a table's files once, as `pgspate load --create` does, and drops the table. This finds the
/// columns that all rows fit, the number of rows, and the bytes for COPY.
///
/// # Errors
/// When a row does not fit the others, with file and line.
pub(crate) fn load_once(table: &FileTable, context: &TrialContext) -> Result<(u64, TableToLoad)> {
    let name = context.table(&quote_ident(&table.name));
    let options = load::LoadOptions {
        reading: reading::ReadingOptions {
            read: table.read.clone(),
            ..reading::ReadingOptions::of_sources(
                table.files.iter().map(|file| file.source.clone()).collect(),
            )
        },
        table: Some(name.clone()),
        create: true,
        plan: plan::PlanOptions {
            no_ledger: true,
            analyze: AutoChoice::Never,
            ..plan::PlanOptions::default()
        },
        ..load::LoadOptions::default()
    };
    let report = context.load(options).map_err(|error| {
        if error.place().is_none_or(|place| place.line.is_none()) {
            return error;
        }
        let known = error.hint_text().map_or_else(String::new, |hint| format!("{hint} "));
        error.hint(format!("{known}{MEND}"))
    })?;
    let columns = columns(&name, context)?;
    context.sql("drop a table that was tried out", &format!("drop table {name}"))?;
    let table = TableToLoad {
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

/// Returns the table's columns with their types, as in `create table`.
fn columns(name: &str, context: &TrialContext) -> Result<String> {
    let sql = "select string_agg(quote_ident(attname) || ' ' || format_type(atttypid, atttypmod), \
               ', ' order by attnum) from pg_attribute \
               where attrelid = to_regclass($1) and attnum > 0 and not attisdropped";
    let connection = context.connect()?;
    context.block_on(async {
        let row = connection.client.query_one(sql, &[&name]).await;
        let row = row.map_err(|error| {
            connection.explain(format!("could not read the columns of {name}"), error)
        })?;
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

    fn found(folder: &std::path::Path, paths: &[&str]) -> Result<Vec<FileTable>> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let paths = paths.iter().map(|path| folder.join(path).display().to_string());
        find_tables(&paths.collect::<Vec<_>>(), runtime.handle())
    }

    fn named(tables: &[FileTable]) -> Vec<(String, usize)> {
        let mut all: Vec<_> =
            tables.iter().map(|table| (table.name.clone(), table.files.len())).collect();
        all.sort();
        all
    }

    #[test]
    fn numbered_parts_with_the_same_columns_are_one_table() {
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
            let of = |table: &FileTable| table.files.iter().map(copy).collect();
            found(folder, paths).unwrap().iter().map(of).collect()
        };
        // The first file decides, although the second file writes NULL in another way.
        let nulls = forms(&["null-1.csv", "null-2.csv"]);
        assert_eq!(nulls[0].len(), 2);
        assert!(nulls[0].iter().all(|form| form.options.contains("null '\\N'")), "{nulls:?}");
        // A file without quotes can be read with the quote option of the next file.
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
    fn files_without_rows_join_the_table_of_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(
            folder,
            &[
                ("all/item-1.csv", "at,item\n"),
                ("all/item-2.csv", "item,at\n1,2024-01-01\n2,2024-02-29\n"),
                ("all/item-3.csv", ""),
                ("all/item-4.csv", "\u{feff}"),
                ("all/other-1.csv", "item,no\n"),
                ("all/word-1.csv", "a,b\n"),
                ("all/word-2.csv", "1,2\n3,4\n"),
                ("all/word-3.csv", "5,6\n"),
                ("none/x.csv", ""),
            ],
        );
        let tables = found(folder, &["all"]).unwrap();
        let names = named(&tables);
        let sizes: Vec<_> = names.iter().map(|(name, files)| (name.as_str(), *files)).collect();
        // A file whose only line may be a header has no other file of its columns, so the line is a
        // row, as for `pgspate load`.
        assert_eq!(sizes, [("item", 4), ("other_1", 1), ("word", 3)]);
        let item = tables.iter().find(|table| table.name == "item").unwrap();
        assert_eq!(item.read.header, Some(true));
        let forms: Vec<_> = item
            .files
            .iter()
            .map(|file| file.copy.as_ref().unwrap())
            .map(|form| (form.skip, form.columns.as_str()))
            .collect();
        assert_eq!(forms, [(8, "(item, at)"), (8, "(at, item)"), (0, ""), (3, "")]);
        let error = found(folder, &["all", "none"]).unwrap_err();
        assert!(error.to_string().ends_with("x.csv\" is empty"), "{error}");
    }

    #[test]
    fn json_files_are_one_table_if_one_file_has_the_keys_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(
            folder,
            &[
                ("t1.ndjson", "{\"a\": 1}\n"),
                ("t2.ndjson", "{\"b\": 1}\n"),
                ("u1.ndjson", "{\"a\": 1}\n"),
                ("u2.ndjson", "{\"b\": 1, \"a\": 2}\n"),
                ("u3.ndjson", ""),
            ],
        );
        let tables = found(folder, &["."]).unwrap();
        let names = named(&tables);
        let sizes: Vec<_> = names.iter().map(|(name, files)| (name.as_str(), *files)).collect();
        assert_eq!(sizes, [("t1", 1), ("t2", 1), ("u", 3)]);
    }

    #[test]
    fn the_fingerprint_stays_until_a_file_changes() {
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
