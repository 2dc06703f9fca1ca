//! One load with one fault, and a count of how such loads ended.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Child;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::plan::{Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::rule::{self, End, Ended};
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

/// What is done to the command or the server while a message is held up.
pub(crate) struct Harm<'a> {
    pub(crate) name: &'a str,
    pub(crate) act: &'a mut dyn FnMut(&Child),
    /// Once the load has ended: makes the server fit for the next one.
    pub(crate) undo: &'a mut dyn FnMut(),
    pub(crate) crashes_server: bool,
}

impl Trial {
    pub(crate) fn new(plan: Plan, lanes: u8) -> Trial {
        Trial { plan, lanes, release: Release::Resume }
    }

    /// Runs it; the error has all that is known about a broken rule.
    pub(crate) fn run(self, scene: &Scene) -> Result<End, String> {
        let mut harm = Harm {
            name: "",
            act: &mut |_| thread::sleep(STALL),
            undo: &mut || {},
            crashes_server: false,
        };
        let (proxy, said, end) = self.attempt(scene, &mut harm);
        let is_harmless = !proxy.has_fired()
            || (self.plan.fault == Fault::Stall && self.release == Release::Resume);
        let end = match end {
            Ok(end) if is_harmless && end != End::Done => {
                Err(format!("nothing was lost on the way, yet it ended as {end:?}"))
            }
            end => end,
        };
        end.map_err(|broken| report(&self.to_string(), &broken, &said, &proxy))
    }

    /// Runs it with a stall, and does harm as soon as the message has come; then the message goes
    /// on its way, if there still is one.
    pub(crate) fn run_with(self, scene: &Scene, harm: &mut Harm<'_>) -> Result<End, String> {
        assert_eq!(self.plan.fault, Fault::Stall);
        let (proxy, said, end) = self.attempt(scene, harm);
        let what = format!("{} at {self}", harm.name);
        end.map_err(|broken| report(&what, &broken, &said, &proxy))
    }

    fn attempt(self, scene: &Scene, harm: &mut Harm<'_>) -> (Proxy, String, Result<End, String>) {
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
                (harm.act)(&child);
            }
            proxy.release(self.release);
        }
        let ended = finish_within(child, LIMIT);
        let seconds = begin.elapsed().as_secs();
        (harm.undo)();
        let (said, end) = match ended {
            Ok(run) => {
                let (scene, proxy, lanes, run) = (scene, &proxy, &*lanes, &run);
                let server_crashed = harm.crashes_server && proxy.has_fired();
                let end = rule::check(&Ended { scene, proxy, lanes, run, server_crashed });
                (run.stderr.clone(), end)
            }
            Err(run) => (run.stderr, Err(format!("it did not end within {LIMIT:?}"))),
        };
        (proxy, format!("it said, after {seconds} s: {said}"), end)
    }
}

fn report(what: &str, broken: &str, said: &str, proxy: &Proxy) -> String {
    let log = proxy.log();
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    format!("{what}: {broken}\n{said}\nthe proxy:\n{tail}\n")
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
