//! The exchange of a shadow table under roles, settings and keys that are not the usual ones.

use pgspate_embedded::testing;

use crate::replace_by_shadow::{DatabaseOwner, ROWS, csv_text, summarize_table};
use crate::support::{LoadCase, Run, ask, session};
use crate::table_properties::dump_schema;

#[test]
fn an_atomic_load_waits_for_transactions_of_roles_whose_sessions_it_may_not_see() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
    let owner = DatabaseOwner::new(
        &case,
        "grant create on schema public to :owner; alter table t owner to :owner; \
         do $$ begin execute format('grant create on database %I to :owner', \
                                    current_database()); end $$",
    );
    let (runtime, reader) = session(&case.db.dsn());
    let begin = "begin isolation level repeatable read; select 1";
    runtime.block_on(reader.batch_execute(begin)).unwrap();
    let args = "t.csv --table t --replace --atomic --lock-timeout 1 --quiet";
    let refused = owner.load(&case, args).refusal();
    assert!(refused.contains("began before all rows were"), "{refused}");
    let row = runtime.block_on(reader.query_one("select count(*) from t", &[])).unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    runtime.block_on(reader.batch_execute("commit")).unwrap();
    owner.load(&case, args).success();
    assert_eq!(summarize_table(&case), format!("{ROWS} from 7"));
    owner.forget(&case);
}

#[test]
fn connections_of_other_roles_are_not_free() {
    let server = testing::server("max_connections = 12\nsuperuser_reserved_connections = 3");
    ask(
        &server.dsn(),
        "create role plain login; create table t (id int, note text); \
                        grant all on t to plain",
    );
    let case = LoadCase::new("");
    case.put("t.csv", csv_text(7));
    let plan = || {
        let dsn = format!("{} user=plain", server.dsn());
        let mut command = case.command(&["load", "--to", &dsn, "t.csv", "--table", "t", "--plan"]);
        let run = Run::of(command.output().unwrap());
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        run.stdout
    };
    assert!(!plan().contains("lanes    1: "), "{}", plan());
    let _sessions: Vec<_> = (0..5).map(|_| session(&server.dsn())).collect();
    assert!(plan().contains("lanes    1: "), "{}", plan());
}

#[test]
fn the_settings_of_the_role_do_not_change_the_copy() {
    let case = LoadCase::new(
        "create table t (id int, note text, f float8, at timestamp); \
         insert into t values (1, 'old', 1, now()); \
         create index t_f on t (id) where f > float8 '0.30000000000000004'; \
         create index t_note on t (id) where note <> E'a\\\\b'; \
         create index t_at on t (id) where at > timestamp '2020-01-02'; \
         create statistics t_stats on id, note from t; \
         create policy few on t using (f < float8 '0.30000000000000004')",
    );
    let before = dump_schema(&case);
    case.put("t.csv", "id,note\n7,new\n");
    for options in [
        "-c extra_float_digits=0",
        "-c quote_all_identifiers=on",
        "-c standard_conforming_strings=off -c datestyle=SQL,DMY",
    ] {
        let mut command = case.load_command("t.csv --table t --replace=swap --quiet");
        let run = Run::of(command.env("PGOPTIONS", options).output().unwrap());
        assert_eq!(run.status, Some(0), "{options}: {}", run.stderr);
        assert_eq!(dump_schema(&case), before, "{options}");
    }
}

#[test]
fn a_table_with_a_key_to_a_partitioned_table_is_exchanged() {
    let case = LoadCase::new(
        "create table far (a int primary key) partition by range (a); \
         create table far1 partition of far for values from (0) to (9); \
         create table far2 partition of far for values from (9) to (99); \
         insert into far values (7); \
         create table t (id int constraint t_key references far, note text)",
    );
    let before = dump_schema(&case);
    case.put("t.csv", "id,note\n7,new\n");
    case.load("t.csv --table t --replace=swap --quiet").success();
    assert_eq!(dump_schema(&case), before);
    assert_eq!(case.rows("t"), ["(7,new)"]);
}
