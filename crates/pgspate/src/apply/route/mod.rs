//! Events to tables and columns of the target, and into a log.
//!
//! Tables are looked up when the stream names them first. Used by the one thread that decodes.

mod facts;
mod layouts;
mod names;
mod order;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

pub(crate) use facts::{ApplyTable, ApplyColumn};
pub(crate) use names::TableMap;
pub(crate) use order::{circle, parents_first};

use crate::{Error, ErrorKind, Result};
use layouts::Target;
use pgspate_events::decode::{TargetTypes, own_format};
use pgspate_events::fold;
use pgspate_events::log::{LoggedEvent, EventLog, LoggedRow};
use pgspate_events::{ChangeEvent, SourceTable, ChangeKind, EventRow, EventPlace};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::session::{Limits, Patience, Stop, heeding, stopped};
use pgspate_target::{Session, read_session};

/// What the server calls the session.
const NAME: &str = "pgspate apply";

/// Opens the session that looks at tables.
async fn open(dsn: &Dsn, limits: &Limits) -> Result<Connection> {
    let connection = dsn.connect(NAME).await?;
    let timeouts = limits.session_sql();
    let set = connection.client.batch_execute(&timeouts).await;
    set.map_err(|error| connection.explain("could not set up the session", error))?;
    Ok(connection)
}

/// What becomes of columns that the target does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownColumns {
    /// The event is refused.
    #[default]
    Fail,
    /// They are passed over.
    Ignore,
    /// They are added to the table, of type text.
    Add,
}

/// Knows where events go.
pub(crate) struct Router {
    inner: RefCell<RouterState>,
}

struct RouterState {
    dsn: Dsn,
    connection: Connection,
    runtime: Handle,
    session: Session,
    names: TableMap,
    unknown: UnknownColumns,
    targets: Vec<TargetTable>,
    /// `None` for tables that are left out.
    known: HashMap<SourceTable, Option<usize>>,
    last: Option<(Arc<SourceTable>, Option<usize>)>,
    /// What went wrong where it could not be told.
    fault: Option<Error>,
    additions: Vec<String>,
    /// When a table was last read again.
    refreshed: Option<Instant>,
    limits: Limits,
    /// The connection is of no use any more.
    has_lost: bool,
    /// Of a run: ends what waits for the target. Without one a lost session is an error.
    unwanted: Option<Stop>,
    /// Updates may leave out columns that did not change without naming them.
    leaves_out: bool,
}

/// A table that lacks columns is not read again before so long.
const REFRESH: Duration = Duration::from_secs(1);
/// Where an event stands, and how many of the stream come before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventPlace {
    pub(crate) event_place: EventPlace,
    pub(crate) ordinal: u64,
}

impl Router {
    pub(crate) async fn new(
        dsn: Dsn,
        names: TableMap,
        unknown: UnknownColumns,
        limits: Limits,
        runtime: Handle,
    ) -> Result<Router> {
        let connection = open(&dsn, &limits).await?;
        let session = read_session(&connection.client).await?;
        let inner = RouterState {
            dsn,
            connection,
            runtime,
            session,
            names,
            unknown,
            targets: Vec::new(),
            known: HashMap::new(),
            last: None,
            fault: None,
            additions: Vec::new(),
            refreshed: None,
            limits,
            has_lost: false,
            unwanted: None,
            leaves_out: false,
        };
        Ok(Router { inner: RefCell::new(inner) })
    }

    /// From now on waits for a target that is away, until events are `unwanted`.
    pub(crate) fn wait_until(&self, unwanted: &Stop) {
        self.inner.borrow_mut().unwanted = Some(unwanted.clone());
    }

    /// From now on updates may leave out columns that did not change without naming them.
    pub(crate) fn expect_left_out(&self) {
        self.inner.borrow_mut().leaves_out = true;
    }

    /// The table that an event goes to, where that is known, and the event in pgspate's own format.
    pub(crate) fn letter(&self, event: &ChangeEvent) -> (Option<String>, String) {
        let inner = &*self.inner.borrow();
        let at = inner.known.get(&*event.table).copied().flatten();
        match at.map(|at| &inner.targets[at].facts.table) {
            Some(table) => {
                let payload = own_format::write_event(event, Some(&table.schema), &table.name);
                (Some(table.sql_name.clone()), payload)
            }
            None => {
                let SourceTable { schema, table } = &*event.table;
                (None, own_format::write_event(event, schema.as_deref(), table))
            }
        }
    }

