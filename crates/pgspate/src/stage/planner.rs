//! Controls the server's query plans for statements over the stage.
//!
//! With old, missing or wrong statistics, the server's planner may choose a nested loop. One such
//! statement took over four minutes, where a hash join takes 0.2 s. So pgspate allows a nested loop
//! only with an index on its inner side, and checks each statement's plan before running it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

use pgspate_target::measure::{self, StatementCost};
use pgspate_target::{StorageFacts, TypedQuery};

/// The statements that change planner settings for one transaction.
pub(crate) const SETTINGS: &str = "\
set local jit = off; set local enable_nestloop = off; set local work_mem = '256MB'; \
set local hash_mem_multiplier = 2; set local enable_hashjoin = on; \
set local enable_mergejoin = on; set local enable_seqscan = on";

/// Runs statements that join the stage with a table, after checking their plans.
#[derive(Clone, Copy)]
pub(crate) struct PlannedStatements<'a> {
    client: &'a Client,
    /// Whether the server can explain such statements. If not, their plans are not checked, and
    /// their costs are not known.
    can_explain: bool,
}

impl<'a> PlannedStatements<'a> {
    /// Returns a runner of statements on a table with this storage.
    pub(crate) fn new(client: &'a Client, storage: StorageFacts) -> PlannedStatements<'a> {
        let can_explain = storage.explains_joins_with_temporary_tables;
        PlannedStatements { client, can_explain }
    }

    /// Runs a statement that writes rows. Returns its cost; only the number of rows if the server
    /// cannot explain it.
    pub(crate) async fn execute(&self, sql: &str) -> Result<StatementCost, tokio_postgres::Error> {
        match self.can_explain {
            true => measure::execute_measured(self.client, &self.check_plan(sql).await?).await,
            false => self.execute_unjoined(sql).await,
        }
    }

    /// Runs a statement that writes rows and joins nothing, so that its plan needs no check.
    pub(crate) async fn execute_unjoined(
        &self,
        sql: &str,
    ) -> Result<StatementCost, tokio_postgres::Error> {
        if self.can_explain {
            return measure::execute_measured(self.client, sql).await;
        }
        let rows = self.client.run_statement(sql, &[]).await?;
        Ok(StatementCost { rows, ..StatementCost::default() })
    }

    /// Runs `create`, such as `create temporary table a as`, with the rows of a query. Returns the
    /// number of rows.
    pub(crate) async fn create_table(
        &self,
        create: &str,
        query: &str,
    ) -> Result<u64, tokio_postgres::Error> {
        let query = match self.can_explain {
            true => self.check_plan(query).await?,
            false => query.to_owned(),
        };
        let answers = self.client.simple_query(&format!("{create} {query}")).await?;
        let rows = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
            _ => None,
        });
        Ok(rows.unwrap_or_default())
    }

    /// Prepares a statement with nested loops, and checks its plan as
    /// [`PlannedStatements::allow_nested_loop`] does. Returns the statement to run in its place.
    /// The server plans a prepared statement without parameters once.
    async fn check_plan(&self, sql: &str) -> Result<String, tokio_postgres::Error> {
        // The name of a statement whose execution fails stays in use until the session ends. A
        // pooler may give the session to another process.
        static PREPARED: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), PREPARED.fetch_add(1, Relaxed));
        let name = format!("pgspate_{process}_{number}");
        let explain = format!(
            "set local enable_nestloop = on; prepare {name} as {sql}; \
             explain (format json) execute {name}"
        );
        let answers = self.client.simple_query(&explain).await?;
        if nested_loops_are_indexed(&measure::explain_json(&answers)[0]["Plan"]) {
            return Ok(format!("execute {name}; deallocate {name}"));
        }
        let forbid = format!("deallocate {name}; set local enable_nestloop = off");
        self.client.batch_execute(&forbid).await?;
        Ok(sql.to_owned())
    }

    /// Allows nested loops for the next statements, if this statement's plan uses an index for the
    /// inner side of each nested loop. Returns whether nested loops are allowed.
    pub(crate) async fn allow_nested_loop(&self, sql: &str) -> Result<bool, tokio_postgres::Error> {
        match self.can_explain {
            true => allow_nested_loop(self.client, sql).await,
            false => Ok(false),
        }
    }
}

/// Allows nested loops as [`PlannedStatements::allow_nested_loop`] does.
pub(crate) async fn allow_nested_loop(
    client: &Client,
    sql: &str,
) -> Result<bool, tokio_postgres::Error> {
    client.batch_execute("set local enable_nestloop = on").await?;
    let answers = client.simple_query(&format!("explain (format json) {sql}")).await?;
    let plan = measure::explain_json(&answers);
    let is_allowed = nested_loops_are_indexed(&plan[0]["Plan"]);
    if !is_allowed {
        client.batch_execute("set local enable_nestloop = off").await?;
    }
    Ok(is_allowed)
}

/// Returns whether the inner side of every nested loop reads a few rows by an index, rather than
/// the whole table.
fn nested_loops_are_indexed(node: &Value) -> bool {
    let children = node["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    if node["Node Type"] == "Nested Loop" {
        let inner = children.iter().find(|child| child["Parent Relationship"] == "Inner");
        if !inner.is_some_and(is_indexed) {
            return false;
        }
    }
    children.iter().all(nested_loops_are_indexed)
}

/// Returns whether a node is an index scan with a condition. The scan may be below nodes that only
/// pass rows on, and may be repeated for each partition.
fn is_indexed(node: &Value) -> bool {
    let children = node["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    match node["Node Type"].as_str().unwrap_or_default() {
        "Tid Scan" => true,
        "Index Scan" | "Index Only Scan" | "Bitmap Heap Scan" => {
            !node["Index Cond"].is_null() || !children.is_empty()
        }
        "Append" | "Merge Append" | "Memoize" | "Limit" => children.iter().all(is_indexed),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_loops_need_an_index() {
        let inner = |node: Value| {
            json!({"Node Type": "ModifyTable", "Plans": [{"Node Type": "Nested Loop", "Plans": [
                {"Node Type": "Seq Scan", "Parent Relationship": "Outer"}, node]}]})
        };
        let index = json!({"Node Type": "Index Scan", "Parent Relationship": "Inner",
                           "Index Cond": "(id = s.id)"});
        assert!(nested_loops_are_indexed(&inner(index.clone())));
        let without_condition = json!({"Node Type": "Index Scan", "Parent Relationship": "Inner"});
        assert!(!nested_loops_are_indexed(&inner(without_condition)));
        let seq = json!({"Node Type": "Materialize", "Parent Relationship": "Inner",
                         "Plans": [{"Node Type": "Seq Scan"}]});
        assert!(!nested_loops_are_indexed(&inner(seq)));
        let parts = json!({"Node Type": "Append", "Parent Relationship": "Inner",
                           "Plans": [index]});
        assert!(nested_loops_are_indexed(&inner(parts)));
        assert!(nested_loops_are_indexed(&json!({"Node Type": "Hash Join"})));
    }
}
