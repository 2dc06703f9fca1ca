//! The roles that pgspate trusts. No event reaches the ledger. pgspate reads no ledger and no
//! relation of an untrusted role. No role sees or forges rows of another role in the ledger.

mod beside;
mod events;
mod foreign;
mod forged;
mod roles;
#[path = "../support/run.rs"]
mod run;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;

use run::Run;
use support::LoadCase;

/// A role without grants, which is dropped with the value.
struct TrustRole<'a> {
    case: &'a LoadCase,
    name: String,
}

impl<'a> TrustRole<'a> {
    fn new(case: &'a LoadCase, suffix: &str) -> TrustRole<'a> {
        let name = format!("{}_{suffix}", case.db.name());
        case.db.run(&format!("create role \"{name}\" login"));
        TrustRole { case, name }
    }

    fn dsn(&self) -> String {
        format!("{} user='{}'", self.case.db.dsn(), self.name)
    }

    /// Runs SQL as the role.
    fn sql(&self, sql: &str) {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn try_sql(&self, sql: &str) -> Result<String, String> {
        run::try_ask(&self.dsn(), sql).map_err(|error| {
            error.as_db_error().map_or(error.to_string(), |said| said.message().to_owned())
        })
    }

    /// Runs `grant WHAT to ROLE`.
    fn grant(&self, what: &str) {
        self.case.db.run(&format!("grant {what} to \"{}\"", self.name));
    }

    /// Runs the command as the role.
    fn run(&self, args: &str) -> Run {
        run_as(self.case, &self.dsn(), args)
    }
}

impl Drop for TrustRole<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        self.case.db.run(&format!("drop owned by \"{name}\" cascade; drop role \"{name}\""));
    }
}

/// Runs the command on a server. `args` are split at spaces.
fn run_as(case: &LoadCase, dsn: &str, args: &str) -> Run {
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.splice(1..1, ["--to", dsn]);
    run::finish(run::spawn(&mut case.command(&args)))
}
