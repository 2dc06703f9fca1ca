//! Target tables that are altered while a stream runs.

use std::io::Write as _;
use std::process::{Child, ChildStdin};

use crate::run::{Run, finish, spawn, wait_until};
use crate::support::LoadCase;
use crate::{command, rows};

/// A stream that reads events from a pipe.
pub(crate) struct PipedStream<'a> {
    case: &'a LoadCase,
    child: Child,
    pipe: ChildStdin,
}

impl PipedStream<'_> {
    pub(crate) fn new<'a>(case: &'a LoadCase, args: &str) -> PipedStream<'a> {
        let mut child = spawn(&mut command(case, &format!("- --quiet {args}")));
        let pipe = child.stdin.take().unwrap();
        PipedStream { case, child, pipe }
    }

    /// Sends an event of table t, and waits until the query returns the value.
    pub(crate) fn send(&mut self, event: &str, query: &str, value: &str) {
        self.write(event);
        wait_until("the event is applied", || self.case.value(query) == value);
    }

    pub(crate) fn write(&mut self, event: &str) {
        let event = event.replacen('{', "{\"table\":\"t\",", 1);
        writeln!(self.pipe, "{event}").unwrap();
    }

    pub(crate) fn end(self) -> Run {
        drop(self.pipe);
        finish(self.child)
    }
}

pub(crate) const COUNT: &str = "select count(*) from t";

/// A changed key keeps the values of a column that the target got while the stream ran.
#[test]
fn values_of_a_later_column_are_kept() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new("create table t (id int primary key)");
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1}}"#, COUNT, "1");
        case.db.run("alter table t add note text; update t set note = 'kept'");
        stream.send(
            r#"{"op":"update","key":{"id":1},"row":{"id":10}}"#,
            "select max(note) from t where id = 10",
            "kept",
        );
        stream.send(r#"{"op":"insert","row":{"id":2,"note":"new"}}"#, COUNT, "2");
        stream.end().success();
        assert_eq!(rows(&case, "t"), "(10,kept) (2,new)", "{args}");
    }
}

/// A column that the target lacked is no longer ignored when the target has it.
#[test]
fn an_ignored_column_is_stored_once_it_exists() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new("create table t (id int primary key, c text)");
        let mut stream = PipedStream::new(&case, &format!("{args} --unknown-columns ignore"));
        stream.send(r#"{"op":"insert","row":{"id":1,"c":"c1","d":"d1"}}"#, COUNT, "1");
        case.db.run("alter table t add d text");
        stream.send(r#"{"op":"insert","row":{"id":2,"c":"c2","d":"d2"}}"#, COUNT, "2");
        assert_eq!(rows(&case, "t"), "(1,c1,) (2,c2,d2)", "{args}");
        case.db.run("alter table t drop d");
        stream.send(r#"{"op":"insert","row":{"id":3,"c":"c3"}}"#, COUNT, "3");
        stream.send(r#"{"op":"insert","row":{"id":4,"c":"c4","d":"d4"}}"#, COUNT, "4");
        // Another column comes where a column goes.
        case.db.run("alter table t drop c; alter table t add d text");
        stream.send(r#"{"op":"insert","row":{"id":5,"c":"c5","d":"d5"}}"#, COUNT, "5");
        stream.end().success();
        assert_eq!(rows(&case, "t"), "(1,) (2,) (3,) (4,) (5,d5)", "{args}");
    }
}

/// Values are not rounded to the type that a column had before.
#[test]
fn values_have_the_new_type_of_a_column() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new("create table t (id int primary key, v numeric(10,2), w int)");
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1,"v":1.239,"w":1}}"#, COUNT, "1");
        case.db.run("alter table t alter v type numeric, alter w type bigint");
        stream.send(r#"{"op":"insert","row":{"id":2,"v":1.239,"w":3000000000}}"#, COUNT, "2");
        stream.end().success();
        assert_eq!(rows(&case, "t"), "(1,1.24,1) (2,1.239,3000000000)", "{args}");
    }
}

/// Columns that exchange their names get the values that events give for the names.
#[test]
fn columns_may_exchange_their_names() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new("create table t (id int primary key, a int, b int)");
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1,"a":1,"b":2}}"#, COUNT, "1");
        case.db.run(
            "alter table t rename a to c; alter table t rename b to a; \
             alter table t rename c to b",
        );
        stream.send(r#"{"op":"insert","row":{"id":2,"a":1,"b":2}}"#, COUNT, "2");
        stream.end().success();
        assert_eq!(case.value("select a || ' ' || b from t where id = 2"), "1 2", "{args}");
    }
}

