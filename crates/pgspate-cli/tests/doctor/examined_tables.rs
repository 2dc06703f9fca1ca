//! Which tables `doctor` examines. Locked tables and tables of pgspate or extensions are skipped.

use pgspate_embedded::testing;
use serde_json::Value;

use crate::lost_key::load_and_lose_key;
use crate::run::{ask, session, wait_until};
use crate::support::LoadCase;
use crate::{doctor, expect_no_finding, findings, remedy, wait_for_finding};

/// Returns SQL that creates tables and sequences for which each of the `CHECKS` has a finding.
fn create_bad_tables(schema: &str) -> String {
    format!(
        "create table {schema}.t (id int, v text, at timestamptz default clock_timestamp()); \
         create index on {schema}.t (v); create index on {schema}.t (v); \
         insert into {schema}.t select g, 'a' from generate_series(1, 20000) g; \
         create sequence {schema}.s maxvalue 10; select setval('{schema}.s', 10); \
         create unlogged table {schema}.u (id int primary key); insert into {schema}.u values (1)"
    )
}

/// The ids of checks of tables and sequences.
const CHECKS: [&str; 6] = [
    "primary-keys",
    "duplicate-indexes",
    "row-by-row",
    "partitioning",
    "sequences",
    "unlogged-tables",
];

/// Runs the checks once. Returns the objects that each check found, and all other findings.
fn run_checks(dsn: &str) -> (Vec<Vec<String>>, Vec<Value>) {
    let run = doctor(dsn, "--json --watch 100ms --large-table 100kB");
    let found: Value = serde_json::from_str(&run.stdout).unwrap();
    let found = found["findings"].as_array().unwrap().clone();
    let is_trouble = |it: &&Value| it["verdict"] == "warning" || it["verdict"] == "note";
    let objects = |id: &str| {
        let of_check = found.iter().filter(|it| it["id"] == id).filter(is_trouble);
        of_check.map(|it| it["object"].as_str().unwrap().to_owned()).collect()
    };
    (CHECKS.map(objects).to_vec(), found)
}

#[test]
fn a_locked_table_is_reported_and_hides_no_other() {
    let db = testing::database();
    db.run(&create_bad_tables("public"));
    db.run("create schema free");
    db.run(&create_bad_tables("free"));
    let dsn = db.dsn();
    wait_until("each check sees both", || {
        run_checks(&dsn).0.iter().all(|objects| objects.len() == 2)
    });
    let (runtime, holder) = session(&dsn);
    let locks = "begin; lock table public.t, public.u; alter sequence public.s cycle";
    runtime.block_on(holder.batch_execute(locks)).unwrap();
    let public_is_left_out = || {
        let (objects, found) = run_checks(&dsn);
        let is_free = |objects: &Vec<String>| objects.len() == 1 && objects[0].starts_with("free.");
        assert!(objects.iter().all(is_free), "{objects:?}");
        let ids = |id: &str| found.iter().filter(|it| it["id"] == id).collect::<Vec<_>>();
        assert_eq!(ids("refused"), Vec::<&Value>::new());
        let left_out = ids("locked-tables");
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0]["verdict"], "cannot_see");
        let evidence = left_out[0]["evidence"].as_str().unwrap();
        assert!(evidence.contains("public.t (by "), "{evidence}");
    };
    public_is_left_out();
    // `doctor` does not wait for the lock, even if the table is named.
    assert_eq!(findings(&dsn, "refused", "--table public.t"), Vec::<Value>::new());
    assert_eq!(findings(&dsn, "locked-tables", "--table free.t"), Vec::<Value>::new());
    // A session that waits for an exclusive lock blocks all later sessions.
    runtime.block_on(holder.batch_execute("commit; drop table u; drop sequence s")).unwrap();
    let (reading, reader) = session(&dsn);
    reading.block_on(reader.batch_execute("begin; select from t limit 1")).unwrap();
    let waiting = runtime.spawn(async move { holder.batch_execute("begin; lock table t").await });
    wait_until("the other session waits", || {
        let sql = "select count(*) from pg_locks where not granted and relation = 't'::regclass";
        ask(&dsn, sql) == "1"
    });
    public_is_left_out();
    waiting.abort();
}

