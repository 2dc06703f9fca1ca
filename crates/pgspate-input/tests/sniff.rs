//! Tests of the detected formats of real-world samples.

use pgspate_input::format::sniff::{Format, LineEnd, SniffOverrides, SniffedFormat, sniff};
use proptest::prelude::*;

fn sniff_whole(name: &str, sample: &str) -> SniffedFormat {
    sniff(name, sample.as_bytes(), true, None, &SniffOverrides::default()).unwrap()
}

#[test]
fn the_delimiter_occurs_equally_often_in_each_line() {
    for (sample, delimiter, columns) in [
        ("a,b\n1,2\n3,4\n", b',', 2),
        ("a;b\n1,5;2\n3;4,5\n", b';', 2),
        ("a|b|c\n1|x, y|2\n", b'|', 3),
        ("a\tb\n1\tx,y\n", b'\t', 2),
        ("a\x01b\n1\x012\n", b'\x01', 2),
        ("root:x:0\nbin:x:1\n", b':', 3),
        ("a,b\n\"x;y\",\"1;2\"\n", b',', 2),
        ("a,b\n\"line\nbreak, and\",2\n\"x\ny\",3\n", b',', 2),
        ("t,v\n10:00:00,1\n11:00:00,2\n", b',', 2),
    ] {
        let sniffed = sniff_whole("x.txt", sample);
        assert_eq!((sniffed.delimiter, sniffed.columns), (delimiter, columns), "{sample:?}");
    }
    for sample in
        ["name\nAda\nBob\n", "at\n10:00\n11:00\n12:00\n13:00\n", "p\na^b\nc^d\ne^f\ng^h\n"]
    {
        let sniffed = sniff_whole("x.csv", sample);
        assert_eq!((sniffed.delimiter, sniffed.columns, sniffed.header), (b',', 1, true));
    }
}

/// A delimiter that is as likely as another one would store parts of values in other columns.
#[test]
fn delimiters_that_fit_equally_well_are_refused() {
    let given = SniffOverrides::default();
    for (sample, delimiters) in [
        ("x1;1,1;2,5\n", "\",\" and \";\""),
        ("1,1;2,5\n", "\",\" and \";\""),
        ("x;1,5\n", "\",\" and \";\""),
        ("Smith;John, Dr\n", "\",\" and \";\""),
        ("a;b|c\n", "\";\" and \"|\""),
        ("price;x,y\n", "\",\" and \";\""),
    ] {
        for name in ["x", "x.csv"] {
            let error = sniff(name, sample.repeat(5).as_bytes(), true, None, &given).unwrap_err();
            let expected = format!(
                "could not detect the delimiter: {delimiters} both occur equally often in each line"
            );
            assert_eq!(error.to_string(), expected, "{sample:?}");
            assert!(error.hint_text().unwrap().contains("--delimiter"));
        }
    }
    for (first, line, delimiter, columns) in [
        // A header, also if an unusual line makes the percentages equal.
        ("a;b;c\n", "x1;1,1;2,5\n", b';', 3),
        ("a,b\n-\n", "x;y,z\n", b',', 2),
        ("a;b\n-\n", "x;y,z\n", b';', 2),
        // Values, and quotes around text.
        ("", "1,a;b\n", b',', 2),
        ("", "2024-02-29;a, b\n", b';', 2),
        ("", "Smith,\"Dr; PhD\"\n", b',', 2),
        ("", "\"Smith, John\";Dr\n", b';', 2),
    ] {
        let sample = format!("{first}{}", line.repeat(30));
        let sniffed = sniff_whole("x.csv", &sample);
        assert_eq!((sniffed.delimiter, sniffed.columns), (delimiter, columns), "{sample:?}");
    }
    assert_eq!(sniff_whole("x.psv", "a,b|c\n").delimiter, b'|');
    assert_eq!(sniff_whole("x.log", "a,b\tc\n\\.\n").format, Format::Text);
    let known = ["id", "price, EUR"].map(str::to_string);
    let sniffed = sniff("x", b"id;price, EUR\n1;2,5\n", true, Some(&known), &given).unwrap();
    assert_eq!((sniffed.delimiter, sniffed.header), (b';', true));
}

