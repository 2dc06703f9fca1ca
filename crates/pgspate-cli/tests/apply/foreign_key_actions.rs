//! Actions of foreign keys to the tables of a stream. They act on the rows of the target as they
//! act event by event.

use crate::support::LoadCase;
use crate::{apply, apply_and_report, rows};

/// Returns the events as lines of one transaction.
fn transaction(events: &[&str]) -> String {
    let last = events.len() - 1;
    let line = |(nth, event): (usize, &&str)| {
        let end = if nth == last { r#","end":true"# } else { "" };
        format!("{{{event},\"tx\":\"1\"{end}}}\n")
    };
    events.iter().enumerate().map(line).collect()
}

/// Applies the events of one transaction as whole batches, with parameters and with a stage.
/// Asserts the rows of `table` afterwards.
#[track_caller]
fn assert_rows_after(setup: &str, events: &[&str], table: &str, expected: &str) {
    for args in ["", "--direct-rows 0", "--batch-rows 1"] {
        let case = LoadCase::new(setup);
        apply_and_report(&case, &transaction(events), args);
        assert_eq!(rows(&case, table), expected, "{args}");
    }
}

#[test]
fn a_key_that_another_row_gets_takes_no_references_along() {
    let moved = r#""op":"update","table":"p","key":{"id":4},"row":{"id":3,"code":5}"#;
    let taken = r#""op":"update","table":"p","key":{"id":2},"row":{"id":4,"code":7}"#;
    assert_rows_after(
        "create table p (id int primary key, code int unique); \
         create table c (id int primary key, pcode int references p (code) on update cascade); \
         insert into p values (4, 5), (2, 7); insert into c values (1, 5)",
        &[moved, taken],
        "c",
        "(1,5)",
    );
    let inserted = r#""op":"insert","table":"p","row":{"id":4,"code":8}"#;
    assert_rows_after(
        "create table p (id int primary key, code int unique); \
         create table c (id int primary key, pcode int references p (code) on update set null); \
         insert into p values (4, 5); insert into c values (1, 5)",
        &[moved, inserted],
        "c",
        "(1,5)",
    );
    let moved = r#""op":"update","table":"p","key":{"id":2},"row":{"id":3,"v":"two"}"#;
    let taken = r#""op":"update","table":"p","key":{"id":1},"row":{"id":2,"v":"one"}"#;
    assert_rows_after(
        "create table p (id int primary key, v text); \
         create table c (id int primary key, pid int references p on update cascade); \
         insert into p values (1, 'one'), (2, 'two'); insert into c values (20, 2)",
        &[moved, taken],
        "c",
        "(20,3)",
    );
}

/// A source with whole old rows does not say that a key is free, so these events stay together.
#[test]
fn a_changed_key_of_a_source_with_whole_old_rows_is_written() {
    let setup = "create table p (id int primary key, code text); \
         create table c (id int primary key, pid int references p on update cascade); \
         insert into p values (1, 'a'), (2, 'b'), (3, 'c'); insert into c values (7, 1), (8, 3)";
    let p1 = r#""op":"update","table":"p","old":{"id":1,"code":"a"},"row":{"id":11,"code":"a"}"#;
    let c = r#""op":"update","table":"c","old":{"id":7,"pid":1},"row":{"id":7,"pid":11}"#;
    let p2 = r#""op":"update","table":"p","old":{"id":2,"code":"b"},"row":{"id":2,"code":"bb"}"#;
    assert_rows_after(setup, &[p1, c, p2], "c", "(7,11) (8,3)");
    assert_rows_after(setup, &[p1, c, p2], "p", "(11,a) (2,bb) (3,c)");
    // Each row gets the key of the next one, which leaves it later.
    let p1 = r#""op":"update","table":"p","old":{"id":1,"code":"a"},"row":{"id":2,"code":"a"}"#;
    let p2 = r#""op":"update","table":"p","old":{"id":2,"code":"b"},"row":{"id":3,"code":"b"}"#;
    let p3 = r#""op":"update","table":"p","old":{"id":3,"code":"c"},"row":{"id":4,"code":"c"}"#;
    let c7 = r#""op":"update","table":"c","old":{"id":7,"pid":1},"row":{"id":7,"pid":2}"#;
    let c8 = r#""op":"update","table":"c","old":{"id":8,"pid":3},"row":{"id":8,"pid":4}"#;
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(setup);
        apply_and_report(&case, &transaction(&[p1, p2, p3, c7, c8]), args);
        assert_eq!(rows(&case, "c"), "(7,2) (8,4)", "{args}");
        assert_eq!(rows(&case, "p"), "(2,a) (3,b) (4,c)", "{args}");
    }
}

