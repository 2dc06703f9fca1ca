//! The cost of one statement, from EXPLAIN ANALYZE. The numbers are exact, and include only the
//! work of this statement.

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The cost of one or more statements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StatementCost {
    /// Rows that reached the plan node that writes.
    pub rows: u64,
    /// Bytes of WAL, without WAL of later work such as index cleanup.
    pub wal_bytes: u64,
    /// Pages found in the server's cache.
    pub blocks_hit: u64,
    /// Pages that were read.
    pub blocks_read: u64,
    /// Clean pages that the statement changed.
    pub blocks_dirtied: u64,
    /// Pages written to free cache space.
    pub blocks_written: u64,
}

impl StatementCost {
    /// Adds the cost of another statement.
    pub fn add(&mut self, other: StatementCost) {
        self.rows += other.rows;
        self.wal_bytes += other.wal_bytes;
        self.blocks_hit += other.blocks_hit;
        self.blocks_read += other.blocks_read;
        self.blocks_dirtied += other.blocks_dirtied;
        self.blocks_written += other.blocks_written;
    }

    /// Parses the output of `explain (analyze, buffers, wal, format json)`.
    pub fn from_explain(explained: &Value) -> StatementCost {
        let plan = &explained[0]["Plan"];
        let number = |name: &str| plan[name].as_f64().unwrap_or_default() as u64;
        let shared_blocks = |name: &str| number(&format!("Shared {name} Blocks"));
        StatementCost {
            rows: rows_to_write(plan),
            wal_bytes: number("WAL Bytes"),
            blocks_hit: shared_blocks("Hit"),
            blocks_read: shared_blocks("Read"),
            blocks_dirtied: shared_blocks("Dirtied"),
            blocks_written: shared_blocks("Written"),
        }
    }
}

/// Returns the rows that reached the nodes that write, below `node` or at it.
///
/// An extension may wrap the node: TimescaleDB puts a `Custom Scan` above it. Before version 14,
/// PostgreSQL calls the children of the node `Member`; later versions call them `Outer`.
fn rows_to_write(node: &Value) -> u64 {
    let children = node["Plans"].as_array().into_iter().flatten();
    if node["Node Type"] != "ModifyTable" {
        return children.map(rows_to_write).sum();
    }
    let is_source =
        |child: &&Value| matches!(child["Parent Relationship"].as_str(), Some("Outer" | "Member"));
    let rows = children.filter(is_source).map(|child| {
        let factor = |name: &str| child[name].as_f64().unwrap_or_default();
        (factor("Actual Rows") * factor("Actual Loops")).round() as u64
    });
    rows.sum()
}

/// Runs a writing statement and returns its cost.
pub async fn execute_measured(
    client: &Client,
    sql: &str,
) -> Result<StatementCost, tokio_postgres::Error> {
    let explain = format!("explain (analyze, buffers, wal, timing off, format json) {sql}");
    let answers = client.simple_query(&explain).await?;
    Ok(StatementCost::from_explain(&explain_json(&answers)))
}

/// Returns the JSON that EXPLAIN printed; null if the answers contain no valid JSON.
pub fn explain_json(answers: &[SimpleQueryMessage]) -> Value {
    let text: String = answers
        .iter()
        .filter_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect::<Vec<_>>()
        .join("\n");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cost_is_read_from_the_writing_node() {
        let explained = json!([{"Plan": {
            "Node Type": "ModifyTable", "Actual Rows": 0, "WAL Bytes": 1234,
            "Shared Hit Blocks": 10, "Shared Read Blocks": 2, "Shared Dirtied Blocks": 3,
            "Shared Written Blocks": 1,
            "Plans": [{"Node Type": "Hash Join", "Parent Relationship": "Outer",
                       "Actual Rows": 7.0, "Actual Loops": 1}]}}]);
        let expected = StatementCost {
            rows: 7,
            wal_bytes: 1234,
            blocks_hit: 10,
            blocks_read: 2,
            blocks_dirtied: 3,
            blocks_written: 1,
        };
        assert_eq!(StatementCost::from_explain(&explained), expected);
    }
    fn child(node_type: &str, relationship: &str, rows: f64) -> Value {
        json!({"Node Type": node_type, "Parent Relationship": relationship,
               "Actual Rows": rows, "Actual Loops": 1})
    }

    fn rows_of(plan: Value) -> u64 {
        StatementCost::from_explain(&json!([{ "Plan": plan }])).rows
    }

    #[test]
    fn rows_of_all_partitions_are_counted_on_postgresql_13() {
        let partitions = [child("Hash Join", "Member", 4.0), child("Hash Join", "Member", 3.0)];
        assert_eq!(rows_of(json!({"Node Type": "ModifyTable", "Plans": partitions})), 7);
    }

    #[test]
    fn rows_are_counted_at_a_wrapped_writing_node() {
        let chunks = child("Custom Scan", "Outer", 7.0);
        let writes = json!({"Node Type": "ModifyTable", "Parent Relationship": "child",
                            "Plans": [chunks]});
        assert_eq!(rows_of(json!({"Node Type": "Custom Scan", "Plans": [writes]})), 7);
    }

    #[test]
    fn rows_of_subqueries_are_not_counted() {
        let plans = [child("Aggregate", "InitPlan", 1.0), child("Hash Join", "Outer", 7.0)];
        assert_eq!(rows_of(json!({"Node Type": "ModifyTable", "Plans": plans})), 7);
    }
}
