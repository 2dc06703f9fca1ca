//! `--replace` by a shadow table: whatever the table has is kept, and nobody sees anything between.

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::kept::{EVERYTHING, dump, signal, watch};
use crate::support::{Case, finish, folded, redact, session, spawn, wait_until};

/// More than a megabyte, so that it is not one transaction by itself: this many rows, several
/// chunks.
const ROWS: usize = 120_000;

fn rows(from: usize) -> String {
    let mut text = "id,note\n".to_owned();
    for id in from..from + ROWS {
        writeln!(text, "{id},{:>80}", format!("note {id}")).unwrap();
    }
    text
}

fn sum(case: &Case) -> String {
    case.value("select count(*) || ' from ' || coalesce(min(id), 0) from t")
}

fn shadows(case: &Case) -> String {
    case.value("select count(*) from pg_namespace where nspname like 'pgspate\\_job%'")
}

#[test]
fn whatever_the_table_has_is_kept() {
    let case = Case::new(EVERYTHING);
    let before = dump(&case);
    case.put("t.csv", "a,b,c\n1,x,0.5\n2,y,1.5\n");
    assert_snapshot!(folded(&case.load("t.csv --replace=swap --plan --header yes").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 3 fields in each line
    input    header yes: as given
    table    public.t
    replace  shadow table, which takes the table's place: as asked
    path     binary COPY: every column has an exact encoder; fields that it does not take
          … go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    columns  a  integer        binary (int4)
             b  text           binary (bytes)
             c  numeric(10,2)  binary (numeric)
             i                 not in the input: its identity sequence
             s                 not in the input: nextval('t_s_seq'::regclass)
             e                 not in the input: null
             r                 not in the input: null
    "#);
    let oid = case.value("select 't'::regclass::oid");
    case.load("t.csv --table t --replace=swap --header yes").success();
    assert_ne!(case.value("select 't'::regclass::oid"), oid);
    assert_eq!(dump(&case), before);
    assert_eq!(shadows(&case), "0");
    // The sequences go on from where they were, also for those who come after.
    assert_eq!(case.value("select string_agg(i || '/' || s, ' ' order by a) from t"), "13/3 15/4");
    case.db.run("insert into t (a, c) values (3, 1)");
    case.db.run("update t set c = 2 where a = 3");
    // Another time, from the copy of the copy.
    case.load("t.csv --table t --replace=swap --header yes").success();
    assert_eq!(dump(&case), before);
}
