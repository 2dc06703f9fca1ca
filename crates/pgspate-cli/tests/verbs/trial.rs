//! One command with one fault, and what must hold after it.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::{Proxy, StallRelease};
use crate::run::{finish_within, try_ask};
use crate::scene::{CommandBaseline, CommandScene, is_done};
use crate::work::{DisturbedCommand, WORKS};

/// A command that takes longer hangs, however slow the machine is.
const HANG_LIMIT: Duration = Duration::from_secs(120);
/// How long the server may take to notice a client's disconnect.
const LEFT_OVER_LIMIT: Duration = Duration::from_secs(60);
/// A command that is run again so often is never done.
const AGAIN_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(500);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CommandFault {
    /// Nothing passes on the connection any more until the command has ended.
    Silence,
    Cut,
    CutInside,
    CutAfter,
    Lose,
    SwallowCommit,
    /// The command is killed.
    Kill,
    /// The server is killed, and started again at once.
    KillServer,
}

const SORTS: [(CommandFault, &str, Fault); 8] = [
    (CommandFault::Silence, "silence", Fault::Stall),
    (CommandFault::Cut, "cut", Fault::Cut),
    (CommandFault::CutInside, "cut-inside", Fault::CutInside),
    (CommandFault::CutAfter, "cut-after", Fault::CutAfter),
    (CommandFault::Lose, "lose", Fault::Lose),
    (CommandFault::SwallowCommit, "swallow-commit", Fault::SwallowCommit),
    (CommandFault::Kill, "kill", Fault::Stall),
    (CommandFault::KillServer, "kill-server", Fault::Stall),
];

/// A command, a fault, and a number that becomes the message at which it happens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandTrial {
    pub(crate) work: usize,
    pub(crate) sort: CommandFault,
    pub(crate) place: u64,
}

/// How a trial ended.
#[derive(Debug, Clone)]
pub(crate) struct CommandOutcome {
    /// The trial in the form that `PGSPATE_TEST_FAULTS_REPLAY` takes.
    pub(crate) trial: String,
    pub(crate) sort: String,
    /// Whether the fault has happened.
    pub(crate) fired: bool,
    /// Seconds from the fault to the end of the command.
    pub(crate) seconds: f64,
    /// Seconds that an undisturbed run takes.
    pub(crate) usual_seconds: f64,
    /// The exit status; `None` where the command was killed.
    pub(crate) status: Option<i32>,
    /// How often it was run again until it was done.
    pub(crate) again: u32,
}

impl CommandTrial {
    /// The fault and its place, for a command of so many messages and commits.
    fn plan(self, baseline: &CommandBaseline) -> FaultPlan {
        let fault = SORTS.iter().find(|(sort, ..)| *sort == self.sort).unwrap().2;
        let nth = |of: u64| 1 + self.place % of.max(1);
        match self.sort {
            CommandFault::SwallowCommit => {
                FaultPlan::new(fault, FaultPlace::Commit(nth(baseline.commits)))
            }
            _ => FaultPlan::new(fault, FaultPlace::Message(nth(baseline.messages))),
        }
    }

    /// Runs the command with the fault; the error says which rule was broken.
    pub(crate) fn run(self, scene: &mut CommandScene) -> Result<CommandOutcome, String> {
        let work = &WORKS[self.work];
        let baseline = scene.baseline(self.work);
        let plan = self.plan(&baseline);
        let name = match plan.at {
            FaultPlace::Commit(nth) | FaultPlace::Message(nth) => {
                let sort = SORTS.iter().find(|(sort, ..)| *sort == self.sort).unwrap().1;
                format!("{} {sort}@{nth}", work.name)
            }
            _ => unreachable!("no other place is chosen"),
        };
        scene.reset(work);
        let proxy = Proxy::start(&scene.server.dsn(), Some(plan));
        let mut child = scene.start(work, &proxy.dsn());
        while !proxy.wait_until_fired(Duration::from_millis(10)) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        let begin = Instant::now();
        let fired = proxy.has_fired();
        if fired && self.sort == CommandFault::Kill {
            child.kill().unwrap();
        }
        if fired && self.sort == CommandFault::KillServer {
            scene.server.kill().unwrap();
            scene.server.restart().unwrap();
        }
        if matches!(self.sort, CommandFault::Kill | CommandFault::KillServer) {
            proxy.release(StallRelease::Cut);
        }
        let ended = finish_within(child, HANG_LIMIT);
        let seconds = begin.elapsed().as_secs_f64();
        let tail = |said: &str| {
            let log = proxy.log();
            let lines: Vec<&str> = log.lines().collect();
            let log = lines[lines.len().saturating_sub(25)..].join("\n");
            format!("\nit said, after {seconds:.1} s: {said}\nthe proxy:\n{log}")
        };
        let run = ended.map_err(|run| format!("{name}: it hangs{}", tail(&run.stderr)))?;
        let was_killed = fired && self.sort == CommandFault::Kill;
        if run.status.is_none() != was_killed || run.stderr.contains("panicked") {
            return Err(format!("{name}: it ended with {:?}{}", run.status, tail(&run.stderr)));
        }
        if run.status == Some(2) && !run.stderr.contains("error:") {
            return Err(format!("{name}: it failed without a word{}", tail(&run.stderr)));
        }
        if self.sort != CommandFault::Silence {
            // Else a session that is lost would hold its locks until the server misses its client.
            proxy.release(StallRelease::Cut);
        }
        let checked = if is_done(work, &run) {
            check_state(scene, work, &baseline).map(|()| 0)
        } else {
            run_again_until_done(scene, work, &baseline)
        };
        let again = checked.map_err(|broken| format!("{name}: {broken}{}", tail(&run.stderr)))?;
        proxy.release(StallRelease::Cut);
        leaves_nothing(scene, work)
            .map_err(|broken| format!("{name}: {broken}{}", tail(&run.stderr)))?;
        let sort = name.split('@').next().unwrap_or_default().to_owned();
        let usual_seconds = baseline.seconds;
        let status = run.status;
        Ok(CommandOutcome { trial: name, sort, fired, seconds, usual_seconds, status, again })
    }
}

