//! `--rejects`: the file of rows that were set aside, and beside it a line of JSON for each.
//!
//! The rows themselves are in the ledger, written with their chunks; the files are made from it
//! when the load ends, whole or not at all, as often as it takes. One load at a time may write a
//! file: it holds a lock on the temporary file until it ends. Rows are nobody else's to read, so
//! all files are of mode 0600.

use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;

use super::Load;
use crate::file::open_own;
use crate::format::RowForm;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, JobId, RejectRecord};

/// Keeps other loads from writing the same file, for as long as it lives.
#[derive(Debug)]
pub(super) struct RejectsFileGuard {
    path: PathBuf,
    lock: File,
}

impl RejectsFileGuard {
    /// Takes the file for this load.
    ///
    /// # Errors
    /// When another load has it, or it cannot be written.
    fn take(path: &Path) -> Result<RejectsFileGuard> {
        let beside = temporary(path);
        loop {
            let lock = open_own(&beside).map_err(|error| unwritable(path, error))?;
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let shown = path.display();
                    let message = format!("another load writes its rejects to \"{shown}\"");
                    return Err(Error::new(ErrorKind::Usage, message)
                        .hint("Name another file for `--rejects`, or wait until that load ends."));
                }
                // Some network file systems have no locks.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The load that had it may have renamed or removed it before it let go.
            let inode = |found: fs::Metadata| (found.dev(), found.ino());
            if lock.metadata().ok().map(inode) == fs::metadata(&beside).ok().map(inode) {
                return Ok(RejectsFileGuard { path: beside, lock });
            }
        }
    }
}

impl Drop for RejectsFileGuard {
    fn drop(&mut self) {
        // What has been renamed meanwhile is not ours to remove.
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let ours = self.lock.metadata().ok().map(inode);
        if ours.is_some() && ours == fs::metadata(&self.path).ok().map(inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Takes the file for the rejects of a job, and refuses one that holds something else than
/// earlier rejects of the same job.
///
/// # Errors
/// When the file holds something else, is an input, is another load's, or cannot be written.
pub(super) fn reserve(path: &Path, job: i64, inputs: &[String]) -> Result<RejectsFileGuard> {
    let absolute = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if inputs.iter().any(|input| absolute(Path::new(input)) == absolute(path)) {
        let message = format!("\"{}\" is what is to be loaded", path.display());
        return Err(
            Error::new(ErrorKind::Usage, message).hint("Name another file for `--rejects`.")
        );
    }
    // Better now than after the load.
    let guard = RejectsFileGuard::take(path)?;
    let is_new = fs::metadata(path).map_or(true, |found| found.len() == 0);
    if !is_new && !is_of_job(path, job) {
        let message = format!("\"{}\" exists already", path.display());
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Name another file for `--rejects`, or remove that one."));
    }
    Ok(guard)
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
        let header = match format.rows() {
            RowForm::Delimited if self.reading.reject_header().is_empty() => " --header no",
            RowForm::Delimited => " --header yes",
            _ => "",
        };
        format!("--format {}{header}", format.name())
    }

    /// Writes the rows that were set aside so far to their file; how many there are.
    pub(super) fn write_rejects(&self) -> Result<u64> {
        match &self.job.opened {
            Some(opened) => self.write_rejects_of(opened.job),
            None => Ok(0),
        }
    }

    /// Writes the rejects of a job that is finished, if a file is wanted for them.
    ///
    /// # Errors
    /// When the file cannot be written, or the ledger does not have all of them any more.
    pub(super) fn write_rejects_again(&self, job: i64, rows: u64) -> Result<()> {
        let (Some(path), 1..) = (&self.options.rejects, rows) else { return Ok(()) };
        let _guard = reserve(path, job, &self.reading.names())?;
        let written = self.write_rejects_of(JobId(job))?;
        if written == rows {
            return Ok(());
        }
        let message =
            format!("job {job} has set {rows} rows aside, of which the ledger still has {written}");
        Err(Error::new(ErrorKind::Ledger, message).hint(
            "The ledger keeps such rows for seven days. `--restart` loads the source again, and \
             sets them aside again.",
        ))
    }

    fn write_rejects_of(&self, job: JobId) -> Result<u64> {
        let Some(path) = &self.options.rejects else { return Ok(0) };
        let header = self.reading.reject_header();
        let client = self.job.client();
        self.job.own.runtime.block_on(async {
            let rejects = ledger::rejects(client, job).await?;
            let mut rejects = std::pin::pin!(rejects);
            let mut files = None;
            let mut count = 0;
            while let Some(reject) = rejects.try_next().await? {
                let files = match &mut files {
                    Some(files) => files,
                    none => none.insert(RejectFiles::create(path, header)?),
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
struct RejectFiles {
    records: BufWriter<File>,
    reasons: BufWriter<File>,
}

impl RejectFiles {
    fn create(path: &Path, header: &[u8]) -> Result<RejectFiles> {
        let create = |path: &Path| {
            let file = open_own(&temporary(path));
            let file = file.and_then(|file| file.set_len(0).map(|()| file));
            file.map_err(|error| unwritable(path, error))
        };
        let mut records = BufWriter::new(create(path)?);
        records.write_all(header).map_err(|error| unwritable(path, error))?;
        Ok(RejectFiles { records, reasons: BufWriter::new(create(&reasons(path))?) })
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
    beside(path, ".json")
}

fn temporary(path: &Path) -> PathBuf {
    beside(path, ".part")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn unwritable(path: &Path, error: std::io::Error) -> Error {
    let message = format!("could not write rejects to \"{}\"", path.display());
    Error::new(ErrorKind::Usage, message).because(error)
}
