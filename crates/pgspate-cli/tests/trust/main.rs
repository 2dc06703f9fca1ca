//! Which roles pgspate trusts. pgspate reads no ledger and no relation of an untrusted role. No
//! event changes the ledger, and no role reads or forges ledger rows of another role.

mod foreign_ledger;
mod foreign_relations;
mod forged_ledger_rows;
mod ledger_events;
mod roles;
#[path = "../support/run.rs"]
mod run;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;

use run::Run;
use support::LoadCase;

/// A role without grants, which is dropped when the value is dropped.
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

    /// Runs SQL as the role. The error is the server's message.
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

/// Runs the command with `dsn` as target. `args` are split at spaces.
fn run_as(case: &LoadCase, dsn: &str, args: &str) -> Run {
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.splice(1..1, ["--to", dsn]);
    run::finish(run::spawn(&mut case.command(&args)))
}
