//! Tests of files that are sent again with the same values under corrected columns.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, NullArray, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};

use crate::support::LoadCase;

/// Loads `first`, changes a file, and checks that the load of `again` finds the change.
#[track_caller]
fn check_is_changed(case: &LoadCase, first: &str, again: &str, put_after: impl Fn()) {
    case.load(&format!("{first} --table t --quiet")).success();
    let loaded = case.rows("t");
    put_after();
    let said = case.refusal(&format!("{again} --table t"));
    assert!(said.contains("has changed since it was loaded"), "{first}, {again}: {said}");
    case.load(&format!("{again} --table t --changed skip --quiet")).success();
    assert_eq!(case.rows("t"), loaded);
    case.load(&format!("{again} --table t --changed reload --quiet")).success();
    assert_ne!(case.rows("t"), loaded);
}

#[test]
fn a_corrected_header_is_a_change() {
    let list = "land/1.csv land/2.csv";
    for (first, again, header) in [
        ("land", "land", "b,a"),
        (list, list, "b,a"),
        (list, "land/2.csv", "b,a"),
        (list, "land/2.csv", "a,c"),
    ] {
        let case = LoadCase::new("create table t (a int, b int, c int)");
        case.put("land/1.csv", "a,b\n1,2\n");
        case.put("land/2.csv", "a,b\n5,6\n");
        check_is_changed(&case, first, again, || {
            case.put("land/2.csv", format!("{header}\n5,6\n"));
        });
        let corrected = if header == "b,a" { "(6,5,)" } else { "(5,,6)" };
        assert!(case.rows("t").contains(&corrected.to_owned()), "{:?}", case.rows("t"));
    }
}

/// Values go to their columns by name, whichever file comes first.
#[test]
fn another_order_of_the_first_files_columns_is_no_change() {
    let case = LoadCase::new("create table t (a int, b int)");
    case.put("land/1.csv", "a,b\n1,2\n");
    case.put("land/2.csv", "b,a\n6,5\n");
    case.load("land --table t --quiet").success();
    case.put("land/0.csv", "b,a\n8,7\n");
    // The content alone can show that these files are the same.
    case.put("land/1.csv", "a,b\n1,2\n");
    case.put("land/2.csv", "b,a\n6,5\n");
    case.load("land --table t --quiet").success();
    assert_eq!(case.rows("t"), ["(1,2)", "(5,6)", "(7,8)"]);
}

fn put_parquet<const N: usize>(case: &LoadCase, name: &str, columns: [(&str, ArrayRef); N]) {
    let columns = columns.map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    case.put(name, file);
}

#[test]
fn corrected_types_of_parquet_columns_are_a_change() {
    let decimal = |scale| {
        let values = Decimal128Array::from(vec![100, 250]);
        Arc::new(values.with_precision_and_scale(9, scale).unwrap()) as ArrayRef
    };
    let case = LoadCase::new("create table t (v numeric)");
    put_parquet(&case, "t.parquet", [("v", decimal(2))]);
    check_is_changed(&case, "t.parquet", "t.parquet", || {
        put_parquet(&case, "t.parquet", [("v", decimal(3))]);
    });
    assert_eq!(case.rows("t"), ["(0.100)", "(0.250)", "(1.00)", "(2.50)"]);

    let time = |zone: Option<&str>| {
        let values = TimestampMicrosecondArray::from(vec![1_709_164_800_000_000]);
        Arc::new(values.with_timezone_opt(zone)) as ArrayRef
    };
    let case = LoadCase::new(
        "create table t (v timestamptz); \
         do $$ begin execute format('alter database %I set timezone = ''Asia/Tokyo''', \
                                    current_database()); end $$",
    );
    put_parquet(&case, "t.parquet", [("v", time(None))]);
    check_is_changed(&case, "t.parquet", "t.parquet", || {
        put_parquet(&case, "t.parquet", [("v", time(Some("UTC")))]);
    });
}

#[test]
fn exchanged_names_of_parquet_columns_are_a_change() {
    let columns = |names: [&'static str; 2]| {
        let number = |n| Arc::new(Int32Array::from(vec![n])) as ArrayRef;
        [(names[0], number(1)), (names[1], number(2))]
    };
    let case = LoadCase::new("create table t (a int, b int)");
    put_parquet(&case, "land/1.parquet", columns(["a", "b"]));
    put_parquet(&case, "land/2.parquet", columns(["a", "b"]));
    check_is_changed(&case, "land", "land", || {
        put_parquet(&case, "land/2.parquet", columns(["b", "a"]));
    });
    assert_eq!(case.rows("t"), ["(1,2)", "(1,2)", "(2,1)"]);
    // The same file again, with another time of change.
    put_parquet(&case, "land/1.parquet", columns(["a", "b"]));
    case.load("land --table t --quiet").success();
    assert_eq!(case.rows("t").len(), 3);
}

