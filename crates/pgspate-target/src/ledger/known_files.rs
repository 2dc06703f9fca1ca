//! What the ledger knows about each file of a load: new, loaded, changed, or part of an unfinished
//! job.
//!
//! A file is known by its own name, whatever other files a load has. So a folder that grows loads
//! only its new files. A finished job counts as long as its rows are in the table.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::Client;

use super::emptied::{has_jobs_with_rows, is_table_empty};
use super::found_jobs::{FileRecord, FoundJob, find_job_of_dropped_table, find_jobs};
use super::identity::{EmptyTable, JobIdentity, REPLACE, content_text, lines};
use super::job::{JobId, JobRecord, WrittenChunks, read_written_chunks};
use super::shadow;
use super::source_file::{SourceFingerprint, SourceMatch};
use super::unlogged::{RowSurvival, row_survival};
use crate::{Error, ErrorKind, Result};
use pgspate_base::numbers::counted;

/// What the ledger knows about the files of a load.
#[derive(Debug, Clone, Default)]
pub struct KnownFiles {
    /// The state of each source, in the order of the identity's sources.
    pub states: Vec<FileState>,
    /// The unfinished job that the load continues.
    pub continued: Option<ContinuedJob>,
    /// Unfinished jobs whose rows do not count. A new job takes their place.
    pub(super) replaced: Vec<ReplacedJob>,
    /// All jobs with these files that were looked at.
    pub(super) seen: Vec<i64>,
    /// The job that has loaded files into an earlier table of the same name, if the table has rows.
    pub loaded_elsewhere: Option<i64>,
    /// Whether the table is empty although jobs have written rows to it.
    pub(super) has_lost_rows: bool,
}

/// What the ledger knows about one file.
#[derive(Debug, Clone)]
pub enum FileState {
    /// Nothing of the file is in the table.
    New,
    /// The continued job has written a part of the file, or of a later file. The number is the
    /// file's position in the job.
    Continued(usize),
    /// The file is in the table.
    Loaded(LoadedFile),
    /// Only reading the file can show whether it has changed. The latest job comes first.
    Unproven(Vec<LoadedFile>),
    /// The file has changed since it was loaded.
    Changed(LoadedFile),
}

/// A file that a finished job has loaded.
#[derive(Debug, Clone)]
pub struct LoadedFile {
    /// The job.
    pub job: Arc<JobRecord>,
    /// The rows of the file in the table; `None` if an earlier version of the ledger recorded it.
    pub rows: Option<i64>,
    source: SourceFingerprint,
}

/// An unfinished job in whose place the load starts a job.
#[derive(Debug, Clone)]
pub(super) struct ReplacedJob {
    pub(super) record: JobRecord,
    /// Whether the job has written a chunk.
    pub(super) has_chunks: bool,
}

/// An unfinished job whose rows are in the table, or in its shadow table.
#[derive(Debug, Clone)]
pub struct ContinuedJob {
    /// The job.
    pub record: JobRecord,
    /// The written chunks.
    pub done: WrittenChunks,
    /// The job's first files, up to the last file with a written chunk. They must be the first
    /// files of the load, so that its chunks get the same numbers.
    files: Vec<SourceFingerprint>,
}

impl KnownFiles {
    /// Returns what an empty ledger knows about these sources.
    pub(super) fn nothing(sources: usize) -> KnownFiles {
        KnownFiles { states: vec![FileState::New; sources], ..KnownFiles::default() }
    }

