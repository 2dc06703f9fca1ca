//! Relations of other roles beside the current role's table. pgspate never runs code of their
//! owners as the current role.

use crate::support::LoadCase;
use crate::{TrustRole, run_as};

const SWAP_EVENTS: &str = "{\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":1,\"n\":2}}\n\
                    {\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":2,\"n\":1}}\n";
const DELETE_EVENT: &str = "{\"op\":\"delete\",\"table\":\"t\",\"key\":{\"id\":3}}\n";
const MOVE_EVENT: &str =
    "{\"op\":\"update\",\"table\":\"t\",\"key\":{\"id\":4},\"row\":{\"id\":5}}\n";

/// Returns a case with a table, and files that change it.
fn case() -> LoadCase {
    let case = LoadCase::new(
        "create table t (id int primary key, n int unique); \
         insert into t values (1, 1), (2, 2), (3, 3), (4, 4)",
    );
    case.put("t.csv", "id,n\n1,2\n2,1\n4,4\n");
    case.put("swap.ndjson", SWAP_EVENTS);
    case.put("delete.ndjson", DELETE_EVENT);
    case.put("move.ndjson", MOVE_EVENT);
    case
}

/// Creates a role that may create schemas and has a spy function. If a superuser runs the function,
/// it increments a sequence, which no rollback undoes.
fn mallory(case: &LoadCase) -> TrustRole<'_> {
    let role = TrustRole::new(case, "mallory");
    role.grant(&format!("create on database \"{}\"", case.db.name()));
    role.grant("create on schema public");
    role.sql(
        "create schema spy; grant usage on schema spy to public; \
         create sequence spy.runs; grant usage on sequence spy.runs to public; \
         create function spy.look() returns int language plpgsql immutable as \
         $$begin if (select rolsuper from pg_roles where rolname = current_user) \
                 then perform nextval('spy.runs'); end if; return 1; end$$",
    );
    role
}

/// Returns whether a superuser ran the function.
fn spy_was_run(case: &LoadCase) -> bool {
    case.value("select is_called from spy.runs") == "t"
}

/// Returns the rows of the table in one line.
fn rows(case: &LoadCase) -> String {
    case.rows("t").join(" ")
}

/// SQL that creates a forged TimescaleDB catalog, in which `t` is a hypertable.
const CREATE_CATALOG: &str = "\
create schema _timescaledb_catalog;
create RELATION _timescaledb_catalog.hypertable as
    select 'public'::name as schema_name, 't'::name as table_name where spy.look() = 1;
grant usage on schema _timescaledb_catalog to public;
grant select on _timescaledb_catalog.hypertable to public";

#[test]
fn a_forged_extension_catalog_is_not_read() {
    let case = case();
    let role = mallory(&case);
    role.sql(&CREATE_CATALOG.replace("RELATION", "view"));
    for command in [
        "apply swap.ndjson",
        "sync t.csv --table t --scope all",
        "load t.csv --table t --replace",
        "load t.csv --table t --replace=truncate --restart",
    ] {
        let run = run_as(&case, &case.db.dsn(), command);
        assert_eq!(run.status, Some(0), "{command}: {}", run.stderr);
        assert!(!spy_was_run(&case), "{command}");
    }
    assert_eq!(case.value("select count(*) from _timescaledb_catalog.hypertable"), "1");
    assert!(spy_was_run(&case));
}

#[test]
fn only_a_catalog_table_of_the_extension_is_trusted() {
    let case = case();
    case.db.run("create table chunk () inherits (t); insert into chunk values (7, 7)");
    let role = mallory(&case);
    role.sql(&CREATE_CATALOG.replace("RELATION", "table"));
    let refusal = || {
        let run = run_as(&case, &case.db.dsn(), "load t.csv --table t --replace");
        (run.status == Some(2)).then_some(run.stderr)
    };
    let is_refused = |why: &str| {
        let refusal =
            refusal().unwrap_or_else(|| panic!("{why}: pgspate trusted the forged catalog"));
        assert!(refusal.contains("other tables inherit from public.t"), "{why}: {refusal}");
    };
    is_refused("a schema alone");
    case.db.run("alter table _timescaledb_catalog.hypertable owner to postgres");
    is_refused("a table of no extension");
    case.db.run(
        "set allow_system_table_mods = on; \
         insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, \
                                   extversion) \
         values (99999, 'timescaledb', 10, 'public'::regnamespace, false, '2'); \
         insert into pg_depend values ('pg_class'::regclass, \
             '_timescaledb_catalog.hypertable'::regclass, 0, \
             'pg_extension'::regclass, 99999, 0, 'e')",
    );
    assert_eq!(refusal(), None);
    assert_eq!(rows(&case), "(1,2) (2,1) (4,4)");
    let owner = format!("update pg_class set relowner = '{}'::regrole ", role.name);
    case.db.run(&format!("{owner} where oid = '_timescaledb_catalog.hypertable'::regclass"));
    is_refused("a table of another owner");
}

/// An index of the child calls the function whenever a query that reads the child is planned.
const CREATE_SPY_INDEX: &str = "create index on CHILD (id) where spy.look() = 1; \
                     grant select on CHILD to public";

