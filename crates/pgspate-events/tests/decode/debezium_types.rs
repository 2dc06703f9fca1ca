//! Debezium's types, by the schema and by the target's type, and its placeholder.

use pgspate_events::decode::{Debezium, DebeziumOptions, TargetTypes, TimeUnit};

use crate::support::{TypedColumns, decode};

/// Decodes one value by its schema, or by the target's type alone.
fn value(schema: Option<&str>, ty: &'static str, json: &str, options: DebeziumOptions) -> String {
    struct SingleColumnType(&'static str);
    impl TargetTypes for SingleColumnType {
        fn type_of(&self, _: &pgspate_events::SourceTable, _: &str) -> Option<std::sync::Arc<str>> {
            (!self.0.is_empty()).then(|| self.0.into())
        }
    }
    let payload = format!(r#"{{"op":"u","after":{{"v":{json}}},"source":{{"table":"t"}}}}"#);
    let record = match schema {
        None => payload,
        Some(schema) => {
            let field = format!(r#"{{"field":"v",{schema}}}"#);
            format!(
                r#"{{"schema":{{"type":"struct","fields":[{{"type":"struct","fields":[{field}],
"field":"after"}},{{"type":"string","field":"op"}}],"name":"s.p.t.Envelope"}},
"payload":{payload}}}"#
            )
        }
    };
    let lines = decode(&mut Debezium::new(options), &SingleColumnType(ty), &[&record]);
    let line = lines.concat();
    if let Some(refused) = line.strip_prefix("error: column \"v\" of ") {
        let (_, refused) = refused.split_once(": ").unwrap();
        let refused = refused.split(" | ").next().unwrap();
        // The value is quoted at the end of the message.
        return refused.rsplit_once(": \"").unwrap().0.to_owned();
    }
    let line = line.strip_prefix("Update t {v=").unwrap_or(&line);
    line.strip_suffix("} end").unwrap_or(line).to_owned()
}

