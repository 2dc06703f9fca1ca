//! Waits until a night is over, and reads the server's counters.

use std::time::{Duration, Instant};

use pgspate::Result;
use pgspate::measure::Measurement;
use pgspate::target::connect::Connection;

use super::super::sending::{failed, number};
use super::heap;
use crate::TrialContext;
use crate::data::meters;

/// Autovacuum begins above this number of dead rows plus one in five of the table's rows.
const DEAD_LEFT: u64 = 50;
const DEAD_SHARE: u64 = 5;
/// The time limit for autovacuum to finish. On this server autovacuum looks every second.
const VACUUM_LIMIT: Duration = Duration::from_secs(20);
/// The time limit for the server to update its counters.
const COUNT_LIMIT: Duration = Duration::from_secs(3);

/// A session that reads the server's counters.
pub(super) struct NightWatcher<'a> {
    context: &'a TrialContext,
    connection: Connection,
    table: u32,
    may_checkpoint: bool,
}

impl<'a> NightWatcher<'a> {
    pub(super) fn open(context: &'a TrialContext) -> Result<NightWatcher<'a>> {
        let connection = context.connect()?;
        let sql = format!("select '{}'::regclass::oid::int8", meters::TABLE);
        let table = context.block_on(number(&connection, "find the table", &sql))? as u32;
        Ok(NightWatcher { may_checkpoint: context.is_own(), context, connection, table })
    }

    pub(super) fn look(&self) -> Result<Measurement> {
        let client = &self.connection.client;
        self.context.block_on(async { Ok(Measurement::take(client, &[self.table]).await) })
    }

    /// Returns the contents of the table's pages, if the role may read the pages.
    ///
    /// On the lab's own server a checkpoint has written all pages to the disk before this call.
    pub(super) fn pages(&self, per_cell: u64) -> Result<Option<Vec<heap::HeapCell>>> {
        self.context.block_on(async {
            Ok(heap::take(&self.connection, self.table, per_cell, self.may_checkpoint).await)
        })
    }

    /// Waits until autovacuum has finished, pages are written and the counters are up to date.
    pub(super) fn settle(&self, vacuums: bool, before: &Measurement) -> Result<()> {
        self.wait_for_sessions()?;
        let began = Instant::now();
        while vacuums && began.elapsed() < VACUUM_LIMIT {
            let Some((_, now)) = self.look()?.tables else { break };
            let left = DEAD_LEFT + now.rows_live.unwrap_or_default() / DEAD_SHARE;
            if now.rows_dead.is_none_or(|dead| dead <= left) {
                break;
            }
            self.pause()?;
        }
        if !self.may_checkpoint {
            return Ok(());
        }
        let client = &self.connection.client;
        self.context.block_on(async {
            let done = client.batch_execute("checkpoint").await;
            done.map_err(failed(&self.connection, "write a checkpoint"))
        })?;
        // The checkpointer updates its counters shortly after CHECKPOINT has returned.
        let began = Instant::now();
        while began.elapsed() < COUNT_LIMIT {
            let requested = self.look()?.since(before).checkpoints.requested;
            if requested != Some(0) {
                break;
            }
            self.pause()?;
        }
        Ok(())
    }

    /// Waits until the night's sessions have ended: a session publishes its counters when it ends.
    fn wait_for_sessions(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < COUNT_LIMIT {
            if self.context.block_on(later_sessions(&self.connection))? == 0 {
                break;
            }
            self.pause()?;
        }
        Ok(())
    }

    fn pause(&self) -> Result<()> {
        self.context.block_on(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(())
        })
    }
}

/// Returns the number of pgspate's sessions that began after this one: those of the nights. The
/// lab's own sessions of a trial are open before the watcher's. Their names tell nothing: on the
/// user's server all sessions of a trial have the lab's name.
async fn later_sessions(watcher: &Connection) -> Result<i64> {
    let sql = "select count(*) from pg_stat_activity \
               where datname = current_database() and usename = current_user \
                 and application_name like 'pgspate%' \
                 and backend_start > (select backend_start from pg_stat_activity \
                                      where pid = pg_backend_pid())";
    number(watcher, "look for sessions", sql).await
}

#[cfg(test)]
mod tests {
    use pgspate::target::connect::{Dsn, Environment};
    use pgspate_embedded::testing;

    use super::*;
    use crate::context::SESSION;

    /// On the user's server, the sessions of `pgspate sync` have the lab's name.
    #[test]
    fn the_watcher_waits_for_sessions_of_any_name() {
        let database = testing::database();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let dsn = Dsn::resolve(Some(&database.dsn()), &Environment::default()).unwrap();
            let dsn = dsn.unwrap().with_application_name(SESSION);
            let counters = dsn.connect(SESSION).await.unwrap();
            let watcher = dsn.connect(SESSION).await.unwrap();
            assert_eq!(later_sessions(&watcher).await.unwrap(), 0);
            let night = dsn.connect("pgspate sync").await.unwrap();
            assert_eq!(later_sessions(&watcher).await.unwrap(), 1);
            night.close().await;
            counters.close().await;
        });
    }
}
