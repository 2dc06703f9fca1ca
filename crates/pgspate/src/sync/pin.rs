//! Plans that are not left to chance, and what executing them took.
//!
//! Left alone, the planner takes a nested loop for some of these statements when statistics are
//! old, missing or wrong: over four minutes where a hash join takes 0.2 s. So a nested loop is
//! allowed only around an index, and no statement runs before its plan was looked at.

use serde_json::Value;
use tokio_postgres::Client;

/// For the transaction alone.
pub(super) const SETTINGS: &str = "\
set local jit = off; set local enable_nestloop = off; set local work_mem = '256MB'; \
set local hash_mem_multiplier = 2; set local enable_hashjoin = on; \
set local enable_mergejoin = on; set local enable_seqscan = on";

/// What a statement took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) rows: u64,
    pub(super) wal_bytes: u64,
    pub(super) blocks_hit: u64,
    pub(super) blocks_read: u64,
    pub(super) blocks_dirtied: u64,
    pub(super) blocks_written: u64,
}

impl Cost {
    pub(super) fn add(&mut self, other: Cost) {
        self.rows += other.rows;
        self.wal_bytes += other.wal_bytes;
        self.blocks_hit += other.blocks_hit;
        self.blocks_read += other.blocks_read;
        self.blocks_dirtied += other.blocks_dirtied;
        self.blocks_written += other.blocks_written;
    }
}

/// Runs a statement, with a nested loop if that is the better plan and one around an index.
pub(super) async fn execute(client: &Client, sql: &str) -> Result<Cost, tokio_postgres::Error> {
    allow_nested_loop(client, sql).await?;
    let explain = format!("explain (analyze, buffers, wal, timing off, format json) {sql}");
    let answers = client.simple_query(&explain).await?;
    Ok(cost(&json(&answers)))
}

/// Lets the planner choose a nested loop for the statements to come, if it would for this one and
/// the inner side is reached by an index.
pub(super) async fn allow_nested_loop(
    client: &Client,
    sql: &str,
) -> Result<bool, tokio_postgres::Error> {
    client.batch_execute("set local enable_nestloop = on").await?;
    let plan = json(&client.simple_query(&format!("explain (format json) {sql}")).await?);
    let is_good = nested_loops_are_indexed(&plan[0]["Plan"]);
    if !is_good {
        client.batch_execute("set local enable_nestloop = off").await?;
    }
    Ok(is_good)
}

fn json(answers: &[tokio_postgres::SimpleQueryMessage]) -> Value {
    let text: String = answers
        .iter()
        .filter_map(|answer| match answer {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect::<Vec<_>>()
        .join("\n");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// Whether every nested loop has an index scan, and not a whole table, as its inner side.
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

/// An index scan with a condition, perhaps beneath nodes that only pass rows on, or over the
/// partitions of a table.
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

/// What an executed plan took. Rows are those that reached the node that writes.
fn cost(explained: &Value) -> Cost {
    let plan = &explained[0]["Plan"];
    let number = |name: &str| plan[name].as_f64().unwrap_or_default() as u64;
    let both = |name: &str| number(&format!("Shared {name} Blocks"));
    let rows = plan["Plans"].as_array().into_iter().flatten();
    let rows = rows.filter(|child| child["Parent Relationship"] == "Outer");
    let rows = rows.map(|child| {
        let times = |name: &str| child[name].as_f64().unwrap_or_default();
        (times("Actual Rows") * times("Actual Loops")).round() as u64
    });
    Cost {
        rows: rows.sum(),
        wal_bytes: number("WAL Bytes"),
        blocks_hit: both("Hit"),
        blocks_read: both("Read"),
        blocks_dirtied: both("Dirtied"),
        blocks_written: both("Written"),
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
        let whole = json!({"Node Type": "Index Scan", "Parent Relationship": "Inner"});
        assert!(!nested_loops_are_indexed(&inner(whole)));
        let seq = json!({"Node Type": "Materialize", "Parent Relationship": "Inner",
                         "Plans": [{"Node Type": "Seq Scan"}]});
        assert!(!nested_loops_are_indexed(&inner(seq)));
        let parts = json!({"Node Type": "Append", "Parent Relationship": "Inner",
                           "Plans": [index]});
        assert!(nested_loops_are_indexed(&inner(parts)));
        assert!(nested_loops_are_indexed(&json!({"Node Type": "Hash Join"})));
    }

    #[test]
    fn costs_are_those_of_the_node_that_writes() {
        let explained = json!([{"Plan": {
            "Node Type": "ModifyTable", "Actual Rows": 0, "WAL Bytes": 1234,
            "Shared Hit Blocks": 10, "Shared Read Blocks": 2, "Shared Dirtied Blocks": 3,
            "Shared Written Blocks": 1,
            "Plans": [{"Node Type": "Hash Join", "Parent Relationship": "Outer",
                       "Actual Rows": 7.0, "Actual Loops": 1}]}}]);
        assert_eq!(
            cost(&explained),
            Cost {
                rows: 7,
                wal_bytes: 1234,
                blocks_hit: 10,
                blocks_read: 2,
                blocks_dirtied: 3,
                blocks_written: 1,
            }
        );
    }
}
