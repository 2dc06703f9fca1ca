//! A load that comes to nothing: what is undone, and what is told.
//!
//! What the load has changed is back before the error is, or the error says how to get it back.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Load, LoadWatch, create};
use crate::copy::{is_about_one_row, is_keys_down};
use crate::reading::hint_encoding;
use crate::{Error, ErrorKind};
use pgspate_target::ledger::{self, KeysDown};

impl Load {
    /// The load's error, after the table that was made for it is gone again.
    pub(super) fn failed(&mut self, error: Error, watch: &LoadWatch) -> Error {
        let message = format!("could not load {} into {}", self.reading.title(), self.plan.table);
        let error = self.name_keys(error);
        let kind = error.kind();
        let mut error = hint_encoding(self.forgotten(error), &self.plan.rows);
        if self.new_table.is_some() && self.reading.is_stream() {
            error = create::hint_wider(error, &self.table);
        }
        let error = Error::new(kind, message).because(error);
        let (error, is_back) = self.caring(watch).put_back(error);
        if self.care.is_finishing {
            return error;
        }
        let has_job = self.job.opened.is_some();
        let kept = match self.job.kept() {
            Some(kept) => kept,
            None if has_job => return unsure(error, watch),
            None => ledger::Seal::default(),
        };
        if kept.rows_written + kept.rows_rejected == 0 || !self.caring(watch).keeps_shadow(&error) {
            let left = if is_back { self.job.forget() } else { None };
            let error = match left {
                Some(left) => error.hint_also(&left),
                None => error,
            };
            return self.undo_create(error);
        }
        let set_aside = match self.write_rejects() {
            Ok(0) | Err(_) => String::new(),
            Ok(rows) => format!(", {rows} set aside"),
        };
        let rows = kept.rows_written;
        let are = if rows == 1 { "row is" } else { "rows are" };
        let can_set_aside = self.options.rejects.is_none() && !self.plan.one_statement;
        let how = match error.place() {
            _ if self.reading.is_stream() => "the rest cannot be read again",
            Some(_) if can_set_aside && is_about_one_row(&error) => {
                "with `--rejects FILE` the load sets such rows aside and goes on from there"
            }
            Some(_) if kind == ErrorKind::Source => {
                "the same command, run again, goes on if the source still holds them"
            }
            Some(_) => "the load goes on from there once nothing stands in its way",
            None => "the same command, run again, loads the rest",
        };
        let go_on =
            format!("{rows} {are} in {}{set_aside}; {how}.", self.caring(watch).where_kept());
        error.hint_also(&go_on)
    }

    /// For a chunk whose job is gone: that it is, and what the server said of it.
    fn forgotten(&mut self, error: Error) -> Error {
        match error.sqlstate() {
            Some(&SqlState::FOREIGN_KEY_VIOLATION) => match self.job.reopen() {
                Err(gone) if gone.kind() == ErrorKind::Ledger => gone.because(error),
                _ => error,
            },
            _ => error,
        }
    }

    /// For keys that another load has dropped: which load.
    fn name_keys(&mut self, error: Error) -> Error {
        if !is_keys_down(&error) {
            return error;
        }
        let (table, job) = (self.table.oid, self.job.opened.as_ref().map_or(0, |it| it.job.0));
        let down = self
            .job
            .ask(async |client: &Client| ledger::keys_down(client, Some(table), job).await)
            .unwrap_or_default();
        down.first().map_or(error, KeysDown::refuse)
    }

    fn undo_create(&self, error: Error) -> Error {
        let (Some(new), Some(oid)) = (&self.new_table, self.made) else { return error };
        let Err(undo) =
            self.job.own.runtime.block_on(create::drop(self.job.connection(), new, oid))
        else {
            return error;
        };
        let why = std::error::Error::source(&undo).map_or(undo.to_string(), ToString::to_string);
        let left = format!("Table {} was made for this load and is still there: {why}.", new.table);
        error.hint_also(&left)
    }
}

/// Where the server cannot be asked any more what of the load is in the table.
fn unsure(error: Error, watch: &LoadWatch) -> Error {
    let known = match watch.copy.kept.words() {
        Some(kept) => format!("{kept} were in the table when the server was last heard of"),
        None => "No row is known to be in the table".to_owned(),
    };
    let how = "the same command, run again, finds out, and loads what is missing";
    error.hint_also(&format!("{known}; {how}."))
}
