//! Runs the command `pgspate` and waits for its end. Queries servers in sessions of the test.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage};

/// How long a test waits: longer than any step takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the command `pgspate`, run in `folder`, with no variable of the test's environment but
/// `PATH`.
pub(crate) fn command<S: AsRef<OsStr>>(folder: &Path, args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgspate"));
    command.args(args).current_dir(folder).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder);
    command
}

/// Starts a command with pipes for its standard input, output and error.
pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The exit status and the output of a command that has ended.
pub(crate) struct Run {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(output: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("the command prints UTF-8");
        Run {
            status: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// Opens a session of the test. Returns the runtime that drives the session, and the session.
pub(crate) fn session(dsn: &str) -> (Runtime, Client) {
    connect(dsn).unwrap()
}

fn connect(dsn: &str) -> Result<(Runtime, Client), Error> {
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    })?;
    Ok((runtime, client))
}

/// Runs `sql`. Returns the first column of the last row, or an empty string if the result has no
/// row.
pub(crate) fn ask(dsn: &str, sql: &str) -> String {
    try_ask(dsn, sql).unwrap()
}

/// Runs `sql` like `ask`, on a server that may be down.
///
/// # Errors
/// If the server cannot be reached or refuses the statement.
pub(crate) fn try_ask(dsn: &str, sql: &str) -> Result<String, Error> {
    let (runtime, client) = connect(dsn)?;
    let messages = runtime.block_on(client.simple_query(sql))?;
    let value = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    Ok(messages.iter().rev().find_map(value).unwrap_or_default())
}

/// Waits until `condition` holds. `what` completes "timed out waiting until ...".
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of a command, and fails the test if the command does not end.
#[track_caller]
pub(crate) fn finish(child: Child) -> Run {
    match finish_within(child, PATIENCE) {
        Ok(run) => run,
        Err(run) => panic!("the command does not end: {}{}", run.stdout, run.stderr),
    }
}

/// Waits for the end of a command. Returns its exit status and output.
///
/// # Errors
/// If the command does not end within `limit`. The command is then killed, and the error has its
/// output so far.
pub(crate) fn finish_within(mut child: Child, limit: Duration) -> Result<Run, Run> {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > limit {
            child.kill().unwrap();
            return Err(Run::of(child.wait_with_output().unwrap()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(Run::of(child.wait_with_output().unwrap()))
}
