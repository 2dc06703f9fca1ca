//! Tables that change while no call comes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::scene::{WriterScene, call, call_with_keys_at_once, into, record, value};

/// The time after which the facts of a table are read again before a call.
const LIFETIME: Duration = Duration::from_secs(5);

/// The facts are read again beside the calls.
#[test]
fn calls_that_come_all_the_time_do_not_wait_for_facts() {
    let scene = WriterScene::new("create table t (id int)");
    let request = into("t", &["id"]);
    let one = [record(&["1"])];
    scene.runtime.block_on(call(&scene.writer, &request, &one)).unwrap();
    let began = Instant::now();
    while began.elapsed() < LIFETIME * 2 {
        let waits = scene.writer.kept_shape(&request).is_none();
        assert!(!waits, "a call waits after {:?}", began.elapsed());
        scene.runtime.block_on(call(&scene.writer, &request, &one)).unwrap();
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_first_call_after_a_pause_knows_rules_and_unlogged_tables() {
    let scene = WriterScene::new(
        "create table t (id int); create table u (id int); create table elsewhere (id int)",
    );
    let (ruled, unlogged) = (into("t", &["id"]), into("u", &["id"]));
    let one = [record(&["1"])];
    let send_with_key = |key: &str| {
        let calls = vec![(key.to_owned(), one.to_vec())];
        let sent = call_with_keys_at_once(&scene.writer, &unlogged, calls);
        scene.runtime.block_on(sent).remove(0)
    };
    scene.runtime.block_on(call(&scene.writer, &ruled, &one)).unwrap();
    send_with_key("a").unwrap();
    sleep(LIFETIME + Duration::from_millis(100));
    scene.db.run(
        "create rule r as on insert to t do instead insert into elsewhere values (new.id); \
         alter table u set unlogged",
    );
    let refused = scene.runtime.block_on(call(&scene.writer, &ruled, &one)).unwrap_err();
    assert!(refused.to_string().contains("rule \"r\" rewrites statements"), "{refused}");
    let refused = send_with_key("b").unwrap_err();
    assert!(refused.to_string().contains("takes no idempotency keys"), "{refused}");
    let counts = "select (select count(*) from elsewhere) || ' ' || count(*) from u";
    assert_eq!(value(&scene.db, counts), "0 1");
}
