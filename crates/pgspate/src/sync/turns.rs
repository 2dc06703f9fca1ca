//! What one session writes in several transactions, one after the other.
//!
//! All that differs is found, and seen by the guard, before the first of them, in one snapshot.
//! Each looks first whether its rows are still at their places and the new ones still missing;
//! where another session was faster, all is found again. No snapshot is held in between, so that a
//! vacuum there gives free what has died, and the next transaction writes into that space.

use super::columns::SyncColumn;
use super::part::{self, number};
use super::shares::ScopeShares;
use super::statements::SyncStatements;
use super::{SyncReport, PreparedSync, vacuum};
use crate::copy::LaneSession;
use crate::numbers::counted;
use crate::reading::LoadWatch;
use crate::{Error, Result};
use pgspate_target::server_error;

/// The transactions.
#[derive(Debug, Clone)]
pub(super) struct TransactionSplit {
    pub(super) shares: ScopeShares,
    /// How many there are.
    pub(super) count: usize,
}

impl TransactionSplit {
    /// Which transaction writes a row, by what either side of the comparison has of it.
    pub(super) fn of_row(&self, left: &str, right: &str) -> String {
        let text = |SyncColumn { name, .. }: &SyncColumn| {
            format!("coalesce({left}.{name}, {right}.{name})::text")
        };
        self.shares.share(self.count, text)
    }
}

/// What is committed of them, over all attempts.
#[derive(Debug, Default)]
pub(super) struct CommittedTransactions {
    pub(super) written: SyncReport,
    pub(super) transactions: usize,
}

impl CommittedTransactions {
    /// Whether it is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.transactions == 0
    }

    /// An error, with the hint that not all was rolled back, if so.
    pub(super) fn explain(&self, error: Error) -> Error {
        if self.is_empty() {
            return error;
        }
        let rest = format!(
            "What {} wrote is committed; the same command again does the rest. `--transactions 1` \
             makes it one.",
            counted(self.transactions as u64, "transaction")
        );
        error.hint_also(&rest)
    }
}

/// Writes what was found in the transaction that is open, after its end.
pub(super) async fn write(
    session: &LaneSession,
    sync: &PreparedSync,
    watch: &LoadWatch,
    committed: &mut CommittedTransactions,
) -> Result<()> {
    let client = &session.connection.client;
    let failed = || server_error("could not begin to write what differs".to_owned());
    let statements = sync.build();
    let all = client.query(&statements.count_turns(), &[]).await.map_err(failed())?;
    client.batch_execute("commit").await.map_err(failed())?;
    for row in all {
        watch.copy.stop.check()?;
        let found = SyncReport {
            deleted: number(&row, 0),
            updated: number(&row, 1),
            inserted: number(&row, 2),
            ..SyncReport::default()
        };
        part::begin(session, sync, part::BEGIN).await?;
        let statements = SyncStatements { turn: Some(row.get(3)), ..sync.build() };
        part::look_again(client, &statements, &found).await?;
        let mut written = part::write(session, sync, &statements, found).await?;
        if sync.options.vacuums && written.dead_rows > 0 {
            vacuum::run(&session.connection, sync.table(), &mut written).await;
        }
        committed.written.add(written);
        committed.transactions += 1;
    }
    Ok(())
}
