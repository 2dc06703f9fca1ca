//! Arrow values on a real PostgreSQL server. A loaded value must equal the same value written as a
//! text literal, in every file format, as binary COPY and as COPY text.

#[path = "support/arrow_load.rs"]
mod load;
#[path = "support/arrow_same.rs"]
mod same;
#[path = "support/arrow_server.rs"]
mod server;

use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano, i256};
use arrow_schema::{DataType, Field, TimeUnit};
use pgspate::encode::arrow::{ColumnEncoder, ValueRoute};
use pgspate::target::SessionSettings;

use load::{pg_type, session_settings};
use same::{ArrowFileKind, assert_refused, assert_same, assert_same_in, assert_same_in_arrow};
use server::Database;

type F16 = <Float16Type as ArrowPrimitiveType>::Native;

#[test]
fn integers() {
    let db = Database::new();
    let small = || Int8Array::from(vec![Some(-128), None, Some(127), Some(0)]);
    for sql in ["int2", "int4", "int8", "float4", "float8", "numeric", "numeric(5,1)", "text"] {
        assert_same(&db, small(), sql, &[Some("-128"), None, Some("127"), Some("0")]);
    }
    let wide = || Int64Array::from(vec![i64::MIN, i64::MAX, 10_000, 9_007_199_254_740_993]);
    let texts = ["-9223372036854775808", "9223372036854775807", "10000", "9007199254740993"];
    for sql in ["int8", "numeric", "float8", "float4", "text", "varchar"] {
        assert_same(&db, wide(), sql, &texts.map(Some));
    }
    assert_same(&db, Int16Array::from(vec![i16::MIN]), "int2", &[Some("-32768")]);
    assert_same(&db, Int16Array::from(vec![i16::MIN]), "numeric", &[Some("-32768")]);
    assert_same(&db, Int32Array::from(vec![i32::MIN]), "int8", &[Some("-2147483648")]);
    assert_same(&db, UInt8Array::from(vec![255]), "int2", &[Some("255")]);
    assert_same(&db, UInt16Array::from(vec![65_535]), "int4", &[Some("65535")]);
    assert_same(&db, UInt32Array::from(vec![u32::MAX]), "oid", &[Some("4294967295")]);
    assert_same(
        &db,
        UInt64Array::from(vec![u64::MAX, 0]),
        "numeric",
        &[Some("18446744073709551615"), Some("0")],
    );
    assert_same(&db, UInt64Array::from(vec![u64::MAX]), "float8", &[Some("18446744073709551615")]);
    assert_same(&db, Int32Array::from(vec![1, 0]), "bool", &[Some("1"), Some("0")]);
    assert_refused(&db, UInt64Array::from(vec![u64::MAX]), "int8", "22003");
    assert_refused(&db, Int32Array::from(vec![32_768, -32_769]), "int2", "22003");
    assert_refused(&db, Int64Array::from(vec![1 << 31]), "int4", "22003");
    assert_refused(&db, UInt16Array::from(vec![65_535]), "int2", "22003");
}

