//! Many staged rows, which PostgreSQL 15 and later merge if their order does not matter.

use crate::support::LoadCase;
use crate::{apply_and_report, counts};

/// A function for a check constraint. Table `log` gets the first statement that calls it.
const NOTE: &str = "\
create table log (sql text);
create function note() returns bool language plpgsql as
  'begin
     insert into log select current_query() where not exists (select from log);
     return true;
   end';";

/// Asks whether the statement was MERGE.
const IS_MERGED: &str = "select count(*) from log where sql like 'merge into %'";

/// Returns events of table t, one for each number.
fn events(numbers: std::ops::Range<u32>, event: impl Fn(u32) -> String) -> String {
    numbers.map(|n| event(n).replacen('{', "{\"table\":\"t\",", 1) + "\n").collect()
}

fn delete(id: u32) -> String {
    format!("{{\"op\":\"delete\",\"key\":{{\"id\":{id}}}}}")
}

#[test]
fn all_kinds_of_changes_are_merged_and_counted() {
    let create =
        "create table t (id int primary key check (note()), v numeric, w text default 'w')";
    let case = LoadCase::new(&format!("{NOTE} {create}"));
    case.db.run("insert into t select n, n, 'old' from generate_series(1, 2000) n");
    case.db.run("truncate log");
    let whole = |id: u32, v: &str| {
        format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id},\"v\":{v},\"w\":\"new\"}}}}")
    };
    let partial = |id: u32| format!("{{\"op\":\"update\",\"row\":{{\"id\":{id},\"v\":{id}.0}}}}");
    let input = [
        // Equal to the rows of the table.
        events(1..101, |id| {
            format!("{{\"op\":\"update\",\"row\":{{\"id\":{id},\"v\":{id},\"w\":\"old\"}}}}")
        }),
        // Equal to a value, but not identical to it.
        events(101..301, partial),
        events(301..501, delete),
        events(1001..1601, |id| whole(id, "0")),
        events(3001..3401, |id| whole(id, "1")),
        // Without a row.
        events(4001..4051, partial),
        events(4051..4061, delete),
        // With a default.
        events(5001..5004, |id| format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id},\"v\":2}}}}")),
    ];
    let report = apply_and_report(&case, &input.concat(), "--batch-delay 60000");
    assert_eq!(counts(&report), [403, 800, 200, 50]);
    let groups = "select string_agg(concat_ws(' ', n, v, w), ', ' order by n, v, w) from ( \
                    select count(*) n, case when v < 3 then v end v, w from t \
                    where id > 1000 group by 2, 3) g";
    assert_eq!(case.value(groups), "3 2 w, 400 1 new, 400 old, 600 0 new");
    assert_eq!(
        case.value("select string_agg(v::text, ' ') from t where id in (100, 101)"),
        "100 101.0"
    );
    let version: u32 = case.value("show server_version_num").parse().unwrap();
    let has_sound_merge = version >= 150_005 && version != 160_000;
    assert_eq!(case.value(IS_MERGED), u32::from(has_sound_merge).to_string());
}

/// A deleted row frees its unique values for an inserted row.
#[test]
fn rows_that_free_unique_values_are_deleted_first() {
    for index in [
        "create unique index on t (u)",
        "create unique index on t (u) where u > 0",
        "create unique index on t ((u + 1))",
        "alter table t add exclude using btree (u with =)",
    ] {
        let create = format!("create table t (id int primary key check (note()), u int); {index}");
        let case = LoadCase::new(&format!("{NOTE} {create}"));
        case.db.run("insert into t select n, n from generate_series(1, 1500) n; truncate log");
        let insert =
            |u: u32| format!("{{\"op\":\"insert\",\"row\":{{\"id\":{},\"u\":{u}}}}}", 5000 - u);
        let report = apply_and_report(
            &case,
            &(events(1..1201, delete) + &events(1..1201, insert)),
            "--batch-delay 60000",
        );
        assert_eq!(counts(&report), [1200, 0, 1200, 0], "{index}");
        assert_eq!(case.value("select count(distinct u) from t"), "1500", "{index}");
        assert_eq!(case.value(IS_MERGED), "0", "{index}");
    }
}

/// Rows that refer to a deleted row are deleted before it.
#[test]
fn rows_that_refer_to_others_are_written_in_their_order() {
    let case = LoadCase::new(
        "create table p (id int primary key, u int unique); \
         create table t (id int primary key, p int references p, \
                         u int references p (u) on update restrict); \
         insert into p select n, n from generate_series(1, 1500) n; \
         insert into t select n, n, n from generate_series(1, 1500) n",
    );
    let parent = |event: String| event.replace("\"t\"", "\"p\"");
    let update = |id| format!("{{\"op\":\"update\",\"row\":{{\"id\":{id},\"u\":{}}}}}", id + 5000);
    let insert_parent = |id| format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id}}}}}");
    let insert = |id| format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id},\"p\":{id}}}}}");
    let input = [
        events(1..1201, delete),
        parent(events(601..1201, update)),
        parent(events(1..601, delete)),
        parent(events(2001..3201, insert_parent)),
        events(2001..3201, insert),
    ];
    let report = apply_and_report(&case, &input.concat(), "--batch-delay 60000");
    assert_eq!(counts(&report), [2400, 600, 1800, 0]);
    assert_eq!(case.value("select count(*) from p join t on t.p = p.id"), "1500");
}

/// A row moves from a partition's stream to that of the partitioned table.
#[test]
fn rows_of_a_partition_are_deleted_first() {
    let case = LoadCase::new(
        "create table p (id int primary key, v int) partition by range (id); \
         create table p1 partition of p for values from (0) to (10000); \
         insert into p select n, 0 from generate_series(1, 1200) n",
    );
    let of = |table: &str, event: String| event.replace("\"t\"", &format!("\"{table}\""));
    let insert = |id| format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id},\"v\":1}}}}");
    let input = [
        of("a", events(5000..5001, insert)),
        of("b", events(1..1201, delete)),
        of("b", events(6000..6001, insert)),
        of("a", events(1..1201, insert)),
    ];
    let args = "--batch-delay 60000 --map a=p --map b=p1";
    apply_and_report(&case, &input.concat(), args);
    assert_eq!(case.value("select count(*) || ' ' || sum(v) from p"), "1202 1202");
}
