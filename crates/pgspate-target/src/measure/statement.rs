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
        let rows = plan["Plans"].as_array().into_iter().flatten();
        let rows = rows.filter(|child| child["Parent Relationship"] == "Outer");
        let rows = rows.map(|child| {
            let factor = |name: &str| child[name].as_f64().unwrap_or_default();
            (factor("Actual Rows") * factor("Actual Loops")).round() as u64
        });
        StatementCost {
            rows: rows.sum(),
            wal_bytes: number("WAL Bytes"),
            blocks_hit: shared_blocks("Hit"),
            blocks_read: shared_blocks("Read"),
            blocks_dirtied: shared_blocks("Dirtied"),
            blocks_written: shared_blocks("Written"),
        }
    }
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
}