#[test]
fn floats() {
    let db = Database::new();
    let values =
        vec![0.0, -0.0, 1.5, 1e15, 1e-5, f64::MAX, f64::MIN_POSITIVE, 5e-324, f64::NAN, 0.1];
    let texts = [
        "0",
        "-0",
        "1.5",
        "1e15",
        "1e-5",
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
        "5e-324",
        "NaN",
        "0.1",
    ];
    for sql in ["float8", "numeric", "text"] {
        let shown: Vec<Option<String>> = match sql {
            "text" => texts
                .iter()
                .map(|t| {
                    Some(t.replace("e15", "e+15").replace("e-5", "e-05").replace("e308", "e+308"))
                })
                .collect(),
            _ => texts.iter().map(|t| Some((*t).to_owned())).collect(),
        };
        let shown: Vec<Option<&str>> = shown.iter().map(|t| t.as_deref()).collect();
        assert_same(&db, Float64Array::from(values.clone()), sql, &shown);
    }
    let infinite = Float64Array::from(vec![f64::INFINITY, f64::NEG_INFINITY]);
    for sql in ["float4", "float8", "numeric", "text"] {
        assert_same(&db, infinite.clone(), sql, &[Some("Infinity"), Some("-Infinity")]);
    }
    let narrow = Float32Array::from(vec![
        Some(0.1),
        None,
        Some(f32::MAX),
        Some(1e-45),
        Some(123456.0),
        Some(1e6),
    ]);
    let texts =
        [Some("0.1"), None, Some("3.4028235e38"), Some("1e-45"), Some("123456"), Some("1000000")];
    assert_same(&db, narrow.clone(), "float4", &texts);
    assert_same(&db, narrow.clone(), "numeric", &texts);
    assert_same(&db, narrow.slice(0, 1), "float8", &[Some("0.10000000149011612")]);
    assert_same(&db, narrow.slice(4, 2), "text", &[Some("123456"), Some("1e+06")]);
}

#[test]
fn floats_as_narrower_floats_and_integers() {
    let db = Database::new();
    let half = Float16Array::from(vec![F16::from_f32(1.5), F16::from_f32(-2.0)]);
    for sql in ["float4", "float8", "numeric", "text", "int4"] {
        if sql != "int4" {
            assert_same(&db, half.clone(), sql, &[Some("1.5"), Some("-2")]);
        }
    }
    assert_same(
        &db,
        Float64Array::from(vec![3.0, -0.0, 2147483647.0]),
        "int4",
        &[Some("3"), Some("0"), Some("2147483647")],
    );
    assert_same(
        &db,
        Float64Array::from(vec![1e15, -9e18]),
        "int8",
        &[Some("1000000000000000"), Some("-9000000000000000000")],
    );
    assert_same(
        &db,
        Float32Array::from(vec![1e6, 16777216.0]),
        "int4",
        &[Some("1000000"), Some("16777216")],
    );
    assert_same(
        &db,
        Float64Array::from(vec![0.1, 1.000_000_178_813_934_3]),
        "float4",
        &[Some("0.1"), Some("1.0000002")],
    );
    assert_refused(
        &db,
        Float64Array::from(vec![1.5, f64::NAN, 1e300, f64::INFINITY]),
        "int8",
        "22P02",
    );
    assert_refused(&db, Float64Array::from(vec![1e300, 1e-300]), "float4", "22003");
    assert_refused(&db, Float64Array::from(vec![2147483648.0]), "int4", "22003");
}

