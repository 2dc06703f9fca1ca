//! Settings of the target that change while a stream runs.

use std::io::Write as _;

use pgspate_embedded::testing;
use tempfile::TempDir;

use crate::altered_tables::{COUNT, PipedStream};
use crate::run::{ask, command, finish, spawn, wait_until};
use crate::support::LoadCase;

const NOTE_LEVELS: &str = "\
create table t (id int primary key, level text);
create function note() returns trigger language plpgsql as
$$ begin new.level = current_setting('synchronous_commit'); return new; end $$;
create trigger note before insert on t for each row execute function note()";

/// A trigger notes the setting of the session that writes.
#[test]
fn commits_wait_for_the_disk_whatever_the_server_is_reloaded_with() {
    let server = testing::server("");
    let value = |sql: &str| ask(&server.dsn(), sql);
    value(NOTE_LEVELS);
    let folder = TempDir::with_prefix("pgspate-settings-").unwrap();
    let mut apply = command(folder.path(), &["apply", "-", "--quiet", "--to", &server.dsn()]);
    let mut child = spawn(&mut apply);
    let mut pipe = child.stdin.take().unwrap();
    for id in 1..=2 {
        writeln!(pipe, "{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id}}}}}").unwrap();
        wait_until("the row is there", || value(COUNT) == id.to_string());
        value("alter system set synchronous_commit = off");
        value("select pg_reload_conf()");
        wait_until("the setting is read", || value("show synchronous_commit") == "off");
    }
    drop(pipe);
    assert_eq!(finish(child).status, Some(0));
    assert_eq!(value("select string_agg(level, ' ') from t"), "on on");
}

/// A session that is opened again reads times as the first session did.
#[test]
fn times_without_a_zone_keep_their_meaning() {
    let case = LoadCase::new("create table t (id int primary key, at timestamptz)");
    let mut stream = PipedStream::new(&case, "");
    let event = |id: u8| {
        format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id},\"at\":\"Jan 5 2024 10:00\"}}}}")
    };
    stream.send(&event(1), COUNT, "1");
    let database = case.value("select current_database()");
    case.db.run(&format!("alter database {database} set timezone = 'Asia/Tokyo'"));
    case.db.run(
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where application_name = 'pgspate apply' and datname = current_database()",
    );
    stream.send(&event(2), COUNT, "2");
    stream.end().success();
    assert_eq!(case.value("select count(distinct at) from t"), "1");
}
