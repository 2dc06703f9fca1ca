//! What one session writes in several transactions, one after the other.
//!
//! All that differs is found, and seen by the guard, before the first of them, in one snapshot.
//! A row is written if it is still at its place with its key; where another session was faster,
//! all is found again. No snapshot is held in between, so that a vacuum there gives free what has
//! died, and the next transaction writes into that space.

use super::columns::SyncColumn;
use super::part::{self, number};
use super::shares::Shares;
use super::statements::Statements;
use super::{Report, Sync, vacuum};
use crate::Result;
use crate::copy::LaneSession;
use crate::target::server_error;

/// The transactions.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    pub(super) shares: Shares,
    /// How many there are.
    pub(super) count: usize,
}

impl Turns {
    /// Which transaction writes a row, by what either side of the comparison has of it.
    pub(super) fn of_row(&self, left: &str, right: &str) -> String {
        let text = |SyncColumn { name, .. }: &SyncColumn| {
            format!("coalesce({left}.{name}, {right}.{name})::text")
        };
        self.shares.share(self.count, text)
    }
}

/// How far they are.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// What is committed, over all attempts.
    pub(super) written: Report,
    /// Transactions of this attempt that are committed, or had nothing to write.
    pub(super) done: usize,
}

/// Writes what was found in the transaction that is open, after its end.
pub(super) async fn write(
    session: &LaneSession,
    sync: &Sync,
    turns: &Turns,
    progress: &mut Progress,
) -> Result<()> {
    let client = &session.connection.client;
    let failed = || server_error("could not begin to write what differs".to_owned());
    let statements = sync.build();
    let all = client.query(&statements.count_turns(), &[]).await.map_err(failed())?;
    client.batch_execute("commit").await.map_err(failed())?;
    progress.done = turns.count - all.len();
    for row in all {
        let found = Report {
            deleted: number(&row, 0),
            updated: number(&row, 1),
            inserted: number(&row, 2),
            ..Report::default()
        };
        part::begin(session, sync, part::BEGIN).await?;
        let statements = Statements { turn: Some(row.get(3)), ..sync.build() };
        let mut written = part::write(session, sync, &statements, found).await?;
        if sync.options.vacuums && written.dead_rows > 0 {
            vacuum::run(&session.connection, sync.table(), &mut written).await;
        }
        progress.written.add(written);
        progress.done += 1;
    }
    Ok(())
}
