//! The rules that hold after a load with a fault.
//!
//! If a load reports success, then table, rejects and ledger are as expected. After any other end,
//! repeating the same command completes the load. One more run then changes nothing.

use std::thread;
use std::time::{Duration, Instant};

use crate::input::RowKinds;
use crate::proxy::Proxy;
use crate::run::{Run, finish_within};
use crate::scene::LoadFaultScene;
use crate::trial::LoadSettings;

/// The longest time of a load on a slow machine. A longer load counts as hanging.
pub(crate) const LOAD_TIME_MAX: Duration = Duration::from_secs(60);

/// The most runs that are repeated until one must succeed.
const RERUNS_MAX: u8 = 8;
/// The pause between two runs. A server that is away may come back meanwhile.
const PAUSE: Duration = Duration::from_millis(300);

/// How long a server may take to notice a client's disconnect.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

/// How many runs a load took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoadOutcome {
    /// The first run was enough.
    Done,
    /// The load was run again this many times.
    RunAgain(u8),
}

/// Checks a load that has ended, and repeats the command until the load is done.
///
/// `stopped` says whether the load was killed or interrupted. The error says which rule was broken,
/// and how.
pub(crate) fn check(
    scene: &LoadFaultScene,
    proxy: &Proxy,
    settings: &LoadSettings,
    first: &Run,
    stopped: bool,
) -> Result<LoadOutcome, String> {
    check_run_ended_properly(scene, first, stopped)?;
    let end = match first.status {
        Some(status @ (0 | 1)) => {
            check_success(scene, status, i32::from(settings.rows == RowKinds::Mixed))
                .map(|()| LoadOutcome::Done)?
        }
        _ => {
            proxy.disarm();
            LoadOutcome::RunAgain(run_again_until_done(scene, &proxy.dsn(), settings)?)
        }
    };
    check_next_run_changes_nothing(scene, settings)?;
    Ok(end)
}

/// Runs the same command until the load is done. Returns how many runs that took.
pub(crate) fn run_again_until_done(
    scene: &LoadFaultScene,
    dsn: &str,
    settings: &LoadSettings,
) -> Result<u8, String> {
    let mut said = String::new();
    for times in 1..=RERUNS_MAX {
        let status_when_done = scene.status_when_done();
        let run = finish_within(scene.load(dsn, settings), LOAD_TIME_MAX);
        let run = run.map_err(|run| format!("the repeated run hangs: {}", run.stderr))?;
        check_run_ended_properly(scene, &run, false)
            .map_err(|broken| format!("in the repeated run, {broken}"))?;
        if let Some(status @ (0 | 1)) = run.status {
            let checked = check_success(scene, status, status_when_done);
            return checked
                .map(|()| times)
                .map_err(|broken| format!("in the repeated run, {broken}"));
        }
        said = run.stderr;
        thread::sleep(PAUSE);
    }
    Err(format!("{RERUNS_MAX} repeated runs failed, the last with: {said}"))
}

/// Checks that a load which reports success has loaded exactly the expected rows.
fn check_success(scene: &LoadFaultScene, status: i32, expected: i32) -> Result<(), String> {
    match scene.difference() {
        Some(difference) => Err(format!("the load reports success, but {difference}")),
        None if status != expected => Err(format!("the exit status is {status}, not {expected}")),
        None => Ok(()),
    }
}

/// Runs a completed load once more. It must change nothing.
fn check_next_run_changes_nothing(
    scene: &LoadFaultScene,
    settings: &LoadSettings,
) -> Result<(), String> {
    let before = scene.state();
    let run = finish_within(scene.load(&scene.dsn, settings), LOAD_TIME_MAX);
    let run = run.map_err(|run| format!("one more run hangs: {}", run.stderr))?;
    let (status, has_rejects) = (scene.status_when_done(), run.stderr.contains("set aside"));
    if run.status != Some(status)
        || has_rejects != (status == 1)
        || (status == 0 && !run.stderr.is_empty())
    {
        return Err(format!("one more run ended with {:?}: {}", run.status, run.stderr));
    }
    let after = scene.state();
    if before != after {
        return Err(format!("one more run changed {before:?} to {after:?}"));
    }
    Ok(())
}

/// Checks that a run ended in an allowed way and left no session, lock or table on the server.
fn check_run_ended_properly(
    scene: &LoadFaultScene,
    run: &Run,
    stopped: bool,
) -> Result<(), String> {
    check_nothing_is_left_over(scene)?;
    if run.stderr.contains("panicked") || run.stderr.contains("RUST_BACKTRACE") {
        return Err("the load panicked".to_owned());
    }
    if !run.stdout.is_empty() {
        return Err(format!("the load printed on stdout: {}", run.stdout));
    }
    match run.status {
        Some(0 | 1) => Ok(()),
        Some(2) if run.stderr.starts_with("error: could not ") => Ok(()),
        Some(2) => Err("the exit status is 2, but stderr has no error".to_owned()),
        None | Some(130) if stopped => Ok(()),
        status => Err(format!("the exit status is {status:?}")),
    }
}

/// Waits until the load has left no session, lock or table on the server.
pub(crate) fn check_nothing_is_left_over(scene: &LoadFaultScene) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let left = scene.leftovers();
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > NOTICE_LIMIT {
            return Err(format!("the load left {left}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}
