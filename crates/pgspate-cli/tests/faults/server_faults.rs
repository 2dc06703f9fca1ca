//! The server is killed or stopped, becomes read-only, terminates sessions, or lacks connections or
//! disk space.

use pgspate::copy::Commit;

use crate::disk::Disk;
use crate::input::RowKinds;
use crate::load_checks::{LoadOutcome, check_nothing_is_left_over, run_again_until_done};
use crate::network_faults::MESSAGES;
use crate::plan::FaultPlace;
use crate::protocol::MessageSide;
use crate::proxy::Proxy;
use crate::run::{finish, session, wait_until};
use crate::scene::LoadFaultScene;
use crate::stall_action::StallAction;
use crate::tally::{TrialTally, run_all};
use crate::test_random::{TestRandom, long_run};
use crate::trial::{LoadSettings, LoadTrial};

const NTH_DATA_MESSAGE: fn(u64) -> FaultPlace =
    |nth| FaultPlace::Kind(MessageSide::Client, b'd', nth);

#[test]
fn load_is_exact_when_the_server_fails() {
    let (end, each) =
        (LoadSettings::new(3, Commit::AtEnd), LoadSettings::new(2, Commit::EachChunk));
    let mut trials = vec![
        LoadTrial::stall(NTH_DATA_MESSAGE(12), StallAction::KillServer, each),
        LoadTrial::stall(FaultPlace::Commit(3), StallAction::KillServer, each),
        LoadTrial::stall(FaultPlace::Commit(4), StallAction::KillServer, end),
        LoadTrial::stall(FaultPlace::Commit(6), StallAction::KillServer, LoadSettings::mixed(2)),
        LoadTrial::stall(FaultPlace::Commit(4), StallAction::RestartServer, each),
        LoadTrial::stall(NTH_DATA_MESSAGE(20), StallAction::RestartServer, end),
        LoadTrial::stall(NTH_DATA_MESSAGE(20), StallAction::StopServer, each),
        LoadTrial::stall(FaultPlace::Commit(4), StallAction::StopServer, end),
        LoadTrial::stall(NTH_DATA_MESSAGE(5), StallAction::ReadOnly, end),
        LoadTrial::stall(FaultPlace::Commit(3), StallAction::ReadOnly, each),
    ];
    if let Some(count) = long_run() {
        let mut random = TestRandom::for_test_run(4);
        for then in [
            StallAction::KillServer,
            StallAction::RestartServer,
            StallAction::StopServer,
            StallAction::ReadOnly,
        ] {
            trials.extend((0..count).map(|_| {
                let settings = random.pick(&[end, each, LoadSettings::mixed(2)]);
                LoadTrial::stall(FaultPlace::Message(random.among(1..=MESSAGES)), then, settings)
            }));
        }
    }
    run_all(trials);
}

#[test]
fn load_is_exact_when_sessions_are_terminated() {
    let (end, each) =
        (LoadSettings::new(3, Commit::AtEnd), LoadSettings::new(2, Commit::EachChunk));
    let mut trials = vec![
        LoadTrial::stall(
            FaultPlace::Kind(MessageSide::Server, b'G', 2),
            StallAction::Terminate(0),
            end,
        ),
        LoadTrial::stall(NTH_DATA_MESSAGE(8), StallAction::Terminate(1), each),
        LoadTrial::stall(
            FaultPlace::Kind(MessageSide::Client, b'c', 2),
            StallAction::Terminate(2),
            each,
        ),
        LoadTrial::stall(FaultPlace::Commit(4), StallAction::Terminate(3), end),
    ];
    let mut random = TestRandom::for_test_run(7);
    trials.extend((0..long_run().unwrap_or(0)).map(|_| {
        let settings = random.pick(&[end, each, LoadSettings::mixed(2)]);
        let then = StallAction::Terminate(random.among(0..=19) as u8);
        LoadTrial::stall(FaultPlace::Message(random.among(1..=MESSAGES)), then, settings)
    }));
    run_all(trials);
}

#[test]
fn load_is_exact_or_refused_when_few_connections_are_left() {
    const CONNECTIONS: usize = 12;
    let conf = format!("max_connections = {CONNECTIONS}\nsuperuser_reserved_connections = 0\n");
    let scene = LoadFaultScene::with_server(RowKinds::Good, &conf);
    let count = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    let mut tally = TrialTally::default();
    // The load opens its own connection before those of its lanes.
    for (left, lanes, commit) in
        [(3, Some(3), Commit::EachChunk), (3, None, Commit::EachChunk), (1, None, Commit::AtEnd)]
    {
        scene.reset();
        let settings = LoadSettings { lanes, retry_for: Some(1), ..LoadSettings::new(3, commit) };
        wait_until("no other session is there", || scene.ask(count) == "1");
        let holders: Vec<_> = (left..CONNECTIONS).map(|_| session(&scene.dsn)).collect();
        let run = finish(scene.load(&scene.dsn, &settings));
        drop(holders);
        wait_until("no other session is there", || scene.ask(count) == "1");
        let is_full = run.stderr.contains("SQLSTATE 53300");
        let end = match run.status {
            Some(0) => scene.difference().map_or(Ok(LoadOutcome::Done), Err),
            Some(2) if is_full && (lanes.is_some() || left == 1) => {
                run_again_until_done(&scene, &scene.dsn, &settings).map(LoadOutcome::RunAgain)
            }
            status => Err(format!("{status:?}: {}", run.stderr)),
        };
        tally.add(&format!("{left} connections left, lanes {lanes:?}, commit {commit:?}"), end);
    }
    tally.close();
}

#[test]
fn load_reports_a_full_disk_and_completes_with_more_space() {
    let scene = LoadFaultScene::with_server(RowKinds::Good, "");
    let server = scene.server();
    let Some(disk) = Disk::mount(server.folder().join("small"), &server.data_folder()) else {
        println!("not tested: only root may mount a small disk");
        return;
    };
    scene.ask(&format!("create tablespace small location '{}'", disk.path().display()));
    let mut tally = TrialTally::default();
    for settings in [LoadSettings::new(1, Commit::AtEnd), LoadSettings::new(3, Commit::EachChunk)] {
        scene.reset();
        scene.ask("alter table t set tablespace small");
        let proxy = Proxy::start(&scene.dsn, None);
        let run = finish(scene.load(&proxy.dsn(), &settings));
        check_nothing_is_left_over(&scene).unwrap();
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("SQLSTATE 53100"), "{}", run.stderr);
        // With enough disk space, the same command completes the load.
        scene.ask("alter table t set tablespace pg_default");
        let again = run_again_until_done(&scene, &proxy.dsn(), &settings);
        tally.add("full disk, then room", again.map(LoadOutcome::RunAgain));
    }
    tally.close();
}
