//! One command with one fault, and the rules that hold afterwards.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::disturbed_commands::{DISTURBED_COMMANDS, DisturbedCommand};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::{Proxy, StallRelease};
use crate::run::{finish_within, try_ask};
use crate::scene::{CommandBaseline, CommandScene, is_done};

/// The longest time of a command on a slow machine. A longer command counts as hanging.
const HANG_LIMIT: Duration = Duration::from_secs(120);
/// How long the server may take to notice a client's disconnect.
const LEFT_OVER_LIMIT: Duration = Duration::from_secs(60);
/// The most runs that are repeated until one must succeed.
const RERUNS_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(500);

/// A fault during a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CommandFault {
    /// The proxy passes nothing more on over the connection until the command has ended.
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

const COMMAND_FAULTS: [(CommandFault, &str, Fault); 8] = [
    (CommandFault::Silence, "silence", Fault::Stall),
    (CommandFault::Cut, "cut", Fault::Cut),
    (CommandFault::CutInside, "cut-inside", Fault::CutInside),
    (CommandFault::CutAfter, "cut-after", Fault::CutAfter),
    (CommandFault::Lose, "lose", Fault::Lose),
    (CommandFault::SwallowCommit, "swallow-commit", Fault::SwallowCommit),
    (CommandFault::Kill, "kill", Fault::Stall),
    (CommandFault::KillServer, "kill-server", Fault::Stall),
];

/// A command, a fault, and a number from which the message of the fault is computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandTrial {
    pub(crate) disturbed: usize,
    pub(crate) fault_kind: CommandFault,
    pub(crate) place: u64,
}

/// How a trial ended.
#[derive(Debug, Clone)]
pub(crate) struct CommandOutcome {
    /// The trial in the form that `PGSPATE_TEST_FAULTS_REPLAY` takes.
    pub(crate) trial: String,
    pub(crate) fault_kind: String,
    /// Whether the fault happened.
    pub(crate) fired: bool,
    /// Seconds from the fault to the end of the command.
    pub(crate) seconds: f64,
    /// Seconds that an undisturbed run takes.
    pub(crate) usual_seconds: f64,
    /// The exit status; `None` if the command was killed.
    pub(crate) status: Option<i32>,
    /// How often the command was run again until it succeeded.
    pub(crate) again: u32,
}

impl CommandTrial {
    /// Returns the fault and its message. The messages and commits of `baseline` limit the choice.
    fn plan(self, baseline: &CommandBaseline) -> FaultPlan {
        let fault = COMMAND_FAULTS
            .iter()
            .find(|(fault_kind, ..)| *fault_kind == self.fault_kind)
            .unwrap()
            .2;
        let nth = |of: u64| 1 + self.place % of.max(1);
        match self.fault_kind {
            CommandFault::SwallowCommit => {
                FaultPlan::new(fault, FaultPlace::Commit(nth(baseline.commits)))
            }
            _ => FaultPlan::new(fault, FaultPlace::Message(nth(baseline.messages))),
        }
    }

    /// Runs the command with the fault. The error says which rule was broken.
    pub(crate) fn run(self, scene: &mut CommandScene) -> Result<CommandOutcome, String> {
        let disturbed = &DISTURBED_COMMANDS[self.disturbed];
        let baseline = scene.baseline(self.disturbed);
        let plan = self.plan(&baseline);
        let name = match plan.at {
            FaultPlace::Commit(nth) | FaultPlace::Message(nth) => {
                let fault_kind = COMMAND_FAULTS
                    .iter()
                    .find(|(fault_kind, ..)| *fault_kind == self.fault_kind)
                    .unwrap()
                    .1;
                format!("{} {fault_kind}@{nth}", disturbed.name)
            }
            _ => unreachable!("`plan` chooses only commits and messages"),
        };
        scene.reset(disturbed);
        let proxy = Proxy::start(&scene.server.dsn(), Some(plan));
        let mut child = scene.start(disturbed, &proxy.dsn());
        while !proxy.wait_until_fired(Duration::from_millis(10)) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        let begin = Instant::now();
        let fired = proxy.has_fired();
        if fired && self.fault_kind == CommandFault::Kill {
            child.kill().unwrap();
        }
        if fired && self.fault_kind == CommandFault::KillServer {
            scene.server.kill().unwrap();
            scene.server.restart().unwrap();
        }
        if matches!(self.fault_kind, CommandFault::Kill | CommandFault::KillServer) {
            proxy.release(StallRelease::Cut);
        }
        let ended = finish_within(child, HANG_LIMIT);
        let seconds = begin.elapsed().as_secs_f64();
        let tail = |said: &str| {
            let log = proxy.log();
            let lines: Vec<&str> = log.lines().collect();
            let log = lines[lines.len().saturating_sub(25)..].join("\n");
            format!(
                "\nthe command ended after {seconds:.1} s with: {said}\nthe proxy's log:\n{log}"
            )
        };
        let run = ended.map_err(|run| format!("{name}: the command hangs{}", tail(&run.stderr)))?;
        let was_killed = fired && self.fault_kind == CommandFault::Kill;
        if run.status.is_none() != was_killed || run.stderr.contains("panicked") {
            let status = run.status;
            return Err(format!("{name}: the command ended with {status:?}{}", tail(&run.stderr)));
        }
        if run.status == Some(2) && !run.stderr.contains("error:") {
            return Err(format!(
                "{name}: the command failed without an error{}",
                tail(&run.stderr)
            ));
        }
        if self.fault_kind != CommandFault::Silence {
            // Without this release, a lost session holds its locks until the server notices the
            // disconnect.
            proxy.release(StallRelease::Cut);
        }
        let checked = if is_done(disturbed, &run) {
            check_state(scene, disturbed, &baseline).map(|()| 0)
        } else {
            run_again_until_done(scene, disturbed, &baseline)
        };
        let again = checked.map_err(|broken| format!("{name}: {broken}{}", tail(&run.stderr)))?;
        proxy.release(StallRelease::Cut);
        check_leaves_nothing(scene, disturbed)
            .map_err(|broken| format!("{name}: {broken}{}", tail(&run.stderr)))?;
        let fault_kind = name.split('@').next().unwrap_or_default().to_owned();
        let usual_seconds = baseline.seconds;
        let status = run.status;
        Ok(CommandOutcome { trial: name, fault_kind, fired, seconds, usual_seconds, status, again })
    }
}

