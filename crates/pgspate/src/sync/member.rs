//! A sync as a member of a fleet: the scopes that it claims, and what it does for the whole table.
//!
//! A member claims its scopes in the transaction that writes them, before it compares. Its row in
//! the ledger is marked as done in the same transaction.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::columns::SyncColumn;
use super::statements::Scope;
use super::{PreparedSync, SyncOptions, SyncReport, vacuum};
use crate::copy::CopyProgress;
use crate::fleet::{FleetEntry, MemberReport, failure_words, name_sources};
use crate::job::RetryAfterConnectionLoss;
use crate::plan::AutoChoice;
use crate::reading::InputOrigin;
use crate::stage::STAGE_NAME;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{MemberCounts, MemberTarget, OpenMember, digest_texts};
use pgspate_target::{TargetColumn, TypedQuery, quote_literal, server_error};

/// Maximum number of connections of a member: the session with its lock and its slot, and the
/// session with the stage. A small source is staged in the first.
const CONNECTIONS: usize = 2;
/// Maximum time to record a member's failure, while the user waits for the command's end.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// Why no member of several has the whole table as its scope.
const OTHERS_DELETED: &str = "each member would delete the others' rows";
/// Oid of the type `numeric`, whose equal values can have different text.
const NUMERIC: u32 = 1700;

/// Oids of types whose values are written as text alike under all settings: bool, integers, text,
/// oid, char, varchar, numeric, uuid.
const FIXED_TEXT_TYPES: [u32; 10] = [16, 20, 21, 23, 25, 26, 1042, 1043, NUMERIC, 2950];

/// Settings that decide how values are written as text. All members must write a value alike.
const TEXT_SETTINGS: &str = "\
set local timezone = 'UTC'; set local datestyle = 'ISO, YMD'; \
set local intervalstyle = 'postgres'; set local bytea_output = 'hex'; \
set local extra_float_digits = 1";

/// Returns the member that the sync is, and adapts the options. `{member}` in the names of sources
/// becomes the index. The table is not read ahead, because a member writes a small part of it.
///
/// # Errors
/// [`ErrorKind::Usage`] if a member cannot have one of the options.
pub(super) fn prepare(options: &mut SyncOptions) -> Result<Option<FleetEntry>> {
    let entry = options.fleet.resolve(true, CONNECTIONS)?;
    let one = "a member is one transaction of one session";
    let is_whole = options.scope == Scope::All;
    let is_alone = entry.as_ref().is_none_or(|it| it.member.members == 1);
    options.fleet.check_excluded(&[
        ("--check", options.is_check, "a check writes nothing"),
        ("--create", options.create, "create the table before the members begin"),
        (
            "--add-columns",
            options.reading.rows.add_columns,
            "add the columns before the members begin",
        ),
        ("--lanes", options.lanes > 1, one),
        ("--transactions", options.transactions > 1, one),
        ("--scope all", is_whole && !is_alone, OTHERS_DELETED),
        (
            "--read-ahead always",
            options.read_ahead == AutoChoice::Always,
            "each member would read the whole table",
        ),
    ])?;
    let Some(entry) = entry else { return Ok(None) };
    if options.table.is_none() {
        return Err(Error::new(ErrorKind::Usage, "a member of a fleet needs the table's name")
            .hint("Name the table with `--table`."));
    }
    if let InputOrigin::Sources(sources) = &mut options.reading.origin {
        name_sources(sources, &entry.member);
    }
    options.read_ahead = AutoChoice::Never;
    Ok(Some(entry))
}

