//! One load with one fault, and a count of how such loads ended.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Child;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::plan::{Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::rule::{self, End};
use crate::run::finish_within;
use crate::scene::{LIMIT, Scene};

/// A stalled connection stays so long: until others have run into it.
const STALL: Duration = Duration::from_millis(600);

/// Lines of the proxy's log that are printed of a trial that broke a rule.
const LOG_LINES: usize = 40;

/// A load through a proxy with this fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) plan: Plan,
    pub(crate) lanes: u8,
    /// For a stall: how it ends.
    pub(crate) release: Release,
}

impl Trial {
    pub(crate) fn new(plan: Plan, lanes: u8) -> Trial {
        Trial { plan, lanes, release: Release::Resume }
    }

    /// Runs it; the error has all that is known about a broken rule.
    pub(crate) fn run(self, scene: &Scene) -> Result<End, String> {
        let (proxy, run, end) = self.attempt(scene, |_| thread::sleep(STALL));
        let is_harmless = !proxy.has_fired()
            || (self.plan.fault == Fault::Stall && self.release == Release::Resume);
        let end = match end {
            Ok(end) if is_harmless && end != End::Done => {
                Err(format!("nothing was lost on the way, yet it ended as {end:?}"))
            }
            end => end,
        };
        end.map_err(|broken| report(&self.to_string(), &broken, &run, &proxy))
    }

    /// Runs it with a stall, and does `act` as soon as the message has come; then the message goes
    /// on its way, if there still is one. `name` says what `act` does.
    pub(crate) fn run_with(
        self,
        scene: &Scene,
        name: &str,
        act: impl FnOnce(&Child),
    ) -> Result<End, String> {
        assert_eq!(self.plan.fault, Fault::Stall);
        let (proxy, run, end) = self.attempt(scene, act);
        end.map_err(|broken| report(&format!("{name} at {self}"), &broken, &run, &proxy))
    }

    fn attempt(
        self,
        scene: &Scene,
        act: impl FnOnce(&Child),
    ) -> (Proxy, String, Result<End, String>) {
        scene.reset();
        let begin = Instant::now();
        let proxy = Proxy::start(&scene.dsn, Some(self.plan));
        let lanes = self.lanes.to_string();
        let mut child = scene.load(&proxy.dsn(), &lanes);
        if self.plan.fault == Fault::Stall {
            // A load that ends before has nothing to be interfered with.
            while !proxy.wait_until_fired(Duration::from_millis(20)) {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
            }
            if proxy.has_fired() {
                act(&child);
            }
            proxy.release(self.release);
        }
        let (run, end) = match finish_within(child, LIMIT) {
            Ok(run) => {
                let end = rule::check(scene, &proxy, &lanes, &run);
                (run, end)
            }
            Err(run) => (run, Err(format!("it did not end within {LIMIT:?}"))),
        };
        let seconds = begin.elapsed().as_secs();
        (proxy, format!("it said, after {seconds} s: {}", run.stderr), end)
    }
}

fn report(what: &str, broken: &str, run: &str, proxy: &Proxy) -> String {
    let log = proxy.log();
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    format!("{what}: {broken}\n{run}\nthe proxy:\n{tail}\n")
}

/// A plan, ` lanes=3`, and ` then=cut` for a stall that ends so.
impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lanes={}", self.plan, self.lanes)?;
        match self.release {
            Release::Resume => Ok(()),
            Release::Cut => write!(f, " then=cut"),
        }
    }
}

impl FromStr for Trial {
    type Err = String;

    fn from_str(text: &str) -> Result<Trial, String> {
        let mut words = text.split_whitespace();
        let plan = words.next().unwrap_or_default().parse()?;
        let mut trial = Trial::new(plan, 3);
        for word in words {
            match word.split_once('=') {
                Some(("lanes", lanes)) => {
                    trial.lanes = lanes.parse().map_err(|_| format!("\"{word}\" is no number"))?;
                }
                Some(("then", "cut")) => trial.release = Release::Cut,
                _ => return Err(format!("\"{word}\" is neither lanes=N nor then=cut")),
            }
        }
        Ok(trial)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_run_again() {
        for text in ["cut@137 lanes=2", "stall@server:G:1+away:500 lanes=3 then=cut"] {
            assert_eq!(text.parse::<Trial>().unwrap().to_string(), text);
        }
        for text in ["", "cut@1 lanes=x", "cut@1 then=go", "cut@1 twice"] {
            text.parse::<Trial>().unwrap_err();
        }
    }
}
