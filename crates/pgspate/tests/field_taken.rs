//! The encoder accepts common spellings, so that ordinary files need no COPY text. The error for a
//! type without an exact encoder says why. No input makes the encoder panic.

use pgspate::encode::field::FieldEncoder;
use pgspate::target::{PgType, SessionSettings, TypeKind};
use proptest::prelude::*;

fn session() -> SessionSettings {
    SessionSettings::of_version(150_000)
}

fn base(oid: u32) -> PgType {
    PgType { oid, name: format!("type {oid}"), typmod: -1, kind: TypeKind::Base }
}

fn type_of_kind(kind: TypeKind) -> PgType {
    PgType { oid: 20_000, name: "made".into(), typmod: -1, kind }
}

fn array(element: PgType) -> PgType {
    type_of_kind(TypeKind::Array(Box::new(element), b','))
}

fn encoder(ty: &PgType) -> FieldEncoder {
    FieldEncoder::new(ty, &session()).unwrap()
}

fn takes(ty: &PgType, field: &str) -> bool {
    encoder(ty).encode(field.as_bytes(), &mut Vec::new())
}

const EVERY_BASE: &[u32] = &[
    16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 650, 700, 701, 774, 829, 869, 1042, 1043, 1082, 1083,
    1114, 1184, 1186, 1266, 1560, 1562, 1700, 2950, 3802,
];

#[test]
fn common_spellings_are_accepted() {
    let common: &[(u32, &[&str])] = &[
        (16, &["t", "f", "true", "false", "TRUE", "False", "1", "0", "yes", "no", "on", "off"]),
        (17, &["\\x", "\\xdeadBEEF", "plain"]),
        (18, &["a", " ", ""]),
        (19, &["orders", "naïve"]),
        (20, &["0", "-1", "9223372036854775807", "-9223372036854775808", " 42 ", "+7"]),
        (21, &["0", "-32768", "32767"]),
        (23, &["0", "-2147483648", "2147483647", "0042"]),
        (25, &["", "any text"]),
        (26, &["0", "4294967295"]),
        (114, &["{\"a\": 1}"]),
        (3802, &["{\"a\": 1}"]),
        (650, &["10.0.0.0/8", "192.168.1.1", "2001:db8::/32", "::"]),
        (869, &["10.1.2.3/8", "192.168.1.1", "2001:db8::1/64", "::ffff:1.2.3.4"]),
        (829, &["08:00:2b:01:02:03", "08-00-2B-01-02-03"]),
        (774, &["08:00:2b:01:02:03:04:05"]),
        (700, &["0", "-0", "1.5", "-1e10", "3.4e38", "NaN", "Infinity", "-inf", ".5", "5."]),
        (
            701,
            &["0", "-0.0", "0.1", "1e308", "5e-324", "1E-5", "nan", "-Infinity", "123456789.125"],
        ),
        (1082, &["2024-01-02", "0001-01-01", "9999-12-31", "infinity", "20240102", "2024-1-2"]),
        (1082, &["2024-01-02 00:00:00", "2024-01-02T00:00:00Z", "0044-03-15 BC"]),
        (1083, &["00:00:00", "12:34:56", "12:34:56.789012", "12:34", "24:00:00", "4:05:06"]),
        (1114, &["2024-01-02 03:04:05", "2024-01-02T03:04:05.6", "2024-01-02", "infinity"]),
        (1114, &["2024-01-02 03:04:05.123456789", "2024-01-02T03:04:05Z", "12022-07-21 00:00:00"]),
        (
            1184,
            &["2024-01-02 03:04:05+00", "2024-01-02T03:04:05.678Z", "2024-01-02 03:04:05-05:30"],
        ),
        (1184, &["2024-01-02 03:04:05.123456+0530", "2024-01-02 03:04:05 UTC", "2024-01-02"]),
        (1186, &["01:02:03", "1 day", "-1 days +02:03:04", "1 year 2 mons 3 days 04:05:06.7"]),
        (1186, &["2 hours", "30 minutes", "1 year", "00:00:00"]),
        (1266, &["12:34:56+02", "12:34:56.7Z", "12:34:56"]),
        (1560, &["1", "0101"]),
        (1562, &["", "0101"]),
        (1700, &["0", "-0.00", "17954.55", "0.04", ".5", "5.", "NaN", "Infinity", "1e5", "1.5e-7"]),
        (1700, &["99999999999999999999999999999999999999.99999999999999999999999999999999999999"]),
        (1700, &["0.00001234", "5000000000.000001", "1456312800000000", " 1.5 "]),
        (2950, &["f47ac10b-58cc-4372-a567-0e02b2c3d479", "{F47AC10B58CC4372A5670E02B2C3D479}"]),
    ];
    for (oid, spellings) in common {
        for spelling in *spellings {
            assert!(takes(&base(*oid), spelling), "type {oid} left {spelling:?} to the server");
        }
    }
}

