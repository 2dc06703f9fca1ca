//! Rows that share or swap keys, tables without a key, and inputs that end within a transaction.

use serde_json::{Value, json};

use crate::source::{PublishedDatabase, apply_slot_and_report};
use crate::support::LoadCase;
use crate::{apply, apply_and_report, counts, rows};

const CREATE_KK: &str = "create table kk (k int primary key deferrable, v text);\n\
                    alter table kk replica identity full;\n";

fn column(name: &str, value: &Value) -> Value {
    json!({"name": name, "value": value})
}

/// Returns wal2json's record of an update of a table with `replica identity full`.
fn update(table: &str, old: [Value; 2], new: [Value; 2]) -> String {
    let row = |row: &[Value; 2]| json!([column("k", &row[0]), column("v", &row[1])]);
    let line = json!({"action": "U", "schema": "public", "table": table, "columns": row(&new),
                      "identity": row(&old)});
    format!("{line}\n")
}

/// Returns two updates that swap the keys of two rows.
fn swap_of_keys() -> String {
    update("kk", [json!(1), json!("a")], [json!(2), json!("a")])
        + &update("kk", [json!(2), json!("b")], [json!(1), json!("b")])
}

/// All keys increase by one, so that every row takes the key of the next row.
#[test]
fn rows_that_differ_only_in_their_key_are_all_kept() {
    let rows_before = "insert into kk select n, 'x' from generate_series(1, 5) n";
    let source = PublishedDatabase::new(&format!(
        "{CREATE_KK}create publication p for table kk;\n{rows_before}"
    ));
    for direct in [0, 1000] {
        let case = LoadCase::new(&format!("{CREATE_KK}{rows_before}"));
        source.run("truncate kk");
        source.run(rows_before);
        let args = format!("--direct-rows {direct} --stream s{direct}");
        apply_slot_and_report(&source, &case, &format!("--create-slot {args}"));
        source.run("update kk set k = k + 1");
        apply_slot_and_report(&source, &case, &args);
        assert_eq!(rows(&case, "kk"), source.rows("kk"));
        source.run("update kk set k = k + 1;\nupdate kk set k = 10 - k, v = 'y'");
        apply_slot_and_report(&source, &case, &args);
        assert_eq!(rows(&case, "kk"), source.rows("kk"));
        source.value(&format!("select pg_drop_replication_slot('{}')", source.slot_name()));
    }
}

