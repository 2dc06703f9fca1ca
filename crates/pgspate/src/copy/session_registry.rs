//! The open sessions of all lanes. The monitor watches these sessions, and can end them.

use std::sync::Mutex;

use tokio::task::AbortHandle;

use super::stream::LaneTally;
use pgspate_target::connect::Canceller;

/// Numbers of rows and chunks that the server has confirmed in one session of a lane. The lane's
/// thread can read the numbers also after the session was lost.
#[derive(Debug, Default)]
pub(super) struct ConfirmedTally(Mutex<LaneTally>);

impl ConfirmedTally {
    pub(super) fn set(&self, tally: &LaneTally) {
        tally.clone_into(&mut self.0.lock().expect("no panic while held"));
    }

    pub(super) fn get(&self) -> LaneTally {
        self.0.lock().expect("no panic while held").clone()
    }
}

/// A session of a lane, and the handles to end the session.
struct RegisteredSession {
    pid: i32,
    /// Cancels the session's current statement.
    canceller: Canceller,
    /// Aborts the task that sends rows over the session.
    task: AbortHandle,
}

/// All sessions of a load.
#[derive(Default)]
pub(super) struct SessionRegistry(Mutex<Vec<RegisteredSession>>);

impl SessionRegistry {
    /// Registers a session, and removes sessions whose tasks have ended.
    pub(super) fn add(&self, (pid, canceller): (i32, Canceller), task: AbortHandle) {
        self.with(|all| {
            all.retain(|session| !session.task.is_finished());
            all.push(RegisteredSession { pid, canceller, task });
        });
    }

    /// Returns the process ids of the sessions' backends.
    pub(super) fn pids(&self) -> Vec<i32> {
        self.with(|all| all.iter().map(|session| session.pid).collect())
    }

    pub(super) fn cancellers(&self) -> Vec<Canceller> {
        self.with(|all| all.iter().map(|session| session.canceller.clone()).collect())
    }

    /// Aborts the task of every session. Does not wait until the tasks have ended.
    pub(super) fn abort(&self) {
        self.with(|all| all.iter().for_each(|session| session.task.abort()));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<RegisteredSession>) -> T) -> T {
        act(&mut self.0.lock().expect("no panic while held"))
    }
}
