//! Exact looks at tables and indexes, by `pgstattuple` where it is installed.
//!
//! They read pages, of an index all of them, and who pays for I/O pays for these. So all looks of
//! a check together have a budget of bytes and of time; what is left over is estimated.

use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::scene::{Scene, attempt, schema_of};
use pgspate_target::server::GIB;

/// What may be read for all tables, in seconds and bytes; and for one that was asked for.
const ALL: (u64, u64) = (10, GIB);
const ONE: (u64, u64) = (60, 16 * GIB);

/// What is still to be had.
struct Budget {
    bytes: u64,
    until: Instant,
}

impl Budget {
    /// For how long so many bytes may be read, if at all.
    fn take(&mut self, bytes: u64) -> Option<Duration> {
        let time = self.until.saturating_duration_since(Instant::now());
        self.bytes = self.bytes.checked_sub(bytes).filter(|_| !time.is_zero())?;
        Some(time)
    }
}

/// Looks within a budget.
pub(super) struct Exact<'a> {
    scene: &'a Scene<'a>,
    schema: Option<String>,
    budget: Budget,
    /// Whether the last look was left out for want of budget.
    is_spent: bool,
}

impl<'a> Exact<'a> {
    /// With a whole budget, that of a check.
    pub(super) async fn new(scene: &'a Scene<'a>) -> Exact<'a> {
        let (seconds, bytes) = if scene.table == 0 { ALL } else { ONE };
        let schema = schema_of(scene.client, "pgstattuple").await;
        let until = Instant::now() + Duration::from_secs(seconds);
        Exact { scene, schema, budget: Budget { bytes, until }, is_spent: false }
    }

    /// Percent dead and percent free of a table of so many bytes, if it can be looked at.
    pub(super) async fn table(&mut self, oid: u32, bytes: u64) -> Option<(f64, f64)> {
        let columns = "dead_tuple_percent::float8, approx_free_percent::float8";
        let row = self.look(columns, "pgstattuple_approx", oid, bytes).await?;
        Some((row.get(0), row.get(1)))
    }

    /// How full the leaves of a btree of so many bytes are, in percent, if it can be looked at.
    pub(super) async fn density(&mut self, oid: u32, bytes: u64) -> Option<f64> {
        let row = self.look("avg_leaf_density", "pgstatindex", oid, bytes).await?;
        Some(row.get(0))
    }

    async fn look(&mut self, columns: &str, function: &str, oid: u32, bytes: u64) -> Option<Row> {
        self.is_spent = false;
        let schema = self.schema.as_ref()?;
        let Some(time) = self.budget.take(bytes) else {
            self.is_spent = true;
            return None;
        };
        // Nothing but looks comes after this in the check's transaction.
        let limit = format!("set local statement_timeout = {}", time.as_millis().max(1));
        self.scene.client.batch_execute(&limit).await.ok()?;
        let sql = format!("select {columns} from {schema}.{function}({oid}::oid::regclass)");
        let row = attempt(self.scene.client, &sql).await;
        self.is_spent = row.is_none() && self.budget.until <= Instant::now();
        row
    }

    /// What is said of an estimate after a look that gave nothing.
    pub(super) fn estimated(&self) -> &'static str {
        match self.is_spent {
            true if self.scene.table == 0 => {
                "estimated, as exact looks have read enough; `--table` allows for more"
            }
            true => "estimated, as an exact look would take too long",
            false => "estimated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_the_budget_has() {
        let until = Instant::now() + Duration::from_secs(3600);
        let mut budget = Budget { bytes: 100, until };
        assert!(budget.take(60).is_some());
        let Budget { bytes, .. } = budget;
        assert_eq!(bytes, 40);
        assert!(budget.take(41).is_none());
        // What is too large for the rest leaves it to smaller ones.
        assert!(budget.take(40).is_some());
        let mut late = Budget { bytes: 100, until: Instant::now() };
        assert!(late.take(1).is_none());
    }
}