    /// Reads what the ledger knows. With `restart`, no earlier job counts.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if an unfinished job has rows in the table and cannot be continued, or
    /// if it is unknown whether a server crash has removed a job's rows. [`ErrorKind::Server`] if
    /// the ledger cannot be read.
    pub(super) async fn read(
        client: &Client,
        identity: &JobIdentity,
        restart: bool,
    ) -> Result<KnownFiles> {
        let (jobs, have_rows, job_of_dropped) = tokio::join!(
            biased;
            find_jobs(client, identity),
            has_jobs_with_rows(client, identity.table_oid),
            find_job_of_dropped_table(client, identity)
        );
        let (jobs, have_rows, job_of_dropped) = (jobs?, have_rows?, job_of_dropped?);
        let mut known = KnownFiles::nothing(identity.sources.len());
        if jobs.is_empty() && !have_rows && job_of_dropped.is_none() {
            return Ok(known);
        }
        known.seen = jobs.iter().map(|found| found.record.job).collect();
        let is_empty = !identity.is_replace() && is_table_empty(client, identity).await?;
        known.loaded_elsewhere =
            job_of_dropped.filter(|_| jobs.is_empty() && !is_empty && !identity.is_replace());
        let is_unsure = is_empty && !restart && identity.on_empty == EmptyTable::Unsure;
        let is_empty = is_empty && identity.on_empty == EmptyTable::LostRows;
        known.has_lost_rows = is_empty && have_rows;
        let is_finished = |found: &FoundJob| found.record.finished.is_some();
        let (finished, unfinished): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_finished);
        let reader = UnfinishedReader { client, identity, restart, is_empty, is_unsure };
        for found in unfinished {
            reader.add(found, &mut known).await?;
        }
        if let Some(job) = &known.continued {
            let positions = positions_by_key(identity);
            for (position, file) in job.files.iter().enumerate() {
                if let Some(index) = positions.get(&file.key()) {
                    known.states[*index] = FileState::Continued(position);
                }
            }
        }
        let has_rows = |found: &&FoundJob| found.counts && found.record.rows_written > 0;
        if let (true, Some(found)) = (is_unsure, finished.iter().find(has_rows)) {
            return Err(unsure_error(identity, &found.record));
        }
        if !restart && !identity.is_replace() && !is_empty {
            known.add_finished(identity, finished)?;
        }
        Ok(known)
    }

    /// Adds what finished jobs have loaded.
    fn add_finished(&mut self, identity: &JobIdentity, jobs: Vec<FoundJob>) -> Result<()> {
        let mut loaded: HashMap<String, Vec<LoadedFile>> = HashMap::new();
        let is_counted =
            |found: &FoundJob| found.counts && found.record.table_oid == identity.table_oid;
        for FoundJob { record, files, binding, .. } in jobs.into_iter().rev().filter(is_counted) {
            // Rows of a crashed server's unlogged table do not exist.
            if record.rows_written > 0
                && row_survival(binding, JobId(record.job), identity)? == RowSurvival::Emptied
            {
                continue;
            }
            check_lists_all(&record, &files, identity)?;
            let job = Arc::new(record);
            if !job.lists_all_files {
                // The job has loaded exactly these sources.
                self.states = identity.sources.iter().map(|it| job.has_loaded(it)).collect();
                return Ok(());
            }
            for FileRecord { key, source, rows, .. } in files {
                let file = LoadedFile { job: Arc::clone(&job), rows, source };
                loaded.entry(key).or_default().push(file);
            }
        }
        for (state, source) in self.states.iter_mut().zip(&identity.sources) {
            if matches!(state, FileState::New) {
                let found = source.keys().filter_map(|key| loaded.get(&key)).flatten();
                *state = FileState::of(source, found.cloned().collect());
            }
        }
        Ok(())
    }

    fn replace(&mut self, record: JobRecord, has_chunks: bool) {
        self.replaced.push(ReplacedJob { record, has_chunks });
    }

    /// Returns the positions of the sources that must be read to find out whether they are loaded.
    pub fn unproven(&self) -> Vec<usize> {
        let is_unproven =
            |(_, state): &(usize, &FileState)| matches!(state, FileState::Unproven(_));
        self.states.iter().enumerate().filter(is_unproven).map(|(index, _)| index).collect()
    }

    /// Returns whether a job has loaded this content from a source.
    pub fn has_loaded(&self, index: usize, digest: Option<u128>) -> bool {
        let content = content_text(digest);
        match &self.states[index] {
            FileState::Unproven(files) => files.iter().any(|file| file.has_content(&content)),
            _ => false,
        }
    }

    /// Records the digest of the content that was read from a source.
    pub fn set_content(&mut self, index: usize, digest: Option<u128>) {
        let state = &mut self.states[index];
        if let FileState::Unproven(files) = state {
            *state = FileState::of_content(std::mem::take(files), &content_text(digest));
        }
    }

    /// Returns whether a later look has found the same unfinished jobs with the same options, and
    /// no other jobs. The sources must have an order in which a continued job can continue.
    pub(super) fn agrees_with(&self, earlier: &KnownFiles) -> bool {
        let unfinished = |known: &KnownFiles| {
            let jobs = known.unfinished().map(|record| (record.job, record.options.clone()));
            let mut jobs: Vec<_> = jobs.collect();
            jobs.sort_unstable();
            jobs
        };
        let in_order = |(index, state): (usize, &FileState)| match state {
            FileState::Continued(position) => *position == index,
            _ => true,
        };
        unfinished(self) == unfinished(earlier)
            && self.seen.iter().all(|job| earlier.seen.contains(job))
            && self.states.iter().enumerate().all(in_order)
    }

    /// Returns the unfinished jobs of these files: the continued job and those that are replaced.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &JobRecord> {
        let replaced = self.replaced.iter().map(|job| &job.record);
        self.continued.iter().map(|job| &job.record).chain(replaced)
    }
}

