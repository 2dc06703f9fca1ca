//! Lists, structs and maps on a real PostgreSQL server, tested as `arrow.rs` tests scalars.

#[path = "support/arrow_load.rs"]
mod load;
#[path = "support/arrow_same.rs"]
mod same;
#[path = "support/arrow_server.rs"]
mod server;

use std::sync::Arc;

use arrow_array::builder::*;
use arrow_array::types::*;
use arrow_array::*;
use arrow_schema::{DataType, Field};

use same::{assert_refused, assert_same, assert_same_in_arrow};
use server::Database;

#[test]
fn lists() {
    let db = Database::new();
    let lists = || {
        ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
            Some(vec![Some(1), None, Some(-3)]),
            None,
            Some(vec![]),
        ])
    };
    let texts = [Some("{1,NULL,-3}"), None, Some("{}")];
    for sql in ["int4[]", "int8[]", "numeric[]", "float8[]", "text[]"] {
        assert_same(&db, lists(), sql, &texts);
    }
    for sql in ["json", "jsonb", "text"] {
        assert_same(&db, lists(), sql, &[Some("[1,null,-3]"), None, Some("[]")]);
    }
    assert_same(
        &db,
        LargeListArray::from_iter_primitive::<Int64Type, _, _>(vec![Some(vec![Some(5)])]),
        "int2[]",
        &[Some("{5}")],
    );
    assert_same(
        &db,
        FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            vec![Some(vec![Some(1.5), Some(2.0)]), None],
            2,
        ),
        "float4[]",
        &[Some("{1.5,2}"), None],
    );
    assert_refused(
        &db,
        ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(40_000)])]),
        "int2[]",
        "22003",
    );
    let mut strings = ListBuilder::new(StringBuilder::new());
    strings.append_value([Some("a\"b\\c,{}"), Some(""), Some("NULL"), None, Some(" ")]);
    assert_same(
        &db,
        strings.finish(),
        "text[]",
        &[Some("{\"a\\\"b\\\\c,{}\",\"\",\"NULL\",NULL,\" \"}")],
    );
}

#[test]
fn lists_of_lists() {
    let db = Database::new();
    let nested = |rows: Vec<Vec<Option<Vec<i32>>>>| {
        let mut outer = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
        for row in rows {
            for inner in row {
                outer.values().append_option(inner.map(|values| values.into_iter().map(Some)));
            }
            outer.append(true);
        }
        outer.finish()
    };
    assert_same(
        &db,
        nested(vec![vec![Some(vec![1, 2]), Some(vec![3, 4])], vec![]]),
        "int4[]",
        &[Some("{{1,2},{3,4}}"), Some("{}")],
    );
    assert_same(
        &db,
        nested(vec![vec![Some(vec![1]), Some(vec![3, 4]), None]]),
        "jsonb",
        &[Some("[[1],[3,4],null]")],
    );
    assert_refused(
        &db,
        nested(vec![
            vec![Some(vec![1]), Some(vec![3, 4])],
            vec![Some(vec![1]), None],
            vec![None, Some(vec![1])],
        ]),
        "int4[]",
        "22P02",
    );
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let values = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let views = ListViewArray::new(item, vec![1, 0].into(), vec![2, 0].into(), values, None);
    assert_same_in_arrow(&db, views, "int4[]", &[Some("{2,3}"), Some("{}")]);
    let dates = vec![Some(vec![Some(0)])];
    assert_same(
        &db,
        ListArray::from_iter_primitive::<Date32Type, _, _>(dates),
        "date[]",
        &[Some("{1970-01-01}")],
    );
}

#[test]
fn structs_and_maps() {
    let db = Database::new();
    let fields: Vec<(Arc<Field>, ArrayRef)> = vec![
        (
            Field::new("n\"", DataType::Int32, true).into(),
            Arc::new(Int32Array::from(vec![Some(1), None])),
        ),
        (
            Field::new("s", DataType::Utf8, true).into(),
            Arc::new(StringArray::from(vec!["a\"\\\n\u{1}é", "b"])),
        ),
        (
            Field::new("b", DataType::Binary, true).into(),
            Arc::new(BinaryArray::from(vec![&b"\x0a"[..], b""])),
        ),
        (
            Field::new("f", DataType::Float64, true).into(),
            Arc::new(Float64Array::from(vec![f64::NAN, 1e20])),
        ),
        (Field::new("t", DataType::Date32, true).into(), Arc::new(Date32Array::from(vec![0, 1]))),
        (
            Field::new("d", DataType::Decimal128(9, 2), true).into(),
            Arc::new(Decimal128Array::from(vec![150, -1]).with_precision_and_scale(9, 2).unwrap()),
        ),
        (
            Field::new(
                "ts",
                DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, Some("UTC".into())),
                true,
            )
            .into(),
            Arc::new(TimestampMicrosecondArray::from(vec![1, 0]).with_timezone("UTC")),
        ),
    ];
    let texts = [
        Some(concat!(
            r#"{"n\"":1,"s":"a\"\\\n\u0001é","b":"\\x0a","f":"NaN","t":"1970-01-01","#,
            r#""d":1.50,"ts":"1970-01-01T00:00:00.000001+00:00"}"#
        )),
        Some(concat!(
            r#"{"n\"":null,"s":"b","b":"\\x","f":1e+20,"t":"1970-01-02","#,
            r#""d":-0.01,"ts":"1970-01-01T00:00:00+00:00"}"#
        )),
    ];
    for sql in ["jsonb", "json", "text"] {
        assert_same(&db, StructArray::from(fields.clone()), sql, &texts);
    }
    let mut map = MapBuilder::new(None, Int32Builder::new(), StringBuilder::new());
    map.keys().append_value(7);
    map.values().append_value("x");
    map.keys().append_value(8);
    map.values().append_null();
    map.append(true).unwrap();
    map.append(false).unwrap();
    assert_same(&db, map.finish(), "jsonb", &[Some(r#"{"7":"x","8":null}"#), None]);
}
