//! Keys that a load drops, where its rows cannot be removed again without effects elsewhere, and
//! where other roles or loads are involved.

use insta::assert_snapshot;

use crate::dropped_keys::{SELECT_DEFINITIONS, new_case, run_restore, start_and_kill_load};
use crate::support::{LoadCase, Run};

/// A table whose key refuses the third row, and a table that a trigger or a publication fills.
const CREATE_TABLES: &str = "\
create table far (a int primary key); insert into far values (1);
create table t (id int, a int constraint t_far references far); create table audit (id int);
create function note() returns trigger language plpgsql as
    'begin insert into public.audit values (new.id); return null; end'";

/// Without its rows, the effects of the first copy would stay, or be doubled by a second copy.
#[test]
fn rows_whose_triggers_have_acted_are_not_removed() {
    let trigger = "create trigger note after insert on t for each row execute function note()";
    for effect in [trigger, "create publication p for table t"] {
        let case = LoadCase::new(&format!("{CREATE_TABLES}; {effect}"));
        case.put("t.csv", "id,a\n1,1\n2,1\n3,2\n");
        let said = case.load("t.csv --rebuild-indexes always --quiet").refusal();
        assert!(said.contains("Every row is in the table"), "{effect}: {said}");
        let count = |table: &str| case.value(&format!("select count(*) from {table}"));
        assert_eq!(count("t"), "3", "{effect}");
        assert_eq!(count("audit"), if effect == trigger { "3" } else { "0" });
        case.db.run("insert into far values (2)");
        run_restore(&case).success();
        case.load("t.csv --quiet").success();
        assert_eq!(count("t"), "3", "{effect}");
    }
}

/// Nine megabytes, so that keys are dropped without being asked for.
#[test]
fn keys_stay_if_rows_could_not_be_removed_again() {
    let case = LoadCase::new(CREATE_TABLES);
    case.put("t.csv", "id,a\n".to_owned() + &"1,1\n".repeat(2_300_000));
    let plan = || {
        let run = case.load("t.csv --plan");
        let lines = run.stdout.lines().skip_while(|line| !line.starts_with("indexes"));
        lines.take(2).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(plan(), @"
    indexes  dropped for the load, and created again after it: the table is empty
             t_far  foreign key, dropped
    ");
    for (create, drop) in [
        ("publication p for table t", "publication p"),
        ("trigger note after insert on t execute function note()", "trigger note on t"),
    ] {
        case.db.run(&format!("create {create}"));
        assert!(plan().contains("could not be deleted again"), "{create}: {}", plan());
        case.db.run(&format!("drop {drop}"));
    }
}

/// The dropped foreign key could not be created again.
#[test]
fn a_table_that_a_dropped_foreign_key_refers_to_is_not_swapped() {
    let (case, shape) = new_case();
    start_and_kill_load(&case);
    case.put("far.csv", "a\n0\n1\n2\n3\n4\n5\n6\n");
    let said = case.load("far.csv --table far --replace=swap --quiet").refusal();
    assert!(said.contains("another load has not put back"), "{said}");
    run_restore(&case).success();
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

/// The ledger's row could not be changed, so the keys would be missing for all other commands.
#[test]
fn a_role_does_not_put_back_what_it_could_not_note() {
    let (case, shape) = new_case();
    start_and_kill_load(&case);
    let database = case.db.name();
    let role = format!("owner_of_{database}");
    case.db.run(&format!(
        "create role {role}; alter table t owner to {role}; grant all on schema public to {role}; \
         grant usage on schema pgspate to {role}; \
         grant all on all tables in schema pgspate to {role}; \
         grant all on all sequences in schema pgspate to {role}"
    ));
    let mut status = case.command(&["status", "--restore", "--to", &case.db.dsn()]);
    let by_owner = Run::of(status.env("PGOPTIONS", format!("-c role={role}")).output().unwrap());
    case.db.run(&format!("reassign owned by {role} to postgres; drop owned by {role}"));
    case.db.run(&format!("drop role {role}"));
    assert_eq!(by_owner.status, Some(2), "{}", by_owner.stderr);
    assert!(by_owner.stderr.contains("is no member of it"), "{}", by_owner.stderr);
    run_restore(&case).success();
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

/// A failover to a standby may lose the commit by which the index was put back.
#[test]
fn an_index_that_is_lost_again_is_put_back_before_the_job_is_finished() {
    let (case, shape) = new_case();
    case.put("far.csv", "a\n7\n");
    case.load("far.csv --table far --quiet").success();
    case.db.run(
        "create function lose() returns trigger language plpgsql as $$ begin \
             if new.finished is null or to_regclass('public.lost') is not null then \
                 return new; \
             end if; \
             update pgspate.change set done = 0 where object = 't_a'; \
             drop index public.t_a; \
             create table public.lost (); \
             return null; \
         end $$; \
         create trigger lose before update on pgspate.job for each row execute function lose()",
    );
    case.load("t.csv --rebuild-indexes always --quiet").success();
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
    assert_eq!(case.value("select to_regclass('public.lost')"), "lost", "nothing was lost");
    assert_eq!(case.value("select count(*) from t"), "1000");
}