/// Checks that no command reads the child. pgspate then assumes that the child refers to every row
/// of `t`.
#[track_caller]
fn assert_child_not_read(case: &LoadCase, child: &str) {
    let duplicate = "duplicate key value violates unique constraint";
    for (command, refusal) in [
        ("sync t.csv --table t --scope all", Some("a foreign key refers to")),
        ("apply swap.ndjson", Some(duplicate)),
        ("apply delete.ndjson", None),
        ("apply move.ndjson", None),
    ] {
        let run = run_as(case, &case.db.dsn(), command);
        assert!(!spy_was_run(case), "{child}: {command}");
        match refusal {
            None => assert_eq!(run.status, Some(0), "{child}: {command}: {}", run.stderr),
            Some(refusal) => {
                assert_eq!(run.status, Some(2), "{child}: {command}: {}", run.stdout);
                assert!(run.stderr.contains(refusal), "{child}: {command}: {}", run.stderr);
            }
        }
    }
    assert_eq!(rows(case), "(1,1) (2,2) (5,4)");
    case.value(&format!("select count(*) from {child} where id = 7"));
    assert!(spy_was_run(case), "{child}: the spy must see a read of the child");
}

#[test]
fn a_referring_table_of_another_role_is_not_read() {
    let case = case();
    let role = mallory(&case);
    role.grant("references on t");
    role.sql("create table spy.child (id int references public.t on delete cascade)");
    role.sql(&CREATE_SPY_INDEX.replace("CHILD", "spy.child"));
    assert_child_not_read(&case, "spy.child");
}

#[test]
fn a_referring_partition_of_another_role_is_not_read() {
    for child in [
        "create table child (id int references t on delete cascade) partition by list (id); \
         create table part partition of child default",
        "create table child (id int references t on delete cascade); \
         create table part () inherits (child)",
    ] {
        let case = case();
        let (owner, role) = (TrustRole::new(&case, "owner"), mallory(&case));
        case.db.run(&format!(
            "{child}; alter table t owner to \"{0}\"; alter table child owner to \"{0}\"; \
             alter table part owner to \"{1}\"",
            owner.name, role.name
        ));
        role.sql(&CREATE_SPY_INDEX.replace("CHILD", "part"));
        assert_child_not_read(&case, "child");
    }
}

/// A role that may act for the owner of a table can add triggers, which every writer runs.
#[test]
fn a_referring_table_of_the_same_owner_is_read() {
    let case = case();
    let (owner, writer) = (TrustRole::new(&case, "owner"), TrustRole::new(&case, "writer"));
    case.db.run(&format!(
        "create table child (id int references t on delete cascade); \
         insert into child values (4); \
         alter table t owner to \"{0}\"; alter table child owner to \"{0}\"",
        owner.name
    ));
    writer.grant("select, insert, update, delete on t, child");
    let run = writer.run("sync t.csv --table t --scope all");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(rows(&case), "(1,2) (2,1) (4,4)");
    assert_eq!(case.value("select count(*) from child"), "1");
}

/// A delete of a row would cascade to rows that a policy hides.
#[test]
fn a_referring_table_whose_policy_hides_rows_is_not_trusted() {
    let case = case();
    let writer = TrustRole::new(&case, "writer");
    case.db.run(
        "create table child (id int references t on delete cascade); \
         insert into child values (1), (2); alter table child enable row level security; \
         create policy none on child using (false)",
    );
    writer.grant("select, insert, update, delete on t, child");
    let run = writer.run("sync t.csv --table t --scope all");
    assert_eq!(case.value("select count(*) from child"), "2");
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("a foreign key refers to"), "{}", run.stderr);
}

#[test]
fn a_replace_that_would_add_a_foreign_key_of_another_role_is_refused() {
    let case = case();
    let role = mallory(&case);
    role.grant("references on t");
    role.sql("create table spy.child (id int constraint up references public.t)");
    role.sql(&CREATE_SPY_INDEX.replace("CHILD", "spy.child"));
    for replace in ["--replace", "--replace=truncate"] {
        let run = run_as(&case, &case.db.dsn(), &format!("load t.csv --table t {replace}"));
        assert!(!spy_was_run(&case), "{replace}");
        assert_eq!(run.status, Some(2), "{replace}: {}", run.stdout);
        let owner = format!("role \"{}\"", role.name);
        for said in ["foreign key up of spy.child", &owner, "drop constraint up"] {
            assert!(run.stderr.contains(said), "{replace}: {}", run.stderr);
        }
        assert_eq!(case.value("select count(*) from t"), "4");
    }
    // A superuser is trusted, because a superuser could run any code anyway.
    case.db.run("alter table spy.child owner to postgres");
    let run = run_as(&case, &case.db.dsn(), "load t.csv --table t --replace");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(rows(&case), "(1,2) (2,1) (4,4)");
    let key = "select convalidated from pg_constraint where conname = 'up'";
    assert_eq!(case.value(key), "t");
}

/// When a role adds a foreign key, the server reads the referenced table as this role.
#[test]
fn a_foreign_key_to_a_table_of_another_role_is_not_dropped() {
    let case = case();
    let role = mallory(&case);
    role.sql(
        "create table spy.parent (id int primary key); insert into spy.parent values (1); \
         create index on spy.parent (id) where spy.look() = 1",
    );
    case.db.run("create table u (id int constraint up references spy.parent)");
    case.put("u.csv", "id\n1\n");
    let load = "load u.csv --table u --rebuild-indexes always";
    let run = run_as(&case, &case.db.dsn(), load);
    assert!(!spy_was_run(&case));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let plan = run_as(&case, &case.db.dsn(), &format!("{load} --restart --plan"));
    let reason = format!("functions of role {}, which owns spy.parent", role.name);
    assert!(plan.stdout.contains(&reason), "{}", plan.stdout);
    case.db.run("alter table spy.parent owner to postgres");
    let plan = run_as(&case, &case.db.dsn(), &format!("{load} --restart --plan"));
    assert!(!plan.stdout.contains("which owns"), "{}", plan.stdout);
}
