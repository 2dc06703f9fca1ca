//! Loads that are killed or interrupted.

use std::thread;
use std::time::Duration;

use pgspate::copy::Commit;

use crate::input::RowKinds;
use crate::load_checks::{check_nothing_is_left_over, run_again_until_done};
use crate::network_faults::MESSAGES;
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::MessageSide;
use crate::proxy::Proxy;
use crate::run::{finish, wait_until};
use crate::scene::LoadFaultScene;
use crate::stall_action::{StallAction, signal};
use crate::tally::run_all;
use crate::test_random::{TestRandom, long_run};
use crate::trial::{LoadSettings, LoadTrial};

/// Runs trials in which the action `then` ends the load, after a stall at a chosen or at a random
/// message.
fn run_stop_trials(then: StallAction, seed: u64, random_points: u64) {
    let (end, each) =
        (LoadSettings::new(3, Commit::AtEnd), LoadSettings::new(2, Commit::EachChunk));
    let mut trials = vec![
        LoadTrial::stall(FaultPlace::Kind(MessageSide::Client, b'd', 12), then, each),
        LoadTrial::stall(FaultPlace::Commit(1), then, end),
        LoadTrial::stall(FaultPlace::Commit(4), then, end),
        LoadTrial::stall(FaultPlace::Commit(5), then, each),
    ];
    let mut random = TestRandom::for_test_run(seed);
    trials.extend((0..long_run().unwrap_or(random_points)).map(|_| {
        let settings = random.pick(&[end, each, each, LoadSettings::mixed(2)]);
        LoadTrial::stall(FaultPlace::Message(random.among(1..=MESSAGES)), then, settings)
    }));
    run_all(trials);
}

#[test]
fn killed_load_can_be_run_again() {
    run_stop_trials(StallAction::Kill, 2, 4);
}

#[test]
fn interrupted_load_can_be_run_again() {
    run_stop_trials(StallAction::Interrupt, 3, 0);
}

/// The server sends no more messages, and its connection stays open.
#[test]
fn a_second_interrupt_ends_a_load_whose_server_is_silent() {
    let scene = LoadFaultScene::new(RowKinds::Good);
    for (at, commit) in [
        (FaultPlace::Kind(MessageSide::Client, b'd', 12), Commit::EachChunk),
        (FaultPlace::Commit(3), Commit::AtEnd),
    ] {
        scene.reset();
        let settings = LoadSettings::new(2, commit);
        let proxy = Proxy::start(&scene.dsn, Some(FaultPlan::new(Fault::Stall, at)));
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
        check_nothing_is_left_over(&scene).unwrap();
        run_again_until_done(&scene, &scene.dsn, &settings).unwrap();
    }
}
