//! Key changes, absent columns, and the net result of many events of one row.

use insta::{allow_duplicates, assert_snapshot};

use crate::support::LoadCase;
use crate::{apply, apply_and_report, counts, rows};

fn case() -> LoadCase {
    LoadCase::new(
        "create table t (id int primary key, a text, b text default 'dflt'); \
         insert into t select i, 'a' || i, 'b' || i from generate_series(1, 5) i",
    )
}

#[test]
fn inserts_updates_and_deletes_are_applied() {
    let case = case();
    let report = apply_and_report(
        &case,
        r#"{"op":"insert","table":"public.t","row":{"id":6,"a":"x","b":null}}
{"op":"update","table":"t","row":{"id":1,"a":"y"}}
{"op":"update","table":"t","row":{"id":2,"a":"a2"}}
{"op":"delete","table":"t","key":{"id":3}}
{"op":"insert","table":"t","row":{"id":7,"a":"z"}}
"#,
        "",
    );
    assert_eq!(counts(&report), [2, 1, 1, 0]);
    assert_eq!(rows(&case, "t"), "(1,y,b1) (2,a2,b2) (4,a4,b4) (5,a5,b5) (6,x,) (7,z,dflt)");
}

/// A column that is absent from the event keeps its value.
#[test]
fn absent_columns_keep_their_values() {
    let case = case();
    let report = apply_and_report(
        &case,
        r#"{"op":"update","table":"t","row":{"id":1,"a":"y","b":"x"}}
{"op":"update","table":"t","row":{"id":2,"a":"y"}}
{"op":"update","table":"t","row":{"id":2,"b":null}}
{"op":"update","table":"t","row":{"id":3,"b":"z"}}
{"op":"update","table":"t","row":{"id":99,"b":"z"}}
"#,
        "",
    );
    // The event has only some columns of row 99, so pgspate does not insert the row.
    assert_eq!(counts(&report), [0, 3, 0, 1]);
    assert_eq!(rows(&case, "t"), "(1,y,x) (2,y,) (3,a3,z) (4,a4,b4) (5,a5,b5)");
}

/// A batch has an insert and a partial update of the same row. The other columns keep the values of
/// the insert.
#[test]
fn a_partial_update_keeps_the_columns_of_the_insert_before() {
    let case = case();
    let report = apply_and_report(
        &case,
        r#"{"op":"insert","table":"t","row":{"id":6,"a":"a6","b":"b6"}}
{"op":"update","table":"t","row":{"id":6,"a":"x"}}
{"op":"insert","table":"t","row":{"id":7,"a":"a7","b":"b7"}}
{"op":"update","table":"t","key":{"id":7},"row":{"id":8,"b":"y"}}
"#,
        "",
    );
    assert_eq!(counts(&report), [2, 0, 0, 0]);
    assert!(rows(&case, "t").ends_with("(6,x,b6) (8,a7,y)"), "{}", rows(&case, "t"));
}

/// The batch has deletes and inserts of one key, in every order.
#[test]
fn deletes_and_inserts_keep_their_order() {
    let case = case();
    apply_and_report(
        &case,
        r#"{"op":"delete","table":"t","key":{"id":1}}
{"op":"insert","table":"t","row":{"id":1,"a":"new"}}
{"op":"insert","table":"t","row":{"id":6,"a":"x"}}
{"op":"delete","table":"t","key":{"id":6}}
{"op":"delete","table":"t","key":{"id":2}}
{"op":"insert","table":"t","row":{"id":2,"a":"x"}}
{"op":"delete","table":"t","key":{"id":2}}
{"op":"insert","table":"t","row":{"id":2,"a":"y","b":"z"}}
{"op":"update","table":"t","row":{"id":3,"a":"x"}}
{"op":"delete","table":"t","key":{"id":3}}
"#,
        "",
    );
    // Row 1 is a new row: absent columns get their default, not the old row's values.
    assert_eq!(rows(&case, "t"), "(1,new,dflt) (2,y,z) (4,a4,b4) (5,a5,b5)");
}

