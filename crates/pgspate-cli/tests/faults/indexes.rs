//! Faults while indexes are dropped and made again: in the end each is there as it was.

use crate::chance::{Chance, long_run};
use crate::plan::{At, Fault};
use crate::proxy::Proxy;
use crate::run::finish;
use crate::scene::Scene;
use crate::tally::run_all;
use crate::trial::{Settings, Trial};

const FAULTS: [Fault; 4] = [Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit];

/// Messages of a load without faults, and commits.
fn count(settings: &Settings) -> (u64, u64) {
    let scene = Scene::new(settings.rows);
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), settings));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    assert_eq!(scene.ask("select count(*) >= 4 from pgspate.change"), "t");
    proxy.counts()
}

#[test]
fn faults_at_the_commits_of_each_step() {
    let settings = Settings::indexed(2);
    let (_, commits) = count(&settings);
    let mut chance = Chance::new(11);
    // The last ones may not be there in every run.
    run_all((1..commits).map(|nth| Trial::new(chance.pick(&FAULTS), At::Commit(nth), settings)));
}

#[test]
fn faults_of_chance_around_the_rows() {
    let settings = Settings::indexed(2);
    let (messages, _) = count(&settings);
    let mut chance = Chance::of_run(12);
    // What comes before and after the rows takes a hundred messages or two.
    run_all((0..long_run().unwrap_or(8)).map(|nth| {
        let at = match nth % 3 {
            0 => chance.among(1..=150),
            _ => chance.among(messages - 250..=messages),
        };
        Trial::new(chance.pick(&FAULTS[..3]), At::Message(at), settings)
    }));
}
