//! PostgREST's words: `Prefer`, `columns=`, `on_conflict=` and `select=`.

use serde_json::json;

use crate::scene::ServeScene;

const ROWS: &str = "/tables/account/rows";

#[test]
fn written_rows_are_returned_if_asked_for() {
    let scene = ServeScene::new(&[]);
    let answer = scene.post_prefer(ROWS, "return=representation", r#"{"id":1,"name":"a"}"#);
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("preference-applied"), "return=representation");
    // A number keeps its digits.
    assert_eq!(answer.body, r#"[{"id":1,"name":"a","balance":7.00}]"#);
    let body = r#"[{"id":2,"name":"b"},{"id":3,"name":"c"}]"#;
    let path = "/tables/account/rows?select=name,id";
    let answer = scene.post_prefer(path, "return=representation", body);
    assert_eq!(answer.json(), json!([{"name": "b", "id": 2}, {"name": "c", "id": 3}]));
    let answer = scene.post_prefer("/tables/note/rows", "return=headers-only", r#"{"text":"x"}"#);
    assert_eq!((answer.status, answer.body.as_str()), (201, ""));
    assert_eq!(answer.header("location"), "/tables/note/rows?id=eq.1");
    let answer = scene.post_prefer(ROWS, "return=minimal", r#"{"id":4,"name":"d"}"#);
    assert_eq!((answer.header("location"), answer.body.as_str()), ("", ""));
    assert_eq!(scene.post_prefer(ROWS, "return=representation", "[]").body, "[]");
    let answer =
        scene.post_prefer("/tables/account/rows?select=nam", "return=representation", "{}");
    assert_eq!((answer.status, answer.code().as_str()), (400, "42703"));
}

#[test]
fn duplicates_are_refused_ignored_or_merged() {
    let scene = ServeScene::new(&[]);
    let name = || scene.value("select name from account where id = 1");
    assert_eq!(scene.post(ROWS, r#"{"id":1,"name":"first"}"#).status, 201);
    let second = r#"[{"id":1,"name":"second"},{"id":2,"name":"other"}]"#;
    let refused = scene.post(ROWS, second);
    assert_eq!((refused.status, refused.code().as_str()), (409, "23505"));
    assert_eq!(refused.json()["details"], "Key (id)=(1) already exists.");
    assert_eq!(scene.value("select count(*) from account"), "1");
    let ignored = scene.post_prefer(ROWS, "resolution=ignore-duplicates", second);
    assert_eq!((ignored.status, ignored.header("content-range")), (201, "*/1"));
    assert_eq!(name(), "first");
    let merged = scene.post_prefer(ROWS, "resolution=merge-duplicates", second);
    assert_eq!((merged.status, merged.header("content-range")), (201, "*/2"));
    assert_eq!(name(), "second");
    let path = "/tables/account/rows?on_conflict=id";
    let merged = scene.post_prefer(path, "resolution=merge-duplicates", r#"{"id":1,"name":"3"}"#);
    assert_eq!((merged.status, name().as_str()), (201, "3"));
    let path = "/tables/account/rows?on_conflict=name";
    let answer = scene.post_prefer(path, "resolution=merge-duplicates", r#"{"id":1,"name":"4"}"#);
    assert_eq!((answer.status, answer.code().as_str()), (400, "42P10"));
    let answer = scene.post(path, r#"{"id":1,"name":"4"}"#);
    assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_query"));
}

#[test]
fn a_table_without_a_primary_key_needs_on_conflict() {
    let sql = "create table loose (id int unique, name text)";
    let scene = ServeScene::with_sql(sql, &["--table", "loose"]);
    let body = r#"{"id":1,"name":"a"}"#;
    let answer = scene.post_prefer("/tables/loose/rows", "resolution=merge-duplicates", body);
    assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_query"));
    let path = "/tables/loose/rows?on_conflict=id";
    assert_eq!(scene.post_prefer(path, "resolution=merge-duplicates", body).status, 201);
    let ignored = scene.post_prefer("/tables/loose/rows", "resolution=ignore-duplicates", body);
    assert_eq!((ignored.status, ignored.header("content-range")), (201, "*/0"));
}

#[test]
fn columns_decide_what_is_written() {
    let scene = ServeScene::new(&[]);
    let path = "/tables/account/rows?columns=id,name,balance";
    // A key without a column is ignored; a column without a key is NULL, or has its default.
    let answer =
        scene.post(path, r#"[{"id":1,"name":"a","other":[1]},{"name":"b","id":2,"balance":3}]"#);
    assert_eq!(answer.status, 201, "{answer:?}");
    let prefer = "missing=default";
    assert_eq!(scene.post_prefer(path, prefer, r#"{"id":3,"name":"c"}"#).status, 201);
    let media = [("content-type", "text/csv")];
    let csv = b"id,x,name\n4,,d\n";
    assert_eq!(scene.process.send("POST", path, &media, csv).status, 201);
    let csv = b"id,x,name\n5,,e\n";
    let headers = [media[0], ("prefer", prefer)];
    assert_eq!(scene.process.send("POST", path, &headers, csv).status, 201);
    let sql = "select string_agg(id || coalesce(balance::text, '-'), ' ' order by id) from account";
    assert_eq!(scene.value(sql), "1- 23.00 37.00 4- 57.00");
    let unknown = scene.post(ROWS, r#"{"id":6,"name":"f","other":1}"#);
    assert_eq!((unknown.status, unknown.code().as_str()), (400, "42703"));
}

#[test]
fn records_with_different_keys_need_columns_or_rows_each() {
    let scene = ServeScene::new(&[]);
    let body = r#"[{"id":1,"name":"a"},{"id":2,"name":"b","balance":1}]"#;
    let refused = scene.post(ROWS, body);
    assert_eq!((refused.status, refused.code().as_str()), (400, "different_keys"));
    let path = "/tables/account/rows?columns=id,name,balance";
    let refused = scene.post_prefer(path, "missing=default", body);
    assert_eq!((refused.status, refused.code().as_str()), (400, "different_keys"));
    let answer = scene.post_prefer(ROWS, "rows=each", body);
    assert!(answer.lines().iter().all(|line| line["status"] == 201), "{answer:?}");
    let sql = "select string_agg(id || ':' || balance, ' ' order by id) from account";
    assert_eq!(scene.value(sql), "1:7.00 2:1.00");
}

#[test]
fn unknown_preferences_are_refused_if_handling_is_strict() {
    let scene = ServeScene::new(&[]);
    let body = r#"{"id":1,"name":"a"}"#;
    let refused = scene.post_prefer(ROWS, "handling=strict, count=exact", body);
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid_prefer"));
    assert_eq!(refused.json()["details"], "not supported: count=exact");
    // These records would be written, against the client's will.
    let refused = scene.post_prefer(ROWS, "tx=rollback", body);
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid_prefer"));
    assert_eq!(scene.value("select count(*) from account"), "0");
    let answer = scene.post_prefer(ROWS, "handling=lenient, count=exact, tx=commit", body);
    assert_eq!((answer.status, answer.header("preference-applied")), (201, "tx=commit"));
}

/// RFC 7240: names are the same in any case, a word is the same in quotes, and spaces around `=` do
/// not matter.
#[test]
fn a_preference_has_several_spellings() {
    let scene = ServeScene::new(&[]);
    for prefer in
        ["tx=rollback", "tx=\"rollback\"", "TX=rollback", "tx = rollback", "a;Tx=rollback"]
    {
        let answer = scene.post_prefer(ROWS, prefer, r#"{"id":1,"name":"a"}"#);
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_prefer"), "{prefer}");
    }
    assert_eq!(scene.value("select count(*) from account"), "0");
    let path = "/tables/account/rows?columns=id,name,balance";
    for (id, prefer) in
        [(1, "missing=\"default\""), (2, "Missing=default"), (3, "missing = default")]
    {
        let body = format!(r#"{{"id":{id},"name":"a"}}"#);
        let answer = scene.post_prefer(path, prefer, &body);
        assert_eq!(answer.header("preference-applied"), "missing=default", "{prefer}");
        assert_eq!(scene.value(&format!("select balance from account where id = {id}")), "7.00");
    }
}
