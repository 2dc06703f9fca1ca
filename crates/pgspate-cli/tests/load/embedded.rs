//! Tests of commands without `--to`: they start the embedded server once and share it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use insta::assert_snapshot;
use regex_lite::Regex;

use crate::support::{self, Run};

/// A folder for files and for the data of an embedded server. Dropping the value stops the server.
struct TestHome(PathBuf);

impl TestHome {
    fn new() -> TestHome {
        let folder = tempfile::Builder::new().prefix("pgspate-").tempdir_in("/tmp").unwrap().keep();
        // If the test runs as root, the server runs as another user, who must reach the folder.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        TestHome(folder)
    }

    fn command(&self, args: &str) -> Command {
        let args: Vec<&str> = args.split_whitespace().collect();
        let mut command = support::command(&self.0, &args);
        command.env("PGSPATE_DATA_DIR", self.0.join("home"));
        command
    }

    fn run(&self, args: &str) -> Run {
        Run::of(self.command(args).output().unwrap())
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        let _ = self.command("server stop").output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn redact_server(text: &str) -> String {
    let text = support::redact(text);
    let rules = [
        (r"PostgreSQL \d+(\.\d+)*[a-z0-9]*", "PostgreSQL [VERSION]"),
        (r"(process|port)( +)\d+", "$1$2[N]"),
        (r"(data|run)-\d+", "$1-[N]"),
    ];
    rules.iter().fold(text, |text, (pattern, with)| {
        Regex::new(pattern).unwrap().replace_all(&text, *with).into_owned()
    })
}

#[test]
fn loads_start_and_share_the_embedded_server() {
    let home = TestHome::new();
    assert_snapshot!(redact_server(&home.run("server status").stdout), @"not created");
    assert_snapshot!(redact_server(&home.run("server dsn").refusal()), @"
    error: the embedded PostgreSQL is not running

    hint: Start it with `pgspate server start`.
    ");
    fs::write(home.0.join("x.csv"), "id,name\n1,a\n2,b\n").unwrap();
    assert_snapshot!(redact_server(&home.run("load x.csv --create").success()), @r#"
    creating "[DIR]/home/data-[N]" …
    starting PostgreSQL [VERSION] …
    using the embedded PostgreSQL [VERSION] (data in [DIR]/home/data-[N])
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line has names, the other lines have values
    create table x (
        id bigint,
        name text
    )
    public.x (created): 2 rows, 8 B in [TIME], [RATE]
      stage         busy  per lane
      source [TIME] [TIME]
      encode [TIME] [TIME]
      server [TIME] [TIME]
      commit [TIME]
      1 lane, 1 chunk, 38 B of binary COPY, [SIZE] of WAL
    open it with [PSQL] -c 'table public.x limit 10'
    "#);
    let status = home.run("server status").stdout;
    assert_snapshot!(redact_server(&status), @"
    PostgreSQL [VERSION], running
    process  [N]
    port     [N]
    data     [DIR]/home/data-[N]
    log      [DIR]/home/run-[N]/log
    ");
    assert_snapshot!(redact_server(&home.run("load x.csv --restart").success()), @r#"
    using the embedded PostgreSQL [VERSION] (data in [DIR]/home/data-[N])
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    public.x: 2 rows, 8 B in [TIME], [RATE]
      stage         busy  per lane
      source [TIME] [TIME]
      encode [TIME] [TIME]
      server [TIME] [TIME]
      commit [TIME]
      1 lane, 1 chunk, 38 B of binary COPY, [SIZE] of WAL
    open it with [PSQL] -c 'table public.x limit 10'
    "#);
    assert_eq!(home.run("server status").stdout, status, "both loads must use the same server");
    // `--to` accepts the printed address.
    let dsn = home.run("server dsn").stdout;
    let to = ["load", "x.csv", "--restart", "--quiet", "--to", dsn.trim_end()];
    Run::of(support::command(&home.0, &to).output().unwrap()).success();
    // libpq reads the password from the file that `passfile` names.
    let (address, file) = dsn.trim_end().split_once(" passfile=").unwrap();
    let line = fs::read_to_string(file).unwrap();
    let password = line.trim_end().strip_prefix("*:*:*:postgres:").unwrap();
    let with_password = format!("{address} password={password}");
    assert_eq!(support::ask(&with_password, "select count(*) from x"), "6");
    // The password is in that file only. pgspate ignores PGPASSWORD, which may be for another
    // server.
    assert!(!dsn.contains(password));
    let mut other = home.command("load x.csv --restart");
    let other = Run::of(other.env("PGPASSWORD", "wrong").output().unwrap());
    assert!(!other.success().contains(password));
    assert_snapshot!(redact_server(&home.run("server start").stderr), @"
    PostgreSQL [VERSION], running
    process  [N]
    port     [N]
    data     [DIR]/home/data-[N]
    log      [DIR]/home/run-[N]/log
    open it with [PSQL]
    ");
    assert_snapshot!(home.run("server stop").stderr, @"
    stopping PostgreSQL …
    stopped
    ");
    assert_snapshot!(home.run("server stop").stderr, @"the embedded PostgreSQL was not running");
    assert_snapshot!(redact_server(&home.run("server status").stdout), @"
    PostgreSQL [VERSION], stopped
    data     [DIR]/home/data-[N]
    log      [DIR]/home/run-[N]/log
    ");
}

#[test]
fn a_quiet_load_starts_the_embedded_server_without_output() {
    let home = TestHome::new();
    fs::write(home.0.join("x.csv"), "id,name\n1,a\n2,b\n").unwrap();
    let run = home.run("load x.csv --create --quiet");
    assert_eq!((run.status, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn programs_of_another_version_than_the_wanted_one_are_refused() {
    let home = TestHome::new();
    let programs = home.0.join("bin");
    fs::create_dir(&programs).unwrap();
    for (name, text) in [
        ("postgres", "#!/bin/sh\necho 'postgres (PostgreSQL) 16.4'\n"),
        ("initdb", ""),
        ("pg_ctl", ""),
    ] {
        fs::write(programs.join(name), text).unwrap();
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(programs.join(name), executable).unwrap();
    }
    let mut start = home.command("server start --quiet");
    start.env("PGSPATE_PG_BIN", &programs).env("PGSPATE_PG_VERSION", "17");
    assert_snapshot!(Run::of(start.output().unwrap()).refusal(), @r#"
    error: PGSPATE_PG_BIN names PostgreSQL 16.4 in "[DIR]/bin", but PGSPATE_PG_VERSION asks
          … for version 17

    hint: Unset one of the two variables.
    "#);
}