#[test]
fn swapped_keys_need_transactions() {
    let case = LoadCase::new(&format!("{CREATE_KK}insert into kk values (1, 'a'), (2, 'b')"));
    case.put("s.json", swap_of_keys());
    for args in ["", "--direct-rows 0", "--batch-rows 1"] {
        let run = apply(&case, &format!("s.json --quiet --stream s {args}"));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        let says = |words: &str| assert!(run.stderr.contains(words), "{}", run.stderr);
        for words in ["gets the key of another row", "s.json, line 1", "include-transaction"] {
            says(words);
        }
        assert_eq!(rows(&case, "kk"), "(1,a) (2,b)");
    }
    // Here the batch itself inserts both rows. pgspate rejects the swap at its first update, too.
    let insert = |k: u8, v: &str| {
        let columns = json!([column("k", &json!(k)), column("v", &json!(v))]);
        json!({"action": "I", "schema": "public", "table": "kk", "columns": columns}).to_string()
    };
    let case = LoadCase::new(CREATE_KK);
    case.put("s.json", format!("{}\n{}\n{}", insert(1, "a"), insert(2, "b"), swap_of_keys()));
    let run = apply(&case, "s.json --quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("s.json, line 3"), "{}", run.stderr);
    // Transaction marks show which events belong to the swap.
    let case = LoadCase::new(&format!("{CREATE_KK}insert into kk values (1, 'a'), (2, 'b')"));
    let events = format!("{{\"action\":\"B\"}}\n{}{{\"action\":\"C\"}}\n", swap_of_keys());
    apply_and_report(&case, &events, "");
    assert_eq!(rows(&case, "kk"), "(1,b) (2,a)");
    // No other row has the new key.
    let moved = update("kk", [json!(1), json!("b")], [json!(3), json!("b")]);
    apply_and_report(&case, &moved, "--stream other");
    assert_eq!(rows(&case, "kk"), "(2,a) (3,b)");
}

#[test]
fn an_update_that_changes_nothing_counts_only_as_an_event() {
    let case = LoadCase::new("create table l (k int, v text); insert into l values (1, 'a')");
    let same = update("l", [json!(1), json!("a")], [json!(1), json!("a")]);
    let report = apply_and_report(&case, &same, "");
    assert_eq!((&report["events"], counts(&report)), (&1.into(), [0, 0, 0, 0]));
    let other = update("l", [json!(1), json!("a")], [json!(1), json!("b")]);
    let report = apply_and_report(&case, &format!("{same}{other}"), "--stream more");
    assert_eq!(counts(&report), [1, 0, 1, 0]);
    assert_eq!(rows(&case, "l"), "(1,b)");
}

/// A table without a key: events are applied in the order of the input.
#[test]
fn rows_without_a_key_are_deleted_and_inserted_in_order() {
    let line = |op: &str, n: u8| {
        let part = if op == "insert" { "row" } else { "old" };
        format!("{{\"op\":\"{op}\",\"table\":\"l\",\"{part}\":{{\"n\":{n}}}}}\n")
    };
    let case = LoadCase::new("create table l (n int)");
    // The first delete finds no row. It must not delete the row that is inserted later.
    let events = [line("delete", 1), line("insert", 1), line("insert", 2), line("delete", 2)];
    let report = apply_and_report(&case, &events.concat(), "");
    assert_eq!(counts(&report), [2, 0, 1, 1], "{report}");
    assert_eq!(rows(&case, "l"), "(1)");
}

/// Rows can be updated if the only unique index is on a nullable column, even if foreign keys refer
/// to the column.
#[test]
fn rows_with_a_unique_value_that_may_be_null_are_updated() {
    for child in ["", "create table c (k int references l (k) on delete cascade);"] {
        let tables = format!("create table l (k int unique, v text); {child}");
        let case = LoadCase::new(&format!("{tables} insert into l values (1, 'a'), (2, 'b')"));
        if !child.is_empty() {
            case.db.run("insert into c values (1)");
        }
        let events = update("l", [json!(1), json!("a")], [json!(1), json!("c")])
            + &update("l", [json!(2), json!("b")], [json!(2), json!("d")]);
        apply_and_report(&case, &events, "");
        assert_eq!(rows(&case, "l"), "(1,c) (2,d)");
        if !child.is_empty() {
            assert_eq!(rows(&case, "c"), "(1)");
        }
    }
}

#[test]
fn an_unfinished_transaction_is_held_or_applied() {
    let line = |n: u8, end: &str| {
        format!(
            "{{\"database\":\"d\",\"table\":\"l\",\"type\":\"insert\",\"xid\":{end},\
             \"data\":{{\"n\":{n}}}}}\n"
        )
    };
    let maxwell =
        line(1, "7,\"commit\":true") + &line(2, "8,\"xoffset\":0") + &line(3, "8,\"xoffset\":1");
    let wal2json = |n: u8| {
        let columns = json!([column("n", &json!(n))]);
        json!({"action": "I", "schema": "public", "table": "l", "columns": columns}).to_string()
    };
    let wal2json =
        format!("{}\n{{\"action\":\"B\"}}\n{}\n{}\n", wal2json(1), wal2json(2), wal2json(3));
    let plain = "{\"op\":\"insert\",\"table\":\"l\",\"row\":{\"n\":1}}\n".to_owned()
        + "{\"op\":\"insert\",\"table\":\"l\",\"row\":{\"n\":2},\"tx\":8}\n"
        + "{\"op\":\"insert\",\"table\":\"l\",\"row\":{\"n\":3},\"tx\":8}\n";
    for (events, args) in [(maxwell, "--map d.l=public.l"), (wal2json, ""), (plain, "")] {
        for batch in ["", "--batch-rows 1"] {
            let case = LoadCase::new("create table l (n int primary key)");
            case.put("s.json", &events);
            let args = format!("s.json --quiet {args} {batch}");
            let run = apply(&case, &args);
            assert_eq!(run.status, Some(2), "{}", run.stderr);
            assert!(run.stderr.contains("--at-end apply"), "{}", run.stderr);
            assert_eq!(rows(&case, "l"), "(1)");
            let run = apply(&case, &format!("{args} --at-end apply"));
            assert_eq!(run.status, Some(0), "{}", run.stderr);
            assert_eq!(rows(&case, "l"), "(1) (2) (3)");
            // No events of the transaction remain to be applied.
            let run = apply(&case, &format!("{args} --at-end apply"));
            assert_eq!(run.status, Some(0), "{}", run.stderr);
        }
    }
}
