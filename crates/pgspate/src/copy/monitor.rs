//! Watches the lanes' backends: what they wait for, and whether they wait for each other.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Waiting;
use super::shared::Shared;
use crate::target::connect::Connection;

/// Short loads end before the first look, and pay nothing for it.
const INTERVAL: Duration = Duration::from_millis(400);

/// For each of our backends: its state, its wait event, and whether it waits for another of ours
/// to end its transaction (as it does for a key that the other has inserted).
const BACKENDS: &str = "\
select coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(wait_event, ''),
       coalesce(wait_event = 'transactionid' and pg_blocking_pids(pid) && $1, false)
from pg_stat_activity where pid = any($1)";

/// One more connection that looks at `pg_stat_activity` now and then.
pub(super) struct Monitor<'a> {
    shared: &'a Shared<'a>,
    pids: &'a Mutex<Vec<i32>>,
    runtime: &'a tokio::runtime::Handle,
    connection: Option<Connection>,
    looked: Instant,
    nanos: [u64; 3],
    gave_up: bool,
}

impl<'a> Monitor<'a> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        pids: &'a Mutex<Vec<i32>>,
        runtime: &'a tokio::runtime::Handle,
    ) -> Monitor<'a> {
        let looked = Instant::now();
        Monitor { shared, pids, runtime, connection: None, looked, nanos: [0; 3], gave_up: false }
    }

    /// Looks when it is time to. Without a connection to spare, a load goes on unwatched.
    pub(super) fn tick(&mut self) {
        if self.gave_up || self.looked.elapsed() < INTERVAL {
            return;
        }
        self.looked = Instant::now();
        let now = self.shared.progress.nanos();
        let [source, encode, send] = [0, 1, 2].map(|nth| now[nth].saturating_sub(self.nanos[nth]));
        self.nanos = now;
        let server = self.runtime.block_on(self.look());
        let waiting = match server {
            None => {
                self.gave_up = true;
                return;
            }
            Some(_) if source > encode && source > send => Waiting::Source,
            Some(_) if encode > send => Waiting::Encode,
            Some(None) => Waiting::Network,
            Some(Some(event)) => Waiting::Server(event),
        };
        self.shared.progress.set_waiting(waiting);
    }

    /// The most frequent wait event of the backends, `None` within where they wait for us; or no
    /// answer at all.
    async fn look(&mut self) -> Option<Option<String>> {
        if self.connection.is_none() {
            self.connection = (self.shared.job.connect)().await.ok();
        }
        let client = &self.connection.as_ref()?.client;
        let pids = self.pids.lock().expect("no panic while held").clone();
        let rows = client.query(BACKENDS, &[&pids]).await.ok()?;
        let mut events: Vec<String> = Vec::new();
        for row in &rows {
            let (state, kind, event): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            if state == "idle in transaction (aborted)" && self.shared.job.one_statement {
                // The refusal is already there; what is still sent would be thrown away.
                self.shared.refused.store(true, Relaxed);
            }
            if row.get(3) {
                self.shared.conflict.store(true, Relaxed);
            }
            match (state, kind) {
                ("active", "") => events.push("CPU".to_owned()),
                ("active", "Client") => {}
                ("active", _) => events.push(event.to_owned()),
                _ => {}
            }
        }
        let count = |event: &String| events.iter().filter(|other| *other == event).count();
        Some(events.iter().max_by_key(|event| count(event)).cloned())
    }
}
