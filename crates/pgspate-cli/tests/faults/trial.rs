//! One load with one fault.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use pgspate::copy::Commit;

use crate::input::RowKinds;
use crate::load_checks::{self, LOAD_TIME_MAX, LoadOutcome};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::run::finish_within;
use crate::scene::LoadFaultScene;
use crate::stall_action::StallAction;

/// Lines of the proxy's log that are printed for a trial that broke a rule.
const LOG_LINES: usize = 40;

/// The connections before those of the lanes: one for the ledger, and one that tests whether the
/// role may write.
const CONNECTIONS_BEFORE: usize = 2;
/// One commit creates the ledger, and one opens the job.
pub(crate) const COMMITS_BEFORE_ROWS: u64 = 2;

/// How the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadSettings {
    /// The number of lanes; `None` for `--lanes auto`.
    pub(crate) lanes: Option<u8>,
    pub(crate) commit: Commit,
    pub(crate) rows: RowKinds,
    /// The seconds of `--retry-for`; `None` for the default.
    pub(crate) retry_for: Option<u32>,
}

/// A load through a proxy with this fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadTrial {
    pub(crate) plan: FaultPlan,
    /// What happens during a stall.
    pub(crate) then: StallAction,
    pub(crate) settings: LoadSettings,
}

impl LoadSettings {
    pub(crate) fn new(lanes: u8, commit: Commit) -> LoadSettings {
        LoadSettings { lanes: Some(lanes), commit, rows: RowKinds::Good, retry_for: None }
    }

    /// Loads a file into a table with indexes that the load drops and rebuilds.
    pub(crate) fn indexed(lanes: u8) -> LoadSettings {
        LoadSettings { rows: RowKinds::Indexed, ..LoadSettings::new(lanes, Commit::AtEnd) }
    }

    /// Loads a file with rows that must become rejects, and commits each chunk.
    pub(crate) fn mixed(lanes: u8) -> LoadSettings {
        LoadSettings { rows: RowKinds::Mixed, ..LoadSettings::new(lanes, Commit::EachChunk) }
    }
}

impl LoadTrial {
    pub(crate) fn new(fault: Fault, at: FaultPlace, settings: LoadSettings) -> LoadTrial {
        LoadTrial { plan: FaultPlan::new(fault, at), then: StallAction::Resume, settings }
    }

    /// Returns a trial with a stall and an action during the stall.
    pub(crate) fn stall(at: FaultPlace, then: StallAction, settings: LoadSettings) -> LoadTrial {
        // The server comes back only after the load has ended, so a long wait is useless.
        let retry_for = if then == StallAction::StopServer { Some(1) } else { settings.retry_for };
        let settings = LoadSettings { retry_for, ..settings };
        LoadTrial { then, ..LoadTrial::new(Fault::Stall, at, settings) }
    }

    pub(crate) fn away(self, time: Duration) -> LoadTrial {
        LoadTrial { plan: FaultPlan { away: Some(time), ..self.plan }, ..self }
    }

    /// Returns the group of the trial, by which outcomes are counted.
    pub(crate) fn group(self) -> String {
        let what = match (self.plan.fault, self.then) {
            (Fault::Stall, StallAction::Terminate(_)) => "stall, then terminate".to_owned(),
            (Fault::Stall, then) => format!("stall, then {then}"),
            (fault, _) => fault.to_string(),
        };
        let away = if self.plan.away.is_some() { ", server away" } else { "" };
        let commit = match self.settings.commit {
            Commit::AtEnd => "at the end",
            Commit::EachChunk => "each chunk",
        };
        let rejects = match self.settings.rows {
            RowKinds::Good => "",
            RowKinds::Indexed => ", with indexes",
            RowKinds::Mixed => ", with rejects",
        };
        format!("{what}{away}; commit {commit}{rejects}")
    }

    /// Runs the trial. The error describes the broken rule, with the proxy's log.
    pub(crate) fn run(self, scene: &LoadFaultScene) -> Result<LoadOutcome, String> {
        scene.reset();
        let begin = Instant::now();
        let proxy = Proxy::start(&scene.dsn, Some(self.plan));
        let mut child = scene.load(&proxy.dsn(), &self.settings);
        if self.plan.fault == Fault::Stall {
            // The load may end before the message of the stall.
            while !proxy.wait_until_fired(Duration::from_millis(20)) {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
            }
            if proxy.has_fired() {
                self.then.perform(scene, &child);
            }
            proxy.release(self.then.release());
        }
        let ended = finish_within(child, LOAD_TIME_MAX);
        let seconds = begin.elapsed().as_secs_f64();
        proxy.release(self.then.release());
        if proxy.has_fired() {
            self.then.undo(scene);
        }
        let (said, end) = match ended {
            Ok(run) => {
                let stopped = self.then.stops_load();
                let end = load_checks::check(scene, &proxy, &self.settings, &run, stopped);
                (run.stderr, end.and_then(|end| self.check_outcome(end, &proxy)))
            }
            Err(run) => (run.stderr, Err(format!("the load did not end within {LOAD_TIME_MAX:?}"))),
        };
        end.map_err(|broken| {
            let log = proxy.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            format!(
                "{self}: {broken}\nthe load ended after {seconds:.1} s with: {said}\n\
                 the proxy's log:\n{tail}\n"
            )
        })
    }

