//! Tests every kind of refusal at every position, and errors that are not about a row.

use super::*;

/// A table with every kind of constraint, and a row that new rows can conflict with.
const TABLE: &str = "\
create domain positive as int check (value > 0);
create table parent (id int primary key);
insert into parent values (1);
create table t (
    id int primary key, n int check (n <> 13), s varchar(5), nn text not null,
    p int references parent,
    q int references parent deferrable initially deferred,
    r int4range, d positive,
    u int unique deferrable initially deferred,
    exclude using gist (r with &&));
insert into t values (-1, 1, 'x', 'x', 1, 1, '[1,10)', 1, 7);
create function fussy() returns trigger language plpgsql as $$
begin
    if new.s = tg_argv[0] then raise exception 'not this one' using errcode = tg_argv[1]; end if;
    return new;
end $$;
create trigger b before insert on t for each row execute function fussy('raise', 'P0001');
create trigger c before insert on t for each row execute function fussy('odd', '42P01');
create trigger a after insert on t for each row execute function fussy('after', 'P0001');
create constraint trigger e after insert on t deferrable initially deferred
    for each row execute function fussy('later', 'U0001');";

const COLUMNS: [&str; 9] = ["id", "n", "s", "nn", "p", "q", "r", "d", "u"];

/// Each kind of bad row: its name, the row's fields after the id, and the expected SQLSTATE.
const KINDS: &[(&str, &[u8], &str)] = &[
    ("check", b",13,ok,x,1,1,,1,", "23514"),
    ("not null", b",1,ok,,1,1,,1,", "23502"),
    ("foreign key", b",1,ok,x,99,1,,1,", "23503"),
    ("deferred foreign key", b",1,ok,x,1,99,,1,", "23503"),
    ("exclusion", b",1,ok,x,1,1,\"[5,6)\",1,", "23P01"),
    ("domain", b",1,ok,x,1,1,,-1,", "23514"),
    ("deferred unique", b",1,ok,x,1,1,,1,7", "23505"),
    ("conversion", b",abc,ok,x,1,1,,1,", "22P02"),
    ("out of range", b",99999999999,ok,x,1,1,,1,", "22003"),
    ("too long", b",1,toolong,x,1,1,,1,", "22001"),
    ("invalid UTF-8", b",1,\xff,x,1,1,,1,", "22021"),
    ("NUL", b",1,\0,x,1,1,,1,", "22021"),
    ("too few fields", b",1", "22P04"),
    ("too many fields", b",1,ok,x,1,1,,1,,", "22P04"),
    ("carriage return", b",1,ok\r,x,1,1,,1,", "22P04"),
    ("before trigger", b",1,raise,x,1,1,,1,", "P0001"),
    ("odd code", b",1,odd,x,1,1,,1,", "42P01"),
    ("after trigger", b",1,after,x,1,1,,1,", "P0001"),
    ("deferred trigger", b",1,later,x,1,1,,1,", "U0001"),
];

fn good_record(id: u64) -> Vec<u8> {
    format!("{id},1,ok,x,1,1,,1,\n").into_bytes()
}

