//! A search path that begins with a hostile schema. The schema has objects with the names of
//! PostgreSQL's own objects. No command uses these objects, and the user's triggers still run under
//! the user's search path.

use crate::poolers::run;
use crate::support::LoadCase;

const CREATE_HOSTILE_OBJECTS: &str = include_str!("hostile.sql");

/// Tables in a schema of the search path, with indexes, constraints, partitions and triggers.
const CREATE_TABLES: &str = "\
create schema app;
create schema ext;
create extension citext schema ext;
create table app.k (id ext.citext primary key, n int);
create table app.seen (source text, id int);
create function app.see() returns trigger language plpgsql as
    $$begin insert into seen values (tg_table_name, new.id); return null; end$$;
create table app.t (id int primary key, n int, note text unique, at date default current_date,
                    made text default concat('x', 1));
create index t_n on app.t (n) where n > 0;
create trigger see after insert on app.t for each row execute function app.see();
create table app.s (kind int not null, id int not null, name text, n int, primary key (kind, id));
insert into app.s values (1, 1, 'Ada', 1), (1, 5, null, 3);
create constraint trigger see after insert or update on app.s
    deferrable initially deferred for each row execute function app.see();
create table app.p (id int not null, n int) partition by range (id);
create table app.p1 partition of app.p for values from (0) to (5);
create table app.p2 partition of app.p for values from (5) to (100);
create table app.n (id int primary key, n int, note text);
create table app.c (id int primary key, t int references app.t);
create unlogged table app.u (id int, n int)";

/// A database with the hostile schema, and a connection string with the search path.
struct HostileSchema {
    case: LoadCase,
    dsn: String,
}

impl HostileSchema {
    fn new(path: &str) -> HostileSchema {
        let case = LoadCase::new(CREATE_TABLES);
        case.db.run(CREATE_HOSTILE_OBJECTS);
        let dsn = case.db.dsn();
        HostileSchema { dsn: format!("{dsn} options='-csearch_path={path}'"), case }
    }

    /// Runs a command that must end with status 0 or 1. Its output must not name a hostile object.
    fn run(&self, command: &str) {
        let run = run(&self.case, &self.dsn, command);
        assert!(matches!(run.status, Some(0 | 1)), "{command}:\n{}{}", run.stdout, run.stderr);
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(!said.contains("hostile "), "{command}:\n{said}");
    }

    fn value(&self, sql: &str) -> String {
        self.case.value(sql)
    }
}

// There is one test for each search path, because creating the schema takes seconds.
#[test]
fn no_command_uses_hostile_objects_with_postgresqls_names() {
    let hostile = HostileSchema::new("hostile,app,pg_catalog");
    check_hostile_objects_are_found(&hostile);
    run_all_commands(&hostile);
}

/// The server searches `pg_catalog` first, but prefers a hostile operator or function whose
/// argument types fit exactly. PostgreSQL's own operator needs a cast, or accepts any type.
#[test]
fn no_command_uses_hostile_functions_that_fit_better_than_postgresqls() {
    let hostile = HostileSchema::new("hostile,app");
    for sql in ["select cardinality('{a}'::text[])", "select get_bit('a'::bytea, 1::int)"] {
        assert!(crate::run::try_ask(&hostile.dsn, sql).is_err(), "{sql}");
    }
    run_all_commands(&hostile);
}

/// Runs all commands.
fn run_all_commands(hostile: &HostileSchema) {
    apply(hostile);
    load(hostile);
    sync(hostile);
}

/// Checks that unqualified names in the search path lead to hostile objects.
fn check_hostile_objects_are_found(hostile: &HostileSchema) {
    for sql in [
        "select count(*) from pg_catalog.generate_series(1, 1)",
        "select 1 = 1",
        "select 1::int2 = 1::int4",
        "select 'a'::text",
        "select oid from pg_class",
        "select now()",
    ] {
        assert!(crate::run::try_ask(&hostile.dsn, sql).is_err(), "{sql}");
    }
}