impl PreparedSync {
    /// Records the member's attempt, if the sync is a member of a fleet.
    pub(super) fn open_member(&mut self, progress: &CopyProgress) -> Result<()> {
        let session = &mut self.staging.control_session;
        if session.fleet.is_none() {
            return Ok(());
        }
        let table = &self.staging.table;
        let target = MemberTarget { command: "sync", table: &table.sql_name, table_oid: table.oid };
        let opened = session.retry_after_connection_loss(progress, |session| {
            let Some(entry) = &session.fleet else { return Ok(None) };
            session.with_client(async |client: &Client| entry.open(client, target).await.map(Some))
        });
        let opened = opened.map_err(|error| self.explain_failure(error))?;
        let Some(opened) = opened else { return Ok(()) };
        // A part of an array of jobs does not know how many members the whole array has.
        let is_alone = opened.member.members == 1;
        self.member = Some(opened);
        match is_alone || self.options.scope != Scope::All {
            true => Ok(()),
            false => self.options.fleet.check_excluded(&[("--scope all", true, OTHERS_DELETED)]),
        }
    }

    /// Returns a function that records the failure of the member.
    pub(super) fn failure_recorder(&self) -> impl FnOnce(&Error) + use<> {
        let member = self.member.clone();
        let session: Arc<Connection> = Arc::clone(&self.staging.control_session.connection);
        let dsn = self.staging.control_session.dsn.clone();
        let runtime = self.runtime.clone();
        move |error| {
            let Some(member) = member else { return };
            if session.is_closed() && error.is_retryable() {
                // The lost session may have committed the member's rows.
                return;
            }
            let words = failure_words(error);
            let recording = async {
                if session.is_closed() {
                    // The session was given up in the middle of a COPY.
                    let connection = dsn.connect("pgspate fleet").await?;
                    return member.fail(&connection.client, &words).await;
                }
                match member.fail(&session.client, &words).await {
                    // A late request to cancel the comparison.
                    Err(error) if error.sqlstate() == Some(&SqlState::QUERY_CANCELED) => {
                        member.fail(&session.client, &words).await
                    }
                    recorded => recorded,
                }
            };
            // Ignored: without the record, the member's session has ended without success.
            let _ =
                runtime.block_on(async { tokio::time::timeout(RECORD_TIMEOUT, recording).await });
        }
    }

    /// Returns whether members of the fleet may compare and write at the same time. Their claims of
    /// scopes keep them apart.
    pub(super) fn shares_scope_lock(&self) -> bool {
        self.member.is_some() && (matches!(self.options.scope, Scope::By(_)) || self.has_no_scope())
    }

