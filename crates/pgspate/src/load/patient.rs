//! Statements that may take hours, such as building an index: run with an eye on the user's wish
//! to stop, and on whether the server still works on them.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::copy::{Progress, heeding};
use crate::target::connect::{Connection, Dsn};
use crate::target::{Ask, server_error};
use crate::{Error, Kind, Result};

/// How long an answer may take that the server has given.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// How one waits for statements.
#[derive(Clone, Copy)]
pub(super) struct Patient<'a> {
    pub(super) dsn: &'a Dsn,
    pub(super) progress: &'a Progress,
    /// Whether the user's wish to stop counts.
    pub(super) heeds_cancel: bool,
    /// After how long the server is asked whether it still works.
    pub(super) stall_timeout: Duration,
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
    /// `what` could not be done; of [`Kind::Connect`], too, when the server no longer works on it
    /// and yet nothing has come.
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
        let mut work = std::pin::pin!(heeding(|| self.is_cancelled(), &sessions, work));
        loop {
            if let Ok(result) = tokio::time::timeout(self.stall_timeout, &mut work).await {
                return told(result);
            }
            let looking = tokio::time::timeout(self.stall_timeout, self.is_at_work(connection));
            if !looking.await.is_ok_and(|is_at_work| is_at_work) {
                // What it has to say may just have been on its way.
                return match tokio::time::timeout(ON_ITS_WAY, &mut work).await {
                    Ok(result) => told(result),
                    Err(_) => Err(self.is_silent(connection)),
                };
            }
        }
    }

    fn is_silent(&self, connection: &Connection) -> Error {
        let seconds = self.stall_timeout.as_secs();
        let message = format!("{} gave no answer for {seconds} s", connection.place());
        Error::new(Kind::Connect, message)
    }

    /// Whether the connection's backend is busy, as another session sees it.
    async fn is_at_work(&self, connection: &Connection) -> bool {
        if connection.backend_pid() == 0 {
            return true;
        }
        let Ok(other) = self.dsn.connect("pgspate load").await else { return false };
        let sql =
            "select exists (select from pg_stat_activity where pid = $1 and state = 'active')";
        match other.client.ask_one(sql, &[&connection.backend_pid()]).await {
            Ok(row) => row.get(0),
            Err(_) => false,
        }
    }
}
