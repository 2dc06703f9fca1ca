//! Watches the lanes' backends: what the backends wait for, and whether two lanes wait for each
//! other.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::session_registry::SessionRegistry;
use super::shared::SharedRun;
use super::{Commit, Waiting};
use pgspate_target::TypedQuery;
use pgspate_target::connect::describe_session_sql;

/// Time between two queries. Short loads end before the first query.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

/// Time after which an unanswered query is given up.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns SQL with one row for each backend of a lane. Columns:
/// - the backend's state,
/// - its wait event type,
/// - its wait event,
/// - whether the backend waits for a lock that another lane holds until the end of that lane's
///   transaction, such as the lock on a key that the other lane inserted,
/// - whether the backend's statement has failed: the transaction has ended, but a COPY stays active
///   until the client stops sending,
/// - the sessions, other than lanes, that hold the lock that the backend waits for.
fn backends_sql() -> String {
    format!(
        "select coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(wait_event, ''), \
                coalesce(wait_event_type = 'Lock' and wait_event not in ('extend', 'page') \
                         and pg_blocking_pids(pid) operator(pg_catalog.&&) $1, false), \
                coalesce(state = 'active' and xact_start is null, false), \
                case when wait_event_type = 'Lock' and wait_event not in ('extend', 'page') then ( \
                    select string_agg({}, ', ') from unnest(pg_blocking_pids(a.pid)) blocker(pid) \
                    join pg_stat_activity b on b.pid = blocker.pid and b.pid <> all($1)) end \
         from pg_stat_activity a where pid = any($1)",
        describe_session_sql("b")
    )
}

/// Time between two cancel requests. A statement may begin after a cancel request has arrived, so
/// requests are repeated.
const CANCEL_INTERVAL: Duration = Duration::from_millis(250);
/// Time after the first cancel request in which the statements must end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Queries `pg_stat_activity` at intervals.
pub(super) struct Monitor<'a> {
    shared: &'a SharedRun<'a>,
    sessions: &'a SessionRegistry,
    runtime: &'a tokio::runtime::Handle,
    last_poll: Instant,
    /// Nanoseconds of reading, encoding and sending at the last poll.
    last_nanos: [u64; 3],
    cancelled: Option<CancelTimes>,
}

/// The times of the first and the latest cancel request.
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
        let last_poll = Instant::now();
        Monitor { shared, sessions, runtime, last_poll, last_nanos: [0; 3], cancelled: None }
    }

    /// Queries the backends, if `POLL_INTERVAL` has passed since the last query.
    pub(super) fn tick(&mut self) {
        if self.last_poll.elapsed() < POLL_INTERVAL {
            return;
        }
        self.last_poll = Instant::now();
        let now = self.shared.progress.stage_nanos();
        let [source, encode, send] =
            [0, 1, 2].map(|nth| now[nth].saturating_sub(self.last_nanos[nth]));
        self.last_nanos = now;
        let polling =
            async { tokio::time::timeout(POLL_TIMEOUT, self.poll_backends()).await.ok().flatten() };
        // A small sync has no second session that could look.
        let can_look = self.shared.job.control_connection.is_some();
        let polled = if can_look { self.runtime.block_on(polling) } else { Some(None) };
        let waiting = match polled {
            None => return,
            Some(_) if source > encode && source > send => Waiting::Source,
            Some(_) if encode > send => Waiting::Encode,
            Some(None) if self.shared.is_reading() => Waiting::Source,
            Some(None) if !can_look => return,
            Some(None) => Waiting::Network,
            Some(Some(waiting)) => waiting,
        };
        self.shared.progress.set_waiting(waiting);
    }

    /// Cancels the lanes' statements, because the load must end. A statement may wait for a lock,
    /// for example. Aborts all sessions if the statements do not end in time.
    pub(super) fn cancel_statements(&mut self) {
        let now = Instant::now();
        let cancelled = match &mut self.cancelled {
            Some(cancelled) if cancelled.last.elapsed() < CANCEL_INTERVAL => return,
            Some(cancelled) => cancelled,
            none => none.insert(CancelTimes { first: now, last: now }),
        };
        cancelled.last = now;
        if cancelled.first.elapsed() > CANCEL_TIMEOUT {
            self.sessions.abort();
        }
        for canceller in self.sessions.cancellers() {
            // An error is ignored, because the request is repeated.
            self.runtime.spawn(async move { drop(canceller.cancel().await) });
        }
    }

    /// Returns what most of the backends wait for. The inner option is `None` if all backends wait
    /// for the client, the outer option if the server does not answer.
    async fn poll_backends(&self) -> Option<Option<Waiting>> {
        let client = &self.shared.job.control_connection.as_ref()?.client;
        let pids = self.sessions.pids();
        let rows = client.fetch_all(&backends_sql(), &[&pids]).await.ok()?;
        let mut events: Vec<Waiting> = Vec::new();
        for row in &rows {
            let (state, kind, event): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let has_sent = self.shared.progress.sent.load(Relaxed) > 0;
            if row.get(4) && has_sent && self.shared.job.one_statement {
                // The server has refused a row, and would discard all further rows.
                self.shared.statement_refused.store(true, Relaxed);
            }
            if row.get(3) && self.shared.job.commit == Commit::AtEnd {
                self.shared.lanes_conflict.store(true, Relaxed);
            }
            if let Some(blocker) = row.get(5) {
                self.shared.note_blocker(blocker);
            }
            match (state, kind) {
                ("active", "") => events.push(Waiting::Server("CPU".to_owned())),
                ("active", "Client") => {}
                ("active", _) => events.push(Waiting::Server(event.to_owned())),
                _ => {}
            }
        }
        let count = |event: &Waiting| events.iter().filter(|other| *other == event).count();
        let event = events.iter().max_by_key(|event| count(event)).cloned();
        Some(event)
    }
}
