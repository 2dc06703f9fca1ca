//! Events and commands that name the ledger's tables.

use crate::run_as;
use crate::support::LoadCase;

/// An event that inserts a forged change into the ledger. Its steps would create a table.
const FORGED_CHANGE: &str = "{\"op\":\"insert\",\"table\":\"pgspate.change\",\"row\":{\
    \"job\":1,\"ordinal\":1,\"table_oid\":TABLE,\"kind\":\"index\",\"object\":\"x\",\
    \"steps\":\"{create table pwned()}\",\"done\":0,\"beside\":false}}\n";

fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, n int)");
    case.put("t.csv", "id,n\n1,1\n");
    case.load("t.csv --quiet").success();
    case
}

/// Returns the event with the oid of table `t`.
fn event(case: &LoadCase) -> String {
    FORGED_CHANGE.replace("TABLE", &case.value("select 't'::regclass::oid"))
}

#[test]
fn events_about_the_ledger_are_skipped() {
    let case = case();
    let row = "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":2}}\n";
    let stream = "{\"op\":\"insert\",\"table\":\"pgspate.stream\",\
                  \"row\":{\"stream\":\"other\",\"partition\":\"\"}}\n";
    case.put("e.ndjson", [&event(&case), row, stream].concat());
    let run = run_as(&case, &case.db.dsn(), "apply e.ndjson");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), "2");
    assert_eq!(case.value("select count(*) from pgspate.change"), "0");
    assert_eq!(case.value("select count(*) from pgspate.stream"), "1");
    let run = run_as(&case, &case.db.dsn(), "status --restore");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select to_regclass('pwned') is null"), "t");
}

#[test]
fn no_command_writes_user_rows_into_the_ledger() {
    let case = case();
    let mapped = event(&case).replace("pgspate.change", "a.change");
    case.put("mapped.ndjson", &mapped);
    case.put("bare.ndjson", event(&case).replace("pgspate.change", "change"));
    case.put("prefixed.ndjson", event(&case).replace("pgspate.change", "my_pgspate.change"));
    let role = "{\"op\":\"update\",\"table\":\"pg_catalog.pg_authid\",\
                \"row\":{\"oid\":3373,\"rolcanlogin\":true}}\n";
    case.put("catalog.ndjson", role);
    let dsn = case.db.dsn();
    let with_path = format!("{dsn} options='-csearch_path=pgspate,public'");
    for (dsn, command) in [
        (&dsn, "apply mapped.ndjson --map a.*=pgspate.*"),
        (&dsn, "apply prefixed.ndjson --map my_*.*=*.*"),
        (&with_path, "apply mapped.ndjson --map a.change=change"),
        (&with_path, "apply bare.ndjson"),
        (&dsn, "load t.csv --table pgspate.change"),
        (&with_path, "load t.csv --table change"),
        (&dsn, "sync t.csv --table pgspate.job --scope all"),
        (&dsn, "apply catalog.ndjson"),
        (&dsn, "apply catalog.ndjson --map pg_catalog.pg_authid=pg_authid"),
        (&dsn, "apply mapped.ndjson --map a.*=information_schema.*"),
    ] {
        let run = run_as(&case, dsn, command);
        assert_eq!(run.status, Some(2), "{command}: {}", run.stdout);
        let is_refused = ["belongs to the ledger", "belongs to the server's catalog"]
            .iter()
            .any(|said| run.stderr.contains(said));
        assert!(is_refused, "{command}: {}", run.stderr);
    }
    assert_eq!(case.value("select rolcanlogin from pg_authid where rolname = 'pg_monitor'"), "f");
    assert_eq!(case.value("select count(*) from pgspate.change"), "0");
}

#[test]
fn a_change_that_pgspate_did_not_record_is_not_run() {
    let case = case();
    for steps in [
        "{create table pwned()}",
        "{\"{\\\"definition\\\":\\\"USING btree (n); create table pwned()\\\"}\"}",
    ] {
        case.db.run(&format!(
            "delete from pgspate.change; \
             insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside) \
             values (1, 1, 't'::regclass, 'index', 'x', '{steps}', false)"
        ));
        let run = run_as(&case, &case.db.dsn(), "status --restore");
        assert_eq!(run.status, Some(2), "{}", run.stdout);
        assert!(run.stderr.contains("could not put back index \"x\""), "{}", run.stderr);
        assert_eq!(case.value("select to_regclass('pwned') is null"), "t");
    }
}
