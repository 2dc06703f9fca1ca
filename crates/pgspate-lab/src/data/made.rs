//! Generated rows as compressed files.
//!
//! A file is complete when it has its name, and a complete file is not made again.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use pgspate::{Error, Kind, Result};

use super::Rows;

/// A file to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    /// Its name.
    pub(super) file: &'static str,
    /// Its first line.
    pub(super) header: &'static str,
}

/// Makes the files in a folder and returns their paths. `rows` gives the rows of a file by its
/// place. The first `large` of them are about as much work as the others together: most machines
/// have two cores.
///
/// # Errors
/// The folder cannot be written, or is full.
pub(super) fn write(
    folder: &Path,
    files: &[Made],
    large: usize,
    rows: &(dyn Fn(usize) -> Box<dyn Rows> + Sync),
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).map_err(|error| not_written(folder, error))?;
    let paths: Vec<PathBuf> = files.iter().map(|made| folder.join(made.file)).collect();
    let make = |part: std::ops::Range<usize>| -> Result<()> {
        part.filter(|nth| !paths[*nth].exists())
            .try_for_each(|nth| write_file(files[nth].header, &mut *rows(nth), &paths[nth]))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| make(large..files.len()));
        make(0..large)?;
        other.join().map_err(|_| Error::new(Kind::Bug, "the thread that makes files died"))?
    })?;
    Ok(paths)
}

fn write_file(header: &str, rows: &mut dyn Rows, path: &Path) -> Result<()> {
    let partial = path.with_extension("part");
    let written = (|| {
        let file = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        let mut out = GzEncoder::new(file, Compression::fast());
        let mut piece = format!("{header}\n").into_bytes();
        loop {
            let has_more = rows.append(&mut piece);
            if piece.len() > 1 << 16 || !has_more {
                out.write_all(&piece)?;
                piece.clear();
            }
            if !has_more {
                break;
            }
        }
        out.finish()?.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        fs::rename(&partial, path)
    })();
    written.map_err(|error| not_written(path, error))
}

fn not_written(path: &Path, error: std::io::Error) -> Error {
    let message = format!("could not write \"{}\"", path.display());
    Error::new(Kind::Source, message).because(error)
}
