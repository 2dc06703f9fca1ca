//! One stream with one fault, and what must hold afterwards.
//!
//! However a run ends, it ends, and its status is true: one that says that it is done has applied
//! all, once. Any other is done in the end by running the same command again, which then finds
//! nothing more to do.

use std::fmt;
use std::process::Child;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::scene::{ALL, End, Scene};
use crate::plan::{At, Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::run::{Run, finish_within, try_ask, wait_until};

/// A run may take this long, however slow the machine; then it hangs.
const LIMIT: Duration = Duration::from_secs(90);
/// A stalled connection stays so long: until others have run into it.
const STALL: Duration = Duration::from_millis(600);
/// Often enough for anything that helps at all.
const AGAIN_MAX: u8 = 6;
/// How long a server may take to notice that a client is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);
/// Lines of the proxy's log that are printed of a trial that broke a rule.
const LOG_LINES: usize = 30;

const NEVER: Plan = Plan { fault: Fault::Cut, at: At::Message(u64::MAX), away: None };

/// How the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// All that there is, from a slot that is there.
    Stream,
    /// A slot is made and rows are copied; the stream comes with the next run.
    Snapshot,
    /// For ever; the fault comes when the stream is running, which must survive it.
    Follow,
}

/// What comes of a stall, of which all but the first are its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Then {
    /// Nothing but that it takes a while.
    Resume,
    /// The connection is closed.
    Cut,
    /// The connection is closed, and so is the one that has sent so many messages then.
    CutAgain(u64),
    /// It stays as it is, and nobody says so.
    Silence,
    /// The command is killed.
    Kill,
    /// The server ends all of the command's sessions.
    Terminate,
    /// The source is killed, and started again at once.
    KillSource,
    /// So is the target.
    KillTarget,
}

const MODES: [(Mode, &str); 3] =
    [(Mode::Stream, "stream"), (Mode::Snapshot, "snapshot"), (Mode::Follow, "follow")];

const THENS: [(Then, &str); 7] = [
    (Then::Resume, "resume"),
    (Then::Cut, "cut"),
    (Then::Silence, "silence"),
    (Then::Kill, "kill"),
    (Then::Terminate, "terminate"),
    (Then::KillSource, "kill-source"),
    (Then::KillTarget, "kill-target"),
];

const ENDS: [(End, &str); 2] = [(End::Source, "source"), (End::Target, "target")];

/// A stream with a fault of one of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) mode: Mode,
    pub(crate) end: End,
    pub(crate) plan: Plan,
    pub(crate) then: Then,
}

/// How a stream came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// By itself.
    Done,
    /// When it was run again, so many times.
    Again(u8),
    /// By itself, as there was no such message.
    Untouched,
}

/// What passes of a run without a fault: its messages with the source and with the target, those
/// of the latter that commit, and the events that the ledger counts in the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) source: u64,
    pub(crate) target: u64,
    pub(crate) commits: u64,
    pub(crate) events: u64,
}

impl Mode {
    fn args(self) -> &'static str {
        match self {
            Mode::Stream => "--batch-rows 25",
            Mode::Snapshot => "--snapshot --batch-rows 25",
            Mode::Follow => "--follow",
        }
    }

    /// The transactions that are there before the fault can come.
    fn prelude(self) -> std::ops::Range<usize> {
        match self {
            Mode::Stream => ALL,
            Mode::Snapshot => 0..0,
            Mode::Follow => 0..1,
        }
    }

    /// Makes what is there before the command runs.
    fn prepare(self, scene: &Scene) {
        scene.reset();
        if self != Mode::Snapshot {
            scene.make_slot();
        }
        scene.fill();
        scene.change(self.prelude());
    }

    /// A run without a fault.
    pub(crate) fn measure(self, scene: &Scene) -> Measure {
        let trial = Trial { mode: self, end: End::Source, plan: NEVER, then: Then::Resume };
        let proxies = [End::Source, End::Target].map(|end| trial.proxy(scene, end));
        self.prepare(scene);
        let begun = trial.begin(scene, &proxies);
        let run = trial.end_of(scene, begun, &proxies).unwrap();
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let [(source, _), (target, commits)] = proxies.each_ref().map(Proxy::counts);
        trial.finish(scene).unwrap();
        Measure { source, target, commits, events: scene.ledger().0 }
    }
}