#[test]
fn decimals() {
    let db = Database::new();
    let dec = |values: Vec<i128>, precision, scale| {
        Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap()
    };
    let many =
        vec![0, 1, -1, 150, 1_000_000_000, 123_456_789, 999_999_999_999_999, -99_999, 10_000, 100];
    for scale in [0i8, 1, 2, 3, 4, 5, 9, 15] {
        let texts: Vec<String> = many.iter().map(|v| spell(*v, scale)).collect();
        let texts: Vec<Option<&str>> = texts.iter().map(|t| Some(t.as_str())).collect();
        for sql in ["numeric", "numeric(38,9)", "text", "float8", "float4"] {
            assert_same(&db, dec(many.clone(), 15, scale), sql, &texts);
        }
    }
    assert_same(
        &db,
        dec(vec![123_456_789, 1, -999_999_999], 9, 9),
        "numeric",
        &[Some("0.123456789"), Some("0.000000001"), Some("-0.999999999")],
    );
    let nines = 10i128.pow(38) - 1;
    let fraction = format!("0.{}", "9".repeat(38));
    let big = format!("-{}", "9".repeat(38));
    assert_same(&db, dec(vec![nines, 1], 38, 38), "numeric", &[Some(&fraction), Some("1e-38")]);
    assert_same(
        &db,
        dec(vec![-nines, 10i128.pow(37)], 38, 0),
        "numeric",
        &[Some(&big), Some("1e37")],
    );
    assert_same(
        &db,
        dec(vec![nines], 38, 37),
        "numeric",
        &[Some(&format!("9.{}", "9".repeat(37)))],
    );
    assert_same_in_arrow(
        &db,
        dec(vec![12, -1, 0], 5, -3),
        "numeric",
        &[Some("12000"), Some("-1000"), Some("0")],
    );
    assert_same_in_arrow(
        &db,
        dec(vec![12, -1, 0], 5, -3),
        "int4",
        &[Some("12000"), Some("-1000"), Some("0")],
    );
    assert_same(
        &db,
        dec(vec![1_456_312_800_000_000], 18, 0),
        "numeric",
        &[Some("1456312800000000")],
    );
    assert_same(&db, dec(vec![200, -500], 9, 2), "int4", &[Some("2"), Some("-5")]);
    assert_refused(&db, dec(vec![150], 9, 2), "int4", "22P02");
    assert_refused(&db, dec(vec![3_000_000_000], 10, 0), "int4", "22003");
    let wide = |values: Vec<i256>, scale| {
        Decimal256Array::from(values).with_precision_and_scale(76, scale).unwrap()
    };
    let ten = i256::from_i128(10);
    let most = ten.checked_pow(76).unwrap().wrapping_sub(i256::ONE);
    let texts = ["9".repeat(76), format!("-{}", "9".repeat(76)), "7".to_owned()];
    let texts: Vec<Option<&str>> = texts.iter().map(|t| Some(t.as_str())).collect();
    let values = vec![most, most.wrapping_neg(), i256::from_i128(7)];
    for sql in ["numeric", "float8", "text"] {
        assert_same(&db, wide(values.clone(), 0), sql, &texts);
    }
    assert_same(
        &db,
        wide(vec![most, i256::ONE], 76),
        "numeric",
        &[Some(&format!("0.{}", "9".repeat(76))), Some("1e-76")],
    );
    assert_same(&db, wide(vec![ten.checked_pow(50).unwrap()], 49), "int2", &[Some("10")]);
    let d32 = Decimal32Array::from(vec![-12_345]).with_precision_and_scale(7, 3).unwrap();
    assert_same(&db, d32, "numeric", &[Some("-12.345")]);
    let d64 = Decimal64Array::from(vec![Some(1), None]).with_precision_and_scale(15, 6).unwrap();
    assert_same(&db, d64, "numeric", &[Some("0.000001"), None]);
}

fn spell(value: i128, scale: i8) -> String {
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale as usize + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale as usize);
    let sign = if value < 0 { "-" } else { "" };
    let point = if scale > 0 { "." } else { "" };
    format!("{sign}{whole}{point}{fraction}")
}

#[test]
fn strings_and_bytes() {
    let db = Database::new();
    let texts = [
        Some("plain"),
        None,
        Some(""),
        Some("tab\tnew\nline\rback\\slash \\N"),
        Some("žluťoučký kůň 🐎 and more than twelve"),
        Some("NULL"),
    ];
    for sql in ["text", "varchar", "bpchar", "varchar(60)"] {
        assert_same(&db, StringArray::from(texts.to_vec()), sql, &texts);
        assert_same(&db, LargeStringArray::from(texts.to_vec()), sql, &texts);
        assert_same(&db, StringViewArray::from(texts.to_vec()), sql, &texts);
        assert_same(&db, texts.iter().copied().collect::<DictionaryArray<Int8Type>>(), sql, &texts);
        let raw: Vec<Option<&[u8]>> = texts.iter().map(|t| t.map(str::as_bytes)).collect();
        assert_same(&db, BinaryArray::from(raw.clone()), sql, &texts);
    }
    assert_same(
        &db,
        StringArray::from(vec!["{\"b\": 1, \"a\":2}"]),
        "jsonb",
        &[Some("{\"b\": 1, \"a\":2}")],
    );
    assert_same(
        &db,
        StringArray::from(vec!["{\"b\": 1, \"a\":2}"]),
        "json",
        &[Some("{\"b\": 1, \"a\":2}")],
    );
    assert_same(&db, StringArray::from(vec!["12", "-3"]), "int4", &[Some("12"), Some("-3")]);
    assert_same(
        &db,
        StringArray::from(vec!["{1,2}", "{}"]),
        "int4[]",
        &[Some("{1,2}"), Some("{}")],
    );
    assert_same(&db, StringArray::from(vec!["$1.50"]), "money", &[Some("1.5")]);
}

