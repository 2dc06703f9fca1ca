//! Sessions that outlive their client. The server still writes the data of a killed load when the
//! same load is run again at once.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use pgspate::target::connect::{Connection, Dsn, Environment};
use pgspate_embedded::testing;
use tokio::runtime::Runtime;

use crate::run::{finish, session, spawn, wait_until};
use crate::support::LoadCase;
use crate::test_random::{TestRandom, from_environment};

const ROWS: u64 = 200_000;

/// The arguments of a load that commits each chunk and keeps the primary key.
const LOAD_ARGS: &str = "t.csv --commit chunk --rebuild-indexes never --quiet";

/// Returns a case with a file of about 20 MB, which is five chunks.
fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint primary key, note text)");
    let mut text = "id,note\n".to_owned();
    (0..ROWS).for_each(|id| writeln!(text, "{id},{:>90}", id * 7).unwrap());
    case.put("t.csv", text);
    case
}

/// Asserts that the table has every row once.
#[track_caller]
fn assert_complete(case: &LoadCase, what: &str) {
    let sql = "select concat_ws(' ', count(*), min(id), max(id)) from t";
    assert_eq!(case.value(sql), format!("{ROWS} 0 {}", ROWS - 1), "{what}");
}

#[test]
fn a_repeated_load_waits_for_lanes_of_the_killed_load() {
    let case = case();
    let (runtime, holder) = session(&case.db.dsn());
    let sql = format!("begin; insert into t values ({}, 'of another session')", ROWS - 1);
    runtime.block_on(holder.batch_execute(&sql)).unwrap();
    let mut child = spawn(&mut case.load_command(&format!("{LOAD_ARGS} --lanes 1")));
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and application_name like 'pgspate%'";
    wait_until("the last chunk waits for the key", || case.value(waits) == "1");
    child.kill().unwrap();
    child.wait().unwrap();
    let again = spawn(&mut case.load_command(LOAD_ARGS));
    let theirs = "select count(*) from pg_stat_activity where datname = current_database() \
                  and application_name like 'pgspate%' \
                  and backend_start > (select max(query_start) from pg_stat_activity \
                                       where wait_event_type = 'Lock' \
                                         and datname = current_database())";
    wait_until("the load is run again", || case.value(theirs) != "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(again).success();
    assert_complete(&case, "run again");
}

#[test]
fn a_repeated_load_terminates_blocked_lanes_of_the_killed_load() {
    let case = case();
    let (runtime, holder) = session(&case.db.dsn());
    let sql = "begin; insert into t values (100000, 'of another session')";
    runtime.block_on(holder.batch_execute(sql)).unwrap();
    let mut child = spawn(&mut case.load_command(&format!("{LOAD_ARGS} --lanes 2")));
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and application_name like 'pgspate%'";
    wait_until("a chunk waits for the key", || case.value(waits) != "0");
    child.kill().unwrap();
    child.wait().unwrap();
    let stuck = "select string_agg(pid::text, ',') from pg_stat_activity \
                 where wait_event_type = 'Lock' and datname = current_database()";
    let stuck = case.value(stuck);
    let again = spawn(&mut case.load_command(LOAD_ARGS));
    let gone = format!("select count(*) from pg_stat_activity where pid in ({stuck})");
    wait_until("they are gone", || case.value(&gone) == "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(again).success();
    assert_complete(&case, "run again");
}

/// `PGSPATE_TEST_KILLS` is the number of loads to kill (default 6).
#[test]
fn a_killed_load_can_be_run_again_at_once() {
    for seed in 1..=from_environment("PGSPATE_TEST_KILLS").unwrap_or(6) {
        let (case, mut random) = (case(), TestRandom::new(seed));
        for _ in 0..random.among(1..=2) {
            let lanes = format!("{LOAD_ARGS} --lanes {}", random.among(1..=3));
            let mut child = spawn(&mut case.load_command(&lanes));
            thread::sleep(Duration::from_millis(random.among(50..=1200)));
            let _ = child.kill();
            child.wait().unwrap();
        }
        finish(spawn(&mut case.load_command(LOAD_ARGS))).success();
        assert_complete(&case, &format!("seed {seed}"));
    }
}

fn connect(runtime: &Runtime, dsn: &str) -> Connection {
    let dsn = Dsn::resolve(Some(dsn), &Environment::default()).unwrap().unwrap();
    runtime.block_on(dsn.connect("pgspate test")).unwrap()
}

/// The lost session belongs to the role that logged in, whichever role the user has set.
#[test]
fn a_lost_session_is_terminated_although_a_role_is_set() {
    let case = LoadCase::new("");
    let (login, set) = (format!("{}_login", case.db.name()), format!("{}_set", case.db.name()));
    case.db.run(&format!(
        "create role \"{login}\" login; create role \"{set}\"; grant \"{set}\" to \"{login}\""
    ));
    let dsn = format!("{} user='{login}' options='-c role={set}'", case.db.dsn());
    let runtime = Runtime::new().unwrap();
    let (lost, next) = (connect(&runtime, &dsn), connect(&runtime, &dsn));
    let pid = lost.backend_pid();
    runtime.block_on(next.terminate_lost_backend(pid));
    let left = format!("select count(*) from pg_stat_activity where pid = {pid}");
    wait_until("the session has ended", || case.value(&left) == "0");
    let role = runtime.block_on(next.client.query_one("select current_user::text", &[])).unwrap();
    assert_eq!(role.get::<_, String>(0), set);
    drop((lost, next));
    case.db.run(&format!("drop role \"{login}\", \"{set}\""));
}

/// Without keepalives, the locks of a client whose host is lost stay for hours.
#[test]
fn the_server_looks_for_lost_clients_every_minute() {
    let server = testing::server("");
    let runtime = Runtime::new().unwrap();
    let tcp = server.tcp_dsn_for("postgres");
    for (dsn, expected) in [
        (tcp.clone(), "30 10 3"),
        (format!("{tcp}?options=-c%20tcp_keepalives_idle%3D45"), "45 75 9"),
        (server.dsn(), "0 0 0"),
    ] {
        let connection = connect(&runtime, &dsn);
        let sql = "select concat_ws(' ', current_setting('tcp_keepalives_idle'), \
                                    current_setting('tcp_keepalives_interval'), \
                                    current_setting('tcp_keepalives_count'))";
        let row = runtime.block_on(connection.client.query_one(sql, &[])).unwrap();
        assert_eq!(row.get::<_, String>(0), expected, "{dsn}");
    }
}
