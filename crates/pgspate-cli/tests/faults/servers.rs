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

/// A load for each point, at which this happens; and in a long run as many of chance.
fn strike(seed: u64, points: &[(At, Commit)], then: impl Fn(&mut Chance) -> Then) {
    let mut chance = Chance::of_run(seed);
    let mut points = points.to_vec();
    points.extend((0..long_run().unwrap_or(0)).map(|_| {
        let commit = chance.pick(&[Commit::AtEnd, Commit::EachChunk]);
        (At::Message(chance.among(1..=MESSAGES)), commit)
    }));
    let trials: Vec<_> = points
        .into_iter()
        .map(|(at, commit)| {
            let settings = match (commit, chance.among(0..=2)) {
                (Commit::EachChunk, 0) if long_run().is_some() => Settings::mixed(3),
                (Commit::EachChunk, _) => Settings::new(2, commit),
                _ => Settings::new(3, commit),
            };
            Trial::stall(at, then(&mut chance), settings)
        })
        .collect();
    run_all(trials);
}

const DATA: fn(u64) -> At = |nth| At::Kind(Side::Client, b'd', nth);

#[test]
fn a_server_that_is_killed() {
    let points = [
        (DATA(12), Commit::EachChunk),
        (At::Commit(2), Commit::EachChunk),
        (At::Commit(3), Commit::AtEnd),
        (At::Commit(3), Commit::EachChunk),
    ];
    strike(4, &points, |_| Then::KillServer);
}

#[test]
fn a_server_that_is_restarted() {
    let points = [(DATA(20), Commit::AtEnd), (At::Commit(3), Commit::EachChunk)];
    strike(8, &points, |_| Then::RestartServer);
}

#[test]
fn a_server_that_stops_at_once() {
    let points = [(DATA(20), Commit::EachChunk), (At::Commit(3), Commit::AtEnd)];
    strike(5, &points, |_| Then::StopServer);
}

#[test]
fn a_server_that_begins_to_only_read() {
    let points = [(DATA(5), Commit::AtEnd), (At::Commit(2), Commit::EachChunk)];
    strike(6, &points, |_| Then::ReadOnly);
}

#[test]
fn sessions_that_are_terminated() {
    let points = [
        (At::Kind(Side::Server, b'G', 2), Commit::AtEnd),
        (DATA(8), Commit::EachChunk),
        (At::Kind(Side::Client, b'c', 2), Commit::EachChunk),
        (At::Commit(3), Commit::AtEnd),
    ];
    strike(7, &points, |chance| Then::Terminate(chance.among(0..=9) as u8));
}

#[test]
fn a_server_with_few_connections_left() {
    const CONNECTIONS: usize = 12;
    let conf = format!("max_connections = {CONNECTIONS}\nsuperuser_reserved_connections = 0\n");
    let scene = Scene::with_server(Rows::Good, &conf);
    let count = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    let mut tally = Tally::default();
    // The load's own connection comes before its lanes.
    for (left, lanes, commit) in [
        (3, Some(3), Commit::AtEnd),
        (3, Some(3), Commit::EachChunk),
        (3, None, Commit::EachChunk),
        (1, None, Commit::AtEnd),
    ] {
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
