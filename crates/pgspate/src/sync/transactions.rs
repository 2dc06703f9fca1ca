//! Writes the differences of one session in several consecutive transactions.
//!
//! All differences are found, and checked against `--max-delete`, in one snapshot before the first
//! transaction. Each transaction first checks that the rows it changes are still in place, and that
//! the keys it inserts are still absent. If another session has changed them, all differences are
//! found again. No snapshot is held between transactions, so that a vacuum can free the space of
//! dead rows for the next transaction.

use super::columns::SyncColumn;
use super::session_part::{self, count_at};
use super::shares::ScopeShares;
use super::statements::SyncStatements;
use super::{PreparedSync, SyncReport, vacuum};
use crate::copy::LaneSession;
use crate::reading::LoadWatch;
use crate::{Error, Result};
use pgspate_target::server_error;

/// The way that differences are split into transactions.
#[derive(Debug, Clone)]
pub(super) struct TransactionSplit {
    pub(super) shares: ScopeShares,
    /// Number of transactions.
    pub(super) count: usize,
}

impl TransactionSplit {
    /// Returns SQL for the ordinal of the transaction that writes a row. `left` and `right` are the
    /// tables of the comparison; the row may be missing in one of them.
    pub(super) fn of_row(&self, left: &str, right: &str) -> String {
        let text = |SyncColumn { name, .. }: &SyncColumn| {
            format!("coalesce({left}.{name}, {right}.{name})::text")
        };
        self.shares.share_sql(self.count, text)
    }
}

/// Transactions that are committed, over all attempts.
#[derive(Debug, Default)]
pub(super) struct CommittedTransactions {
    pub(super) written: SyncReport,
    pub(super) transactions: usize,
}

impl CommittedTransactions {
    /// Returns whether nothing is committed.
    pub(super) fn is_empty(&self) -> bool {
        self.transactions == 0
    }

    /// Adds a hint to an error if some transactions are committed.
    pub(super) fn explain(&self, error: Error) -> Error {
        if self.is_empty() {
            return error;
        }
        let rest = format!(
            "{} committed. Run the same command again to write the rest. `--transactions 1` writes \
             everything in one transaction.",
            match self.transactions {
                1 => "1 transaction is".to_owned(),
                many => format!("{many} transactions are"),
            }
        );
        error.hint_also(&rest)
    }
}

/// Writes the differences in several transactions, after committing the transaction that found
/// them.
pub(super) async fn write_differences(
    session: &LaneSession,
    sync: &PreparedSync,
    watch: &LoadWatch,
    committed: &mut CommittedTransactions,
) -> Result<()> {
    let client = &session.connection.client;
    let failed = || server_error("could not begin to write the differences".to_owned());
    let statements = sync.build_statements();
    let transactions =
        client.query(&statements.count_per_transaction(), &[]).await.map_err(failed())?;
    client.batch_execute("commit").await.map_err(failed())?;
    let count = transactions.len();
    for (nth, row) in transactions.into_iter().enumerate() {
        watch.copy.stop.check()?;
        watch.copy.set_phase(Some(format!("writing, transaction {} of {count}", nth + 1)));
        let found = SyncReport {
            deleted: count_at(&row, 0),
            updated: count_at(&row, 1),
            inserted: count_at(&row, 2),
            ..SyncReport::default()
        };
        session_part::begin_transaction(session, sync, session_part::BEGIN).await?;
        let statements =
            SyncStatements { transaction: Some(row.get(3)), ..sync.build_statements() };
        session_part::recheck_differences(client, &statements, &found).await?;
        let mut written =
            session_part::write_differences(session, sync, &statements, found, true).await?;
        if sync.options.vacuums && written.dead_rows > 0 {
            vacuum::run(&session.connection, sync.table(), &mut written).await;
        }
        committed.written.add(written);
        committed.transactions += 1;
    }
    Ok(())
}
