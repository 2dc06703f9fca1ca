//! A load as a member of a fleet: the sources that it claims, and what it does for the whole table.
//!
//! The member's row in the ledger is marked as done by the statement that finishes the load's job.
//! So each member loads its sources once in each generation.

use std::sync::Arc;

use tokio_postgres::Client;

use super::{Load, LoadOptions, LoadWatch};
use crate::fleet::{FleetEntry, MemberReport, failure_words, name_sources};
use crate::job::RetryAfterConnectionLoss;
use crate::plan::AutoChoice;
use crate::reading::InputOrigin;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{
    FleetMember, JobLookup, MemberCounts, MemberTarget, OpenMember, digest_texts,
};

/// What the user asked to do for the table after the last row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TableTending {
    analyze: AutoChoice,
    vacuum: bool,
}

/// Returns the member that the load is, and adapts the options. A member has one lane by default,
/// and leaves the table's indexes, autovacuum and statistics alone: other members write meanwhile.
/// The last member analyzes the table.
///
/// # Errors
/// [`ErrorKind::Usage`] if a member cannot have one of the options.
pub(super) fn prepare(options: &mut LoadOptions) -> Result<(Option<FleetEntry>, TableTending)> {
    let lanes = options.plan.lanes.unwrap_or(1);
    // The control session, and the lanes.
    let entry = options.fleet.resolve(false, 1 + lanes)?;
    let plan = &mut options.plan;
    let others = "other members write at the same time";
    let always = AutoChoice::Always;
    options.fleet.check_excluded(&[
        ("--create", options.create, "create the table before the members begin"),
        (
            "--add-columns",
            options.reading.rows.add_columns,
            "add the columns before the members begin",
        ),
        ("--replace", plan.replace.is_some(), "each member would replace the others' rows"),
        ("--atomic", plan.atomic, others),
        ("--restart", options.restart, "a new generation loads again"),
        ("--no-ledger", plan.no_ledger, "the ledger knows the members"),
        ("--rebuild-indexes always", plan.rebuild_indexes == always, others),
        ("--pause-autovacuum always", plan.pause_autovacuum == always, others),
    ])?;
    let Some(entry) = entry else { return Ok((None, TableTending::default())) };
    if options.table.is_none() {
        return Err(Error::new(ErrorKind::Usage, "a member of a fleet needs the table's name")
            .hint("Name the table with `--table`."));
    }
    if let InputOrigin::Sources(sources) = &mut options.reading.origin {
        name_sources(sources, &entry.member);
    }
    let tending = TableTending { analyze: plan.analyze, vacuum: plan.vacuum };
    plan.lanes = Some(lanes);
    plan.rebuild_indexes = AutoChoice::Never;
    plan.pause_autovacuum = AutoChoice::Never;
    (plan.analyze, plan.vacuum) = (AutoChoice::Never, false);
    Ok((Some(entry), tending))
}

impl Load {
    /// Returns which member of a fleet the load is, if any.
    pub(super) fn fleet(&self) -> Option<&FleetEntry> {
        self.job.control_session.fleet.as_ref()
    }

    /// Refuses a member whose rows the ledger does not record.
    pub(super) fn check_member_is_recorded(&self) -> Result<()> {
        if self.fleet().is_none() || self.job.identity.is_some() {
            return Ok(());
        }
        let message = "a member of a fleet loads sources that can be read again";
        Err(Error::new(ErrorKind::Usage, message)
            .hint("Write the rows to a file first, or use `pgspate sync`."))
    }