/// The values of a generated column are left out when events are read.
#[test]
fn a_column_that_is_no_longer_generated_ends_the_run() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int primary key, g int generated always as (id * 2) stored)",
        );
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1,"g":2}}"#, COUNT, "1");
        case.db.run("alter table t alter g drop expression");
        stream.write(r#"{"op":"insert","row":{"id":2,"g":7}}"#);
        let run = stream.end();
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(
            run.stderr.contains("column g of public.t is no longer generated"),
            "{}",
            run.stderr
        );
        assert_eq!(rows(&case, "t"), "(1,2)", "{args}");
    }
}

/// No update may set a column that is `generated always as identity`, and then it must.
#[test]
fn a_column_that_is_no_longer_an_identity_is_updated() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int primary key, n int generated always as identity)",
        );
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1,"n":1}}"#, COUNT, "1");
        case.db.run("alter table t alter n drop identity");
        let last = "select max(n) from t";
        stream.send(r#"{"op":"update","row":{"id":1,"n":9}}"#, last, "9");
        stream.end().success();
        assert_eq!(rows(&case, "t"), "(1,9)", "{args}");
    }
}

/// Rows with a NULL in their key would not be found again.
#[test]
fn a_key_that_becomes_nullable_ends_the_run() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new("create table t (k int not null unique, v int)");
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"k":1,"v":1}}"#, COUNT, "1");
        case.db.run("alter table t alter k drop not null");
        stream.write(r#"{"op":"insert","row":{"k":2,"v":1}}"#);
        let run = stream.end();
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("the key of public.t changed"), "{}", run.stderr);
        assert_eq!(rows(&case, "t"), "(1,1)", "{args}");
    }
}

/// A column that no event gives may go, and a column that an event gives may not.
#[test]
fn a_dropped_column_ends_the_run_only_if_events_give_it() {
    for (dropped, message) in [("a", None), ("b", Some("a column of public.t was dropped"))] {
        let case = LoadCase::new("create table t (id int primary key, a int, b int)");
        let mut stream = PipedStream::new(&case, "");
        stream.send(r#"{"op":"insert","row":{"id":1,"b":1}}"#, COUNT, "1");
        case.db.run(&format!("alter table t drop {dropped}"));
        stream.write(r#"{"op":"insert","row":{"id":2,"b":2}}"#);
        let run = stream.end();
        assert_eq!(run.status, Some(if message.is_some() { 2 } else { 0 }), "{}", run.stderr);
        assert!(run.stderr.contains(message.unwrap_or_default()), "{}", run.stderr);
        let left = message.map_or("(1,1) (2,2)", |_| "(1,)");
        assert_eq!(rows(&case, "t"), left, "{dropped}");
    }
}

/// Events identify their rows by the key that the table had when they were read.
#[test]
fn a_key_that_changes_with_a_column_ends_the_run() {
    let create = "create table t (id int, k int not null default 0, v int, \
                                  constraint pk primary key (id))";
    let no_key = "alter table t drop constraint pk, add z int";
    let other_key = "alter table t drop constraint pk, add primary key (id, k), add z int";
    let new_key = "alter table t add primary key (id), add z int";
    let update = r#"{"op":"update","key":{"id":1},"row":{"id":1,"k":5,"v":2}}"#;
    let whole = r#"{"op":"delete","old":{"id":1,"k":0,"v":1}}"#;
    for (alter, event) in [
        (no_key, update),
        (no_key, r#"{"op":"delete","key":{"id":1}}"#),
        (other_key, update),
        (new_key, whole),
    ] {
        for args in ["", "--direct-rows 0"] {
            let case = LoadCase::new(create);
            if alter == new_key {
                case.db.run("alter table t drop constraint pk");
            }
            let mut stream = PipedStream::new(&case, args);
            stream.send(r#"{"op":"insert","row":{"id":1,"k":0,"v":1}}"#, COUNT, "1");
            case.db.run(alter);
            stream.write(event);
            let run = stream.end();
            assert_eq!(run.status, Some(2), "{alter} {event}: {}", run.stderr);
            let message = "the key of public.t changed while its events were read";
            assert!(run.stderr.contains(message), "{alter} {event}: {}", run.stderr);
            assert_eq!(rows(&case, "t"), "(1,0,1,)", "{alter} {event}");
        }
    }
}

/// The columns stay as they are.
#[test]
fn another_key_of_the_same_columns_ends_the_run() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int constraint pk primary key, k int not null default 0, v int)",
        );
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1,"v":1}}"#, COUNT, "1");
        case.db.run("alter table t drop constraint pk, add primary key (id, k)");
        case.db.run("insert into t values (1, 1, 1)");
        stream.write(r#"{"op":"update","key":{"id":1},"row":{"id":1,"v":2}}"#);
        let run = stream.end();
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        let message = "the key of public.t changed while its events were read";
        assert!(run.stderr.contains(message), "{}", run.stderr);
        assert_eq!(rows(&case, "t"), "(1,0,1) (1,1,1)", "{args}");
    }
}

