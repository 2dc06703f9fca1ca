//! Loads whose rows go straight into the shards of a table of Citus.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::fake_cluster::FakeCluster;
use crate::run::{Run, command, finish, session, spawn, wait_until};

/// Large enough that rows go straight into shards.
pub(crate) const ROWS: u32 = 60_000;
pub(crate) const ALL_ROWS: &str = "60000 rows, 60000 ids, 0 misplaced";
pub(crate) const NO_ROWS: &str = "0 rows, 0 ids, 0 misplaced";

/// A folder with a file for the table `spread`.
pub(crate) struct LoadFolder(TempDir);

impl LoadFolder {
    /// Writes [`ROWS`] rows of which the last one has `last` as its amount.
    fn with_last_amount(last: &str) -> LoadFolder {
        let folder = LoadFolder(TempDir::with_prefix("pgspate-cli-").unwrap());
        let mut csv = "id,name,amount\n".to_owned();
        for id in 1..=ROWS {
            let amount = if id == ROWS { last } else { "12.50" };
            writeln!(csv, "{id},name of row {id},{amount}").unwrap();
        }
        fs::write(folder.0.path().join("rows.csv"), csv).unwrap();
        folder
    }

    pub(crate) fn new() -> LoadFolder {
        LoadFolder::with_last_amount("12.50")
    }

    /// Returns a load of the file with `args`, split at spaces.
    fn load(&self, cluster: &FakeCluster, args: &str) -> Command {
        self.load_to(&cluster.dsn(), args)
    }

    /// Returns a load of the file by this connection string.
    pub(crate) fn load_to(&self, to: &str, args: &str) -> Command {
        let start = ["load", "rows.csv", "--table", "spread", "--to", to, "--analyze", "never"];
        let mut command = command(self.0.path(), &start);
        command.arg("--into-shards").args(args.split_whitespace());
        command
    }

    /// Runs another command of pgspate on the cluster.
    pub(crate) fn run_other(&self, cluster: &FakeCluster, args: &str) -> Run {
        let args: Vec<&str> = args.split_whitespace().collect();
        let mut command = command(self.0.path(), &args);
        finish(spawn(command.args(["--to", &cluster.dsn()])))
    }

    pub(crate) fn run(&self, cluster: &FakeCluster, args: &str) -> Run {
        finish(spawn(&mut self.load(cluster, args)))
    }

    /// Loads, and checks that each row is in its shard once.
    #[track_caller]
    pub(crate) fn load_all(&self, cluster: &FakeCluster, args: &str) -> Run {
        let run = self.run(cluster, args);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        check_all(cluster);
        run
    }
}

/// Checks that each row is in its shard once, and that no transaction is left.
#[track_caller]
pub(crate) fn check_all(cluster: &FakeCluster) {
    assert_eq!(cluster.rows_in_shards(), ALL_ROWS);
    assert_eq!((cluster.rows_by_coordinator(), cluster.prepared()), ("0".into(), "0".into()));
}

pub(crate) fn no_rules(_: &str) -> Option<&'static str> {
    None
}

#[test]
fn each_row_goes_into_the_shard_of_its_hash_once() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    let plan = folder.run(&cluster, "--plan");
    let routing = "routing  by pgspate, straight into 4 shards on 1 node, by column \"id\"";
    assert!(plan.stdout.contains(routing), "{}{}", plan.stdout, plan.stderr);
    folder.load_all(&cluster, "--quiet");
    assert_eq!(cluster.ask("select sum(rows_written) from pgspate.ledger"), ROWS.to_string());
    folder.load_all(&cluster, "--quiet");
    cluster.ask("truncate public.spread");
    folder.load_all(&cluster, "--quiet --commit chunk --lanes 3");
}

#[test]
fn a_node_that_cannot_prepare_leaves_the_rows_to_the_coordinator() {
    let refuse = |sql: &str| sql.starts_with("prepare transaction").then_some("disabled");
    let (cluster, folder) = (FakeCluster::start(refuse), LoadFolder::new());
    let run = folder.run(&cluster, "");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("the coordinator routed the rows: "), "{}", run.stderr);
    assert_eq!(cluster.rows_in_shards(), NO_ROWS);
    assert_eq!(cluster.rows_by_coordinator(), ROWS.to_string());
    assert_eq!(cluster.prepared(), "0");
}

#[test]
fn a_node_without_prepared_transactions_is_found_when_planning() {
    let (cluster, folder) = (FakeCluster::start_without_prepare(), LoadFolder::new());
    let plan = folder.run(&cluster, "--plan").stdout;
    let reason = "by the coordinator: max_prepared_transactions is 0 on node 127.0.0.1:";
    assert!(plan.contains(reason), "{plan}");
}

#[test]
fn a_node_that_did_not_hear_the_decision_is_told_again() {
    let refuse = |sql: &str| sql.starts_with("commit prepared").then_some("a moment, please");
    let (cluster, folder) = (FakeCluster::start(refuse), LoadFolder::new());
    folder.load_all(&cluster, "");
}

