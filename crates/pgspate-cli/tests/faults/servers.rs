//! The server is killed, runs out of something, or turns against the load.

use pgspate::copy::Commit;

use crate::chance::{Chance, long_run};
use crate::disk::Disk;
use crate::input::Rows;
use crate::plan::At;
use crate::proxy::Proxy;
use crate::rule::{End, nothing_is_left_over, run_again_until_done};
use crate::run::{finish, session, wait_until};
use crate::scene::Scene;
use crate::tally::{Tally, run_all};
use crate::then::Then;
use crate::trial::{Settings, Trial};
use crate::wire::Side;
use crate::wires::MESSAGES;

const DATA: fn(u64) -> At = |nth| At::Kind(Side::Client, b'd', nth);

#[test]
fn a_server_that_fails() {
    let (end, each) = (Settings::new(3, Commit::AtEnd), Settings::new(2, Commit::EachChunk));
    let mut trials = vec![
        Trial::stall(DATA(12), Then::KillServer, each),
        Trial::stall(At::Commit(2), Then::KillServer, each),
        Trial::stall(At::Commit(3), Then::KillServer, end),
        Trial::stall(At::Commit(5), Then::KillServer, Settings::mixed(2)),
        Trial::stall(At::Commit(3), Then::RestartServer, each),
        Trial::stall(DATA(20), Then::RestartServer, end),
        Trial::stall(DATA(20), Then::StopServer, each),
        Trial::stall(At::Commit(3), Then::StopServer, end),
        Trial::stall(DATA(5), Then::ReadOnly, end),
        Trial::stall(At::Commit(2), Then::ReadOnly, each),
    ];
    if let Some(count) = long_run() {
        let mut chance = Chance::of_run(4);
        for then in [Then::KillServer, Then::RestartServer, Then::StopServer, Then::ReadOnly] {
            trials.extend((0..count).map(|_| {
                let settings = chance.pick(&[end, each, Settings::mixed(2)]);
                Trial::stall(At::Message(chance.among(1..=MESSAGES)), then, settings)
            }));
        }
    }
    run_all(trials);
}

#[test]
fn sessions_that_are_terminated() {
    let (end, each) = (Settings::new(3, Commit::AtEnd), Settings::new(2, Commit::EachChunk));
    let mut trials = vec![
        Trial::stall(At::Kind(Side::Server, b'G', 2), Then::Terminate(0), end),
        Trial::stall(DATA(8), Then::Terminate(1), each),
        Trial::stall(At::Kind(Side::Client, b'c', 2), Then::Terminate(2), each),
        Trial::stall(At::Commit(3), Then::Terminate(3), end),
    ];
    let mut chance = Chance::of_run(7);
    trials.extend((0..long_run().unwrap_or(0)).map(|_| {
        let settings = chance.pick(&[end, each, Settings::mixed(2)]);
        let then = Then::Terminate(chance.among(0..=19) as u8);
        Trial::stall(At::Message(chance.among(1..=MESSAGES)), then, settings)
    }));
    run_all(trials);
}

#[test]
fn a_server_with_few_connections_left() {
    const CONNECTIONS: usize = 12;
    let conf = format!("max_connections = {CONNECTIONS}\nsuperuser_reserved_connections = 0\n");
    let scene = Scene::with_server(Rows::Good, &conf);
    let count = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    let mut tally = Tally::default();
    // The load's own connection comes before its lanes.
    for (left, lanes, commit) in
        [(3, Some(3), Commit::EachChunk), (3, None, Commit::EachChunk), (1, None, Commit::AtEnd)]
    {
        scene.reset();
        let settings = Settings { lanes, retry_for: Some(1), ..Settings::new(3, commit) };
        wait_until("no other session is there", || scene.ask(count) == "1");
        let holders: Vec<_> = (left..CONNECTIONS).map(|_| session(&scene.dsn)).collect();
        let run = finish(scene.load(&scene.dsn, &settings));
        drop(holders);
        wait_until("no other session is there", || scene.ask(count) == "1");
        let is_full = run.stderr.contains("SQLSTATE 53300");
        let end = match run.status {
            Some(0) => scene.difference().map_or(Ok(End::Done), Err),
            Some(2) if is_full && (lanes.is_some() || left == 1) => {
                run_again_until_done(&scene, &scene.dsn, &settings).map(End::Again)
            }
            status => Err(format!("{status:?}: {}", run.stderr)),
        };
        tally.add(&format!("{left} connections left, lanes {lanes:?}, commit {commit:?}"), end);
    }
    tally.close();
}

#[test]
fn a_disk_that_fills_up() {
    let scene = Scene::with_server(Rows::Good, "");
    let server = scene.server();
    let Some(disk) = Disk::mount(server.folder().join("small"), &server.data_folder()) else {
        println!("not tested: only root may mount a small disk");
        return;
    };
    scene.ask(&format!("create tablespace small location '{}'", disk.path().display()));
    let mut tally = Tally::default();
    for settings in [Settings::new(1, Commit::AtEnd), Settings::new(3, Commit::EachChunk)] {
        scene.reset();
        scene.ask("alter table t set tablespace small");
        let proxy = Proxy::start(&scene.dsn, None);
        let run = finish(scene.load(&proxy.dsn(), &settings));
        nothing_is_left_over(&scene).unwrap();
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("SQLSTATE 53100"), "{}", run.stderr);
        // With room, the same command does it.
        scene.ask("alter table t set tablespace pg_default");
        let again = run_again_until_done(&scene, &proxy.dsn(), &settings);
        tally.add("full disk, then room", again.map(End::Again));
    }
    tally.close();
}
