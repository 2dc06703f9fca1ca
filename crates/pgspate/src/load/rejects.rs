//! `--rejects`: writes a file of rejected rows, and a second file with a line of JSON for each
//! rejected row.
//!
//! The ledger stores rejected rows, together with their chunks. When the load ends, both files are
//! written from the ledger, completely or not at all. They can be written again. Only one load at a
//! time may write a file, so a load locks the temporary file until the load ends. Only the user may
//! read rejected rows, so all files have mode 0600.

use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;

use super::Load;
use crate::file::open_own;
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, JobId, JobRecord, RejectRecord};

/// A lock that prevents other loads from writing the same file.
#[derive(Debug)]
pub(super) struct RejectsFileGuard {
    path: PathBuf,
    lock: File,
}

impl RejectsFileGuard {
    /// Locks the file for this load.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if another load has locked the file, or the file cannot be written.
    fn lock(path: &Path) -> Result<RejectsFileGuard> {
        let temporary = temporary_path(path);
        loop {
            let lock = open_own(&temporary).map_err(|error| unwritable_error(path, error))?;
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let shown = path.display();
                    let message = format!("another load is writing its rejects to \"{shown}\"");
                    return Err(Error::new(ErrorKind::Usage, message)
                        .hint("Name another file for `--rejects`, or wait until that load ends."));
                }
                // Some network file systems have no locks, so a failed lock is ignored.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The previous holder of the lock may have renamed or removed the file before it
            // released the lock. Then another file has this path, or none.
            let inode = |found: fs::Metadata| (found.dev(), found.ino());
            if lock.metadata().ok().map(inode) == fs::metadata(&temporary).ok().map(inode) {
                return Ok(RejectsFileGuard { path: temporary, lock });
            }
        }
    }
}

