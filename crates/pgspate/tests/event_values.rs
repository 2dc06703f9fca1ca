//! PostgreSQL reads the text of a decoded value as the value that the event had.

#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../pgspate-events/tests/support/events.rs"]
mod events;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../pgspate-events/tests/decode/support.rs"]
mod support;

use pgspate_embedded::testing;
use pgspate_events::decode::Debezium;

use support::{TypedColumns, decode};

/// Decodes a value of a Debezium event. Returns its text.
fn decode_value(ty: &'static str, json: &str, schema: &str) -> String {
    let types: &'static [(&str, &str)] = vec![("v", ty)].leak();
    let record = format!(
        r#"{{"schema":{{"type":"struct","fields":[{{"type":"struct","field":"after",
"fields":[{{"field":"v",{schema}}}]}},{{"type":"string","field":"op"}}],"name":"s.p.t.Envelope"}},
"payload":{{"op":"c","after":{{"v":{json}}}}}}}"#
    );
    let line = decode(&mut Debezium::default(), &TypedColumns(types), &[&record]).concat();
    let value = line.strip_prefix("Insert p.t {v=").and_then(|rest| rest.strip_suffix("} end"));
    value.unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[test]
fn the_server_reads_the_values_of_the_events() {
    let db = testing::database();
    let named = |name: &str| format!(r#""type":"x","name":"{name}""#);
    let array = |items: &str| format!(r#""type":"array","items":{{{items}}}"#);
    for (ty, json, schema, expected) in [
        ("date", "-719529", named("io.debezium.time.Date"), "0002-12-31 BC"),
        ("date", "2932896", named("io.debezium.time.Date"), "9999-12-31"),
        ("time", "86400000000", named("io.debezium.time.MicroTime"), "24:00:00"),
        (
            "timestamp",
            "-62135596800000001",
            named("io.debezium.time.MicroTimestamp"),
            "0001-12-31 23:59:59.999999 BC",
        ),
        ("timestamp", "9223372036825200000", named("io.debezium.time.MicroTimestamp"), "infinity"),
        (
            "timestamptz",
            "\"-0043-03-15T10:00:00.5Z\"",
            named("io.debezium.time.ZonedTimestamp"),
            "0044-03-15 10:00:00.5+00 BC",
        ),
        (
            "timestamptz",
            "\"+12345-01-01T00:00:00Z\"",
            named("io.debezium.time.ZonedTimestamp"),
            "12345-01-01 00:00:00+00",
        ),
        ("timestamptz", "1000", named("io.debezium.time.Timestamp"), "1970-01-01 00:00:01+00"),
        ("interval", "-3600000001", named("io.debezium.time.MicroDuration"), "-01:00:00.000001"),
        (
            "interval",
            "\"P1Y-2M3DT-4H5M6.78S\"",
            named("io.debezium.time.Interval"),
            "10 mons 3 days -03:54:53.22",
        ),
        ("point", r#"{"x":1.5,"y":-2.0}"#, named("io.debezium.data.geometry.Point"), "(1.5,-2)"),
        ("bytea", "\"AP8=\"", r#""type":"bytes""#.to_owned(), "\\x00ff"),
        (
            "text[]",
            r#"["a\"b","","null",null,"b\\c","{,}","é"]"#,
            array(r#""type":"string""#),
            r#"{"a\"b","","null",NULL,"b\\c","{,}",é}"#,
        ),
        (
            "date[]",
            "[0,null,-719529]",
            array(&named("io.debezium.time.Date")),
            r#"{1970-01-01,NULL,"0002-12-31 BC"}"#,
        ),
        ("bytea[]", "[\"AP8=\"]", array(r#""type":"bytes""#), r#"{"\\x00ff"}"#),
        (
            "jsonb[]",
            r#"["{\"a\": [1, \"x\"]}"]"#,
            array(&named("io.debezium.data.Json")),
            r#"{"{\"a\": [1, \"x\"]}"}"#,
        ),
    ] {
        let typname = match ty.strip_suffix("[]") {
            Some(element) => format!("_{element}").leak(),
            None => ty,
        };
        let value = decode_value(typname, json, &schema).replace('\'', "\'\'");
        let sql = format!("set timezone = 'UTC'; select '{value}'::{ty}::text");
        assert_eq!(db.query(&sql), [[Some(expected.to_owned())]], "{ty} {json}");
    }
}
