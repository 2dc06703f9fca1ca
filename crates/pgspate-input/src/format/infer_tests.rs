//! Tests of the columns that are inferred from samples.

use super::*;

fn inferred_type(values: &[&str]) -> ColumnType {
    let rows: Vec<_> = values
        .iter()
        .map(|v| vec![Some(v.as_bytes().to_vec()).filter(|v| !v.is_empty())])
        .collect();
    columns_of_rows(&["x".to_string()], &rows, &DateFormats::default())[0].ty
}

#[test]
fn numbers_get_a_type_that_loses_no_digit() {
    use ColumnType::*;
    for (values, ty) in [
        (&["1", "-20", "0", ""][..], Bigint),
        (&["9223372036854775807", "-9223372036854775808"], Bigint),
        (&["9223372036854775808"], Numeric),
        (&["12.50", "3", ".5"], Numeric),
        (&["1e5", "2", "2.5"], Double),
        (&["0.1234567890123456"], Double),
        (&["0.123456789012345678"], Numeric),
        // As printed by `repr`, by `%.17g`, and by no program that has a double.
        (&["-73.98215484619139", "0.30000000000000004"], Double),
        (&["0.10000000000000001", "73.993743896484375"], Double),
        (&["1.2345678901234567e-8"], Double),
        (&["0.12345678901234567"], Numeric),
        (&["100.00000000000000"], Numeric),
        (&["0.1234567890123400"], Numeric),
        (&["12345678901234567", "1e5"], Numeric),
        (&["12345678901234567", "0.5"], Numeric),
        (&["1e400"], Numeric),
        (&["1e-320"], Numeric),
        (&["NaN", "1.5"], Double),
        (&["01234"], Text),
        (&["00.5"], Text),
        (&["+491234"], Text),
        (&["1", "NA"], Text),
        (&["1_000"], Text),
        (&["0x1F"], Text),
        (&["-"], Text),
        (&["."], Text),
        (&["1e"], Text),
        (&["1.2.3"], Text),
        (&["0", "1"], Bigint),
        (&["-0"], Double),
        (&["1.5", "-0.0"], Double),
        (&["1.50", "-0.00"], Numeric),
    ] {
        assert_eq!(inferred_type(values), ty, "{values:?}");
    }
}

#[test]
fn booleans_times_uuids_and_json_are_detected() {
    use ColumnType::*;
    for (values, ty) in [
        (&["TRUE", "False", "f", "t", ""][..], Boolean),
        (&["F", "F"], Text),
        (&["t", "T"], Text),
        (&["f", "m"], Text),
        (&["yes", "no"], Text),
        (&["2024-02-29"], Date),
        (&["2023-02-29"], Text),
        (&["0000-00-00"], Text),
        (&["01/02/2023"], Text),
        (&["2024-01-01", "2024-01-01 10:00"], Timestamp),
        (&["2024-01-01T10:00:00.123"], Timestamp),
        (&["2024-01-01T10:00:00Z", "2024-01-01 10:00:00+05:30"], Timestamptz),
        (&["2024-01-01 10:00:00 UTC", "2024-01-01 10:00-08", "2024-01-01 10:00-0800"], Timestamptz),
        (&["2024-01-01 10:00", "2024-01-01 10:00+00"], Text),
        (&["2024-01-01 10:00+99"], Text),
        (&["23:59", "00:00:01.5"], Time),
        (&["00:00:01.1234560"], Time),
        (&["00:00:01.1234567"], Text),
        (&["2024-01-01 10:00:00.123456789"], Text),
        (&["24:01"], Text),
        (&["9b2d5f0e-1c3a-4e5f-8a9b-0c1d2e3f4a5b"], Uuid),
        (&["{\"a\":1}", "[]"], Jsonb),
        (&["{1,2}"], Text),
        (&["[\"\\u0000\"]"], Text),
        (&["[\"\\ud800\"]"], Text),
        (&["[\"\\u00e9\"]"], Jsonb),
        (&["", ""], Text),
        (&[], Text),
    ] {
        assert_eq!(inferred_type(values), ty, "{values:?}");
    }
}

