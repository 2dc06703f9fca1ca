//! Plans that are not left to chance.
//!
//! Left alone, the planner takes a nested loop for some of these statements when statistics are
//! old, missing or wrong: over four minutes where a hash join takes 0.2 s. So a nested loop is
//! allowed only around an index, and no statement runs before its plan was looked at.

use serde_json::Value;
use tokio_postgres::Client;

use pgspate_target::Ask;
use pgspate_target::measure::{self, StatementCost};

/// For the transaction alone.
pub(crate) const SETTINGS: &str = "\
set local jit = off; set local enable_nestloop = off; set local work_mem = '256MB'; \
set local hash_mem_multiplier = 2; set local enable_hashjoin = on; \
set local enable_mergejoin = on; set local enable_seqscan = on";

/// Runs a statement, with a nested loop if that is the better plan and one around an index.
pub(crate) async fn execute(
    client: &Client,
    sql: &str,
) -> Result<StatementCost, tokio_postgres::Error> {
    allow_nested_loop(client, sql).await?;
    measure::execute(client, sql).await
}

/// The same where EXPLAIN does not tell what a statement takes: on a server of several.
pub(crate) async fn execute_plainly(
    client: &Client,
    sql: &str,
) -> Result<StatementCost, tokio_postgres::Error> {
    let rows = client.tell(sql, &[]).await?;
    Ok(StatementCost { rows, ..StatementCost::default() })
}

/// Lets the planner choose a nested loop for the statements to come, if it would for this one and
/// the inner side is reached by an index.
pub(crate) async fn allow_nested_loop(
    client: &Client,
    sql: &str,
) -> Result<bool, tokio_postgres::Error> {
    client.batch_execute("set local enable_nestloop = on").await?;
    let answers = client.simple_query(&format!("explain (format json) {sql}")).await?;
    let plan = measure::answer_json(&answers);
    let is_good = nested_loops_are_indexed(&plan[0]["Plan"]);
    if !is_good {
        client.batch_execute("set local enable_nestloop = off").await?;
    }
    Ok(is_good)
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
}
