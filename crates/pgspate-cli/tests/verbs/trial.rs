//! One command with one fault, and what must hold after it.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::plan::{At, Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::run::{finish_within, try_ask};
use crate::scene::{Baseline, Scene, is_done};
use crate::work::{WORKS, Work};

/// A command that takes longer hangs, however slow the machine is.
const HANG_LIMIT: Duration = Duration::from_secs(120);
/// The server may take so long to notice that a client is gone.
const LEFT_OVER_LIMIT: Duration = Duration::from_secs(60);
/// A command that is run again so often is never done.
const AGAIN_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(500);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sort {
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

const SORTS: [(Sort, &str, Fault); 8] = [
    (Sort::Silence, "silence", Fault::Stall),
    (Sort::Cut, "cut", Fault::Cut),
    (Sort::CutInside, "cut-inside", Fault::CutInside),
    (Sort::CutAfter, "cut-after", Fault::CutAfter),
    (Sort::Lose, "lose", Fault::Lose),
    (Sort::SwallowCommit, "swallow-commit", Fault::SwallowCommit),
    (Sort::Kill, "kill", Fault::Stall),
    (Sort::KillServer, "kill-server", Fault::Stall),
];

/// A command, a fault, and a number that becomes the message at which it happens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) work: usize,
    pub(crate) sort: Sort,
    pub(crate) place: u64,
}

/// How a trial ended.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// As it can be run again.
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

impl Trial {
    /// The fault and its place, for a command of so many messages and commits.
    fn plan(self, baseline: &Baseline) -> Plan {
        let fault = SORTS.iter().find(|(sort, ..)| *sort == self.sort).unwrap().2;
        let nth = |of: u64| 1 + self.place % of.max(1);
        match self.sort {
            Sort::SwallowCommit => Plan::new(fault, At::Commit(nth(baseline.commits))),
            _ => Plan::new(fault, At::Message(nth(baseline.messages))),
        }
    }

    /// Runs the command with the fault; the error says which rule was broken.
    pub(crate) fn run(self, scene: &mut Scene) -> Result<Outcome, String> {
        let work = &WORKS[self.work];
        let baseline = scene.baseline(self.work);
        let plan = self.plan(&baseline);
        let name = match plan.at {
            At::Commit(nth) | At::Message(nth) => {
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
        if fired && self.sort == Sort::Kill {
            child.kill().unwrap();
        }
        if fired && self.sort == Sort::KillServer {
            scene.server.kill().unwrap();
            scene.server.restart().unwrap();
        }
        if matches!(self.sort, Sort::Kill | Sort::KillServer) {
            proxy.release(Release::Cut);
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
        let was_killed = fired && self.sort == Sort::Kill;
        if run.status.is_none() != was_killed || run.stderr.contains("panicked") {
            return Err(format!("{name}: it ended with {:?}{}", run.status, tail(&run.stderr)));
        }
        if run.status == Some(2) && !run.stderr.contains("error:") {
            return Err(format!("{name}: it failed without a word{}", tail(&run.stderr)));
        }
        if self.sort != Sort::Silence {
            // Else a session that is lost would hold its locks until the server misses its client.
            proxy.release(Release::Cut);
        }
        let checked = if is_done(work, &run) {
            check_state(scene, work, &baseline).map(|()| 0)
        } else {
            run_again_until_done(scene, work, &baseline)
        };
        let again = checked.map_err(|broken| format!("{name}: {broken}{}", tail(&run.stderr)))?;
        proxy.release(Release::Cut);
        leaves_nothing(scene, work)
            .map_err(|broken| format!("{name}: {broken}{}", tail(&run.stderr)))?;
        let sort = name.split('@').next().unwrap_or_default().to_owned();
        let usual_seconds = baseline.seconds;
        let status = run.status;
        Ok(Outcome { trial: name, sort, fired, seconds, usual_seconds, status, again })
    }
}

/// Runs the command without a fault until it is done; how often that was.
fn run_again_until_done(scene: &Scene, work: &Work, baseline: &Baseline) -> Result<u32, String> {
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

/// That the tables are as an undisturbed run leaves them.
fn check_state(scene: &Scene, work: &Work, baseline: &Baseline) -> Result<(), String> {
    let found = scene.state();
    match found == baseline.state {
        true => Ok(()),
        false => Err(format!(
            "{} says that it is done, but there is\n{found}\nand not\n{}",
            work.name, baseline.state
        )),
    }
}

/// That one run more changes nothing, and that nothing is left over then.
fn leaves_nothing(scene: &Scene, work: &Work) -> Result<(), String> {
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

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sort = SORTS.iter().find(|(sort, ..)| *sort == self.sort).unwrap().1;
        write!(f, "{} {sort}", WORKS[self.work].name)
    }
}

impl FromStr for Trial {
    type Err = String;

    fn from_str(text: &str) -> Result<Trial, String> {
        let parse = || {
            let (work, rest) = text.split_once(' ')?;
            let (sort, nth) = rest.split_once('@')?;
            let work = WORKS.iter().position(|it| it.name == work)?;
            let sort = SORTS.iter().find(|(_, name, _)| *name == sort)?.0;
            Some(Trial { work, sort, place: nth.parse::<u64>().ok()?.checked_sub(1)? })
        };
        parse().ok_or_else(|| format!("\"{text}\" is no trial; one is \"sync-ahead cut@41\""))
    }
}
