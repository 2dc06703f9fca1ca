//! Handles a failed load: undoes the load's changes and explains the error.
//!
//! The changes to the table are undone before the error is returned. If that fails, a hint says how
//! to undo them.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Load, LoadWatch, create};
use crate::copy::{blames_one_row, is_keys_dropped_error};
use crate::plan::hint_date_format;
use crate::reading::hint_value;
use crate::{Error, ErrorKind};
use pgspate_target::ConcurrentChange;
use pgspate_target::ledger::{self, DroppedKeys};

impl Load {
    /// Undoes the load's changes. Returns `error` with an explanation and a hint how to continue.
    pub(super) fn explain_failure(&mut self, error: Error, watch: &LoadWatch) -> Error {
        let message = format!("could not load {} into {}", self.reading.title(), self.plan.table);
        let error = self.name_key_dropper(error);
        let kind = error.kind();
        let error = self.explain_deleted_job(error);
        let error = Error::new(kind, message).because(self.hint_cause(error));
        let (error, is_restored) = self.table_care(watch).restore_after_failure(error);
        if self.table_changes.is_finishing {
            return error;
        }
        let has_job = self.job.opened.is_some();
        let kept = match self.job.written_totals() {
            Some(kept) => kept,
            None if has_job => return hint_unknown_outcome(error, watch),
            None => ledger::ChunkRecord::default(),
        };
        if kept.rows_written + kept.rows_rejected == 0
            || !self.table_care(watch).keeps_shadow(&error)
        {
            let hint = if is_restored { self.job.delete_unused() } else { None };
            let error = match hint {
                Some(hint) => error.hint_also(&hint),
                None => error,
            };
            return self.drop_created_table(error);
        }
        self.hint_kept_rows(error, kept.rows_written, watch)
    }

    /// Adds hints about the values and types that the error is about.
    fn hint_cause(&self, error: Error) -> Error {
        let error = hint_date_format(error, &self.plan.rows.columns, &self.reading.facts());
        let error = self.reading.hint_title(hint_value(error, &self.plan.rows));
        let mut error = self.hint_refusal(error);
        if let Some(new) = &self.new_table {
            let can_widen = create::wider_type(new, &self.table, &error).is_some();
            error = match self.reading.is_stream() && can_widen {
                true => create::hint_type(error, new, &self.table),
                false => create::hint_chosen_type(error, &self.table),
            };
        }
        if let Some(to_add) = &self.to_add {
            error = to_add.hint_type(error);
            if !self.added_columns.is_empty() {
                error = to_add.hint_stays(error);
            }
        }
        error
    }

    /// Adds a hint to an error that another way to write the rows avoids.
    fn hint_refusal(&self, error: Error) -> Error {
        match error.sqlstate() {
            Some(&SqlState::UNIQUE_VIOLATION) if error.place().is_some() => error.hint_also(
                "If the table has the key already, `pgspate sync --no-delete` updates the row.",
            ),
            // The server's own hint is to use INSERT.
            Some(&SqlState::FEATURE_NOT_SUPPORTED) if self.table.row_security => error.hint(
                "Load as a role that sees all rows of the table: `alter role ... bypassrls`.",
            ),
            _ => error,
        }
    }

    /// Adds a hint that says where the `rows` committed rows are, and how to load the rest.
    fn hint_kept_rows(&mut self, error: Error, rows: u64, watch: &LoadWatch) -> Error {
        let rejected = match self.write_rejects() {
            Ok(0) | Err(_) => String::new(),
            Ok(rows) => format!(", {rows} rejected"),
        };
        let are = if rows == 1 { "row is" } else { "rows are" };
        let can_reject = self.options.rejects.is_none() && !self.plan.one_statement;
        let place = self.table_care(watch).describe_kept_place();
        match ConcurrentChange::of_error(&error) {
            Some(ConcurrentChange::Replaced) => {
                return error.hint(format!(
                    "{rows} {are} in the table that had the name before. The same command, run \
                     again, loads everything into the table that has the name now."
                ));
            }
            Some(ConcurrentChange::Emptied) => {
                return error.hint(format!(
                    "Of this load, {rows} committed {are} removed, too. The same command, run \
                     again, loads everything."
                ));
            }
            Some(ConcurrentChange::Altered) => {
                return error.hint(format!(
                    "{rows} {are} in {place}{rejected}; {}, encodes the rest for the new type.",
                    watch.copy.command_to_resume()
                ));
            }
            None => {}
        }
        let again = watch.copy.command_to_resume();
        let how = match error.place() {
            _ if self.reading.is_stream() => "the rest cannot be read again".to_owned(),
            Some(_) if can_reject && blames_one_row(&error) => match self.options.restart {
                false => "`--rejects FILE` resumes the load and rejects such rows".to_owned(),
                true => "`--rejects FILE` in place of `--restart` resumes the load and rejects \
                         such rows"
                    .to_owned(),
            },
            Some(_) if error.kind() == ErrorKind::Source => {
                format!("{again}, resumes if the source still has these rows")
            }
            Some(_) => format!("{again}, resumes once the cause is removed"),
            None => format!("{again}, loads the rest"),
        };
        error.hint_also(&format!("{rows} {are} in {place}{rejected}; {how}."))
    }

    /// Explains a foreign-key violation that the ledger raised because another session has deleted
    /// the job. The error of a deleted job takes its place.
    fn explain_deleted_job(&mut self, error: Error) -> Error {
        match error.sqlstate() {
            Some(&SqlState::FOREIGN_KEY_VIOLATION) => match self.job.reopen() {
                Err(deleted) if deleted.kind() == ErrorKind::Ledger => deleted.because(error),
                _ => error,
            },
            _ => error,
        }
    }

    /// Replaces an error about dropped keys by an error that names the load that dropped them.
    fn name_key_dropper(&mut self, error: Error) -> Error {
        if !is_keys_dropped_error(&error) {
            return error;
        }
        let (table, job) = (self.table.oid, self.job.opened.as_ref().map_or(0, |it| it.job.0));
        let dropped_keys = self
            .job
            .with_client(async |client: &Client| {
                ledger::dropped_keys(client, Some(table), job).await
            })
            .unwrap_or_default();
        dropped_keys.first().map_or(error, DroppedKeys::to_error)
    }

    /// Drops the table, if this load created it. Adds a hint if the table could not be dropped.
    fn drop_created_table(&self, error: Error) -> Error {
        let (Some(new), Some(oid)) = (&self.new_table, self.created_oid) else { return error };
        let Err(undo) = self.job.control_session.runtime.block_on(create::drop_created_table(
            self.job.connection(),
            new,
            oid,
        )) else {
            return error;
        };
        let why = std::error::Error::source(&undo).map_or(undo.to_string(), ToString::to_string);
        let hint =
            format!("Table {} was created for this load and still exists: {why}.", new.table);
        error.hint_also(&hint)
    }
}

/// Adds a hint for the case that the server cannot be asked which rows are in the table.
fn hint_unknown_outcome(error: Error, watch: &LoadWatch) -> Error {
    let last_known = match watch.copy.committed.describe() {
        Some(kept) => format!("{kept} were in the table when the server last answered"),
        None => "No row is known to be in the table".to_owned(),
    };
    let again = watch.copy.command_to_resume();
    error.hint_also(&format!("{last_known}; {again}, finds out and loads what is missing."))
}
