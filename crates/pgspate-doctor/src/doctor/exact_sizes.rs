//! Exact measurements of tables and indexes with the extension `pgstattuple`.
//!
//! A measurement reads pages, of an index all pages, which costs I/O. So all measurements of a
//! check share a budget of bytes and of time. The check estimates what the budget does not cover.

use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::context::{CheckContext, query_in_savepoint, schema_of};
use pgspate_target::server::GIB;

/// The budget for all tables: seconds and bytes.
const BUDGET_ALL_TABLES: (u64, u64) = (10, GIB);
/// The budget for the one table of `--table`: seconds and bytes.
const BUDGET_ONE_TABLE: (u64, u64) = (60, 16 * GIB);

/// The bytes that may still be read, and until when.
struct ReadBudget {
    bytes: u64,
    until: Instant,
}

impl ReadBudget {
    /// Takes `bytes` from the budget. Returns how long reading them may take, or `None` if the
    /// budget is too small.
    fn take(&mut self, bytes: u64) -> Option<Duration> {
        let time = self.until.saturating_duration_since(Instant::now());
        self.bytes = self.bytes.checked_sub(bytes).filter(|_| !time.is_zero())?;
        Some(time)
    }
}

/// Measures tables and indexes within a budget.
pub(super) struct ExactSizes<'a> {
    context: &'a CheckContext<'a>,
    schema: Option<String>,
    budget: ReadBudget,
    /// Whether the last measurement failed because the budget was used up.
    is_budget_spent: bool,
}

impl<'a> ExactSizes<'a> {
    /// Begins with the full budget of a check.
    pub(super) async fn new(context: &'a CheckContext<'a>) -> ExactSizes<'a> {
        let (seconds, bytes) =
            if context.table == 0 { BUDGET_ALL_TABLES } else { BUDGET_ONE_TABLE };
        let schema = schema_of(context.client, "pgstattuple").await;
        let until = Instant::now() + Duration::from_secs(seconds);
        ExactSizes { context, schema, budget: ReadBudget { bytes, until }, is_budget_spent: false }
    }

    /// Measures the percentages of dead rows and of free space in a table of that size. Returns
    /// `None` if the table could not be measured.
    pub(super) async fn dead_and_free_percent(
        &mut self,
        oid: u32,
        bytes: u64,
    ) -> Option<(f64, f64)> {
        let columns = "dead_tuple_percent::float8, approx_free_percent::float8";
        let row = self.measure(columns, "pgstattuple_approx", oid, bytes).await?;
        Some((row.get(0), row.get(1)))
    }

    /// Measures how full the leaf pages of a btree of that size are, in percent. Returns `None` if
    /// the index could not be measured.
    pub(super) async fn leaf_density(&mut self, oid: u32, bytes: u64) -> Option<f64> {
        let row = self.measure("avg_leaf_density", "pgstatindex", oid, bytes).await?;
        Some(row.get(0))
    }

    async fn measure(
        &mut self,
        columns: &str,
        function: &str,
        oid: u32,
        bytes: u64,
    ) -> Option<Row> {
        self.is_budget_spent = false;
        let schema = self.schema.as_ref()?;
        let Some(time) = self.budget.take(bytes) else {
            self.is_budget_spent = true;
            return None;
        };
        // The timeout may stay set: only measurements follow in the check's transaction.
        let limit = format!("set local statement_timeout = {}", time.as_millis().max(1));
        self.context.client.batch_execute(&limit).await.ok()?;
        let sql = format!("select {columns} from {schema}.{function}({oid}::oid::regclass)");
        let row = query_in_savepoint(self.context.client, &sql).await;
        self.is_budget_spent = row.is_none() && self.budget.until <= Instant::now();
        row
    }

    /// Returns how to call an estimate that replaces the last measurement, with the reason.
    pub(super) fn estimate_label(&self) -> &'static str {
        match self.is_budget_spent {
            true if self.context.table == 0 => {
                "estimated: exact measurements have reached their limit; `--table` raises it"
            }
            true => "estimated: an exact measurement would take too long",
            false => "estimated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_not_exceeded() {
        let until = Instant::now() + Duration::from_secs(3600);
        let mut budget = ReadBudget { bytes: 100, until };
        assert!(budget.take(60).is_some());
        let ReadBudget { bytes, .. } = budget;
        assert_eq!(bytes, 40);
        assert!(budget.take(41).is_none());
        // A refused request leaves the rest of the budget for smaller ones.
        assert!(budget.take(40).is_some());
        let mut late = ReadBudget { bytes: 100, until: Instant::now() };
        assert!(late.take(1).is_none());
    }
}
