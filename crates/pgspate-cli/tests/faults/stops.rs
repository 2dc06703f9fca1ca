//! The command is killed, or told to stop.

use std::process::{Child, Command};
use std::time::Duration;

use crate::chance::Chance;
use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::rule::nothing_is_left_over;
use crate::run::{finish, wait_until};
use crate::scene::Scene;
use crate::trial::{Harm, Tally, Trial};
use crate::wire::Side;
use crate::wires::long_run;

fn signal(name: &str, child: &Child) {
    let pid = child.id().to_string();
    // It may have ended meanwhile.
    Command::new("kill").args([name, &pid]).output().unwrap();
}

/// At the beginning of a load, in its middle and at its commits, and at messages of chance: does
/// what `name` says to the command.
fn stop(name: &str, seed: u64, points_of_chance: u64, act: fn(&Child)) {
    let scene = Scene::new();
    let mut tally = Tally::default();
    let mut chance = long_run().map_or_else(|| Chance::fixed(seed), |_| Chance::new());
    println!("seed {}", chance.seed);
    let mut points = vec![
        At::Message(20),
        At::Kind(Side::Server, b'G', 1),
        At::Kind(Side::Client, b'd', 12),
        At::Kind(Side::Client, b'c', 1),
        At::Commit(1),
        At::Commit(2),
        At::Commit(3),
    ];
    let count = long_run().unwrap_or(points_of_chance);
    points.extend((0..count).map(|_| At::Message(chance.among(1..=460))));
    for point in points {
        let mut act = act;
        let mut harm = Harm { name, act: &mut act, undo: &mut || {}, crashes_server: false };
        let trial = Trial::new(Plan::new(Fault::Stall, point), 3);
        tally.add(name, trial.run_with(&scene, &mut harm));
    }
    tally.close();
}

#[test]
fn a_load_that_is_killed() {
    stop("kill -9", 2, 4, |child| signal("-KILL", child));
}

#[test]
fn a_load_that_is_interrupted() {
    stop("kill -INT", 3, 2, |child| {
        signal("-INT", child);
        std::thread::sleep(Duration::from_millis(100));
    });
}

/// Nothing comes from the server any more, and nothing tells that nothing will.
#[test]
fn a_second_interrupt_ends_a_load_whose_server_is_silent() {
    let scene = Scene::new();
    for at in [At::Kind(Side::Server, b'G', 1), At::Kind(Side::Client, b'd', 12), At::Commit(1)] {
        scene.reset();
        let proxy = Proxy::start(&scene.dsn, Some(Plan::new(Fault::Stall, at)));
        let mut child = scene.load(&proxy.dsn(), "2");
        wait_until("the connection is silent", || proxy.has_fired());
        let mut has_ended = || child.try_wait().unwrap().is_some();
        assert!(!has_ended());
        wait_until("two interrupts end it", || {
            signal("-INT", &child);
            std::thread::sleep(Duration::from_millis(200));
            child.try_wait().unwrap().is_some()
        });
        let run = finish(child);
        assert_eq!((run.status, scene.rows()), (Some(130), 0), "{at:?}: {}", run.stderr);
        proxy.disarm();
        nothing_is_left_over(&scene).unwrap();
    }
}
