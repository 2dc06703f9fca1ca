//! Tests of rows that PostgreSQL refuses: the error has the server's message and the row's place,
//! and no row is loaded.

use std::fmt::Write as _;
use std::thread;

use insta::assert_snapshot;

use crate::support::{LoadCase, session, wait_until};

/// Loads `rows` into a table `t` with `columns`. The load must fail. Returns the error.
fn load_refused_row(columns: &str, rows: &str) -> String {
    let case = LoadCase::new(&format!("create table t ({columns})"));
    case.put("t.csv", rows);
    case.refusal("t.csv --header no")
}

#[test]
fn values_with_invalid_syntax_are_refused() {
    assert_snapshot!(load_refused_row("a int, b int", "1,2\n3,4x\n5,6\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type integer: "4x" (SQLSTATE 22P02)
      at: t.csv, line 2, byte 4, column "b"
    "#);
    assert_snapshot!(load_refused_row("a date", "2024-01-01\n2024-02-30\n2024-01-02\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: date/time field value out of range: "2024-02-30" (SQLSTATE 22008)
      at: t.csv, line 2, byte 11, column "a"
    "#);
    assert_snapshot!(load_refused_row("a bool", "t\nmaybe\nf\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type boolean: "maybe" (SQLSTATE 22P02)
      at: t.csv, line 2, byte 2, column "a"
    "#);
    assert_snapshot!(load_refused_row("a uuid", "6c2d7f6e-0cd1-4d4b-9c1d-1f3f0c7f7a11\nx\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type uuid: "x" (SQLSTATE 22P02)
      at: t.csv, line 2, byte 37, column "a"
    "#);
    assert_snapshot!(load_refused_row("a jsonb", "{}\n{]\n{}\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type json (SQLSTATE 22P02)
      caused by: Expected string or "}", but found "]"
      at: t.csv, line 2, byte 3, column "a"
    "#);
}

#[test]
fn values_out_of_range_are_refused() {
    assert_snapshot!(load_refused_row("a smallint", "1\n40000\n2\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: value "40000" is out of range for type smallint (SQLSTATE 22003)
      at: t.csv, line 2, byte 2, column "a"
    "#);
    assert_snapshot!(load_refused_row("a numeric(4,2)", "1\n123.4\n2\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: numeric field overflow (SQLSTATE 22003)
      caused by: A field with precision 4, scale 2 must round to an absolute value less
          … than 10^2
      at: t.csv, line 2, byte 2, column "a"
    "#);
    assert_snapshot!(load_refused_row("a real", "1\n1e60\n2\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: "1e60" is out of range for type real (SQLSTATE 22003)
      at: t.csv, line 2, byte 2, column "a"
    "#);
    assert_snapshot!(load_refused_row("a date", "2024-01-01\n6000000-01-01\n2024-01-02\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: date out of range: "6000000-01-01" (SQLSTATE 22008)
      at: t.csv, line 2, byte 11, column "a"
    "#);
    assert_snapshot!(load_refused_row("a timestamp", "2024-01-01\n300000-01-01\n2024-01-02\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: timestamp out of range: "300000-01-01" (SQLSTATE 22008)
      at: t.csv, line 2, byte 11, column "a"
    "#);
    assert_snapshot!(load_refused_row("a varchar(3)", "abc\nabcd\nab\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: value too long for type character varying(3) (SQLSTATE 22001)
      at: t.csv, line 2, byte 4, column "a"
    "#);
    assert_snapshot!(load_refused_row("a int[]", "{1}\n{1\n{2}\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: malformed array literal: "{1" (SQLSTATE 22P02)
      caused by: Unexpected end of input
      at: t.csv, line 2, byte 4, column "a"
    "#);
}

#[test]
fn invalid_enum_labels_and_domain_values_are_refused() {
    let case = LoadCase::new(
        "create type mood as enum ('sad', 'ok'); create domain small as int check (value < 10); \
         create table t (a mood, b small)",
    );
    case.put("t.csv", "sad,1\nglad,2\nok,3\n");
    assert_snapshot!(case.refusal("t.csv --header no"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input value for enum mood: "glad" (SQLSTATE 22P02)
      at: t.csv, line 2, byte 6, column "a"
    "#);
    case.put("t.csv", "sad,1\nok,20\nok,3\n");
    assert_snapshot!(case.refusal("t.csv --header no"), @r#"
    error: could not load "t.csv" into public.t
      caused by: value for domain small violates check constraint "small_check" (SQLSTATE
          … 23514)
      at: t.csv, line 2, byte 6, column "b"
    "#);
}

#[test]
fn rows_that_violate_constraints_are_refused() {
    assert_snapshot!(load_refused_row("a int not null, b int", "1,1\n,2\n3,3\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: null value in column "a" of relation "t" violates not-null constraint
          … (SQLSTATE 23502)
      caused by: Failing row contains (null, 2)
      at: t.csv, line 2, byte 4, column "a"
    "#);
    assert_snapshot!(load_refused_row("a int check (a > 0)", "1\n-1\n3\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: new row for relation "t" violates check constraint "t_a_check" (SQLSTATE
          … 23514)
      caused by: Failing row contains (-1)
      at: t.csv, line 2, byte 2
    "#);
    assert_snapshot!(load_refused_row("a int primary key", "1\n2\n1\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: duplicate key value violates unique constraint "t_pkey" (SQLSTATE 23505)
      caused by: Key (a)=(1) already exists
      at: t.csv, line 3, byte 4

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
    let exclusion = "a int4range, exclude using gist (a with &&)";
    assert_snapshot!(load_refused_row(exclusion, "\"[1,3)\"\n\"[2,5)\"\n\"[5,6)\"\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: conflicting key value violates exclusion constraint "t_a_excl" (SQLSTATE
          … 23P01)
      caused by: Key (a)=([2,5)) conflicts with existing key (a)=([1,3))
      at: t.csv, line 2, byte 8
    "#);
}

#[test]
fn rows_that_violate_foreign_keys_are_refused() {
    let case =
        LoadCase::new("create table u (id int primary key); create table t (a int references u)");
    case.db.run("insert into u values (1)");
    case.put("t.csv", "1\n2\n1\n");
    assert_snapshot!(case.refusal("t.csv --header no"), @r#"
    error: could not load "t.csv" into public.t
      caused by: insert or update on table "t" violates foreign key constraint "t_a_fkey"
          … (SQLSTATE 23503)
      caused by: Key (a)=(2) is not present in table "u"
    "#);
}

#[test]
fn keys_that_the_table_already_has_are_refused() {
    let case =
        LoadCase::new("create table t (id int primary key, b text); insert into t values (5, 'x')");
    case.put("t.csv", "id,b\n1,a\n5,b\n6,c\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: duplicate key value violates unique constraint "t_pkey" (SQLSTATE 23505)
      caused by: Key (id)=(5) already exists
      at: t.csv, line 3, byte 9

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
}

#[test]
fn rows_that_violate_deferred_constraints_are_refused() {
    let case = LoadCase::new(
        "create table u (id int primary key); \
         create table t (id int unique deferrable initially deferred, \
                         u int references u deferrable initially deferred)",
    );
    case.db.run("insert into u values (1)");
    case.put("t.csv", "1,1\n2,2\n3,1\n");
    assert_snapshot!(case.refusal("t.csv --header no"), @r#"
    error: could not load "t.csv" into public.t
      caused by: insert or update on table "t" violates foreign key constraint "t_u_fkey"
          … (SQLSTATE 23503)
      caused by: Key (u)=(2) is not present in table "u"
    "#);
    case.put("t.csv", "1,1\n2,1\n1,1\n");
    assert_snapshot!(case.refusal("t.csv --header no"), @r#"
    error: could not load "t.csv" into public.t
      caused by: duplicate key value violates unique constraint "t_id_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) already exists
    "#);
}

/// About 17 MB, so that several lanes have several chunks each.
const ROWS: usize = 240_000;

/// Returns the rows of a file for the table `big`. `replaced` has the numbers of rows to replace,
/// and the lines to replace them by.
fn big_csv(replaced: &[(usize, &str)]) -> String {
    let mut text = String::with_capacity(ROWS * 80);
    text.push_str("id,qty,note\n");
    for row in 0..ROWS {
        match replaced.iter().find(|(nth, _)| *nth == row) {
            Some((_, line)) => text.push_str(line),
            None => {
                // The encoder leaves every seventh row to the server, because of the space.
                let space = if row % 7 == 3 { " " } else { "" };
                let _ =
                    write!(text, "{row},{space}{},a note that makes the row long enough", row % 9);
                let _ = write!(text, " to fill chunks {row}");
            }
        }
        text.push('\n');
    }
    text
}

fn case_with_big_file(replaced: &[(usize, &str)]) -> LoadCase {
    let case = LoadCase::new("create table big (id int, qty int, note text)");
    case.put("big.csv", big_csv(replaced));
    case
}

#[test]
fn the_first_wrong_row_of_a_big_file_is_named() {
    // The server reads two later wrong rows first. One is in the last chunk, which another lane
    // sends. The other is a binary row, and a chunk's binary rows precede its text rows.
    let case = case_with_big_file(&[
        (150_001, "150001, x,left to the server"),
        (150_002, "150002,99999999999,not"),
        (239_990, "239990,1"),
    ]);
    let said = case.refusal("big.csv --lanes 4");
    assert_snapshot!(said, @r#"
    error: could not load "big.csv" into public.big
      caused by: invalid input syntax for type integer: " x" (SQLSTATE 22P02)
      at: big.csv, line 150003, byte 10149290, column "qty"
    "#);
    assert_eq!(case.refusal("big.csv --lanes 1"), said);
    assert_eq!(case.refusal("big.csv"), said);
}

#[test]
fn a_row_of_the_wrong_length_deep_in_a_big_file_is_named() {
    let case = case_with_big_file(&[
        (150_001, "150001,1"),
        (150_002, "150002,zwei,x"),
        (239_990, "x,1,x"),
    ]);
    assert_snapshot!(case.refusal("big.csv --lanes 3"), @r#"
    error: could not load "big.csv" into public.big
      caused by: missing data for column "note"
      at: big.csv, line 150003, byte 10149290

    hint: Expected 3 fields, found 2.
    "#);
}

#[test]
fn a_null_deep_in_a_big_file_is_named() {
    let case = case_with_big_file(&[(211_111, "211111,,no quantity")]);
    case.db.run("alter table big alter qty set not null");
    assert_snapshot!(case.refusal("big.csv --lanes 4"), @r#"
    error: could not load "big.csv" into public.big
      caused by: null value in column "qty" of relation "big" violates not-null constraint
          … (SQLSTATE 23502)
      caused by: Failing row contains (211111, null, no quantity)
      at: big.csv, line 211113, byte 14374610, column "qty"
    "#);
}

#[test]
fn equal_keys_in_one_lane_are_refused() {
    let case = case_with_big_file(&[(239_999, "7,1,again")]);
    case.db.run("alter table big add unique (id)");
    assert_snapshot!(case.refusal("big.csv --lanes 1"), @r#"
    error: could not load "big.csv" into public.big
      caused by: duplicate key value violates unique constraint "big_id_key" (SQLSTATE
          … 23505)
      caused by: Key (id)=(7) already exists
      at: big.csv, line 240001, byte 16372009

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
}

#[test]
fn equal_keys_in_different_lanes_are_refused() {
    let case = case_with_big_file(&[
        (200_003, "3,1,again"),
        (150_001, "8,1,again"),
        (239_999, "7,1,again"),
    ]);
    case.db.run("alter table big add unique (id)");
    assert_snapshot!(case.refusal("big.csv --lanes 4"), @r#"
    error: could not load "big.csv" into public.big
      caused by: duplicate key value violates unique constraint "big_id_key" (SQLSTATE
          … 23505)
      caused by: Key (id)=(8) already exists
      at: big.csv, line 150003, byte 10149290

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
}

#[test]
fn an_equal_key_in_the_last_chunk_is_refused() {
    // The lane of the first row is idle while the lane of the last chunk waits for its commit.
    let case = case_with_big_file(&[(239_999, "7,1,again")]);
    case.db.run("alter table big add unique (id)");
    let said = case.refusal("big.csv --lanes 4");
    assert_eq!(case.refusal("big.csv --lanes 1"), said);
    assert_eq!(case.refusal("big.csv"), said);
}

#[test]
fn equal_deferred_keys_in_different_lanes_are_refused() {
    let case = case_with_big_file(&[(200_003, "3,1,again"), (239_999, "7,1,again")]);
    case.db.run("alter table big add unique (id) deferrable initially deferred");
    assert_snapshot!(case.refusal("big.csv --lanes 4"), @r#"
    error: could not load "big.csv" into public.big
      caused by: duplicate key value violates unique constraint "big_id_key" (SQLSTATE
          … 23505)
      caused by: Key (id)=(3) already exists
    "#);
}

#[test]
fn lanes_that_deadlock_report_the_duplicate_key() {
    // Each lane inserts a key that the other lane has already inserted, which is a deadlock.
    let case = case_with_big_file(&[
        (10, "-1,1,first"),
        (110_000, "-2,1,last of the first chunk"),
        (130_000, "-2,1,second"),
        (230_000, "-1,1,last of the second chunk"),
    ]);
    case.db.run("alter table big add unique (id)");
    let mut command = case.load_command("big.csv --quiet --lanes 2");
    let run = command.env("PGOPTIONS", "-c deadlock_timeout=1").output().unwrap();
    assert_snapshot!(crate::support::Run::of(run).refusal(), @r#"
    error: could not load "big.csv" into public.big
      caused by: duplicate key value violates unique constraint "big_id_key" (SQLSTATE
          … 23505)
      caused by: Key (id)=(-2) already exists
      at: big.csv, line 130002, byte 8766272

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
    assert_eq!(case.rows("big").len(), 0);
}

#[test]
fn equal_keys_on_standard_input_are_refused() {
    // A row of id 3 waits for its turn: lock 7 for the first one, and lock 8 for the second.
    let case = LoadCase::new(
        "create function has_turn(note text) returns bool language plpgsql as
             'begin
                  perform pg_advisory_xact_lock_shared(case note when ''again'' then 8 else 7 end);
                  return true;
              end';
         create table big (id int unique, qty int, note text, check (id <> 3 or has_turn(note)))",
    );
    let run = case.load_from(big_csv(&[(200_003, "3,1,again")]), "- --table big --quiet");
    assert_snapshot!(run.refusal(), @r#"
    error: could not load "-" into public.big
      caused by: duplicate key value violates unique constraint "big_id_key" (SQLSTATE
          … 23505)
      caused by: Key (id)=(3) already exists
      at: -, line 200005, byte 13606571

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
    assert_eq!(case.rows("big").len(), 0);
    // The lane with the first row is held until another lane has one of the others. The held lane
    // may take one more chunk, as it encodes ahead.
    let rows = big_csv(&[(100_003, "3,1,again"), (200_003, "3,1,again")]);
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let run = thread::scope(|scope| {
        let load = scope.spawn(|| case.load_from(rows, "- --table big --quiet --lanes 4"));
        wait_until("another lane has the second row", || {
            let sql = "select exists (select from pg_locks join pg_database d on d.oid = database \
                       where locktype = 'advisory' and (classid, objid) = (0, 8) \
                         and datname = current_database())";
            case.value(sql) == "t"
        });
        runtime.block_on(holder.batch_execute("commit")).unwrap();
        load.join().unwrap()
    });
    assert_snapshot!(run.refusal(), @r#"
    error: could not load "-" into public.big
      caused by: two rows have the same unique key

    hint: Load with `--lanes 1` to see which rows.
    "#);
    assert_eq!(case.rows("big").len(), 0);
}
