//! Slow commits: the connection is lost, but the server continues and commits the rows after the
//! load has already looked for them.

use pgspate::copy::Commit;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::rule::{LIMIT, LoadEnd, check};
use crate::run::finish_within;
use crate::scene::LoadFaultScene;
use crate::trial::LoadSettings;

/// Makes every commit of a chunk take a second. In that time the load notices the lost session and
/// opens another one.
const SLOW: &str = "\
create function slow() returns trigger language plpgsql
    as 'begin perform pg_sleep(1); return new; end';
create constraint trigger slow after insert on pgspate.ledger
    deferrable initially deferred for each row execute function slow()";

/// Loads, and loses the connection as soon as the server has got a chunk's commit.
fn lose_in_commit(sql: &str, settings: LoadSettings) -> LoadEnd {
    let scene = LoadFaultScene::new(settings.rows);
    // Makes the ledger.
    let run = finish_within(scene.load(&scene.dsn, &settings), LIMIT);
    assert!(run.is_ok_and(|run| matches!(run.status, Some(0 | 1))));
    scene.empty();
    scene.ask(&format!("{SLOW}; {sql}"));
    let proxy = Proxy::start(&scene.dsn, Some(FaultPlan::new(Fault::Lose, FaultPlace::Commit(1))));
    let run = finish_within(scene.load(&proxy.dsn(), &settings), LIMIT);
    let run = run.unwrap_or_else(|run| panic!("it hangs: {}", run.stderr));
    assert!(proxy.has_fired());
    proxy.disarm();
    let end = check(&scene, &proxy, &settings, &run, false);
    end.unwrap_or_else(|broken| panic!("{broken}\n{}\n{}", run.stderr, proxy.log()))
}

#[test]
fn rows_that_turn_out_to_be_written_are_not_refused_for_their_keys() {
    let settings = LoadSettings::new(2, Commit::EachChunk);
    assert_eq!(lose_in_commit("create unique index on t (id)", settings), LoadEnd::Done);
}

#[test]
fn a_load_that_seems_to_have_left_nothing_is_not_forgotten() {
    let settings = LoadSettings { retry_for: Some(0), ..LoadSettings::new(2, Commit::EachChunk) };
    assert!(matches!(lose_in_commit("select 1", settings), LoadEnd::Again(_)));
}

#[test]
fn rows_that_are_set_aside_twice_count_once() {
    assert_eq!(lose_in_commit("select 1", LoadSettings::mixed(2)), LoadEnd::Done);
}