    /// Records the member's attempt and claims its sources, if the load is a member of a fleet.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another member loads one of the sources, or if the member is done
    /// and its sources are not all in the table.
    pub(super) fn open_member(&mut self, watch: &LoadWatch) -> Result<()> {
        let Some(entry) = self.fleet().cloned() else { return Ok(()) };
        let sources = self.job.identity.iter().flat_map(|identity| &identity.sources);
        let generation = entry.member.generation.as_str();
        let scopes = sources.map(|it| digest_texts(["source", generation, &it.name, &it.url]));
        let scopes: Vec<String> = scopes.collect();
        let (loaded, is_loaded) = (self.loaded_counts(), self.is_loaded());
        let (table, oid) = (self.table.sql_name.clone(), self.table.oid);
        let opened = self.job.with_client_and_retry(&watch.copy, async |client: &Client| {
            let target = MemberTarget { command: "load", table: &table, table_oid: oid };
            let opened = entry.open(client, target).await?;
            if opened.was_done && !is_loaded {
                let is_same = opened.has_claimed(client, &scopes).await?;
                return Err(done_error(&opened.member, is_same));
            }
            opened.claim_scopes(client, &scopes).await?;
            if let Some(counts) = loaded.filter(|_| !opened.was_done) {
                opened.finish(client, &counts).await?;
            }
            Ok(opened)
        })?;
        self.member = Some(opened);
        Ok(())
    }

    /// Returns the counts of a member whose files are all in the table. The member is not marked as
    /// done if its fleet was forgotten.
    fn loaded_counts(&self) -> Option<MemberCounts> {
        let JobLookup::Finished(finished) = &self.job.ledger_state.found else { return None };
        let rejected: u64 = finished.jobs.iter().map(|job| job.rows_rejected.unsigned_abs()).sum();
        let inserted = finished.rows_written;
        Some(MemberCounts { rows_in: inserted + rejected, inserted, ..MemberCounts::default() })
    }

    /// Returns a function that records the failure of the member.
    pub(super) fn failure_recorder(&self) -> impl FnOnce(&Error) + use<> {
        let member = self.member.clone();
        let session = Arc::clone(&self.job.control_session.connection);
        let runtime = self.job.control_session.runtime.clone();
        move |error| {
            if let Some(member) = member {
                // Ignored: without the record, the member's session has ended without success.
                let _ = runtime.block_on(member.fail(&session.client, &failure_words(error)));
            }
        }
    }

    /// Returns the fleet's part of the report of a member that is done. The last member of the
    /// generation does the work that belongs to the whole table. A failure of that work is only a
    /// warning, because the rows are committed; a repeated run of any member then does the work.
    pub(super) fn report_member(&mut self, watch: &LoadWatch) -> Option<MemberReport> {
        let member = self.member.clone()?;
        let completed = match self.tend_table(&member, watch) {
            Ok(completed) => completed,
            Err(error) => {
                let warning = format!("the fleet's work on the table is not done: {error}");
                self.job.warnings.push(warning);
                false
            }
        };
        Some(MemberReport::new(&member, self.fleet()?, completed))
    }

    fn tend_table(&mut self, member: &OpenMember, watch: &LoadWatch) -> Result<bool> {
        let must = self.retry_after_connection_loss(&watch.copy, |load| {
            load.job.with_client(async |client: &Client| member.must_tend(client).await)
        })?;
        if !must {
            return Ok(false);
        }
        let TableTending { analyze, vacuum } = self.tending;
        self.plan.maintenance.analyze = analyze;
        self.plan.maintenance.vacuum = vacuum;
        let rows = self
            .job
            .with_client(async |client: &Client| member.rows_of_generation(client).await)?;
        self.table_care(watch).tend(rows)?;
        self.job.with_client(async |client: &Client| member.record_tended(client).await)?;
        Ok(true)
    }
}

/// Returns the error of a member that is done, and whose sources are not all in the table.
/// `is_same` says whether the member has loaded the same sources before.
fn done_error(member: &FleetMember, is_same: bool) -> Error {
    let (what, hint) = match is_same {
        true => (
            "but its sources have changed since, or rows were removed from the table",
            "Load the sources in another generation.",
        ),
        false => (
            "and has loaded other sources",
            "Load further sources as another member or in another generation.",
        ),
    };
    let message = format!("{} is done in generation {}, {what}", member.name(), member.generation);
    Error::new(ErrorKind::Ledger, message).hint(hint)
}
