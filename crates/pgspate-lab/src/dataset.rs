//! The tables and files that `bulk` and `storage` load, and how the files are read.
//!
//! All contenders get the same tables, files and format options. For the user's own files, the lab
//! infers the table's columns once, before the first trial.

use std::path::Path;

use pgspate::format::sniff::{Format, SniffOverrides};
use pgspate::source::{self, Input};
use pgspate::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::context::TrialContext;
use crate::data::{GeneratedTable, imdb, tpch};
use crate::given;

/// The kind of data to load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Seven files in IMDb's shape, made by the lab.
    #[default]
    Imdb,
    /// TPC-H's eight tables in files, made by the lab; scale factor 10 at scale 1.
    Tpch,
    /// Files of the user's own.
    Files,
}

/// Facts about the data that must be equal for results to be comparable. No folder is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// The kind of data.
    pub kind: DataKind,
    /// The tables of the user's files, the largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableFacts>,
    /// A hash of names, sizes and modification times of the user's files.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
}

/// A table of the user's own files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableFacts {
    /// The table's name, unquoted.
    pub name: String,
    /// How many files it has.
    pub files: usize,
    /// Stored bytes, where known; compressed files count compressed.
    pub bytes: u64,
    /// The files' format, as in `--format`.
    pub format: String,
}

impl DataFacts {
    /// Returns whether this is the default data.
    pub(crate) fn is_default(&self) -> bool {
        *self == DataFacts::default()
    }

    /// Describes the data for messages.
    pub(crate) fn label(&self) -> String {
        match self.kind {
            DataKind::Imdb => "imdb".to_owned(),
            DataKind::Tpch => "tpch".to_owned(),
            DataKind::Files => {
                let names: Vec<&str> = self.tables.iter().map(|it| it.name.as_str()).collect();
                format!("your files for {} ({})", names.join(", "), self.fingerprint)
            }
        }
    }
}

/// The data of a run, found and inspected.
#[derive(Debug, Default)]
pub(crate) struct Dataset {
    pub(crate) facts: DataFacts,
    given: Vec<given::FileTable>,
}

impl Dataset {
    /// Finds the data by `imdb`, `tpch` or paths; no word means `imdb`. It reads only a sample of
    /// each file.
    pub(crate) fn find(words: &[String], runtime: &Handle) -> Result<Dataset> {
        let of =
            |kind| Dataset { facts: DataFacts { kind, ..DataFacts::default() }, given: vec![] };
        match words {
            [] => return Ok(Dataset::default()),
            [one] if one == "imdb" => return Ok(Dataset::default()),
            [one] if one == "tpch" => return Ok(of(DataKind::Tpch)),
            _ => {}
        }
        if let Some(word) = words.iter().find(|word| matches!(word.as_str(), "imdb" | "tpch")) {
            let message = format!("\"{word}\" cannot be combined with other data");
            return Err(Error::new(ErrorKind::Usage, message).hint(format!(
                "Give `--data {word}` alone. For a file or folder of this name write `./{word}`."
            )));
        }
        let given = given::find_tables(words, runtime)?;
        let facts = DataFacts {
            kind: DataKind::Files,
            tables: given.iter().map(given::FileTable::facts).collect(),
            fingerprint: given::fingerprint(&given),
        };
        Ok(Dataset { facts, given })
    }

    pub(crate) fn kind(&self) -> DataKind {
        self.facts.kind
    }

    /// Counts the files, also before they are generated.
    pub(crate) fn files(&self) -> usize {
        match self.kind() {
            DataKind::Imdb => imdb::TABLES.len(),
            DataKind::Tpch => tpch::TABLES.len(),
            DataKind::Files => self.given.iter().map(|table| table.files.len()).sum(),
        }
    }

    /// Returns why COPY cannot read all the files, if so.
    pub(crate) fn copy_refusal(&self) -> Option<String> {
        self.given.iter().find_map(|table| table.copy_refusal.clone())
    }