/// The events are those of `update t set id = id + 1`.
#[test]
fn all_keys_can_move_by_one() {
    let case = case();
    let events: String = (1..=5)
        .rev()
        .map(|id| {
            let to = id + 1;
            let event = format!(r#"{{"op":"update","table":"t","key":{{"id":{id}}}"#);
            event + &format!(r#","row":{{"id":{to}}}}}"#) + "\n"
        })
        .collect();
    let report = apply_and_report(&case, &events, "");
    assert_eq!(report["missing"], 0);
    assert_eq!(rows(&case, "t"), "(2,a1,b1) (3,a2,b2) (4,a3,b3) (5,a4,b4) (6,a5,b5)");
}

/// The row with the new key keeps the values of columns that the event lacks.
#[test]
fn a_key_change_keeps_the_other_columns() {
    let case = case();
    apply_and_report(
        &case,
        r#"{"op":"update","table":"t","key":{"id":1},"row":{"id":10,"a":"x"}}
{"op":"update","table":"t","row":{"id":2,"b":"y"}}
{"op":"update","table":"t","key":{"id":2},"row":{"id":20}}
{"op":"update","table":"t","key":{"id":20},"row":{"id":21,"a":"w"}}
{"op":"update","table":"t","key":{"id":3},"row":{"id":30}}
{"op":"update","table":"t","key":{"id":30},"row":{"id":3}}
{"op":"update","table":"t","key":{"id":4},"row":{"id":40}}
{"op":"delete","table":"t","key":{"id":40}}
{"op":"insert","table":"t","row":{"id":4,"a":"new4","b":"n"}}
"#,
        "",
    );
    assert_eq!(rows(&case, "t"), "(10,x,b1) (21,w,y) (3,a3,b3) (4,new4,n) (5,a5,b5)");
}

#[test]
fn keys_can_be_swapped() {
    let case = case();
    // Swap through a third key, as most databases must.
    apply_and_report(
        &case,
        r#"{"op":"update","table":"t","key":{"id":1},"row":{"id":-1}}
{"op":"update","table":"t","key":{"id":2},"row":{"id":1}}
{"op":"update","table":"t","key":{"id":-1},"row":{"id":2}}
"#,
        "--stream a",
    );
    assert_eq!(rows(&case, "t"), "(1,a2,b2) (2,a1,b1) (3,a3,b3) (4,a4,b4) (5,a5,b5)");
    // Swap in one statement, as some databases can. The other old columns distinguish the rows.
    apply_and_report(
        &case,
        r#"{"op":"update","table":"t","old":{"id":3,"a":"a3"},"row":{"id":4,"a":"a3"},"tx":1}
{"op":"update","table":"t","old":{"id":4,"a":"a4"},"row":{"id":5,"a":"a4"},"tx":1}
{"op":"update","table":"t","old":{"id":5,"a":"a5"},"row":{"id":3,"a":"a5"},"tx":1,"end":true}
"#,
        "--stream b",
    );
    assert_eq!(rows(&case, "t"), "(1,a2,b2) (2,a1,b1) (3,a5,b5) (4,a3,b3) (5,a4,b4)");
}

/// The second event moves the row on, and has no old value of `a`. pgspate must not conclude that
/// the events are of two rows.
#[test]
fn a_key_that_changes_twice_leaves_one_row() {
    let case =
        LoadCase::new("create table t (id int primary key, a text); insert into t values (1, 'a')");
    apply_and_report(
        &case,
        r#"{"op":"update","table":"t","key":{"id":1},"row":{"id":2,"a":"a"},"tx":1}
{"op":"update","table":"t","key":{"id":2},"row":{"id":3,"a":"b"},"tx":1,"end":true}
"#,
        "",
    );
    assert_eq!(rows(&case, "t"), "(3,b)");
}

/// A batch does not end between the two events of a swap.
#[test]
fn keys_are_swapped_in_a_transaction_of_many_batches() {
    let case = LoadCase::new(
        "create table t (id int primary key, a text); insert into t values (1, 'a'), (2, 'b')",
    );
    let insert = |id: u32| {
        format!(
            "{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id},\"a\":\"x\"}},\"tx\":1}}\n"
        )
    };
    let event = |from: (u32, &str), to: u32, end: &str| {
        let (id, a) = from;
        format!(
            "{{\"op\":\"update\",\"table\":\"t\",\"old\":{{\"id\":{id},\"a\":\"{a}\"}},\
             \"row\":{{\"id\":{to},\"a\":\"{a}\"}},\"tx\":1{end}}}\n"
        )
    };
    let many: String = (10..60).map(insert).collect();
    let events = many + &event((1, "a"), 2, "");
    let many: String = (60..110).map(insert).collect();
    let events = events + &many + &event((2, "b"), 1, ",\"end\":true");
    apply_and_report(&case, &events, "--batch-rows 1");
    assert_eq!(case.value("select string_agg(a, '' order by id) from t where id < 10"), "ba");
    assert_eq!(case.value("select count(*) from t"), "102");
}

/// The events of a swap stay together when the server refuses another event.
#[test]
fn keys_are_swapped_if_another_event_is_refused() {
    let case = LoadCase::new(
        "create table t (id int primary key, a text check (a <> 'no')); \
         insert into t values (1, 'a'), (2, 'b')",
    );
    let events = r#"{"op":"insert","table":"t","row":{"id":3,"a":"no"},"tx":1}
{"op":"update","table":"t","old":{"id":1,"a":"a"},"row":{"id":2,"a":"a"},"tx":1}
{"op":"update","table":"t","old":{"id":2,"a":"b"},"row":{"id":1,"a":"b"},"tx":1,"end":true}
"#;
    let report = apply_and_report(&case, events, "--max-dead-letters 1");
    assert_eq!((&report["dead_letters"], rows(&case, "t")), (&1.into(), "(1,b) (2,a)".into()));
    // A bad event between the two events of the swap is not set aside alone.
    let bad = r#"{"op":"insert","table":"t","row":{"id":3,"a":"no"},"tx":1}"#;
    let good = r#"{"op":"insert","table":"t","row":{"id":4,"a":"x"},"tx":1}"#;
    let swap = r#"{"op":"update","table":"t","old":{"id":1,"a":"b"},"row":{"id":2,"a":"b"},"tx":1}
BAD
{"op":"update","table":"t","old":{"id":2,"a":"a"},"row":{"id":1,"a":"a"},"tx":1,"end":true}
"#;
    case.put("u.ndjson", swap.replace("BAD", bad));
    let run = apply(&case, "u.ndjson --quiet --max-dead-letters 1");
    assert!(run.refusal().contains("This event and the 2 events after it exchange keys"));
    assert_eq!(rows(&case, "t"), "(1,b) (2,a)");
    apply_and_report(&case, &swap.replace("BAD", good), "--stream good");
    assert_eq!(rows(&case, "t"), "(1,a) (2,b) (4,x)");
}

/// Each update sets another combination of columns. There are more combinations than pgspate
/// caches.
#[test]
fn updates_may_set_many_combinations_of_columns() {
    let columns: Vec<_> = (0..14).map(|nth| format!("c{nth} int default -1")).collect();
    let case =
        LoadCase::new(&format!("create table t (id int primary key, {})", columns.join(", ")));
    case.db.run("insert into t (id) values (1)");
    let mut events = String::new();
    for nth in 1..10_000 {
        let given = (0..14).filter(|at| nth >> at & 1 == 1);
        let given: Vec<_> = given.map(|at| format!(",\"c{at}\":{nth}")).collect();
        events += &format!(
            "{{\"op\":\"update\",\"table\":\"t\",\"row\":{{\"id\":1{}}}}}\n",
            given.concat()
        );
    }
    apply_and_report(&case, &events, "");
    // Returns the last number below 10,000 that has the column's bit.
    let last = |at: u32| (1..10_000_u32).rev().find(|nth| nth >> at & 1 == 1).unwrap();
    let last: Vec<_> = (0..14).map(|at| last(at).to_string()).collect();
    assert_eq!(rows(&case, "t"), format!("(1,{})", last.join(",")));
}

/// The batch has many events of one key, in one or several spellings.
#[test]
fn a_key_may_occur_often_in_a_batch() {
    let case = LoadCase::new(
        "create table n (k numeric, at timestamptz, v int, primary key (k, at)); \
         create extension if not exists citext; create table c (k citext primary key, v int)",
    );
    let run = apply_and_report(
        &case,
        r#"{"op":"insert","table":"n","row":{"k":1,"at":"2024-01-01 00:00:00+00","v":1}}
{"op":"insert","table":"n","row":{"k":1.00,"at":"2024-01-01T00:00:00Z","v":2}}
{"op":"update","table":"n","row":{"k":"1.0","at":"2024-01-01 01:00:00+01","v":3}}
{"op":"insert","table":"c","row":{"k":"Ada","v":1}}
{"op":"update","table":"c","row":{"k":"ADA","v":2}}
{"op":"update","table":"c","row":{"k":"ada","v":3}}
{"op":"insert","table":"c","row":{"k":"Bob","v":3}}
"#,
        "",
    );
    assert_eq!(run["missing"], 0);
    assert_eq!(case.value("select string_agg(v::text, ' ') from n"), "3");
    assert_eq!(rows(&case, "c"), "(Ada,3) (Bob,3)");
}

#[test]
fn a_stream_that_is_read_again_changes_nothing() {
    let case = case();
    let events = r#"{"op":"insert","table":"t","row":{"id":6,"a":"x","b":"y"}}
{"op":"update","table":"t","key":{"id":6},"row":{"id":7,"a":"z"}}
{"op":"update","table":"t","key":{"id":1},"row":{"id":10,"a":"q"}}
{"op":"delete","table":"t","key":{"id":2}}
"#;
    apply_and_report(&case, events, "--stream one");
    let before = rows(&case, "t");
    assert_eq!(before, "(10,q,b1) (3,a3,b3) (4,a4,b4) (5,a5,b5) (7,z,y)");
    apply_and_report(&case, events, "--stream two");
    assert_eq!(rows(&case, "t"), before);
    // Under the same stream name, the events are skipped.
    let report = apply_and_report(&case, events, "--stream two");
    assert_eq!((&report["events"], &report["events_before"]), (&0.into(), &4.into()));
}

/// Returns a case with a second table, whose foreign key refers to `t`.
fn case_with_child() -> LoadCase {
    let case = case();
    case.db.run(
        "create table child (id int primary key, of int references t); \
         insert into child values (1, 1)",
    );
    case
}

#[test]
fn truncate_discards_earlier_events() {
    let case = case_with_child();
    let report = apply_and_report(
        &case,
        r#"{"op":"insert","table":"t","row":{"id":6,"a":"x"},"tx":"a"}
{"op":"truncate","table":"child","tx":"a"}
{"op":"truncate","table":"t","tx":"a"}
{"op":"insert","table":"t","row":{"id":1,"a":"new"},"tx":"a","end":true}
{"op":"update","table":"t","key":{"id":1},"row":{"id":2}}
{"op":"insert","table":"child","row":{"id":1,"of":2}}
"#,
        "",
    );
    assert_eq!(report["truncated"], 2);
    assert_eq!((rows(&case, "t"), rows(&case, "child")), ("(2,new,dflt)".into(), "(1,2)".into()));
}

#[test]
fn tables_truncated_together_are_in_one_batch() {
    let case = case_with_child();
    // The first batch is full after the truncate of the first table.
    let report = apply_and_report(
        &case,
        r#"{"op":"insert","table":"t","row":{"id":6,"a":"x"},"tx":"a"}
{"op":"truncate","table":"t","tx":"a"}
{"op":"truncate","table":"child","tx":"a"}
{"op":"insert","table":"t","row":{"id":1,"a":"new"},"tx":"a","end":true}
"#,
        "--batch-rows 1",
    );
    assert_eq!(report["truncated"], 2);
    assert_eq!((rows(&case, "t"), rows(&case, "child")), ("(1,new,dflt)".into(), String::new()));
}

#[test]
fn events_of_tables_without_a_key_need_the_whole_old_row() {
    let case = LoadCase::new(
        "create table t (a int, b text, c json); insert into t values (1, 'x', null), \
         (1, 'x', null), (2, null, '{\"a\": 1}'), (3, '', null)",
    );
    let report = apply_and_report(
        &case,
        r#"{"op":"insert","table":"t","row":{"a":4,"b":"y","c":null}}
{"op":"delete","table":"t","old":{"a":1,"b":"x","c":null}}
{"op":"update","table":"t","old":{"a":2,"b":null,"c":{"a": 1}},"row":{"a":2,"b":"z"}}
{"op":"insert","table":"t","row":{"a":5,"b":"y","c":null}}
{"op":"delete","table":"t","old":{"a":5,"b":"y","c":null}}
{"op":"delete","table":"t","old":{"a":3,"b":null,"c":null}}
"#,
        "",
    );
    // The last row does not exist: an empty text is not NULL.
    assert_eq!(counts(&report), [3, 0, 3, 1]);
    let expected = "(1,x,) (2,z,\"{\"\"a\"\": 1}\") (3,\"\",) (4,y,)";
    assert_eq!(rows(&case, "t"), expected);
    case.put("u.ndjson", "{\"op\":\"delete\",\"table\":\"t\",\"old\":{\"a\":1}}\n");
    insta::assert_snapshot!(apply(&case, "u.ndjson --quiet").refusal(), @"
    error: could not apply the delete of public.t
      caused by: the table has no primary key, and the event does not have the whole old row
      at: u.ndjson, line 1

    hint: Give the table a primary key, or have the source send whole old rows, with all
          … columns of the target: in PostgreSQL, `alter table ... replica identity full`.
    ");
}

/// Rows that already have the event's values are not written.
#[test]
fn unchanged_rows_are_not_written() {
    let case = case();
    let versions =
        "select string_agg(concat_ws(' ', id, ctid, xmin, xmax), ';' order by id) from t";
    let before = case.value(versions);
    let report = apply_and_report(
        &case,
        r#"{"op":"update","table":"t","row":{"id":1,"a":"a1","b":"b1"}}
{"op":"snapshot","table":"t","row":{"id":2,"a":"a2","b":"b2"}}
{"op":"update","table":"t","row":{"id":3,"a":"other"}}
{"op":"update","table":"t","row":{"id":3,"a":"a3"}}
{"op":"delete","table":"t","key":{"id":4}}
{"op":"insert","table":"t","row":{"id":4,"a":"a4","b":"b4"}}
"#,
        "",
    );
    assert_eq!(counts(&report), [0, 0, 0, 0]);
    assert_eq!(case.value(versions), before);
}

/// No update may set a column that is `generated always as identity`. Such an update is refused,
/// not lost.
#[test]
fn a_change_of_an_identity_column_is_refused() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int primary key, n int generated always as identity, v int); \
             insert into t overriding system value values (1, 7, 0), (2, 8, 0)",
        );
        let events = r#"{"op":"update","table":"t","row":{"id":1,"n":7,"v":1}}
{"op":"update","table":"t","row":{"id":2,"n":80,"v":1}}
{"op":"update","table":"t","key":{"id":1},"row":{"id":3,"n":70,"v":1}}
"#;
        case.put("s.ndjson", events);
        let refusal = apply(&case, &format!("s.ndjson --quiet {args}")).refusal();
        allow_duplicates! {
            assert_snapshot!(refusal, @"
            error: could not apply the update of public.t
              caused by: an update of public.t sets a column that is generated always as identity
              at: s.ndjson, line 2

            hint: No update may set n. On the target, run `alter table public.t alter column ...
                  … set generated by default`. Nothing of its batch is applied. With
                  … `--max-dead-letters N` up to N such events are set aside in
                  … pgspate.dead_letter, and the others applied.
            ");
        }
        assert_eq!(rows(&case, "t"), "(1,7,0) (2,8,0)", "{args}");
        let report = apply_and_report(&case, events, &format!("{args} --max-dead-letters 1"));
        assert_eq!(report["dead_letters"], 1, "{args}");
        assert_eq!(rows(&case, "t"), "(2,8,0) (3,70,1)", "{args}");
        case.db.run("alter table t alter n set generated by default");
        let changed = events.lines().nth(1).unwrap().to_owned() + "\n";
        apply_and_report(&case, &changed, &format!("{args} --stream changed"));
        assert_eq!(rows(&case, "t"), "(2,80,1) (3,70,1)", "{args}");
    }
}

