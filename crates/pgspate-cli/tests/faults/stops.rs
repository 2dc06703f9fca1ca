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

/// At the beginning of a load, in its middle and at its commits, and at messages of chance: does
/// this to the command.
fn stop(then: Then, seed: u64, points_of_chance: u64) {
    let mut chance = Chance::of_run(seed);
    let (end, each) = (Commit::AtEnd, Commit::EachChunk);
    let mut points = vec![
        (At::Kind(Side::Client, b'd', 12), each),
        (At::Commit(1), end),
        (At::Commit(3), end),
        (At::Commit(4), each),
    ];
    points.extend(
        (0..long_run().unwrap_or(points_of_chance))
            .map(|_| (At::Message(chance.among(1..=MESSAGES)), chance.pick(&[end, each]))),
    );
    let trial = |(at, commit)| {
        let lanes = if commit == end { 3 } else { 2 };
        Trial::stall(at, then, Settings::new(lanes, commit))
    };
    run_all(points.into_iter().map(trial));
}

#[test]
fn a_load_that_is_killed() {
    stop(Then::Kill, 2, 6);
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