/// The fields of Parquet and Arrow have names, as the columns of a data frame have.
#[test]
fn columns_of_parquet_are_chosen_by_name() {
    let case = LoadCase::new("create table t (id text, name text, note text)");
    let text = |value: &str| -> ArrayRef { Arc::new(StringArray::from(vec![value])) };
    put_parquet(&case, "t.parquet", [("id", text("1")), ("name", text("x")), ("n", text("7"))]);
    for columns in ["name,id", "id,name"] {
        case.load(&format!("t.parquet --table t --columns {columns} --restart")).success();
    }
    case.load("t.parquet --table made --create --columns n,id").success();
    assert_eq!(case.rows("t"), ["(1,x,)", "(1,x,)"]);
    assert_eq!(case.rows("made"), ["(7,1)"]);
    // Other names rename the fields in their order.
    case.load("t.parquet --table t --columns note,name,id --restart").success();
    assert_eq!(case.rows("t"), ["(1,x,)", "(1,x,)", "(7,x,1)"]);
}

/// pandas writes integers as floats if one is missing, and texts without a value as nulls.
#[test]
fn files_may_have_other_types_and_another_order() {
    let case = LoadCase::new("create table t (id int, qty int, note text)");
    let ids = |first: i32| -> ArrayRef { Arc::new(Int32Array::from(vec![first, first + 1])) };
    let texts = |values: [&str; 2]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let floats =
        |values: [Option<f64>; 2]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    let notes: ArrayRef = Arc::new(NullArray::new(2));
    let columns = [("id", ids(1)), ("qty", ids(10)), ("note", texts(["a", "b"]))];
    put_parquet(&case, "land/1.parquet", columns);
    let columns = [("note", notes), ("qty", floats([Some(3.0), None])), ("id", ids(3))];
    put_parquet(&case, "land/2.parquet", columns);
    let columns = [("qty", ids(5)), ("id", ids(5)), ("note", texts(["c", "d"]))];
    put_parquet(&case, "land/3.parquet", columns);
    let said = case.load("land --table t").success();
    let warning = "1 file has other types than the first: in \"land/2.parquet\", column \"qty\" \
                   has type Float64, not Int32";
    assert!(said.replace("\n      … ", " ").contains(warning), "{said}");
    let rows = ["(1,10,a)", "(2,11,b)", "(3,3,)", "(4,,)", "(5,5,c)", "(6,6,d)"];
    assert_eq!(case.rows("t"), rows);
    // A value that does not fit is set aside with its own text.
    let columns = [("id", ids(7)), ("note", texts(["e", "f"])), ("qty", floats([Some(0.5), None]))];
    put_parquet(&case, "land/4.parquet", columns);
    case.load("land --table t --rejects bad.ndjson --quiet").partial();
    let bad = std::fs::read_to_string(case.path("bad.ndjson")).unwrap();
    assert_eq!(bad, "{\"id\":7,\"note\":\"e\",\"qty\":0.5}\n");
    assert_eq!(case.rows("t").len(), 7);
    // The types of a new table are those of the first file.
    let said = case.refusal("land --table made --create").replace("\n      … ", " ");
    assert!(said.contains("column \"note\" has type Null, not Utf8View"), "{said}");
}

#[test]
fn files_with_other_columns_are_refused() {
    let case = LoadCase::new("create table t (id int, qty int)");
    let numbers = || -> ArrayRef { Arc::new(Int32Array::from(vec![1, 2])) };
    let floats = || -> ArrayRef { Arc::new(Float64Array::from(vec![1.0, 2.0])) };
    let truths = || -> ArrayRef { Arc::new(BooleanArray::from(vec![true, false])) };
    for folder in ["less", "more", "bool"] {
        let columns = [("id", numbers()), ("qty", numbers())];
        put_parquet(&case, &format!("{folder}/1.parquet"), columns);
    }
    put_parquet(&case, "less/2.parquet", [("id", numbers())]);
    let columns = [("id", numbers()), ("qty", numbers()), ("note", numbers())];
    put_parquet(&case, "more/2.parquet", columns);
    put_parquet(&case, "bool/2.parquet", [("id", numbers()), ("qty", truths())]);
    put_parquet(&case, "twice/1.parquet", [("v", numbers()), ("v", numbers())]);
    put_parquet(&case, "twice/2.parquet", [("v", numbers()), ("v", floats())]);
    for (args, expected) in [
        ("less", "column \"qty\" is missing"),
        ("more", "column \"note\" is not among them"),
        ("bool", "cannot convert column \"qty\" of the input to type integer"),
        ("twice --columns id,qty", "several columns have the name \"v\""),
    ] {
        let said = case.load(&format!("{args} --table t --quiet")).refusal();
        let place = format!("at: {}/2.parquet", args.split(' ').next().unwrap());
        let said = said.replace("\n      … ", " ");
        assert!(said.contains(expected) && said.contains(&place), "{args}: {said}");
    }
    assert_eq!(case.rows("t"), Vec::<String>::new());
}
