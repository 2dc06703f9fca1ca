//! One round: what is left of some events, staged and written in the transaction that is open.
//!
//! Rows that go, go first, so that their unique values are free; but rows to which others may refer
//! go last, when nobody does any more, so that no foreign key is violated or acts on rows that have
//! moved on. Tables that are referred to come before those that refer. The statements and their
//! order are the same wherever the rows are.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::session::WriterSession;
use crate::apply::batch::Prepared;
use crate::apply::route::{ApplyTable, parents_first};
use crate::apply::watch::ApplyWatch;
use crate::apply::write::ApplyCounts;
use crate::apply::write::statements::{RowSource, ApplyStatements};
use crate::copy::fill;
use crate::format::Mode;
use crate::{Error, ErrorKind, Result};

/// Up to so many rows are looked up one by one.
const SMALL_ROWS: u64 = 1000;

/// A table and its rows.
pub(super) struct RoundTable<'a> {
    pub(super) facts: &'a ApplyTable,
    pub(super) prepared: &'a EncodedTable,
    statements: ApplyStatements<'a>,
}

/// The tables of a batch, those that are referred to first. `frees`: as in [`write`].
pub(super) fn parts<'a>(
    tables: &'a [Arc<ApplyTable>],
    prepared: &'a [EncodedTable],
    source: RowSource,
    frees: bool,
) -> Vec<RoundTable<'a>> {
    let part = |prepared: &'a EncodedTable| {
        let facts = &*tables[prepared.table];
        let statements = ApplyStatements::new(facts, prepared, source, frees && facts.may_free());
        RoundTable { facts, prepared, statements }
    };
    let facts: Vec<_> = prepared.iter().map(|it| &*tables[it.table]).collect();
    let mut parts: Vec<_> =
        parents_first(&facts).into_iter().zip(prepared.iter().map(part)).collect();
    parts.sort_by_key(|(place, _)| *place);
    parts.into_iter().map(|(_, part)| part).collect()
}

impl RoundTable<'_> {
    pub(super) fn rows(&self) -> u64 {
        self.prepared.goes + self.prepared.comes
    }

    /// Whether rows of a table without a key go first, so that their unique values are free; unless
    /// others may refer to them, which would then be refused or go along.
    fn goes_whole_first(&self) -> bool {
        !self.facts.has_key() && self.facts.referrers.is_empty()
    }
}

/// A statement on the rows of a part.
pub(super) struct RoundStep {
    /// Which part.
    pub(super) part: usize,
    pub(super) sql: String,
    /// Completes "could not".
    pub(super) what: String,
    pub(super) does: StepAction,
}

/// What a statement does, or asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepAction {
    /// Fills in what staged rows have from elsewhere.
    Complete,
    /// Has rows go and come again.
    Free,
    Delete,
    /// Of a table without a key: rows that come and go again are not written.
    Cancel,
    /// Of a table without a key.
    DeleteWhole,
    Update,
    Insert,
    /// Asks whether one key is staged twice.
    AskDuplicates,
    /// Asks whether a row takes a key that another row of the target has.
    AskTakes,
    /// Asks how many rows that are changed are not there.
    AskMissing,
    /// Asks whether rows that go only as their key changes would take others with them.
    AskFollowers,
}

impl StepAction {
    /// Whether it asks for a value.
    pub(super) fn asks(self) -> bool {
        use StepAction::{AskDuplicates, AskFollowers, AskMissing, AskTakes};
        matches!(self, AskDuplicates | AskTakes | AskMissing | AskFollowers)
    }
}

/// The statements on what is staged, in their order.
pub(super) fn steps(parts: &[RoundTable<'_>]) -> Vec<RoundStep> {
    let mut steps = StepList { parts, all: Vec::new() };
    for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.rows() > 0) {
        steps.complete(at, part);
    }
    let is_early = |part: &RoundTable<'_>| !part.facts.is_referenced || part.statements.frees();
    for (at, part) in parts.iter().enumerate().rev() {
        if is_early(part) {
            steps.delete(at, part, true);
        }
        if part.goes_whole_first() {
            steps.delete_whole(at, part);
        }
    }
    for (at, part) in parts.iter().enumerate() {
        let inserts_first = part.facts.refers_to_itself() || !part.facts.has_key();
        if inserts_first {
            steps.insert(at, part);
        }
        steps.update(at, part);
        if !inserts_first {
            steps.insert(at, part);
        }
        if !part.goes_whole_first() {
            steps.delete_whole(at, part);
        }
    }
    for (at, part) in parts.iter().enumerate().rev() {
        if !part.facts.is_referenced {
            continue;
        }
        if let (Some(sql), true) = (part.statements.takes_along(), part.prepared.has_left) {
            steps.add(at, StepAction::AskFollowers, "look up what refers to @", sql);
        }
        steps.delete(at, part, false);
    }
    steps.all
}

/// Collects statements.
struct StepList<'a> {
    parts: &'a [RoundTable<'a>],
    all: Vec<RoundStep>,
}

