//! End-to-end tests of `pgspate apply` from Kafka topics: the real command, a real PostgreSQL, and
//! librdkafka's mock cluster.

mod cluster;
mod exactly_once;
mod formats;
mod refusals;
#[path = "../support/run.rs"]
mod run;
mod service;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
mod topics;

use std::process::{Child, Command};

use cluster::KafkaCluster;
use run::{Run, finish, spawn};
use support::LoadCase;

/// Returns the command `pgspate apply` of the topics. `args` are split at spaces.
fn command(case: &LoadCase, cluster: &KafkaCluster, topics: &str, args: &str) -> Command {
    let mut command = case.command(&["apply", "--to", &case.db.dsn()]);
    command.arg(cluster.address(topics)).args(args.split_whitespace());
    command
}

/// Starts `pgspate apply` of the topics.
fn start(case: &LoadCase, cluster: &KafkaCluster, topics: &str, args: &str) -> Child {
    spawn(&mut command(case, cluster, topics, &format!("--quiet {args}")))
}

/// Runs `pgspate apply` of the topics to its end.
fn apply(case: &LoadCase, cluster: &KafkaCluster, topics: &str, args: &str) -> Run {
    finish(start(case, cluster, topics, args))
}

/// Applies the topics, which must succeed. Returns the report.
#[track_caller]
fn apply_and_report(
    case: &LoadCase,
    cluster: &KafkaCluster,
    topics: &str,
    args: &str,
) -> serde_json::Value {
    let run = apply(case, cluster, topics, &format!("--json {args}"));
    assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Returns the rows of a table in one line.
fn rows(case: &LoadCase, table: &str) -> String {
    case.rows(table).join(" ")
}

/// Returns the positions of the partitions in the ledger.
fn places(case: &LoadCase) -> String {
    let sql = "select coalesce(string_agg(partition || ' ' || ordinal || ' ' || source, ', ' \
               order by partition), '') from pgspate.stream where partition <> ''";
    case.value(sql)
}

/// Returns an event in pgspate's own format that sets the row of table `t` to this value.
fn event(id: u64, v: u64) -> String {
    format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id},\"v\":{v}}}}}")
}
