//! The target's password, given to every command in every place that accepts a password.

use std::process::Command;

use crate::run::{Run, ask, finish, session, spawn, wait_until};
use crate::scene::{MARK, PASSWORD, SecretScene, assert_clean};

/// A place of the password, with the `--to` and the environment that lead to the place.
struct PasswordPlace {
    place: &'static str,
    to: String,
    variables: Vec<(&'static str, String)>,
}

impl PasswordPlace {
    /// Adds `--to` and the environment to the command.
    fn apply(&self, command: &mut Command) {
        command.args(["--to", &self.to]).envs(self.variables.iter().map(|(k, v)| (k, v)));
    }
}

/// Returns every place that accepts a password, each with this password.
fn password_places(scene: &mut SecretScene, password: &str) -> Vec<PasswordPlace> {
    let port = scene.server.port();
    let encoded = password.replace('@', "%40").replace('\'', "%27");
    let quoted = password.replace('\'', "\\'");
    let plain = format!("host=127.0.0.1 port={port} user=app dbname=postgres");
    let passfile = scene.put_secret("passfile", &format!("*:*:*:app:{password}\n"));
    let lines = plain.replace(' ', "\n");
    let service =
        scene.put_secret("service.conf", &format!("[here]\n{lines}\npassword={password}\n"));
    let given = |place, to: String, variables| PasswordPlace { place, to, variables };
    vec![
        given("url", format!("postgres://app:{encoded}@127.0.0.1:{port}/postgres"), vec![]),
        given(
            "query",
            format!("postgres://127.0.0.1:{port}/postgres?user=app&password={encoded}"),
            vec![],
        ),
        given("conninfo", format!("{plain} password='{quoted}'"), vec![]),
        given("PGPASSWORD", plain.clone(), vec![("PGPASSWORD", password.to_owned())]),
        given("passfile", format!("{plain} passfile='{passfile}'"), vec![]),
        given("service", "service=here".to_owned(), vec![("PGSERVICEFILE", service)]),
    ]
}

/// Every command with its possible exit statuses.
const COMMANDS: &[(&str, &[i32])] = &[
    ("load good.csv --table t --plan", &[0]),
    ("load good.csv --table t --plan --json", &[0]),
    ("load good.csv --table t --json", &[0]),
    ("load good.csv --table t", &[0]),
    ("load good.csv --table t --replace", &[0]),
    ("load bad.csv --table t", &[2]),
    ("load bad.csv --table t --rejects rejects.csv --json", &[1]),
    ("load good.csv --table no_such", &[2]),
    ("sync good.csv --table t --key id --scope all", &[0]),
    ("sync good.csv --table t --key id --scope all --check --json", &[0]),
    ("sync bad.csv --table t --key id --scope all", &[2]),
    ("apply good.json --stream PLACE --json", &[0]),
    ("apply good.json --stream PLACE --plan", &[0]),
    ("apply bad.json --stream bad", &[2]),
    ("apply bad.json --stream PLACE-dead --max-dead-letters 9", &[1]),
    ("doctor --watch 100ms", &[0, 1]),
    ("doctor --watch 100ms --json", &[0, 1]),
    ("tune", &[0, 1]),
    ("tune --json", &[0, 1]),
    ("tune --emit sql", &[0, 1]),
    ("status", &[0]),
    ("status --json", &[0]),
    ("status 999", &[2]),
];

#[test]
fn no_command_shows_a_password() {
    let mut scene = SecretScene::new();
    for given in password_places(&mut scene, PASSWORD) {
        ask(&scene.server.dsn(), "truncate public.t; drop schema if exists pgspate cascade");
        for (args, expected) in COMMANDS {
            let args = args.replace("PLACE", given.place);
            let words: Vec<&str> = args.split_whitespace().collect();
            let mut command = scene.command(&words);
            given.apply(&mut command);
            let run = scene.run(&mut command);
            let status = run.status.unwrap();
            assert!(expected.contains(&status), "{} {args}: {status} {}", given.place, run.stderr);
        }
        assert_eq!(scene.value("select count(*) > 1 from pgspate.job"), "t");
        assert_eq!(scene.value("select count(*) > 0 from pgspate.dead_letter"), "t");
        scene.assert_no_secret_left();
    }
}

#[test]
fn the_lab_shows_no_password() {
    let mut scene = SecretScene::new();
    let given = password_places(&mut scene, PASSWORD).swap_remove(0);
    let args = "lab run storage --scale 0.00002 --repeats 1 --only strategy=pgspate --json";
    let words: Vec<&str> = args.split_whitespace().collect();
    let mut command = scene.command(&words);
    given.apply(&mut command);
    let run = scene.run(&mut command);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let run = scene.run(&mut scene.command(&["lab", "report"]));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    scene.assert_no_secret_left();
}

#[test]
fn no_refusal_shows_a_password() {
    let mut scene = SecretScene::new();
    for given in password_places(&mut scene, "m4rk-wr@ng") {
        for args in [&["load", "good.csv", "--table", "t"][..], &["doctor"], &["status"], &["tune"]]
        {
            let mut command = scene.command(args);
            given.apply(&mut command);
            let run = scene.run(&mut command);
            assert_eq!(run.status, Some(2), "{}: {}", given.place, run.stderr);
            assert!(run.stderr.contains("password authentication failed"), "{}", run.stderr);
        }
    }
    let port = scene.server.port();
    for to in [
        format!("postgres://app:m4rk@x@127.0.0.1:{port}/postgres"),
        format!("postgres://app:m4rk/x@127.0.0.1:{port}/postgres"),
        format!("postgres://app:m4rk#x@127.0.0.1:{port}/postgres"),
        format!("postgres://app:m4rk%zz@127.0.0.1:{port}/postgres"),
        format!("postgres://127.0.0.1:{port}/postgres?user=app&password=a&m4rk=b"),
        format!("postgres://127.0.0.1:{port}/postgres?password=a=m4rk"),
        format!("app:m4rk@127.0.0.1:{port}/postgres"),
        format!("postgre://app:m4rk@127.0.0.1:{port}/postgres"),
        format!("host=127.0.0.1 port={port} password=a m4rk user=app"),
        format!("host=127.0.0.1 port={port} password='a m4rk"),
        format!("host=127.0.0.1 port={port} password=a m4rk=b"),
        format!("host=a:m4rk@127.0.0.1 port={port}"),
    ] {
        let run = scene.run(&mut scene.command(&["status", "--to", &to]));
        assert_eq!(run.status, Some(2), "{to}: {}", run.stderr);
    }
    scene.assert_no_secret_left();
}

#[test]
fn no_slot_shows_the_password_of_its_source() {
    let mut scene = SecretScene::new();
    ask(
        &scene.server.dsn(),
        "create table public.s (id int primary key); create table public.d (id int primary key); \
         create publication p for table public.s; select 1",
    );
    let url = password_places(&mut scene, PASSWORD).swap_remove(0).to;
    let source = format!("{url}?slot=s&publication=p");
    let apply = |more: &[&str]| {
        let mut command = scene.command(&["apply", &source, "--map", "public.s=public.d"]);
        scene.run(command.args(["--to", &url]).args(more))
    };
    let refused: Run = apply(&[]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert_eq!(apply(&["--create-slot", "--plan"]).status, Some(0));
    let made = apply(&["--create-slot"]);
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    ask(&scene.server.dsn(), "insert into public.s values (1), (2); select 1");
    let done = apply(&["--json"]);
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert_eq!(scene.value("select count(*) from public.d"), "2");
    let status = scene.command(&["status", "--to", &url]).output().unwrap();
    assert_clean("status", &String::from_utf8_lossy(&status.stderr));
    // A slot without a publication is refused.
    let half = format!("{url}?slot=s");
    let refused = scene.run(&mut scene.command(&["apply", &half, "--to", &url]));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    scene.assert_no_secret_left();
    ask(&scene.server.dsn(), "select pg_drop_replication_slot('s')");
}

#[test]
fn other_sessions_see_no_password() {
    let mut scene = SecretScene::new();
    let (runtime, holder) = session(&scene.server.dsn());
    let locked = "begin; lock table public.t in share mode";
    runtime.block_on(holder.batch_execute(locked)).unwrap();
    for given in password_places(&mut scene, PASSWORD) {
        let mut command = scene.command(&["load", "good.csv", "--table", "t", "--quiet"]);
        given.apply(&mut command);
        let mut child = spawn(&mut command);
        let waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'";
        wait_until("the load waits", || scene.value(waits) == "t");
        let seen = scene.value("select string_agg(a::text, ' ') from pg_stat_activity a");
        assert!(seen.contains("pgspate"), "{seen}");
        assert_clean("pg_stat_activity", &seen);
        child.kill().unwrap();
        finish(child);
        let gone = "select count(*) = 0 from pg_stat_activity where usename = 'app'";
        wait_until("its sessions are gone", || scene.value(gone) == "t");
    }
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    scene.assert_no_secret_left();
    assert!(PASSWORD.contains(MARK));
}
