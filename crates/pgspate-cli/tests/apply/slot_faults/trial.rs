//! One stream with one fault, and what must hold afterwards.
//!
//! Every run ends, and its exit status is true: a run that reports success has applied every event
//! once. After any other run, repeating the command completes the stream. One more run then finds
//! nothing to do.

use std::fmt;
use std::process::Child;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::scene::{SlotServers, SlotTrialServer, WHOLE_HISTORY};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::{Proxy, StallRelease};
use crate::run::{Run, finish_within, try_ask, wait_until};

/// The longest time of a run, even on a slow machine. A longer run counts as hanging.
const RUN_TIME_MAX: Duration = Duration::from_secs(90);
/// The duration of a stall: long enough that other sessions wait for the stalled session.
const STALL_TIME: Duration = Duration::from_millis(600);
/// The most runs that are repeated until one must succeed.
const RERUNS_MAX: u8 = 6;
/// How long a server may take to notice a lost client.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);
/// Lines of the proxy's log that are printed for a trial that broke a rule.
const LOG_LINES: usize = 30;

/// A fault at a message that never comes.
const NO_FAULT: FaultPlan =
    FaultPlan { fault: Fault::Cut, at: FaultPlace::Message(u64::MAX), away: None };

/// How the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotRunMode {
    /// Applies all changes from an existing slot.
    Stream,
    /// Creates a slot and copies the rows. The next run applies the changes.
    Snapshot,
    /// Follows the slot without end. The fault comes while the stream runs, and the run must
    /// survive.
    Follow,
}

/// What happens during a stall, and how the stall ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StallEnd {
    /// The connection continues after a while.
    Resume,
    /// The connection is closed.
    Cut,
    /// The connection is closed. After this number of messages, another connection is closed.
    CutAgain(u64),
    /// The connection stays stalled and open.
    Silence,
    /// The command is killed.
    Kill,
    /// The server terminates all sessions of the command.
    Terminate,
    /// The source is killed, and started again at once.
    KillSource,
    /// The target is killed, and started again at once.
    KillTarget,
}

const MODES: [(SlotRunMode, &str); 3] = [
    (SlotRunMode::Stream, "stream"),
    (SlotRunMode::Snapshot, "snapshot"),
    (SlotRunMode::Follow, "follow"),
];

const STALL_ENDS: [(StallEnd, &str); 7] = [
    (StallEnd::Resume, "resume"),
    (StallEnd::Cut, "cut"),
    (StallEnd::Silence, "silence"),
    (StallEnd::Kill, "kill"),
    (StallEnd::Terminate, "terminate"),
    (StallEnd::KillSource, "kill-source"),
    (StallEnd::KillTarget, "kill-target"),
];

const SERVERS: [(SlotTrialServer, &str); 2] =
    [(SlotTrialServer::Source, "source"), (SlotTrialServer::Target, "target")];

/// One stream with a fault of one of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotTrial {
    pub(crate) mode: SlotRunMode,
    pub(crate) end: SlotTrialServer,
    pub(crate) plan: FaultPlan,
    pub(crate) then: StallEnd,
}

/// How a stream was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotOutcome {
    /// The run survived the fault.
    Done,
    /// The command was run again this many times.
    RunAgain(u8),
    /// The fault never came, because the run has no such message.
    NoFault,
}

/// Measurements of a run without a fault: messages of both connections, commits on the target, and
/// the events that the ledger counts in the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultlessRun {
    pub(crate) source: u64,
    pub(crate) target: u64,
    pub(crate) commits: u64,
    pub(crate) events: u64,
}

impl SlotRunMode {
    fn args(self) -> &'static str {
        match self {
            SlotRunMode::Stream => "--batch-rows 25",
            SlotRunMode::Snapshot => "--snapshot --batch-rows 25",
            SlotRunMode::Follow => "--follow",
        }
    }

    /// Returns the transactions that run before the fault can come.
    fn prelude(self) -> std::ops::Range<usize> {
        match self {
            SlotRunMode::Stream => WHOLE_HISTORY,
            SlotRunMode::Snapshot => 0..0,
            SlotRunMode::Follow => 0..1,
        }
    }

    /// Creates the slot and the rows that must exist before the command runs.
    fn prepare(self, scene: &SlotServers) {
        scene.reset();
        if self != SlotRunMode::Snapshot {
            scene.make_slot();
        }
        scene.fill();
        scene.change(self.prelude());
    }

    /// Runs the stream without a fault and measures the run.
    pub(crate) fn measure(self, scene: &SlotServers) -> FaultlessRun {
        let trial = SlotTrial {
            mode: self,
            end: SlotTrialServer::Source,
            plan: NO_FAULT,
            then: StallEnd::Resume,
        };
        let proxies =
            [SlotTrialServer::Source, SlotTrialServer::Target].map(|end| trial.proxy(scene, end));
        self.prepare(scene);
        let begun = trial.start_with_fault(scene, &proxies);
        let run = trial.wait_for_end(scene, begun, &proxies).unwrap();
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let [(source, _), (target, commits)] = proxies.each_ref().map(Proxy::counts);
        trial.check_completion(scene).unwrap();
        FaultlessRun { source, target, commits, events: scene.ledger().0 }
    }
}