fn load(hostile: &HostileSchema) {
    hostile.case.put("t.csv", "id,n,note\n1,1,a\n2,2,b\n3,,c\n");
    hostile.case.put("bad.csv", "id,n,note\n11,1,k\n12,x,l\n13,,m\n11,1,n\n");
    hostile.case.put("t2.csv", "id,n,note\n4,1,A\n");
    hostile.case.put("c.csv", "id,t\n1,1\n2,2\n");
    hostile.case.put("p.csv", "id,n\n1,1\n7,2\n");
    hostile.case.put("w.csv", "id,v\n1,1\n7,2\n");
    for command in [
        "load t.csv --table t",
        "load t.csv --table t",
        "load t2.csv --table t --commit chunk --lanes 2 --rebuild-indexes always",
        "load bad.csv --table n --rejects bad.txt",
        "load c.csv --table c --atomic",
        "load c.csv --table c --replace",
        "load c.csv --table c --replace=swap --restart",
        "load p.csv --table p --lanes 2",
        "load p.csv --table u",
        "load w.csv --table app.w --create",
        "load p.csv --table p --no-ledger",
        "load p.csv --table p --plan",
        "status",
        "status --json",
        "status --restore",
        "doctor",
        "doctor --table t",
        "doctor --table p",
        "tune",
    ] {
        hostile.run(command);
    }
    let of_files = "id < 1000";
    assert_eq!(hostile.value(&format!("select count(*) from app.t where {of_files}")), "4");
    assert_eq!(hostile.value(&format!("select count(*) from app.seen where {of_files}")), "4");
    assert_eq!(hostile.value("select count(*) from app.w"), "2");
}

fn sync(hostile: &HostileSchema) {
    for (nth, way) in [
        "--scope all --read-ahead never",
        "--scope all --read-ahead always",
        "--scope-by kind --lanes 2",
        "--scope-by kind --transactions 2 --vacuum",
        "--scope kind<9 --keep last",
        "--no-delete",
        "--check --scope all",
        "--advise-only --scope all",
    ]
    .into_iter()
    .enumerate()
    {
        let rows = format!("kind,id,name,n\n1,1,ada,{nth}\n2,2,Bob,2\n{},9,,\n", nth + 3);
        hostile.case.put("s.csv", rows);
        hostile.run(&format!("sync s.csv --table s --key kind,id --max-delete 100 {way}"));
    }
    assert_eq!(hostile.value("select count(*) from app.s where name is not null"), "2");
    assert_ne!(hostile.value("select count(*) from app.seen"), "0");
}

/// Returns events about 60 rows of each table. 30 of the events are bad.
fn events(first: u32) -> String {
    let mut events = String::new();
    let mut event = |op: &str, table: &str, row: &str| {
        events += &format!("{{\"op\":\"{op}\",\"table\":\"app.{table}\",\"row\":{{{row}}}}}\n");
    };
    for id in first..first + 60 {
        event("insert", "t", &format!("\"id\":{id},\"n\":{id},\"note\":\"n{id}\""));
        event("insert", "c", &format!("\"id\":{id},\"t\":{id}"));
        event("insert", "u", &format!("\"id\":{id},\"n\":1"));
        event("insert", "k", &format!("\"id\":\"K{id}\",\"n\":1"));
    }
    for id in first..first + 30 {
        event("update", "t", &format!("\"id\":{id},\"n\":0"));
        event("delete", "c", &format!("\"id\":{id}"));
        event("update", "t", &format!("\"id\":{id},\"n\":\"x\""));
        // For the operators of citext this is the same key, but they are not in the search path.
        event("update", "k", &format!("\"id\":\"k{id}\",\"n\":2"));
    }
    events
}

fn apply(hostile: &HostileSchema) {
    hostile.case.put("small.ndjson", events(1001));
    hostile.case.put("staged.ndjson", events(2001));
    for command in [
        "apply small.ndjson --max-dead-letters 30",
        "apply staged.ndjson --max-dead-letters 30 --direct-rows 0 --batch-rows 50",
        "apply staged.ndjson --max-dead-letters 30 --plan",
        "status",
    ] {
        hostile.run(command);
    }
    assert_eq!(hostile.value("select count(*) from app.t where n = 0"), "60");
    assert_eq!(hostile.value("select count(*) from app.k where n = 2"), "60");
    assert_eq!(hostile.value("select count(*) from app.k"), "120");
    assert_eq!(hostile.value("select count(*) from app.c"), "60");
}
