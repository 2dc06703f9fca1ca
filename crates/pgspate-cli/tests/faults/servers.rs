//! The server is killed, runs out of something, or turns against the load.

use std::process::Command;
use std::time::Duration;

use pgspate_embedded::Throwaway;
use pgspate_embedded::testing;

use crate::chance::Chance;
use crate::disk::Disk;
use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::rule::{End, nothing_is_left_over, run_again_until_done};
use crate::run::{Run, ask, finish, session, wait_until};
use crate::scene::Scene;
use crate::trial::{Harm, Tally, Trial};
use crate::wire::Side;
use crate::wires::long_run;

/// What is done to a server, and how it is undone.
struct Blow {
    name: &'static str,
    act: fn(&Throwaway, &mut Chance),
    undo: fn(&Throwaway),
    crashes_server: bool,
}

/// A load for each point, at which the server gets the blow; and more of chance.
fn strike(blow: &Blow, seed: u64, points: &[At]) {
    let mut chance = long_run().map_or_else(|| Chance::fixed(seed), |_| Chance::new());
    println!("seed {}", chance.seed);
    let server = testing::server("");
    let scene = Scene::at(server.dsn());
    let mut tally = Tally::default();
    let mut points = points.to_vec();
    let more = long_run().unwrap_or(0);
    points.extend((0..more).map(|_| At::Message(chance.among(1..=460))));
    for point in points {
        let trial = Trial::new(Plan::new(Fault::Stall, point), chance.pick(&[2, 3]));
        let mut harm = Harm {
            name: blow.name,
            act: &mut |_| (blow.act)(&server, &mut chance),
            undo: &mut || (blow.undo)(&server),
            crashes_server: blow.crashes_server,
        };
        tally.add(blow.name, trial.run_with(&scene, &mut harm));
    }
    tally.close();
}

#[test]
fn a_server_that_is_killed() {
    let blow = Blow {
        name: "kill -9 of the server",
        act: |server, _| {
            server.kill().unwrap();
            server.restart().unwrap();
        },
        undo: |_| {},
        crashes_server: true,
    };
    let points = [At::Message(40), At::Kind(Side::Client, b'd', 12), At::Commit(1), At::Commit(2)];
    strike(&blow, 4, &points);
}

#[test]
fn a_server_that_stops_at_once() {
    let blow = Blow {
        name: "immediate stop of the server",
        act: |server, _| {
            let pid = server.pid().unwrap().to_string();
            assert!(Command::new("kill").args(["-QUIT", &pid]).status().unwrap().success());
            wait_until("the server has stopped", || server.pid().is_none());
        },
        // This one is not there again before the load has ended.
        undo: |server| server.restart().unwrap(),
        crashes_server: true,
    };
    let points = [At::Kind(Side::Server, b'G', 1), At::Kind(Side::Client, b'd', 20), At::Commit(2)];
    strike(&blow, 5, &points);
}

/// Switches it for all sessions that begin from now on.
fn set_read_only(server: &Throwaway, setting: &str, shown: &str) {
    let dsn = format!("{} options='-c default_transaction_read_only=off'", server.dsn());
    ask(&dsn, &format!("alter system {setting}"));
    ask(&dsn, "select pg_reload_conf()");
    let show = "show default_transaction_read_only";
    wait_until("the setting holds", || ask(&server.dsn(), show) == shown);
}

#[test]
fn a_server_that_begins_to_only_read() {
    let blow = Blow {
        name: "read-only from here",
        act: |server, _| set_read_only(server, "set default_transaction_read_only = on", "on"),
        undo: |server| set_read_only(server, "reset default_transaction_read_only", "off"),
        crashes_server: false,
    };
    let points =
        [At::Message(30), At::Message(195), At::Kind(Side::Client, b'd', 5), At::Commit(1)];
    strike(&blow, 6, &points);
}

#[test]
fn sessions_that_are_terminated() {
    let blow = Blow {
        name: "pg_terminate_backend",
        act: |server, chance| {
            let sql = "select string_agg(pid::text, ' ' order by pid) from pg_stat_activity \
                       where application_name like 'pgspate load%'";
            let pids = ask(&server.dsn(), sql);
            let pids: Vec<&str> = pids.split_whitespace().collect();
            if !pids.is_empty() {
                let pid = chance.pick(&pids);
                ask(&server.dsn(), &format!("select pg_terminate_backend({pid})"));
            }
            // Sometimes the farewell is on its way before the message is.
            std::thread::sleep(Duration::from_millis(chance.among(0..=30)));
        },
        undo: |_| {},
        crashes_server: false,
    };
    let points = [
        At::Message(60),
        At::Kind(Side::Server, b'G', 2),
        At::Kind(Side::Client, b'd', 8),
        At::Kind(Side::Client, b'c', 2),
        At::Commit(1),
        At::Commit(3),
    ];
    strike(&blow, 7, &points);
}

/// A load by no fault of the network's.
fn plain(scene: &Scene, lanes: &str) -> (Proxy, Run) {
    scene.reset();
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), lanes));
    nothing_is_left_over(scene).unwrap();
    (proxy, run)
}

#[test]
fn a_server_with_few_connections_left() {
    const CONNECTIONS: usize = 12;
    let conf = format!("max_connections = {CONNECTIONS}\nsuperuser_reserved_connections = 0\n");
    let server = testing::server(&conf);
    let scene = Scene::at(server.dsn());
    let count = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    let mut tally = Tally::default();
    // The load's own connection comes before its lanes.
    for left in [5, 4, 3, 2, 1] {
        for lanes in ["3", "auto"] {
            wait_until("no other session is there", || scene.ask(count) == "1");
            let holders: Vec<_> = (left..CONNECTIONS).map(|_| session(&server.dsn())).collect();
            let proxy = Proxy::start(&scene.dsn, None);
            let run = finish(scene.load(&proxy.dsn(), lanes));
            drop(holders);
            wait_until("no other session is there", || scene.ask(count) == "1");
            let is_full = run.stderr.contains("SQLSTATE 53300");
            let end = match run.status {
                Some(0) if scene.difference().is_none() => Ok(End::Done),
                Some(2) if is_full && (lanes == "3" || left == 1) => {
                    let rows = scene.rows();
                    assert!(rows == 0 || crate::rule::RESUMABLE, "{rows} rows are there");
                    run_again_until_done(&scene, &proxy, lanes).map(|()| End::Resumed)
                }
                status => Err(format!("{status:?}: {}", run.stderr)),
            };
            tally.add(&format!("{left} connections left, {lanes} lanes"), end);
            scene.reset();
        }
    }
    tally.close();
}

#[test]
fn a_disk_that_fills_up() {
    let server = testing::server("");
    let Some(disk) = Disk::mount(server.folder().join("small"), &server.data_folder()) else {
        println!("not tested: only root may mount a small disk");
        return;
    };
    let scene = Scene::at(server.dsn());
    scene.ask(&format!("create tablespace small location '{}'", disk.path().display()));
    let mut tally = Tally::default();
    for lanes in ["1", "2", "3"] {
        scene.reset();
        scene.ask("alter table t set tablespace small");
        let (proxy, run) = plain(&scene, lanes);
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("SQLSTATE 53100"), "{}", run.stderr);
        // With room, the same command does it.
        scene.ask("alter table t set tablespace pg_default");
        let again = run_again_until_done(&scene, &proxy, lanes);
        tally.add("full disk, then room", again.map(|()| End::Resumed));
    }
    tally.close();
}
