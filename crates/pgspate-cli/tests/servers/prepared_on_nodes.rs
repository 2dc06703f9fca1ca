//! Transactions that loads into shards leave prepared on the nodes of Citus. The coordinator's ledger
//! decides about each of them, whatever was lost on the way.

use crate::fake_cluster::FakeCluster;
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::{Proxy, StallRelease};
use crate::run::{finish, spawn, wait_until};
use crate::straight_into_shards::{LoadFolder, NO_ROWS, check_all, no_rules};

/// The commits of a load with the coordinator. The load begins the ledger, then commits groups of
/// chunks, and finishes the job.
const COMMITS: u64 = 12;

#[test]
fn a_lost_answer_to_a_commit_of_the_coordinator_loses_and_doubles_no_row() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    folder.load_all(&cluster, "--quiet");
    let mut fired = 0;
    for args in ["--commit end", "--commit chunk"] {
        for commit in 1..=COMMITS {
            cluster.ask("truncate public.spread; truncate pgspate.job cascade");
            let fault = FaultPlan::new(Fault::SwallowCommit, FaultPlace::Commit(commit));
            let proxy = Proxy::start(&cluster.dsn(), Some(fault));
            let command = &mut folder.load_to(&proxy.dsn(), &format!("--quiet {args}"));
            let run = finish(spawn(command));
            assert_eq!(run.status, Some(0), "{fault} {args}: {}", run.stderr);
            check_all(&cluster);
            if !proxy.has_fired() {
                break;
            }
            fired += 1;
        }
    }
    assert!(fired >= 2, "only {fired} commits lost their answers");
}

/// The commit is held back by a proxy, and the client gives up before the commit arrives.
#[test]
fn a_commit_that_reaches_the_coordinator_late_decides_about_the_rows() {
    for release in [StallRelease::Resume, StallRelease::Cut] {
        let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
        folder.load_all(&cluster, "--quiet");
        cluster.ask("truncate public.spread; truncate pgspate.job cascade");
        let count = "select count(*) from pgspate.ledger";
        assert_eq!(cluster.ask(count), "0");
        let mut stalled = false;
        for commit in 1..=COMMITS {
            let fault = FaultPlan::new(Fault::Stall, FaultPlace::Commit(commit));
            let proxy = Proxy::start(&cluster.dsn(), Some(fault));
            let mut child = spawn(&mut folder.load_to(&proxy.dsn(), "--quiet"));
            wait_until("the commit is held back", || {
                proxy.has_fired() || child.try_wait().unwrap().is_some()
            });
            stalled = proxy.has_fired() && cluster.prepared() != "0";
            if stalled {
                child.kill().unwrap();
                child.wait().unwrap();
                proxy.release(release);
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            drop(proxy);
            cluster.ask("truncate public.spread; truncate pgspate.job cascade");
        }
        assert!(stalled, "no commit of the ledger was held back");
        assert_eq!(cluster.rows_in_shards(), NO_ROWS);
        folder.load_all(&cluster, "--quiet");
    }
}

#[test]
fn a_load_that_enters_by_a_worker_leaves_prepared_transactions_alone() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    folder.load_all(&cluster, "--quiet");
    cluster.ask(
        "truncate public.spread; truncate pgspate.job cascade; \
         set allow_system_table_mods = on; update pg_catalog.pg_dist_local_group set groupid = 1",
    );
    // The worker's own ledger knows neither the job nor the transaction.
    cluster.prepare_row("1", "3", 7);
    let plan = folder.run(&cluster, "--plan").stdout;
    let reason = "by the coordinator: the connection is not to the coordinator";
    assert!(plan.contains(reason), "{plan}");
    let run = folder.run(&cluster, "--quiet");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let restored = folder.run_other(&cluster, "status --restore");
    assert_eq!(restored.status, Some(0), "{}", restored.stderr);
    assert_eq!(cluster.prepared(), "1");
}

/// A node that fails over to a standby may lack a transaction that it has prepared.
#[test]
fn a_node_that_lost_a_prepared_transaction_is_reported() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    folder.load_all(&cluster, "--quiet");
    cluster.ask("truncate public.spread; truncate pgspate.job cascade");
    cluster.lose_prepared_at_commit();
    let run = folder.run(&cluster, "--quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("a node has lost "), "{}", run.stderr);
    assert!(run.stderr.contains(" that the ledger counts as written"), "{}", run.stderr);
    assert!(run.stderr.contains("pgspate status --forget JOB"), "{}", run.stderr);
}