    /// Adds an event to the log. False where its table is left out.
    ///
    /// # Errors
    /// Of [`ErrorKind::Format`] for an event that cannot be applied; others when the target cannot
    /// be looked at, or has no such table. The log is as it was then.
    pub(crate) fn add(&self, event: &ChangeEvent, log: &mut EventLog, at: EventPlace) -> Result<bool> {
        let inner = &mut *self.inner.borrow_mut();
        let Some(table) = inner.table(&event.table)? else { return Ok(false) };
        let rows = [&event.new, &event.old];
        inner.targets[table].make_room();
        if rows.into_iter().flatten().any(|row| inner.targets[table].lacks(row)) {
            inner.refresh(table)?;
        }
        let (unknown, leaves_out) = (inner.unknown, inner.leaves_out);
        let target = &mut inner.targets[table];
        for row in rows.into_iter().flatten() {
            target.learn(row, unknown, &mut inner.additions)?;
        }
        if let (ChangeKind::Insert | ChangeKind::Snapshot, Some(row)) = (event.op, &event.new) {
            target.check_told(row)?;
        }
        let width = target.facts.columns.len();
        let mut first: Option<LoggedRow> = None;
        let mut add = |row: &Option<EventRow>, log: &mut EventLog| -> Result<Option<LoggedRow>> {
            let Some(row) = row else { return Ok(None) };
            let layout = target.layout(row)?;
            let at = log.row(width, &layout.columns, &row.values)?;
            first.get_or_insert(at);
            Ok(Some(at))
        };
        let new = add(&event.new, log)?;
        let old = add(&event.old, log)?;
        let is_complete = match &event.new {
            Some(row) => target.is_complete(row, leaves_out && event.op == ChangeKind::Update)?,
            None => false,
        };
        if let (ChangeKind::Update, Some(key)) = (event.op, &event.key) {
            target.check_key(key, event.old.as_ref()).inspect_err(|_| {
                first.into_iter().for_each(|first| log.forget(first));
            })?;
        }
        let change = LoggedEvent {
            table,
            op: event.op,
            new,
            old,
            width: width as u16,
            is_complete,
            ends: event.ends_transaction,
            event_place: at.event_place,
            ordinal: at.ordinal,
        };
        let all: Vec<usize> = match target.facts.has_key() {
            true => Vec::new(),
            false => (0..width).collect(),
        };
        if let Err(error) = fold::check(log, &change, &target.facts.keying, &all) {
            if let Some(first) = first {
                log.forget(first);
            }
            let (op, name) = (event.op.name(), &target.facts.table.sql_name);
            let message = format!("could not apply the {op} of {name}");
            return Err(Error::new(error.kind(), message).because(error));
        }
        log.push(change);
        Ok(true)
    }

    /// What is known of the table that events of a table go to; `None` where it is left out.
    ///
    /// # Errors
    /// A target that cannot be looked at, or has no such table.
    pub(crate) fn facts(&self, name: &SourceTable) -> Result<Option<Arc<ApplyTable>>> {
        let inner = &mut *self.inner.borrow_mut();
        let at = inner.table(&Arc::new(name.clone()))?;
        Ok(at.map(|at| Arc::clone(&inner.targets[at].facts)))
    }

    /// Learns which columns an event names, without adding it.
    pub(crate) fn see(&self, event: &ChangeEvent) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let Some(at) = inner.table(&event.table)? else { return Ok(()) };
        inner.targets[at].make_room();
        for row in [&event.new, &event.old].into_iter().flatten() {
            // What was refused before is refused no more.
            let _ = inner.targets[at].learn(row, UnknownColumns::Ignore, &mut inner.additions);
        }
        Ok(())
    }

    /// Forgets what was passed over only because its events are applied already.
    pub(crate) fn end_of_seen(&self) {
        self.inner.borrow_mut().targets.iter_mut().for_each(TargetTable::forget_ignored);
    }

    /// What went wrong while a decoder asked for types.
    pub(crate) fn take_fault(&self) -> Option<Error> {
        self.inner.borrow_mut().fault.take()
    }

    /// The tables so far.
    pub(crate) fn tables(&self) -> Vec<Arc<ApplyTable>> {
        self.inner.borrow().targets.iter().map(|target| Arc::clone(&target.facts)).collect()
    }

    /// Statements that add the columns which were unknown since the last call.
    pub(crate) fn take_additions(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.borrow_mut().additions)
    }
}