impl Trial {
    /// What it is one of, for the count.
    pub(crate) fn sort(self) -> String {
        let what = match self.plan.fault {
            Fault::Stall if matches!(self.then, Then::CutAgain(_)) => "cut, and again".to_owned(),
            Fault::Stall => format!("stall, then {}", word(&THENS, self.then)),
            fault => fault.to_string(),
        };
        let away = if self.plan.away.is_some() { ", away" } else { "" };
        let again = if self.is_repeated() { ", again and again" } else { "" };
        format!("{} {}: {what}{away}{again}", word(&MODES, self.mode), word(&ENDS, self.end))
    }

    fn is_repeated(self) -> bool {
        matches!(self.plan.at, At::Every(_))
    }

    /// Runs it; the error has all that is known about a broken rule.
    pub(crate) fn run(self, scene: &Scene, measure: Measure) -> Result<Outcome, String> {
        self.mode.prepare(scene);
        let begin = Instant::now();
        let proxies = [End::Source, End::Target].map(|end| self.proxy(scene, end));
        let begun = self.begin(scene, &proxies);
        let run = self.end_of(scene, begun, &proxies);
        let seconds = begin.elapsed().as_secs_f64();
        let said = match &run {
            Ok(run) => run.stderr.clone(),
            Err(what) => what.clone(),
        };
        let outcome = run.and_then(|run| {
            let outcome = self.judge(scene, &proxies, &run)?;
            self.finish(scene)?;
            match scene.ledger() {
                (events, 0, _) if events == measure.events => Ok(outcome),
                ledger => Err(format!("the ledger has {ledger:?} of {} events", measure.events)),
            }
        });
        outcome.map_err(|broken| {
            let log = proxies[self.end as usize].log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            format!("{self}: {broken}\nit said, after {seconds:.1} s: {said}\nthe proxy:\n{tail}\n")
        })
    }

    fn proxy(self, scene: &Scene, end: End) -> Proxy {
        let plan = (end == self.end && self.mode != Mode::Follow).then_some(self.plan);
        Proxy::start(&scene.server(end).dsn(), plan)
    }

    /// Starts it, and has the fault come; where it follows, once it is at work.
    fn begin(self, scene: &Scene, [source, target]: &[Proxy; 2]) -> Child {
        let mut child = scene.start(source, target, self.mode.args());
        let armed = if self.end == End::Source { source } else { target };
        if self.mode == Mode::Follow {
            let is_there = "select count(*) > 0 from news where what = 'first'";
            wait_until("the stream runs", || scene.ask(End::Target, is_there) == "t");
            for (end, proxy) in [(End::Source, source), (End::Target, target)] {
                proxy.arm(if end == self.end { self.plan } else { NEVER });
            }
            scene.change(self.mode.prelude().end..ALL.end);
        }
        if self.plan.fault != Fault::Stall {
            return child;
        }
        while !armed.wait_until_fired(Duration::from_millis(20)) {
            let is_over = child.try_wait().unwrap().is_some();
            if is_over || (self.mode == Mode::Follow && scene.difference().is_none()) {
                return child;
            }
        }
        self.act(scene, &mut child);
        match self.then {
            Then::Silence => {}
            Then::Cut => armed.release(Release::Cut),
            Then::CutAgain(after) => {
                armed.arm(Plan::new(Fault::CutAfter, At::Message(after)));
                armed.release(Release::Cut);
            }
            _ => armed.release(Release::Resume),
        }
        child
    }

