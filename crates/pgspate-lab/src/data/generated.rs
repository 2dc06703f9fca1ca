//! Tables with generated rows, and these rows as compressed files.
//!
//! A file gets its final name when it is complete. A complete file of the same scale and seed is
//! not made again.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use pgspate::{Error, ErrorKind, Result};

use super::GeneratedRows;
use crate::context::stopped;
use crate::stop::RunStop;

/// A table and the file with the table's rows: a header line, then COPY text.
#[derive(Debug, Clone, Copy)]
pub struct GeneratedTable {
    /// The table's name, unquoted.
    pub name: &'static str,
    /// The statement `create table`, without keys.
    pub create: &'static str,
    /// Statements that create the primary key and the indexes that queries need.
    pub indexes: &'static [&'static str],
    /// The first line of the file.
    pub header: &'static str,
    /// Returns the number of rows at a scale.
    pub(super) count: fn(f64) -> u64,
    /// Generates the rows at a scale, from a seed.
    pub(super) make: fn(f64, u64) -> Box<dyn GeneratedRows>,
}

impl GeneratedTable {
    /// Returns the file's name, in the style of IMDb's files.
    pub fn file(&self) -> String {
        format!("{}.tsv.gz", self.name.replacen('_', ".", 1))
    }

    /// Returns the number of rows at a scale.
    pub fn rows_at(&self, scale: f64) -> u64 {
        (self.count)(scale)
    }

    /// Returns all rows, as COPY text without the header.
    pub fn all(&self, scale: f64, seed: u64) -> Box<dyn GeneratedRows> {
        (self.make)(scale, seed)
    }
}

/// Makes the tables' files in a new folder inside `folder`; the new folder's name begins with
/// `name`. Returns the files' paths in the order of the tables. One thread makes the first `large`
/// files, and another thread makes the rest, so both parts should be about as much work.
///
/// # Errors
/// When the folder cannot be written or is full; kind `Cancelled` when the run is stopped
/// meanwhile.
pub(super) fn write(
    tables: &[GeneratedTable],
    large: usize,
    folder: &Path,
    name: &str,
    (scale, seed): (f64, u64),
    stop: &RunStop,
) -> Result<Vec<PathBuf>> {
    let folder = folder.join(format!("{name}-{scale}-{seed}"));
    fs::create_dir_all(&folder).map_err(|error| not_written(&folder, error))?;
    let paths: Vec<PathBuf> = tables.iter().map(|table| folder.join(table.file())).collect();
    let make = |part: std::ops::Range<usize>| -> Result<()> {
        part.filter(|nth| !paths[*nth].exists()).try_for_each(|nth| {
            let mut rows = tables[nth].all(scale, seed);
            write_file(tables[nth].header, &mut *rows, &paths[nth], stop)
        })
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| make(large..tables.len()));
        make(0..large)?;
        other.join().map_err(|_| Error::new(ErrorKind::Bug, "the thread that makes files died"))?
    })?;
    Ok(paths)
}

fn write_file(
    header: &str,
    rows: &mut dyn GeneratedRows,
    path: &Path,
    stop: &RunStop,
) -> Result<()> {
    let partial = path.with_extension("part");
    let written = (|| -> std::io::Result<bool> {
        let file = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        let mut out = GzEncoder::new(file, Compression::fast());
        let mut piece = format!("{header}\n").into_bytes();
        loop {
            let has_more = rows.append(&mut piece);
            if piece.len() > 1 << 16 || !has_more {
                if stop.is_requested() {
                    return Ok(false);
                }
                out.write_all(&piece)?;
                piece.clear();
            }
            if !has_more {
                break;
            }
        }
        out.finish()?.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        fs::rename(&partial, path)?;
        Ok(true)
    })();
    match written.map_err(|error| not_written(path, error))? {
        true => Ok(()),
        // The incomplete file is removed with the run's other files.
        false => Err(stopped()),
    }
}

fn not_written(path: &Path, error: std::io::Error) -> Error {
    let message = format!("could not write \"{}\"", path.display());
    Error::new(ErrorKind::Source, message).because(error)
}
