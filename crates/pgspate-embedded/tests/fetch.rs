//! Fetches PostgreSQL from the network. Runs only with `PGSPATE_TEST_FETCH=1`.

use std::sync::Mutex;

use pgspate_embedded::{MAJOR_FETCHED, ThrowawayServer, fetch, silent};

#[test]
fn a_fetched_release_runs_and_is_fetched_once() {
    if std::env::var("PGSPATE_TEST_FETCH").as_deref() != Ok("1") {
        return;
    }
    let steps = Mutex::new(Vec::new());
    let note = |step: &pgspate_embedded::ServerStep| {
        eprintln!("{step}");
        steps.lock().unwrap().push(step.to_string());
    };
    let found = fetch(MAJOR_FETCHED, &note).unwrap_or_else(|e| panic!("{}", e.chain()));
    assert_eq!(found.major, MAJOR_FETCHED);
    let first_steps = std::mem::take(&mut *steps.lock().unwrap());
    assert!(first_steps.is_empty() || first_steps.len() == 2, "{first_steps:?}");

    let again = fetch(MAJOR_FETCHED, &note).unwrap();
    assert_eq!((again, steps.lock().unwrap().len()), (found.clone(), 0));
    let server = ThrowawayServer::builder().installation(found).start(&silent);
    let server = server.unwrap_or_else(|e| panic!("{}", e.chain()));
    assert!(server.pid().is_some());
}
