//! Quotes, `\N` and backslashes whose meaning the sample from which the dialect is guessed does not
//! show.

use insta::assert_snapshot;

use crate::support::{LoadCase, finish, spawn};

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

/// COPY's text format has tabs and no header, as tsv may have, and it escapes line ends, tabs and
/// backslashes.
#[test]
fn a_backslash_that_may_be_an_escape_of_copy_text_is_refused() {
    let case = LoadCase::new(
        "create table w (id int, v text); \
         insert into w values (1, 'plain'), (2, E'two\nlines'), (3, 'C:\\temp\\new'), (4, ''); \
         create table t (like w)",
    );
    let exported = "1\tplain\n2\ttwo\\nlines\n3\tC:\\\\temp\\\\new\n4\t\n";
    for name in ["w.txt", "w.tsv", "w.dump"] {
        case.put(name, exported);
        let said = case.load(&format!("{name} --table t --quiet")).refusal();
        assert!(said.contains("a backslash") && said.contains("line 2"), "{said}");
        assert!(said.contains("`--format text`") && said.contains("`--format tsv`"), "{said}");
    }
    case.put("late.tsv", lines_with('\t', &["7\ttwo\\nlines"]));
    assert_snapshot!(case.load("late.tsv --table t --quiet").refusal(), @r#"
    error: could not load "late.tsv" into public.t
      caused by: a field has a backslash, which may begin an escape of COPY text
      at: late.tsv, line 40001, byte 428890, column "v"

    hint: Load with `--format text` if COPY or psql's \copy wrote the file, or with
          … `--format tsv` if backslashes are part of the fields.
    "#);
    case.load("w.tsv --table t --format text").success();
    let differing = "select count(*) from (table w except table t) d";
    assert_eq!(case.value(differing), "0");
    case.load("w.txt --table t --format tsv").success();
    assert_eq!(
        case.value("select v from t where v like 'two%' and v not like E'%\n%'"),
        r"two\nlines"
    );
    // A header, or a backslash that COPY does not write, shows that it is tsv.
    for (name, text) in [("h.tsv", "id\tv\n7\ta\\nb\n"), ("p.tsv", "8\tC:\\Users\n9\ta\\nb\n")] {
        case.put(name, text);
        case.load(&format!("{name} --table t")).success();
    }
    assert_eq!(
        case.value(r"select string_agg(id::text, ' ' order by id) from t where v = 'a\nb'"),
        "7 9"
    );
}

/// The first file decides whether quotes enclose fields. Another file may have other quotes.
#[test]
fn quotes_of_a_later_tsv_follow_the_first_tsv() {
    let case = LoadCase::new("create table t (n int primary key, size text, name text)");
    let enclosing = "n\tsize\tname\n1\t\"a\"\t\"b\tc\"\n2\td\t\"e\"\n";
    let inches = "n\tsize\tname\n10\t5\" pipe\tx\n11\t6\" pipe\ty\n12\tz\t9\"\n";
    case.put("enclosing/1.tsv", enclosing);
    case.put("enclosing/2.tsv", inches);
    assert_snapshot!(case.refusal("enclosing --table t"), @r#"
    error: could not load "enclosing/1.tsv" and 1 more into public.t
      caused by: quotes seem to be part of the fields, but they enclose fields of
          … "enclosing/1.tsv"
      at: enclosing/2.tsv

    hint: Say what holds for all files: `--quote none` if quotes are part of the fields, or
          … `--quote '"'` if they enclose fields. Or load such files apart from the others.
    "#);
    let to = case.db.dsn();
    let sync = ["sync", "enclosing", "--table", "t", "--scope", "all", "--quiet", "--to", &to];
    let said = finish(spawn(&mut case.command(&sync))).refusal();
    assert!(said.contains("quotes seem to be part of the fields"), "{said}");
    case.put("inches/1.tsv", inches);
    case.put("inches/2.tsv", enclosing);
    let said = case.refusal("inches --table t");
    assert!(said.contains("quotes seem to enclose fields"), "{said}");
    // A file without quotes fits both.
    case.put("enclosing/2.tsv", "n\tsize\tname\n10\tf\tg\n");
    case.load("enclosing --table t --quiet").success();
    case.put("inches/1.tsv", inches.replace("10\t", "20\t"));
    case.load("inches/1.tsv --table t --quiet").success();
    assert_eq!(case.value("select count(*) from t"), "6");
}

/// Between the first two inch marks, all rows would be one field.
#[test]
fn a_misplaced_quote_in_a_quoted_tsv_is_refused() {
    let case = LoadCase::new("create table t (n int, word text)");
    let quoted = "0\t\"a\"\"b\"\n";
    for (name, late) in [("t.tsv", "7\t5\" disk"), ("u.tsv", "7\t\"5\" disk")] {
        case.put(name, format!("{quoted}{}", lines_with('\t', &[late, "9\t3\" disk"])));
        let said = case.refusal(&format!("{name} --table t"));
        assert!(said.contains("a quote (\") is within a field"), "{said}");
        assert!(said.contains("line 40002") && said.contains("`--quote none`"), "{said}");
    }
    case.load("t.tsv --table t --quote none").success();
    assert_eq!(case.value("select count(*) from t"), "40203");
    // Who says that quotes enclose fields gets the rows of COPY.
    case.load("t.tsv --table t --quote \" --restart").success();
    assert_eq!(case.value("select count(*) from t where word like '%\n%'"), "1");
}

/// Quotes within fields follow a backslash. With this escape, a doubled quote would be left out.
#[test]
fn a_late_quote_without_the_guessed_escape_is_refused() {
    let case = LoadCase::new("create table t (n int, word text)");
    let line = |n: u32| format!("{n},\"say \\\"hi\\\" number {n}\"\n");
    let early: String = (1..=20_000).map(line).collect();
    case.put("t.csv", format!("{early}20001,\"a \"\"q\"\" b\"\n"));
    let said = case.refusal("t.csv --table t");
    let message = "a quote (\") is within a field without the escape (\\) of the first records";
    assert!(said.contains(message), "{said}");
    assert!(said.contains("line 20001") && said.contains("`--escape '\"'`"), "{said}");
    // Who names the escape gets the rows of COPY.
    case.load("t.csv --table t --escape \\").success();
    assert_eq!(case.value("select word from t where n = 20001"), "a q b");
    case.db.run("truncate t");
    case.put("t.csv", format!("{early}20001,\"a \\\"q\\\" b\"\n"));
    case.load("t.csv --table t --restart").success();
    assert_eq!(case.value("select word from t where n = 20001"), "a \"q\" b");
    assert_eq!(case.value("select count(*) from t"), "20001");
}
