//! One load with one fault, and a count of how such loads ended.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::plan::{Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::rule::{self, End};
use crate::run::finish_within;
use crate::scene::{LIMIT, Scene};

/// A stalled connection stays so at least this long: until others have run into it.
const STALL: Duration = Duration::from_millis(600);

/// A load through a proxy with this fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) plan: Plan,
    pub(crate) lanes: &'static str,
    /// For a stall: how it ends.
    pub(crate) release: Release,
}

impl Trial {
    pub(crate) fn new(plan: Plan, lanes: &'static str) -> Trial {
        Trial { plan, lanes, release: Release::Resume }
    }

    /// Runs it; the error has all that is known about a broken rule.
    pub(crate) fn run(self, scene: &Scene) -> Result<End, String> {
        scene.reset();
        let begin = Instant::now();
        let proxy = Proxy::start(&scene.dsn, Some(self.plan));
        let mut child = scene.load(&proxy.dsn(), self.lanes);
        if self.plan.fault == Fault::Stall {
            while !proxy.wait_until_fired(Duration::from_millis(20)) {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
            }
            std::thread::sleep(if proxy.has_fired() { STALL } else { Duration::ZERO });
            proxy.release(self.release);
        }
        let (run, verdict) = match finish_within(child, LIMIT) {
            Ok(run) => {
                let verdict = rule::check(scene, &proxy, self.lanes, &run);
                (run, verdict)
            }
            Err(run) => (run, Err(format!("it did not end within {LIMIT:?}"))),
        };
        let is_harmless = !proxy.has_fired()
            || (self.plan.fault == Fault::Stall && self.release == Release::Resume);
        let verdict = match verdict {
            Ok(end) if is_harmless && end != End::Done => {
                Err(format!("nothing was lost on the way, yet it ended as {end:?}"))
            }
            verdict => verdict,
        };
        verdict.map_err(|broken| {
            let log = proxy.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            let (seconds, said) = (begin.elapsed().as_secs(), run.stderr);
            format!("{self}: {broken}\nit said, after {seconds} s: {said}\nthe proxy:\n{tail}\n")
        })
    }
}

/// As `PGSPATE_TEST_FAULTS_REPLAY` takes it.
impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lanes={}", self.plan, self.lanes)?;
        match self.release {
            Release::Resume => Ok(()),
            Release::Cut => write!(f, " then=cut"),
        }
    }
}

/// How trials ended, by what they were.
#[derive(Default)]
pub(crate) struct Tally {
    ends: BTreeMap<(String, End), usize>,
    broken: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, what: &str, result: Result<End, String>) {
        match result {
            Ok(end) => *self.ends.entry((what.to_owned(), end)).or_default() += 1,
            Err(broken) => {
                eprintln!("BROKEN {broken}");
                self.broken.push(broken);
            }
        }
    }

    pub(crate) fn run(&mut self, scene: &Scene, trial: Trial) {
        let what = match (trial.plan.fault, trial.release) {
            (Fault::Stall, Release::Cut) => "stall, then cut".to_owned(),
            (fault, _) => fault.to_string(),
        };
        let away = if trial.plan.away.is_some() { ", server away" } else { "" };
        self.add(&format!("{what}{away}"), trial.run(scene));
    }

    /// Prints the count, and fails where a rule was broken.
    #[track_caller]
    pub(crate) fn close(self) {
        let trials = self.ends.values().sum::<usize>() + self.broken.len();
        println!("{trials} trials, {} of them broke a rule", self.broken.len());
        for ((what, end), count) in &self.ends {
            println!("{count:>6}  {what}: {end:?}");
        }
        assert!(self.broken.is_empty(), "{}", self.broken.join("\n"));
    }
}
