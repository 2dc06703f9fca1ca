//! Faults while indexes are dropped and made again: in the end each is there as it was.

use crate::chance::Chance;
use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::run::finish;
use crate::scene::Scene;
use crate::trial::{Tally, Trial};
use crate::wires::long_run;

const LANES: u8 = 2;
const FAULTS: [Fault; 4] = [Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit];

/// Messages of a load without faults, and commits.
fn count(scene: &Scene) -> (u64, u64) {
    scene.reset();
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), &LANES.to_string()));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    assert_eq!(scene.ask("select count(*) >= 4 from pgspate.change"), "t");
    proxy.counts()
}

#[test]
fn faults_at_the_commits_of_each_step() {
    let scene = Scene::indexed();
    let mut tally = Tally::default();
    let (_, commits) = count(&scene);
    let mut chance = Chance::fixed(11);
    for nth in 1..=commits {
        let fault = chance.pick(&FAULTS);
        tally.run(&scene, Trial::new(Plan::new(fault, At::Commit(nth)), LANES));
    }
    tally.close();
}

#[test]
fn faults_of_chance_around_the_rows() {
    let scene = Scene::indexed();
    let mut tally = Tally::default();
    let (messages, _) = count(&scene);
    let mut chance = long_run().map_or_else(|| Chance::fixed(12), |_| Chance::new());
    println!("{messages} messages; seed {}", chance.seed);
    // What comes before and after the rows takes a hundred messages or two.
    for nth in 0..long_run().unwrap_or(12) {
        let at = match nth % 3 {
            0 => chance.among(1..=150),
            _ => chance.among(messages - 250..=messages),
        };
        let fault = chance.pick(&FAULTS[..3]);
        tally.run(&scene, Trial::new(Plan::new(fault, At::Message(at)), LANES));
    }
    tally.close();
}
