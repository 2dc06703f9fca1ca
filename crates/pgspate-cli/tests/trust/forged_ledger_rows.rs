//! Forged rows in a ledger, written by a role that may write to the ledger.

use crate::roles::GRANTS;
use crate::support::LoadCase;
use crate::{TrustRole, run_as};

/// Returns a case with a superuser's ledger, and files to load and apply.
fn case() -> LoadCase {
    let case = LoadCase::new(
        "create table t (id int primary key, n int); \
         create unlogged table u (id int primary key, n int)",
    );
    case.put("t.csv", "id,n\n1,1\n");
    case.put("u.csv", "id,n\n1,1\n");
    case.put("u.ndjson", "{\"op\":\"insert\",\"table\":\"u\",\"row\":{\"id\":5}}\n");
    case.load("t.csv --table t --quiet").success();
    case
}

/// Creates a role with the grants to use the ledger.
fn mallory(case: &LoadCase) -> TrustRole<'_> {
    let role = TrustRole::new(case, "mallory");
    GRANTS.iter().for_each(|grant| role.grant(grant));
    role
}

/// Checks that row-level security refuses the SQL.
fn assert_refused(role: &TrustRole<'_>, sql: &str) {
    let said = role.try_sql(sql).unwrap_err();
    assert!(said.contains("row-level security"), "{sql}: {said}");
}

/// The secret is part of the job keys of URLs. With another secret, loaded URLs would be loaded
/// again.
#[test]
fn a_role_cannot_change_the_version_or_the_secret() {
    let case = case();
    let role = mallory(&case);
    let before = case.value("select version || secret from pgspate.version");
    for forged in [
        "update pgspate.version set secret = 'x'",
        "update pgspate.version set version = 2",
        "delete from pgspate.version",
    ] {
        let _ = role.try_sql(forged);
        assert_eq!(case.value("select version || secret from pgspate.version"), before, "{forged}");
    }
    assert_refused(&role, "insert into pgspate.version values (4, 'x')");
}

/// A table created later may get the oid of a forged finished job.
#[test]
fn a_role_cannot_forge_a_job_of_a_future_table() {
    let case = case();
    let role = mallory(&case);
    let copy = |oid: &str| {
        format!(
            "insert into pgspate.job (key, fingerprint, command, table_oid, table_name, \
                                      made_table, options, finished) \
             select key, fingerprint, command, {oid}, table_name, false, options, now() \
             from pgspate.job limit 1"
        )
    };
    assert_refused(&role, &copy("4000000000"));
    role.grant("create on schema public");
    role.sql("create table mine (id int)");
    role.sql(&copy("'mine'::regclass"));
    assert_refused(
        &role,
        "update pgspate.job set table_oid = 4000000000 where role = current_user",
    );
}

/// A file of another role's job would be skipped, or loaded twice.
#[test]
fn a_role_cannot_forge_files_of_other_roles_jobs() {
    let case = case();
    let role = mallory(&case);
    let files = "select string_agg(f::text, ' ' order by job, input) from pgspate.source_file f";
    let before = case.value(files);
    assert_refused(
        &role,
        "insert into pgspate.source_file (job, input, key, source) \
         select job, input + 1000, 'forged', source from pgspate.source_file limit 1",
    );
    for forged in
        ["update pgspate.source_file set key = 'forged'", "delete from pgspate.source_file"]
    {
        let _ = role.try_sql(forged);
        assert_eq!(case.value(files), before, "{forged}");
    }
}

