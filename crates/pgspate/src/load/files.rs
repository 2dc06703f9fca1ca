//! Which files a load reads: those that are not in the table, as the ledger knows it.
//!
//! A file that is in the table is left out. A file that has changed since it was loaded is refused,
//! unless the user says what to do with it. The files of an unfinished job come first, in the job's
//! order.

use std::collections::HashSet;

use serde::Serialize;

use super::Load;
use super::add_columns::ColumnsToAdd;
use super::prepare::limit_lanes;
use crate::numbers::counted;
use crate::plan::{LoadPlan, RowPlan};
use crate::reading::sniff_inputs;
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{FileState, KnownFiles, LoadedFile};

/// What to do with files that have changed since they were loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChangedFiles {
    /// Load nothing, and name the files.
    #[default]
    Error,
    /// Leave these files out.
    Skip,
    /// Load these files again. The rows of the old versions stay.
    Reload,
}

/// How many files of a load are new, skipped and changed.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct FileCounts {
    /// Files that were not in the table, or only in part.
    pub new: usize,
    /// Files that are in the table and were left out.
    pub skipped: usize,
    /// Files that have changed since they were loaded.
    pub changed: usize,
    /// Whether the changed files are loaded again.
    #[serde(skip)]
    pub reloads: bool,
}

impl FileCounts {
    /// Returns the number of all files.
    pub(super) fn total(&self) -> usize {
        self.new + self.skipped + self.changed
    }

    /// Describes the counts: `2 files: 1 new, 1 skipped as loaded`. `None` if all files are new, or
    /// if all are skipped.
    pub fn describe(&self) -> Option<String> {
        if self.new == self.total() || self.skipped == self.total() {
            return None;
        }
        let FileCounts { new, skipped, changed, reloads } = self;
        let how = if *reloads { "loaded again" } else { "left out" };
        let parts = [
            (*new, format!("{new} new")),
            (*skipped, format!("{skipped} skipped as loaded")),
            (*changed, format!("{changed} changed and {how}")),
        ];
        let parts: Vec<_> =
            parts.into_iter().filter(|(number, _)| *number > 0).map(|(_, text)| text).collect();
        Some(format!("{}: {}", counted(self.total() as u64, "file"), parts.join(", ")))
    }
}

/// The files of a load, by what happens to them.
#[derive(Default)]
struct FileChoice<'a> {
    /// The positions of the files to load, in the order in which they are loaded.
    chosen: Vec<usize>,
    /// The files that are in the table, with their positions.
    loaded: Vec<(usize, &'a LoadedFile)>,
    /// The files that have changed.
    changed: Vec<(usize, &'a LoadedFile)>,
}

impl FileChoice<'_> {
    fn make(known: &KnownFiles, changed: ChangedFiles) -> FileChoice<'_> {
        let mut choice = FileChoice::default();
        let mut first = Vec::new();
        for (index, state) in known.states.iter().enumerate() {
            match state {
                FileState::Continued(position) => first.push((*position, index)),
                FileState::New | FileState::Unproven(_) => choice.chosen.push(index),
                FileState::Loaded(file) => choice.loaded.push((index, file)),
                FileState::Changed(file) => {
                    choice.changed.push((index, file));
                    if changed == ChangedFiles::Reload {
                        choice.chosen.push(index);
                    }
                }
            }
        }
        first.sort_unstable();
        let first = first.into_iter().map(|(_, index)| index);
        choice.chosen = first.chain(choice.chosen).collect();
        choice
    }
}

impl Load {
    /// Leaves out the files that are in the table, and chooses the job by which the other files are
    /// loaded. Reads a file if only its content can prove that the file is unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a file has changed, if it was loaded with other options, or if an
    /// unfinished job cannot be continued. The errors of reading an input.
    pub(super) fn choose_files(&mut self) -> Result<()> {
        self.files = FileCounts { new: self.reading.inputs.len(), ..FileCounts::default() };
        let Some(identity) = self.job.identity.clone() else { return Ok(()) };
        let mut known = std::mem::take(&mut self.job.ledger_state.known);
        self.read_unproven(&mut known)?;
        let choice = FileChoice::make(&known, self.options.changed);
        let reloads = self.options.changed == ChangedFiles::Reload;
        let (skipped, changed) = (choice.loaded.len(), choice.changed.len());
        let new = choice.chosen.len() - if reloads { changed } else { 0 };
        self.files = FileCounts { new, skipped, changed, reloads };
        if changed > 0 && self.options.changed == ChangedFiles::Error {
            return Err(identity.changed_files_error(&choice.changed));
        }
        if choice.chosen.is_empty() {
            let files = choice.loaded.iter().chain(&choice.changed).map(|(_, file)| *file);
            self.job.ledger_state.set_finished(files);
        } else if !choice.chosen.iter().copied().eq(0..self.reading.inputs.len()) {
            self.read_only(&choice.chosen)?;
        }
        // Who skips changed files has said that files in the table stay as they were loaded.
        if let Some(chosen) = &self.job.identity
            && self.options.changed != ChangedFiles::Skip
        {
            let (key, mut jobs) = (chosen.key(), HashSet::new());
            for (index, file) in &choice.loaded {
                if jobs.insert(file.job.job) {
                    chosen.check_options(&key, &file.job, &identity.sources[*index].name)?;
                }
            }
        }
        let has_files = !choice.chosen.is_empty();
        self.job.ledger_state.known = known;
        match has_files {
            true => self.choose_job(),
            false => Ok(()),
        }
    }

