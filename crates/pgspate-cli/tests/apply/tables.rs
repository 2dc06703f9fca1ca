//! Several tables, foreign keys, unique indexes, columns and types.

use insta::assert_snapshot;

use crate::run::{finish, spawn};
use crate::support::{LoadCase, folded};
use crate::{apply, apply_and_report, command, counts, rows};

fn case_with_parent_and_child() -> LoadCase {
    LoadCase::new(
        "create table parent (id int primary key, email text unique); \
         create table child (id int primary key, parent int not null references parent, v text); \
         insert into parent values (1, 'a'), (2, 'b'), (3, 'c'); \
         insert into child values (1, 1, 'x'), (2, 1, 'y'), (3, 2, 'z')",
    )
}

/// The events of the child table begin before those of the parent table. Parents are deleted after
/// their children moved to other parents.
#[test]
fn foreign_keys_hold_whatever_the_order_of_tables() {
    let case = case_with_parent_and_child();
    let report = apply_and_report(
        &case,
        r#"{"op":"update","table":"child","row":{"id":3,"v":"zz"}}
{"op":"insert","table":"parent","row":{"id":4,"email":"d"}}
{"op":"insert","table":"child","row":{"id":4,"parent":4,"v":"new"}}
{"op":"update","table":"child","row":{"id":1,"parent":4}}
{"op":"update","table":"child","row":{"id":2,"parent":4}}
{"op":"delete","table":"parent","key":{"id":1}}
{"op":"delete","table":"child","key":{"id":3}}
{"op":"delete","table":"parent","key":{"id":2}}
"#,
        "",
    );
    assert_eq!(counts(&report), [2, 2, 3, 0]);
    assert_eq!(rows(&case, "parent"), "(3,c) (4,d)");
    assert_eq!(rows(&case, "child"), "(1,4,x) (2,4,y) (4,4,new)");
}

/// A parent's key changes, and the children have their own events. The target's foreign key must
/// not delete children when pgspate removes the old key.
#[test]
fn a_change_of_a_referenced_key_deletes_no_child() {
    for action in ["", "on delete cascade", "on delete set null", "deferrable"] {
        let case = LoadCase::new(&format!(
            "create table parent (id int primary key, v text); \
             create table child (id int primary key, parent int references parent {action}); \
             insert into parent values (1, 'a'), (2, 'b'); insert into child values (1, 1), (2, 2)"
        ));
        apply_and_report(
            &case,
            r#"{"op":"update","table":"parent","key":{"id":1},"row":{"id":10}}
{"op":"update","table":"child","row":{"id":1,"parent":10}}
{"op":"update","table":"child","row":{"id":2,"parent":10}}
{"op":"delete","table":"parent","key":{"id":2}}
"#,
            "",
        );
        assert_eq!(rows(&case, "parent"), "(10,a)", "{action}");
        assert_eq!(rows(&case, "child"), "(1,10) (2,10)", "{action}");
    }
}

#[test]
fn foreign_keys_may_form_trees_and_cycles() {
    let case = LoadCase::new(
        "create table tree (id int primary key, up int references tree); \
         insert into tree values (1, null), (2, 1), (3, 2); \
         create table a (id int primary key, b int); \
         create table b (id int primary key, a int references a); \
         alter table a add foreign key (b) references b; \
         insert into a values (1, null); insert into b values (1, 1); update a set b = 1",
    );
    let report = apply_and_report(
        &case,
        r#"{"op":"insert","table":"tree","row":{"id":4,"up":3}}
{"op":"insert","table":"tree","row":{"id":5,"up":4}}
{"op":"update","table":"tree","row":{"id":3,"up":5}}
{"op":"update","table":"tree","row":{"id":4,"up":null}}
{"op":"delete","table":"tree","key":{"id":2}}
{"op":"insert","table":"a","row":{"id":2,"b":null}}
{"op":"insert","table":"b","row":{"id":2,"a":2}}
{"op":"update","table":"a","row":{"id":2,"b":2}}
{"op":"update","table":"a","row":{"id":1,"b":2}}
{"op":"delete","table":"b","key":{"id":1}}
"#,
        "",
    );
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("form a cycle that includes public.a"), "{warnings}");
    assert_eq!(rows(&case, "tree"), "(1,) (3,5) (4,) (5,4)");
    assert_eq!((rows(&case, "a"), rows(&case, "b")), ("(1,2) (2,2)".into(), "(2,2)".into()));
}

