//! What happens while a message is held up: to its connection, to the command, to the server.

use std::fmt;
use std::process::{Child, Command};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use pgspate_embedded::Throwaway;

use crate::proxy::Release;
use crate::run::{ask, wait_until};
use crate::scene::Scene;

/// A stalled connection stays so long: until others have run into it.
const STALL: Duration = Duration::from_millis(600);

/// What comes of a stall. The message goes on its way afterwards, if there still is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Then {
    /// Nothing but that it takes a while.
    Resume,
    /// The connection is closed.
    Cut,
    /// The command is killed.
    Kill,
    /// The command is told to stop.
    Interrupt,
    /// The server is killed, and started again at once.
    KillServer,
    /// The server is stopped in good order, and started again at once.
    RestartServer,
    /// The server ends all sessions, and is not there again before the load has ended.
    StopServer,
    /// The server lets new sessions only read, until the load has ended.
    ReadOnly,
    /// One of the load's sessions is ended; the number says which, and how long before the message
    /// goes on.
    Terminate(u8),
}

const NAMES: [(Then, &str); 8] = [
    (Then::Resume, "resume"),
    (Then::Cut, "cut"),
    (Then::Kill, "kill"),
    (Then::Interrupt, "interrupt"),
    (Then::KillServer, "kill-server"),
    (Then::RestartServer, "restart-server"),
    (Then::StopServer, "stop-server"),
    (Then::ReadOnly, "read-only"),
];

impl Then {
    /// What becomes of the stalled connection.
    pub(crate) fn release(self) -> Release {
        if self == Then::Cut { Release::Cut } else { Release::Resume }
    }

    /// Whether it takes a server that nobody else uses.
    pub(crate) fn needs_server(self) -> bool {
        let needs = [Then::KillServer, Then::RestartServer, Then::StopServer, Then::ReadOnly];
        needs.contains(&self)
    }

    /// Whether the load does not end by itself.
    pub(crate) fn stops_load(self) -> bool {
        matches!(self, Then::Kill | Then::Interrupt)
    }

    pub(crate) fn act(self, scene: &Scene, load: &Child) {
        match self {
            Then::Resume | Then::Cut => thread::sleep(STALL),
            Then::Kill => signal("-KILL", load.id()),
            Then::Interrupt => {
                signal("-INT", load.id());
                thread::sleep(Duration::from_millis(100));
            }
            Then::KillServer => {
                scene.server().kill().unwrap();
                scene.server().restart().unwrap();
            }
            Then::RestartServer => {
                scene.server().stop().unwrap();
                scene.server().restart().unwrap();
            }
            Then::StopServer => {
                signal("-QUIT", scene.server().pid().unwrap().cast_unsigned());
                wait_until("the server has stopped", || scene.server().pid().is_none());
            }
            Then::ReadOnly => {
                set_read_only(scene.server(), "set default_transaction_read_only = on", "on");
            }
            Then::Terminate(which) => terminate(scene, which),
        }
    }

    /// Once the load has ended: makes the server fit for the next one.
    pub(crate) fn undo(self, scene: &Scene) {
        match self {
            Then::StopServer => scene.server().restart().unwrap(),
            Then::ReadOnly => {
                set_read_only(scene.server(), "reset default_transaction_read_only", "off");
            }
            _ => {}
        }
    }
}

pub(crate) fn signal(name: &str, pid: u32) {
    // It may have ended meanwhile.
    Command::new("kill").args([name, &pid.to_string()]).output().unwrap();
}

/// Switches it for all sessions that begin from now on.
fn set_read_only(server: &Throwaway, setting: &str, shown: &str) {
    let dsn = format!("{} options='-c default_transaction_read_only=off'", server.dsn());
    ask(&dsn, &format!("alter system {setting}"));
    ask(&dsn, "select pg_reload_conf()");
    let show = "show default_transaction_read_only";
    wait_until("the setting holds", || ask(&server.dsn(), show) == shown);
}

fn terminate(scene: &Scene, which: u8) {
    let sql = "select string_agg(pid::text, ' ' order by pid) from pg_stat_activity \
               where datname = current_database() and application_name like 'pgspate load%'";
    let pids = scene.ask(sql);
    let pids: Vec<&str> = pids.split_whitespace().collect();
    if !pids.is_empty() {
        let pid = pids[usize::from(which) % pids.len()];
        scene.ask(&format!("select pg_terminate_backend({pid})"));
    }
    // Sometimes the farewell is on its way before the message is.
    thread::sleep(Duration::from_millis(u64::from(which) * 7 % 31));
}

impl fmt::Display for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Then::Terminate(which) => write!(f, "terminate:{which}"),
            then => f.write_str(NAMES.iter().find(|(other, _)| other == then).unwrap().1),
        }
    }
}

impl FromStr for Then {
    type Err = String;

    fn from_str(text: &str) -> Result<Then, String> {
        if let Some(which) = text.strip_prefix("terminate:") {
            let which = which.parse().map_err(|_| format!("\"{which}\" is no number"))?;
            return Ok(Then::Terminate(which));
        }
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(then, _)| *then).ok_or_else(|| format!("\"{text}\" is nothing that happens"))
    }
}
