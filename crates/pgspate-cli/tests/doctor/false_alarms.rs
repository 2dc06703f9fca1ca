//! Statements that must work on the table as it is, and harmless objects that are not reported.

use pgspate_embedded::testing;

use crate::table_checks::check_remedy;
use crate::{expect_no_finding, remedy};

/// A unique index of a constraint, or with an unusual order, cannot become a primary key.
#[test]
fn a_unique_index_that_cannot_become_the_key_gets_a_new_index() {
    let rows = "insert into t select g, g::text from generate_series(1, 2000) g";
    for unique in [
        "alter table t add constraint t_unique unique (v, id)",
        "create unique index t_unique on t (v desc, id)",
        "create unique index t_unique on t (v text_pattern_ops, id)",
        "create unique index t_unique on t (v collate \"C\", id)",
    ] {
        let bad = format!("create table t (id int not null, v text not null); {rows}; {unique}");
        let (_, finding) = check_remedy(&bad, "primary-keys", "");
        assert_eq!(
            remedy(&finding),
            [
                "create unique index concurrently t_pkey on public.t (v, id);",
                "alter table public.t add primary key using index t_pkey;",
            ]
        );
    }
}

#[test]
fn the_guard_of_a_hypertable_makes_no_copy_slow() {
    let db = testing::database();
    db.run(
        "create function insert_blocker() returns trigger language plpgsql \
             as 'begin return new; end'; \
         create table t (id int primary key); \
         create trigger ts_insert_blocker before insert on t \
             for each row execute function insert_blocker()",
    );
    let found = crate::wait_for_finding(&db.dsn(), "row-by-row", "");
    assert!(found["evidence"].as_str().unwrap().contains("ts_insert_blocker"), "{found}");
    db.run(
        "set allow_system_table_mods = on; \
         insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, \
                                   extversion) \
         values (99999, 'timescaledb', 10, 'public'::regnamespace, false, '2.22'); \
         insert into pg_depend values ('pg_proc'::regclass, 'insert_blocker'::regproc, 0, \
                                       'pg_extension'::regclass, 99999, 0, 'e')",
    );
    expect_no_finding(&db.dsn(), "row-by-row", "");
    let folder = tempfile::TempDir::with_prefix("pgspate-cli-").unwrap();
    std::fs::write(folder.path().join("t.csv"), "id\n1\n2\n").unwrap();
    let args = ["load", "--to", &db.dsn(), "t.csv", "--table", "t", "--plan"];
    let run = crate::run::Run::of(crate::command(folder.path(), &args).output().unwrap());
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(!run.stdout.contains("ts_insert_blocker"), "{}", run.stdout);
}
