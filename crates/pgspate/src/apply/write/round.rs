//! One round: what is left of some events, staged and written in the transaction that is open.
//!
//! Rows that go, go first, so that their unique values are free; but rows to which others may refer
//! go last, when nobody does any more, so that no foreign key is violated or acts on rows that have
//! moved on. Tables that are referred to come before those that refer.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::session::Session;
use crate::apply::facts::Facts;
use crate::apply::order::parents_first;
use crate::apply::prepare::Prepared;
use crate::apply::report::Counts;
use crate::apply::statements::Statements;
use crate::stage::fill;
use crate::{Error, Kind, Result};

/// Up to so many rows are looked up one by one.
const SMALL_ROWS: u64 = 1000;

/// A table and its rows.
struct Part<'a> {
    facts: &'a Facts,
    prepared: &'a Prepared,
    statements: Statements<'a>,
}

/// Writes what is prepared. `frees`: rows to which nothing refers go early, also where keys could
/// refer to them, and go and come again if they are to have unique values that others have, as no
/// statement could exchange these. What it did.
pub(super) async fn write(
    session: &mut Session,
    tables: &[Arc<Facts>],
    prepared: &[Prepared],
    frees: bool,
) -> Result<Counts> {
    let part = |prepared| {
        let prepared: &Prepared = prepared;
        let facts = &*tables[prepared.table];
        let statements = Statements::new(facts, prepared, frees && facts.may_free());
        Part { facts, prepared, statements }
    };
    let facts: Vec<_> = prepared.iter().map(|it| &*tables[it.table]).collect();
    let mut parts: Vec<_> =
        parents_first(&facts).into_iter().zip(prepared.iter().map(part)).collect();
    parts.sort_by_key(|(place, _)| *place);
    let parts: Vec<Part<'_>> = parts.into_iter().map(|(_, part)| part).collect();
    let rows = |part: &Part<'_>| part.prepared.goes + part.prepared.comes;
    let searches = |part: &Part<'_>| !part.facts.has_key() && part.prepared.goes > 0;
    let is_small = parts.iter().map(rows).sum::<u64>() <= SMALL_ROWS;
    session.plan_for(is_small && !parts.iter().any(searches)).await?;
    let mut counts = Counts::default();
    truncate(session, &parts, &mut counts).await?;
    for part in &parts {
        counts.missing += part.prepared.missing;
        if rows(part) > 0 {
            stage(session, part).await?;
            complete(session, part, &mut counts).await?;
        }
    }
    let is_early = |part: &&Part<'_>| !part.facts.is_referenced || part.statements.frees();
    for part in parts.iter().rev().filter(is_early) {
        delete(session, part, true, &mut counts).await?;
    }
    for part in &parts {
        let inserts_first = part.facts.refers_to_itself() || !part.facts.has_key();
        if inserts_first {
            insert(session, part, &mut counts).await?;
        }
        update(session, part, &mut counts).await?;
        if !inserts_first {
            insert(session, part, &mut counts).await?;
        }
        delete_whole(session, part, &mut counts).await?;
    }
    for part in parts.iter().rev().filter(|part| part.facts.is_referenced) {
        keep_followers(session, part).await?;
        delete(session, part, false, &mut counts).await?;
    }
    // These were updates, whatever they took.
    counts.deleted -= counts.freed;
    counts.inserted -= counts.freed;
    counts.freed = 0;
    Ok(counts)
}

/// Gives the one row that is prepared its other key where it is, as a statement of the source did.
/// Whether it was there, and could be.
pub(super) async fn move_row(
    session: &mut Session,
    facts: &Facts,
    prepared: &Prepared,
) -> Result<bool> {
    let part = Part { facts, prepared, statements: Statements::new(facts, prepared, false) };
    let Some(sql) = part.statements.move_row() else { return Ok(false) };
    session.plan_for(true).await?;
    stage(session, &part).await?;
    let what = format!("update the key of a row of {}", facts.table.sql_name);
    Ok(session.execute(&sql, &what).await? == 1)
}

