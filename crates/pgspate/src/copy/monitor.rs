//! Watches the lanes' backends: what they wait for, and whether they wait for each other.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::session::SessionRegistry;
use super::shared::SharedRun;
use super::{Commit, Waiting};
use pgspate_target::Ask;

/// Short loads end before the first look, and pay nothing for it.
const INTERVAL: Duration = Duration::from_millis(400);

/// A look that takes longer than this counts as missed.
const PATIENCE: Duration = Duration::from_secs(2);

/// For each of our backends: its state, its wait event, whether it waits for a lock that another
/// of ours holds to the end of its transaction (as it does for a key that the other has
/// inserted), whether its statement has failed (the transaction is over then, but a COPY stays
/// active until we stop sending), and which other session holds the lock that it waits for.
const BACKENDS: &str = "\
select coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(wait_event, ''),
       coalesce(wait_event_type = 'Lock' and wait_event not in ('extend', 'page')
                and pg_blocking_pids(pid) operator(pg_catalog.&&) $1, false),
       coalesce(state = 'active' and xact_start is null, false),
       case when wait_event_type = 'Lock' and wait_event not in ('extend', 'page') then (
           select string_agg(format('session %s (%s)', b.pid,
                                    concat_ws(', ', quote_literal(nullif(b.application_name, '')),
                                              'role ' || b.usename, b.state)), ', ')
           from pg_stat_activity b
           where b.pid = any(pg_blocking_pids(a.pid)) and b.pid <> all($1)) end
from pg_stat_activity a where pid = any($1)";

/// How often statements are cancelled that must not go on: one may begin after the last time.
const CANCEL_INTERVAL: Duration = Duration::from_millis(250);
/// How long they may take to end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// Looks at `pg_stat_activity` now and then.
pub(super) struct Monitor<'a> {
    shared: &'a SharedRun<'a>,
    sessions: &'a SessionRegistry,
    runtime: &'a tokio::runtime::Handle,
    looked: Instant,
    nanos: [u64; 3],
    cancelled: Option<CancelTimes>,
}

/// When statements were first cancelled, and when last.
struct CancelTimes {
    first: Instant,
    last: Instant,
}

impl<'a> Monitor<'a> {
    pub(super) fn new(
        shared: &'a SharedRun<'a>,
        sessions: &'a SessionRegistry,
        runtime: &'a tokio::runtime::Handle,
    ) -> Monitor<'a> {
        let looked = Instant::now();
        Monitor { shared, sessions, runtime, looked, nanos: [0; 3], cancelled: None }
    }

    /// Looks when it is time to.
    pub(super) fn tick(&mut self) {
        if self.looked.elapsed() < INTERVAL {
            return;
        }
        self.looked = Instant::now();
        let now = self.shared.progress.nanos();
        let [source, encode, send] = [0, 1, 2].map(|nth| now[nth].saturating_sub(self.nanos[nth]));
        self.nanos = now;
        let look = async { tokio::time::timeout(PATIENCE, self.look()).await.ok().flatten() };
        let looked = self.runtime.block_on(look);
        let waiting = match looked {
            None => return,
            Some(_) if source > encode && source > send => Waiting::Source,
            Some(_) if encode > send => Waiting::Encode,
            Some(None) => Waiting::Network,
            Some(Some(event)) => Waiting::Server(event),
        };
        self.shared.progress.set_waiting(waiting);
    }

    /// Once the load is to end: ends statements that wait for something, such as a lock, and which
    /// would otherwise be waited for. SessionRegistry that do not end then are cut off.
    pub(super) fn cancel_statements(&mut self) {
        let now = Instant::now();
        let cancelled = match &mut self.cancelled {
            Some(cancelled) if cancelled.last.elapsed() < CANCEL_INTERVAL => return,
            Some(cancelled) => cancelled,
            none => none.insert(CancelTimes { first: now, last: now }),
        };
        cancelled.last = now;
        if cancelled.first.elapsed() > CANCEL_PATIENCE {
            self.sessions.abort();
        }
        for canceller in self.sessions.cancellers() {
            // A request that gets lost is made again.
            self.runtime.spawn(async move { drop(canceller.cancel().await) });
        }
    }

    /// The most frequent wait event of the backends, none where they wait for us; `None` where the
    /// server does not answer.
    async fn look(&self) -> Option<Option<String>> {
        let client = &self.shared.job.control.client;
        let pids = self.sessions.pids();
        let rows = client.ask_all(BACKENDS, &[&pids]).await.ok()?;
        let mut events: Vec<String> = Vec::new();
        for row in &rows {
            let (state, kind, event): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let has_sent = self.shared.progress.sent.load(Relaxed) > 0;
            if row.get(4) && has_sent && self.shared.job.one_statement {
                // The refusal is already there; what is still sent would be thrown away.
                self.shared.statement_refused.store(true, Relaxed);
            }
            if row.get(3) && self.shared.job.commit == Commit::AtEnd {
                self.shared.conflict.store(true, Relaxed);
            }
            let blocker: Option<String> = row.get(5);
            if let Some(blocker) = blocker {
                events.push(format!("lock of {blocker}"));
                self.shared.note_blocker(blocker);
                continue;
            }
            match (state, kind) {
                ("active", "") => events.push("CPU".to_owned()),
                ("active", "Client") => {}
                ("active", _) => events.push(event.to_owned()),
                _ => {}
            }
        }
        let count = |event: &String| events.iter().filter(|other| *other == event).count();
        let event = events.iter().max_by_key(|event| count(event)).cloned();
        Some(event)
    }
}
