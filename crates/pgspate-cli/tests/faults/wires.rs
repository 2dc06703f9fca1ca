//! Faults of the network: at chosen messages, at messages of chance, and at all of them.

use std::time::Duration;

use crate::chance::Chance;
use crate::plan::{At, Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::run::finish;
use crate::scene::Scene;
use crate::trial::{Tally, Trial};
use crate::wire::Side;

const LANES: u8 = 3;
const CUTS: [Fault; 3] = [Fault::Cut, Fault::CutInside, Fault::CutAfter];

/// So many faults of chance where every message is tried as well.
pub(crate) fn long_run() -> Option<u64> {
    let trials = std::env::var("PGSPATE_TEST_FAULTS").ok()?;
    Some(trials.parse().expect("PGSPATE_TEST_FAULTS is a number of trials"))
}

/// How many messages a load takes without faults, and how many of them commit.
fn count_messages(scene: &Scene, lanes: u8) -> (u64, u64) {
    scene.reset();
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), &lanes.to_string()));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    proxy.counts()
}

fn stall_then_cut(at: At, lanes: u8) -> Trial {
    Trial { release: Release::Cut, ..Trial::new(Plan::new(Fault::Stall, at), lanes) }
}

/// A fault of chance among `messages`.
fn of_chance(chance: &mut Chance, messages: u64) -> Trial {
    let at = At::Message(chance.among(1..=messages + messages / 20));
    let fault = chance.pick(&[Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::Stall]);
    let release = match fault {
        Fault::Stall => chance.pick(&[Release::Resume, Release::Cut]),
        _ => Release::Resume,
    };
    let is_cut = fault != Fault::Stall || release == Release::Cut;
    let plan = match chance.among(0..=3) {
        0 if is_cut => Plan::new(fault, at).away(Duration::from_millis(chance.among(0..=900))),
        _ => Plan::new(fault, at),
    };
    let lanes = chance.pick(&[1, 2, 3, 3]);
    Trial { release, ..Trial::new(plan, lanes) }
}

#[test]
fn a_proxy_without_faults_changes_nothing() {
    let scene = Scene::new();
    let (messages, commits) = count_messages(&scene, LANES);
    assert!(messages > 300, "{messages} messages");
    assert_eq!(commits, u64::from(LANES));
}

#[test]
fn faults_at_commits() {
    let scene = Scene::new();
    let mut tally = Tally::default();
    for nth in 1..=u64::from(LANES) {
        let at = At::Commit(nth);
        for fault in CUTS.into_iter().chain([Fault::SwallowCommit]) {
            tally.run(&scene, Trial::new(Plan::new(fault, at), LANES));
        }
    }
    let away = Duration::from_millis(300);
    tally.run(&scene, stall_then_cut(At::Commit(2), LANES));
    tally.run(&scene, Trial::new(Plan::new(Fault::SwallowCommit, At::Commit(1)), 1));
    let swallow = Plan::new(Fault::SwallowCommit, At::Commit(2)).away(away);
    tally.run(&scene, Trial::new(swallow, LANES));
    tally.close();
}

#[test]
fn faults_in_each_phase_of_a_load() {
    let scene = Scene::new();
    let mut tally = Tally::default();
    let kinds = [
        // Connections: of the load itself, and of its lanes.
        (Side::Client, b'!', 1),
        (Side::Server, b'!', 2),
        (Side::Server, b'K', 3),
        // COPY: its start, its data, its end, its answer.
        (Side::Server, b'G', 1),
        (Side::Client, b'd', 1),
        (Side::Client, b'd', 17),
        (Side::Client, b'c', 2),
        (Side::Server, b'C', 24),
    ];
    for (nth, (side, kind, count)) in kinds.into_iter().enumerate() {
        let fault = CUTS[nth % CUTS.len()];
        let plan = Plan::new(fault, At::Kind(side, kind, count));
        tally.run(&scene, Trial::new(plan, LANES));
    }
    for (side, kind, count) in [(Side::Client, b'd', 9), (Side::Server, b'G', 2)] {
        let at = At::Kind(side, kind, count);
        tally.run(&scene, Trial::new(Plan::new(Fault::Stall, at), LANES));
        tally.run(&scene, stall_then_cut(at, LANES));
        let away = Plan::new(Fault::Cut, at).away(Duration::from_millis(300));
        tally.run(&scene, Trial::new(away, LANES));
    }
    tally.close();
}

#[test]
fn faults_of_chance() {
    let scene = Scene::new();
    let mut tally = Tally::default();
    let mut chance = Chance::fixed(1);
    let (messages, _) = count_messages(&scene, LANES);
    println!("{messages} messages; seed {}", chance.seed);
    (0..16).for_each(|_| tally.run(&scene, of_chance(&mut chance, messages)));
    tally.close();
}

/// With `PGSPATE_TEST_FAULTS=N`: each message with each fault, and N trials of chance. With
/// `PGSPATE_TEST_FAULTS_REPLAY='cut@137 lanes=3'`: that trial, ten times.
#[test]
fn faults_at_every_message() {
    let mut tally = Tally::default();
    if let Ok(trial) = std::env::var("PGSPATE_TEST_FAULTS_REPLAY") {
        let trial: Trial = trial.parse().unwrap();
        let scene = Scene::new();
        (0..10).for_each(|_| tally.run(&scene, trial));
        return tally.close();
    }
    let Some(trials) = long_run() else {
        println!("not tested: this takes PGSPATE_TEST_FAULTS=N");
        return;
    };
    let scene = Scene::new();
    let mut chance = Chance::new();
    let (messages, commits) = count_messages(&scene, LANES);
    println!("{messages} messages, {commits} commits; seed {}", chance.seed);
    for nth in 1..=messages {
        for fault in CUTS {
            tally.run(&scene, Trial::new(Plan::new(fault, At::Message(nth)), LANES));
        }
        tally.run(&scene, stall_then_cut(At::Message(nth), LANES));
        println!("{nth} of {messages}");
    }
    for nth in 1..=commits {
        let plan = Plan::new(Fault::SwallowCommit, At::Commit(nth));
        tally.run(&scene, Trial::new(plan, LANES));
    }
    (0..trials).for_each(|_| tally.run(&scene, of_chance(&mut chance, messages)));
    tally.close();
}