/// Events do not give a generated column. Without it the key would stand for several rows.
#[test]
fn a_key_with_a_generated_column_is_not_used() {
    let table = "create table t (k int not null, g int generated always as (k % 10) stored, \
                 v text not null, primary key (g, v)); insert into t (k, v) values (1, 'x'), \
                 (2, 'x')";
    let update = r#"{"op":"update","table":"t","old":{"k":1,"v":"x"},"row":{"k":1,"v":"y"}}"#;
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(table);
        apply_and_report(&case, &format!("{update}\n"), args);
        assert_eq!(rows(&case, "t"), "(1,1,y) (2,2,x)", "{args}");
        // Another unique index identifies the rows.
        case.db.run("alter table t add unique (k)");
        let update = r#"{"op":"update","table":"t","key":{"k":2},"row":{"k":2,"v":"z"}}"#;
        apply_and_report(&case, &format!("{update}\n"), &format!("{args} --stream other"));
        assert_eq!(rows(&case, "t"), "(1,1,y) (2,2,z)", "{args}");
    }
}

/// An event spells a value of the row that its transaction has inserted in another way.
#[test]
fn an_old_row_may_spell_its_values_otherwise() {
    for ty in ["numeric", "numeric(10,2)"] {
        let case = LoadCase::new(&format!("create table t (id int primary key, a {ty})"));
        apply_and_report(
            &case,
            r#"{"op":"insert","table":"t","row":{"id":1,"a":1.0},"tx":"1"}
{"op":"insert","table":"t","row":{"id":2,"a":1.0},"tx":"1"}
{"op":"update","table":"t","old":{"id":1,"a":1.00},"row":{"id":1,"a":2},"tx":"1"}
{"op":"delete","table":"t","old":{"id":2,"a":1.00},"tx":"1","end":true}
"#,
            "",
        );
        assert_eq!(case.value("select string_agg(id || ' ' || a::int, ',') from t"), "1 2", "{ty}");
    }
}
