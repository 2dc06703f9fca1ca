//! A shadow table: all lanes fill it while no other session sees it, and then it takes the table's
//! place.
//!
//! The shadow's schema is named after the job, so that a run that was interrupted can resume.
//! Before the first row is loaded, the exchange is tried and rolled back. A table that cannot be
//! copied in every respect is filled in one transaction instead.

mod build;
mod exchange;
mod job_shadow;
mod recipe;

pub(crate) use job_shadow::JobShadow;

use super::TableCare;
use crate::plan::{AtomicMethod, LoadPlan, ReplaceMode};
use crate::{Error, ErrorKind, Result};
use exchange::ExchangeError;
use pgspate_target::ledger::{self, JobId, OpenJob, shadow};
use pgspate_target::table_properties::{TableProperty, table_properties};
use pgspate_target::{DEFINITION_SETTINGS, TargetTable, replace_obstacles, server_error};
use recipe::ShadowNames;

/// Returns the SQL that begins every transaction of this module. Statements with definitions must
/// follow in another message: the server parses a whole message before it runs any of it.
fn begin_sql() -> String {
    format!("begin isolation level read committed; {}", local_settings_sql())
}

/// Returns the settings of [`begin_sql`], for a transaction that is open already. They keep the
/// settings of the role out of the copy, such as `extra_float_digits`, which shortens constants.
fn local_settings_sql() -> String {
    format!("{DEFINITION_SETTINGS}; set local default_tablespace = ''")
}

/// Returns the job, and the names of the table and its shadow, if the plan uses a shadow.
fn shadow_names(
    plan: &LoadPlan,
    table: &TargetTable,
    opened: Option<&OpenJob>,
) -> Option<(JobId, ShadowNames)> {
    let (atomic_plan, job) = (plan.atomic_plan.as_ref()?, opened?.job);
    let is_swap = atomic_plan.method == AtomicMethod::Swap;
    is_swap.then(|| (job, ShadowNames::new(table, table.oid, shadow::schema_name(job))))
}

/// Returns the table that COPY writes to, quoted as in SQL: the shadow or the table.
pub(crate) fn copy_target_name(
    plan: &LoadPlan,
    table: &TargetTable,
    opened: Option<&OpenJob>,
) -> String {
    shadow_names(plan, table, opened).map_or_else(|| plan.table.clone(), |(_, names)| names.shadow)
}

impl TableCare<'_> {
    fn shadow_names(&self) -> Option<(JobId, ShadowNames)> {
        shadow_names(self.plan, self.table, self.job.opened.as_ref())
    }

    /// Creates the shadow or finds the one of an earlier run. Changes the plan if the table cannot
    /// be copied exactly.
    ///
    /// A load that sets rows aside creates the keys before the rows. The server then refuses rows
    /// with equal keys one by one.
    pub(crate) fn prepare_shadow(&mut self) -> Result<()> {
        let Some((job, names)) = self.shadow_names() else { return Ok(()) };
        let failed = || server_error(format!("could not create a shadow of {}", names.table));
        let runtime = self.job.control_session.runtime.clone();
        let client = self.job.client();
        let state = runtime.block_on(self.digest_properties(&names)).map_err(failed())?;
        let checks_keys = self.request.rejects;
        let state = if checks_keys { format!("{state} with keys") } else { state };
        let known = runtime.block_on(shadow::read_state(client, job))?;
        if known.as_deref() == Some(&state) {
            return Ok(());
        }
        if known.is_some() {
            // The table has changed since. Rows in a copy of its earlier definition are useless.
            runtime.block_on(ledger::forget_chunks_and_shadow(client, job))?;
            self.job.reopen()?;
        }
        let client = self.job.client();
        let version = self.session.server_version;
        let tried = runtime.block_on(exchange::try_exchange(client, job, &names, version));
        if let Some(refused) = exchange::trial_refusal(tried).map_err(failed())? {
            return self.plan_without_shadow(&refused);
        }
        let created = exchange::create_shadow(client, job, &names, &state, checks_keys);
        runtime.block_on(created).map_err(|refused| {
            refused.into_error(format!("could not create a shadow of {}", names.table))
        })
    }

    /// Returns a digest of all properties of the table that a copy depends on.
    async fn digest_properties(
        &self,
        names: &ShadowNames,
    ) -> Result<String, tokio_postgres::Error> {
        let client = self.job.client();
        client.batch_execute(&begin_sql()).await?;
        let properties: Vec<TableProperty> =
            table_properties(client, names.oid, self.session.server_version).await?;
        client.batch_execute("rollback").await?;
        Ok(ledger::digest_texts(
            properties.iter().flat_map(|(name, it)| [name.as_str(), it.as_str()]),
        ))
    }

    /// Plans again, for one transaction without a shadow.
    fn plan_without_shadow(&mut self, refused: &ExchangeError) -> Result<()> {
        let why = format!("a copy of the table would not be exact: {refused}");
        if self.request.options.replace == Some(ReplaceMode::Swap) {
            let message = format!("no other table can take the place of {}", self.plan.table);
            return Err(Error::new(ErrorKind::Plan, message)
                .because(Error::new(ErrorKind::Plan, why))
                .hint("`--replace` without a method replaces the rows in one transaction."));
        }
        if let Some(dependencies) = &mut self.request.dependencies {
            dependencies.replace_obstacles.insert(0, why.clone());
        }
        *self.plan = LoadPlan::make(self.table, self.session, &self.input, self.request)?;
        self.plan()?;
        self.plan.warnings.push(format!("no shadow table: {why}"));
        if let Some(identity) = &mut self.job.identity {
            identity.in_shadow = false;
        }
        Ok(())
    }

    /// Returns whether to keep the shadow's rows after this error, so that the same command can
    /// resume. They are not kept if the input itself is refused.
    pub(crate) fn keeps_shadow(&self, error: &Error) -> bool {
        if self.shadow_names().is_none() {
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

    /// Returns where the rows are that a later run resumes from, in words.
    pub(crate) fn describe_kept_place(&self) -> String {
        match self.shadow_names() {
            Some((_, names)) => format!("the shadow table {}", names.shadow),
            None => "the table".to_owned(),
        }
    }

    /// Checks that no object has been created that depends on the table and would be lost.
    async fn check_dependents(&self, names: &ShadowNames) -> Result<(), ExchangeError> {
        let replace_obstacles =
            replace_obstacles(self.job.client(), names.oid).await.map_err(ExchangeError::Server)?;
        match replace_obstacles.first() {
            None => Ok(()),
            Some(why) => Err(ExchangeError::Changed(why.clone())),
        }
    }
}
