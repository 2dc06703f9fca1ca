//! Tests of pgspate's own format: what is written is read back.

use super::*;

struct NestedColumnTypes;

impl TargetTypes for NestedColumnTypes {
    fn type_of(&self, _: &SourceTable, column: &str) -> Option<Arc<str>> {
        match column {
            "list" => Some("_int4".into()),
            "map" => Some("hstore".into()),
            _ => None,
        }
    }
}

fn decode(lines: &[&str]) -> Result<Vec<ChangeEvent>> {
    let mut decoder = OwnFormat::default();
    let mut events = Vec::new();
    for line in lines {
        decoder.decode(line.as_bytes(), &NestedColumnTypes, &mut events)?;
    }
    Ok(events)
}

fn row_text(row: &Option<EventRow>) -> String {
    let Some(row) = row else { return "-".to_owned() };
    let pairs = row.columns.iter().zip(&row.values).map(|(name, value)| match value {
        EventValue::Absent => format!("{name}?"),
        EventValue::Null => format!("{name}=null"),
        EventValue::Text(text) => format!("{name}={text}"),
    });
    pairs.collect::<Vec<_>>().join(" ")
}

#[test]
fn every_field_of_an_event_is_decoded() {
    let lines = [
        r#"{"op":"insert","table":"shop.orders","row":{"id":12345678901234567890,"x":1.10}}"#,
        r#"{"table":"t","op":"update","key":{"id":1},"row":{"id":2,"s":"a\"\u00e9","n":null}}"#,
        r#" {"op":"delete","schema":"a.b","table":"c.d","old":{"id":1,"ok":true}} "#,
        r#"{"op":"truncate","table":"t","tx":7}"#,
        r#"{"tx":"7","end":true,"op":"snapshot","table":"t",
            "row":{"id":1,"list":[1,null],"j":[{"a": 1}],"map":{"a":"1","b":null}}}"#,
        "",
    ];
    let events = decode(&lines).unwrap();
    let all: Vec<String> = events
        .iter()
        .map(|event| {
            let SourceTable { schema, table } = &*event.table;
            format!(
                "{:?} {}|{table} new {} old {} {}",
                event.op,
                schema.as_deref().unwrap_or("-"),
                row_text(&event.new),
                row_text(&event.old),
                event.ends_transaction
            )
        })
        .collect();
    assert_eq!(
        all,
        [
            "Insert shop|orders new id=12345678901234567890 x=1.10 old - true",
            "Update -|t new id=2 s=a\"é n=null old id=1 true",
            "Delete a.b|c.d new - old id=1 ok=true true",
            "Truncate -|t new - old - false",
            "Snapshot -|t new id=1 list={1,NULL} j=[{\"a\": 1}] \
             map=\"a\"=>\"1\", \"b\"=>NULL old - true",
        ]
    );
}

#[test]
fn a_written_event_is_read_as_the_same_event() {
    let lines = [
        concat!(
            r#"{"op":"update","schema":null,"table":"t","row":{"id":"1","s":"a\"","n":null},"#,
            r#""unchanged":["big","b\"c"],"old":{"id":"0"}}"#,
        ),
        r#"{"op":"truncate","schema":"a","table":"t"}"#,
        r#"{"op":"delete","schema":"a","table":"t","old":{"id":"0"}}"#,
    ];
    for line in lines {
        let event = decode(&[line]).unwrap().remove(0);
        let SourceTable { schema, table } = &*event.table;
        assert_eq!(write_event(&event, schema.as_deref(), table), line);
    }
    let event = decode(&lines[..1]).unwrap().remove(0);
    assert_eq!(row_text(&event.new), "id=1 s=a\" n=null big? b\"c?");
}

#[test]
fn events_with_the_same_columns_share_their_names() {
    let line = r#"{"op":"insert","table":"t","row":{"id":1,"a":2}}"#;
    let other = r#"{"op":"insert","table":"t","row":{"id":1}}"#;
    let events = decode(&[line, other, line]).unwrap();
    let names = |nth: usize| Arc::clone(&events[nth].new.as_ref().unwrap().columns);
    assert!(Arc::ptr_eq(&names(0), &names(2)) && !Arc::ptr_eq(&names(0), &names(1)));
    assert!(Arc::ptr_eq(&events[0].table, &events[2].table));
}

#[test]
fn few_lists_of_columns_and_few_tables_are_kept() {
    let mut decoder = OwnFormat::default();
    let mut events = Vec::new();
    for nth in 0..3 * INTERNED_MAX {
        let line = format!(r#"{{"op":"insert","table":"t{nth}","row":{{"c{nth}":1}}}}"#);
        decoder.decode(line.as_bytes(), &NestedColumnTypes, &mut events).unwrap();
        let EventRow { columns, .. } = events[nth].new.as_ref().unwrap();
        assert_eq!(
            (&*events[nth].table.table, &*columns[0]),
            (&*format!("t{nth}"), &*format!("c{nth}"))
        );
        assert!(decoder.tables.len() <= INTERNED_MAX && decoder.columns.all.len() <= INTERNED_MAX);
    }
}

#[test]
fn records_that_are_not_events_are_refused() {
    for line in [
        "{",
        "[]",
        "{}",
        r#"{"op":"insert"}"#,
        r#"{"op":"upsert","table":"t"}"#,
        r#"{"op":"insert","table":"t","row":[1]}"#,
        r#"{"op":"insert","table":"t","row":{"a":1,"a":2}}"#,
        r#"{"op":"insert","table":"t","row":{"a":1}"#,
        r#"{"op":"insert","table":"t","row":{"a":1}} x"#,
        r#"{"op":"insert","table":"t","row":{"a":"\u0000"}}"#,
        r#"{"op":"insert","table":"t","rows":{}}"#,
        r#"{"op":"update","table":"t","row":{"a":1},"unchanged":["a"]}"#,
        r#"{"op":"update","table":"t","row":{"a":1},"unchanged":"b"}"#,
        r#"{"op":"update","table":"t","row":{"a":1},"unchanged":["b",}"#,
    ] {
        assert!(decode(&[line]).is_err(), "{line}");
    }
}