impl StepList<'_> {
    /// `what` has `@` for the table's name.
    fn add(&mut self, part: usize, does: StepAction, what: &str, sql: String) {
        let what = what.replace('@', &self.parts[part].facts.table.sql_name);
        self.all.push(RoundStep { part, sql, what, does });
    }

    /// Fills in what staged rows have from elsewhere, and counts those that have no row to change.
    fn complete(&mut self, at: usize, part: &RoundTable<'_>) {
        let (prepared, statements) = (part.prepared, &part.statements);
        if !part.facts.has_key() {
            self.cancel(at, part);
            return;
        }
        if prepared.has_takes {
            let what = "look up keys of @ that change hands";
            self.add(at, StepAction::AskTakes, what, statements.takes());
            self.add(at, StepAction::Complete, what, statements.forget_takes());
        }
        if prepared.is_loose && part.rows() > 1 {
            let sql = statements.duplicates();
            self.add(at, StepAction::AskDuplicates, "compare the keys of staged rows of @", sql);
        }
        if prepared.has_moves {
            let what = "look up rows of @ whose key changes";
            self.add(at, StepAction::Complete, what, statements.fill_moves());
        }
        if prepared.has_fresh {
            self.add(at, StepAction::Complete, "fill in defaults of @", statements.fill_fresh());
        }
        if prepared.has_changes {
            let what = "look up rows of @ that are updated";
            self.add(at, StepAction::AskMissing, what, statements.missing());
        }
        let what = "look up rows of @ whose unique values change hands";
        for sql in statements.free() {
            self.add(at, StepAction::Free, what, sql);
        }
    }

    /// Takes rows of a table without a key out of the stage that come and go again.
    fn cancel(&mut self, at: usize, part: &RoundTable<'_>) {
        let (prepared, statements) = (part.prepared, &part.statements);
        if prepared.goes == 0 || prepared.comes == 0 {
            return;
        }
        if let Some(sql) = statements.fill_whole() {
            self.add(at, StepAction::Complete, "fill in defaults of @", sql);
        }
        self.add(at, StepAction::Cancel, "compare staged rows of @", statements.cancel());
    }

    fn delete_whole(&mut self, at: usize, part: &RoundTable<'_>) {
        if part.prepared.goes > 0 && !part.facts.has_key() {
            self.add(at, StepAction::DeleteWhole, "delete rows of @", part.statements.delete_whole());
        }
    }

    fn delete(&mut self, at: usize, part: &RoundTable<'_>, is_early: bool) {
        let may_be = part.prepared.goes > 0 || (is_early && part.statements.frees());
        if may_be && part.facts.has_key() {
            self.add(at, StepAction::Delete, "delete rows of @", part.statements.delete(is_early));
        }
    }

    fn update(&mut self, at: usize, part: &RoundTable<'_>) {
        let is_empty = part.prepared.truncates || !part.facts.has_key();
        if part.prepared.comes > 0
            && !is_empty
            && let Some(sql) = part.statements.update()
        {
            self.add(at, StepAction::Update, "update rows of @", sql);
        }
    }

    fn insert(&mut self, at: usize, part: &RoundTable<'_>) {
        if part.prepared.comes > 0 {
            self.add(at, StepAction::Insert, "insert rows into @", part.statements.insert());
        }
    }
}

/// Adds what a statement did: the rows that it wrote, or the number that it was asked for.
pub(super) fn count(step: &RoundStep, part: &RoundTable<'_>, rows: u64, counts: &mut ApplyCounts) {
    match step.does {
        StepAction::Delete => counts.deleted += rows,
        StepAction::DeleteWhole => {
            counts.deleted += rows;
            counts.missing += part.prepared.goes.saturating_sub(rows);
        }
        StepAction::Cancel => counts.cancelled += rows / 2,
        StepAction::Update => counts.updated += rows,
        StepAction::Insert => counts.inserted += rows,
        StepAction::AskMissing => counts.missing += rows,
        StepAction::Free => {
            counts.updated += rows;
            counts.freed += rows;
        }
        StepAction::Complete | StepAction::AskDuplicates | StepAction::AskTakes | StepAction::AskFollowers => {}
    }
}

/// Writes what is prepared. `frees`: rows to which nothing refers go early, also where keys could
/// refer to them, and go and come again if they are to have unique values that others have, as no
/// statement could exchange these. What it did.
pub(super) async fn write(
    session: &mut WriterSession,
    tables: &[Arc<ApplyTable>],
    prepared: &[EncodedTable],
    frees: bool,
    watch: &ApplyWatch,
) -> Result<ApplyCounts> {
    let parts = parts(tables, prepared, RowSource::Stage, frees);
    if let Some(part) = parts.iter().find(|part| part.prepared.has_clash) {
        return Err(taken(&part.facts.table.sql_name));
    }
    let searches = |part: &RoundTable<'_>| !part.facts.has_key() && part.prepared.goes > 0;
    let is_small = parts.iter().map(RoundTable::rows).sum::<u64>() <= SMALL_ROWS;
    session.plan_for(is_small && !parts.iter().any(searches)).await?;
    let mut counts = ApplyCounts::default();
    truncate(session, &parts, &mut counts).await?;
    for part in &parts {
        counts.missing += part.prepared.missing;
        if part.rows() > 0 {
            stage(session, part).await?;
        }
    }
    let mut steps = steps(&parts).into_iter().peekable();
    while let Some(step) = steps.next() {
        if steps.peek().is_none() {
            watch.near_end_of_batch();
        }
        run(session, &step, &parts[step.part], &mut counts).await?;
    }
    // These were updates, whatever they took.
    counts.deleted -= counts.freed;
    counts.inserted -= counts.freed;
    counts.freed = 0;
    // Rows that came and went have not been looked for, nor written.
    counts.missing -= counts.cancelled;
    counts.inserted += counts.cancelled;
    counts.deleted += counts.cancelled;
    counts.cancelled = 0;
    Ok(counts)
}

