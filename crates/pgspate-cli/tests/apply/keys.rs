//! Rows whose key changes, columns that are absent, and what is left of many events of a row.

use crate::support::Case;
use crate::{applied, counts, rows};

fn case() -> Case {
    Case::new(
        "create table t (id int primary key, a text, b text default 'dflt'); \
         insert into t select i, 'a' || i, 'b' || i from generate_series(1, 5) i",
    )
}

#[test]
fn inserts_updates_and_deletes() {
    let case = case();
    let report = applied(
        &case,
        r#"{"op":"insert","table":"public.t","row":{"id":6,"a":"x","b":null}}
{"op":"update","table":"t","row":{"id":1,"a":"y"}}
{"op":"update","table":"t","row":{"id":2,"a":"a2"}}
{"op":"delete","table":"t","key":{"id":3}}
{"op":"insert","table":"t","row":{"id":7,"a":"z"}}
"#,
        "",
    );
    assert_eq!(counts(&report), [2, 1, 1, 0]);
    assert_eq!(rows(&case, "t"), "(1,y,b1) (2,a2,b2) (4,a4,b4) (5,a5,b5) (6,x,) (7,z,dflt)");
}