impl TargetTypes for Router {
    fn of(&self, table: &SourceTable, column: &str) -> Option<Arc<str>> {
        let inner = &mut *self.inner.borrow_mut();
        let found = match inner.known.get(table) {
            Some(found) => Ok(*found),
            None => inner.look_up(table),
        };
        match found {
            Ok(at) => {
                let facts = &inner.targets[at?].facts;
                let found = facts.columns.iter().find(|known| known.name == column)?;
                Some(Arc::clone(&found.typname))
            }
            Err(error) => {
                inner.fault = Some(error);
                None
            }
        }
    }

    fn ignores(&self, table: &SourceTable, column: &str) -> bool {
        self.inner.borrow().ignores(table, column)
    }
}

impl RouterState {
    /// Whether a column of a table's events is one that the target does not have, and need not.
    fn ignores(&self, table: &SourceTable, column: &str) -> bool {
        let lacks = |at: usize| !self.targets[at].facts.has_column(column);
        match self.known.get(table) {
            Some(at) => self.unknown == UnknownColumns::Ignore && at.is_none_or(lacks),
            None => false,
        }
    }

    fn table(&mut self, name: &Arc<SourceTable>) -> Result<Option<usize>> {
        if let Some((last, at)) = &self.last
            && Arc::ptr_eq(last, name)
        {
            return Ok(*at);
        }
        let at = match self.known.get(&**name) {
            Some(at) => *at,
            None => self.look_up(name)?,
        };
        self.last = Some((Arc::clone(name), at));
        Ok(at)
    }

    /// The facts of a table; in a new session, if the one there was is lost.
    fn read(&mut self, sql: &str) -> Result<Option<ApplyTable>> {
        let mut patience = Patience::new(self.limits.retry_for);
        let (runtime, unwanted) = (self.runtime.clone(), self.unwanted.clone());
        let is_over = || unwanted.as_ref().is_some_and(Stop::is_requested);
        loop {
            match runtime.block_on(self.try_read(sql, is_over)) {
                Err(_) if is_over() => return Err(stopped()),
                Err(error) if error.is_retryable() => {
                    if unwanted.is_none() || !patience.wait(is_over) {
                        return Err(error);
                    }
                    self.has_lost = true;
                }
                read => return read,
            }
        }
    }

    /// The same once. What is locked is waited for as long as `--lock-timeout` says, or until it
    /// `is_over`.
    async fn try_read(&mut self, sql: &str, is_over: impl Fn() -> bool) -> Result<Option<ApplyTable>> {
        if self.has_lost || self.connection.is_closed() {
            self.connection = open(&self.dsn, &self.limits).await?;
            self.has_lost = false;
        }
        let read = ApplyTable::read(&self.connection.client, &self.session, sql);
        heeding(is_over, &[self.connection.canceller()], read).await
    }

    /// Reads a table again that lacks a column: it may have got it meanwhile.
    fn refresh(&mut self, at: usize) -> Result<()> {
        if self.refreshed.is_some_and(|last| last.elapsed() < REFRESH) {
            return Ok(());
        }
        self.refreshed = Some(Instant::now());
        let name = self.targets[at].facts.table.sql_name.clone();
        let new = self.read(&name)?;
        let target = &mut self.targets[at];
        let old = &target.facts;
        let is_wider = |new: &ApplyTable| {
            let mut both = old.columns.iter().zip(&new.columns);
            new.columns.len() > old.columns.len() && both.all(|(a, b)| a.name == b.name)
        };
        if let Some(mut new) = new.filter(is_wider) {
            new.version = old.version + 1;
            target.seen.resize(new.columns.len(), false);
            target.facts = Arc::new(new);
            target.forget_ignored();
        }
        Ok(())
    }

    fn look_up(&mut self, name: &SourceTable) -> Result<Option<usize>> {
        let mut at = None;
        if self.names.takes(name) {
            let sql = self.names.target(name);
            let facts = self.read(&sql)?.ok_or_else(|| {
                let message = format!("relation {sql} does not exist");
                Error::new(ErrorKind::Plan, message).hint(
                    "Make the table first, map the events to another one with \
                     `--map 'SCHEMA.TABLE=SCHEMA.TABLE'`, or leave them out with `--tables`.",
                )
            })?;
            let oid = facts.table.oid;
            let found = self.targets.iter().position(|known| known.facts.table.oid == oid);
            at = Some(found.unwrap_or_else(|| {
                let seen = vec![false; facts.columns.len()];
                let facts = Arc::new(facts);
                self.targets.push(TargetTable::new(facts, seen));
                self.targets.len() - 1
            }));
        }
        self.known.insert(name.clone(), at);
        Ok(at)
    }
}
