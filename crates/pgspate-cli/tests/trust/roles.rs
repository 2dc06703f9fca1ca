//! Several roles that use the ledger of a superuser.

use crate::support::LoadCase;
use crate::{TrustRole, run_as};

/// The grants that a role needs to use the ledger.
pub(crate) const GRANTS: [&str; 2] =
    ["usage on schema pgspate", "select, insert, update, delete on all tables in schema pgspate"];

/// Returns a case whose ledger has rejects and a dead letter of the superuser.
fn case() -> LoadCase {
    let case = LoadCase::new(
        "create table t (id int primary key, n int); create table u (id int primary key, n int); \
         create table t2 (id int primary key, n int)",
    );
    case.put("t.csv", "id,n\n1,1\n2,x\n");
    case.put("u.csv", "id,n\n1,1\n2,y\n");
    let event = "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":\"secret\"}}\n";
    case.put("e.ndjson", event);
    assert_eq!(case.load("t.csv --table t --rejects t.bad --quiet").status, Some(1));
    let run = run_as(&case, &case.db.dsn(), "apply e.ndjson --max-dead-letters 1");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    case
}

#[test]
fn the_error_names_the_missing_grants() {
    let case = case();
    let role = TrustRole::new(&case, "plain");
    role.grant("all on u");
    let run = role.run("load u.csv --table u --rejects u.bad");
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("permission denied for schema pgspate"), "{}", run.stderr);
    assert!(run.stderr.contains("grant usage on schema pgspate to ROLE"), "{}", run.stderr);
    case.put("good.csv", "id,n\n1,1\n");
    for command in [
        "load good.csv --table u --no-ledger",
        "load good.csv --table u --no-ledger --replace",
        "sync good.csv --table u --scope all",
        "doctor --table u",
    ] {
        let run = role.run(command);
        assert!(matches!(run.status, Some(0 | 1)), "{command}: {}", run.stderr);
    }
    for grant in GRANTS {
        role.grant(grant);
    }
    case.put("u.csv", "id,n\n7,1\n8,y\n");
    let run = role.run("load u.csv --table u --rejects u.bad");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from u where id > 6"), "1");
}

/// Row-level security hides the chunks of another role's job.
#[test]
fn the_state_of_another_roles_job_is_not_invented() {
    let case = case();
    let role = TrustRole::new(&case, "plain");
    for grant in GRANTS {
        role.grant(grant);
    }
    let status = |args: &str| role.run(&format!("status 1 {args}"));
    assert!(status("").stdout.contains("\n  1 row in 1 chunk, 1 set aside\n"));
    case.db.run("update pgspate.job set finished = null, chunks = 0, rows_written = 0");
    let said = status("").stdout;
    assert!(said.contains(" and its members see how much is written\n"), "{said}");
    let jobs: serde_json::Value = serde_json::from_str(&status("--json").stdout).unwrap();
    assert!(jobs[0]["chunks"].is_null() && jobs[0]["rows_written"].is_null(), "{jobs}");
}

