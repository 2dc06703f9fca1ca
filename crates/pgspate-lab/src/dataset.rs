//! What experiments load that load files: which tables, from which files, and how they are read.
//!
//! All contenders are given the same tables and files, and what they need to know to read them
//! alike. Where a table's form follows from files of the user's own, it is found before the first
//! trial, and is the same for all of them.

use std::path::Path;

use pgspate::format::sniff::{Format, Overrides};
use pgspate::source::{self, Input};
use pgspate::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::data::{Table, imdb, tpch};
use crate::given;
use crate::ground::Ground;

/// Whose data are loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// Seven files in IMDb's shape, made by the lab.
    #[default]
    Imdb,
    /// TPC-H's eight tables in files, made by the lab; scale factor 10 at scale 1.
    Tpch,
    /// Files of the user's own.
    Files,
}

/// What has to be the same of data for results to be compared. No folder is named here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Whose they are.
    pub kind: Data,
    /// The tables of files of the user's own, those of the largest files first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableFacts>,
    /// Changes with the names, sizes and times of those files.
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
    /// Bytes as they are stored, as far as that is known.
    pub bytes: u64,
    /// The files' format, as `--format` has it.
    pub format: String,
}

impl DataFacts {
    /// Whether they are what is loaded unless something else is asked for.
    pub(crate) fn is_usual(&self) -> bool {
        *self == DataFacts::default()
    }

    /// In a word, or with the tables of the files.
    pub(crate) fn said(&self) -> String {
        match self.kind {
            Data::Imdb => "imdb".to_owned(),
            Data::Tpch => "tpch".to_owned(),
            Data::Files => {
                let names: Vec<&str> = self.tables.iter().map(|it| it.name.as_str()).collect();
                format!("files for {} ({})", names.join(", "), self.fingerprint)
            }
        }
    }
}

/// What was asked for, looked at.
#[derive(Debug, Default)]
pub(crate) struct Dataset {
    pub(crate) facts: DataFacts,
    given: Vec<given::Table>,
}

impl Dataset {
    /// From `imdb`, `tpch`, or paths; nothing is IMDb's. Files are looked at, and not read whole.
    pub(crate) fn find(words: &[String], runtime: &Handle) -> Result<Dataset> {
        let of =
            |kind| Dataset { facts: DataFacts { kind, ..DataFacts::default() }, given: vec![] };
        match words {
            [] => return Ok(Dataset::default()),
            [one] if one == "imdb" => return Ok(Dataset::default()),
            [one] if one == "tpch" => return Ok(of(Data::Tpch)),
            _ => {}
        }
        if let Some(word) = words.iter().find(|word| matches!(word.as_str(), "imdb" | "tpch")) {
            let message = format!("\"{word}\" is among the names of files");
            return Err(Error::new(Kind::Usage, message).hint(format!(
                "Load one kind of data at a time; a file or folder of that name is `./{word}`."
            )));
        }
        let given = given::look(words, runtime)?;
        let facts = DataFacts {
            kind: Data::Files,
            tables: given.iter().map(given::Table::facts).collect(),
            fingerprint: given::fingerprint(&given),
        };
        Ok(Dataset { facts, given })
    }

    pub(crate) fn kind(&self) -> Data {
        self.facts.kind
    }

    /// How many files there are, which is known before they are made.
    pub(crate) fn files(&self) -> usize {
        match self.kind() {
            Data::Imdb => imdb::TABLES.len(),
            Data::Tpch => tpch::TABLES.len(),
            Data::Files => self.given.iter().map(|table| table.files.len()).sum(),
        }
    }

    /// Why plain COPY cannot read all the files, if it cannot.
    pub(crate) fn not_copied(&self) -> Option<String> {
        self.given.iter().find_map(|table| table.not_copied.clone())
    }

    /// The tables, the largest first. Files are made in the ground's folder; how tables of given
    /// files have to be is found by loading these once.
    pub(crate) fn tables(&self, ground: &Ground) -> Result<Vec<Loadable>> {
        let (scratch, seed) = (ground.scratch(), ground.seed());
        let (tables, scale, paths) = match self.kind() {
            Data::Imdb => {
                let scale = ground.scale();
                (&imdb::TABLES[..], scale, imdb::write(scratch, scale, seed, ground.stop())?)
            }
            Data::Tpch => {
                let factor = tpch::factor(ground.scale());
                (&tpch::TABLES[..], factor, tpch::write(scratch, factor, seed, ground.stop())?)
            }
            Data::Files => {
                let tried = self.given.iter().map(|table| given::try_out(table, ground));
                let mut tables = tried.collect::<Result<Vec<_>>>()?;
                // Stored bytes do not tell: they may be compressed, or not.
                tables.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
                return Ok(tables.into_iter().map(|(_, table)| table).collect());
            }
        };
        let pairs = tables.iter().zip(&paths);
        pairs.map(|(table, path)| generated(table, scale, path, ground)).collect()
    }
}

/// A generated table, whose file is there.
fn generated(table: &Table, scale: f64, path: &Path, ground: &Ground) -> Result<Loadable> {
    let source = path.display().to_string();
    let named = std::slice::from_ref(&source);
    let inputs = source::resolve(named, &source::Options::default(), ground.runtime().clone())?;
    let copy = CopyForm { skip: table.header.len() as u64 + 1, ..CopyForm::default() };
    let file = |input| LoadFile { source: source.clone(), input, copy: Some(copy.clone()) };
    let read = Overrides { format: Some(Format::Text), header: Some(true), ..Overrides::default() };
    Ok(Loadable {
        name: table.name.to_owned(),
        create: table.create.to_owned(),
        indexes: table.indexes,
        rows: table.rows_at(scale),
        read,
        columns: Some(snake_case(table.header)),
        files: inputs.into_iter().map(file).collect(),
    })
}

/// A table, and the files that go into it.
#[derive(Debug)]
pub(crate) struct Loadable {
    /// Its name, unquoted.
    pub(crate) name: String,
    /// `create table` in the lab's schema, without keys.
    pub(crate) create: String,
    /// Its key and what queries want, as statements.
    pub(crate) indexes: &'static [&'static str],
    /// Rows of all files.
    pub(crate) rows: u64,
    /// How pgspate is to read them.
    pub(crate) read: Overrides,
    /// The columns for the fields, where the header has other names.
    pub(crate) columns: Option<Vec<String>>,
    /// The files, in order.
    pub(crate) files: Vec<LoadFile>,
}

/// A file, for those who load it.
#[derive(Debug, Clone)]
pub(crate) struct LoadFile {
    /// What pgspate is told to load.
    pub(crate) source: String,
    /// The same, to be read.
    pub(crate) input: Input,
    /// How COPY reads it, if it does.
    pub(crate) copy: Option<CopyForm>,
}

/// How COPY reads a file's bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopyForm {
    /// Bytes before the first row: a header, a byte order mark.
    pub(crate) skip: u64,
    /// `(a, b)`, or nothing for the table's own columns.
    pub(crate) columns: String,
    /// `with (format csv)`, or nothing for COPY's own text.
    pub(crate) options: String,
}

/// The columns by a header; the names in IMDb's have capitals where those of the tables have `_`.
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