/// Returns the position of each source by its keys.
fn positions_by_key(identity: &JobIdentity) -> HashMap<String, usize> {
    let sources = identity.sources.iter().enumerate();
    sources.flat_map(|(index, source)| source.keys().map(move |key| (key, index))).collect()
}

/// Refuses a job if an earlier version of the ledger recorded only the job's first files. Accepts
/// the job if it had exactly the sources of this load.
fn check_lists_all(record: &JobRecord, files: &[FileRecord], identity: &JobIdentity) -> Result<()> {
    if record.lists_all_files {
        return Ok(());
    }
    let positions = positions_by_key(identity);
    let is_same = |file: &FileRecord| {
        let source = positions.get(&file.key).map(|index| &identity.sources[*index]);
        source.is_some_and(|it| it.compare_with(&file.source) == SourceMatch::Same)
    };
    if record.fingerprint == identity.fingerprint() && files.iter().all(is_same) {
        return Ok(());
    }
    let job = record.job;
    let message = format!(
        "cannot tell which files job {job} has loaded: an earlier version of pgspate has recorded \
         only its first thousand files"
    );
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Load the files that job {job} did not have by a command that names none of the others. \
         Or load everything again with `--restart`: then the table has these rows twice."
    )))
}

impl JobRecord {
    /// Returns the state of a source that the job has loaded as it is.
    fn has_loaded(self: &Arc<Self>, source: &SourceFingerprint) -> FileState {
        FileState::Loaded(LoadedFile { job: Arc::clone(self), rows: None, source: source.clone() })
    }
}

impl FileState {
    /// Returns the state of a source that these jobs have loaded. The latest job comes first.
    fn of(source: &SourceFingerprint, files: Vec<LoadedFile>) -> FileState {
        let compared: Vec<_> = files.iter().map(|it| source.compare_with(&it.source)).collect();
        if let Some(same) = compared.iter().position(|it| *it == SourceMatch::Same) {
            return FileState::Loaded(files[same].clone());
        }
        let unsure = compared.contains(&SourceMatch::Unsure);
        match unsure {
            true => FileState::Unproven(files),
            false => FileState::of_content(files, ""),
        }
    }

    /// Returns the state of a source with this content, which no other proof shows to be the same.
    fn of_content(files: Vec<LoadedFile>, content: &str) -> FileState {
        if let Some(same) = files.iter().find(|file| file.has_content(content)) {
            return FileState::Loaded(same.clone());
        }
        let has_rows = |file: &LoadedFile| file.rows.unwrap_or(file.job.rows_written) > 0;
        match files.into_iter().find(has_rows) {
            Some(file) => FileState::Changed(file),
            // Nothing of the file is in the table.
            None => FileState::New,
        }
    }
}

impl LoadedFile {
    /// Returns whether the file had this content, and the content is known.
    fn has_content(&self, content: &str) -> bool {
        !content.is_empty() && self.source.content == content
    }
}

/// Reads the state of unfinished jobs.
struct UnfinishedReader<'a> {
    client: &'a Client,
    identity: &'a JobIdentity,
    restart: bool,
    /// Whether the table has lost all rows.
    is_empty: bool,
    /// Whether the table is empty, and its triggers may have stored its rows elsewhere.
    is_unsure: bool,
}