#[test]
fn a_load_killed_before_the_decision_leaves_nothing() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    folder.load_all(&cluster, "--quiet");
    cluster.ask("truncate public.spread");
    cluster.ask(
        "create function public.wait() returns trigger language plpgsql \
         as 'begin perform pg_advisory_xact_lock(77); return new; end'; \
         create trigger wait before insert on pgspate.ledger \
         for each row execute function public.wait()",
    );
    let (runtime, holder) = session(&cluster.dsn());
    runtime.block_on(holder.batch_execute("select pg_advisory_lock(77)")).unwrap();
    let mut child = spawn(&mut folder.load(&cluster, "--quiet"));
    wait_until("transactions are prepared", || cluster.prepared() != "0");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(cluster.rows_in_shards(), NO_ROWS);
    assert_ne!(cluster.prepared(), "0");
    drop((holder, runtime));
    folder.load_all(&cluster, "--quiet");
}

#[test]
fn a_load_killed_after_the_decision_has_loaded_everything() {
    let refuse = |sql: &str| sql.starts_with("commit prepared").then_some("a moment, please");
    let (cluster, folder) = (FakeCluster::start(refuse), LoadFolder::new());
    cluster.ask("create table public.node_is_down ()");
    let mut child = spawn(&mut folder.load(&cluster, "--quiet --retry-for 100"));
    let is_decided = "select exists (select from pg_class where relname = 'ledger') \
                      and exists (select from pg_prepared_xacts)";
    wait_until("the rows are recorded", || {
        cluster.ask(is_decided) == "t" && cluster.ask("select count(*) from pgspate.ledger") != "0"
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // The table seems to be empty. Nevertheless the rerun must not load the rows again.
    assert_eq!(cluster.rows_in_shards(), NO_ROWS);
    cluster.ask("drop table public.node_is_down");
    folder.load_all(&cluster, "--quiet");
}

#[test]
fn a_refused_row_is_reported_as_the_coordinator_reports_it() {
    for (last, message) in [
        ("1.2.3", "invalid input syntax for type numeric: \"1.2.3\""),
        ("123456789.00", "numeric field overflow"),
    ] {
        let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::with_last_amount(last));
        let run = folder.run(&cluster, "");
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(message), "{}", run.stderr);
        assert!(run.stderr.contains("rows.csv, line 60001, byte "), "{}", run.stderr);
        assert!(run.stderr.contains("column \"amount\""), "{}", run.stderr);
        assert_eq!(cluster.ask("select count(*) from public.spread"), "0");
        assert_eq!(cluster.prepared(), "0");
    }
}

#[test]
fn the_plan_says_why_the_coordinator_routes_the_rows() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    let plan = |args: &str| folder.run(&cluster, &format!("--plan {args}")).stdout;
    let expect = |args: &str, reason: &str| {
        let plan = plan(args);
        let routing = format!("routing  by the coordinator: {reason}");
        assert!(plan.contains(&routing), "{args}: expected {routing}\n{plan}");
    };
    expect("--no-ledger", "without a ledger");
    expect("--rejects bad.csv", "rows are set aside");
    expect("--atomic", "everything is one transaction");
    expect("--encoding latin1", "the server must read the values");
}

#[test]
fn tables_whose_rows_the_client_cannot_place_stay_with_the_coordinator() {
    let (cluster, folder) = (FakeCluster::start(no_rules), LoadFolder::new());
    let change = |sql: &str| cluster.ask(&format!("set allow_system_table_mods = on; {sql}"));
    for (apply, undo, reason) in [
        (
            "insert into pg_dist_placement values (101, 2, 1)",
            "delete from pg_dist_placement where groupid = 2",
            "shard 101 has more than one copy",
        ),
        (
            "update pg_dist_partition set repmodel = 'c'",
            "update pg_dist_partition set repmodel = 's'",
            "a shard has more than one copy",
        ),
        (
            "update pg_dist_partition set partmethod = 'n', partkey = null",
            "update pg_dist_partition set partmethod = 'h', partkey = 'id'",
            "the table is not distributed by hash",
        ),
        (
            "update pg_dist_partition set partkey = 'amount'",
            "update pg_dist_partition set partkey = 'id'",
            "the hash of column \"amount\" is not known",
        ),
        (
            "alter table public.spread add column other bigint; \
             update pg_dist_partition set partkey = 'other'",
            "update pg_dist_partition set partkey = 'id'; \
             alter table public.spread drop column other",
            "the input lacks column \"other\"",
        ),
        (
            "update pg_dist_node set metadatasynced = false",
            "update pg_dist_node set metadatasynced = true",
            "the node of shard 100 has no current metadata",
        ),
        (
            "update pg_dist_node set nodename = 'nowhere.invalid'",
            "update pg_dist_node set nodename = '127.0.0.1'",
            "node nowhere.invalid:",
        ),
        (
            "alter table public.spread add column made serial",
            "alter table public.spread drop column made",
            "the coordinator has the default of column \"made\"",
        ),
        (
            "create function public.nop() returns trigger language plpgsql \
             as 'begin return new; end'; create trigger watch before insert on public.spread \
             for each row execute function public.nop()",
            "drop trigger watch on public.spread",
            "everything is one transaction",
        ),
        (
            "create table public.other (id bigint primary key); alter table public.spread \
             add constraint refers foreign key (id) references public.other",
            "alter table public.spread drop constraint refers",
            "foreign key \"refers\"",
        ),
    ] {
        change(apply);
        let plan = folder.run(&cluster, "--plan").stdout;
        let routing = format!("routing  by the coordinator: {reason}");
        assert!(plan.contains(&routing), "expected {routing}\n{plan}");
        change(undo);
    }
    let plan = folder.run(&cluster, "--plan").stdout;
    assert!(plan.contains("routing  by pgspate"), "{plan}");
}
