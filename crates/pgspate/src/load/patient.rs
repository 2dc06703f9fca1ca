//! Statements that may take hours, such as building an index: run with an eye on the user's wish
//! to stop.

use tokio_postgres::error::SqlState;

use crate::copy::{Progress, heeding};
use crate::target::connect::{Connection, Dsn};
use crate::target::server_error;
use crate::{Error, Kind, Result};

/// How one waits for statements.
#[derive(Clone, Copy)]
pub(super) struct Patient<'a> {
    pub(super) dsn: &'a Dsn,
    pub(super) progress: &'a Progress,
    /// Whether the user's wish to stop counts.
    pub(super) heeds_cancel: bool,
}

impl Patient<'_> {
    pub(super) fn is_cancelled(&self) -> bool {
        self.heeds_cancel && self.progress.is_cancelled()
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        match self.is_cancelled() {
            true => Err(Error::new(Kind::Cancelled, "stopped by the user")),
            false => Ok(()),
        }
    }

    /// Runs statements. Asks the server to stop them once the user wants that.
    ///
    /// # Errors
    /// `what` could not be done.
    pub(super) async fn run(&self, connection: &Connection, sql: &str, what: &str) -> Result<()> {
        let told = |result: Result<(), tokio_postgres::Error>| match result {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                self.check_cancelled()?;
                Err(server_error(what.to_owned())(error))
            }
            result => result.map_err(server_error(what.to_owned())),
        };
        let sessions = [connection.canceller()];
        let work = connection.client.batch_execute(sql);
        told(heeding(|| self.is_cancelled(), &sessions, work).await)
    }
}
