//! The command is killed, or told to stop.

use std::process::{Child, Command};
use std::time::Duration;

use crate::chance::Chance;
use crate::plan::{At, Fault, Plan};
use crate::scene::Scene;
use crate::trial::{Tally, Trial};
use crate::wire::Side;
use crate::wires::long_run;

fn signal(name: &str, child: &Child) {
    let pid = child.id().to_string();
    // It may have ended meanwhile.
    let _ = Command::new("kill").args([name, &pid]).output().unwrap();
}

fn at(at: At, lanes: u8) -> Trial {
    Trial::new(Plan::new(Fault::Stall, at), lanes)
}

/// Points at the beginning of a load, in its middle and at its commits, and more of chance.
fn points(chance: &mut Chance, count: u64) -> Vec<At> {
    let mut points = vec![
        At::Message(20),
        At::Kind(Side::Server, b'G', 1),
        At::Kind(Side::Client, b'd', 12),
        At::Kind(Side::Client, b'c', 1),
        At::Commit(1),
        At::Commit(2),
        At::Commit(3),
    ];
    points.extend((0..count).map(|_| At::Message(chance.among(1..=460))));
    points
}

#[test]
fn a_load_that_is_killed() {
    let scene = Scene::new();
    let mut tally = Tally::default();
    let mut chance = long_run().map_or_else(|| Chance::fixed(2), |_| Chance::new());
    println!("seed {}", chance.seed);
    for point in points(&mut chance, long_run().unwrap_or(4)) {
        let end = at(point, 3).run_with(&scene, "kill -9", |child| signal("-KILL", child));
        tally.add("killed", end);
    }
    tally.close();
}

#[test]
fn a_load_that_is_interrupted() {
    let scene = Scene::new();
    let mut tally = Tally::default();
    let mut chance = long_run().map_or_else(|| Chance::fixed(3), |_| Chance::new());
    println!("seed {}", chance.seed);
    for point in points(&mut chance, long_run().unwrap_or(2)) {
        let end = at(point, 3).run_with(&scene, "kill -INT", |child| {
            signal("-INT", child);
            std::thread::sleep(Duration::from_millis(100));
        });
        tally.add("interrupted", end);
    }
    tally.close();
}