#[test]
fn json_keys_are_columns_in_the_order_of_their_first_occurrence() {
    let sample = br#"{"b":1,"a":"2024-01-01","z":null}
        {"a":null,"c":[1],"b":2.5,"d":"12","e":true}
        {"c":"x","f":{"g":1},"d":"x","e":f"#;
    let columns = columns_of_json(sample, &DateFormats::default());
    let seen: Vec<(&str, &str)> = columns.iter().map(|c| (c.name.as_str(), c.ty.sql())).collect();
    assert_eq!(
        seen,
        [
            ("b", "numeric"),
            ("a", "date"),
            ("z", "text"),
            ("c", "jsonb"),
            ("d", "text"),
            ("e", "boolean")
        ]
    );
    let columns = columns_of_json(b"[[1,\"x\"],[2,\"y\"]]", &DateFormats::default());
    assert_eq!(columns[1], NewColumn { name: "column_2".into(), ty: ColumnType::Text });
    assert!(columns_of_json(b"not json", &DateFormats::default()).is_empty());
}

#[test]
fn widening_gives_a_type_for_old_and_new_values() {
    use ColumnType::*;
    assert_eq!(widen(Bigint, b"5"), Bigint);
    assert_eq!(widen(Bigint, b"5.5"), Numeric);
    assert_eq!(widen(Bigint, b"1e5"), Numeric);
    assert_eq!(widen(Double, b"5"), Double);
    assert_eq!(widen(Numeric, b"1e5"), Numeric);
    assert_eq!(widen(Date, b"2024-01-01 10:00"), Timestamp);
    assert_eq!(widen(Boolean, b"1"), Text);
    assert_eq!(widen(Text, b"1"), Text);
}

#[test]
fn column_names_are_kept_invented_and_made_unique() {
    let names = column_names(["id", " Name ", "", "id", "id_2", "id", ""]);
    assert_eq!(names, ["id", "Name", "column_3", "id_3", "id_2", "id_4", "column_7"]);
    let long = "é".repeat(40);
    let names = column_names([&long, &long]);
    assert_eq!(names[0], "é".repeat(31));
    assert_eq!(names[1], format!("{}_2", "é".repeat(30)));
}

#[test]
fn names_in_snake_case() {
    for (name, snake) in [
        ("OrderId", "order_id"),
        ("order id", "order_id"),
        (" Order-ID ", "order_id"),
        ("order_id", "order_id"),
        ("HTTPServer", "http_server"),
        ("address2Line", "address2_line"),
        ("Preis (€)", "preis"),
        ("Größe", "größe"),
        ("ÄnderungsDatum", "änderungs_datum"),
        ("__x__", "x"),
        ("%", "%"),
        ("ID", "id"),
    ] {
        assert_eq!(snake_case(name), snake, "{name}");
    }
}

#[test]
fn create_table_statements_and_table_names() {
    let columns = [("id", ColumnType::Bigint), ("Order", ColumnType::Double)];
    let columns = columns.map(|(name, ty)| (name.to_owned(), ty.sql().to_owned()));
    assert_eq!(
        create_table_sql("public.t", &columns, &[]),
        "create table public.t (\n    id bigint,\n    \"Order\" double precision\n)"
    );
    assert_eq!(
        create_table_sql("t", &columns[..1], &["id".to_owned(), "Order".to_owned()]),
        "create table t (\n    id bigint,\n    primary key (id, \"Order\")\n)"
    );
    for (file, name) in [
        ("flights-2013.csv.gz", "flights_2013"),
        ("s3://bucket/a/Title.Basics.TSV", "title_basics"),
        ("https://x/y.json?sig=a/b.csv", "y"),
        ("2013.parquet", "t_2013"),
        ("C:\\data\\Umsätze 2024.csv", "umsätze_2024"),
        ("-", "data"),
        (".csv", "csv"),
        ("plain", "plain"),
    ] {
        assert_eq!(table_name(file), name, "{file}");
    }
}