/// Values of a second unique index move between rows.
#[test]
fn unique_values_move_between_rows() {
    let case = case_with_parent_and_child();
    apply_and_report(
        &case,
        r#"{"op":"delete","table":"parent","key":{"id":3}}
{"op":"insert","table":"parent","row":{"id":4,"email":"c"}}
{"op":"update","table":"parent","row":{"id":1,"email":"tmp"}}
{"op":"update","table":"parent","row":{"id":2,"email":"a"}}
{"op":"update","table":"parent","row":{"id":1,"email":"b"}}
{"op":"update","table":"parent","row":{"id":4,"email":"d"}}
{"op":"insert","table":"parent","row":{"id":5,"email":"c"}}
"#,
        "",
    );
    assert_eq!(rows(&case, "parent"), "(1,b) (2,a) (4,d) (5,c)");
    assert_eq!(rows(&case, "child"), "(1,1,x) (2,1,y) (3,2,z)");
}

#[test]
fn many_unique_values_can_rotate() {
    let case = LoadCase::new(
        "create table t (id int primary key, u int unique not null, v text); \
         insert into t select i, i, 'v' from generate_series(0, 2999) i",
    );
    // All values increase by one, and the last becomes the first. The source could do so in one
    // statement with a deferred constraint.
    let events: String = (0..3000)
        .map(|id| {
            let u = (id + 1) % 3000;
            let end = id == 2999;
            let event = format!(r#"{{"op":"update","table":"t","row":{{"id":{id},"u":{u}}}"#);
            event + &format!(r#","tx":1,"end":{end}}}"#) + "\n"
        })
        .collect();
    apply_and_report(&case, &events, "");
    assert_eq!(case.value("select count(*) from t where u = (id + 1) % 3000 and v = 'v'"), "3000");
}

#[test]
fn deferred_constraints_wait_for_the_commit() {
    let case = LoadCase::new(
        "create table p (id int primary key, u int unique deferrable); \
         create table c (id int primary key, p int references p deferrable); \
         insert into p values (1, 1), (2, 2)",
    );
    apply_and_report(
        &case,
        r#"{"op":"insert","table":"c","row":{"id":1,"p":9},"tx":1}
{"op":"update","table":"p","row":{"id":1,"u":2},"tx":1}
{"op":"update","table":"p","row":{"id":2,"u":1},"tx":1}
{"op":"insert","table":"p","row":{"id":9,"u":9},"tx":1,"end":true}
"#,
        "",
    );
    assert_eq!((rows(&case, "p"), rows(&case, "c")), ("(1,2) (2,1) (9,9)".into(), "(1,9)".into()));
}

#[test]
fn values_of_all_types_and_special_columns_are_stored() {
    let case = LoadCase::new(
        "create type mood as enum ('sad', 'ok'); create domain qty as int check (value > 0); \
         create table t (id bigint generated always as identity primary key, n numeric(10,2), \
           f float8, d date, ts timestamptz, b bytea, j jsonb, js json, u uuid, m mood, q qty, \
           arr int[], r int4range, p point, \"Odd \"\"name\" text, \
           double int generated always as (q * 2) stored, s int generated by default as identity, \
           at timestamptz not null default '2020-01-01 00:00+00'); \
         insert into t (n) values (1), (2)",
    );
    let events = [
        r#"{"op":"insert","table":"t","row":{"id":7,"n":12.345,"f":1e300,"d":"2024-02-29","#,
        r#""ts":"2024-01-01T00:00:00Z","b":"\\x00ff","j":{"a":[1,2.50]},"js":{"a": 1},"#,
        r#""u":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","m":"ok","q":3,"arr":[1,null,3],"#,
        r#""r":"[1,5)","p":"(1,2)","Odd \"name":"tab\there","double":6}}"#,
        "\n",
        r#"{"op":"update","table":"t","row":{"id":1,"n":1.5,"js":null,"p":null}}"#,
        "\n",
        r#"{"op":"update","table":"t","row":{"id":2,"arr":"{}","m":"sad"}}"#,
    ];
    apply_and_report(&case, &events.concat(), "");
    let row = "set timezone = 'utc'; select replace(t::text, ',', ' ,') from t where id = 7";
    let row = case.value(row);
    assert_snapshot!(folded(&row), @r#"
    (7 ,12.35 ,1e+300 ,2024-02-29 ,"2024-01-01 00:00:00+00" ,"\\x00ff" ,"{""a"": [1 ,
          … 2.50]}" ,"{""a"": 1}" ,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 ,ok ,3 ,"{1 ,NULL
          … ,3}" ,"[1 ,5)" ,"(1 ,2)" ,"tab	here" ,6 ,3 ,"2020-01-01 00:00:00+00")
    "#);
    let others = "select string_agg(concat_ws(' ', id, n, arr, m), ', ' order by id) from t \
                  where id < 3";
    assert_eq!(case.value(others), "1 1.50, 2 2.00 {} sad");
}

/// PostgreSQL does not alter a table whose rows wait for a deferred check.
#[test]
fn a_column_that_cannot_be_added_within_a_large_transaction_has_a_hint() {
    let insert = |id: u32, more: &str| {
        format!(
            r#"{{"action":"I","schema":"public","table":"t","columns":[
{{"name":"id","type":"integer","value":{id}}},{{"name":"of","type":"integer","value":1}}{more}]}}"#
        )
        .replace('\n', "")
            + "\n"
    };
    let mark = |action: &str| format!("{{\"action\":\"{action}\",\"xid\":9}}\n");
    let rows_of_t = (1..=30).map(|id| insert(id, "")).collect::<String>();
    let last = insert(31, r#",{"name":"z","type":"text","value":"x"}"#);
    let case = LoadCase::new(
        "create table p (id int primary key); insert into p values (1); \
         create table t (id int primary key, of int references p deferrable)",
    );
    case.put("s.ndjson", mark("B") + &rows_of_t + &last + &mark("C"));
    let args = "s.ndjson --quiet --unknown-columns add --batch-rows";
    assert_snapshot!(apply(&case, &format!("{args} 5")).refusal(), @r#"
    error: could not add a column
      caused by: cannot ALTER TABLE "t" because it has pending trigger events (SQLSTATE
          … 55006)

    hint: The transaction of the source is larger than a batch, and a deferrable constraint
          … of the table is checked at its end. Add the column to the table before the run,
          … or raise `--batch-rows` and `--batch-bytes`, so that one batch has the whole
          … transaction.
    "#);
    assert_eq!(case.value("select count(*) from t"), "0");
    apply(&case, &format!("{args} 100")).success();
    assert_eq!(case.value("select count(z) || ' of ' || count(*) from t"), "1 of 31");
}

#[test]
fn unknown_columns_are_refused_ignored_or_added() {
    let case = LoadCase::new("create table t (id int primary key, a text)");
    let events = r#"{"op":"insert","table":"t","row":{"id":1,"a":"x","extra":"e","more":[1]}}
{"op":"update","table":"t","row":{"id":1,"a":"y","extra":"f","more":null}}
{"op":"insert","table":"t","row":{"id":2,"a":"z"}}
"#;
    case.put("s.ndjson", events);
    assert_snapshot!(apply(&case, "s.ndjson --quiet").refusal(), @r#"
    error: column "extra" of relation "t" does not exist
      at: s.ndjson, line 1

    hint: Add the column to the table, or give `--unknown-columns ignore` or
          … `--unknown-columns add`.
    "#);
    assert_eq!(rows(&case, "t"), "");
    apply_and_report(&case, events, "--unknown-columns ignore");
    assert_eq!(rows(&case, "t"), "(1,y) (2,z)");
    apply_and_report(&case, events, "--unknown-columns add --stream again");
    assert_eq!(rows(&case, "t"), "(1,y,f,) (2,z,,)");
    let columns = "select string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' \
                   order by attnum) from pg_attribute \
                   where attrelid = 't'::regclass and attnum > 0";
    assert_eq!(case.value(columns), "id integer, a text, extra text, more text");
}

#[test]
fn tables_are_mapped_selected_and_reported_as_missing() {
    let case = LoadCase::new(
        "create schema s; create table s.t (id int primary key); \
         create table o (id int primary key)",
    );
    let events = r#"{"op":"insert","table":"shop.t","row":{"id":1}}
{"op":"insert","table":"shop.orders","row":{"id":2}}
{"op":"insert","table":"other.x","row":{"id":3}}
"#;
    let args = "--map shop.orders=o --map shop.*=s.* --tables shop.*";
    let report = apply_and_report(&case, events, args);
    assert_eq!((&report["left_out"], &report["inserted"]), (&1.into(), &2.into()));
    assert_eq!((rows(&case, "s.t"), rows(&case, "o")), ("(1)".into(), "(2)".into()));
    assert_snapshot!(apply(&case, "s.ndjson --quiet --stream b").refusal(), @"
    error: relation shop.t does not exist
      at: s.ndjson, line 1

    hint: Create the table, map the events to another table with `--map
          … 'SCHEMA.TABLE=SCHEMA.TABLE'`, leave them out with `--tables`, or set them aside
          … with `--max-dead-letters N`.
    ");
    case.db.run("create view v as select 1 as id");
    case.put("v.ndjson", "{\"op\":\"insert\",\"table\":\"v\",\"row\":{\"id\":1}}\n");
    assert_snapshot!(apply(&case, "v.ndjson --quiet").refusal(), @"
    error: public.v is not a table
      at: v.ndjson, line 1

    hint: Map the events to a table with `--map`, or leave them out with `--tables`.
    ");
}

/// Events that are left out count as applied. So the corrected command would apply nothing.
#[test]
fn a_misspelt_name_of_tables_is_refused_before_the_first_event() {
    let case = LoadCase::new("create table orders (id int primary key)");
    let events = "{\"op\":\"insert\",\"table\":\"orders\",\"row\":{\"id\":1}}\n";
    case.put("s.ndjson", events);
    assert_snapshot!(apply(&case, "s.ndjson --quiet --tables odrers").refusal(), @"
    error: relation odrers does not exist

    hint: Did you mean table orders? `--tables` names tables as the stream does, and
          … `--map` leads them to tables of the target. Events of other tables are left out
          … and count as applied.
    ");
    let said = apply(&case, "s.ndjson --quiet --plan --tables shop.*").refusal();
    assert!(said.contains("no table of the target matches \"shop.*\""), "{said}");
    let mapped = "s.ndjson --quiet --tables shop.* --map shop.*=pubic.*";
    let said = apply(&case, mapped).refusal();
    assert!(said.contains("no table of the target matches \"shop.*\""), "{said}");
    assert_eq!(case.value("select to_regclass('pgspate.stream') is null"), "t");
    assert_eq!(counts(&apply_and_report(&case, events, "--tables orders")), [1, 0, 0, 0]);
}

/// Two texts may be equal under their collation and still have different bytes.
#[test]
fn a_change_of_letter_case_is_applied_under_any_collation() {
    let case = LoadCase::new(
        "create collation lax (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
         create table t (id int primary key, note text collate lax); \
         insert into t values (1, 'abc')",
    );
    let event = "{\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":1,\"note\":\"ABC\"}}\n";
    apply_and_report(&case, event, "");
    assert_eq!(rows(&case, "t"), "(1,ABC)");
}

/// Only the server knows how a type modifier changes a key.
#[test]
fn keys_that_a_type_modifier_makes_equal_are_one_key() {
    let case = LoadCase::new(
        "create domain cents as numeric(10,2); create table d (k cents primary key, v int); \
         create domain short as varchar(2); create table s (k short primary key, v int); \
         create table c (k char(3) primary key, v int)",
    );
    let mut events = String::new();
    for (table, keys) in [("d", ["1.001", "1.00"]), ("s", ["ab ", "ab"]), ("c", ["a\\t", "a"])] {
        for (nth, key) in keys.iter().enumerate() {
            let row = format!("{{\"k\":\"{key}\",\"v\":{nth}}}");
            events += &format!("{{\"op\":\"insert\",\"table\":\"{table}\",\"row\":{row}}}\n");
        }
    }
    apply_and_report(&case, &events, "");
    assert_eq!((rows(&case, "d"), rows(&case, "s")), ("(1.00,1)".into(), "(ab,1)".into()));
    assert_eq!(case.value("select count(*) from c"), "2");
}

/// A key change does not delete rows that still refer to the old key.
#[test]
fn a_key_change_does_not_delete_referring_rows() {
    let case = LoadCase::new(
        "create table p (id int primary key, v int); \
         create table c (id int primary key, \
           p int references p on update cascade on delete cascade); \
         create table n (id int primary key, p int references p on delete set null); \
         insert into p select i, 0 from generate_series(1, 4) i; \
         insert into c values (1, 1), (2, 3); insert into n values (1, 4)",
    );
    let change = r#"{"op":"update","table":"p","key":{"id":1},"row":{"id":10,"v":0}}
"#;
    // With `on update cascade`, the referring rows get the new key.
    apply_and_report(&case, change, "--stream one");
    assert_eq!((rows(&case, "c"), rows(&case, "n")), ("(1,10) (2,3)".into(), "(1,4)".into()));
    case.db.run("update p set id = 1 where id = 10");
    case.put("n.ndjson", change.replace(":1}", ":4}"));
    assert_snapshot!(apply(&case, "n.ndjson --quiet").refusal(), @"
    error: could not apply the update of public.p
      caused by: the key of a row of public.p changes while other rows refer to it: their
          … foreign key would delete or change those rows, too
      at: n.ndjson, line 1

    hint: Nothing of its batch is applied. With `--max-dead-letters N` up to N such events
          … are set aside in pgspate.dead_letter, and the others applied.
    ");
    assert_eq!((rows(&case, "c"), rows(&case, "n")), ("(1,1) (2,3)".into(), "(1,4)".into()));
    // Rows that the stream updates no longer refer to the old key. Deletes do cascade.
    let with_child = change.to_owned()
        + r#"{"op":"update","table":"c","row":{"id":1,"p":10}}
{"op":"update","table":"p","key":{"id":2},"row":{"id":20}}
{"op":"delete","table":"p","key":{"id":3}}
"#;
    apply_and_report(&case, &with_child, "--stream two --batch-delay 60000");
    assert_eq!(
        (rows(&case, "p"), rows(&case, "c")),
        ("(10,0) (20,0) (4,0)".into(), "(1,10)".into())
    );
}

/// A key change in place keeps the values of columns that the event lacks.
#[test]
fn a_key_change_in_place_keeps_other_columns() {
    let case = LoadCase::new(
        "create table p (id int primary key, v int, w int default 9); \
         create table c (p int references p on update cascade on delete cascade); \
         insert into p values (1, 7, 8), (2, 7, 8); insert into c values (1), (2)",
    );
    let events = r#"{"op":"update","table":"p","key":{"id":1},"row":{"id":10}}
{"op":"update","table":"p","key":{"id":2},"row":{"id":20,"v":null}}
"#;
    apply_and_report(&case, events, "");
    assert_eq!(
        (rows(&case, "p"), rows(&case, "c")),
        ("(10,7,8) (20,,8)".into(), "(10) (20)".into())
    );
}

/// A column that the event lacks is not set to NULL, so that a domain `not null` accepts the row.
#[test]
fn events_may_lack_columns_whose_domain_refuses_null() {
    let case = LoadCase::new(
        "create domain word as text not null; create domain cents as numeric(10,2) not null; \
         create domain label as word check (value is not null); \
         create domain no as int not null check (value > 0); \
         create table t (id no primary key, w label default 'dflt', c cents default 7, v int)",
    );
    let events = r#"{"op":"insert","table":"t","row":{"id":1,"v":1}}
{"op":"insert","table":"t","row":{"id":2,"w":"x","c":1.5,"v":1}}
{"op":"insert","table":"t","row":{"id":3,"w":"y","c":2,"v":1}}
{"op":"insert","table":"t","row":{"id":4,"w":"z","c":3,"v":1}}
"#;
    apply_and_report(&case, events, "--stream a");
    let events = r#"{"op":"update","table":"t","row":{"id":1,"v":2}}
{"op":"update","table":"t","row":{"id":2,"c":1.50}}
{"op":"update","table":"t","key":{"id":3},"row":{"id":30,"c":9}}
{"op":"delete","table":"t","key":{"id":4}}
"#;
    apply_and_report(&case, events, "--stream b");
    assert_eq!(rows(&case, "t"), "(1,dflt,7.00,2) (2,x,1.50,1) (30,y,9.00,1)");
    case.put("s.ndjson", "{\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":1,\"w\":null}}\n");
    let refusal = apply(&case, "s.ndjson --quiet").refusal().clone();
    assert!(refusal.contains("does not allow null values"), "{refusal}");
}

/// Rows of other source tables stay, also of tables that the stream has not named yet.
#[test]
fn a_truncate_is_refused_if_other_tables_share_its_target() {
    let case = LoadCase::new("create table t (id int primary key); insert into t values (1), (2)");
    let truncate = "{\"op\":\"truncate\",\"table\":\"s.t_1\"}\n";
    let insert =
        |table: &str| format!("{{\"op\":\"insert\",\"table\":\"{table}\",\"row\":{{\"id\":3}}}}\n");
    case.put("s.ndjson", truncate);
    assert_snapshot!(apply(&case, "s.ndjson --quiet --map s.t_*=public.t").refusal(), @"
    error: could not apply the truncate of s.t_1: public.t may have rows of other source
          … tables
      at: s.ndjson, line 1

    hint: Delete the rows of this source table from the target yourself, and set the event
          … aside with `--max-dead-letters N`. Or map each source table to a table of its
          … own.
    ");
    let maps = "--map s.t_1=public.t --map s.t_2=public.t";
    let by_dead_letter = format!("{maps} --max-dead-letters 1 --stream letters");
    let report =
        apply_and_report(&case, &(truncate.to_owned() + &insert("s.t_1")), &by_dead_letter);
    assert_eq!((&report["dead_letters"], counts(&report)), (&1.into(), [1, 0, 0, 0]));
    assert_eq!(rows(&case, "t"), "(1) (2) (3)");
    // A table that the stream has named counts, but not another spelling of the same name.
    case.put("s.ndjson", insert("public.t") + truncate);
    let args = "s.ndjson --quiet --stream names --map s.t_1=public.t";
    let refusal = apply(&case, args).refusal().clone();
    assert!(refusal.contains("could not apply the truncate of s.t_1"), "{refusal}");
    let both = insert("t") + &truncate.replace("s.t_1", "public.t") + &insert("t");
    apply_and_report(&case, &both, "--stream both");
    assert_eq!(rows(&case, "t"), "(3)");
    case.db.run("insert into t values (1)");
    apply_and_report(&case, truncate, "--map s.t_1=public.t --stream alone");
    assert_eq!(rows(&case, "t"), "");
}

/// A rule writes the rows elsewhere, and the server reports them as written.
#[test]
fn a_target_with_rules_is_refused() {
    for rule in ["do instead nothing", "do also notify written"] {
        let case = LoadCase::new(&format!(
            "create table t (id int primary key); create rule r as on insert to t {rule}"
        ));
        case.put("s.ndjson", "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":2}}\n");
        let said = finish(spawn(&mut command(&case, "s.ndjson --quiet"))).refusal();
        assert!(said.contains("rule \"r\" rewrites statements that write public.t"), "{said}");
    }
}

/// Updates and deletes of hidden rows would be lost.
#[test]
fn a_target_whose_rows_a_policy_hides_is_refused() {
    let case = LoadCase::new(
        "create table t (id int primary key, v int); insert into t values (1, 0), (2, 0); \
         alter table t enable row level security; create policy few on t using (id = 1)",
    );
    let database = case.value("select current_database()");
    let role = format!("writer_of_{database}");
    case.db.run(&format!(
        "create role {role}; grant create on database {database} to {role}; \
         grant all on t to {role}"
    ));
    case.put("s.ndjson", "{\"op\":\"delete\",\"table\":\"t\",\"key\":{\"id\":2}}\n");
    let as_role = || {
        let mut command = command(&case, "s.ndjson --quiet");
        finish(spawn(command.env("PGOPTIONS", format!("-c role={role}"))))
    };
    let hidden = as_role();
    case.db.run("alter table t disable row level security");
    let seen = as_role();
    case.db.run(&format!("drop owned by {role} cascade; drop role {role}"));
    assert_snapshot!(hidden.refusal(), @"
    error: row-level security of public.t applies to this role and may hide rows of the
          … stream
      at: s.ndjson, line 1

    hint: Apply as a role that sees all rows: `alter role ... bypassrls`.
    ");
    assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    assert_eq!(rows(&case, "t"), "(1,0)");
}
