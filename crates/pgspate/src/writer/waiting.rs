//! Sessions for units that wait for a lock of another session, so that no lane waits with them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::core::WriterCore;
use super::session::RecordSession;
use super::unit::{InsertOutcome, UnitWay, WriteUnit};
use crate::{Error, ErrorKind, Result};
use pgspate_target::session::ReconnectBackoff;

/// The sessions of waiting units. A unit that finds none free waits for one.
pub(super) struct WaitingSessions {
    permits: Semaphore,
    free: Mutex<Vec<RecordSession>>,
}

impl std::fmt::Debug for WaitingSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingSessions").finish_non_exhaustive()
    }
}

impl WaitingSessions {
    /// Returns an empty set of at most `sessions_max` sessions.
    pub(super) fn new(sessions_max: usize) -> WaitingSessions {
        WaitingSessions { permits: Semaphore::new(sessions_max), free: Mutex::default() }
    }

    /// Writes a unit and answers it. Waits for locks as long as the writer's options say.
    pub(super) async fn write(&self, core: &Arc<WriterCore>, mut unit: WriteUnit) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        let mut backoff = ReconnectBackoff::new(core.options.limits.retry_for);
        loop {
            match self.try_write(core, &unit).await {
                Ok(Err(lost)) if lost.kind() == ErrorKind::Connect => {
                    if !unit.may_send_again() {
                        return core.answer_unknown(unit, &lost);
                    }
                }
                Ok(answer) => return core.answer(unit, answer),
                Err(unsent) => {
                    let pause = if unsent.is_retryable() { backoff.next_pause() } else { None };
                    let Some(pause) = pause else {
                        return core.answer_unsent(unit, &unsent);
                    };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Sends a unit. An error says that nothing was sent.
    async fn try_write(
        &self,
        core: &WriterCore,
        unit: &WriteUnit,
    ) -> Result<Result<InsertOutcome>> {
        let free = self.free().pop().filter(|session| !session.is_closed());
        let mut session = match free {
            Some(session) => session,
            None => {
                let lock_timeout = core.options.limits.lock_timeout_millis();
                RecordSession::open(&core.dsn, lock_timeout).await?
            }
        };
        let answer = match unit.way() {
            UnitWay::OwnTransaction => session.write_transaction(unit).await?,
            UnitWay::InSet | UnitWay::OwnStatement => {
                let mut answers = session.write_each(std::slice::from_ref(unit)).await?;
                let missing = || Err(Error::new(ErrorKind::Bug, "a statement has no answer"));
                answers.pop().unwrap_or_else(missing)
            }
        };
        if !session.is_closed() {
            self.free().push(session);
        }
        Ok(answer)
    }

    /// Ends the sessions. No unit may be waiting any more.
    pub(super) async fn close(&self) {
        let free = std::mem::take(&mut *self.free());
        for session in free {
            session.close().await;
        }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<RecordSession>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