/// A table dropped during the run is still in the run's snapshot, but privilege functions fail.
#[test]
fn tables_dropped_during_the_run_are_skipped() {
    let db = testing::database();
    db.run(
        "create table t (id int) with (autovacuum_enabled = off); \
         insert into t select generate_series(1, 400000); create index on t (id); \
         create sequence s maxvalue 10; select setval('s', 10)",
    );
    for id in ["bloat", "oversized-indexes"] {
        let is_seen = || findings(&db.dsn(), id, "")[0]["verdict"] == "cannot_see";
        wait_until(&format!("{id} knows of the table"), is_seen);
    }
    assert_eq!(wait_for_finding(&db.dsn(), "sequences", "")["object"], "public.s");
    db.run(
        "set allow_system_table_mods = on; \
         create or replace function pg_catalog.has_table_privilege(oid, text) returns bool \
         language sql as 'select null::bool'; \
         create or replace function pg_catalog.has_sequence_privilege(oid, text) returns bool \
         language sql as 'select null::bool'",
    );
    for id in ["bloat", "oversized-indexes", "sequences"] {
        let found = findings(&db.dsn(), id, "");
        assert_eq!((found.len(), &found[0]["verdict"]), (1, &"ok".into()), "{found:?}");
        assert!(found[0]["evidence"].as_str().unwrap().starts_with("0 "), "{found:?}");
    }
}

#[test]
fn tables_of_pgspate_and_extensions_are_not_examined() {
    let db = testing::database();
    for schema in ["pgspate_job_7", "_timescaledb_internal", "ext", "pgspate_jobs"] {
        db.run(&format!("create schema {schema}"));
        db.run(&create_bad_tables(schema));
    }
    for object in ["table ext.t", "table ext.u", "sequence ext.s"] {
        db.run(&format!("alter extension plpgsql add {object}"));
    }
    let mut objects = Vec::new();
    wait_until("each check finds the tables of the role", || {
        objects = run_checks(&db.dsn()).0;
        objects.iter().all(|objects| !objects.is_empty())
    });
    let is_users = |name: &String| name.starts_with("pgspate_jobs.");
    assert!(objects.iter().flatten().all(is_users), "{objects:?}");
}

#[test]
fn a_partition_is_examined_alone_when_named() {
    let db = testing::database();
    db.run(
        "create table p (id int, v text) partition by range (id); \
         create table p1 partition of p for values from (0) to (9000); \
         insert into p select g, 'a' from generate_series(1, 2000) g; analyze p",
    );
    assert_eq!(wait_for_finding(&db.dsn(), "primary-keys", "--table p1")["object"], "public.p1");
}

#[test]
fn the_report_says_which_indexes_the_role_cannot_judge() {
    let server = testing::server("");
    let dsn = server.dsn();
    ask(
        &dsn,
        "create role plain login; create table t (id int primary key); \
         insert into t select generate_series(1, 400000); analyze t",
    );
    let plain = format!("{dsn} user=plain");
    let hidden = |id: &str| {
        let found = findings(&plain, id, "");
        assert_eq!(found[0]["verdict"], "cannot_see", "{found:?}");
        found[0]["remedy"][0].as_str().unwrap().to_owned()
    };
    assert_eq!(hidden("oversized-indexes"), "grant select on public.t to plain;");
    ask(&dsn, &hidden("oversized-indexes"));
    assert_eq!(findings(&plain, "oversized-indexes", "")[0]["verdict"], "ok");
}

/// What a killed load has dropped of one table does not concern another table.
#[test]
fn a_dropped_key_is_a_finding_of_its_table_alone() {
    let case = LoadCase::new("create table t (id int primary key); create table u (id int)");
    case.put("t.csv", "id\n1\n");
    load_and_lose_key(&case, "t.csv");
    let dsn = case.db.dsn();
    for args in ["", "--table t"] {
        let finding = wait_for_finding(&dsn, "not-put-back", args);
        assert_eq!(finding["evidence"], "job 1 has not put back primary key \"t_pkey\"");
        assert_eq!(remedy(&finding), ["pgspate status --restore 1"]);
    }
    expect_no_finding(&dsn, "not-put-back", "--table u");
}
