//! What the ledger knows before a load begins. Looking changes nothing.

use std::collections::BTreeMap;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::identity::JobIdentity;
use super::job::JobRecord;
use super::known_files::{ContinuedJob, FileState, KnownFiles, LoadedFile, ReplacedJob};
use super::{RecordedChange, change, schema};
use crate::Result;

/// What the ledger knows before a load begins.
#[derive(Debug, Clone, Default)]
pub struct LedgerState {
    /// Whether a ledger exists.
    pub exists: bool,
    /// What the ledger knows about each file.
    pub known: KnownFiles,
    /// What the ledger knows about the load as a whole.
    pub found: JobLookup,
    /// Changes to the table that earlier loads have not put back.
    pub left: Vec<RecordedChange>,
    /// Whether an earlier, unfinished run created the table.
    pub has_created_table: bool,
}

/// What the ledger knows about a job before it is opened.
#[derive(Debug, Clone, Default)]
pub enum JobLookup {
    /// No unfinished job of these files.
    #[default]
    Nothing,
    /// The job is unfinished. The numbers are the job's chunks and rows in the table.
    Unfinished(JobRecord, u64, u64),
    /// No file is left to load.
    Finished(FinishedJobs),
}

/// The jobs that have loaded all files of a load.
#[derive(Debug, Clone, Default)]
pub struct FinishedJobs {
    /// The jobs, in the order in which they started.
    pub jobs: Vec<JobRecord>,
    /// The rows of the files in the table.
    pub rows_written: u64,
}

impl LedgerState {
    /// Queries the ledger, if it `exists`. Takes one round trip if the ledger does not know the
    /// files, and another one if jobs have written rows to the table. With `restart`, no earlier
    /// job counts.
    ///
    /// # Errors
    /// The errors of [`KnownFiles`]: an unfinished job has rows in the table and cannot be
    /// continued. [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger cannot be read.
    pub async fn read(
        client: &Client,
        exists: bool,
        identity: &JobIdentity,
        restart: bool,
    ) -> Result<LedgerState> {
        if !exists {
            let known = KnownFiles::nothing(identity.sources.len());
            return Ok(LedgerState { known, ..LedgerState::default() });
        }
        let (version, known, has_outstanding) = tokio::join!(
            biased;
            schema::check_version(client),
            KnownFiles::read(client, identity, restart),
            change::has_outstanding_on(client, identity.table_oid, 0)
        );
        version?;
        let upgraded = [SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_TABLE];
        let known = match known {
            // The version check has just upgraded the ledger.
            Err(error) if error.sqlstate().is_some_and(|code| upgraded.contains(code)) => {
                KnownFiles::read(client, identity, restart).await
            }
            known => known,
        };
        let (known, has_outstanding) = (known?, has_outstanding?);
        let left = match has_outstanding {
            true => change::outstanding_changes_on(client, identity.table_oid).await?,
            false => Vec::new(),
        };
        let is_maker =
            |job: &JobRecord| job.has_created_table && job.table_oid == identity.table_oid;
        let has_created_table = known.unfinished().any(is_maker);
        let found = JobLookup::Nothing;
        Ok(LedgerState { exists, known, found, left, has_created_table })
    }

    /// Decides by which job the files of `identity` are loaded, once the identity has the files
    /// that are left to load. Returns whether only reading the sources can show that they still
    /// have the chunks that the job has written.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`](crate::ErrorKind::Ledger) if the sources or options of a job to
    /// continue have changed.
    pub fn choose_job(&mut self, identity: &mut JobIdentity) -> Result<bool> {
        if let Some(job) = &self.known.continued {
            identity.continued_key = Some(job.record.key.clone());
            let must_read = job.check_unchanged(identity)?;
            let ContinuedJob { record, done, .. } = job;
            self.found = JobLookup::Unfinished(record.clone(), done.chunks(), done.rows_written());
            return Ok(must_read);
        }
        // A job that has written nothing keeps its number if it is the same load.
        let fingerprint = identity.fingerprint();
        let is_same = |job: &&ReplacedJob| !job.has_chunks && job.record.fingerprint == fingerprint;
        self.found = match self.known.replaced.iter().find(is_same) {
            Some(job) => JobLookup::Unfinished(job.record.clone(), 0, 0),
            None => JobLookup::Nothing,
        };
        Ok(false)
    }

    /// Notes that no file is left to load: these files are in the table.
    pub fn set_finished<'a>(&mut self, files: impl Iterator<Item = &'a LoadedFile>) {
        // Earlier versions of the ledger have the rows of a job, but not of each file.
        let mut jobs = BTreeMap::<i64, (JobRecord, Option<i64>)>::new();
        for LoadedFile { job, rows, .. } in files {
            let entry = jobs.entry(job.job).or_insert_with(|| (job.as_ref().clone(), Some(0)));
            entry.1 = entry.1.zip(*rows).map(|(sum, rows)| sum + rows);
        }
        let rows = jobs.values().map(|(job, rows)| rows.unwrap_or(job.rows_written));
        let rows_written = rows.map(i64::unsigned_abs).sum();
        let jobs = jobs.into_values().map(|(job, _)| job).collect();
        self.found = JobLookup::Finished(FinishedJobs { jobs, rows_written });
    }
}

impl FileState {
    /// Returns the file that a finished job has loaded, if the table has it in any version.
    pub fn loaded(&self) -> Option<&LoadedFile> {
        match self {
            FileState::Loaded(file) | FileState::Changed(file) => Some(file),
            FileState::New | FileState::Continued(_) | FileState::Unproven(_) => None,
        }
    }
}