#[test]
fn a_node_that_is_gone_blocks_only_jobs_whose_rows_it_may_have() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    let change = |sql: &str| cluster.ask(&format!("set allow_system_table_mods = on; {sql}"));
    change(
        "insert into pg_catalog.pg_dist_node \
         values (9, 'gone.invalid', 5432, true, true, true, 'primary')",
    );
    folder.load_all(&cluster, "--quiet");
    cluster.ask("truncate public.spread; truncate pgspate.job cascade");
    // Now the node has a shard, which is empty.
    change(
        "insert into pg_catalog.pg_dist_placement values (101, 9, 1); \
         delete from pg_catalog.pg_dist_placement where shardid = 101 and groupid = 0",
    );
    let run = folder.run(&cluster, "--quiet --retry-for 0");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    for words in ["could not query node gone.invalid:5432", "select citus_update_node("] {
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
    change("update pg_catalog.pg_dist_node set isactive = false where groupid = 9");
    let run = folder.run(&cluster, "--quiet --retry-for 0");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let job = cluster.ask("select max(job) from pgspate.job");
    // The ledger's rows may decide about transactions on the node.
    let run = folder.run_other(&cluster, &format!("status {job} --forget"));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("select citus_remove_node('gone.invalid', 5432)"),
        "{}",
        run.stderr
    );
    change("delete from pg_catalog.pg_dist_node where groupid = 9");
    let run = folder.run_other(&cluster, &format!("status {job} --forget"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}

#[test]
fn status_and_doctor_list_prepared_transactions_and_restore_ends_them() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    folder.load_all(&cluster, "--quiet");
    let (job, xid) = (
        cluster.ask("select max(job) from pgspate.ledger"),
        cluster.ask("select xmin from pgspate.ledger limit 1"),
    );
    let name = cluster.prepare_row(&job, &xid, 60_001);
    let status = folder.run_other(&cluster, "status");
    assert!(status.stdout.contains(&format!("prepared transaction {name}")), "{}", status.stdout);
    assert!(status.stdout.contains(", to commit; its rows are invisible"), "{}", status.stdout);
    let json = folder.run_other(&cluster, "status --json");
    let entries: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let entry = entries.as_array().unwrap().iter().find(|entry| entry.get("prepared").is_some());
    assert_eq!(entry.unwrap()["prepared"][0]["decision"], "commit", "{}", json.stdout);
    let restored = folder.run_other(&cluster, "status --restore");
    assert_eq!(restored.status, Some(0), "{}", restored.stderr);
    assert!(restored.stderr.contains("1 prepared transaction ended on the nodes"));
    assert_eq!(cluster.prepared(), "0");
    assert!(cluster.rows_in_shards().starts_with("60001 rows"), "{}", cluster.rows_in_shards());
    let status = folder.run_other(&cluster, "status");
    assert!(!status.stdout.contains("prepared transaction"), "{}", status.stdout);
}

#[test]
fn doctor_sees_the_shards_of_all_nodes() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    folder.load_all(&cluster, "--quiet");
    let doctor = folder.run_other(&cluster, "doctor --watch 0 --json");
    let report: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let of_parts: Vec<&str> = findings
        .filter(|finding| finding["id"] == "parts")
        .map(|finding| finding["evidence"].as_str().unwrap())
        .collect();
    assert_eq!(of_parts.len(), 2, "{of_parts:?}");
    assert!(of_parts[0].contains("on node 2: the coordinator could not query it"), "{of_parts:?}");
    assert!(of_parts[1].starts_with("4 shards on 1 node have "), "{of_parts:?}");
}

#[test]
fn rows_go_through_the_coordinator_if_only_it_reaches_a_node() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    cluster.cut_off_node_while_copying();
    let run = folder.run(&cluster, "--retry-for 60");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let words = "the coordinator routed the rows: only the coordinator can reach node 127.0.0.1:";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    assert_eq!((cluster.rows_in_shards(), cluster.prepared()), (NO_ROWS.into(), "0".into()));
    assert_eq!(cluster.rows_by_coordinator(), "60000");
}