async fn truncate(session: &Session, parts: &[Part<'_>], counts: &mut Counts) -> Result<()> {
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

async fn stage(session: &mut Session, part: &Part<'_>) -> Result<()> {
    session.stage(part.facts).await?;
    let encoded = &part.prepared.encoded;
    let (binary_rows, text_rows) = (encoded.binary_rows, encoded.text_rows.len() as u64);
    let name = &part.facts.table.sql_name;
    let failed = |error: Error| {
        let kind = error.kind();
        Error::new(kind, format!("could not stage rows for {name}")).because(error)
    };
    let staged = session.staged(part.facts.table.oid, binary_rows + text_rows);
    let Some(staged) = staged else { return Err(Error::new(Kind::Bug, "there is no stage")) };
    let (binary, text) = (staged.binary.clone(), staged.text.clone());
    let connection = &session.connection;
    if binary_rows > 0 {
        fill::binary(connection, &binary, &encoded.binary, binary_rows).await.map_err(failed)?;
    }
    if text_rows > 0 {
        fill::text(connection, &text, &encoded.text, text_rows).await.map_err(failed)?;
    }
    if part.prepared.is_loose {
        let what = "compare the keys of staged rows";
        if session.ask::<bool>(&part.statements.duplicates(), what).await? {
            return Err(same_key(name));
        }
    }
    Ok(())
}

/// Two keys that are spelled differently are one to the server: their events are to be applied one
/// after the other.
fn same_key(name: &str) -> Error {
    Error::new(Kind::Server, format!("two spellings of one key of {name}"))
        .with_sqlstate(SqlState::CARDINALITY_VIOLATION)
}

/// Fills in what staged rows have from elsewhere, and counts those that have no row to change.
async fn complete(session: &mut Session, part: &Part<'_>, counts: &mut Counts) -> Result<()> {
    let name = &part.facts.table.sql_name;
    if part.prepared.has_moves {
        let what = format!("look up rows of {name} whose key changes");
        session.execute(&part.statements.fill_moves(), &what).await?;
    }
    if part.prepared.has_fresh {
        let what = format!("fill in defaults of {name}");
        session.execute(&part.statements.fill_fresh(), &what).await?;
    }
    if part.prepared.has_changes {
        let what = format!("look up rows of {name} that are updated");
        let missing: i64 = session.ask(&part.statements.missing(), &what).await?;
        counts.missing += missing.unsigned_abs();
    }
    for sql in part.statements.free() {
        let what = format!("look up rows of {name} whose unique values change hands");
        let freed = session.execute(&sql, &what).await?;
        counts.updated += freed;
        counts.freed += freed;
    }
    Ok(())
}

/// Refuses to delete rows that others follow, where it is only their key that changes.
async fn keep_followers(session: &mut Session, part: &Part<'_>) -> Result<()> {
    let sql = part.statements.takes_along().filter(|_| part.prepared.has_left);
    let Some(sql) = sql else { return Ok(()) };
    let name = &part.facts.table.sql_name;
    if !session.ask::<bool>(&sql, &format!("look up what refers to {name}")).await? {
        return Ok(());
    }
    let message = format!(
        "rows still refer to a row of {name} whose key changes, and their foreign key would delete \
         or change them with it"
    );
    Err(Error::new(Kind::Server, message).with_sqlstate(SqlState::FOREIGN_KEY_VIOLATION))
}

async fn delete(
    session: &mut Session,
    part: &Part<'_>,
    is_early: bool,
    counts: &mut Counts,
) -> Result<()> {
    let may_be = part.prepared.goes > 0 || (is_early && part.statements.frees());
    if may_be && part.facts.has_key() {
        let what = format!("delete rows of {}", part.facts.table.sql_name);
        counts.deleted += session.execute(&part.statements.delete(is_early), &what).await?;
    }
    Ok(())
}

async fn delete_whole(session: &mut Session, part: &Part<'_>, counts: &mut Counts) -> Result<()> {
    if part.prepared.goes > 0 && !part.facts.has_key() {
        let what = format!("delete rows of {}", part.facts.table.sql_name);
        let deleted = session.execute(&part.statements.delete_whole(), &what).await?;
        counts.deleted += deleted;
        counts.missing += part.prepared.goes.saturating_sub(deleted);
    }
    Ok(())
}

async fn update(session: &mut Session, part: &Part<'_>, counts: &mut Counts) -> Result<()> {
    let is_empty = part.prepared.truncates || !part.facts.has_key();
    if part.prepared.comes > 0
        && !is_empty
        && let Some(sql) = part.statements.update()
    {
        let what = format!("update rows of {}", part.facts.table.sql_name);
        counts.updated += session.execute(&sql, &what).await?;
    }
    Ok(())
}

async fn insert(session: &mut Session, part: &Part<'_>, counts: &mut Counts) -> Result<()> {
    if part.prepared.comes > 0 {
        let what = format!("insert rows into {}", part.facts.table.sql_name);
        counts.inserted += session.execute(&part.statements.insert(), &what).await?;
    }
    Ok(())
}
