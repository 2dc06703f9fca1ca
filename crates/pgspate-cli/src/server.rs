//! The command `pgspate server`: starts, stops and describes the embedded PostgreSQL.

use pgspate::{Error, ErrorKind, Result};
use pgspate_embedded::{EmbeddedServer, ServerState, ServerStatus};

use crate::args::ServerAction;
use crate::errors::TerminalStyle;
use crate::load::print_json;
use crate::output::{write_command_line, write_stderr, write_stderr_line, write_stdout};
use crate::target::show_step;

pub(crate) fn run(action: ServerAction, quiet: bool, style: TerminalStyle) -> Result<()> {
    let server = EmbeddedServer::open()?;
    let progress = |step: &pgspate_embedded::ServerStep| show_step(step, quiet, style);
    match action {
        ServerAction::Start => {
            let status = server.start(&progress)?;
            if !quiet {
                write_stderr(describe(&status));
                write_command_line(&format!("open it with  {}", server.psql_command()?));
            }
        }
        ServerAction::Stop => {
            let was_running = server.stop(&progress)?;
            if !quiet {
                write_stderr_line(if was_running {
                    "stopped"
                } else {
                    "the embedded PostgreSQL was not running"
                });
            }
        }
        ServerAction::Status { json } => {
            let status = server.status()?;
            match json {
                true => print_json(&status)?,
                false => write_stdout(describe(&status))?,
            }
        }
        ServerAction::Dsn => {
            let status = server.status()?;
            if status.state != ServerState::Running {
                let message = "the embedded PostgreSQL is not running";
                let hint = "Start it with `pgspate server start`.";
                return Err(Error::new(ErrorKind::Connect, message).hint(hint));
            }
            write_stdout(server.dsn()? + "\n")?;
        }
    }
    Ok(())
}

fn describe(status: &ServerStatus) -> String {
    let state = match status.state {
        ServerState::Absent => "not created",
        ServerState::Stopped => "stopped",
        ServerState::Busy => "starting or stopping",
        ServerState::Running => "running",
    };
    let version = status.major.map(|major| format!("PostgreSQL {major}, ")).unwrap_or_default();
    let mut text = format!("{version}{state}\n");
    if let (Some(pid), Some(port)) = (status.pid, status.port) {
        text += &format!("process  {pid}\nport     {port}\n");
    }
    for (name, path) in [("data", &status.data_folder), ("log", &status.log)] {
        if let Some(path) = path {
            text += &format!("{name:<8} {}\n", path.display());
        }
    }
    text
}
