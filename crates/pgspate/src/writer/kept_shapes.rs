//! The shapes that a writer keeps, so that callers need not wait for the facts of their table.
//!
//! The facts of a table that is written all the time are read again beside the writes, before they
//! are old. A call after a pause finds old facts, and waits until they were read again: the table
//! may have got a rule, or be unlogged. Types need not be that fresh: the statements prove that the
//! columns have the types that the values were encoded for.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use super::core::WriterCore;
use super::facts::{read_facts, set_up_facts};
use super::lane::is_lock_timeout;
use super::session::connect_error;
use super::shape::{InsertRequest, InsertShape, ShapeFacts, has_outdated_types};
use super::unit::InsertOutcome;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::KEYS_DROPPED;
use pgspate_target::session::ReconnectBackoff;

/// The most shapes that are kept.
const SHAPES_MAX: usize = 1000;
/// How long the facts of a table are used.
const FACTS_LIFETIME: Duration = Duration::from_secs(5);
/// How old the facts are when a call has them read again beside the writes. That leaves time for
/// waits for locks.
const FACTS_RENEWAL: Duration = Duration::from_secs(3);
/// How soon the facts are read again if that failed.
const RENEWAL_PAUSE: Duration = Duration::from_millis(500);
/// How long the facts of a table are not read again if the table was locked. Callers of other
/// tables pass meanwhile.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);
/// How soon the facts are read again if a value was refused.
const RECHECK_PAUSE: Duration = Duration::from_millis(500);

/// A shape that is kept.
#[derive(Debug, Clone)]
pub(super) struct KeptShape {
    shape: Arc<InsertShape>,
    /// When the table's facts were last read.
    read: Instant,
    /// When a task was last asked to read them.
    asked: Instant,
    /// When the facts were last read because a value was refused.
    refused: Option<Instant>,
}

impl WriterCore {
    /// Forgets a shape whose statement was refused, if a change of the table may be the reason.
    pub(super) fn note_refusal(&self, shape: &InsertShape, error: &Error) {
        let code = error.sqlstate().map_or("", SqlState::code);
        // A row of another type, a lost column, table, privilege or unique index.
        if matches!(code, "42804" | "42703" | "42P01" | "42501" | "42P10" | "08P01") {
            self.forget(shape);
        }
    }

    fn forget(&self, shape: &InsertShape) {
        shape.is_outdated.store(true, Ordering::Relaxed);
        let mut shapes = self.shapes();
        if shapes.get(&shape.request).is_some_and(|kept| kept.shape.id == shape.id) {
            shapes.remove(&shape.request);
        }
    }

    /// Returns the shape of a request, if it is kept and may be used before the facts are read
    /// again.
    pub(super) fn kept_shape(
        self: &Arc<WriterCore>,
        request: &InsertRequest,
    ) -> Option<Arc<InsertShape>> {
        let KeptShape { shape, read, asked, .. } = self.shapes().get(request).cloned()?;
        let age = read.elapsed();
        if age > FACTS_LIFETIME {
            return None;
        }
        if age > FACTS_RENEWAL && asked.elapsed() > RENEWAL_PAUSE {
            self.check_in_background(&shape);
        }
        Some(shape)
    }

    /// Returns the shape of a request, from the kept ones or from the server.
    pub(super) async fn shape(
        self: &Arc<WriterCore>,
        request: &InsertRequest,
    ) -> Result<Arc<InsertShape>> {
        if let Some(shape) = self.kept_shape(request) {
            return Ok(shape);
        }
        let (began, limit) = (Instant::now(), self.options.limits.lock_timeout);
        loop {
            // Many callers may ask for a new shape at once. All of them get the first one's.
            let mut connection = self.facts.lock().await;
            if let Some(shape) = self.kept_shape(request) {
                return Ok(shape);
            }
            let may_wait = || limit.is_zero() || began.elapsed() < limit;
            if let Some(pause) = self.locked_pause(&request.table).filter(|_| may_wait()) {
                drop(connection);
                tokio::time::sleep(pause).await;
                continue;
            }
            match self.read_shape(&mut connection, request).await {
                // Whoever asks for another table goes first.
                Err(error) if is_lock_timeout(&error) && may_wait() => {}
                shape => return shape,
            }
        }
    }

    /// Returns how long the facts of a table are not to be read, because it was locked just now.
    fn locked_pause(&self, table: &str) -> Option<Duration> {
        let locked = self.locked_tables.lock().unwrap_or_else(PoisonError::into_inner);
        LOCKED_PAUSE.checked_sub(locked.get(table)?.elapsed())
    }

    fn note_locked(&self, table: &str) {
        let mut locked = self.locked_tables.lock().unwrap_or_else(PoisonError::into_inner);
        locked.retain(|_, at| at.elapsed() < LOCKED_PAUSE);
        locked.insert(table.to_owned(), Instant::now());
    }

