//! Actions during a stall: on the stalled connection, on the command, or on the server.

use std::fmt;
use std::process::{Child, Command};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use pgspate_embedded::ThrowawayServer;

use crate::proxy::StallRelease;
use crate::run::{ask, wait_until};
use crate::scene::LoadFaultScene;

/// How long a connection stays stalled: long enough that other sessions wait for its session.
const STALL_TIME: Duration = Duration::from_millis(600);

/// An action during a stall. If the connection is still open afterwards, the stalled message is
/// passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StallAction {
    /// The stall ends after a while, without another action.
    Resume,
    /// The connection is closed.
    Cut,
    /// The command is killed.
    Kill,
    /// The command gets SIGINT.
    Interrupt,
    /// The server is killed, and started again at once.
    KillServer,
    /// The server is shut down cleanly, and started again at once.
    RestartServer,
    /// The server ends all sessions, and restarts after the load has ended.
    StopServer,
    /// New sessions are read-only until the load has ended.
    ReadOnly,
    /// One of the load's sessions is terminated. The number chooses the session and the pause
    /// before the message continues.
    Terminate(u8),
}

const ACTION_NAMES: [(StallAction, &str); 8] = [
    (StallAction::Resume, "resume"),
    (StallAction::Cut, "cut"),
    (StallAction::Kill, "kill"),
    (StallAction::Interrupt, "interrupt"),
    (StallAction::KillServer, "kill-server"),
    (StallAction::RestartServer, "restart-server"),
    (StallAction::StopServer, "stop-server"),
    (StallAction::ReadOnly, "read-only"),
];

impl StallAction {
    /// Returns how the stalled connection is released.
    pub(crate) fn release(self) -> StallRelease {
        if self == StallAction::Cut { StallRelease::Cut } else { StallRelease::Resume }
    }

    /// Returns whether the action needs a server that no other test uses.
    pub(crate) fn needs_server(self) -> bool {
        let needs = [
            StallAction::KillServer,
            StallAction::RestartServer,
            StallAction::StopServer,
            StallAction::ReadOnly,
        ];
        needs.contains(&self)
    }

    /// Returns whether the action ends the load.
    pub(crate) fn stops_load(self) -> bool {
        matches!(self, StallAction::Kill | StallAction::Interrupt)
    }

    /// Performs the action.
    pub(crate) fn perform(self, scene: &LoadFaultScene, load: &Child) {
        match self {
            StallAction::Resume | StallAction::Cut => thread::sleep(STALL_TIME),
            StallAction::Kill => signal("-KILL", load.id()),
            StallAction::Interrupt => {
                signal("-INT", load.id());
                thread::sleep(Duration::from_millis(100));
            }
            StallAction::KillServer => {
                scene.server().kill().unwrap();
                scene.server().restart().unwrap();
            }
            StallAction::RestartServer => {
                scene.server().stop().unwrap();
                scene.server().restart().unwrap();
            }
            StallAction::StopServer => {
                signal("-QUIT", scene.server().pid().unwrap().cast_unsigned());
                wait_until("the server has stopped", || scene.server().pid().is_none());
            }
            StallAction::ReadOnly => {
                set_read_only(scene.server(), "set default_transaction_read_only = on", "on");
            }
            StallAction::Terminate(which) => terminate(scene, which),
        }
    }

    /// Reverses the action after the load has ended, so that the next load can use the server.
    pub(crate) fn undo(self, scene: &LoadFaultScene) {
        match self {
            StallAction::StopServer => scene.server().restart().unwrap(),
            StallAction::ReadOnly => {
                set_read_only(scene.server(), "reset default_transaction_read_only", "off");
            }
            _ => {}
        }
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(name: &str, pid: u32) {
    // The process may have ended meanwhile.
    Command::new("kill").args([name, &pid.to_string()]).output().unwrap();
}

/// Changes the setting for all sessions that begin from now on.
fn set_read_only(server: &ThrowawayServer, setting: &str, shown: &str) {
    let dsn = format!("{} options='-c default_transaction_read_only=off'", server.dsn());
    ask(&dsn, &format!("alter system {setting}"));
    ask(&dsn, "select pg_reload_conf()");
    let show = "show default_transaction_read_only";
    wait_until("the setting holds", || ask(&server.dsn(), show) == shown);
}

/// Terminates one of the load's sessions.
fn terminate(scene: &LoadFaultScene, which: u8) {
    let sql = "select string_agg(pid::text, ' ' order by pid) from pg_stat_activity \
               where datname = current_database() and application_name like 'pgspate load%'";
    let pids = scene.ask(sql);
    let pids: Vec<&str> = pids.split_whitespace().collect();
    if !pids.is_empty() {
        let pid = pids[usize::from(which) % pids.len()];
        scene.ask(&format!("select pg_terminate_backend({pid})"));
    }
    // Sometimes the server's termination error is sent before the stalled message.
    thread::sleep(Duration::from_millis(u64::from(which) * 7 % 31));
}

impl fmt::Display for StallAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StallAction::Terminate(which) => write!(f, "terminate:{which}"),
            then => f.write_str(ACTION_NAMES.iter().find(|(other, _)| other == then).unwrap().1),
        }
    }
}

impl FromStr for StallAction {
    type Err = String;

    fn from_str(text: &str) -> Result<StallAction, String> {
        if let Some(which) = text.strip_prefix("terminate:") {
            let which = which.parse().map_err(|_| format!("\"{which}\" is not a number"))?;
            return Ok(StallAction::Terminate(which));
        }
        let found = ACTION_NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(then, _)| *then).ok_or_else(|| format!("\"{text}\" is not an action"))
    }
}
