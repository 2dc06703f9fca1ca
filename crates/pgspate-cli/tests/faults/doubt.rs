//! Commits that take their time: a connection is lost and the server goes on, so that rows come
//! into the table when the load has looked already.

use pgspate::copy::Commit;

use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::rule::{End, LIMIT, check};
use crate::run::finish_within;
use crate::scene::Scene;
use crate::trial::Settings;

/// Every commit of a chunk takes so long. It is long past when a session has been lost and another
/// one is there.
const SLOW: &str = "\
create function slow() returns trigger language plpgsql
    as 'begin perform pg_sleep(1); return new; end';
create constraint trigger slow after insert on pgspate.ledger
    deferrable initially deferred for each row execute function slow()";

/// Loads, and loses the connection as soon as the server has got a chunk's commit.
fn lose_in_commit(sql: &str, settings: Settings) -> End {
    let scene = Scene::new(settings.rows);
    // Makes the ledger.
    let run = finish_within(scene.load(&scene.dsn, &settings), LIMIT);
    assert!(run.is_ok_and(|run| matches!(run.status, Some(0 | 1))));
    scene.empty();
    scene.ask(&format!("{SLOW}; {sql}"));
    let proxy = Proxy::start(&scene.dsn, Some(Plan::new(Fault::Lose, At::Commit(1))));
    let run = finish_within(scene.load(&proxy.dsn(), &settings), LIMIT);
    let run = run.unwrap_or_else(|run| panic!("it hangs: {}", run.stderr));
    assert!(proxy.has_fired());
    proxy.disarm();
    let end = check(&scene, &proxy, &settings, &run, false);
    end.unwrap_or_else(|broken| panic!("{broken}\n{}\n{}", run.stderr, proxy.log()))
}

#[test]
fn rows_that_turn_out_to_be_written_are_not_refused_for_their_keys() {
    let settings = Settings::new(2, Commit::EachChunk);
    assert_eq!(lose_in_commit("create unique index on t (id)", settings), End::Done);
}

#[test]
fn a_load_that_seems_to_have_left_nothing_is_not_forgotten() {
    let settings = Settings { retry_for: Some(0), ..Settings::new(2, Commit::EachChunk) };
    assert!(matches!(lose_in_commit("select 1", settings), End::Again(_)));
}

#[test]
fn rows_that_are_set_aside_twice_count_once() {
    assert_eq!(lose_in_commit("select 1", Settings::mixed(2)), End::Done);
}