    fn act(self, scene: &Scene, child: &mut Child) {
        match self.then {
            Then::Resume | Then::Cut => thread::sleep(STALL),
            Then::Silence | Then::CutAgain(_) => {}
            Then::Kill => child.kill().unwrap(),
            Then::Terminate => {
                let sql = "select pg_terminate_backend(pid) from pg_stat_activity \
                           where application_name like 'pgspate%'";
                scene.ask(self.end, sql);
            }
            Then::KillSource | Then::KillTarget => {
                let is_source = self.then == Then::KillSource;
                let server = scene.server(if is_source { End::Source } else { End::Target });
                server.kill().unwrap();
                server.restart().unwrap();
            }
        }
    }

    /// Waits until it has ended; one that would go on for ever is told to stop when it has caught
    /// up.
    fn end_of(self, scene: &Scene, mut child: Child, proxies: &[Proxy; 2]) -> Result<Run, String> {
        let since = Instant::now();
        if self.mode == Mode::Follow {
            while child.try_wait().unwrap().is_none() && since.elapsed() < LIMIT {
                if scene.difference().is_none() {
                    // What stops it must not be in the way.
                    proxies.iter().for_each(Proxy::disarm);
                    crate::slot_faults::interrupt(&child);
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        let run = finish_within(child, LIMIT.saturating_sub(since.elapsed()));
        proxies.iter().for_each(Proxy::disarm);
        run.map_err(|run| {
            let difference = scene.difference();
            format!("it did not end within {LIMIT:?}; {difference:?}: {}", run.stderr)
        })
    }

    /// What a run has come to, which is run again if it is not done.
    fn judge(self, scene: &Scene, proxies: &[Proxy; 2], run: &Run) -> Result<Outcome, String> {
        let has_fired =
            proxies[self.end as usize].has_fired() || matches!(self.then, Then::CutAgain(_));
        let is_killed = self.then == Then::Kill && has_fired;
        nothing_is_left_over(scene)?;
        in_good_order(run, is_killed)?;
        // With 1 all is done, but not counted, as an answer was lost.
        if matches!(run.status, Some(0 | 1)) {
            if let Some(difference) = scene.difference() {
                return Err(format!("it says that it is done, but {difference}"));
            }
            return Ok(if has_fired { Outcome::Done } else { Outcome::Untouched });
        }
        if !has_fired {
            return Err("it ended before it was done".to_owned());
        }
        // A network that never lets a batch through ends a stream when its patience is over.
        if self.mode == Mode::Follow && !is_killed && !self.is_repeated() {
            return Err("a stream that runs has not survived it".to_owned());
        }
        if let Some(doubled) = scene.doubled() {
            return Err(format!("it ended with {doubled}"));
        }
        let args = self.mode.args().replace("--follow", "");
        for times in 1..=AGAIN_MAX {
            let run = plain(scene, &args)?;
            if run.status == Some(0) {
                let difference = scene.difference();
                return difference.map_or(Ok(Outcome::Again(times)), |difference| {
                    Err(format!("run again, it says that it is done, but {difference}"))
                });
            }
            if times == AGAIN_MAX {
                return Err(format!("run again {times} times, it fails: {}", run.stderr));
            }
            thread::sleep(Duration::from_millis(300));
        }
        Err("it was not run again".to_owned())
    }

    /// What is still to come, and that nothing more is to be done after it.
    fn finish(self, scene: &Scene) -> Result<(), String> {
        if self.mode == Mode::Snapshot {
            scene.change(ALL);
            done(&plain(scene, self.mode.args())?)?;
        }
        let before = (scene.ledger(), scene.ask(End::Target, "select max(n) from log"));
        done(&plain(scene, &self.mode.args().replace("--follow", ""))?)?;
        let ledger = scene.ledger();
        let after = ((ledger.0, ledger.1), scene.ask(End::Target, "select max(n) from log"));
        if ((before.0.0, before.0.1), before.1) != after {
            return Err("run once more, it has written something".to_owned());
        }
        match scene.difference().or_else(|| scene.slot_difference()) {
            Some(difference) => Err(format!("in the end {difference}")),
            None => Ok(()),
        }
    }
}

fn plain(scene: &Scene, args: &str) -> Result<Run, String> {
    let run = finish_within(scene.start_plain(args), LIMIT);
    let run = run.map_err(|run| format!("run again, it hangs: {}", run.stderr))?;
    nothing_is_left_over(scene)?;
    in_good_order(&run, false)?;
    Ok(run)
}

fn done(run: &Run) -> Result<(), String> {
    match (run.status, run.stderr.as_str()) {
        (Some(0), "") => Ok(()),
        (status, said) => Err(format!("without a fault, {status:?}: {said}")),
    }
}

/// That a run has ended as one may.
fn in_good_order(run: &Run, is_killed: bool) -> Result<(), String> {
    if run.stderr.contains("panicked") || run.stderr.contains("RUST_BACKTRACE") {
        return Err(format!("it panicked: {}", run.stderr));
    }
    match run.status {
        Some(0 | 1) => Ok(()),
        Some(2) if run.stderr.starts_with("error: ") => Ok(()),
        None if is_killed => Ok(()),
        status => Err(format!("exit status {status:?}: {}", run.stderr)),
    }
}

/// That nothing of a run goes on.
pub(crate) fn nothing_is_left_over(scene: &Scene) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let ready = |end| try_ask(&scene.server(end).dsn(), "select 1").is_ok();
        let left = match ready(End::Source) && ready(End::Target) {
            true => scene.left_over(),
            false => "a server that does not answer".to_owned(),
        };
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > NOTICE_LIMIT {
            return Err(format!("left over: {left}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn word<T: PartialEq + Copy>(words: &[(T, &'static str)], of: T) -> &'static str {
    words.iter().find(|(it, _)| *it == of).map_or("", |(_, word)| *word)
}

fn meant<T: Copy>(words: &[(T, &str)], text: Option<&str>) -> Result<T, String> {
    let found = words.iter().find(|(_, word)| Some(*word) == text);
    found.map(|(it, _)| *it).ok_or_else(|| format!("{text:?} is no word of a trial"))
}

/// `stream source cut@137`, `follow target stall@12 then=kill-target`.
impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, end) = (word(&MODES, self.mode), word(&ENDS, self.end));
        write!(f, "{mode} {end} {}", self.plan)?;
        match self.then {
            Then::Resume => Ok(()),
            Then::CutAgain(after) => write!(f, " then=cut-again:{after}"),
            then => write!(f, " then={}", word(&THENS, then)),
        }
    }
}

impl FromStr for Trial {
    type Err = String;

    fn from_str(text: &str) -> Result<Trial, String> {
        let mut words = text.split_whitespace();
        Ok(Trial {
            mode: meant(&MODES, words.next())?,
            end: meant(&ENDS, words.next())?,
            plan: words.next().unwrap_or_default().parse()?,
            then: match words.next().map(|word| word.strip_prefix("then=").unwrap_or(word)) {
                Some(word) => match word.strip_prefix("cut-again:") {
                    Some(after) => Then::CutAgain(after.parse().map_err(|_| word.to_owned())?),
                    None => meant(&THENS, Some(word))?,
                },
                None => Then::Resume,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Trial;

    #[test]
    fn what_is_printed_can_be_run_again() {
        for text in [
            "stream source cut@137",
            "follow target stall@server:G:1 then=kill-target",
            "follow target stall@12 then=cut-again:30",
        ] {
            assert_eq!(text.parse::<Trial>().unwrap().to_string(), text);
        }
        for text in ["", "stream", "stream source", "stream cut@1", "stream source cut@1 then=x"] {
            text.parse::<Trial>().unwrap_err();
        }
    }
}
