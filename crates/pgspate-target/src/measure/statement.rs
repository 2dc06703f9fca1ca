//! What one statement took, as its executed plan says.
//!
//! Exact, and of this session alone: no other session's work is in it.

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

/// What statements took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StatementCost {
    /// Rows that reached the node that writes.
    pub rows: u64,
    /// WAL, without that of work that is done later.
    pub wal_bytes: u64,
    /// Pages that were found in the server's cache.
    pub blocks_hit: u64,
    /// Pages that had to be read.
    pub blocks_read: u64,
    /// Pages that were changed first.
    pub blocks_dirtied: u64,
    /// Pages that had to be written to make room.
    pub blocks_written: u64,
}

impl StatementCost {
    /// Adds what another statement took.
    pub fn add(&mut self, other: StatementCost) {
        self.rows += other.rows;
        self.wal_bytes += other.wal_bytes;
        self.blocks_hit += other.blocks_hit;
        self.blocks_read += other.blocks_read;
        self.blocks_dirtied += other.blocks_dirtied;
        self.blocks_written += other.blocks_written;
    }

    /// From the answer to `explain (analyze, buffers, wal, format json)`.
    pub fn of(explained: &Value) -> StatementCost {
        let plan = &explained[0]["Plan"];
        let number = |name: &str| plan[name].as_f64().unwrap_or_default() as u64;
        let both = |name: &str| number(&format!("Shared {name} Blocks"));
        let rows = plan["Plans"].as_array().into_iter().flatten();
        let rows = rows.filter(|child| child["Parent Relationship"] == "Outer");
        let rows = rows.map(|child| {
            let times = |name: &str| child[name].as_f64().unwrap_or_default();
            (times("Actual Rows") * times("Actual Loops")).round() as u64
        });
        StatementCost {
            rows: rows.sum(),
            wal_bytes: number("WAL Bytes"),
            blocks_hit: both("Hit"),
            blocks_read: both("Read"),
            blocks_dirtied: both("Dirtied"),
            blocks_written: both("Written"),
        }
    }
}

/// Runs a statement that writes, and says what it took.
pub async fn execute(client: &Client, sql: &str) -> Result<StatementCost, tokio_postgres::Error> {
    let explain = format!("explain (analyze, buffers, wal, timing off, format json) {sql}");
    let answers = client.simple_query(&explain).await?;
    Ok(StatementCost::of(&answer_json(&answers)))
}

/// What an EXPLAIN in JSON answers.
pub fn answer_json(answers: &[SimpleQueryMessage]) -> Value {
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
    fn costs_are_those_of_the_node_that_writes() {
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
        assert_eq!(StatementCost::of(&explained), expected);
    }
}