#[test]
fn a_role_sees_and_forges_nothing_of_another() {
    let case = case();
    let role = TrustRole::new(&case, "plain");
    role.grant("all on u");
    role.grant("select, insert on t");
    for grant in GRANTS {
        role.grant(grant);
    }
    assert_eq!(role.run("load u.csv --table u --rejects u.bad").status, Some(1));
    let count = |table: &str| role.try_sql(&format!("select count(*) from pgspate.{table}"));
    assert_eq!(count("reject"), Ok("1".to_owned()));
    assert_eq!(count("dead_letter"), Ok("0".to_owned()));
    assert_eq!(count("ledger"), Ok("1".to_owned()));
    let jobs = "select count(*) from pgspate.job where table_oid <> 0";
    assert_eq!(case.value(jobs), "2");
    for forged in [
        "update pgspate.job set finished = null",
        "delete from pgspate.job",
        "update pgspate.stream set ordinal = 9, dead_letters = 0",
        "delete from pgspate.stream",
        "update pgspate.job set table_oid = 0 where table_oid = 't'::regclass",
        "update pgspate.job set role = current_user where table_oid = 't'::regclass",
        "delete from pgspate.life",
    ] {
        // A role cannot change rows of other roles, because it does not see them.
        let (before, all) = (
            case.value("select sum(hashtext(j::text)) from pgspate.job j where role = 'postgres'"),
            "select count(*) from pgspate.stream where ordinal = 1",
        );
        let _ = role.try_sql(forged);
        assert_eq!(
            case.value("select sum(hashtext(j::text)) from pgspate.job j where role = 'postgres'"),
            before,
            "{forged}"
        );
        assert_eq!(case.value(all), "1", "{forged}");
    }
    for refused in [
        "insert into pgspate.ledger \
         (job, chunk, input, position, rows_in, rows_written, rows_rejected) \
         values (1, 7, 0, 0, 1, 1, 0)",
        "insert into pgspate.reject (job, chunk, row, sqlstate, message, record) \
         values (1, 7, 0, '', '', '')",
        "insert into pgspate.job (key, fingerprint, command, table_oid, table_name, made_table, \
                                  options, role) \
         values ('', '', '', 0, '', false, '{}', 'postgres')",
        "insert into pgspate.stream (stream, partition, role) values ('x', '', 'postgres')",
        "insert into pgspate.dead_letter \
         (stream, partition, position, source, line, message, payload, role) \
         values ('x', '', 0, '', 0, '', '', 'postgres')",
    ] {
        let said = role.try_sql(refused).unwrap_err();
        assert!(said.contains("row-level security"), "{refused}: {said}");
    }
    for refused in [
        // These rows would say that another role's file is loaded, that its table was emptied, or
        // that its table has no key.
        "insert into pgspate.job (key, fingerprint, command, table_oid, table_name, made_table, \
                                  options) \
         select key, fingerprint, command, 't2'::regclass, table_name, false, options \
         from pgspate.job limit 1",
        "insert into pgspate.emptied (table_oid, upto, but) values ('t'::regclass, 9, 0)",
        "insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside) \
         values (1, 1, 't'::regclass, 'primary key', 'x', '{x}', false)",
    ] {
        let said = role.try_sql(refused).unwrap_err();
        assert!(said.contains("row-level security"), "{refused}: {said}");
    }
    // A stream belongs to one role.
    case.put("e.ndjson", "{\"op\":\"insert\",\"table\":\"u\",\"row\":{\"id\":9}}\n".repeat(2));
    let run = role.run("apply e.ndjson");
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("is applied by role \"postgres\""), "{}", run.stderr);
    assert_eq!(role.run("apply e.ndjson --stream mine").status, Some(0));
}

#[test]
fn a_load_that_another_role_began_is_not_repeated() {
    let case = case();
    let role = TrustRole::new(&case, "plain");
    for grant in GRANTS.into_iter().chain(["all on u"]) {
        role.grant(grant);
    }
    case.put("g.csv", "id,n\n1,1\n");
    case.load("g.csv --table u --quiet").success();
    // A loaded file stays loaded, whichever role loaded it.
    let run = role.run("load g.csv --table u");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from u"), "1");
    case.db.run("update pgspate.job set finished = null where table_oid = 'u'::regclass");
    for more in ["", " --restart"] {
        let run = role.run(&format!("load g.csv --table u{more}"));
        assert_eq!(run.status, Some(2), "{}", run.stdout);
        assert!(
            run.stderr.contains("this load is unfinished job")
                && run.stderr.contains("of role \"postgres\""),
            "{}",
            run.stderr
        );
    }
    // A role that may truncate the table may record that the table is empty.
    case.db.run("update pgspate.job set finished = now() where table_oid = 'u'::regclass");
    case.put("h.csv", "id,n\n5,5\n");
    let run = role.run("load h.csv --table u --replace");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    case.load("g.csv --table u --quiet").success();
    assert_eq!(case.value("select count(*) from u"), "2");
}