/// Writes `rows` rows, and checks that exactly the bad rows are rejected. `bad` returns a bad row's
/// record and the expected SQLSTATE; `None` for a good row.
fn check(
    session: &RejectTestSession,
    rows: u64,
    bad: &dyn Fn(u64) -> Option<(Vec<u8>, &'static str)>,
) -> ChunkWithRejects {
    let (mut input, mut expected, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows {
        match bad(row) {
            Some((record, code)) => {
                expected.push((row, input.len() as u64, record.clone(), code));
                input.extend(record);
            }
            None => {
                kept.push(row.to_string());
                input.extend(good_record(row));
            }
        }
    }
    session.run("begin");
    let result = session.write(&input).unwrap();
    let written = session.query("select id from t where id >= 0 order by id");
    assert_eq!(written, kept.join("\n"), "{result:?}");
    assert_eq!((result.rows_in, result.rows_written), (rows, kept.len() as u64));
    let found = result.rejects.iter().map(|it| {
        let line = it.row + 1;
        let place = InputPlace { column: None, ..it.place.clone() };
        let source = Some("in.csv".to_owned());
        assert_eq!(
            place,
            InputPlace { source, line: Some(line), byte: place.byte, ..InputPlace::default() }
        );
        assert!(!it.message.is_empty() && !it.message.contains("SQLSTATE"), "{}", it.message);
        (it.row, it.place.byte.unwrap(), it.record.clone(), it.sqlstate.code())
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // The transaction and the connection are still usable.
    session.run("commit");
    session.run("delete from t where id >= 0");
    result
}

#[test]
fn rejects_every_kind_of_bad_row_at_every_position() {
    let session = RejectTestSession::new(TABLE, &COLUMNS);
    assert_eq!(check(&session, 9, &|_| None).copies, 1);
    for (name, fields, code) in KINDS {
        let bad = |row: u64| Some(([row.to_string().as_bytes(), fields, b"\n"].concat(), *code));
        // On the first line, a carriage return would decide the line ending.
        for at in [0, 4, 8].into_iter().filter(|at| *at > 0 || *name != "carriage return") {
            let result = check(&session, 9, &|row| bad(row).filter(|_| row == at));
            assert!(result.copies <= 9, "{name}: {}", result.copies);
        }
        if *name != "carriage return" {
            let result = check(&session, 9, &bad);
            assert!(result.copies <= 14, "{name}: {}", result.copies);
            check(&session, 1, &bad);
        }
    }
    let existing_key = |_| Some((b"-1,1,ok,x,1,1,,1,\n".to_vec(), "23505"));
    check(&session, 9, &existing_key);
    for at in [0, 4, 8] {
        check(&session, 9, &|row| existing_key(row).filter(|_| row == at));
    }
}

#[test]
fn rejects_all_kinds_of_bad_rows_in_one_chunk() {
    let session = RejectTestSession::new(TABLE, &COLUMNS);
    let bad = |row: u64| {
        let (_, fields, code) = KINDS.get((row / 2) as usize % KINDS.len())?;
        let record = [row.to_string().as_bytes(), fields, b"\n"].concat();
        (row % 2 == 1).then_some((record, *code))
    };
    check(&session, 6 * KINDS.len() as u64, &bad);
}

#[test]
fn a_reject_names_the_column_if_the_server_does() {
    let session = RejectTestSession::new(TABLE, &COLUMNS);
    session.run("begin");
    let input = b"0,x,ok,x,1,1,,1,\n1,1,ok,,1,1,,1,\n2,1,ok,x,1,1,,0,\n3,1\n";
    let result = session.write(input).unwrap();
    let columns: Vec<_> = result.rejects.iter().map(|it| it.place.column.as_deref()).collect();
    assert_eq!(columns, [Some("n"), Some("nn"), Some("d"), None]);
    let first = "invalid input syntax for type integer: \"x\"";
    assert_eq!(result.rejects[0].message, first);
    assert_eq!(result.rejects[3].message, "missing data for column \"s\"");
}

#[test]
fn an_open_quote_makes_the_rest_of_the_input_one_reject() {
    let session = RejectTestSession::new("create table t (a text)", &["a"]);
    for (input, rows, record) in [
        (&b"a\nb\n\"c\nd\n"[..], 3, &b"\"c\nd\n"[..]),
        (b"\"a", 1, b"\"a\n"),
        (b"\"a\"\nb\n\"", 3, b"\"\n"),
    ] {
        session.run("begin");
        let result = session.write(input).unwrap();
        assert_eq!((result.rows_in, result.rows_written), (rows, rows - 1));
        assert_eq!(codes(&result), [(rows - 1, "22P04".to_owned())]);
        assert_eq!(result.rejects[0].record, record);
        session.run("rollback");
    }
}

#[test]
fn the_first_of_equal_keys_is_written() {
    let session = RejectTestSession::new(
        "create table t (a int primary key, b int unique deferrable)",
        &["a", "b"],
    );
    session.run("begin");
    let result = session.write(b"1,1\n2,2\n1,3\n3,1\n2,2\n4,4\n").unwrap();
    assert_eq!(session.query("select a || ',' || b from t order by a"), "1,1\n2,2\n4,4");
    assert_eq!(result.rejects.iter().map(|it| it.row).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn rows_refused_because_of_a_rejected_row_are_tried_again() {
    let sql = "create table t2 (b int primary key); insert into t2 values (1);
        create table t (a int primary key, b int references t2)";
    let session = RejectTestSession::new(sql, &["a", "b"]);
    session.run("begin");
    let result = session.write(b"1,2\n1,1\n1,1\n2,1\n").unwrap();
    assert_eq!(codes(&result), [(0, "23503".to_owned()), (2, "23505".to_owned())]);
    assert_eq!(session.query("select a from t order by a"), "1\n2");
    session.run("rollback; begin");
    // Every row is once the first row of a COPY.
    let result = session.write(&b"1,2\n".repeat(200)).unwrap();
    assert_eq!(result.rejects.len(), 200);
    assert!(result.rejects.iter().all(|it| it.sqlstate == SqlState::FOREIGN_KEY_VIOLATION));
    assert!(result.copies <= 2_000, "{}", result.copies);
}

#[test]
fn values_that_imitate_an_error_context_reject_only_their_own_row() {
    let session = RejectTestSession::new("create table t (a int, b text)", &["a", "b"]);
    session.run("begin");
    let forged = b"1,x\n\"a\nCOPY t, line 1, column a: \"\"\",y\n2,z\n";
    let result = session.write(forged).unwrap();
    assert_eq!(codes(&result), [(1, "22P02".to_owned())]);
    assert_eq!(session.query("select a from t order by a"), "1\n2");
}

#[test]
fn triggers_may_skip_rows() {
    let sql = "create table t (a int);
        create function odd() returns trigger language plpgsql as
            'begin if new.a % 2 = 1 then return new; end if; return null; end';
        create trigger odd before insert on t for each row execute function odd();";
    let mut session = RejectTestSession::new(sql, &["a"]);
    session.run("begin");
    let error = session.write(b"1\n2\nx\n3\n").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Bug);
    session.run("rollback");
    session.job.may_skip_rows = true;
    session.run("begin");
    let result = session.write(b"1\n2\nx\n3\n").unwrap();
    assert_eq!((result.rows_in, result.rows_written, result.rejects.len()), (4, 2, 1));
}

/// Returns the SQLSTATE of an error that is not about a row. The table stays unchanged.
fn failure_code(session: &RejectTestSession, before: &str, input: &[u8]) -> String {
    session.run(before);
    let error = session.write(input).unwrap_err();
    let code = error.sqlstate().map_or("none".to_owned(), |code| code.code().to_owned());
    assert_eq!(session.db.query("select count(*) from t")[0][0].as_deref(), Some("0"));
    code
}

#[test]
fn errors_that_are_not_about_a_row_fail() {
    let sql = "create table t (a int);
        create function no() returns trigger language plpgsql as
            $$begin raise exception 'no' using errcode = tg_argv[0]; end$$;
        grant usage on schema public to public;";
    let session = || RejectTestSession::new(sql, &["a"]);
    let trigger = |when: &str, code: &str| {
        format!(
            "create trigger no {when} insert on t for each statement execute function no('{code}')"
        )
    };
    // Here the server refuses the statement before it reads a row, and the connection is unusable
    // afterwards.
    let statement = session();
    statement.run(&trigger("before", "P0001"));
    assert_eq!(failure_code(&statement, "begin", b"1\n2\n"), "P0001");
    let resources = session();
    resources.run(&trigger("after", "53100"));
    assert_eq!(failure_code(&resources, "begin", b"1\n2\n"), "53100");
    let permission = session();
    permission.run("revoke all on t from public");
    let no_role = "begin; create role no_one; set local role no_one";
    assert_eq!(failure_code(&permission, no_role, b"1\n2\n"), "42501");
    let read_only = session();
    assert_eq!(failure_code(&read_only, "begin read only", b"1\n2\n"), "25006");
    let earlier = session();
    earlier.run("alter table t add constraint u unique (a) deferrable initially deferred");
    assert_eq!(failure_code(&earlier, "begin; insert into t values (1), (1)", b"1\n2\n"), "23505");
}

#[test]
fn a_lost_connection_fails() {
    let session = RejectTestSession::new("create table t (a int)", &["a"]);
    session.run("begin");
    let pid = session.connection.backend_pid();
    session.db.query(&format!("select pg_terminate_backend({pid}, 10000)"));
    assert_eq!(session.write(b"1\nx\n").unwrap_err().kind(), ErrorKind::Connect);
}

#[test]
fn refusals_cost_few_statements() {
    let sql = "create table t2 (b int primary key); insert into t2 values (1);
        create table t (a int, b int references t2)";
    let session = RejectTestSession::new(sql, &["a", "b"]);
    let rows = 2_000;
    // One of `every` rows is bad. The other two are limits on the number of statements: if the
    // server names the refused row, and if the server does not name it.
    for (every, named_max, unnamed_max) in
        [(2_000, 4, 20), (100, 50, 200), (10, 280, 1_400), (2, 1_100, 3_000), (1, 2_000, 2_012)]
    {
        for (bad, most) in [("x,1\n", named_max), ("1,2\n", unnamed_max)] {
            let line = |row| if row % every == every / 2 { bad } else { "1,1\n" };
            let input: String = (0..rows).map(line).collect();
            session.run("begin");
            let result = session.write(input.as_bytes()).unwrap();
            assert_eq!(result.rejects.len(), rows / every);
            assert_eq!(result.rows_written, (rows - rows / every) as u64);
            assert!(result.copies <= most, "{every} {bad} {}", result.copies);
            session.run("rollback");
        }
    }
}