impl UnfinishedReader<'_> {
    /// Adds an unfinished job: as the job to continue, as a job to replace, or not at all.
    async fn add(&self, found: FoundJob, known: &mut KnownFiles) -> Result<()> {
        let (identity, record) = (self.identity, &found.record);
        let is_same_command = record.command == identity.command;
        let is_replace = identity.is_replace() || record.command == REPLACE;
        // The job is about another table of that name, or the table was emptied after it.
        if record.table_oid != identity.table_oid || !found.counts {
            known.replace(found.record, true);
            return Ok(());
        }
        let has_shadow = shadow::read_state(self.client, JobId(record.job)).await?.is_some();
        // `--replace` replaces what other commands have written. Nothing of a shadow table is in
        // the table.
        if is_replace && !is_same_command && (identity.is_replace() || has_shadow) {
            return Ok(());
        }
        if has_shadow || (is_same_command && (identity.in_shadow || identity.is_replace())) {
            return self.add_with_shadow(found, has_shadow, known).await;
        }
        let written = read_written_chunks(self.client, JobId(record.job)).await?;
        let has_chunks = written.chunks() > 0;
        let done = self.surviving_chunks(&found, written)?;
        if done.chunks() == 0 || (done.rows_written() > 0 && self.is_empty) {
            // A replacing load may be running, and is none of this load's business.
            if !is_replace {
                known.replace(found.record, has_chunks);
            }
            return Ok(());
        }
        if self.is_unsure && done.rows_written() > 0 {
            return Err(unsure_error(identity, record));
        }
        check_lists_all(record, &found.files, identity)?;
        let files = self.first_files(&found, &done)?;
        if self.restart {
            known.replace(found.record, true);
            return Ok(());
        }
        if !is_same_command {
            return Err(identity.changed_error(record, &[], done.rows_written()));
        }
        if let Some(other) = &known.continued {
            return Err(two_unfinished_error(other.record.job, record.job));
        }
        if !done.are_numbered_by_input() {
            return Err(earlier_version_error(record.job, done.rows_written()));
        }
        known.continued = Some(ContinuedJob { record: found.record, done, files });
        Ok(())
    }

    /// Adds a job whose rows are in a shadow table, or were written in one transaction. The job
    /// continues only if it is exactly this load. Otherwise it starts again, as nothing of it is in
    /// the table.
    async fn add_with_shadow(
        &self,
        found: FoundJob,
        has_shadow: bool,
        known: &mut KnownFiles,
    ) -> Result<()> {
        let (identity, record) = (self.identity, &found.record);
        let files: Vec<_> = found.files.iter().map(|file| file.source.clone()).collect();
        let is_same = !self.restart
            && identity.in_shadow
            && has_shadow
            && record.command == identity.command
            && record.fingerprint == identity.fingerprint()
            && identity.compare_with(&files, &record.options) == SourceMatch::Same;
        if !is_same {
            known.replace(found.record, true);
            return Ok(());
        }
        let written = read_written_chunks(self.client, JobId(record.job)).await?;
        let done = self.surviving_chunks(&found, written)?;
        if !done.are_numbered_by_input() {
            known.replace(found.record, true);
            return Ok(());
        }
        known.continued = Some(ContinuedJob { record: found.record, done, files });
        Ok(())
    }

    /// Returns the written chunks whose rows still exist.
    fn surviving_chunks(&self, found: &FoundJob, written: WrittenChunks) -> Result<WrittenChunks> {
        // A table that is empty anyway needs no proof.
        if written.chunks() == 0 || (written.rows_written() > 0 && self.is_empty) {
            return Ok(written);
        }
        match row_survival(found.binding, JobId(found.record.job), self.identity)? {
            RowSurvival::Kept => Ok(written),
            RowSurvival::Emptied => Ok(WrittenChunks::default()),
        }
    }

    /// Returns the job's files up to the last file with a written chunk. A file without a written
    /// chunk may have changed since: its new state takes the place of the old one.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the load does not have one of these files.
    fn first_files(
        &self,
        found: &FoundJob,
        done: &WrittenChunks,
    ) -> Result<Vec<SourceFingerprint>> {
        let positions = positions_by_key(self.identity);
        let last = done.last_input();
        let first = found.files.iter().filter(|file| file.input <= last);
        let missing = first.clone().find(|file| !positions.contains_key(&file.key));
        let Some(missing) = missing else {
            let current = |file: &FileRecord| &self.identity.sources[positions[&file.key]];
            let source = |file: &FileRecord| match done.has_input(file.input) {
                true => file.source.clone(),
                false => current(file).clone(),
            };
            return Ok(first.map(source).collect());
        };
        let (job, rows) = (found.record.job, done.rows_written());
        let s = if rows == 1 { "" } else { "s" };
        let message = format!(
            "this load has files of unfinished job {job}, but lacks {}: the job has written rows \
             of this file or of later ones",
            missing.source.name
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "Name all files of job {job}: then this load finishes it. Or `pgspate status {job} \
             --forget`, and load its files from the beginning. The {rows} row{s} that job {job} \
             has written stay in the table."
        )))
    }
}