    /// Records that the generation begins to write, if the sync is a member that deletes no rows.
    /// From then on, members of older generations are refused.
    pub(super) async fn begin_generation(&self, client: &Client) -> Result<()> {
        match &self.member {
            Some(member) if self.has_no_scope() => {
                let timeout = self.options.limits.lock_timeout_millis();
                member.begin_generation(client, timeout).await
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the sync deletes no rows, so that no scope bounds the rows that it writes.
    fn has_no_scope(&self) -> bool {
        matches!(self.options.scope, Scope::NoDelete | Scope::InsertOnly)
    }

    /// Claims the scopes of the staged rows for the member, or locks the distributed engine's job.
    pub(super) async fn claim_scopes(&self, client: &Client) -> Result<()> {
        if let Some(job) = &self.fleet_job {
            job.lock(client, self.table()).await?;
        }
        let Some(member) = &self.member else { return Ok(()) };
        member.share_all_rows(client, self.has_no_scope()).await?;
        let table = &self.staging.table.sql_name;
        let scopes = match &self.options.scope {
            Scope::By(_) => self.read_scopes(client).await?,
            Scope::Where(predicate) => vec![digest_texts(["where", table, predicate])],
            Scope::All => vec![digest_texts(["all", table])],
            Scope::NoDelete | Scope::InsertOnly => Vec::new(),
        };
        member.claim_scopes(client, &scopes).await
    }

    /// Reads the digests of the staged rows' scopes. Equal scopes have equal digests, whatever the
    /// session's settings are.
    async fn read_scopes(&self, client: &Client) -> Result<Vec<String>> {
        let statements = self.build_statements();
        let mut columns = statements.scope_columns();
        columns.sort_by_key(|column| &column.name);
        let texts = columns.iter().map(|column| self.scope_text(column));
        let texts = texts.collect::<Result<Vec<_>>>()?.join(", ");
        let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        let place = quote_literal(&format!("{} by {}", self.table(), names.join(",")));
        let sql = format!(
            "select distinct pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256( \
                 pg_catalog.textsend(pg_catalog.concat({place}, \
                     pg_catalog.jsonb_build_array({texts})::text))), 1, 16), 'hex') \
             from (select distinct {} from {STAGE_NAME}) s",
            names.join(", ")
        );
        let failed = || server_error("could not read the scopes of the source".to_owned());
        let needs_settings = columns.iter().any(|column| {
            let found = self.find_column(column);
            !found.is_some_and(|it| FIXED_TEXT_TYPES.contains(&it.ty.base().oid))
        });
        if needs_settings {
            let begin = format!("savepoint pgspate_scopes; {TEXT_SETTINGS}");
            client.batch_execute(&begin).await.map_err(failed())?;
        }
        let rows = client.fetch_all(&sql, &[]).await.map_err(failed())?;
        if needs_settings {
            let end = "rollback to savepoint pgspate_scopes; release savepoint pgspate_scopes";
            client.batch_execute(end).await.map_err(failed())?;
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Returns the table's column that a sync column is.
    fn find_column(&self, column: &SyncColumn) -> Option<&TargetColumn> {
        let mut columns = self.staging.table.columns.iter();
        columns.find(|it| pgspate_target::quote_ident(&it.name) == *column.name)
    }

    /// Returns SQL for the text of a scope's column in a staged row. Equal values have equal texts.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if there is no such text.
    fn scope_text(&self, column: &SyncColumn) -> Result<String> {
        let name = &column.name;
        match self.find_column(column).is_some_and(|it| it.ty.base().oid == NUMERIC) {
            true => Ok(format!("pg_catalog.trim_scale(s.{name})::text")),
            false if column.is_exact => Ok(format!("s.{name}::text")),
            false => {
                let message = format!(
                    "column {name} of the scope has equal values with different text, so the \
                     ledger cannot tell the members' scopes apart"
                );
                Err(Error::new(ErrorKind::Plan, message)
                    .hint("Name columns of other types with `--scope-by`."))
            }
        }
    }

    /// Marks the member as done, or the distributed engine's job as complete, within the
    /// transaction that writes the rows.
    pub(super) async fn finish_member(
        &self,
        client: &Client,
        report: &mut SyncReport,
    ) -> Result<()> {
        if let Some(job) = &self.fleet_job {
            job.finish(client, self.table(), report).await?;
        }
        let Some(member) = &self.member else { return Ok(()) };
        let SyncReport { rows_in, inserted, updated, deleted, wal_bytes, .. } = *report;
        let unchanged = rows_in.saturating_sub(inserted + updated);
        let counts = MemberCounts { rows_in, inserted, updated, deleted, unchanged, wal_bytes };
        member.finish(client, &counts).await
    }

    /// Adds the fleet to the report of a member that has committed. The last member of the
    /// generation does the work that belongs to the whole table. A failure of that work is only a
    /// warning, because the rows are committed; a repeated run of any member then does the work.
    pub(super) async fn report_member(&self, session: &Connection, report: &mut SyncReport) {
        let (Some(member), Some(entry)) = (&self.member, &self.staging.control_session.fleet)
        else {
            return;
        };
        let completed = match self.tend_table(member, session, report).await {
            Ok(completed) => completed,
            Err(error) => {
                report.warnings.push(format!("the fleet's work on the table is not done: {error}"));
                false
            }
        };
        report.fleet = Some(MemberReport::new(member, entry, completed));
    }

    async fn tend_table(
        &self,
        member: &OpenMember,
        session: &Connection,
        report: &mut SyncReport,
    ) -> Result<bool> {
        let control = &self.staging.control().client;
        if !member.must_tend(control).await? {
            return Ok(false);
        }
        if self.options.vacuums {
            vacuum::run(session, self.table(), report).await;
        }
        member.record_tended(control).await.map(|()| true)
    }
}
