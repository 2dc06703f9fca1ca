//! Slow commits whose connection is lost. The server continues, and commits the rows after the load
//! has looked for them in the ledger.

use pgspate::copy::Commit;

use crate::load_checks::{LOAD_TIME_MAX, LoadOutcome, check};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::run::finish_within;
use crate::scene::LoadFaultScene;
use crate::trial::LoadSettings;

/// Makes every commit of a chunk take a second. In that time the load notices the lost session and
/// opens another session.
const SLOW_COMMITS: &str = "\
create function slow() returns trigger language plpgsql
    as 'begin perform pg_sleep(1); return new; end';
create constraint trigger slow after insert on pgspate.ledger
    deferrable initially deferred for each row execute function slow()";

/// Loads a file and loses the connection as soon as the server has received a chunk's commit.
fn lose_connection_in_commit(sql: &str, settings: LoadSettings) -> LoadOutcome {
    let scene = LoadFaultScene::new(settings.rows);
    // This run creates the ledger. The trigger needs the ledger's table.
    let run = finish_within(scene.load(&scene.dsn, &settings), LOAD_TIME_MAX);
    assert!(run.is_ok_and(|run| matches!(run.status, Some(0 | 1))));
    scene.empty();
    scene.ask(&format!("{SLOW_COMMITS}; {sql}"));
    let proxy = Proxy::start(&scene.dsn, Some(FaultPlan::new(Fault::Lose, FaultPlace::Commit(1))));
    let run = finish_within(scene.load(&proxy.dsn(), &settings), LOAD_TIME_MAX);
    let run = run.unwrap_or_else(|run| panic!("the load hangs: {}", run.stderr));
    assert!(proxy.has_fired());
    proxy.disarm();
    let end = check(&scene, &proxy, &settings, &run, false);
    end.unwrap_or_else(|broken| panic!("{broken}\n{}\n{}", run.stderr, proxy.log()))
}

#[test]
fn rows_that_commit_after_a_lost_reply_cause_no_duplicate_key_error() {
    let settings = LoadSettings::new(2, Commit::EachChunk);
    assert_eq!(
        lose_connection_in_commit("create unique index on t (id)", settings),
        LoadOutcome::Done
    );
}

#[test]
fn a_failed_load_whose_rows_commit_later_is_resumed() {
    let settings = LoadSettings { retry_for: Some(0), ..LoadSettings::new(2, Commit::EachChunk) };
    assert!(matches!(lose_connection_in_commit("select 1", settings), LoadOutcome::RunAgain(_)));
}

#[test]
fn rows_rejected_twice_are_counted_once() {
    assert_eq!(lose_connection_in_commit("select 1", LoadSettings::mixed(2)), LoadOutcome::Done);
}
