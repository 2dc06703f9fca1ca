//! The end of `pgspate serve` while clients send: no answered record is lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::run::wait_until;
use crate::scene::{ServeProcess, ServeScene};

const ROWS: &str = "/tables/note/rows";
const CLIENTS: usize = 8;

/// Lets clients send records with keys until the process ends by `signal`. Returns the numbers of
/// the records that were answered, and of those that were not.
fn send_until(scene: &ServeScene, signal: Signal) -> (Vec<u64>, Vec<u64>) {
    let (answered, lost) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let next = AtomicU64::new(0);
    let process = &scene.process;
    let send = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        match send_number(process, number) {
            Some(201) => answered.lock().unwrap().push(number),
            status => {
                assert!(matches!(status, None | Some(503)), "{status:?}");
                lost.lock().unwrap().push(number);
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(send);
        }
        wait_until("records are written", || answered.lock().unwrap().len() > 200);
        process.signal(signal);
    });
    (answered.into_inner().unwrap(), lost.into_inner().unwrap())
}

fn send_number(process: &ServeProcess, number: u64) -> Option<u16> {
    let (key, body) = (format!("key {number}"), format!(r#"{{"text":"{number}"}}"#));
    process.try_post(ROWS, &[("idempotency-key", &key)], &body).map(|answer| answer.status)
}

#[test]
fn a_stopped_process_has_written_what_it_has_answered_and_nothing_else() {
    let mut scene = ServeScene::new(&[]);
    let (answered, lost) = send_until(&scene, Signal::TERM);
    assert_eq!(scene.process.wait().status, Some(0));
    assert_eq!(lost.len(), CLIENTS);
    assert_eq!(scene.value("select count(*) from note"), answered.len().to_string());
}

#[test]
fn records_of_a_killed_process_are_written_once_when_they_are_sent_again() {
    let mut scene = ServeScene::new(&[]);
    let (answered, lost) = send_until(&scene, Signal::KILL);
    assert_eq!(scene.process.wait().status, None);
    let folder = tempfile::tempdir().unwrap();
    scene.process = ServeProcess::start(&scene.db.dsn(), folder, &["--table", "note"]);
    // All records again: also those that were answered.
    for number in answered.iter().chain(&lost) {
        assert_eq!(send_number(&scene.process, *number), Some(201));
    }
    let total = (answered.len() + lost.len()).to_string();
    assert_eq!(scene.value("select count(distinct text) from note"), total);
    assert_eq!(scene.value("select count(*) from note"), total);
}