impl SlotTrial {
    /// Returns the kind of the trial, by which outcomes are counted.
    pub(crate) fn kind(self) -> String {
        let what = match self.plan.fault {
            Fault::Stall if matches!(self.then, StallEnd::CutAgain(_)) => {
                "cut, and again".to_owned()
            }
            Fault::Stall => format!("stall, then {}", word_for(&STALL_ENDS, self.then)),
            fault => fault.to_string(),
        };
        let away = if self.plan.away.is_some() { ", away" } else { "" };
        let again = if self.is_repeated() { ", again and again" } else { "" };
        format!(
            "{} {}: {what}{away}{again}",
            word_for(&MODES, self.mode),
            word_for(&SERVERS, self.end)
        )
    }

    fn is_repeated(self) -> bool {
        matches!(self.plan.at, FaultPlace::Every(_))
    }

    /// Runs the trial. An error describes the broken rule.
    pub(crate) fn run(
        self,
        scene: &SlotServers,
        measure: FaultlessRun,
    ) -> Result<SlotOutcome, String> {
        self.mode.prepare(scene);
        let begin = Instant::now();
        let proxies =
            [SlotTrialServer::Source, SlotTrialServer::Target].map(|end| self.proxy(scene, end));
        let begun = self.start_with_fault(scene, &proxies);
        let run = self.wait_for_end(scene, begun, &proxies);
        let seconds = begin.elapsed().as_secs_f64();
        let said = match &run {
            Ok(run) => run.stderr.clone(),
            Err(what) => what.clone(),
        };
        let outcome = run.and_then(|run| {
            let outcome = self.check_run(scene, &proxies, &run)?;
            self.check_completion(scene)?;
            match scene.ledger() {
                (events, 0, _) if events == measure.events => Ok(outcome),
                ledger => Err(format!("the ledger has {ledger:?}, not {} events", measure.events)),
            }
        });
        outcome.map_err(|broken| {
            let log = proxies[self.end as usize].log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            format!(
                "{self}: {broken}\nthe run ended after {seconds:.1} s with: {said}\n\
                 the proxy's log:\n{tail}\n"
            )
        })
    }

    fn proxy(self, scene: &SlotServers, end: SlotTrialServer) -> Proxy {
        let plan = (end == self.end && self.mode != SlotRunMode::Follow).then_some(self.plan);
        Proxy::start(&scene.server(end).dsn(), plan)
    }

    /// Starts the command and causes the fault. With `Follow`, the fault comes once the stream
    /// runs.
    fn start_with_fault(self, scene: &SlotServers, [source, target]: &[Proxy; 2]) -> Child {
        let mut child = scene.start(source, target, self.mode.args());
        let armed = if self.end == SlotTrialServer::Source { source } else { target };
        if self.mode == SlotRunMode::Follow {
            let has_news = "select count(*) > 0 from news where what = 'first'";
            wait_until("the stream runs", || scene.ask(SlotTrialServer::Target, has_news) == "t");
            for (end, proxy) in
                [(SlotTrialServer::Source, source), (SlotTrialServer::Target, target)]
            {
                proxy.arm(if end == self.end { self.plan } else { NO_FAULT });
            }
            scene.change(self.mode.prelude().end..WHOLE_HISTORY.end);
        }
        if self.plan.fault != Fault::Stall {
            return child;
        }
        while !armed.wait_until_fired(Duration::from_millis(20)) {
            let is_over = child.try_wait().unwrap().is_some();
            if is_over || (self.mode == SlotRunMode::Follow && scene.difference().is_none()) {
                return child;
            }
        }
        self.act_during_stall(scene, &mut child);
        match self.then {
            StallEnd::Silence => {}
            StallEnd::Cut => armed.release(StallRelease::Cut),
            StallEnd::CutAgain(after) => {
                armed.arm(FaultPlan::new(Fault::CutAfter, FaultPlace::Message(after)));
                armed.release(StallRelease::Cut);
            }
            _ => armed.release(StallRelease::Resume),
        }
        child
    }