    /// Reads the files for which only the content can prove that they are unchanged.
    fn read_unproven(&self, known: &mut KnownFiles) -> Result<()> {
        for index in known.unproven() {
            let content = match self.reading.read_content(&self.plan.rows, index) {
                // The file was loaded by itself, and its columns differ from those of the others.
                Err(error) if matches!(error.kind(), ErrorKind::Format | ErrorKind::Type) => None,
                content => content?,
            };
            let is_alone = self.reading.inputs.len() == 1;
            let content = match is_alone || known.has_loaded(index, content) {
                true => content,
                // A file that cannot be read by itself has other content.
                false => self.read_alone(index).unwrap_or_default(),
            };
            known.set_content(index, content);
        }
        Ok(())
    }

    /// Reads one input as a load of this input alone would cut it, and returns its digest.
    fn read_alone(&self, index: usize) -> Result<Option<u128>> {
        let (inputs, session) =
            (vec![self.reading.inputs[index].clone()], &self.job.control_session);
        let (reading, rows) =
            sniff_inputs(inputs, Some(&self.table), &self.options.reading, session)?;
        let plan = RowPlan::make(&self.table, &self.session, &reading.facts(), &rows)?;
        reading.read_content(&plan, 0)
    }

    /// Chooses the job by which the files are loaded. Reads the files if only this can show that
    /// they still have the chunks that the job has written.
    fn choose_job(&mut self) -> Result<()> {
        let (state, Some(identity)) = (&mut self.job.ledger_state, &mut self.job.identity) else {
            return Ok(());
        };
        let must_read = state.choose_job(identity)?;
        match &state.known.continued {
            Some(job) if must_read && !self.reading.have_chunks(&self.plan.rows, &job.done)? => {
                Err(job.changed_error(identity))
            }
            _ => Ok(()),
        }
    }

    /// Reads only the inputs at these positions, in this order. Format, columns and plan are those
    /// of a load of these inputs alone.
    fn read_only(&mut self, chosen: &[usize]) -> Result<()> {
        let inputs: Vec<Input> =
            chosen.iter().map(|index| self.reading.inputs[*index].clone()).collect();
        if are_empty(&inputs)? {
            // Empty inputs show no format. The other files do.
            self.reading.inputs = inputs.into();
        } else {
            let session = &self.job.control_session;
            if let Some(to_add) = &self.to_add {
                to_add.remove_from(&mut self.table);
            }
            let (mut reading, mut rows) =
                sniff_inputs(inputs, Some(&self.table), &self.options.reading, session)?;
            let types = &self.options.new_table.types;
            reading.name_columns(types);
            let (connection, table) = (&session.connection, &mut self.table);
            let adding = ColumnsToAdd::plan(connection, table, &reading, &mut rows, types);
            self.to_add = session.runtime.block_on(adding)?;
            reading.note_skipped(self.reading.skipped.take());
            reading.unused_options = std::mem::take(&mut self.reading.unused_options);
            (self.reading, self.request.rows) = (reading, rows);
        }
        let facts = self.reading.facts();
        self.plan = LoadPlan::make(&self.table, &self.session, &facts, &self.request)?;
        self.plan.lanes = limit_lanes(self.plan.lanes, self.free_connections);
        let Some(identity) = self.job.identity.take() else {
            return Err(Error::new(ErrorKind::Bug, "a load without a ledger left files out"));
        };
        let sources = chosen.iter().map(|index| identity.sources[*index].clone()).collect();
        self.job.identity = Some(self.make_identity(sources));
        Ok(())
    }
}

/// Returns whether no input has a byte.
fn are_empty(inputs: &[Input]) -> Result<bool> {
    for input in inputs {
        if !input.peek(1)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}
