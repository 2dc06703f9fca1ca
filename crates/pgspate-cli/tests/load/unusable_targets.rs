//! Tests of servers, roles and tables into which pgspate cannot load.

use insta::assert_snapshot;
use pgspate_embedded::testing;

use crate::support::{LoadCase, Run, redact, wait_until};

fn case_with_rows() -> LoadCase {
    let case = LoadCase::new("create table t (id int, name text)");
    case.put("t.csv", "id,name\n1,a\n2,b\n");
    case
}

#[test]
fn a_missing_table_is_refused() {
    let case = case_with_rows();
    case.put("sales 2024.csv", "Order ID,amount,at\n1,12.50,2024-01-31\n2,,2024-02-29\n");
    let run = case.command(&["load", "--quiet", "--to", &case.db.dsn(), "sales 2024.csv"]).output();
    assert_snapshot!(Run::of(run.unwrap()).refusal(), @r#"
    error: relation sales_2024 does not exist

    hint: `--create` would create it with:
    create table sales_2024 (
        "Order ID" bigint,
        amount numeric,
        at date
    );
    "#);
    assert_snapshot!(case.refusal("t.csv --table no.such"), @"
    error: relation no.such does not exist

    hint: `--create` would create it with:
    create table no.such (
        id bigint,
        name text
    );
    ");
    assert_snapshot!(case.refusal("t.csv --table no.such --create"), @r#"
    error: could not create table no.such
      caused by: schema "no" does not exist (SQLSTATE 3F000)

    hint: Create the schema first, with `create schema ...`.
    "#);
    assert_snapshot!(case.refusal("t.csv --table a.b.c.d"), @"
    error: could not look up table a.b.c.d
      caused by: improper relation name (too many dotted names): a.b.c.d (SQLSTATE 42601)
    ");
}

#[test]
fn sources_of_several_names_need_a_table() {
    let case = LoadCase::new("create table jan (id int)");
    case.put("in/jan.csv", "id\n1\n");
    case.put("in/feb.csv", "id\n2\n");
    assert_snapshot!(case.refusal("in"), @"
    error: no table is named, and the names of the sources are those of several tables:
          … feb, jan

    hint: Name the table with `--table`.
    ");
    case.put("more/jan.csv", "id\n3\n");
    case.load("in/jan.csv more/jan.csv").success();
    assert_eq!(case.rows("jan"), ["(1)", "(3)"]);
}

#[test]
fn targets_that_are_not_tables_are_refused() {
    let case = case_with_rows();
    case.db.run("create view v as select * from t; create sequence s; create index i on t (id)");
    for target in ["s", "i"] {
        let said = case.refusal(&format!("t.csv --table {target}"));
        assert_eq!(said, format!("error: cannot copy to \"{target}\", which is not a table\n"));
    }
    assert_snapshot!(case.refusal("t.csv --table v"), @r#"
    error: could not load "t.csv" into public.v
      caused by: cannot copy to view "v" (SQLSTATE 42809)

    hint: To enable copying to a view, provide an INSTEAD OF INSERT trigger.
    "#);
}

#[test]
fn a_refusal_is_the_same_in_a_later_load_and_without_rows() {
    let case = case_with_rows();
    case.db.run("create view v as select * from (values (1, 'a')) as v (id, name)");
    let first = case.refusal("t.csv --table v");
    assert_eq!(case.value("select to_regnamespace('pgspate') is null"), "t");
    case.load("t.csv").success();
    assert_eq!(case.refusal("t.csv --table v"), first);
    assert_eq!(case.refusal("t.csv --table v --no-ledger"), first);
    case.put("none.csv", "id,name\n");
    assert_eq!(case.refusal("none.csv --table v"), first.replace("t.csv", "none.csv"));
    assert_eq!(case.value("select count(*) from pgspate.job"), "1");
}

#[test]
fn a_role_without_privileges_is_refused() {
    let case = case_with_rows();
    let name = format!("{}_role", case.db.name());
    case.db.run(&format!("create role \"{name}\" login; grant select on t to \"{name}\""));
    let dsn = format!("{} options='-c role={name}'", case.db.dsn());
    let said = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    let created = ["load", "-q", "--to", &dsn, "--create", "--table", "new", "t.csv"];
    let create = Run::of(case.command(&created).output().unwrap());
    case.db.run(&format!("drop owned by \"{name}\"; drop role \"{name}\""));
    assert_snapshot!(said.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: permission denied for table t (SQLSTATE 42501)
    "#);
    assert_eq!(case.rows("t").len(), 0);
    // Since PostgreSQL 15, only the owner of a database may create tables in its schema public.
    if case.value("select current_setting('server_version_num')::int / 10000").as_str() >= "15" {
        assert_snapshot!(create.refusal(), @"
        error: could not create table new
          caused by: permission denied for schema public (SQLSTATE 42501)

        hint: The role may need `grant create on schema ...`.
        ");
    }
}

#[test]
fn a_wrong_password_is_refused() {
    let case = case_with_rows();
    let server = testing::server("");
    let dsn = server.tcp_dsn_for("postgres").replace(server.password(), "wrong");
    let said = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    assert_snapshot!(said.refusal(), @r#"
    error: could not connect to server at "127.0.0.1", [PORT]
      caused by: password authentication failed for user "postgres" (SQLSTATE 28P01)

    hint: The password came from the connection string.
    "#);
    let masked = dsn.replace("wrong", "***");
    let said = Run::of(case.command(&["load", "-q", "--to", &masked, "t.csv"]).output().unwrap());
    assert!(said.refusal().contains("hide_password=False"), "{}", said.stderr);
}

#[test]
fn an_unreachable_server_is_reported() {
    let case = case_with_rows();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dsn = format!("host=127.0.0.1 port={free} user=postgres");
    let run = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    assert_snapshot!(run.refusal(), @r#"
    error: could not connect to server at "127.0.0.1", [PORT]
      caused by: connection refused

    hint: No server listens there. Check host and port, or start pgspate's own server with
          … `pgspate server start`.
    "#);
    let folder = case.path("no socket here");
    let dsn = format!("host='{}' user=postgres", folder.display());
    let run = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    let said = run.refusal().replace(folder.to_str().unwrap(), "[DIR]");
    assert_snapshot!(said, @r#"
    error: could not connect to server on socket "[DIR]/no socket here/.s.[PORT]"
      caused by: no server listens on the socket

    hint: Name the server's host, or its socket folder, with host=, or start pgspate's own
          … server with `pgspate server start`.
    "#);
}

#[test]
fn a_missing_database_is_reported() {
    let case = case_with_rows();
    let dsn = format!("{} dbname=nowhere", case.db.dsn());
    let run = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    assert_snapshot!(redact(&run.refusal()), @r#"
    error: could not connect to server on socket "[DIR]/run/.s.[PORT]"
      caused by: database "nowhere" does not exist (SQLSTATE 3D000)

    hint: Name another database with dbname=, or create it with `create database "nowhere"`.
    "#);
}

#[test]
fn a_read_only_server_is_refused() {
    let case = case_with_rows();
    let dsn = format!("{} options='-c default_transaction_read_only=on'", case.db.dsn());
    let run = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    assert_snapshot!(run.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: cannot execute COPY FROM in a read-only transaction (SQLSTATE 25006)
    "#);
    let create = ["load", "-q", "--to", &dsn, "--create", "--table", "new", "t.csv"];
    let run = Run::of(case.command(&create).output().unwrap());
    assert_snapshot!(run.refusal(), @"
    error: could not create table new
      caused by: cannot execute CREATE TABLE in a read-only transaction (SQLSTATE 25006)
    ");
}

#[test]
fn the_number_of_lanes_fits_the_connection_limit_of_the_role() {
    let case = LoadCase::new("create table t (id int, note text)");
    let name = format!("{}_role", case.db.name());
    let role = format!(
        "create role \"{name}\" login connection limit 2; grant all on t to \"{name}\"; \
                 create schema pgspate authorization \"{name}\""
    );
    case.db.run(&role);
    case.put("t.csv", format!("id,note\n{}", "1,some text that is long\n".repeat(400_000)));
    let dsn = format!("{} user='{name}'", case.db.dsn());
    let load = |more: &[&str]| {
        let args = ["load", "-q", "--to", &dsn, "t.csv", "--restart"];
        let args = [&args, more].concat();
        Run::of(case.command(&args).output().unwrap())
    };
    // A session ends a little later than its client.
    let left = format!("select count(*) from pg_stat_activity where usename = '{name}'");
    let is_free = || case.value(&left) == "0";
    let auto = load(&[]);
    let count = case.value("select count(*) from t");
    wait_until("the first load's sessions are gone", is_free);
    let fixed = load(&["--lanes", "2", "--retry-for", "0"]);
    wait_until("the sessions of the second load are gone", is_free);
    case.db.run(&format!("alter role \"{name}\" connection limit 1"));
    let one = load(&[]);
    case.db.run(&format!("drop owned by \"{name}\"; drop role \"{name}\""));
    // pgspate reduces a number of lanes that it chose itself, but not one that the user gave.
    assert_eq!((auto.status, auto.stderr.as_str(), count.as_str()), (Some(0), "", "400000"));
    assert_snapshot!(fixed.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not connect to server on socket "[DIR]/run/.s.[PORT]"
      caused by: too many connections for role "[DATABASE]role" (SQLSTATE 53300)

    hint: Close other connections of this role, use fewer lanes with `--lanes`, or raise
          … its limit with `alter role [DATABASE]role connection limit N`. A load needs one
          … connection besides those of its lanes.
    "#);
    assert_snapshot!(one.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not connect to server on socket "[DIR]/run/.s.[PORT]"
      caused by: too many connections for role "[DATABASE]role" (SQLSTATE 53300)

    hint: Close other connections of this role, use fewer lanes with `--lanes`, or raise
          … its limit with `alter role [DATABASE]role connection limit N`. A load needs one
          … connection besides those of its lanes.
    "#);
}

#[test]
fn server_status_prints_json() {
    let case = LoadCase::new("");
    let mut status = case.command(&["server", "status", "--json"]);
    // The server's folder belongs to the user of the test.
    status.env("PGSPATE_DATA_DIR", case.path("data"));
    let run = Run::of(status.output().unwrap());
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let status: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&status["state"], &status["pid"]), (&"absent".into(), &serde_json::Value::Null));
}