#[test]
fn bytes_and_others() {
    let db = Database::new();
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    assert_same(&db, StringArray::from(vec![uuid]), "uuid", &[Some(uuid)]);
    let bytes: Vec<u8> = (0..16).map(|n| n * 17).collect();
    let fixed = FixedSizeBinaryArray::try_from_iter([bytes.clone()].into_iter()).unwrap();
    assert_same(&db, fixed.clone(), "uuid", &[Some(uuid)]);
    assert_same(&db, fixed, "bytea", &[Some("\\x00112233445566778899aabbccddeeff")]);
    assert_same(
        &db,
        BinaryArray::from(vec![bytes.as_slice(), uuid.as_bytes()]),
        "uuid",
        &[Some(uuid), Some(uuid)],
    );
    let raw = vec![Some(&b"\x00\xff\\"[..]), None, Some(b""), Some(b"longer than twelve bytes")];
    let hex = [
        Some("\\x00ff5c"),
        None,
        Some("\\x"),
        Some("\\x6c6f6e676572207468616e207477656c7665206279746573"),
    ];
    assert_same(&db, BinaryArray::from(raw.clone()), "bytea", &hex);
    assert_same(&db, LargeBinaryArray::from(raw.clone()), "bytea", &hex);
    assert_same(&db, BinaryViewArray::from(raw), "bytea", &hex);
    assert_same(
        &db,
        BooleanArray::from(vec![Some(true), None, Some(false)]),
        "bool",
        &[Some("t"), None, Some("f")],
    );
    assert_same(&db, BooleanArray::from(vec![true]), "text", &[Some("true")]);
    assert_same(&db, NullArray::new(2), "text", &[None, None]);
    assert_same_in_arrow(&db, NullArray::new(2), "int4[]", &[None, None]);
    let runs: RunArray<Int32Type> = ["a", "a", "b"].into_iter().collect();
    assert_same_in_arrow(&db, runs, "text", &[Some("a"), Some("a"), Some("b")]);
    let numbers = Int64Array::from(vec![Some(7), None]);
    let keys = Int16Array::from(vec![Some(0), Some(1), None]);
    assert_same_in_arrow(
        &db,
        DictionaryArray::new(keys, Arc::new(numbers)),
        "numeric",
        &[Some("7"), None, None],
    );
}

#[test]
fn dates() {
    let db = Database::new();
    let days = Date32Array::from(vec![
        Some(0),
        None,
        Some(-719_162),
        Some(-719_163),
        Some(2_932_896),
        Some(11_016),
        Some(-2_440_588),
    ]);
    let texts = [
        Some("1970-01-01"),
        None,
        Some("0001-01-01"),
        Some("0001-12-31 BC"),
        Some("9999-12-31"),
        Some("2000-02-29"),
        Some("4714-11-24 BC"),
    ];
    for sql in ["date", "timestamp", "timestamptz", "text"] {
        assert_same(&db, days.clone(), sql, &texts);
    }
    assert_same(
        &db,
        Date64Array::from(vec![86_400_000, -1]),
        "date",
        &[Some("1970-01-02"), Some("1969-12-31")],
    );
    assert_same(&db, Date32Array::from(vec![2_145_042_905]), "date", &[Some("5874897-12-31")]);
    assert_refused(
        &db,
        Date32Array::from(vec![i32::MAX, i32::MIN, 2_145_042_906, -2_440_589]),
        "date",
        "22008",
    );
}

