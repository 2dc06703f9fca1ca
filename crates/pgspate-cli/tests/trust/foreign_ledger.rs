//! A ledger whose owner could make the current role run code.

use crate::support::LoadCase;
use crate::{TrustRole, run_as};

/// Every command that reads the ledger.
const COMMANDS: [&str; 6] = [
    "status",
    "status --restore",
    "load t.csv --table t",
    "load t.csv --table t --plan",
    "apply e.ndjson",
    "doctor",
];

/// A function that records that a superuser ran it.
const CREATE_SPY: &str = "\
create table spy.seen (by text);
grant insert on spy.seen to public;
create function spy.look() returns int language plpgsql as
    $$begin insert into spy.seen values (current_user); return 1; end$$;
create function spy.fire() returns trigger language plpgsql as
    $$begin insert into spy.seen values (current_user); return new; end$$";

/// Returns a case with a table, a file and an event.
fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, n int)");
    case.put("t.csv", "id,n\n1,1\n");
    case.put("e.ndjson", "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":7}}\n");
    case
}

/// Creates a role that may create schemas, with the spy function.
fn mallory(case: &LoadCase) -> TrustRole<'_> {
    let role = TrustRole::new(case, "mallory");
    role.grant(&format!("create on database \"{}\"", case.db.name()));
    role.sql(&format!("create schema spy; {CREATE_SPY}; grant usage on schema spy to public"));
    role
}

/// Checks that all commands refuse the ledger, name its owner and run none of its code.
fn assert_ledger_refused(case: &LoadCase, role: &TrustRole<'_>, what: &str) {
    for command in COMMANDS {
        let run = run_as(case, &case.db.dsn(), command);
        if command == "doctor" {
            continue;
        }
        assert_eq!(run.status, Some(2), "{command}: {}", run.stdout);
        let said = format!("{what}, owned by role \"{}\", is not trusted", role.name);
        assert!(run.stderr.contains(&said), "{command}: {}", run.stderr);
    }
    assert_eq!(case.value("select count(*) from spy.seen"), "0");
    let run = run_as(case, &case.db.dsn(), "load t.csv --table t --no-ledger");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from spy.seen"), "0");
    case.db.run("delete from t");
}

#[test]
fn a_view_in_place_of_a_ledger_table_is_refused() {
    let case = case();
    let role = mallory(&case);
    role.sql(
        "create schema pgspate; create view pgspate.version as select spy.look() as version; \
         grant usage on schema pgspate to public; grant select on pgspate.version to public",
    );
    assert_ledger_refused(&case, &role, "schema \"pgspate\"");
    // The view is refused in a schema of the current role, too.
    case.db.run("alter schema pgspate owner to postgres");
    assert_ledger_refused(&case, &role, "view pgspate.version");
}

#[test]
fn a_ledger_that_another_role_created_is_refused() {
    let case = case();
    let role = mallory(&case);
    role.grant("all on t");
    let run = role.run("load t.csv --table t");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    case.db.run("delete from t");
    role.sql(
        "create trigger spy before insert on pgspate.job for each row execute function spy.fire(); \
         delete from spy.seen",
    );
    assert_ledger_refused(&case, &role, "schema \"pgspate\"");
    // The owner of the ledger can use it.
    assert_eq!(run_as(&case, &role.dsn(), "status").status, Some(0));
    // A superuser who takes the owner's role can use it, too.
    let as_owner = format!("{} options='-crole={}'", case.db.dsn(), role.name);
    assert_eq!(run_as(&case, &as_owner, "status").status, Some(0));
}

