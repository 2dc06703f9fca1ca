//! The server is killed, runs out of something, or turns against the load.

use std::process::{Child, Command};
use std::time::Duration;

use pgspate_embedded::Throwaway;
use pgspate_embedded::testing;

use crate::chance::Chance;
use crate::disk::Disk;
use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::rule::{self, End};
use crate::run::{ask, finish_within, session, wait_until};
use crate::scene::{LIMIT, Scene};
use crate::trial::{Tally, Trial};
use crate::wire::Side;
use crate::wires::long_run;

/// What is done to the server at a message.
type Harm = fn(&Throwaway, &Child, &mut Chance);

fn chance(seed: u64) -> Chance {
    let chance = long_run().map_or_else(|| Chance::fixed(seed), |_| Chance::new());
    println!("seed {}", chance.seed);
    chance
}

/// A load for each point, with `harm` done to the server there.
fn interfere(name: &str, seed: u64, points: &[At], harm: Harm) -> Tally {
    let mut chance = chance(seed);
    let server = testing::server("");
    let scene = Scene::at(server.dsn());
    let mut tally = Tally::default();
    let more = (0..long_run().unwrap_or(0)).map(|_| At::Message(chance.among(1..=460)));
    let points: Vec<At> = points.iter().copied().chain(more.collect::<Vec<_>>()).collect();
    for point in points {
        let trial = Trial::new(Plan::new(Fault::Stall, point), chance.pick(&[2, 3]));
        let end = trial.run_with(&scene, name, |child| harm(&server, child, &mut chance));
        if server.pid().is_none() {
            server.restart().unwrap();
        }
        tally.add(name, end);
    }
    tally
}

#[test]
fn a_server_that_is_killed() {
    let points = [At::Message(40), At::Kind(Side::Client, b'd', 12), At::Commit(1), At::Commit(2)];
    let kill: Harm = |server, _, _| {
        server.kill().unwrap();
        server.restart().unwrap();
    };
    interfere("kill -9 of the server", 4, &points, kill).close();
}

#[test]
fn a_server_that_stops_at_once() {
    let points = [At::Kind(Side::Server, b'G', 1), At::Kind(Side::Client, b'd', 20), At::Commit(2)];
    let quit: Harm = |server, _, _| {
        let pid = server.pid().unwrap().to_string();
        assert!(Command::new("kill").args(["-QUIT", &pid]).status().unwrap().success());
        wait_until("the server has stopped", || server.pid().is_none());
        server.restart().unwrap();
    };
    interfere("immediate stop of the server", 5, &points, quit).close();
}

#[test]
fn a_server_that_begins_to_only_read() {
    let points =
        [At::Message(30), At::Message(195), At::Kind(Side::Client, b'd', 5), At::Commit(1)];
    let turn: Harm = |server, _, _| {
        let set = |sql: &str| drop(ask(&server.dsn(), sql));
        set("alter system set default_transaction_read_only = on");
        set("select pg_reload_conf()");
        let shown = || ask(&server.dsn(), "show default_transaction_read_only");
        wait_until("it only reads", || shown() == "on");
    };
    // What comes after must write again.
    let mut tally = Tally::default();
    let server = testing::server("");
    let scene = Scene::at(server.dsn());
    let mut chance = chance(6);
    let read_write = format!("{} options='-c default_transaction_read_only=off'", server.dsn());
    for point in points {
        let trial = Trial::new(Plan::new(Fault::Stall, point), 3);
        let what = "read-only from here";
        let end = trial.run_with(&scene, what, |child| turn(&server, child, &mut chance));
        ask(&read_write, "alter system reset default_transaction_read_only");
        ask(&read_write, "select pg_reload_conf()");
        let shown = || ask(&server.dsn(), "show default_transaction_read_only");
        wait_until("it writes again", || shown() == "off");
        tally.add(what, end);
    }
    tally.close();
}

#[test]
fn sessions_that_are_terminated() {
    let points = [
        At::Message(60),
        At::Kind(Side::Server, b'G', 2),
        At::Kind(Side::Client, b'd', 8),
        At::Kind(Side::Client, b'c', 2),
        At::Commit(1),
        At::Commit(3),
    ];
    let terminate: Harm = |server, _, chance| {
        let sql = "select string_agg(pid::text, ' ' order by pid) from pg_stat_activity \
                   where application_name like 'pgspate load%'";
        let pids = ask(&server.dsn(), sql);
        let pids: Vec<&str> = pids.split_whitespace().collect();
        if !pids.is_empty() {
            let pid = chance.pick(&pids);
            ask(&server.dsn(), &format!("select pg_terminate_backend({pid})"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    interfere("pg_terminate_backend", 7, &points, terminate).close();
}

/// A load by no fault of the network's.
fn plain(scene: &Scene, lanes: &str) -> (String, Result<End, String>) {
    scene.reset();
    let proxy = Proxy::start(&scene.dsn, None);
    match finish_within(scene.load(&proxy.dsn(), lanes), LIMIT) {
        Ok(run) => {
            let end = rule::check(scene, &proxy, lanes, &run);
            (run.stderr, end)
        }
        Err(run) => (run.stderr, Err("it hangs".to_owned())),
    }
}

#[test]
fn a_server_with_few_connections_left() {
    const CONNECTIONS: usize = 12;
    let conf = format!("max_connections = {CONNECTIONS}\nsuperuser_reserved_connections = 0\n");
    let server = testing::server(&conf);
    let scene = Scene::at(server.dsn());
    let count = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    let mut tally = Tally::default();
    let mut holders = Vec::new();
    // One connection is for this test to ask with; the load's own comes before its lanes.
    for left in [5, 4, 3, 2] {
        wait_until("no other session is there", || {
            scene.ask(count) == (holders.len() + 1).to_string()
        });
        while CONNECTIONS - holders.len() > left {
            holders.push(session(&server.dsn()));
        }
        for lanes in ["3", "auto"] {
            let (said, end) = plain(&scene, lanes);
            let is_full = said.contains("53300") || said.contains("too many clients");
            let end = match end {
                Ok(End::Nothing) if !is_full => Err(format!("another reason: {said}")),
                Ok(End::Nothing) if lanes == "auto" && left > 2 => Err(format!("auto: {said}")),
                end => end,
            };
            tally.add(&format!("{left} connections left, {lanes} lanes"), end);
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
        scene.ask("alter table t set tablespace small");
        let (said, end) = plain(&scene, lanes);
        let end = match end {
            Ok(End::Nothing) if said.contains("SQLSTATE 53100") => {
                // With room, all is well again.
                scene.ask("alter table t set tablespace pg_default");
                plain(&scene, lanes).1
            }
            end => Err(format!("{end:?} on a disk of 8 MB: {said}")),
        };
        tally.add("full disk, then room", end);
    }
    tally.close();
}