fn named(name: &str) -> String {
    format!(r#""type":"x","optional":true,"name":"{name}""#)
}

#[test]
fn values_are_read_by_their_schema() {
    let decimal = r#""type":"bytes","name":"org.apache.kafka.connect.data.Decimal",
"parameters":{"scale":"3"}"#;
    let bits = r#""type":"bytes","name":"io.debezium.data.Bits","parameters":{"length":"10"}"#;
    let wide_bits = bits.replace("10", "83886080");
    let array = |items: &str| format!(r#""type":"array","items":{{{items}}}"#);
    for (schema, ty, json, expected) in [
        (decimal.to_owned(), "numeric", "\"AeJA\"", "123.456"),
        (decimal.to_owned(), "numeric", "\"/w==\"", "-0.001"),
        (decimal.to_owned(), "numeric", "null", "NULL"),
        (
            named("io.debezium.data.VariableScaleDecimal"),
            "numeric",
            r#"{"scale":1,"value":"e08="}"#,
            "3156.7",
        ),
        (named("io.debezium.time.Date"), "date", "-1", "1969-12-31"),
        (named("org.apache.kafka.connect.data.Date"), "date", "0", "1970-01-01"),
        (named("io.debezium.time.Time"), "time", "3661001", "01:01:01.001"),
        (named("org.apache.kafka.connect.data.Time"), "time", "0", "00:00:00"),
        (named("io.debezium.time.MicroTime"), "time", "1", "00:00:00.000001"),
        (named("io.debezium.time.NanoTime"), "time", "1000", "00:00:00.000001"),
        (named("io.debezium.time.ZonedTime"), "timetz", "\"10:00:00Z\"", "10:00:00Z"),
        (
            named("io.debezium.time.Timestamp"),
            "timestamp",
            "1709287200123",
            "2024-03-01 10:00:00.123",
        ),
        (
            named("org.apache.kafka.connect.data.Timestamp"),
            "timestamptz",
            "1709287200123",
            "2024-03-01 10:00:00.123+00",
        ),
        (named("io.debezium.time.MicroTimestamp"), "timestamp", "-1", "1969-12-31 23:59:59.999999"),
        (named("io.debezium.time.MicroTimestamp"), "timestamp", "9223372036825200000", "infinity"),
        (
            named("io.debezium.time.NanoTimestamp"),
            "timestamp",
            "1000",
            "1970-01-01 00:00:00.000001",
        ),
        (
            named("io.debezium.time.ZonedTimestamp"),
            "timestamptz",
            "\"2024-03-01T10:00:00.123456Z\"",
            "2024-03-01T10:00:00.123456Z",
        ),
        (
            named("io.debezium.time.ZonedTimestamp"),
            "timestamptz",
            "\"-0043-03-15T10:00:00Z\"",
            "0044-03-15 10:00:00Z BC",
        ),
        (
            named("io.debezium.time.Interval"),
            "interval",
            "\"P1Y2M3DT4H5M6.78S\"",
            "P1Y2M3DT4H5M6.78S",
        ),
        (named("io.debezium.time.MicroDuration"), "interval", "-3600000001", "-01:00:00.000001"),
        (named("io.debezium.time.Year"), "int4", "2024", "2024"),
        (named("io.debezium.data.Json"), "jsonb", "\"{\\\"a\\\":1.0}\"", "{\"a\":1.0}"),
        (named("io.debezium.data.Uuid"), "uuid", "\"0c5e\"", "0c5e"),
        (named("io.debezium.data.Enum"), "mood", "\"sad\"", "sad"),
        (named("io.debezium.data.Xml"), "xml", "\"<a/>\"", "<a/>"),
        (bits.to_owned(), "bit", "\"BQI=\"", "1000000101"),
        (bits.to_owned(), "bit", "\"BQ==\"", "0000000101"),
        (wide_bits.clone(), "bit", "\"\"", "the value has fewer bits than its schema says"),
        (wide_bits, "bit", "\"AAAAAAAAAAA=\"", "the value has fewer bits than its schema says"),
        (
            named("io.debezium.data.VariableScaleDecimal"),
            "numeric",
            r#"{"scale":-131071,"value":"/w=="}"#,
            "-1e131071",
        ),
        (
            bits.to_owned(),
            "varbit",
            "\"BQI=\"",
            "bits are written as bytes, and their number is unknown without a schema",
        ),
        (
            named("io.debezium.data.geometry.Point"),
            "point",
            r#"{"x":1.5,"y":-2.0,"wkb":"AA==","srid":null}"#,
            "(1.5,-2.0)",
        ),
        (
            named("io.debezium.data.geometry.Geometry"),
            "geometry",
            r#"{"wkb":"AA==","srid":null}"#,
            "geometry values are not supported",
        ),
        (named("io.debezium.data.DoubleVector"), "vector", "[1.0,2.5]", "[1.0,2.5]"),
        (
            named("io.debezium.data.SparseVector"),
            "sparsevec",
            r#"{"dimensions":5,"vector":{"1":0.5,"4":2.0}}"#,
            "{1:0.5,4:2.0}/5",
        ),
        (r#""type":"bytes""#.to_owned(), "bytea", "\"AP8=\"", "\\x00ff"),
        (r#""type":"boolean""#.to_owned(), "bit", "true", "1"),
        (r#""type":"boolean""#.to_owned(), "bool", "false", "false"),
        (r#""type":"double""#.to_owned(), "float8", "1.0E-5", "1.0E-5"),
        (r#""type":"string""#.to_owned(), "numeric", "\"1234\"", "1234"),
        (r#""type":"map""#.to_owned(), "hstore", r#"{"a":"b","c":null}"#, r#""a"=>"b", "c"=>NULL"#),
        (
            array(&named("io.debezium.time.Date")),
            "_date",
            "[0,null,-719529]",
            r#"{1970-01-01,NULL,"0002-12-31 BC"}"#,
        ),
        (array(r#""type":"string""#), "_text", r#"["a\"b","","null"]"#, r#"{"a\"b","","null"}"#),
        (array(r#""type":"bytes""#), "_bytea", r#"["AP8="]"#, r#"{"\\x00ff"}"#),
        (
            array(&named("io.debezium.data.Json")),
            "_jsonb",
            r#"["{\"a\":[1]}"]"#,
            r#"{"{\"a\":[1]}"}"#,
        ),
        (named("io.debezium.time.Date"), "date", "\"x\"", "the value does not match its schema"),
        (named("io.debezium.time.Date"), "date", "1.5", "expected a whole number of 64 bits"),
        (named("io.debezium.time.MicroTime"), "time", "-1", "a time is not within a day"),
    ] {
        let found = value(Some(&schema), ty, json, DebeziumOptions::default());
        assert_eq!(found, expected, "{schema} {json}");
    }
}

/// The records are from Debezium 3.5.
#[test]
fn values_as_java_writes_them() {
    let date = named("io.debezium.time.IsoDate");
    let stamp = named("io.debezium.time.IsoTimestamp");
    let time = named("io.debezium.time.IsoTime");
    let dates = r#""type":"array","items":{"type":"int32","name":"io.debezium.time.Date"}"#;
    let texts = r#""type":"array","items":{"type":"string","optional":true}"#;
    let lost = "a list has several dimensions, whose values Debezium does not write";
    for (schema, ty, json, expected) in [
        (Some(&*date), "date", r#""-5877611-06-21Z""#, "infinity"),
        (Some(&*date), "date", r#""-5877611-06-22Z""#, "-infinity"),
        (Some(&*stamp), "timestamp", r#""+294247-01-10T04:00:25.2Z""#, "infinity"),
        (Some(&*stamp), "timestamp", r#""-290308-12-21T19:59:27.6Z""#, "-infinity"),
        (Some(&*time), "interval", r#""12:34:56Z""#, "12:34:56"),
        (Some(dates), "_date", "[-625821272,2932896]", r#"{"-infinity",9999-12-31}"#),
        (Some(texts), "_text", r#"["[Ljava.lang.String;@2cc6460e"]"#, lost),
        (None, "_text", r#"["[Ljava.lang.String;@2cc6460e"]"#, lost),
        (None, "point", r#"{"x":0.1,"y":-1.5,"wkb":"AQEAAAA=","srid":null}"#, "(0.1,-1.5)"),
        (Some(r#""type":"bytes""#), "circle", r#""PCgwLjAsLTEuNSksMi41Pg==""#, "<(0.0,-1.5),2.5>"),
        (Some(r#""type":"bytes""#), "text", r#""PCg=""#, "\\x3c28"),
    ] {
        assert_eq!(value(schema, ty, json, DebeziumOptions::default()), expected, "{json}");
    }
}

#[test]
fn values_without_a_schema_are_read_by_the_targets_type() {
    for (ty, json, expected) in [
        ("int8", "9007199254740993", "9007199254740993"),
        ("", "\"x\"", "x"),
        ("numeric", "1.50", "1.50"),
        ("numeric", "\"1.50\"", "1.50"),
        ("numeric", "\"-15\"", "-15"),
        ("numeric", "\"NaN\"", "NaN"),
        ("numeric", r#"{"scale":2,"value":"Dw=="}"#, "0.15"),
        (
            "numeric",
            "\"Dw==\"",
            "a decimal is written as bytes, and its scale is unknown without a schema",
        ),
        ("numeric", "\"1234\"", "a decimal could be a number or base64"),
        ("bytea", "\"AP8=\"", "\\x00ff"),
        ("bytea", "\"00ff0a\"", "\\x00ff0a"),
        ("bytea", "\"\"", "\\x"),
        ("bytea", "\"00ff\"", "bytes could be base64 or hexadecimal digits"),
        ("bytea", "\"!\"", "expected bytes as base64 or hexadecimal digits"),
        ("date", "19675", "2023-11-14"),
        ("date", "\"2023-11-14Z\"", "2023-11-14Z"),
        ("time", "0", "00:00:00"),
        ("time", "86399999999", "23:59:59.999999"),
        ("time", "3600000", "a time could be counted in milli-, micro- or nanoseconds"),
        ("timestamp", "1709287200123456", "2024-03-01 10:00:00.123456"),
        ("timestamptz", "1709287200123456", "2024-03-01 10:00:00.123456+00"),
        ("timestamp", "9223372036825200000", "infinity"),
        ("timestamp", "1709287200123", "a time could be counted in milli-, micro- or nanoseconds"),
        (
            "timestamp",
            "1709287200123456789",
            "a time could be counted in milli-, micro- or nanoseconds",
        ),
        ("timestamptz", "\"+12024-03-01T10:00:00Z\"", "12024-03-01T10:00:00Z"),
        // The last millisecond of the year 9999.
        (
            "timestamp",
            "253402300799999",
            "a time could be counted in milli-, micro- or nanoseconds",
        ),
        ("timestamp", "253402300800000", "1978-01-11 21:31:40.8"),
        ("interval", "86400001", "00:01:26.400001"),
        ("interval", "-90000000", "-00:01:30"),
        ("interval", "0", "00:00:00"),
        ("interval", "3600000", "an interval could be counted in milli- or microseconds"),
        ("interval", "\"P1DT1S\"", "P1DT1S"),
        ("bit", "true", "1"),
        ("varbit", "\"101\"", "101"),
        (
            "varbit",
            "\"BQ==\"",
            "bits are written as bytes, and their number is unknown without a schema",
        ),
        ("jsonb", "{\"a\":[1.0]}", "{\"a\":[1.0]}"),
        ("_numeric", "[1.50,null]", "{1.50,NULL}"),
        ("_timestamp", "[1709287200123456]", "{\"2024-03-01 10:00:00.123456\"}"),
        ("_int4", "\"{1,2}\"", "{1,2}"),
    ] {
        assert_eq!(value(None, ty, json, DebeziumOptions::default()), expected, "{ty} {json}");
    }
}

#[test]
fn options_decide_between_two_meanings() {
    let options = || DebeziumOptions {
        unit: Some(TimeUnit::Milli),
        text_decimals: Some(true),
        hex_bytes: Some(true),
        ..DebeziumOptions::default()
    };
    for (ty, json, expected) in [
        ("numeric", "\"1234\"", "1234"),
        ("bytea", "\"00ff\"", "\\x00ff"),
        ("time", "3600000", "01:00:00"),
        ("timestamp", "1709287200123", "2024-03-01 10:00:00.123"),
        ("timestamp", "253402300799999", "9999-12-31 23:59:59.999"),
        (
            "timestamp",
            "1709287200123456",
            "a time is after the year 9999 in the unit of `--debezium-time`",
        ),
        ("timestamp", "9223372036825200000", "infinity"),
        // Intervals are microseconds in each mode.
        ("interval", "90000000", "00:01:30"),
        ("interval", "3600000", "an interval could be counted in milli- or microseconds"),
    ] {
        assert_eq!(value(None, ty, json, options()), expected, "{ty} {json}");
    }
}

#[test]
fn earlier_values_decide_between_two_meanings() {
    let row = |row: &str| format!(r#"{{"op":"c","after":{row},"source":{{"table":"t"}}}}"#);
    let types = TypedColumns(&[("n", "numeric"), ("b", "bytea")]);
    let records = [row(r#"{"n":"0.5","b":"AQ=="}"#), row(r#"{"n":"1234","b":"abcd"}"#)];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    assert_eq!(
        decode(&mut Debezium::default(), &types, &records),
        ["Insert t {n=0.5 b=\\x01} end", "Insert t {n=1234 b=\\x69b71d} end"]
    );
}

#[test]
fn unavailable_values_are_absent_in_every_form() {
    let text = "\"__debezium_unavailable_value\"";
    let base64 = "\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\"";
    let uuids = "[\"b68a35a7-17ad-35b3-af2a-ae46edb4545a\"]";
    let bytes = format!("{:?}", "__debezium_unavailable_value".as_bytes());
    for (schema, ty, json) in [
        (None, "text", text),
        (None, "jsonb", text),
        (None, "", text),
        (None, "bytea", base64),
        (None, "_uuid", uuids),
        (None, "_int4", bytes.as_str()),
        (None, "_text", "[\"__debezium_unavailable_value\"]"),
        (None, "hstore", "{\"__debezium_unavailable_value\":\"__debezium_unavailable_value\"}"),
        (Some(r#""type":"bytes""#), "bytea", base64),
        (Some(r#""type":"string","name":"io.debezium.data.Json""#), "jsonb", text),
        (Some(r#""type":"array","items":{"type":"int32"}"#), "_int4", bytes.as_str()),
        (
            Some(
                r#""type":"string",
"parameters":{"__debezium.unavailable.value.placeholder":"gone"}"#,
            ),
            "text",
            "\"gone\"",
        ),
    ] {
        assert_eq!(value(schema, ty, json, DebeziumOptions::default()), "-", "{ty} {json}");
    }
    let own = |placeholder: &str| DebeziumOptions {
        placeholder: Some(placeholder.to_owned()),
        ..DebeziumOptions::default()
    };
    assert_eq!(value(None, "text", "\"?\"", own("?")), "-");
    assert_eq!(value(None, "bytea", "\"/wA=\"", own("hex:ff00")), "-");
    assert_eq!(value(None, "text", text, own("?")), "__debezium_unavailable_value");
    // In a text column this is an ordinary value.
    let plain = value(None, "text", base64, DebeziumOptions::default());
    assert_eq!(plain, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==");
}