    /// Reads the table's facts again. If they have changed, the shape is outdated.
    fn check_in_background(self: &Arc<WriterCore>, shape: &Arc<InsertShape>) {
        if let Some(kept) = self.shapes().get_mut(&shape.request) {
            kept.asked = Instant::now();
        }
        let (core, shape) = (self.clone(), shape.clone());
        self.runtime.spawn(async move {
            let mut connection = core.facts.lock().await;
            // A caller may have read them meanwhile, and then needs them no more.
            let read = core.shapes().get(&shape.request).map(|kept| kept.read);
            let is_old = read.is_some_and(|read| read.elapsed() > FACTS_RENEWAL);
            if !is_old || core.locked_pause(&shape.request.table).is_some() {
                return;
            }
            match core.read_shape(&mut connection, &shape.request).await {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Connect || is_lock_timeout(&error) => {}
                // The load that has dropped the table's keys puts them back.
                Err(error) if error.sqlstate() == Some(&KEYS_DROPPED) => {}
                Err(_) => core.forget(&shape),
            }
        });
    }

    /// Changes the errors of records that were encoded for types which their columns no longer
    /// have, so that their caller encodes them again. Then the shape is read again, too.
    pub(super) async fn mark_outdated(
        &self,
        shape: &InsertShape,
        answers: &mut [Result<InsertOutcome>],
    ) {
        let mut refused: Vec<_> = answers.iter_mut().filter_map(|it| it.as_mut().err()).collect();
        if refused.iter().any(|error| has_outdated_types(error)) {
            self.forget(shape);
        }
        refused.retain(|error| may_be_about_types(error));
        if !refused.is_empty() && self.has_other_types(shape).await {
            refused.into_iter().for_each(|error| *error = shape.outdated_error());
        }
    }

    /// Returns whether the table's columns are known to have other types than the shape's.
    async fn has_other_types(&self, shape: &InsertShape) -> bool {
        let fresh = || {
            let kept = self.shapes().get(&shape.request).cloned();
            kept.filter(|kept| kept.refused.is_some_and(|at| at.elapsed() < RECHECK_PAUSE))
        };
        let differs = |kept: KeptShape| kept.shape.column_types != shape.column_types;
        if let Some(kept) = fresh() {
            return differs(kept);
        }
        let mut connection = self.facts.lock().await;
        // Another caller may have read it meanwhile.
        if let Some(kept) = fresh() {
            return differs(kept);
        }
        let now = self.read_shape(&mut connection, &shape.request).await;
        if let Some(kept) = self.shapes().get_mut(&shape.request) {
            kept.refused = Some(Instant::now());
        }
        now.is_ok_and(|now| now.column_types != shape.column_types)
    }

    /// Reads a shape and keeps it. If the kept one is like it, that one stays, as sessions have
    /// prepared its statements. Connects again if the server was lost, until the time limit.
    async fn read_shape(
        &self,
        connection: &mut Option<Connection>,
        request: &InsertRequest,
    ) -> Result<Arc<InsertShape>> {
        let mut backoff = ReconnectBackoff::new(self.options.limits.retry_for);
        let facts = loop {
            match self.try_read_facts(connection, &request.table).await {
                Ok(facts) => break facts,
                Err(error) if error.is_retryable() => {
                    *connection = None;
                    let Some(pause) = backoff.next_pause() else { return Err(error) };
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    if is_lock_timeout(&error) {
                        self.note_locked(&request.table);
                    }
                    return Err(error);
                }
            }
        };
        facts.table.check_is_user_schema()?;
        facts.table.check_no_rule_instead_of_insert()?;
        let read = InsertShape::new(request.clone(), facts, &self.options)?;
        let mut shapes = self.shapes();
        if let Some(kept) = shapes.get_mut(request) {
            if kept.shape.is_like(&read) {
                kept.read = Instant::now();
                return Ok(kept.shape.clone());
            }
            kept.shape.is_outdated.store(true, Ordering::Relaxed);
        } else if shapes.len() >= SHAPES_MAX {
            shapes.clear();
        }
        let shape = Arc::new(read);
        let now = Instant::now();
        let kept = KeptShape { shape: shape.clone(), read: now, asked: now, refused: None };
        shapes.insert(request.clone(), kept);
        Ok(shape)
    }

    async fn try_read_facts(
        &self,
        kept: &mut Option<Connection>,
        table: &str,
    ) -> Result<ShapeFacts> {
        let connection = self.take_facts_connection(kept).await?;
        let facts = read_facts(&connection, table).await;
        *kept = Some(connection);
        facts
    }

    /// Takes the session that reads facts. Connects if there is none. The caller gives it back when
    /// no statement of it runs any more, so that a dropped future leaves no session behind in the
    /// middle of a transaction.
    pub(super) async fn take_facts_connection(
        &self,
        kept: &mut Option<Connection>,
    ) -> Result<Connection> {
        if let Some(connection) = kept.take().filter(|connection| !connection.is_closed()) {
            return Ok(connection);
        }
        let connected = self.dsn.connect("pgspate write").await;
        let connection = connected.map_err(|error| connect_error(&error))?;
        set_up_facts(&connection, &self.value_settings).await?;
        Ok(connection)
    }

    fn shapes(&self) -> MutexGuard<'_, HashMap<InsertRequest, KeptShape>> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the server has refused a value or its type. The column may take the value by
/// now.
fn may_be_about_types(error: &Error) -> bool {
    let code = error.sqlstate().map_or("", SqlState::code);
    error.kind() == ErrorKind::Server && (code.starts_with("22") || code == "42804")
}
