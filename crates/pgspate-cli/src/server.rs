//! `pgspate server`: the embedded PostgreSQL.

use pgspate::{Error, Kind, Result};
use pgspate_embedded::{Server, State, Status};

use crate::args::ServerAction;
use crate::errors::Style;
use crate::load::print_json;
use crate::output::{data, say, say_line};
use crate::target::show;

pub(crate) fn run(action: ServerAction, style: Style) -> Result<()> {
    let server = Server::open()?;
    let progress = |step: &pgspate_embedded::Step| show(step, false, style);
    match action {
        ServerAction::Start => {
            let status = server.start(&progress)?;
            say(describe(&status));
            say_line(format!("open it with  {}", server.psql_command()?));
        }
        ServerAction::Stop => {
            let was_running = server.stop(&progress)?;
            say_line(if was_running { "stopped" } else { "it was not running" });
        }
        ServerAction::Status { json } => {
            let status = server.status()?;
            match json {
                true => print_json(&status)?,
                false => data(describe(&status))?,
            }
        }
        ServerAction::Dsn => {
            let status = server.status()?;
            if status.state != State::Running {
                let message = "the embedded PostgreSQL is not running";
                let hint = "Start it with `pgspate server start`.";
                return Err(Error::new(Kind::Connect, message).hint(hint));
            }
            data(server.dsn()? + "\n")?;
        }
    }
    Ok(())
}

fn describe(status: &Status) -> String {
    let state = match status.state {
        State::Absent => "not made",
        State::Stopped => "stopped",
        State::Busy => "starting or stopping",
        State::Running => "running",
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
