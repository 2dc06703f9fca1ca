//! Finds the server to connect to: the given one, or the embedded one.

use pgspate::Result;
use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::{EmbeddedServer, ServerStep};

use crate::errors::TerminalStyle;
use crate::load::runtime;
use crate::output::write_stderr_line;
use crate::terminal::{self, ask_password};

/// A server, and the psql command that opens it.
pub(crate) struct TargetServer {
    pub(crate) dsn: Dsn,
    pub(crate) psql: String,
}

/// Returns the server like [`resolve`]. If the server asks for a password that is not known, asks
/// for the password on the terminal.
pub(crate) fn resolve_and_ask(
    to: Option<&str>,
    quiet: bool,
    style: TerminalStyle,
) -> Result<TargetServer> {
    let target = resolve(to, quiet, style)?;
    Ok(TargetServer { dsn: with_asked_password(target.dsn)?, ..target })
}

/// Asks for the password if the server wants one, none is known, and a person can answer.
///
/// # Errors
/// [`ErrorKind::Connect`](pgspate::ErrorKind::Connect) if the server cannot be reached.
pub(crate) fn with_asked_password(dsn: Dsn) -> Result<Dsn> {
    if dsn.has_password() || !terminal::can_ask() {
        return Ok(dsn);
    }
    // As psql does: only the server knows whether it wants a password.
    let tried = runtime()?.block_on(async { dsn.connect("pgspate").await.map(drop) });
    match tried {
        Err(error) if dsn.is_password_missing(&error) => {
            let password = ask_password(&format!("Password for user {}: ", dsn.user()))?;
            Ok(dsn.with_password(password, "the terminal"))
        }
        tried => tried.map(|()| dsn),
    }
}

/// Returns whether the environment names a server.
pub(crate) fn is_named() -> Result<bool> {
    Ok(Dsn::resolve(None, &Environment::capture()?)?.is_some())
}

/// Returns the server of `to` or of the environment; if neither names one, starts the embedded
/// server.
pub(crate) fn resolve(to: Option<&str>, quiet: bool, style: TerminalStyle) -> Result<TargetServer> {
    let environment = Environment::capture()?;
    if let Some(dsn) = Dsn::resolve(to, &environment)? {
        for warning in dsn.warnings() {
            write_stderr_line(format!("{} {warning}", style.warning("warning:")));
        }
        let psql = dsn.psql_command();
        return Ok(TargetServer { dsn, psql });
    }
    let server = EmbeddedServer::open()?;
    let status = server.start(&|step: &ServerStep| show_step(step, quiet, style))?;
    if !quiet {
        let major = status.major.map(|major| format!(" {major}")).unwrap_or_default();
        let folder = status.data_folder.map(|path| format!(" (data in {})", path.display()));
        let note = format!("using the embedded PostgreSQL{major}{}", folder.unwrap_or_default());
        write_stderr_line(style.dim(&note));
    }
    // The conninfo has the password, so that PGPASSWORD of another server is not used.
    let conninfo = server.secret_dsn()?;
    let psql = server.psql_command()?;
    let dsn = Dsn::resolve(Some(&conninfo), &environment)?.expect("a conninfo was given");
    Ok(TargetServer { dsn, psql })
}

/// Shows a step of the embedded server's start.
pub(crate) fn show_step(step: &ServerStep, quiet: bool, style: TerminalStyle) {
    if !quiet {
        write_stderr_line(style.dim(&step.to_string()));
    }
}