impl Drop for RejectsFileGuard {
    fn drop(&mut self) {
        // A file that was renamed in the meantime must not be removed.
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let ours = self.lock.metadata().ok().map(inode);
        if ours.is_some() && ours == fs::metadata(&self.path).ok().map(inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks the file for a job's rejects. The file must be new, empty, or written by an earlier run of
/// the same job.
///
/// # Errors
/// [`ErrorKind::Usage`] if the file has other content, is an input, is locked by another load, or
/// cannot be written.
pub(super) fn lock_rejects_file(
    path: &Path,
    job: i64,
    inputs: &[String],
) -> Result<RejectsFileGuard> {
    let absolute = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if inputs.iter().any(|input| absolute(Path::new(input)) == absolute(path)) {
        let message = format!("\"{}\" is an input of this load", path.display());
        return Err(
            Error::new(ErrorKind::Usage, message).hint("Name another file for `--rejects`.")
        );
    }
    // This also checks, before the load, that the file can be written.
    let guard = RejectsFileGuard::lock(path)?;
    let is_new = fs::metadata(path).map_or(true, |found| found.len() == 0);
    if !is_new && !belongs_to_job(path, job) {
        let message = format!("file \"{}\" already exists", path.display());
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Name another file for `--rejects`, or remove this one."));
    }
    Ok(guard)
}

/// Returns whether the JSON file for `path` was written by this job.
fn belongs_to_job(path: &Path, job: i64) -> bool {
    let Ok(file) = File::open(reasons_path(path)) else { return false };
    let mut line = String::new();
    let first = BufReader::new(file).read_line(&mut line);
    let parsed: Option<serde_json::Value> = serde_json::from_str(&line).ok();
    first.is_ok() && parsed.is_some_and(|value| value["job"].as_i64() == Some(job))
}

impl Load {
    /// Writes the rejected rows to the file of rejects, if the load has such a file. Returns the
    /// number of rows written to the file.
    pub(super) fn write_rejects(&self) -> Result<u64> {
        match &self.job.opened {
            Some(opened) => self.write_rejects_of(&[opened.job]),
            None => Ok(0),
        }
    }

    /// Writes the rejects of finished jobs again, if the load has a file of rejects. A file that is
    /// still there stays as it is: its rows may have been corrected. Returns whether rejects were
    /// written.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the file cannot be written. [`ErrorKind::Ledger`] if the ledger has
    /// deleted some of the rejects.
    pub(super) fn write_rejects_again(&self, jobs: &[JobRecord]) -> Result<bool> {
        let rejecting: Vec<_> = jobs.iter().filter(|job| job.rows_rejected > 0).collect();
        let (Some(path), [first, ..]) = (&self.options.rejects, &rejecting[..]) else {
            return Ok(false);
        };
        let _guard = lock_rejects_file(path, first.job, &self.reading.names())?;
        if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            return Ok(false);
        }
        let ids: Vec<JobId> = rejecting.iter().map(|job| JobId(job.job)).collect();
        let rows = rejecting.iter().map(|job| job.rows_rejected.unsigned_abs()).sum();
        let written = self.write_rejects_of(&ids)?;
        if written == rows {
            return Ok(true);
        }
        let names: Vec<_> = ids.iter().map(|job| format!("job {}", job.0)).collect();
        let message = format!(
            "{} rejected {}, of which the ledger still has {written}",
            names.join(" and "),
            counted(rows, "row")
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(
            "The ledger keeps rejected rows for seven days. `--restart` loads the source again and \
             rejects the rows again.",
        ))
    }

    fn write_rejects_of(&self, jobs: &[JobId]) -> Result<u64> {
        let Some(path) = &self.options.rejects else { return Ok(0) };
        let header = self.reading.reject_header();
        let client = self.job.client();
        self.job.control_session.runtime.block_on(async {
            let mut files = None;
            let mut count = 0;
            for job in jobs {
                let rejects = ledger::read_rejects(client, *job).await?;
                let mut rejects = std::pin::pin!(rejects);
                while let Some(reject) = rejects.try_next().await? {
                    let files = match &mut files {
                        Some(files) => files,
                        none => none.insert(RejectFiles::create(path, header)?),
                    };
                    files.add(&reject).map_err(|error| unwritable_error(path, error))?;
                    count += 1;
                }
            }
            if let Some(files) = files {
                files.finish(path).map_err(|error| unwritable_error(path, error))?;
            }
            Ok(count)
        })
    }
}

/// The two temporary files that are being written.
struct RejectFiles {
    /// The rejected rows.
    records: BufWriter<File>,
    /// A line of JSON for each rejected row, with the reason.
    reasons: BufWriter<File>,
}

impl RejectFiles {
    fn create(path: &Path, header: &[u8]) -> Result<RejectFiles> {
        let create = |path: &Path| {
            let file = open_own(&temporary_path(path));
            let file = file.and_then(|file| file.set_len(0).map(|()| file));
            file.map_err(|error| unwritable_error(path, error))
        };
        let mut records = BufWriter::new(create(path)?);
        records.write_all(header).map_err(|error| unwritable_error(path, error))?;
        Ok(RejectFiles { records, reasons: BufWriter::new(create(&reasons_path(path))?) })
    }

    fn add(&mut self, reject: &RejectRecord) -> std::io::Result<()> {
        self.records.write_all(&reject.record)?;
        serde_json::to_writer(&mut self.reasons, reject)?;
        self.reasons.write_all(b"\n")
    }

    /// Syncs both files to disk and renames them to their final names.
    fn finish(self, path: &Path) -> std::io::Result<()> {
        for (file, path) in [(self.reasons, reasons_path(path)), (self.records, path.to_owned())] {
            file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(temporary_path(&path), &path)?;
        }
        Ok(())
    }
}

/// Returns the path of the JSON file for a file of rejected rows.
fn reasons_path(path: &Path) -> PathBuf {
    with_suffix(path, ".json")
}

fn temporary_path(path: &Path) -> PathBuf {
    with_suffix(path, ".part")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn unwritable_error(path: &Path, error: std::io::Error) -> Error {
    let message = format!("could not write rejects to \"{}\"", path.display());
    Error::new(ErrorKind::Usage, message).because(error)
}
