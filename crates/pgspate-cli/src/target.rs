//! Which server: the one that was named, or the embedded one.

use pgspate::Result;
use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::{Server, Step};

use crate::errors::Style;
use crate::output::say_line;

/// A server, and how a person opens it.
pub(crate) struct Target {
    pub(crate) dsn: Dsn,
    pub(crate) psql: String,
}

/// The server named by `to` or by the environment, else the embedded one, started.
pub(crate) fn resolve(to: Option<&str>, quiet: bool, style: Style) -> Result<Target> {
    let environment = Environment::capture()?;
    if let Some(dsn) = Dsn::resolve(to, &environment)? {
        for warning in dsn.warnings() {
            say_line(format!("{} {warning}", style.warning("warning:")));
        }
        let psql = dsn.psql_command();
        return Ok(Target { dsn, psql });
    }
    let server = Server::open()?;
    let status = server.start(&|step: &Step| show(step, quiet, style))?;
    if !quiet {
        let major = status.major.map(|major| format!(" {major}")).unwrap_or_default();
        let folder = status.data_folder.map(|path| format!(" (data in {})", path.display()));
        let note = format!("using the embedded PostgreSQL{major}{}", folder.unwrap_or_default());
        say_line(style.dim(&note));
    }
    // With the password itself, so that PGPASSWORD, which is another server's, does not count.
    let conninfo = server.secret_dsn()?;
    let psql = server.psql_command()?;
    let dsn = Dsn::resolve(Some(&conninfo), &environment)?.expect("a conninfo was given");
    Ok(Target { dsn, psql })
}

/// One line for each thing that the server's start has to do.
pub(crate) fn show(step: &Step, quiet: bool, style: Style) {
    if !quiet {
        say_line(style.dim(&step.to_string()));
    }
}
