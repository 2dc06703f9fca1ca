//! What must hold after a load, whatever happened to it.

use std::time::{Duration, Instant};

use regex_lite::Regex;

use crate::proxy::Proxy;
use crate::run::{Run, finish_within};
use crate::scene::{LIMIT, ROWS, Scene};
use crate::wires::long_run;

/// Whether a load that did not come to its end is taken up by the same command. Off as long as
/// there is no ledger: lanes commit one after the other, and what a load that ends between two
/// commits has left behind only its error tells.
pub(crate) const RESUMABLE: bool = true;

/// Often enough for anything that helps at all.
const AGAIN_MAX: usize = 5;

/// How long a server may take to notice that a client is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

/// What a load came to, within the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Exit status 0, and all rows are there.
    Done,
    /// It failed, and no row is there.
    Nothing,
    /// It failed, and as many rows are there as it said.
    Part,
    /// It failed, and running it again put all rows there.
    Resumed,
}

/// What is known of a load that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) proxy: &'a Proxy,
    pub(crate) lanes: &'a str,
    pub(crate) run: &'a Run,
    /// The server has lost what had not reached the disk.
    pub(crate) server_crashed: bool,
}

/// Checks a load that has ended. The error says which rule it broke, and how.
pub(crate) fn check(ended: &Ended<'_>) -> Result<End, String> {
    let Ended { scene, proxy, lanes, run, server_crashed } = *ended;
    nothing_is_left_over(scene)?;
    if run.stderr.contains("panicked") || run.stderr.contains("RUST_BACKTRACE") {
        return Err("it panicked".to_owned());
    }
    if !run.stdout.is_empty() {
        return Err(format!("it printed on stdout: {}", run.stdout));
    }
    if run.status == Some(2) && !run.stderr.starts_with("error: could not ") {
        return Err("exit status 2, but no error is named".to_owned());
    }
    let end = match run.status {
        Some(0) => match scene.difference() {
            None => Ok(End::Done),
            Some(difference) => Err(format!("exit status 0, but {difference}")),
        },
        Some(2 | 130) if RESUMABLE => {
            run_again_until_done(scene, proxy, lanes).map(|()| End::Resumed)
        }
        Some(2) => nothing_or_what_is_said(scene, &run.stderr, server_crashed),
        // Killed by us, which is not its fault.
        None if RESUMABLE => run_again_until_done(scene, proxy, lanes).map(|()| End::Resumed),
        None => nothing_or_lanes(scene),
        // Stopped by us, in good order.
        Some(130) if scene.rows() == 0 => Ok(End::Nothing),
        status => Err(format!("exit status {status:?}, and {} rows are there", scene.rows())),
    }?;
    // Where nothing was left behind, nothing hinders the next load; in a long run this is seen.
    if end == End::Nothing && long_run().is_some() {
        run_again_until_done(scene, proxy, lanes)?;
    }
    Ok(end)
}

/// Runs the same command again, without faults, until it says that it is done; then every row
/// must be there, and none twice.
pub(crate) fn run_again_until_done(
    scene: &Scene,
    proxy: &Proxy,
    lanes: &str,
) -> Result<(), String> {
    proxy.disarm();
    let mut said = String::new();
    for _ in 0..AGAIN_MAX {
        let run = finish_within(scene.load(&proxy.dsn(), lanes), LIMIT);
        let run = run.map_err(|run| format!("run again, it hangs: {}", run.stderr))?;
        nothing_is_left_over(scene)?;
        match (run.status, scene.difference()) {
            (Some(0), None) => return Ok(()),
            (Some(0), Some(difference)) => {
                return Err(format!("run again, it says that it is done, but {difference}"));
            }
            _ => said = run.stderr,
        }
    }
    Err(format!("run again {AGAIN_MAX} times, it still fails: {said}"))
}

pub(crate) fn nothing_is_left_over(scene: &Scene) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let left = scene.left_over();
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > NOTICE_LIMIT {
            return Err(format!("left over: {left}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// After an error: no row, or so many of the input's as the error says.
fn nothing_or_what_is_said(scene: &Scene, said: &str, crashed: bool) -> Result<End, String> {
    let pattern = r"Of (\d+) rows, (\d+) are in the table, and (\d+) more may be\.";
    let pattern = Regex::new(pattern).unwrap();
    let found = scene.rows();
    let Some(numbers) = pattern.captures(said) else {
        return match found {
            0 => Ok(End::Nothing),
            _ => Err(format!("exit status 2, but {}", scene.difference().unwrap_or_default())),
        };
    };
    let [all, sure, unsure] = [1, 2, 3].map(|nth| numbers[nth].parse::<u64>().unwrap());
    let foreign = scene.foreign_rows();
    // All commits but the last are asynchronous: a server that crashes can lose some that it has
    // confirmed, and then the error claims more than there is.
    let is_true = found == sure || found == sure + unsure || (crashed && found < sure);
    if all == ROWS && is_true && foreign == 0 {
        return Ok(End::Part);
    }
    Err(format!("it says {} but {found} rows are there, {foreign} of them wrong", &numbers[0]))
}

/// After SIGKILL between the commits of lanes: rows of some lanes, and nothing that is wrong.
fn nothing_or_lanes(scene: &Scene) -> Result<End, String> {
    match (scene.rows(), scene.foreign_rows()) {
        (0, _) => Ok(End::Nothing),
        (_, 0) => Ok(End::Part),
        (found, foreign) => Err(format!("killed; {found} rows are there, {foreign} of them wrong")),
    }
}
