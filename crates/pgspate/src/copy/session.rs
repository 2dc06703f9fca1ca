//! Sessions of lanes, as the monitor sees them: whether they are alive, and how to end them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::stream::Tally;
use crate::target::connect::Canceller;

/// Tells that a lane's task goes on, or that it has nothing to do.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    beats: AtomicU64,
    waits_for_input: AtomicBool,
    confirmed: Mutex<Tally>,
}

impl Pulse {
    /// Something was sent or answered.
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Relaxed);
    }

    /// The server has confirmed so much by now.
    pub(super) fn confirm(&self, tally: &Tally) {
        tally.clone_into(&mut self.confirmed.lock().expect("no panic while held"));
    }

    /// What the server has confirmed in this session, however it ends.
    pub(super) fn confirmed(&self) -> Tally {
        self.confirmed.lock().expect("no panic while held").clone()
    }

    /// There is nothing to send, or there is again.
    pub(super) fn wait_for_input(&self, waits: bool) {
        self.waits_for_input.store(waits, Relaxed);
        self.beat();
    }
}

/// A session of a lane.
pub(super) struct Session {
    pub(super) pid: i32,
    canceller: Canceller,
    pulse: Arc<Pulse>,
    task: AbortHandle,
    seen: Seen,
}

/// What was last seen of a session, and since when.
struct Seen {
    beats: u64,
    /// When the server's side last changed, by the server's clock.
    changed: String,
    since: Instant,
}

/// What the server says of a session.
pub(super) struct Report {
    pub(super) pid: i32,
    /// It waits for us.
    pub(super) waits_for_client: bool,
    /// When it last changed its state.
    pub(super) changed: String,
}

/// All sessions of a load.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Vec<Session>>);

impl Sessions {
    pub(super) fn add(
        &self,
        (pid, canceller): (i32, Canceller),
        pulse: Arc<Pulse>,
        task: AbortHandle,
    ) {
        let seen = Seen { beats: 0, changed: String::new(), since: Instant::now() };
        self.with(|all| {
            all.retain(|session| !session.task.is_finished());
            all.push(Session { pid, canceller, pulse, task, seen });
        });
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        self.with(|all| all.iter().map(|session| session.pid).collect())
    }

    pub(super) fn cancellers(&self) -> Vec<Canceller> {
        self.with(|all| all.iter().map(|session| session.canceller.clone()).collect())
    }

    /// Ends every session without waiting for anything.
    pub(super) fn abort(&self) {
        self.with(|all| all.iter().for_each(|session| session.task.abort()));
    }

    /// Ends sessions whose server waits for us while we wait for it: what one of both has sent is
    /// lost. No `reports`: the server could not be asked, and is given twice the time.
    pub(super) fn abort_stalled(&self, reports: Option<&[Report]>, limit: Duration) {
        let limit = if reports.is_some() { limit } else { limit * 2 };
        self.with(|all| {
            for session in all.iter_mut().filter(|session| !session.task.is_finished()) {
                if session.silence(reports) > limit {
                    session.task.abort();
                }
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Session>) -> T) -> T {
        act(&mut self.0.lock().expect("no panic while held"))
    }
}

impl Session {
    /// For how long neither side has done anything.
    fn silence(&mut self, reports: Option<&[Report]>) -> Duration {
        let beats = self.pulse.beats.load(Relaxed);
        let report = reports.map(|all| all.iter().find(|report| report.pid == self.pid));
        let is_working = match &report {
            // A backend that is gone does nothing.
            Some(Some(report)) => !report.waits_for_client || report.changed != self.seen.changed,
            Some(None) | None => false,
        };
        let is_idle = self.pulse.waits_for_input.load(Relaxed);
        if is_working || is_idle || beats != self.seen.beats {
            self.seen.beats = beats;
            self.seen.since = Instant::now();
        }
        if let Some(Some(report)) = report {
            report.changed.clone_into(&mut self.seen.changed);
        }
        self.seen.since.elapsed()
    }
}
