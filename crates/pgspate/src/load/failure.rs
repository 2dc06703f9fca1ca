//! Handles a load that fails: undoes its changes and explains the error.
//!
//! The changes to the table are undone before the error is returned, or the error says how to undo
//! them.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Load, LoadWatch, create};
use crate::copy::{blames_one_row, is_keys_dropped_error};
use crate::reading::hint_encoding;
use crate::{Error, ErrorKind};
use pgspate_target::ledger::{self, DroppedKeys};

impl Load {
    /// Undoes what the load changed, and returns its error with an explanation.
    pub(super) fn explain_failure(&mut self, error: Error, watch: &LoadWatch) -> Error {
        let message = format!("could not load {} into {}", self.reading.title(), self.plan.table);
        let error = self.name_key_dropper(error);
        let kind = error.kind();
        let mut error = hint_encoding(self.explain_deleted_job(error), &self.plan.rows);
        if self.new_table.is_some() && self.reading.is_stream() {
            error = create::hint_wider(error, &self.table);
        }
        let error = Error::new(kind, message).because(error);
        let (error, is_back) = self.table_care(watch).restore_after_failure(error);
        if self.table_changes.is_finishing {
            return error;
        }
        let has_job = self.job.opened.is_some();
        let kept = match self.job.written_sums() {
            Some(kept) => kept,
            None if has_job => return hint_unknown_outcome(error, watch),
            None => ledger::ChunkRecord::default(),
        };
        if kept.rows_written + kept.rows_rejected == 0
            || !self.table_care(watch).keeps_shadow(&error)
        {
            let left = if is_back { self.job.delete_unused() } else { None };
            let error = match left {
                Some(left) => error.hint_also(&left),
                None => error,
            };
            return self.drop_created_table(error);
        }
        let set_aside = match self.write_rejects() {
            Ok(0) | Err(_) => String::new(),
            Ok(rows) => format!(", {rows} rejected"),
        };
        let rows = kept.rows_written;
        let are = if rows == 1 { "row is" } else { "rows are" };
        let can_set_aside = self.options.rejects.is_none() && !self.plan.one_statement;
        let how = match error.place() {
            _ if self.reading.is_stream() => "the rest cannot be read again",
            Some(_) if can_set_aside && blames_one_row(&error) => {
                "`--rejects FILE` resumes the load and rejects such rows"
            }
            Some(_) if kind == ErrorKind::Source => {
                "the same command, run again, resumes if the source still has them"
            }
            Some(_) => "the same command, run again, resumes once the cause is removed",
            None => "the same command, run again, loads the rest",
        };
        let go_on = format!(
            "{rows} {are} in {}{set_aside}; {how}.",
            self.table_care(watch).describe_kept_place()
        );
        error.hint_also(&go_on)
    }

    /// Replaces the foreign-key error for a chunk whose job was deleted by an error that says so.
    fn explain_deleted_job(&mut self, error: Error) -> Error {
        match error.sqlstate() {
            Some(&SqlState::FOREIGN_KEY_VIOLATION) => match self.job.reopen() {
                Err(gone) if gone.kind() == ErrorKind::Ledger => gone.because(error),
                _ => error,
            },
            _ => error,
        }
    }

    /// Adds which other load has dropped the table's keys.
    fn name_key_dropper(&mut self, error: Error) -> Error {
        if !is_keys_dropped_error(&error) {
            return error;
        }
        let (table, job) = (self.table.oid, self.job.opened.as_ref().map_or(0, |it| it.job.0));
        let down = self
            .job
            .ask(async |client: &Client| ledger::dropped_keys(client, Some(table), job).await)
            .unwrap_or_default();
        down.first().map_or(error, DroppedKeys::to_error)
    }

    fn drop_created_table(&self, error: Error) -> Error {
        let (Some(new), Some(oid)) = (&self.new_table, self.created_oid) else { return error };
        let Err(undo) = self.job.own.runtime.block_on(create::drop_created_table(
            self.job.connection(),
            new,
            oid,
        )) else {
            return error;
        };
        let why = std::error::Error::source(&undo).map_or(undo.to_string(), ToString::to_string);
        let left =
            format!("Table {} was created for this load and still exists: {why}.", new.table);
        error.hint_also(&left)
    }
}

/// Adds a hint for the case that the server cannot be asked which rows are in the table.
fn hint_unknown_outcome(error: Error, watch: &LoadWatch) -> Error {
    let known = match watch.copy.committed.describe() {
        Some(kept) => format!("{kept} were in the table when the server last answered"),
        None => "No row is known to be in the table".to_owned(),
    };
    let how = "the same command, run again, finds out and loads what is missing";
    error.hint_also(&format!("{known}; {how}."))
}
