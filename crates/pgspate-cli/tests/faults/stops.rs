//! The command is killed, or told to stop.

use std::thread;
use std::time::Duration;

use pgspate::copy::Commit;

use crate::chance::{Chance, long_run};
use crate::input::Rows;
use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::rule::{nothing_is_left_over, run_again_until_done};
use crate::run::{finish, wait_until};
use crate::scene::Scene;
use crate::tally::run_all;
use crate::then::{Then, signal};
use crate::trial::{Settings, Trial};
use crate::wire::Side;
use crate::wires::MESSAGES;

fn stop(then: Then, seed: u64, points_of_chance: u64) {
    let (end, each) = (Settings::new(3, Commit::AtEnd), Settings::new(2, Commit::EachChunk));
    let mut trials = vec![
        Trial::stall(At::Kind(Side::Client, b'd', 12), then, each),
        Trial::stall(At::Commit(1), then, end),
        Trial::stall(At::Commit(3), then, end),
        Trial::stall(At::Commit(4), then, each),
    ];
    let mut chance = Chance::of_run(seed);
    trials.extend((0..long_run().unwrap_or(points_of_chance)).map(|_| {
        let settings = chance.pick(&[end, each, each, Settings::mixed(2)]);
        Trial::stall(At::Message(chance.among(1..=MESSAGES)), then, settings)
    }));
    run_all(trials);
}

#[test]
fn a_load_that_is_killed() {
    stop(Then::Kill, 2, 4);
}

#[test]
fn a_load_that_is_interrupted() {
    stop(Then::Interrupt, 3, 0);
}

/// Nothing comes from the server any more, and nothing tells that nothing will.
#[test]
fn a_second_interrupt_ends_a_load_whose_server_is_silent() {
    let scene = Scene::new(Rows::Good);
    for (at, commit) in
        [(At::Kind(Side::Client, b'd', 12), Commit::EachChunk), (At::Commit(2), Commit::AtEnd)]
    {
        scene.reset();
        let settings = Settings::new(2, commit);
        let proxy = Proxy::start(&scene.dsn, Some(Plan::new(Fault::Stall, at)));
        let mut child = scene.load(&proxy.dsn(), &settings);
        wait_until("the connection is silent", || proxy.has_fired());
        assert!(child.try_wait().unwrap().is_none());
        wait_until("two interrupts end it", || {
            signal("-INT", child.id());
            thread::sleep(Duration::from_millis(200));
            child.try_wait().unwrap().is_some()
        });
        let run = finish(child);
        assert_eq!(run.status, Some(130), "{at:?}: {}", run.stderr);
        proxy.disarm();
        nothing_is_left_over(&scene).unwrap();
        run_again_until_done(&scene, &scene.dsn, &settings).unwrap();
    }
}
