//! `--rejects`: the file of rows that were set aside, and beside it a line of JSON for each.
//!
//! The rows themselves are in the ledger, written with their chunks; the files are made from it
//! when the load ends, whole or not at all, as often as it takes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;

use super::Load;
use crate::format::sniff::Format;
use crate::ledger::{self, RejectRecord};
use crate::{Error, Kind, Result};

/// Refuses a file that holds something else than earlier rejects of the same job.
pub(super) fn check(path: &Path, job: i64, inputs: &[String]) -> Result<()> {
    let absolute = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if inputs.iter().any(|input| absolute(Path::new(input)) == absolute(path)) {
        let message = format!("\"{}\" is what is to be loaded", path.display());
        return Err(Error::new(Kind::Usage, message).hint("Name another file for `--rejects`."));
    }
    let is_new = fs::metadata(path).map_or(true, |found| found.len() == 0);
    if !is_new && !is_of_job(path, job) {
        let message = format!("\"{}\" exists already", path.display());
        return Err(Error::new(Kind::Usage, message)
            .hint("Name another file for `--rejects`, or remove that one."));
    }
    // Better now than after the load.
    let beside = temporary(path);
    File::create(&beside).map_err(|error| unwritable(path, error))?;
    fs::remove_file(&beside).map_err(|error| unwritable(path, error))
}

/// Whether the lines beside the file are about this job.
fn is_of_job(path: &Path, job: i64) -> bool {
    let Ok(file) = File::open(reasons(path)) else { return false };
    let mut line = String::new();
    let first = BufReader::new(file).read_line(&mut line);
    let parsed: Option<serde_json::Value> = serde_json::from_str(&line).ok();
    first.is_ok() && parsed.is_some_and(|value| value["job"].as_i64() == Some(job))
}

impl Load {
    /// The flags by which the file is read as the inputs were.
    pub(super) fn rejects_read_as(&self) -> String {
        let format = self.reading.reject_format();
        let header = match format {
            Format::Csv | Format::Tsv | Format::Text if self.reading.reject_header().is_empty() => {
                " --header no"
            }
            Format::Csv | Format::Tsv | Format::Text => " --header yes",
            _ => "",
        };
        format!("--format {}{header}", format.name())
    }

    /// Writes the rows that were set aside so far to their file; how many there are.
    pub(super) fn write_rejects(&self) -> Result<u64> {
        let (Some(path), Some(opened)) = (&self.options.rejects, &self.opened) else {
            return Ok(0);
        };
        let header = self.reading.reject_header();
        let client = &self.connection.client;
        self.runtime.block_on(async {
            let rejects = ledger::rejects(client, opened.job).await?;
            let mut rejects = std::pin::pin!(rejects);
            let mut files = None;
            let mut count = 0;
            while let Some(reject) = rejects.try_next().await? {
                let files = match &mut files {
                    Some(files) => files,
                    none => none.insert(Files::create(path, header)?),
                };
                files.add(&reject).map_err(|error| unwritable(path, error))?;
                count += 1;
            }
            if let Some(files) = files {
                files.keep(path).map_err(|error| unwritable(path, error))?;
            }
            Ok(count)
        })
    }
}

/// Both files while they are written.
struct Files {
    records: BufWriter<File>,
    reasons: BufWriter<File>,
}

impl Files {
    fn create(path: &Path, header: &[u8]) -> Result<Files> {
        let create =
            |path: &Path| File::create(temporary(path)).map_err(|error| unwritable(path, error));
        let mut records = BufWriter::new(create(path)?);
        records.write_all(header).map_err(|error| unwritable(path, error))?;
        Ok(Files { records, reasons: BufWriter::new(create(&reasons(path))?) })
    }

    fn add(&mut self, reject: &RejectRecord) -> std::io::Result<()> {
        self.records.write_all(&reject.record)?;
        serde_json::to_writer(&mut self.reasons, reject)?;
        self.reasons.write_all(b"\n")
    }

    /// Puts both in their places, once they are on disk.
    fn keep(self, path: &Path) -> std::io::Result<()> {
        for (file, path) in [(self.reasons, reasons(path)), (self.records, path.to_owned())] {
            file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(temporary(&path), &path)?;
        }
        Ok(())
    }
}

/// The file of reasons beside a file of records.
fn reasons(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn unwritable(path: &Path, error: std::io::Error) -> Error {
    let message = format!("could not write rejects to \"{}\"", path.display());
    Error::new(Kind::Usage, message).because(error)
}
