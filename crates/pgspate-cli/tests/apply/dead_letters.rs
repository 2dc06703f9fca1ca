//! Dead letters: in every format, pgspate sets aside only the bad event. A corrected dead letter
//! can be applied as an event.

use crate::support::LoadCase;
use crate::{apply, apply_and_report, counts, rows};

const CREATE_T: &str = "create table t (id int primary key, v int, note text)";
const ID_COLUMN: &str = r#"{"name":"id","type":"integer","value":"#;

/// Writes an insert of the row `id`. The server refuses the insert if `v` is not a number.
type InsertWriter = fn(id: u32, v: &str) -> String;

fn wal2json_2(id: u32, v: &str) -> String {
    let v = format!(r#"{{"name":"v","type":"integer","value":"{v}"}}"#);
    let at = r#""action":"I","schema":"public","table":"t""#;
    format!(
        r#"{{{at},"columns":[{ID_COLUMN}{id}}},{v},{{"name":"note","type":"text","value":"n"}}]}}"#
    )
}

fn wal2json_1(id: u32, v: &str) -> String {
    let names = r#""columnnames":["id","v","note"],"columntypes":["integer","integer","text"]"#;
    let at = r#""kind":"insert","schema":"public","table":"t""#;
    format!(r#"{{"change":[{{{at},{names},"columnvalues":[{id},"{v}","n"]}}]}}"#)
}

fn row(id: u32, v: &str) -> String {
    format!(r#"{{"id":{id},"v":"{v}","note":"n"}}"#)
}

fn debezium(id: u32, v: &str) -> String {
    let source = r#"{"connector":"postgresql","db":"d","schema":"public","table":"t","lsn":7}"#;
    format!(r#"{{"before":null,"after":{},"op":"c","source":{source}}}"#, row(id, v))
}

fn flattened(id: u32, v: &str) -> String {
    format!(r#"{{"__op":"c","__schema":"public","__table":"t",{}"#, &row(id, v)[1..])
}

fn maxwell(id: u32, v: &str) -> String {
    let at = r#""database":"public","table":"t","type":"insert","ts":1"#;
    format!(r#"{{{at},"xid":{id},"commit":true,"data":{}}}"#, row(id, v))
}

fn canal(id: u32, v: &str) -> String {
    let at = r#""database":"public","table":"t","type":"INSERT","isDdl":false,"ts":1"#;
    let row = format!(r#"{{"id":"{id}","v":"{v}","note":"n"}}"#);
    format!(r#"{{{at},"old":null,"pkNames":["id"],"data":[{row}]}}"#)
}

fn dms_json(id: u32, v: &str) -> String {
    let at = r#"{"record-type":"data","operation":"insert","schema-name":"public","#;
    format!(r#"{{"data":{},"metadata":{at}"table-name":"t"}}}}"#, row(id, v))
}

fn dms_csv(id: u32, v: &str) -> String {
    format!("I,{id},{v},n")
}

fn plain(id: u32, v: &str) -> String {
    format!(r#"{{"op":"insert","table":"public.t","row":{}}}"#, row(id, v))
}

const FORMATS: [(&str, InsertWriter, &str); 9] = [
    ("wal2json 2", wal2json_2, ""),
    ("wal2json 1", wal2json_1, ""),
    ("debezium", debezium, ""),
    ("flattened", flattened, ""),
    ("maxwell", maxwell, ""),
    ("canal", canal, ""),
    ("dms json", dms_json, ""),
    ("dms csv", dms_csv, "--source-table public.t --dms-columns id,v,note"),
    ("pgspate", plain, ""),
];

/// Returns inserts of rows 1 to 5. The server refuses the third.
fn stream(format: &str, insert: InsertWriter) -> String {
    let mut lines: Vec<String> =
        (1..=5).map(|id| insert(id, if id == 3 { "three" } else { "7" })).collect();
    if format == "wal2json 2" {
        lines.insert(0, r#"{"action":"B","xid":9}"#.to_owned());
        lines.push(r#"{"action":"C","xid":9}"#.to_owned());
    }
    lines.join("\n") + "\n"
}

/// Returns position, line, table, SQLSTATE and event of all dead letters.
fn dead_letters(case: &LoadCase) -> String {
    case.value(
        "select string_agg(concat_ws('|', position, line, table_name, sqlstate, payload), e'\\n' \
         order by position) from pgspate.dead_letter",
    )
}

#[test]
fn only_the_bad_event_is_set_aside_and_can_be_corrected() {
    for (format, insert, args) in FORMATS {
        let case = LoadCase::new(CREATE_T);
        let report = apply_and_report(
            &case,
            &stream(format, insert),
            &format!("{args} --max-dead-letters 1"),
        );
        assert_eq!(
            (&report["events"], &report["dead_letters"]),
            (&5.into(), &1.into()),
            "{format}"
        );
        assert_eq!(counts(&report), [4, 0, 0, 0], "{format}");
        let line = if format == "wal2json 2" { 4 } else { 3 };
        let event = r#"{"op":"insert","schema":"public","table":"t","#.to_owned()
            + r#""row":{"id":"3","v":"three","note":"n"}}"#;
        assert_eq!(dead_letters(&case), format!("2|{line}|public.t|22P02|{event}"), "{format}");
        assert_eq!(rows(&case, "t"), "(1,7,n) (2,7,n) (4,7,n) (5,7,n)", "{format}");
        let mended = case.value("select replace(payload, 'three', '3') from pgspate.dead_letter");
        apply_and_report(&case, &(mended + "\n"), "--format pgspate --stream mended");
        assert_eq!(rows(&case, "t"), "(1,7,n) (2,7,n) (3,3,n) (4,7,n) (5,7,n)", "{format}");
    }
}

/// pgspate itself refuses these events and does not send them to the server.
#[test]
fn an_event_with_an_unknown_column_is_set_aside() {
    for (format, insert, args) in FORMATS {
        let case = LoadCase::new("create table t (id int primary key, v int)");
        case.put("s.ndjson", stream(format, insert));
        let run = apply(&case, &format!("s.ndjson --quiet --max-dead-letters 5 {args}"));
        assert_eq!(run.status, Some(1), "{format}: {}", run.stderr);
        assert_eq!(dead_letters(&case).lines().count(), 5, "{format}");
        let event = "|public.t|42703|{\"op\":\"insert\",\"schema\":\"public\",\"table\":\"t\",";
        assert!(dead_letters(&case).lines().all(|letter| letter.contains(event)), "{format}");
        case.db.run("alter table t add note text");
        let mended = "select string_agg(replace(payload, 'three', '3'), e'\\n' order by position) \
                      from pgspate.dead_letter";
        apply_and_report(&case, &(case.value(mended) + "\n"), "--stream mended");
        assert_eq!(case.value("select count(*), sum(v) from t where note = 'n'"), "5", "{format}");
    }
}

#[test]
fn an_event_of_an_unknown_table_is_set_aside() {
    for (format, insert, args) in FORMATS.into_iter().filter(|(format, ..)| *format != "dms csv") {
        let case = LoadCase::new(CREATE_T);
        let elsewhere =
            insert(9, "7").replace("\"t\"", "\"gone\"").replace("public.t", "public.gone");
        let events = format!("{}\n{elsewhere}\n{}\n", insert(1, "7"), insert(2, "7"));
        let report = apply_and_report(&case, &events, &format!("{args} --max-dead-letters 1"));
        assert_eq!(
            (&report["dead_letters"], counts(&report)),
            (&1.into(), [2, 0, 0, 0]),
            "{format}"
        );
        assert!(dead_letters(&case).contains("|2|42P01|"), "{format}: {}", dead_letters(&case));
        assert_eq!(rows(&case, "t"), "(1,7,n) (2,7,n)", "{format}");
        // The stream continues after it, and sets nothing aside twice.
        let more = format!("{events}{}\n", insert(3, "7"));
        let report = apply_and_report(&case, &more, &format!("{args} --max-dead-letters 1"));
        assert_eq!(
            (&report["events"], &report["dead_letters"]),
            (&1.into(), &0.into()),
            "{format}"
        );
        case.put("s.ndjson", events);
        let refusal = apply(&case, &format!("s.ndjson --quiet --stream other {args}")).refusal();
        assert!(refusal.contains("relation public.gone does not exist"), "{format}: {refusal}");
    }
}

#[test]
fn an_error_says_how_many_events_are_committed() {
    let case = LoadCase::new(CREATE_T);
    let events = |ids: std::ops::RangeInclusive<u32>, last: &str| -> String {
        ids.map(|id| plain(id, "7") + "\n").collect::<String>() + last + "\n"
    };
    case.put("s.ndjson", events(1..=3, &plain(4, "four")));
    let said = apply(&case, "s.ndjson --quiet --batch-rows 1").stderr;
    assert!(said.contains("3 events of this run are committed, 3 of the stream;"), "{said}");
    // The second run commits nothing, and then one event more.
    let said = apply(&case, "s.ndjson --quiet --batch-rows 1").stderr;
    assert!(said.contains("SQLSTATE 22P02") && !said.contains("committed"), "{said}");
    case.put("s.ndjson", events(1..=4, &plain(5, "five")));
    let said = apply(&case, "s.ndjson --quiet --batch-rows 1").stderr;
    assert!(said.contains("1 event of this run is committed, 4 of the stream;"), "{said}");
    assert_eq!(rows(&case, "t"), "(1,7,n) (2,7,n) (3,7,n) (4,7,n)");
    case.put("x.ndjson", plain(4, "four") + "\n");
    let said = apply(&case, "x.ndjson --quiet").refusal();
    assert!(!said.contains("committed"), "{said}");
}

/// The bad event is the first, the only, or the last event of its transaction.
#[test]
fn a_bad_event_of_wal2json_is_set_aside_at_any_position() {
    let case = LoadCase::new(CREATE_T);
    let transaction = |rows: &[(u32, &str)]| {
        let rows: String = rows.iter().map(|(id, v)| wal2json_2(*id, v) + "\n").collect();
        format!("{{\"action\":\"B\"}}\n{rows}{{\"action\":\"C\"}}\n")
    };
    let events = transaction(&[(1, "a"), (2, "7")])
        + &transaction(&[(3, "b")])
        + &transaction(&[(4, "7"), (5, "c")])
        + &transaction(&[(6, "7")])
        // A record that cannot be decoded counts as one event.
        + &transaction(&[(7, "7"), (8, "7")]).replace("\"value\":8", "\"value\":\"\\u0000\"");
    let report = apply_and_report(&case, &events, "--max-dead-letters 9");
    assert_eq!((&report["events"], &report["dead_letters"]), (&8.into(), &4.into()));
    assert_eq!(rows(&case, "t"), "(2,7,n) (4,7,n) (6,7,n) (7,7,n)");
    let lines = "select string_agg(position || ' ' || line, ', ' order by position) \
                 from pgspate.dead_letter";
    assert_eq!(case.value(lines), "0 2, 2 6, 4 10, 7 17");
    // When the stream is read again, no event is set aside twice.
    let report = apply_and_report(&case, &events, "--max-dead-letters 9");
    assert_eq!((&report["events"], &report["dead_letters"]), (&0.into(), &0.into()));
}

/// A transaction without an end is not applied, however short the transaction is.
#[test]
fn a_truncated_transaction_of_wal2json_is_refused() {
    let case = LoadCase::new(CREATE_T);
    for count in 1..=2 {
        let events = "{\"action\":\"B\"}\n".to_owned() + &wal2json_2(1, "7") + "\n";
        let cut: String = events.lines().take(count).map(|line| format!("{line}\n")).collect();
        case.put("s.ndjson", cut);
        let refusal = apply(&case, "s.ndjson --quiet").refusal();
        assert!(refusal.contains("the input ends within a source transaction"), "{refusal}");
    }
}

/// An input function may raise any SQLSTATE. pgspate sets aside the event with the value.
#[test]
fn an_event_is_set_aside_whatever_error_an_input_function_raises() {
    let case = LoadCase::new("create table t (id int primary key, r regclass, c regconfig)");
    let event = |id: u32, r: &str, c: &str| {
        let row = format!(r#"{{"id":{id},"r":"{r}","c":"{c}"}}"#);
        format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{row}}}\n")
    };
    let events = event(1, "pg_class", "simple")
        + &event(2, "no_such_table", "simple")
        + &event(3, "pg_class", "no_such_configuration")
        + &event(4, "pg_class", "simple");
    case.put("s.ndjson", &events);
    let run = apply(&case, "s.ndjson --quiet --max-dead-letters 1");
    let said = "More than 1 event cannot be applied. Raise `--max-dead-letters`, or correct";
    assert!(run.status == Some(2) && run.stderr.contains(said), "{}", run.stderr);
    let report = apply_and_report(&case, &events, "--max-dead-letters 2");
    assert_eq!((&report["dead_letters"], counts(&report)), (&2.into(), [2, 0, 0, 0]));
    assert_eq!(rows(&case, "t"), "(1,pg_class,simple) (4,pg_class,simple)");
    let codes = "select string_agg(line || ' ' || sqlstate, ', ' order by line) \
                 from pgspate.dead_letter";
    assert_eq!(case.value(codes), "2 42P01, 3 42704");
}

/// The error quotes the ambiguous value and names the column, the table and the option to set.
#[test]
fn errors_about_ambiguous_values_name_the_option_to_set() {
    let case = LoadCase::new("create table t (id int primary key, at timestamp, data bytea)");
    let event = |row: &str| {
        let source = r#""source":{"schema":"public","table":"t"}"#;
        format!("{{\"op\":\"c\",\"before\":null,\"after\":{row},{source}}}\n")
    };
    for (row, what, option) in [
        (r#"{"id":1,"at":1709287200123}"#, "\"at\"", "--debezium-time ms"),
        (r#"{"id":1,"data":"00ff"}"#, "\"data\"", "--debezium-bytes hex"),
    ] {
        case.put("s.ndjson", event(row));
        let refusal = apply(&case, "s.ndjson --quiet").refusal().replace("\n      …", "");
        let value = row.rsplit(':').next().unwrap().trim_matches(['"', '}']);
        for told in [what, "of public.t", value, "at: s.ndjson, line 1", "debezium"] {
            assert!(refusal.contains(told), "{told}: {refusal}");
        }
        assert!(refusal.contains(option.split(' ').next().unwrap()), "{refusal}");
        apply_and_report(&case, &event(row), &format!("{option} --stream {}", &value[..4]));
    }
    assert_eq!(rows(&case, "t"), "(1,\"2024-03-01 10:00:00.123\",\"\\\\x00ff\")");
}

#[test]
fn the_error_for_an_unknown_format_names_the_keys_of_the_record() {
    let case = LoadCase::new(CREATE_T);
    case.put("s.ndjson", "{\"id\":1,\"secret\":\"value\"}\n".repeat(200));
    insta::assert_snapshot!(apply(&case, "s.ndjson --quiet").refusal(), @r#"
    error: could not detect the format of the events: the first record is an object with
          … "id", "secret"
      at: s.ndjson, line 1

    hint: Name the format with `--format`: debezium, wal2json, maxwell, canal, dms, pgspate.
    "#);
    // A later record reveals the format of the earlier records, too.
    let flat = |id: u32, rest: &str| format!("{{\"id\":{id},\"v\":1{rest}}}\n");
    let events = flat(1, "") + &flat(2, "") + &flat(3, ",\"__deleted\":\"false\"");
    apply_and_report(&case, &events, "--source-table t --stream flat");
    assert_eq!(rows(&case, "t"), "(1,1,) (2,1,) (3,1,)");
}

/// A line that is written in part is complete in a later run, so it is no dead letter. In a file
/// before the last one it stays as it is.
#[test]
fn the_last_line_without_its_end_is_not_set_aside() {
    let case = LoadCase::new(CREATE_T);
    let lines = [plain(1, "1"), plain(2, "2")].join("\n");
    let (half, _) = lines.split_at(lines.len() - 9);
    case.put("s.ndjson", half);
    let run = apply(&case, "s.ndjson --quiet --max-dead-letters 5");
    assert!(run.stderr.contains("the input ends within a line"), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1,1,n)");
    case.put("s.ndjson", &lines);
    apply(&case, "s.ndjson --quiet --max-dead-letters 5").success();
    assert_eq!(rows(&case, "t"), "(1,1,n) (2,2,n)");

    // A part of a row of csv is a row, too.
    let args = "--source-table public.t --dms-columns id,v,note --quiet";
    for (csv, status, stored) in
        [("I,8,8,n\nU,8,9,n", Some(2), "(8,8,n)"), ("I,8,8,n\nU,8,99,n\n", Some(0), "(8,99,n)")]
    {
        case.put("s.csv", csv);
        let run = apply(&case, &format!("s.csv {args}"));
        assert_eq!(run.status, status, "{}", run.stderr);
        assert_eq!(case.value("select (id, v, note)::text from t where id = 8"), stored);
    }
    case.db.run("delete from t where id = 8");

    case.put("a.ndjson", half.replace(r#""id":1"#, r#""id":3"#));
    case.put("b.ndjson", plain(4, "4"));
    let files = "a.ndjson b.ndjson --stream other --quiet --max-dead-letters 5";
    assert_eq!(apply(&case, files).status, Some(1));
    assert_eq!(dead_letters(&case).lines().count(), 1);
    assert_eq!(rows(&case, "t"), "(1,1,n) (2,2,n) (3,1,n) (4,4,n)");
}

/// The record was one event when it was set aside. It has three rows once the target takes them.
#[test]
fn a_record_that_was_set_aside_is_not_applied_in_part_later() {
    let case = LoadCase::new("create table t (id int primary key, data bytea)");
    let rows_of = |ids: std::ops::RangeInclusive<u32>| {
        let row =
            |id| format!(r#"{{"id":"{id}","data":"{}"}}"#, if id == 1 { "?" } else { "aGk=" });
        ids.map(row).collect::<Vec<_>>().join(",")
    };
    let record = |ids| {
        let rows = rows_of(ids);
        format!(r#"{{"data":[{rows}],"old":null,"pkNames":["id"],"type":"INSERT"}}"#) + "\n"
    };
    let args = "--format canal --source-table t --max-dead-letters 1";
    let report = apply_and_report(&case, &record(1..=3), args);
    assert_eq!((&report["dead_letters"], counts(&report)), (&1.into(), [0; 4]));
    case.db.run("alter table t alter data type text");
    let report = apply_and_report(&case, &(record(1..=3) + &record(4..=5)), args);
    assert_eq!(counts(&report), [2, 0, 0, 0]);
    assert_eq!(case.value("select string_agg(id::text, ' ' order by id) from t"), "4 5");
}
