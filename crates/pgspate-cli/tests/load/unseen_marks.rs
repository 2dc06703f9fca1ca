//! Quotes and `\N` that first occur after the sample from which the dialect is guessed.

use insta::assert_snapshot;

use crate::support::LoadCase;

/// Returns 500 KB of lines of two fields. After half a megabyte come the other lines, each before a
/// hundred lines.
fn lines_with(delimiter: char, others: &[&str]) -> String {
    let line = |n: u32| format!("{n}{delimiter}word\n");
    let mut lines: String = (0..40_000).map(line).collect();
    for other in others {
        lines += &format!("{other}\n");
        lines += &(0..100).map(line).collect::<String>();
    }
    lines
}

/// Between two quotes, a hundred rows would be one field.
#[test]
fn a_late_quote_in_tsv_is_refused() {
    let case = LoadCase::new("create table t (n int, word text)");
    case.put("t.tsv", lines_with('\t', &["7\t5\" disk", "9\t3\" disk"]));
    assert_snapshot!(case.refusal("t.tsv --table t"), @r#"
    error: could not load "t.tsv" into public.t
      caused by: a field has a quote ("), which no field of the first records has
      at: t.tsv, line 40001, byte 428890, column "word"

    hint: Load with `--quote none` if quotes are part of the fields, or with `--quote '"'`
          … if they enclose fields.
    "#);
    case.load("t.tsv --table t --quote none").success();
    assert_eq!(case.value("select count(*) from t"), "40202");
    assert_eq!(case.value("select word from t where n = 7 and word <> 'word'"), "5\" disk");
    case.put("u.tsv", lines_with('\t', &["7\t\"a\tb\""]));
    let said = case.refusal("u.tsv --table t");
    assert!(said.contains("--quote '\"'"), "{said}");
    case.load("u.tsv --table t --quote \"").success();
    assert_eq!(case.value("select word from t where n = 7 and word like 'a%'"), "a\tb");
    // A quote that the sample shows is known, as is a csv file's.
    case.put("v.tsv", format!("0\t\"x\"\n{}", lines_with('\t', &["7\t\"y\""])));
    case.load("v.tsv --table t").success();
    case.put("w.csv", lines_with(',', &["7,\"z\""]));
    case.load("w.csv --table t").success();
    assert_eq!(case.value("select count(*) from t where word in ('x', 'y', 'z')"), "3");
}

#[test]
fn a_late_null_is_refused() {
    let case = LoadCase::new("create table t (n int, word text)");
    for (name, delimiter) in [("t.tsv", '\t'), ("t.csv", ',')] {
        let text = lines_with(delimiter, &[&format!("7{delimiter}\\N")]);
        case.put(name, &text);
        let said = case.refusal(&format!("{name} --table t"));
        assert!(said.contains("a field is \\N") && said.contains("line 40001"), "{said}");
        case.load(&format!("{name} --table t --null \\N")).success();
        assert_eq!(case.value("select count(*) from t where word is null"), "1");
        case.db.run("truncate t");
        case.load(&format!("{name} --table t --null= --restart")).success();
        assert_eq!(case.value("select count(*) from t where word = '\\N'"), "1");
        case.db.run("truncate t");
    }
    // PostgreSQL's csv has empty fields for NULL.
    case.put("u.csv", format!("0,\n{}", lines_with(',', &["7,\\N"])));
    case.load("u.csv --table t").success();
    assert_eq!(case.value("select count(*) from t where word = '\\N'"), "1");
}
