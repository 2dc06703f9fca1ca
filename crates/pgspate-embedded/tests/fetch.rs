//! Fetching PostgreSQL from the network: only with `PGSPATE_TEST_FETCH=1`.

use std::sync::Mutex;

use pgspate_embedded::{MAJOR_FETCHED, Throwaway, fetch, silent};

#[test]
fn a_fetched_release_runs_and_is_fetched_once() {
    if std::env::var("PGSPATE_TEST_FETCH").as_deref() != Ok("1") {
        return;
    }
    let steps = Mutex::new(Vec::new());
    let note = |step: &pgspate_embedded::Step| {
        eprintln!("{step}");
        steps.lock().unwrap().push(step.to_string());
    };
    let found = fetch(MAJOR_FETCHED, &note).unwrap_or_else(|e| panic!("{}", e.chain()));
    assert_eq!(found.major, MAJOR_FETCHED);
    let told = std::mem::take(&mut *steps.lock().unwrap());
    assert!(told.is_empty() || told.len() == 2, "fetched earlier, or fetched now: {told:?}");

    let again = fetch(MAJOR_FETCHED, &note).unwrap();
    assert_eq!((again, steps.lock().unwrap().len()), (found.clone(), 0));
    let server = Throwaway::builder().installation(found).start(&silent);
    let server = server.unwrap_or_else(|e| panic!("{}", e.chain()));
    assert!(server.pid().is_some());
}