#[test]
fn a_sample_may_end_anywhere() {
    let whole = "id,name\n1,\"a, b\"\n2,\"c\nd\"\n3,e\n";
    for len in 12..whole.len() {
        let sniffed =
            sniff("x", &whole.as_bytes()[..len], false, None, &SniffOverrides::default()).unwrap();
        assert_eq!((sniffed.delimiter, sniffed.columns, sniffed.header), (b',', 2, len >= 17));
    }
}

#[test]
fn files_of_imdb_have_quotes_in_fields_and_backslash_n() {
    let sample = "tconst\tordering\tjob\tcharacters\n\
        tt0000001\t1\t\\N\t[\"Self - \\\"X\\\"\"]\n\
        tt0000002\t2\tdirector\t\\N\n";
    let sniffed = sniff_whole("title.principals.tsv.gz", sample);
    assert_eq!(sniffed.format, Format::Tsv);
    assert_eq!((sniffed.quote, sniffed.null.as_str(), sniffed.header), (None, "\\N", true));
    // A title that begins with a quoted word.
    let sniffed = sniff_whole("title.tsv", "id\ttitle\n1\t\"Giliap\" again\n");
    assert_eq!(sniffed.quote, None);
    let sniffed = sniff_whole("x.tsv", "id\ttitle\n1\t\"a\tb\"\n");
    assert_eq!((sniffed.quote, sniffed.columns), (Some(b'"'), 2));
}

#[test]
fn lines_of_tpch_end_with_a_delimiter() {
    let sample = "1|155190|7706|17|1996-03-13|egular courts above the|\n\
        1|67310|7311|36|1996-04-12|ly final dependencies|\n";
    let sniffed = sniff_whole("lineitem.tbl", sample);
    assert_eq!((sniffed.format, sniffed.delimiter, sniffed.columns), (Format::Csv, b'|', 6));
    assert!(sniffed.trailing_delimiter && !sniffed.header);
    assert!(!sniff_whole("x.csv", "a,b,\n1,2,\n").trailing_delimiter);
}

#[test]
fn headers_are_detected_by_types_names_and_uniqueness() {
    let given = SniffOverrides::default();
    for (sample, header) in [
        ("year,carrier\n2013,UA\n", true),
        ("2013,UA\n2014,DL\n", false),
        (",year,carrier\n1,2013,UA\n", true),
        ("city,country\nParis,France\nRome,Italy\n", true),
        ("yes,no\nyes,yes\nno,no\n", false),
        ("a,a\n1,2\n", true),
        ("a,a\nx,y\n", false),
        ("some text! (really),other text?\nmore of it...,and more\n", false),
        ("id,name\n", false),
        ("dep_time,arr_time\nNA,NA\n517,830\n533,850\n", true),
        // Names that are also boolean values, and booleans.
        ("id,t\n1,a\n2,b\n", true),
        ("id,t\n1,t\n2,f\n", true),
        ("no,on\nx,y z\n", true),
        ("abc,t\ndef,f\n", false),
        ("t,f\nt,t\n", false),
        ("y,1\nn,2\n", false),
    ] {
        assert_eq!(sniff_whole("x.csv", sample).header, header, "{sample:?}");
    }
    for (sample, is_doubtful) in [
        ("id,name\n", true),
        ("some text!,x\n", false),
        ("1,name\n", false),
        ("a,a\n", false),
        ("city,,\n1,2,3\n", true),
        ("city,,\nrome,2,3\n", false),
        ("id,name\n1,x\n", false),
        ("city,country\nParis,France\nRome,Italy\n", true),
    ] {
        let sniffed = sniff_whole("x.csv", sample);
        assert_eq!(sniffed.header_doubt.is_some(), is_doubtful, "{sample:?}");
    }
    let doubt = |sample: &str, known: &[String]| {
        sniff("x.csv", sample.as_bytes(), true, Some(known), &given).unwrap().header_doubt.is_some()
    };
    let known = ["ID", "name"].map(str::to_string);
    assert!(doubt("person,mail\n", &known) && doubt("apple,red\nbanana,yellow\n", &known));
    assert!(!doubt("id,Name\n", &known) && !doubt("id,a,b\nx,y,z\n", &known));
    let known = ["ID".to_string(), "name".to_string()];
    let only = sniff("x.csv", b"id,Name\n", true, Some(&known), &given).unwrap();
    assert!(only.header);
    let given = SniffOverrides { header: Some(false), ..given };
    assert!(!sniff("x.csv", b"id,Name\n1,x\n", true, Some(&known), &given).unwrap().header);
}