#[test]
fn timestamps() {
    let db = Database::new();
    let micros = vec![0, 1, -1, 253_402_300_799_999_999, -62_135_596_800_000_000, i64::MAX - 1];
    let texts = [
        "1970-01-01 00:00:00",
        "1970-01-01 00:00:00.000001",
        "1969-12-31 23:59:59.999999",
        "9999-12-31 23:59:59.999999",
        "0001-01-01",
        "294247-01-10 04:00:54.775806",
    ];
    for sql in ["timestamp", "timestamptz", "timestamp(3)", "date"] {
        let naive = TimestampMicrosecondArray::from(micros.clone());
        let end = if sql == "timestamp(3)" { 5 } else { 6 };
        let texts = texts.map(Some);
        assert_same(&db, naive.slice(0, end), sql, &texts[..end]);
        assert_same(&db, naive.with_timezone("+05:30").slice(0, end), sql, &texts[..end]);
    }
    assert_refused(
        &db,
        TimestampMicrosecondArray::from(vec![i64::MIN, -210_866_803_200_000_001]),
        "timestamp",
        "22008",
    );
    // DuckDB exports `infinity` as this number.
    let infinite = TimestampMicrosecondArray::from(vec![i64::MAX]);
    for sql in ["timestamp", "timestamptz", "date"] {
        assert_refused(&db, infinite.clone(), sql, "22008");
        assert_refused(&db, infinite.clone().with_timezone("UTC"), sql, "22008");
    }
    assert_refused(
        &db,
        TimestampSecondArray::from(vec![i64::MAX, i64::MIN]),
        "timestamptz",
        "22008",
    );
    assert_same(
        &db,
        TimestampSecondArray::from(vec![1_709_164_800]),
        "timestamp",
        &[Some("2024-02-29")],
    );
    assert_same(
        &db,
        TimestampMillisecondArray::from(vec![-1]),
        "timestamptz",
        &[Some("1969-12-31 23:59:59.999Z")],
    );
    let nanos: Vec<i64> = vec![
        500,
        1_500,
        2_500,
        999_999_999,
        -1,
        -500,
        -1_500,
        i64::MAX,
        i64::MIN,
        123_456_789_012_345_678,
    ];
    let texts = [
        "1970-01-01 00:00:00.000000500",
        "1970-01-01 00:00:00.000001500",
        "1970-01-01 00:00:00.000002500",
        "1970-01-01 00:00:00.999999999",
        "1969-12-31 23:59:59.999999999",
        "1969-12-31 23:59:59.999999500",
        "1969-12-31 23:59:59.999998500",
        "2262-04-11 23:47:16.854775807",
        "1677-09-21 00:12:43.145224192",
        "1973-11-29 21:33:09.012345678",
    ];
    for sql in ["timestamp", "timestamptz", "date"] {
        assert_same(&db, TimestampNanosecondArray::from(nanos.clone()), sql, &texts.map(Some));
    }
}

#[test]
fn times() {
    let db = Database::new();
    for sql in ["time", "text"] {
        assert_same(
            &db,
            Time32SecondArray::from(vec![0, 86_399]),
            sql,
            &[Some("00:00:00"), Some("23:59:59")],
        );
        assert_same(&db, Time32MillisecondArray::from(vec![1_500]), sql, &[Some("00:00:01.5")]);
        assert_same(
            &db,
            Time64MicrosecondArray::from(vec![86_399_999_999]),
            sql,
            &[Some("23:59:59.999999")],
        );
    }
    assert_same(
        &db,
        Time64NanosecondArray::from(vec![500, 1_500, 86_399_999_999_999]),
        "time",
        &[Some("00:00:00.000000500"), Some("00:00:00.000001500"), Some("23:59:59.999999999")],
    );
    assert_same_in_arrow(
        &db,
        Time64MicrosecondArray::from(vec![86_400_000_000]),
        "time",
        &[Some("24:00:00")],
    );
    for (value, state) in [(86_400_000_001, "22008"), (-1, "22007"), (i64::MIN, "22009")] {
        assert_refused(&db, Time64MicrosecondArray::from(vec![value]), "time", state);
    }
    let naive: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![Some(0), None]));
    db.run("set timezone = 'Asia/Kolkata'");
    assert_same_in(
        &db,
        &session_settings("Asia/Kolkata"),
        naive,
        "timestamptz",
        &[Some("1970-01-01 00:00:00+05:30"), None],
        &[ArrowFileKind::Parquet],
    );
}

