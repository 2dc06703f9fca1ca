//! All members together hold no more connections than `--connections` allows.

use std::io::Write;
use std::process::Child;
use std::thread;
use std::time::Duration;

use pgspate::ErrorKind;
use pgspate::fleet::MemberOptions;
use pgspate::load::{self, LoadOptions};
use pgspate::reading::{InputOrigin, ReadingOptions};
use pgspate::session::StopFlag;
use pgspate::target::connect::{Dsn, Environment};
use tokio::runtime::Handle;

use crate::run::{finish, session, spawn, wait_until};
use crate::scene::{FleetScene, counts, parse};

/// Counts sessions of members: those that write, and those that hold a slot. A session that looks
/// for a slot holds no lock, and is closed at once if it finds none.
const WORKING: &str = "\
select count(*) from pg_stat_activity a
where datname = current_database() and application_name like 'pgspate%'
  and (application_name <> 'pgspate fleet'
       or exists (select from pg_locks l where l.pid = a.pid and locktype = 'advisory'))";

#[test]
fn members_share_the_connections() {
    let scene = FleetScene::new(10, 30);
    let expected = scene.counts_of_one_sync("a");
    let dsn = scene.case.db.dsn();
    let start = |member| spawn(&mut scene.command(&dsn, "a", "1", member, "--connections 5"));
    let mut members: Vec<Child> = (0..10).map(start).collect();
    let (runtime, client) = session(&dsn);
    let mut most = 0;
    while members.iter_mut().any(|it| it.try_wait().unwrap().is_none()) {
        let row = runtime.block_on(client.query_one(WORKING, &[])).unwrap();
        most = most.max(row.get::<_, i64>(0));
        thread::sleep(Duration::from_millis(5));
    }
    // A member needs its second connection only for a large source or after a failure.
    assert!((1..=2).contains(&most), "{most} connections");
    members.into_iter().for_each(|child| drop(parse(&finish(child))));
    scene.assert_complete(expected);
}

/// The program that writes a member's rows may take long. Until then, others use the connections.
#[test]
fn a_member_reads_its_standard_input_before_it_takes_a_connection() {
    let scene = FleetScene::new(2, 2);
    let expected = scene.counts_of_one_sync("a");
    let dsn = scene.case.db.dsn();
    let args = ["sync", "--to", &dsn, "-", "--table", "reading", "--scope-by", "meter", "--json"];
    let mut command = scene.case.command(&args);
    command.args(["--fleet", "nights", "--generation", "1", "--members", "2", "--member", "0"]);
    command.args(["--connections", "2", "--max-delete", "100%", "--quiet"]);
    let mut slow = spawn(&mut command);
    let rows = std::fs::read(scene.case.path("a/0.csv")).unwrap();
    let mut source = slow.stdin.take().unwrap();
    source.write_all(&rows[..30]).unwrap();
    parse(&finish(spawn(&mut scene.command(&dsn, "a", "1", 1, "--connections 2"))));
    source.write_all(&rows[30..]).unwrap();
    drop(source);
    parse(&finish(slow));
    scene.assert_complete(expected);
}

#[test]
fn members_wait_while_the_server_has_too_many_connections() {
    let scene = FleetScene::new(6, 12);
    let expected = scene.counts_of_one_sync("a");
    let role = format!("fleet_{}", scene.case.value("select current_database()"));
    scene.case.db.run(&format!(
        "create role \"{role}\" login connection limit 4; \
         grant select, insert, update, delete on reading to \"{role}\"; \
         create schema pgspate authorization \"{role}\""
    ));
    let dsn = format!("{} user='{role}'", scene.case.db.dsn());
    let start = |member| {
        spawn(&mut scene.command(&dsn, "a", "1", member, "--connections 4 --retry-for 100"))
    };
    let members: Vec<Child> = (0..6).map(start).collect();
    let reports: Vec<_> = members.into_iter().map(|child| parse(&finish(child))).collect();
    let sums = [0, 1, 2, 3].map(|nth| reports.iter().map(|it| counts(it)[nth]).sum::<u64>());
    assert_eq!(sums, expected);
    assert_eq!(scene.differences(), "0");
    scene.case.db.run(&format!("drop owned by \"{role}\" cascade; drop role \"{role}\""));
}

#[test]
fn a_member_stops_while_it_waits_for_a_connection() {
    let scene = FleetScene::new(2, 2);
    let dsn = Dsn::resolve(Some(&scene.case.db.dsn()), &Environment::default()).unwrap().unwrap();
    let path = scene.case.path("a/0.csv").to_str().unwrap().to_owned();
    let stop = StopFlag::default();
    let prepare = |member, stop: &StopFlag| {
        let origin = InputOrigin::Sources(vec![path.clone()]);
        let fleet = MemberOptions {
            fleet: Some("f".to_owned()),
            generation: Some("1".to_owned()),
            members: Some(2),
            member: Some(member),
            connections: Some(2),
            stop: stop.clone(),
        };
        let options = LoadOptions {
            reading: ReadingOptions { origin, ..ReadingOptions::default() },
            table: Some("reading".to_owned()),
            fleet,
            ..LoadOptions::default()
        };
        let dsn = dsn.clone();
        move |runtime: &Handle| load::prepare(options, dsn, runtime)
    };
    let runtime = pgspate_cli::runtime().unwrap();
    let has_connection = prepare(0, &StopFlag::default())(runtime.handle()).unwrap();
    let (handle, waiting) = (runtime.handle().clone(), prepare(1, &stop));
    let waiting = thread::spawn(move || waiting(&handle).map(drop));
    stop.request();
    wait_until("the member has stopped", || waiting.is_finished());
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    drop(has_connection);
}