async fn run(
    session: &mut WriterSession,
    step: &RoundStep,
    part: &RoundTable<'_>,
    counts: &mut ApplyCounts,
) -> Result<()> {
    let name = &part.facts.table.sql_name;
    let rows = match step.does {
        StepAction::AskDuplicates if session.ask::<bool>(&step.sql, &step.what).await? => {
            return Err(same_key(name));
        }
        StepAction::AskTakes if session.ask::<bool>(&step.sql, &step.what).await? => {
            return Err(taken(name));
        }
        StepAction::AskFollowers if session.ask::<bool>(&step.sql, &step.what).await? => {
            return Err(followed(name));
        }
        StepAction::AskDuplicates | StepAction::AskTakes | StepAction::AskFollowers => 0,
        StepAction::AskMissing => session.ask::<i64>(&step.sql, &step.what).await?.unsigned_abs(),
        _ => session.execute(&step.sql, &step.what).await?,
    };
    count(step, part, rows, counts);
    Ok(())
}

/// Gives the one row that is prepared its other key where it is, as a statement of the source did.
/// Whether it was there, and could be.
pub(super) async fn move_row(
    session: &mut WriterSession,
    facts: &ApplyTable,
    prepared: &EncodedTable,
) -> Result<bool> {
    let statements = ApplyStatements::new(facts, prepared, RowSource::Stage, false);
    let part = RoundTable { facts, prepared, statements };
    let Some(sql) = part.statements.move_row() else { return Ok(false) };
    session.plan_for(true).await?;
    stage(session, &part).await?;
    let what = format!("update the key of a row of {}", facts.table.sql_name);
    Ok(session.execute(&sql, &what).await? == 1)
}

async fn truncate(session: &WriterSession, parts: &[RoundTable<'_>], counts: &mut ApplyCounts) -> Result<()> {
    let emptied = parts.iter().filter(|part| part.prepared.truncates);
    let names: Vec<_> = emptied.map(|part| part.facts.itself()).collect();
    if names.is_empty() {
        return Ok(());
    }
    counts.truncated += names.len() as u64;
    // All at once, as foreign keys among them ask for.
    let names = names.join(", ");
    session.run(&format!("truncate {names}"), &format!("truncate {names}")).await
}

async fn stage(session: &mut WriterSession, part: &RoundTable<'_>) -> Result<()> {
    session.stage(part.facts).await?;
    let encoded = &part.prepared.encoded;
    let (binary_rows, text_rows) = (encoded.binary_rows, encoded.text_rows.len() as u64);
    let name = &part.facts.table.sql_name;
    let failed = |error: Error| {
        let kind = error.kind();
        Error::new(kind, format!("could not stage rows for {name}")).because(error)
    };
    let staged = session.staged(part.facts.table.oid, binary_rows + text_rows);
    let Some(staged) = staged else { return Err(Error::new(ErrorKind::Bug, "there is no stage")) };
    let (binary, text) = (staged.binary.clone(), staged.text.clone());
    let connection = &session.connection;
    for (mode, statement, rows, count) in [
        (Mode::Binary, &binary, &encoded.binary, binary_rows),
        (Mode::Text, &text, &encoded.text, text_rows),
    ] {
        if count > 0 {
            fill::copy(connection, statement, mode, rows, count).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Two keys that are spelled differently are one to the server: their events are to be applied one
/// after the other.
fn same_key(name: &str) -> Error {
    Error::new(ErrorKind::Server, format!("two spellings of one key of {name}"))
        .with_sqlstate(SqlState::CARDINALITY_VIOLATION)
}

/// A row comes to a key that another row has, and no transaction says when that one leaves it.
fn taken(name: &str) -> Error {
    let message = format!(
        "a row of {name} gets the key of another row, and the stream does not say where its \
         transaction ends"
    );
    Error::new(ErrorKind::Server, message).with_sqlstate(SqlState::UNIQUE_VIOLATION).hint(
        "Rows that exchange their keys need a stream with transactions, as wal2json writes by \
         default (`include-transaction`).",
    )
}

/// Rows are not deleted which others follow, where it is only their key that changes.
fn followed(name: &str) -> Error {
    let message = format!(
        "rows still refer to a row of {name} whose key changes, and their foreign key would delete \
         or change them with it"
    );
    Error::new(ErrorKind::Server, message).with_sqlstate(SqlState::FOREIGN_KEY_VIOLATION)
}