#[test]
fn intervals() {
    let db = Database::new();
    for sql in ["interval", "text"] {
        assert_same(
            &db,
            IntervalYearMonthArray::from(vec![14, -1]),
            sql,
            &[Some("1 year 2 mons"), Some("-1 mons")],
        );
        let day_time = vec![IntervalDayTime::new(3, -1_500), IntervalDayTime::new(-1, 0)];
        assert_same_in_arrow(
            &db,
            IntervalDayTimeArray::from(day_time),
            sql,
            &[Some("3 days -00:00:01.5"), Some("-1 days")],
        );
        let full = vec![Some(IntervalMonthDayNano::new(-14, 3, 1_000_000_000)), None];
        assert_same_in_arrow(
            &db,
            IntervalMonthDayNanoArray::from(full),
            sql,
            &[Some("-1 years -2 mons +3 days 00:00:01"), None],
        );
        assert_same(
            &db,
            DurationSecondArray::from(vec![3_600, -1]),
            sql,
            &[Some("01:00:00"), Some("-00:00:01")],
        );
    }
    let odd = vec![IntervalMonthDayNano::new(0, 0, -1_500), IntervalMonthDayNano::new(0, 0, 2_500)];
    assert_same_in_arrow(
        &db,
        IntervalMonthDayNanoArray::from(odd),
        "interval",
        &[Some("-00:00:00.000001500"), Some("00:00:00.000002500")],
    );
    assert_same(
        &db,
        DurationNanosecondArray::from(vec![1_500, -500, 999_999_999_999]),
        "interval",
        &[Some("00:00:00.000001500"), Some("-00:00:00.0000005"), Some("00:16:39.999999999")],
    );
    assert_same(
        &db,
        DurationMicrosecondArray::from(vec![i64::MAX]),
        "interval",
        &[Some("2562047788:00:54.775807")],
    );
    assert_refused(&db, DurationSecondArray::from(vec![i64::MAX]), "interval", "22015");
}

#[test]
fn errors_say_why_a_type_cannot_be_converted() {
    let reason = |data_type: DataType, sql: &str, session: &SessionSettings| {
        let field = Field::new("v", data_type, true);
        ColumnEncoder::new(&field, &pg_type(sql), session).unwrap_err()
    };
    let utc = session_settings("UTC");
    assert_eq!(reason(DataType::Boolean, "int4", &utc), "Boolean cannot be converted to int4");
    assert_eq!(reason(DataType::Int32, "int4[]", &utc), "Int32 cannot be converted to int4[]");
    assert_eq!(reason(DataType::Date32, "numeric", &utc), "Date32 cannot be converted to numeric");
    let item = Field::new("item", DataType::Int32, true);
    assert!(
        reason(DataType::List(item.into()), "int4", &utc).ends_with("cannot be converted to int4")
    );
    let latin = SessionSettings { client_encoding: "LATIN1".to_owned(), ..utc };
    assert_eq!(
        reason(DataType::Utf8, "text", &latin),
        "Arrow strings are UTF-8, but client_encoding is LATIN1"
    );
    let naive = Field::new("v", DataType::Timestamp(TimeUnit::Microsecond, None), true);
    let prague = session_settings("Europe/Prague");
    let encoder = ColumnEncoder::new(&naive, &pg_type("timestamptz"), &prague).unwrap();
    assert!(
        matches!(encoder.route(), ValueRoute::Server(reason) if reason.contains("Europe/Prague"))
    );
}
