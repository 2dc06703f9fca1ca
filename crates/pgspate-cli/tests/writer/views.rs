//! Views: what matters of the tables beneath.

use pgspate::ErrorKind;

use crate::scene::{WriterScene, call_with_keys_at_once, into, record, value};

#[test]
fn a_view_of_a_table_whose_rows_a_rule_writes_elsewhere_is_refused() {
    let scene = WriterScene::new(
        "create table t (id int); create table elsewhere (id int); \
         create rule r as on insert to t do instead insert into elsewhere values (new.id); \
         create view w as select id from t; create view v as select id from w where id > 0",
    );
    let refused = scene.insert_at_once(&into("v", &["id"]), &[record(&["1"])]).remove(0);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Plan);
    let message = "rule \"r\" rewrites statements that write public.v";
    assert_eq!(refused.to_string(), message);
    assert_eq!(value(&scene.db, "select count(*) from elsewhere"), "0");
}

/// The rule of a view is what makes it writable.
#[test]
fn views_that_are_updatable_or_have_a_rule_or_a_trigger_take_records() {
    let scene = WriterScene::new(
        "create table t (id int); create view plain as select id from t where id > 0; \
         create view ruled as select id from t limit 9; \
         create rule r as on insert to ruled do instead insert into t values (new.id); \
         create view triggered as select id from t limit 9; \
         create function put() returns trigger language plpgsql as \
             'begin insert into t values (new.id); return new; end'; \
         create trigger put instead of insert on triggered for each row execute function put()",
    );
    for view in ["plain", "ruled", "triggered"] {
        for outcome in scene.insert_at_once(&into(view, &["id"]), &[record(&["1"])]) {
            assert_eq!(outcome.unwrap().rows, 1, "{view}");
        }
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "3");
    let request = into("plain", &["id"]);
    for _ in 0..2 {
        let calls = vec![("key".to_owned(), vec![record(&["2"])])];
        let sent = call_with_keys_at_once(&scene.writer, &request, calls);
        assert_eq!(scene.runtime.block_on(sent).remove(0).unwrap().rows, 1);
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "4");
}