    /// Returns the tables, the largest first. Generates files in the scratch folder. For the user's
    /// files, it loads them once to learn their columns.
    pub(crate) fn tables(&self, context: &TrialContext) -> Result<Vec<TableToLoad>> {
        let (scratch, seed) = (context.scratch(), context.seed());
        let (tables, scale, paths) = match self.kind() {
            DataKind::Imdb => {
                let scale = context.scale();
                (&imdb::TABLES[..], scale, imdb::write(scratch, scale, seed, context.stop())?)
            }
            DataKind::Tpch => {
                let factor = tpch::factor(context.scale());
                (&tpch::TABLES[..], factor, tpch::write(scratch, factor, seed, context.stop())?)
            }
            DataKind::Files => {
                let tried = self.given.iter().map(|table| given::load_once(table, context));
                let mut tables = tried.collect::<Result<Vec<_>>>()?;
                // Stored bytes cannot be compared: some files may be compressed.
                tables.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
                return Ok(tables.into_iter().map(|(_, table)| table).collect());
            }
        };
        let pairs = tables.iter().zip(&paths);
        pairs.map(|(table, path)| generated(table, scale, path, context)).collect()
    }
}

/// Describes a generated table whose file exists.
fn generated(
    table: &GeneratedTable,
    scale: f64,
    path: &Path,
    context: &TrialContext,
) -> Result<TableToLoad> {
    let source = path.display().to_string();
    let named = std::slice::from_ref(&source);
    let inputs =
        source::resolve(named, &source::SourceOptions::default(), context.runtime().clone())?;
    let copy = CopyForm { skip: table.header.len() as u64 + 1, ..CopyForm::default() };
    let file = |input| LoadFile { source: source.clone(), input, copy: Some(copy.clone()) };
    let read = SniffOverrides {
        format: Some(Format::Text),
        header: Some(true),
        ..SniffOverrides::default()
    };
    Ok(TableToLoad {
        name: table.name.to_owned(),
        create: table.create.to_owned(),
        indexes: table.indexes,
        rows: table.rows_at(scale),
        read,
        columns: Some(snake_case(table.header)),
        files: inputs.into_iter().map(file).collect(),
    })
}

/// A table and the files to load into it.
#[derive(Debug)]
pub(crate) struct TableToLoad {
    /// Its name, unquoted.
    pub(crate) name: String,
    /// `create table` in the lab's schema, without keys.
    pub(crate) create: String,
    /// Statements for its primary key and indexes.
    pub(crate) indexes: &'static [&'static str],
    /// Rows of all files.
    pub(crate) rows: u64,
    /// Format options for pgspate.
    pub(crate) read: SniffOverrides,
    /// The table's columns in file order, if the header has other names.
    pub(crate) columns: Option<Vec<String>>,
    /// The files, in order.
    pub(crate) files: Vec<LoadFile>,
}

/// A file to load.
#[derive(Debug, Clone)]
pub(crate) struct LoadFile {
    /// The SOURCE argument for pgspate.
    pub(crate) source: String,
    /// The opened input, for COPY.
    pub(crate) input: Input,
    /// Options for COPY, if COPY can read the file.
    pub(crate) copy: Option<CopyForm>,
}

/// COPY options of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopyForm {
    /// Bytes to skip before the first row: a header or a byte order mark.
    pub(crate) skip: u64,
    /// `(a, b)`, or nothing for the table's own columns.
    pub(crate) columns: String,
    /// `with (format csv)`, or nothing for COPY's own text.
    pub(crate) options: String,
}

/// Turns a header's camelCase names, as in IMDb's files, into snake_case column names.
fn snake_case(header: &str) -> Vec<String> {
    let name = |field: &str| {
        let mut name = String::new();
        for c in field.chars() {
            if c.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    };
    header.split('\t').map(name).collect()
}