/// Runs the command without a fault until it is done; how often that was.
fn run_again_until_done(
    scene: &CommandScene,
    work: &DisturbedCommand,
    baseline: &CommandBaseline,
) -> Result<u32, String> {
    let mut said = String::new();
    for times in 1..=AGAIN_MAX {
        // What is done in part has to be taken back first.
        if !work.undo.is_empty() {
            scene.run(work.undo);
        }
        let run = finish_within(scene.start(work, &scene.server.dsn()), HANG_LIMIT);
        let run = run.map_err(|run| format!("run again, it hangs: {}", run.stderr))?;
        if is_done(work, &run) {
            return check_state(scene, work, baseline)
                .map(|()| times)
                .map_err(|broken| format!("run again, {broken}: {}", run.stderr));
        }
        said = run.stderr;
        thread::sleep(PAUSE);
    }
    Err(format!("run again {AGAIN_MAX} times, it still fails: {said}"))
}

/// Checks that the tables are as an undisturbed run leaves them.
fn check_state(
    scene: &CommandScene,
    work: &DisturbedCommand,
    baseline: &CommandBaseline,
) -> Result<(), String> {
    let found = scene.state();
    match found == baseline.state {
        true => Ok(()),
        false => Err(format!(
            "{} says that it is done, but there is\n{found}\nand not\n{}",
            work.name, baseline.state
        )),
    }
}

/// Checks that one more run changes nothing, and that no session or lock is left over.
fn leaves_nothing(scene: &CommandScene, work: &DisturbedCommand) -> Result<(), String> {
    let before = scene.state();
    let run = finish_within(scene.start(work, &scene.server.dsn()), HANG_LIMIT);
    let run = run.map_err(|run| format!("once more, it hangs: {}", run.stderr))?;
    if !is_done(work, &run) {
        return Err(format!("once more, it fails: {}", run.stderr));
    }
    let after = scene.state();
    if before != after {
        return Err(format!("once more, it makes\n{after}\nof\n{before}"));
    }
    scene.undo(work)?;
    let begin = Instant::now();
    loop {
        let left = scene.left_over();
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > LEFT_OVER_LIMIT {
            return Err(format!("left over is {left}"));
        }
        // A server that is asked too often does nothing else.
        let _ = try_ask(&scene.server.dsn(), "select pg_sleep(0.1)");
    }
}

impl fmt::Display for CommandTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sort = SORTS.iter().find(|(sort, ..)| *sort == self.sort).unwrap().1;
        write!(f, "{} {sort}", WORKS[self.work].name)
    }
}

impl FromStr for CommandTrial {
    type Err = String;

    fn from_str(text: &str) -> Result<CommandTrial, String> {
        let parse = || {
            let (work, rest) = text.split_once(' ')?;
            let (sort, nth) = rest.split_once('@')?;
            let work = WORKS.iter().position(|it| it.name == work)?;
            let sort = SORTS.iter().find(|(_, name, _)| *name == sort)?.0;
            Some(CommandTrial { work, sort, place: nth.parse::<u64>().ok()?.checked_sub(1)? })
        };
        parse().ok_or_else(|| format!("\"{text}\" is no trial; one is \"sync-ahead cut@41\""))
    }
}