#[test]
fn a_foreign_trigger_on_the_current_roles_ledger_is_refused() {
    let case = case();
    let role = mallory(&case);
    case.load("t.csv --table t --quiet").success();
    case.db.run("delete from t");
    role.grant("usage on schema pgspate");
    role.grant("trigger on pgspate.job");
    role.sql(
        "create trigger spy before update on pgspate.job for each row execute function spy.fire()",
    );
    for command in &COMMANDS[..5] {
        let run = run_as(&case, &case.db.dsn(), command);
        assert_eq!(run.status, Some(2), "{command}: {}", run.stdout);
        assert!(run.stderr.contains("trigger spy of pgspate.job"), "{command}: {}", run.stderr);
    }
    // A trigger with a trusted function and an untrusted condition is refused, too.
    case.db.run("drop trigger spy on pgspate.job");
    role.sql(
        "create trigger spy before update on pgspate.job for each row when (spy.look() = 1) \
         execute function suppress_redundant_updates_trigger()",
    );
    let run = run_as(&case, &case.db.dsn(), "status");
    assert!(run.stderr.contains("trigger spy of pgspate.job"), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from spy.seen"), "0");
}

/// A former owner of the ledger left code in it that statements would run.
#[test]
fn code_left_by_a_former_owner_is_refused() {
    let case = case();
    let role = mallory(&case);
    role.grant("all on t");
    role.sql(
        "create function spy.make() returns text language sql as 'select spy.look()::text'; \
         create function spy.holds() returns boolean language sql as 'select spy.look() > 0'",
    );
    assert_eq!(role.run("load t.csv --table t").status, Some(0));
    let to_superuser = format!("reassign owned by \"{}\" to postgres", role.name);
    case.db.run(&to_superuser);
    case.db.run(&format!("alter schema spy owner to \"{}\"", role.name));
    case.db.run("delete from spy.seen");
    assert_eq!(run_as(&case, &case.db.dsn(), "status").status, Some(0));
    for (left, back, name) in [
        (
            "alter table pgspate.job alter key set default spy.make()",
            "alter table pgspate.job alter key drop default",
            "default value for column key of table pgspate.job",
        ),
        (
            "alter table pgspate.job add constraint held check (spy.holds()) not valid",
            "alter table pgspate.job drop constraint held",
            "constraint held on table pgspate.job",
        ),
        (
            "create policy left_over on pgspate.job using (spy.holds())",
            "drop policy left_over on pgspate.job",
            "policy left_over on table pgspate.job",
        ),
        (
            "create trigger left_over before update on pgspate.job for each row \
             execute function spy.fire('select 1')",
            "drop trigger left_over on pgspate.job",
            "trigger left_over of pgspate.job",
        ),
    ] {
        case.db.run(left);
        let run = run_as(&case, &case.db.dsn(), "status");
        assert_eq!(run.status, Some(2), "{left}: {}", run.stdout);
        assert!(run.stderr.contains(name), "{left}: {}", run.stderr);
        assert_eq!(case.value("select count(*) from spy.seen"), "0");
        case.db.run(back);
    }
    assert_eq!(run_as(&case, &case.db.dsn(), "status").status, Some(0));
}

/// Its code never runs for the ledger.
#[test]
fn an_object_elsewhere_that_refers_to_the_ledger_does_not_matter() {
    let case = case();
    let role = mallory(&case);
    assert_eq!(run_as(&case, &case.db.dsn(), "load t.csv --table t").status, Some(0));
    let oid = case.value("select 'pgspate.job'::regclass::oid");
    role.sql(&format!(
        "create table spy.m (a bigint default (('{oid}'::regclass)::oid::bigint + spy.look()))"
    ));
    let depends = format!(
        "select count(*) > 0 from pg_depend where refobjid = {oid} and deptype = 'n' \
         and classid = 'pg_attrdef'::regclass"
    );
    assert_eq!(case.value(&depends), "t");
    case.put("u.csv", "id,n\n2,1\n");
    let run = run_as(&case, &case.db.dsn(), "load u.csv --table t");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from spy.seen"), "0");
}

/// Other members of the group could make this member run code.
#[test]
fn a_ledger_of_a_group_is_not_trusted() {
    let case = case();
    let (group, member) = (TrustRole::new(&case, "group"), TrustRole::new(&case, "member"));
    case.db.run(&format!("grant \"{}\" to \"{}\"", group.name, member.name));
    group.grant(&format!("create on database \"{}\"", case.db.name()));
    group.grant("all on t");
    assert_eq!(group.run("load t.csv --table t").status, Some(0));
    let run = member.run("status");
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("is not trusted"), "{}", run.stderr);
    // An owner that is a member of the running role is trusted: it can already act as that role.
    case.db.run(&format!(
        "revoke \"{0}\" from \"{1}\"; grant \"{1}\" to \"{0}\"",
        group.name, member.name
    ));
    for grant in crate::roles::GRANTS.into_iter().chain(["all on t"]) {
        member.grant(grant);
    }
    let run = member.run("status");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let run = member.run("load t.csv --table t");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), "1");
}