#[test]
fn line_ends_byte_order_marks_and_escapes_are_detected() {
    assert_eq!(sniff_whole("x.csv", "a,b\r\n1,2\r\n").line_end, LineEnd::CrLf);
    assert_eq!(sniff_whole("x.csv", "a,b\n1,2\n").line_end, LineEnd::Lf);
    let old = sniff_whole("x.csv", "a,b\r1,2\r");
    assert_eq!((old.line_end, old.columns, old.header), (LineEnd::Cr, 2, true));
    // A line end within quotes does not end a line.
    let old = sniff_whole("x.csv", "a|b\r\"x\ny\"|\"z\"\r\"v\"|");
    assert_eq!((old.line_end, old.columns), (LineEnd::Cr, 2));
    assert!(!old.trailing_delimiter);
    assert_eq!(sniff_whole("x.csv", "\"a\rb\",c\n1,2\n").line_end, LineEnd::Lf);
    let marked = sniff_whole("x.csv", "\u{feff}id,b\r\n1,2\r\n");
    assert_eq!((marked.mark_bytes, marked.header), (3, true));
    let sniffed = sniff_whole("x.csv", "a,b\n1,\"say \\\"hi\\\" now\"\n");
    assert_eq!((sniffed.quote, sniffed.escape), (Some(b'"'), b'\\'));
    assert!(sniffed.unseen.unescaped_quote);
    let sniffed = sniff_whole("x.csv", "a,b\n1,\"say \"\"hi\"\" now\"\n");
    assert_eq!((sniffed.quote, sniffed.escape), (Some(b'"'), b'"'));
    assert!(!sniffed.unseen.unescaped_quote);
}

#[test]
fn output_of_copy_is_format_text() {
    let sniffed = sniff_whole("orders.dat", "1\tx\\ty\t\\N\n2\t\\\\\tz\n");
    assert_eq!((sniffed.format, sniffed.quote, sniffed.header), (Format::Text, None, false));
    assert_eq!(sniffed.null, "\\N");
}

#[test]
fn given_options_override_the_sample() {
    let given = SniffOverrides {
        format: Some(Format::Csv),
        delimiter: Some(b';'),
        quote: Some(Some(b'\'')),
        escape: Some(b'\\'),
        likely_escape: None,
        header: Some(true),
        null: Some("NA".into()),
    };
    let sniffed = sniff("x.tsv", b"1,2;'a;b'\n3;4\n", true, None, &given).unwrap();
    assert_eq!((sniffed.format, sniffed.delimiter, sniffed.columns), (Format::Csv, b';', 2));
    assert_eq!((sniffed.quote, sniffed.escape, sniffed.header), (Some(b'\''), b'\\', true));
    assert_eq!(sniffed.null, "NA");
    assert!(!sniffed.unseen.unescaped_quote);
}

#[test]
fn every_guess_has_evidence() {
    let sniffed = sniff_whole("flights.csv.gz", "year;carrier\n2013;\\N\n");
    assert_eq!(
        sniffed.evidence,
        [
            "format csv: the name ends with .csv",
            "delimiter \";\": 2 fields in each line",
            "null \\N: some unquoted fields are \\N",
            "header yes: the first line has names, the other lines have values",
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hostile_samples_do_not_panic(
        sample in prop::collection::vec(prop_oneof![
            prop::sample::select(b",;|\t\n\r\"\\N{}[]a1:'".to_vec()), any::<u8>()], 0..120),
        name in prop::sample::select(vec![
            "x", "x.csv", "x.tsv", "x.tbl", "x.json", "", ".", "a/", ".gz",
        ]),
        complete in any::<bool>(),
    ) {
        let _ = sniff(name, &sample, complete, None, &SniffOverrides::default());
    }
}

#[test]
fn binary_files_that_are_not_read_are_named() {
    for (start, description) in [
        (&b"SQLite format 3\0\x10\0"[..], "a SQLite database"),
        (b"01234567DUCK@\0\0\0", "a DuckDB database"),
        (b"Obj\x01\0", "an Avro file"),
        (b"ORC\0", "an ORC file"),
    ] {
        let error = sniff("x", start, true, None, &SniffOverrides::default()).unwrap_err();
        let expected = format!("the input is {description}, which pgspate does not read");
        assert_eq!(error.to_string(), expected);
        assert!(error.hint_text().is_some());
    }
}