/// Hidden rows would count as missing.
#[test]
fn row_level_security_that_hides_rows_ends_the_run() {
    let case = LoadCase::new("create table t (id int primary key, v int)");
    let database = case.value("select current_database()");
    let role = format!("applier_of_{database}");
    case.db.run(&format!(
        "create role {role}; grant create on database {database} to {role}; \
         grant all on t to {role}"
    ));
    let mut as_role = command(&case, "- --quiet");
    let mut child = spawn(as_role.env("PGOPTIONS", format!("-c role={role}")));
    let pipe = child.stdin.take().unwrap();
    let mut stream = PipedStream { case: &case, child, pipe };
    stream.send(r#"{"op":"insert","row":{"id":1,"v":1}}"#, COUNT, "1");
    case.db.run("alter table t enable row level security");
    stream.write(r#"{"op":"update","key":{"id":1},"row":{"id":1,"v":2}}"#);
    let run = stream.end();
    case.db.run(&format!("drop owned by {role} cascade; drop role {role}"));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let message = "row-level security of public.t applies to this role";
    assert!(run.stderr.contains(message), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1,1)");
}

/// Rows of the referenced table are written first.
#[test]
fn a_new_foreign_key_decides_on_the_order() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int primary key, of int); create table p (id int primary key)",
        );
        let mut stream = PipedStream::new(&case, &format!("{args} --at-end apply"));
        stream.send(r#"{"op":"insert","row":{"id":1}}"#, COUNT, "1");
        stream.write(r#"{"op":"insert","row":{"id":2},"tx":1}"#);
        writeln!(stream.pipe, r#"{{"table":"p","op":"insert","row":{{"id":1}},"tx":1}}"#).unwrap();
        stream.send(r#"{"op":"insert","row":{"id":3}}"#, COUNT, "3");
        case.db.run("alter table t add foreign key (of) references p on delete cascade");
        stream.write(r#"{"op":"insert","row":{"id":4,"of":2},"tx":2}"#);
        writeln!(stream.pipe, r#"{{"table":"p","op":"insert","row":{{"id":2}},"tx":2}}"#).unwrap();
        stream.end().success();
        assert_eq!(rows(&case, "t"), "(1,) (2,) (3,) (4,2)", "{args}");
    }
}

/// A trigger on the batch's own rows changes the definition. The batch is still applied, once.
#[test]
fn a_table_whose_trigger_alters_it_is_written() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int primary key);
             create function add_child() returns trigger language plpgsql as $$ begin
               create table if not exists child () inherits (t); return null;
             end $$;
             create trigger adds_child after insert on t execute function add_child()",
        );
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1}}"#, COUNT, "1");
        stream.send(r#"{"op":"insert","row":{"id":2}}"#, COUNT, "2");
        stream.end().success();
        assert_eq!(case.value("select to_regclass('child')"), "child", "{args}");
    }
}

/// Asserts that a running stream ends with this message when `sql` runs before its next event.
#[track_caller]
fn assert_ends_the_run(sql: &str, event: &str, message: &str) {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new("create table t (id int primary key, v int)");
        let mut stream = PipedStream::new(&case, args);
        stream.send(r#"{"op":"insert","row":{"id":1,"v":1}}"#, COUNT, "1");
        case.db.run(sql);
        stream.write(event);
        let run = stream.end();
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
}

#[test]
fn a_new_rule_ends_the_run() {
    assert_ends_the_run(
        "create rule r as on insert to t do instead nothing",
        r#"{"op":"insert","row":{"id":2,"v":1}}"#,
        "rule \"r\" rewrites statements that write public.t",
    );
}

#[test]
fn a_view_in_place_of_the_table_ends_the_run() {
    assert_ends_the_run(
        "begin; alter table t rename to every; create view t as select * from every where v <> 1; \
         commit",
        r#"{"op":"delete","key":{"id":1}}"#,
        "public.t is not a table",
    );
}