    /// Performs the action during the stall.
    fn act_during_stall(self, scene: &SlotServers, child: &mut Child) {
        match self.then {
            StallEnd::Resume | StallEnd::Cut => thread::sleep(STALL_TIME),
            StallEnd::Silence | StallEnd::CutAgain(_) => {}
            StallEnd::Kill => child.kill().unwrap(),
            StallEnd::Terminate => {
                let sql = "select pg_terminate_backend(pid) from pg_stat_activity \
                           where application_name like 'pgspate%'";
                scene.ask(self.end, sql);
            }
            StallEnd::KillSource | StallEnd::KillTarget => {
                let is_source = self.then == StallEnd::KillSource;
                let server = scene.server(if is_source {
                    SlotTrialServer::Source
                } else {
                    SlotTrialServer::Target
                });
                server.kill().unwrap();
                server.restart().unwrap();
            }
        }
    }

    /// Waits until the run has ended. A following run gets SIGTERM after it has caught up.
    fn wait_for_end(
        self,
        scene: &SlotServers,
        mut child: Child,
        proxies: &[Proxy; 2],
    ) -> Result<Run, String> {
        let since = Instant::now();
        if self.mode == SlotRunMode::Follow {
            while child.try_wait().unwrap().is_none() && since.elapsed() < RUN_TIME_MAX {
                if scene.difference().is_none() {
                    // The fault must not disturb the shutdown.
                    proxies.iter().for_each(Proxy::disarm);
                    crate::slot_faults::interrupt(&child);
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        let run = finish_within(child, RUN_TIME_MAX.saturating_sub(since.elapsed()));
        proxies.iter().for_each(Proxy::disarm);
        run.map_err(|run| {
            let difference = scene.difference();
            format!("the run did not end within {RUN_TIME_MAX:?}; {difference:?}: {}", run.stderr)
        })
    }

    /// Checks the result of a run. If the run failed, runs the command again until a run succeeds.
    fn check_run(
        self,
        scene: &SlotServers,
        proxies: &[Proxy; 2],
        run: &Run,
    ) -> Result<SlotOutcome, String> {
        let has_fired =
            proxies[self.end as usize].has_fired() || matches!(self.then, StallEnd::CutAgain(_));
        let is_killed = self.then == StallEnd::Kill && has_fired;
        check_no_session_remains(scene)?;
        check_status(run, is_killed)?;
        // Status 1: every event is applied, but a lost reply made the counts incomplete.
        if matches!(run.status, Some(0 | 1)) {
            if let Some(difference) = scene.difference() {
                return Err(format!("the run reports success, but {difference}"));
            }
            return Ok(if has_fired { SlotOutcome::Done } else { SlotOutcome::NoFault });
        }
        if !has_fired {
            return Err("the run failed without a fault".to_owned());
        }
        // If the network never lets a batch through, the stream ends after `--retry-for`.
        if self.mode == SlotRunMode::Follow && !is_killed && !self.is_repeated() {
            return Err("the following stream did not survive the fault".to_owned());
        }
        if let Some(repeated) = scene.repeated_writes() {
            return Err(format!("the failed run left {repeated}"));
        }
        let args = self.mode.args().replace("--follow", "");
        for times in 1..=RERUNS_MAX {
            let run = run_plain(scene, &args)?;
            if run.status == Some(0) {
                let difference = scene.difference();
                return difference.map_or(Ok(SlotOutcome::RunAgain(times)), |difference| {
                    Err(format!("the repeated run reports success, but {difference}"))
                });
            }
            if times == RERUNS_MAX {
                return Err(format!("{times} repeated runs failed, the last with: {}", run.stderr));
            }
            thread::sleep(Duration::from_millis(300));
        }
        Err("the command was not run again".to_owned())
    }

    /// Applies the remaining changes and checks that one more run writes nothing.
    fn check_completion(self, scene: &SlotServers) -> Result<(), String> {
        if self.mode == SlotRunMode::Snapshot {
            scene.change(WHOLE_HISTORY);
            check_success(&run_plain(scene, self.mode.args())?)?;
        }
        let before = (scene.ledger(), scene.ask(SlotTrialServer::Target, "select max(n) from log"));
        check_success(&run_plain(scene, &self.mode.args().replace("--follow", ""))?)?;
        let ledger = scene.ledger();
        let after =
            ((ledger.0, ledger.1), scene.ask(SlotTrialServer::Target, "select max(n) from log"));
        if ((before.0.0, before.0.1), before.1) != after {
            return Err("one more run wrote something".to_owned());
        }
        match scene.difference().or_else(|| scene.slot_difference()) {
            Some(difference) => Err(format!("after the last run, {difference}")),
            None => Ok(()),
        }
    }
}

/// Runs the command without proxies. The run must end with an allowed status.
fn run_plain(scene: &SlotServers, args: &str) -> Result<Run, String> {
    let run = finish_within(scene.start_plain(args), RUN_TIME_MAX);
    let run = run.map_err(|run| format!("a run without a fault hangs: {}", run.stderr))?;
    check_no_session_remains(scene)?;
    check_status(&run, false)?;
    Ok(run)
}

/// Checks that a run succeeded without messages.
fn check_success(run: &Run) -> Result<(), String> {
    match (run.status, run.stderr.as_str()) {
        (Some(0), "") => Ok(()),
        (status, said) => Err(format!("a run without a fault ended with {status:?}: {said}")),
    }
}

/// Checks that a run ended with an allowed status and did not panic.
fn check_status(run: &Run, is_killed: bool) -> Result<(), String> {
    if run.stderr.contains("panicked") || run.stderr.contains("RUST_BACKTRACE") {
        return Err(format!("the run panicked: {}", run.stderr));
    }
    match run.status {
        Some(0 | 1) => Ok(()),
        // A run that was asked to stop says so first.
        Some(2) if run.stderr.lines().any(|line| line.starts_with("error: ")) => Ok(()),
        None if is_killed => Ok(()),
        status => Err(format!("the run ended with {status:?}: {}", run.stderr)),
    }
}

/// Waits until no session of a run remains on the servers.
pub(crate) fn check_no_session_remains(scene: &SlotServers) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let ready = |end| try_ask(&scene.server(end).dsn(), "select 1").is_ok();
        let left = match ready(SlotTrialServer::Source) && ready(SlotTrialServer::Target) {
            true => scene.remaining_sessions(),
            false => "a server does not answer".to_owned(),
        };
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > NOTICE_LIMIT {
            return Err(format!("sessions remain: {left}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn word_for<T: PartialEq + Copy>(words: &[(T, &'static str)], of: T) -> &'static str {
    words.iter().find(|(it, _)| *it == of).map_or("", |(_, word)| *word)
}

fn parse_word<T: Copy>(words: &[(T, &str)], text: Option<&str>) -> Result<T, String> {
    let found = words.iter().find(|(_, word)| Some(*word) == text);
    found.map(|(it, _)| *it).ok_or_else(|| format!("{text:?} is not a word of a trial"))
}

/// Writes a trial as `stream source cut@137` or `follow target stall@12 then=kill-target`.
impl fmt::Display for SlotTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, end) = (word_for(&MODES, self.mode), word_for(&SERVERS, self.end));
        write!(f, "{mode} {end} {}", self.plan)?;
        match self.then {
            StallEnd::Resume => Ok(()),
            StallEnd::CutAgain(after) => write!(f, " then=cut-again:{after}"),
            then => write!(f, " then={}", word_for(&STALL_ENDS, then)),
        }
    }
}

impl FromStr for SlotTrial {
    type Err = String;

    fn from_str(text: &str) -> Result<SlotTrial, String> {
        let mut words = text.split_whitespace();
        Ok(SlotTrial {
            mode: parse_word(&MODES, words.next())?,
            end: parse_word(&SERVERS, words.next())?,
            plan: words.next().unwrap_or_default().parse()?,
            then: match words.next().map(|word| word.strip_prefix("then=").unwrap_or(word)) {
                Some(word) => match word.strip_prefix("cut-again:") {
                    Some(after) => StallEnd::CutAgain(after.parse().map_err(|_| word.to_owned())?),
                    None => parse_word(&STALL_ENDS, Some(word))?,
                },
                None => StallEnd::Resume,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::SlotTrial;

    #[test]
    fn a_printed_trial_parses_to_the_same_trial() {
        for text in [
            "stream source cut@137",
            "follow target stall@server:G:1 then=kill-target",
            "follow target stall@12 then=cut-again:30",
        ] {
            assert_eq!(text.parse::<SlotTrial>().unwrap().to_string(), text);
        }
        for text in ["", "stream", "stream source", "stream cut@1", "stream source cut@1 then=x"] {
            text.parse::<SlotTrial>().unwrap_err();
        }
    }
}