/// A member that counts as done, or as superseded, would not be written.
#[test]
fn a_role_cannot_forge_members_of_a_fleet_of_another_role() {
    let case = case();
    let role = mallory(&case);
    let app = TrustRole::new(&case, "app");
    GRANTS.iter().chain(&["all on t"]).for_each(|grant| app.grant(grant));
    let member = |generation: &str| {
        app.run(&format!(
            "sync t.csv --table t --no-delete --fleet f --generation {generation} --members 2 \
             --member 0"
        ))
    };
    assert_eq!(member("1").status, Some(0));
    for forged in [
        "insert into pgspate.member (fleet, generation, member, waited_ms) values ('f', '1', 1, 0)",
        "insert into pgspate.member_scope (fleet, scope, generation, sort, member) \
         values ('f', 'member 1', '1', '9', 1)",
        "insert into pgspate.fleet (fleet, generation, sort, first, members, command, table_oid, \
                                    table_name) \
         select 'f', '2', '9', first, members, command, table_oid, table_name from pgspate.fleet",
    ] {
        assert_refused(&role, forged);
    }
    let before = case.value(
        "select count(*) || max(sort) || max(state) from pgspate.member_scope, \
                             pgspate.member",
    );
    role.sql("update pgspate.member set state = 'running'");
    role.sql("update pgspate.member_scope set sort = '9'");
    role.sql("delete from pgspate.member_scope");
    let after = case.value(
        "select count(*) || max(sort) || max(state) from pgspate.member_scope, \
                            pgspate.member",
    );
    assert_eq!(after, before);
    // With a table of its own, the role can take a name, but no member trusts the fleet.
    role.grant("create on schema public");
    role.sql("create table mine (id int)");
    role.sql(
        "insert into pgspate.fleet (fleet, generation, sort, first, members, command, table_oid, \
                                    table_name) \
         values ('f', '2', '9', 0, 2, 'sync', 'mine'::regclass, 'mine')",
    );
    let run = member("1");
    assert_eq!(run.status, Some(2));
    assert!(run.stderr.contains("fleet \"f\" belongs to role"), "{}", run.stderr);
}

/// If a stream's row in `pgspate.bound` is deleted, pgspate cannot notice that a crash lost rows.
#[test]
fn a_role_cannot_forge_bonds_of_unlogged_tables() {
    let case = case();
    let role = mallory(&case);
    let app = TrustRole::new(&case, "app");
    GRANTS.iter().chain(&["all on u"]).for_each(|grant| app.grant(grant));
    let apply = || app.run("apply u.ndjson --stream theirs");
    let bond = |columns: &str, from: &str| {
        format!(
            "insert into pgspate.bound (job, stream, life, whole) \
             select {columns}, 7, false from {from} limit 1"
        )
    };
    // Forge the rows before the application's first run.
    role.sql("insert into pgspate.life (life) values (7)");
    role.sql("insert into pgspate.stream (stream, partition) values ('theirs', '')");
    role.sql(&bond("null, 'theirs'", "pgspate.stream"));
    let run = apply();
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("is applied by role"), "{}", run.stderr);
    role.sql("delete from pgspate.stream");
    let run = apply();
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(
        run.stderr.contains("the row of pgspate.bound where stream = 'theirs'"),
        "{}",
        run.stderr
    );
    assert_eq!(case.value("select count(*) from u"), "0");
    role.sql("delete from pgspate.bound");
    let run = apply();
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from u"), "1");
    // Delete the real row after that run.
    case.db.run("delete from pgspate.bound");
    assert_refused(&role, &bond("null, 'theirs'", "pgspate.stream"));
    assert_refused(&role, &bond("job, null", "pgspate.job"));
}

/// Changes that an untrusted role recorded are not run. All other changes are run.
#[test]
fn only_changes_of_trusted_roles_are_run() {
    let case = case();
    let role = mallory(&case);
    role.grant("create on schema public");
    role.sql("create table mine (id int)");
    let recipe = "insert into pgspate.change \
                  (job, ordinal, table_oid, kind, object, steps, beside) \
                  values (-1, 1, 'mine'::regclass, 'autovacuum', '', '{reset,x}', false)";
    role.sql(recipe);
    case.db.run("alter table t set (autovacuum_enabled = false)");
    let ours = "insert into pgspate.change \
                (job, ordinal, table_oid, kind, object, steps, beside) \
                values (1, 1, 't'::regclass, 'autovacuum', '', \
                        array['{\"options\": [[\"autovacuum_enabled\", null]]}'], false)";
    case.db.run(ours);
    let run = run_as(&case, &case.db.dsn(), "status --restore");
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("mallory"), "{}", run.stderr);
    let left = "select count(*) from pgspate.change where table_oid = 't'::regclass \
                and done < cardinality(steps)";
    assert_eq!(case.value(left), "0", "{}", run.stderr);
}