/// Returns the error for a job that an earlier version has begun, which numbered the chunks of
/// several files in another way.
fn earlier_version_error(job: i64, rows: u64) -> Error {
    let message = format!("job {job} was begun by an earlier version of pgspate");
    let rows = counted(rows, "row");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Finish it with that version. Or remove its {rows} from the table, and load the files \
         again with `--restart`."
    ))
}

/// Returns the error for an empty table whose rows a trigger or another server may have moved.
fn unsure_error(identity: &JobIdentity, record: &JobRecord) -> Error {
    let (table, job) = (&identity.table, record.job);
    let message = format!(
        "cannot tell whether the rows of job {job} still exist: {table} is empty, but a trigger or \
         another server may have moved the rows"
    );
    Error::new(ErrorKind::Ledger, message)
        .hint("If the rows are gone, load the files again with `--restart`.")
}

/// Returns the error for a load with files of two unfinished jobs.
fn two_unfinished_error(one: i64, other: i64) -> Error {
    let message = format!("this load has files of two unfinished jobs, {one} and {other}");
    Error::new(ErrorKind::Ledger, message).hint(
        "Run the load of each job again, so that both are finished. `pgspate status` lists them.",
    )
}

impl ContinuedJob {
    /// Checks that the first sources and the options of `identity` are still those of the job.
    /// Returns whether only reading the sources can show that they still have the written chunks.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a source or an option has changed.
    pub fn check_unchanged(&self, identity: &JobIdentity) -> Result<bool> {
        match identity.compare_with(&self.files, &self.record.options) {
            SourceMatch::Same => Ok(false),
            SourceMatch::Unsure => Ok(true),
            SourceMatch::Different => Err(self.changed_error(identity)),
        }
    }

    /// Returns the error for sources or options that have changed since the job began.
    pub fn changed_error(&self, identity: &JobIdentity) -> Error {
        identity.changed_error(&self.record, &self.files, self.done.rows_written())
    }

    /// Returns the number of the job's files that must come first.
    pub(super) fn first_files(&self) -> usize {
        self.files.len()
    }
}

impl JobIdentity {
    /// Returns the error for files that have changed since they were loaded. `changed` are the
    /// positions of the sources and what the ledger has of them.
    pub fn changed_files_error(&self, changed: &[(usize, &LoadedFile)]) -> Error {
        let lines_of = changed.iter().map(|(index, was)| {
            format!("{} (job {})", self.sources[*index].change_since(&was.source), was.job.job)
        });
        let what = match changed {
            [(index, _)] => format!("{} has changed since it was", self.sources[*index].name),
            all => format!("{} files have changed since they were", all.len()),
        };
        let described: Vec<_> = lines_of.collect();
        let message = format!("{what} loaded into {}{}", self.table, lines(&described));
        Error::new(ErrorKind::Ledger, message).hint(
            "`--changed skip` leaves changed files out. `--changed reload` loads them again: then \
             the table has the rows of both versions. `pgspate sync` and `--replace` replace the \
             old version of the rows.",
        )
    }
}
