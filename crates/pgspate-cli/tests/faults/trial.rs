//! One load with one fault.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use pgspate::copy::Commit;

use crate::input::RowKinds;
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::rule::{self, LIMIT, LoadEnd};
use crate::run::finish_within;
use crate::scene::LoadFaultScene;
use crate::then::StallAction;

/// Lines of the proxy's log that are printed of a trial that broke a rule.
const LOG_LINES: usize = 40;

/// The load opens a connection for the ledger and a connection that tests write permission.
const CONNECTIONS_BEFORE: usize = 2;

/// How the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadSettings {
    /// `None` for as many as the command finds good.
    pub(crate) lanes: Option<u8>,
    pub(crate) commit: Commit,
    pub(crate) rows: RowKinds,
    /// Seconds; by default as the command has it.
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

    /// Into a table with indexes.
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
        // A server that is not there before the load has ended is not worth a long wait.
        let retry_for = if then == StallAction::StopServer { Some(1) } else { settings.retry_for };
        let settings = LoadSettings { retry_for, ..settings };
        LoadTrial { then, ..LoadTrial::new(Fault::Stall, at, settings) }
    }

    pub(crate) fn away(self, time: Duration) -> LoadTrial {
        LoadTrial { plan: FaultPlan { away: Some(time), ..self.plan }, ..self }
    }

    /// What it is one of, for the count.
    pub(crate) fn sort(self) -> String {
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

    /// Runs it; the error has all that is known about a broken rule.
    pub(crate) fn run(self, scene: &LoadFaultScene) -> Result<LoadEnd, String> {
        scene.reset();
        let begin = Instant::now();
        let proxy = Proxy::start(&scene.dsn, Some(self.plan));
        let mut child = scene.load(&proxy.dsn(), &self.settings);
        if self.plan.fault == Fault::Stall {
            // A load that ends before has nothing to be interfered with.
            while !proxy.wait_until_fired(Duration::from_millis(20)) {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
            }
            if proxy.has_fired() {
                self.then.act(scene, &child);
            }
            proxy.release(self.then.release());
        }
        let ended = finish_within(child, LIMIT);
        let seconds = begin.elapsed().as_secs_f64();
        proxy.release(self.then.release());
        if proxy.has_fired() {
            self.then.undo(scene);
        }
        let (said, end) = match ended {
            Ok(run) => {
                let stopped = self.then.stops_load();
                let end = rule::check(scene, &proxy, &self.settings, &run, stopped);
                (run.stderr, end.and_then(|end| self.expected(end, &proxy)))
            }
            Err(run) => (run.stderr, Err(format!("it did not end within {LIMIT:?}"))),
        };
        end.map_err(|broken| {
            let log = proxy.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            format!("{self}: {broken}\nit said, after {seconds:.1} s: {said}\nthe proxy:\n{tail}\n")
        })
    }

    /// What is not lost needs no second run; nor does what is lost once lanes are at work, which
    /// connect again.
    fn expected(self, end: LoadEnd, proxy: &Proxy) -> Result<LoadEnd, String> {
        if !proxy.has_fired() && !matches!(self.plan.at, FaultPlace::Message(_)) {
            return Err("nothing has happened to it".to_owned());
        }
        let may_end = self.then.stops_load()
            || matches!(self.then, StallAction::StopServer | StallAction::ReadOnly)
            || proxy.connections_then() <= CONNECTIONS_BEFORE;
        let is_harmless = self.plan.fault == Fault::Stall && self.then == StallAction::Resume;
        match end {
            LoadEnd::Again(_) if is_harmless || !proxy.has_fired() || !may_end => {
                Err("it ended before it was done".to_owned())
            }
            end => Ok(end),
        }
    }
}

/// A plan, ` lanes=3 commit=chunk`, ` rejects` and ` then=cut` where that is so.
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
            let wrong = || format!("\"{word}\" is no setting of a trial");
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
