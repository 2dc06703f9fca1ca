//! The open sessions of all lanes, so that the monitor can watch and end them.

use std::sync::Mutex;

use tokio::task::AbortHandle;

use super::stream::LaneTally;
use pgspate_target::connect::Canceller;

/// What the server has confirmed in a lane's session. It stays readable however the session ends.
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

/// A session of a lane, and the ways to end it.
struct RegisteredSession {
    pid: i32,
    canceller: Canceller,
    task: AbortHandle,
}

/// All sessions of a load.
#[derive(Default)]
pub(super) struct SessionRegistry(Mutex<Vec<RegisteredSession>>);

impl SessionRegistry {
    pub(super) fn add(&self, (pid, canceller): (i32, Canceller), task: AbortHandle) {
        self.with(|all| {
            all.retain(|session| !session.task.is_finished());
            all.push(RegisteredSession { pid, canceller, task });
        });
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        self.with(|all| all.iter().map(|session| session.pid).collect())
    }

    pub(super) fn cancellers(&self) -> Vec<Canceller> {
        self.with(|all| all.iter().map(|session| session.canceller.clone()).collect())
    }

    /// Aborts the task of every session without waiting for anything.
    pub(super) fn abort(&self) {
        self.with(|all| all.iter().for_each(|session| session.task.abort()));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<RegisteredSession>) -> T) -> T {
        act(&mut self.0.lock().expect("no panic while held"))
    }
}