    /// Checks that the load ran again only after a fault that may end a load. Lost connections do
    /// not end a load whose lanes have begun, because lanes reconnect.
    fn check_outcome(self, end: LoadOutcome, proxy: &Proxy) -> Result<LoadOutcome, String> {
        // If lanes commit at the end, a lane without a chunk commits nothing. The first has one.
        let may_miss = match self.plan.at {
            FaultPlace::Message(_) => true,
            FaultPlace::Commit(nth) => {
                self.settings.commit == Commit::AtEnd && nth > COMMITS_BEFORE_ROWS + 1
            }
            _ => false,
        };
        if !proxy.has_fired() && !may_miss {
            return Err("the fault did not happen".to_owned());
        }
        let may_end = self.then.stops_load()
            || matches!(self.then, StallAction::StopServer | StallAction::ReadOnly)
            || proxy.connections_at_fault() <= CONNECTIONS_BEFORE;
        let is_harmless = self.plan.fault == Fault::Stall && self.then == StallAction::Resume;
        match end {
            LoadOutcome::RunAgain(_) if is_harmless || !proxy.has_fired() || !may_end => {
                Err("the load failed, although the fault cannot end a load".to_owned())
            }
            end => Ok(end),
        }
    }
}

/// Writes a trial as its plan, then ` lanes=3 commit=chunk`. Adds ` rejects` and ` then=cut` if
/// they apply.
impl fmt::Display for LoadTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadSettings { lanes, commit, rows, retry_for } = self.settings;
        let lanes = lanes.map_or("auto".to_owned(), |lanes| lanes.to_string());
        let commit = if commit == Commit::AtEnd { "end" } else { "chunk" };
        write!(f, "{} lanes={lanes} commit={commit}", self.plan)?;
        f.write_str(match rows {
            RowKinds::Good => "",
            RowKinds::Indexed => " indexes",
            RowKinds::Mixed => " rejects",
        })?;
        if let Some(seconds) = retry_for {
            write!(f, " retry-for={seconds}")?;
        }
        match self.then {
            StallAction::Resume => Ok(()),
            then => write!(f, " then={then}"),
        }
    }
}

impl FromStr for LoadTrial {
    type Err = String;

    fn from_str(text: &str) -> Result<LoadTrial, String> {
        let mut words = text.split_whitespace();
        let plan = words.next().unwrap_or_default().parse()?;
        let settings = LoadSettings::new(3, Commit::AtEnd);
        let mut trial = LoadTrial { plan, then: StallAction::Resume, settings };
        let settings = &mut trial.settings;
        for word in words {
            let wrong = || format!("\"{word}\" is not a setting of a trial");
            match word.split_once('=') {
                Some(("lanes", "auto")) => settings.lanes = None,
                Some(("lanes", lanes)) => {
                    settings.lanes = Some(lanes.parse().map_err(|_| wrong())?);
                }
                Some(("commit", "end")) => settings.commit = Commit::AtEnd,
                Some(("commit", "chunk")) => settings.commit = Commit::EachChunk,
                Some(("retry-for", seconds)) => {
                    settings.retry_for = Some(seconds.parse().map_err(|_| wrong())?);
                }
                Some(("then", then)) => trial.then = then.parse()?,
                None if word == "rejects" => settings.rows = RowKinds::Mixed,
                None if word == "indexes" => settings.rows = RowKinds::Indexed,
                _ => return Err(wrong()),
            }
        }
        Ok(trial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_trial_parses_to_the_same_trial() {
        for text in [
            "cut@137 lanes=2 commit=end",
            "cut-inside@client:d:3 lanes=auto commit=chunk rejects",
            "stall@server:G:1+away:500 lanes=3 commit=chunk then=cut",
            "stall@commit:2 lanes=3 commit=end retry-for=1 then=stop-server",
            "stall@40 lanes=1 commit=chunk then=terminate:3",
        ] {
            assert_eq!(text.parse::<LoadTrial>().unwrap().to_string(), text);
        }
        for text in ["", "cut@1 lanes=x", "cut@1 then=go", "cut@1 twice", "cut@1 commit=now"] {
            text.parse::<LoadTrial>().unwrap_err();
        }
    }
}
