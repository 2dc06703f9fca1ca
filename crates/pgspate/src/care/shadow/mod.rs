//! A shadow table: filled by all lanes while nobody sees it, and then put in the table's place.
//!
//! It is made with the job and named after it, so that a run that was cut off goes on with it.
//! Before the first row is loaded, the exchange is tried out and rolled back: a table that cannot
//! be copied in every respect is filled in one transaction instead.

mod build;
mod exchange;
mod recipe;

use tokio_postgres::error::SqlState;

use super::TableCare;
use crate::plan::{AtomicMethod, LoadPlan, ReplaceMode};
use crate::{Error, ErrorKind, Result};
use exchange::ExchangeError;
use pgspate_target::ledger::{self, JobId, Opened, shadow};
use pgspate_target::likeness::{Property, likeness};
use pgspate_target::{Table, ends_session, fixed, server_error};
use recipe::ShadowNames;

/// How every transaction here begins: names that the server writes are complete, and nothing of
/// the role's settings becomes part of the copy.
const BEGIN: &str = "begin isolation level read committed; set local search_path = ''; \
                     set local default_tablespace = ''; set local standard_conforming_strings = on";

/// The job, and the table's and the shadow's names, if there is to be a shadow.
fn names(plan: &LoadPlan, table: &Table, opened: Option<&Opened>) -> Option<(JobId, ShadowNames)> {
    let (at_once, job) = (plan.at_once.as_ref()?, opened?.job);
    let is_swap = at_once.method == AtomicMethod::Swap;
    is_swap.then(|| (job, ShadowNames::new(table, table.oid, shadow::schema_name(job))))
}

/// The table that COPY writes to, as SQL writes it.
pub(crate) fn destination(plan: &LoadPlan, table: &Table, opened: Option<&Opened>) -> String {
    names(plan, table, opened).map_or_else(|| plan.table.clone(), |(_, names)| names.shadow)
}

impl TableCare<'_> {
    fn names(&self) -> Option<(JobId, ShadowNames)> {
        names(self.plan, self.table, self.job.opened.as_ref())
    }

    /// Makes the shadow or finds it again, if there is to be one; changes the plan where the table
    /// turns out to be one that cannot be copied.
    pub(crate) fn prepare_shadow(&mut self) -> Result<()> {
        let Some((job, names)) = self.names() else { return Ok(()) };
        let failed = || server_error(format!("could not make a shadow of {}", names.table));
        let runtime = self.job.own.runtime.clone();
        let client = self.job.client();
        let state = runtime.block_on(self.state(&names)).map_err(failed())?;
        let known = runtime.block_on(shadow::state(client, job))?;
        if known.as_deref() == Some(&state) {
            return Ok(());
        }
        if known.is_some() {
            // The table has changed since, and rows in a copy of it as it was are of no use.
            runtime.block_on(ledger::clear(client, job))?;
            self.job.reopen()?;
        }
        let client = self.job.client();
        let version = self.session.server_version;
        let tried = runtime.block_on(exchange::try_out(client, job, &names, version));
        match tried {
            Ok(()) => {}
            Err(ExchangeError::Server(error)) if error.code().is_none_or(ends_session) => {
                return Err(failed()(error));
            }
            // A lock that others have now they may not have then.
            Err(ExchangeError::Server(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
            Err(refused) => return self.do_without_shadow(&refused),
        }
        runtime.block_on(exchange::make(client, job, &names, &state)).map_err(|refused| {
            refused.into_error(format!("could not make a shadow of {}", names.table))
        })
    }

    /// The table's state as far as a copy of it depends on it.
    async fn state(&self, names: &ShadowNames) -> Result<String, tokio_postgres::Error> {
        let client = self.job.client();
        client.batch_execute(BEGIN).await?;
        let properties: Vec<Property> =
            likeness(client, names.oid, self.session.server_version).await?;
        client.batch_execute("rollback").await?;
        Ok(ledger::digest(properties.iter().flat_map(|(name, it)| [name.as_str(), it.as_str()])))
    }

    /// Plans anew for one transaction.
    fn do_without_shadow(&mut self, refused: &ExchangeError) -> Result<()> {
        let why = format!("a copy of the table would not be exact: {refused}");
        if self.request.options.replace == Some(ReplaceMode::Swap) {
            let message = format!("no other table can take the place of {}", self.plan.table);
            return Err(Error::new(ErrorKind::Plan, message)
                .because(Error::new(ErrorKind::Plan, why))
                .hint("With `--replace` alone it is done in one transaction."));
        }
        if let Some(bonds) = &mut self.request.bonds {
            bonds.fixed.insert(0, why.clone());
        }
        *self.plan = LoadPlan::make(self.table, self.session, &self.input, self.request)?;
        self.plan()?;
        self.plan.warnings.push(format!("no shadow table: {why}"));
        if let Some(identity) = &mut self.job.identity {
            identity.in_shadow = false;
        }
        Ok(())
    }

    /// Whether what is in the shadow is worth keeping after this error: the same command may go
    /// on with it. Not where the input itself is refused.
    pub(crate) fn keeps_shadow(&self, error: &Error) -> bool {
        if self.names().is_none() {
            return true;
        }
        match error.sqlstate().map(|code| code.code()) {
            Some(code) => {
                ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
            }
            None => matches!(
                error.kind(),
                ErrorKind::Source | ErrorKind::Connect | ErrorKind::Cancelled
            ),
        }
    }

    /// Where rows are that a later run goes on from, in words.
    pub(crate) fn where_kept(&self) -> String {
        match self.names() {
            Some((_, names)) => format!("the shadow table {}", names.shadow),
            None => "the table".to_owned(),
        }
    }

    /// Whether something has come to depend on the table that would be lost.
    async fn check_bonds(&self, names: &ShadowNames) -> Result<(), ExchangeError> {
        let fixed = fixed(self.job.client(), names.oid).await.map_err(ExchangeError::Server)?;
        match fixed.first() {
            None => Ok(()),
            Some(why) => Err(ExchangeError::Changed(why.clone())),
        }
    }
}