/// Runs the command without a fault until it succeeds. Returns how many runs that took.
fn run_again_until_done(
    scene: &CommandScene,
    disturbed: &DisturbedCommand,
    baseline: &CommandBaseline,
) -> Result<u32, String> {
    let mut said = String::new();
    for times in 1..=RERUNS_MAX {
        // A partial change must be undone first.
        if !disturbed.undo.is_empty() {
            scene.run(disturbed.undo);
        }
        let run = finish_within(scene.start(disturbed, &scene.server.dsn()), HANG_LIMIT);
        let run = run.map_err(|run| format!("the repeated run hangs: {}", run.stderr))?;
        if is_done(disturbed, &run) {
            return check_state(scene, disturbed, baseline)
                .map(|()| times)
                .map_err(|broken| format!("in the repeated run, {broken}: {}", run.stderr));
        }
        said = run.stderr;
        thread::sleep(PAUSE);
    }
    Err(format!("{RERUNS_MAX} repeated runs failed, the last with: {said}"))
}

/// Checks that the tables are as an undisturbed run leaves them.
fn check_state(
    scene: &CommandScene,
    disturbed: &DisturbedCommand,
    baseline: &CommandBaseline,
) -> Result<(), String> {
    let found = scene.state();
    match found == baseline.state {
        true => Ok(()),
        false => Err(format!(
            "{} reports success, but the state is\n{found}\nand not\n{}",
            disturbed.name, baseline.state
        )),
    }
}

/// Checks that one more run changes nothing, and that no session or lock is left over.
fn check_leaves_nothing(scene: &CommandScene, disturbed: &DisturbedCommand) -> Result<(), String> {
    let before = scene.state();
    let run = finish_within(scene.start(disturbed, &scene.server.dsn()), HANG_LIMIT);
    let run = run.map_err(|run| format!("one more run hangs: {}", run.stderr))?;
    if !is_done(disturbed, &run) {
        return Err(format!("one more run fails: {}", run.stderr));
    }
    let after = scene.state();
    if before != after {
        return Err(format!("one more run changed\n{before}\nto\n{after}"));
    }
    scene.undo(disturbed)?;
    let begin = Instant::now();
    loop {
        let left = scene.left_over();
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > LEFT_OVER_LIMIT {
            return Err(format!("the command left {left}"));
        }
        // Queries without pauses would keep the server busy.
        let _ = try_ask(&scene.server.dsn(), "select pg_sleep(0.1)");
    }
}

impl fmt::Display for CommandTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault_kind = COMMAND_FAULTS
            .iter()
            .find(|(fault_kind, ..)| *fault_kind == self.fault_kind)
            .unwrap()
            .1;
        write!(f, "{} {fault_kind}", DISTURBED_COMMANDS[self.disturbed].name)
    }
}

impl FromStr for CommandTrial {
    type Err = String;

    fn from_str(text: &str) -> Result<CommandTrial, String> {
        let parse = || {
            let (disturbed, rest) = text.split_once(' ')?;
            let (fault_kind, nth) = rest.split_once('@')?;
            let disturbed = DISTURBED_COMMANDS.iter().position(|it| it.name == disturbed)?;
            let fault_kind = COMMAND_FAULTS.iter().find(|(_, name, _)| *name == fault_kind)?.0;
            Some(CommandTrial {
                disturbed,
                fault_kind,
                place: nth.parse::<u64>().ok()?.checked_sub(1)?,
            })
        };
        parse().ok_or_else(|| {
            format!("\"{text}\" is not a trial; expected for example \"sync-ahead cut@41\"")
        })
    }
}