/// Values that no other row gets need no smaller steps: the report counts one commit.
#[test]
fn new_values_of_referenced_columns_are_followed_in_one_batch() {
    let case = LoadCase::new(
        "create table p (id int primary key, code text unique); \
         create table c (id int primary key, code text references p (code) on update cascade); \
         insert into p select n, 'old ' || n from generate_series(1, 2000) n; \
         insert into c select n, 'old ' || n from generate_series(1, 2000) n; \
         create index on c (code)",
    );
    let event = |id: u32| format!(r#""op":"update","table":"p","row":{{"id":{id},"code":"{id}"}}"#);
    let events: Vec<String> = (1..=2000).map(event).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    apply_and_report(&case, &transaction(&events), "");
    assert_eq!(case.value("select count(*) from c where code = id::text"), "2000");
}

/// MySQL writes no events of its cascades.
#[test]
fn a_row_that_is_deleted_and_inserted_again_loses_its_children() {
    let deleted = r#""op":"delete","table":"p","key":{"id":1}"#;
    let inserted = r#""op":"insert","table":"p","row":{"id":1}"#;
    let setup = |action: &str| {
        format!(
            "create table p (id int primary key); \
             create table c (id int primary key, pid int references p {action}); \
             insert into p values (1); insert into c values (10, 1)"
        )
    };
    assert_rows_after(&setup("on delete cascade"), &[deleted, inserted], "c", "");
    assert_rows_after(&setup("on delete set null"), &[deleted, inserted], "c", "(10,)");
    let written = r#""op":"update","table":"p","row":{"id":1}"#;
    assert_rows_after(&setup("on delete cascade"), &[deleted, written], "c", "");
}

#[test]
fn an_action_within_a_table_or_a_cycle_follows_each_event() {
    let first = r#""op":"update","table":"emp","row":{"id":1,"code":"B","boss":null}"#;
    let second = r#""op":"update","table":"emp","row":{"id":2,"code":"A","boss":null}"#;
    let child = r#""op":"update","table":"emp","row":{"id":10,"code":"X","boss":"A"}"#;
    assert_rows_after(
        "create table emp (id int primary key, code text unique, \
           boss text references emp (code) on update cascade); \
         insert into emp values (1, 'A', null), (2, 'C', null), (10, 'X', 'C')",
        &[first, second, child],
        "emp",
        "(1,B,) (10,X,A) (2,A,)",
    );
}

#[test]
fn an_update_of_a_row_without_a_key_moves_its_references() {
    let event =
        r#""op":"update","table":"p","old":{"code":"A","note":"m"},"row":{"code":"B","note":"m"}"#;
    assert_rows_after(
        "create table p (code text unique, note text); \
         create table c (id int primary key, \
           code text references p (code) on update cascade on delete cascade); \
         insert into p values ('A', 'm'); insert into c values (1, 'A')",
        &[event],
        "c",
        "(1,B)",
    );
}

/// A foreign key to a partitioned table refers to the rows of its partitions.
#[test]
fn rows_of_a_partition_are_referred_to_through_its_root() {
    let setup = "create table p (id int primary key, u int) partition by range (id); \
         create table p1 partition of p for values from (0) to (100); \
         create unique index on p1 (u); \
         create table c (id int primary key, pid int references p on delete cascade); \
         insert into p values (1, 10), (2, 20); insert into c values (100, 1), (200, 2)";
    let update =
        |id: u32, u: u32| format!(r#""op":"update","table":"p1","row":{{"id":{id},"u":{u}}}"#);
    let events = [update(1, 99), update(2, 10), update(1, 20)];
    let events = events.each_ref().map(String::as_str);
    assert_rows_after(setup, &events, "c", "(100,1) (200,2)");
    // The key cannot change: the foreign key has no action for it.
    let case = LoadCase::new(setup);
    let moved = r#""op":"update","table":"p1","key":{"id":1},"row":{"id":3}"#;
    case.put("s.ndjson", transaction(&[moved]));
    let refusal = apply(&case, "s.ndjson --quiet").refusal().clone();
    assert!(refusal.contains("could not apply the update of public.p1"), "{refusal}");
    assert_eq!(rows(&case, "c"), "(100,1) (200,2)");
}

/// Partitions are written before the tables whose foreign keys refer to their root.
#[test]
fn partitions_are_parents_of_tables_that_refer_to_their_root() {
    let child = r#""op":"insert","table":"c","row":{"id":1,"pid":5}"#;
    let parent = r#""op":"insert","table":"p1","row":{"id":5}"#;
    let case = LoadCase::new(
        "create table p (id int primary key) partition by range (id); \
         create table p1 partition of p for values from (0) to (100); \
         create table c (id int primary key, pid int references p)",
    );
    let report = apply_and_report(&case, &transaction(&[child, parent]), "");
    assert_eq!((report["inserted"].as_u64(), rows(&case, "c")), (Some(2), "(1,5)".to_owned()));
}

#[test]
fn changes_that_triggers_keep_out_are_counted() {
    for args in ["", "--direct-rows 0"] {
        let case = LoadCase::new(
            "create table t (id int primary key, v int); \
             create function keep_out() returns trigger language plpgsql as $$ begin \
               if coalesce(new.id, old.id) = 2 then return null; end if; \
               return coalesce(new, old); end $$; \
             insert into t values (2, 0), (3, 0); \
             create trigger keeps_out before insert or update or delete on t \
               for each row execute function keep_out()",
        );
        let events = "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":1,\"v\":1}}\n\
                      {\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":2,\"v\":1}}\n\
                      {\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":3,\"v\":1}}\n";
        case.put("s.ndjson", events);
        let run = apply(&case, &format!("s.ndjson --json --quiet {args}"));
        let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(run.status, Some(1), "{}", run.stderr);
        assert_eq!(
            (&report["changes_kept_out"], &report["updated"]),
            (&1.into(), &1.into()),
            "{args}"
        );
        let warning = "triggers of the target tables kept out 1 change";
        assert_eq!(report["warnings"][0], warning);
        assert_eq!(rows(&case, "t"), "(1,1) (2,0) (3,1)");
        let delete = "{\"op\":\"delete\",\"table\":\"t\",\"key\":{\"id\":2}}\n";
        let report = apply_and_report(&case, delete, &format!("--stream d {args}"));
        assert_eq!(report["changes_kept_out"], 1);
        case.db.run(
            "delete from t where id = 3; alter table t disable trigger keeps_out; \
             delete from t; alter table t enable trigger keeps_out",
        );
        let insert = "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":2,\"v\":1}}\n";
        let report = apply_and_report(&case, insert, &format!("--stream i {args}"));
        assert_eq!(report["changes_kept_out"], 1);
    }
}

/// A row that exchanges unique values is deleted and inserted again.
#[test]
fn a_row_that_a_trigger_does_not_let_in_again_is_refused() {
    let case = LoadCase::new(
        "create table t (id int primary key, u int unique, day int); \
         insert into t values (1, 10, 1), (2, 20, 2); \
         create function keep_out() returns trigger language plpgsql as \
           $$ begin if new.day = 1 then return null; end if; return new; end $$; \
         create trigger keeps_out before insert on t for each row execute function keep_out()",
    );
    let update =
        |id: u32, u: u32| format!(r#""op":"update","table":"t","row":{{"id":{id},"u":{u}}}"#);
    let events = [update(1, 20), update(2, 10)];
    case.put("s.ndjson", transaction(&events.each_ref().map(String::as_str)));
    let refusal = apply(&case, "s.ndjson --quiet").refusal().clone();
    assert!(refusal.contains("could not apply the update of public.t"), "{refusal}");
    assert_eq!(rows(&case, "t"), "(1,10,1) (2,20,2)");
}

#[test]
fn the_default_of_a_domain_is_the_default_of_its_columns() {
    for args in ["", "--direct-rows 0", "--batch-rows 1"] {
        let case = LoadCase::new(
            "create domain state as text default 'new'; \
             create table t (id int primary key, s state, n int)",
        );
        let events = r#"{"op":"insert","table":"t","row":{"id":1,"s":"old","n":1}}
{"op":"insert","table":"t","row":{"id":2,"n":2}}
"#;
        apply_and_report(&case, events, args);
        assert_eq!(rows(&case, "t"), "(1,old,1) (2,new,2)", "{args}");
    }
}