#[test]
fn common_arrays_and_ranges_are_accepted() {
    let ints = array(base(23));
    for spelling in ["{}", "{1,2,3}", "{1, NULL, 3}", "{{1,2},{3,4}}"] {
        assert!(takes(&ints, spelling), "{spelling}");
    }
    for spelling in ["[0:1]={1,2}", "{{1},{2,3}}", "{1,{2}}", "{{}}", "{a}", "{1"] {
        assert!(!takes(&ints, spelling), "{spelling}");
    }
    let texts = array(base(25));
    for spelling in ["{a,b c,\"d,e\"}", "{\"say \\\"hi\\\"\",\"NULL\"}"] {
        assert!(takes(&texts, spelling), "{spelling}");
    }
    let range = type_of_kind(TypeKind::Range(Box::new(base(1082))));
    for spelling in ["empty", "[2024-01-01,2024-02-01)", "(,)", "[2024-01-01,]"] {
        assert!(takes(&range, spelling), "{spelling}");
    }
}

#[test]
fn an_array_names_its_elements_type() {
    let domain = PgType { oid: 16_500, ..type_of_kind(TypeKind::Domain(Box::new(base(23)))) };
    let mut out = Vec::new();
    assert!(encoder(&array(domain)).encode(b"{NULL}", &mut out));
    let words: Vec<u32> =
        out.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
    assert_eq!(words, [24, 1, 1, 16_500, 1, 1, u32::MAX]);
}

#[test]
fn infinity_is_numeric_since_version_14() {
    let old = SessionSettings { server_version: 130_000, ..session() };
    let encoder = FieldEncoder::new(&base(1700), &old).unwrap();
    assert!(!encoder.encode(b"Infinity", &mut Vec::new()));
    assert!(encoder.encode(b"NaN", &mut Vec::new()));
    assert!(takes(&base(1700), "-inf"));
}

#[test]
fn a_time_without_zone_needs_a_session_in_utc() {
    let there = SessionSettings { time_zone: "Asia/Kolkata".into(), ..session() };
    let encoder = FieldEncoder::new(&base(1184), &there).unwrap();
    assert!(!encoder.encode(b"2024-01-02 03:04:05", &mut Vec::new()));
    assert!(encoder.encode(b"2024-01-02 03:04:05+00", &mut Vec::new()));
    assert!(takes(&base(1184), "2024-01-02 03:04:05"));
}

#[test]
fn a_leading_minus_may_spread_in_the_standard_style() {
    let standard = SessionSettings { interval_style: "sql_standard".into(), ..session() };
    let encoder = FieldEncoder::new(&base(1186), &standard).unwrap();
    assert!(!encoder.encode(b"-1 days 02:03:04", &mut Vec::new()));
    assert!(encoder.encode(b"1 days 02:03:04", &mut Vec::new()));
}

#[test]
fn other_encodings_leave_arrays_to_the_server() {
    let japanese = SessionSettings { client_encoding: "SJIS".into(), ..session() };
    let encoder = FieldEncoder::new(&array(base(25)), &japanese).unwrap();
    assert!(!encoder.encode(b"{\x83\x5c}", &mut Vec::new()));
    assert!(encoder.encode(b"{abc}", &mut Vec::new()));
}

#[test]
fn types_without_an_encoder_say_why() {
    let reason = |ty: &PgType| FieldEncoder::new(ty, &session()).unwrap_err();
    assert_eq!(reason(&base(790)), "type money depends on lc_monetary");
    assert_eq!(reason(&base(600)), "only the server can read type type 600");
    assert_eq!(reason(&type_of_kind(TypeKind::Other)), "only the server can read type made");
    assert!(FieldEncoder::new(&array(base(142)), &session()).is_err());
    assert!(FieldEncoder::new(&array(base(18)), &session()).is_err());
}

/// Returns encoders for types of every family, and for arrays and ranges of these types.
fn every_encoder() -> Vec<FieldEncoder> {
    let bases = EVERY_BASE.iter().map(|oid| base(*oid));
    let arrays = EVERY_BASE.iter().filter(|oid| **oid != 18).map(|oid| array(base(*oid)));
    let ranges = EVERY_BASE.iter().map(|oid| type_of_kind(TypeKind::Range(Box::new(base(*oid)))));
    bases.chain(arrays).chain(ranges).map(|ty| encoder(&ty)).collect()
}

fn check_lengths(encoders: &[FieldEncoder], field: &[u8]) {
    let mut out = Vec::new();
    for encoder in encoders {
        out.clear();
        out.extend_from_slice(b"before");
        if encoder.encode(field, &mut out) {
            let len = i32::from_be_bytes(*out[6..].first_chunk().unwrap());
            assert_eq!(len as usize, out.len() - 10, "{}", encoder.family_name());
        }
        assert_eq!(&out[..6], b"before");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_an_encoder_panic(fields in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..40), 50)
    ) {
        let encoders = every_encoder();
        fields.iter().for_each(|field| check_lengths(&encoders, field));
    }

    #[test]
    fn no_text_of_the_types_characters_makes_an_encoder_panic(fields in prop::collection::vec(
        "[-+0-9.:eETZ {}\\[\\](),\"\\\\/a-f]{0,40}", 50)
    ) {
        let encoders = every_encoder();
        fields.iter().for_each(|field| check_lengths(&encoders, field.as_bytes()));
    }
}
