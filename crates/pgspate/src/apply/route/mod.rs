//! Maps events to target tables and columns, and adds them to a log.
//!
//! Each target table is read when the stream first names it, and again if the table was altered.
//! One thread uses the router: the thread that decodes.

mod apply_table;
mod named_tables;
mod row_layouts;
mod table_map;
mod write_order;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;

pub(crate) use apply_table::{ApplyColumn, ApplyTable};
pub(crate) use table_map::TableMap;
pub(crate) use write_order::{find_reference_cycle, parents_first};

use crate::reading::missing_table_error;
use crate::{Error, ErrorKind, Result};
use pgspate_events::decode::{TargetTypes, own_format};
use pgspate_events::fold;
use pgspate_events::log::{EventLog, LoggedEvent, LoggedRow};
use pgspate_events::{ChangeEvent, ChangeKind, EventPlace, EventRow, SourceTable};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::session::{ReconnectBackoff, StopFlag, WaitLimits, cancel_when, stopped_error};
use pgspate_target::{SessionSettings, read_session, suggest_table, value_settings_sql};
use row_layouts::RoutedTable;

/// The `application_name` of the session.
const SESSION_NAME: &str = "pgspate apply";

/// Opens the session that reads the target tables.
async fn open_session(dsn: &Dsn, limits: &WaitLimits) -> Result<Connection> {
    let connection = dsn.connect(SESSION_NAME).await?;
    let timeouts = limits.session_sql();
    let set = connection.client.batch_execute(&timeouts).await;
    set.map_err(|error| connection.explain("could not set up the session", error))?;
    Ok(connection)
}

/// Returns whether the error says that the target has no table for the events.
pub(crate) fn is_missing_table(error: &Error) -> bool {
    error.kind() == ErrorKind::Plan && error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE)
}

/// What to do with columns that the target lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownColumns {
    /// Reject the event.
    #[default]
    Fail,
    /// Leave the column out.
    Ignore,
    /// Add the column to the table, with type text.
    Add,
}

/// Maps events to target tables.
pub(crate) struct Router {
    state: RefCell<RouterState>,
}

struct RouterState {
    dsn: Dsn,
    connection: Connection,
    runtime: Handle,
    session: SessionSettings,
    table_map: TableMap,
    unknown_columns: UnknownColumns,
    targets: Vec<RoutedTable>,
    /// Positions in `targets`; `None` for tables that are left out.
    target_by_name: HashMap<SourceTable, Option<usize>>,
    /// The source table that was looked up last, and its position in `targets`.
    last: Option<(Arc<SourceTable>, Option<usize>)>,
    /// An error of a lookup that a decoder asked for. Decoders cannot return it.
    lookup_error: Option<Error>,
    /// Statements that add unknown columns to target tables.
    column_additions: Vec<String>,
    /// When a table was last read again.
    refreshed_at: Option<Instant>,
    limits: WaitLimits,
    /// Whether the connection must be opened again.
    is_connection_lost: bool,
    /// The request to stop waiting for the target. `None` before a run; a lost session is an error
    /// then.
    end_reading: Option<StopFlag>,
    /// Whether updates may silently leave out columns that did not change.
    omits_unchanged: bool,
    /// How often a known table was read again.
    rereads: u64,
}

/// The shortest time between two reads of a table that lacks columns.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// An event's place in its source, and the number of events before it in the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoggedPlace {
    pub(crate) event_place: EventPlace,
    pub(crate) ordinal: u64,
}

impl Router {
    pub(crate) async fn new(
        dsn: Dsn,
        table_map: TableMap,
        unknown_columns: UnknownColumns,
        limits: WaitLimits,
        runtime: Handle,
    ) -> Result<Router> {
        let connection = open_session(&dsn, &limits).await?;
        let session = read_session(&connection.client).await?;
        let state = RouterState {
            dsn,
            connection,
            runtime,
            session,
            table_map,
            unknown_columns,
            targets: Vec::new(),
            target_by_name: HashMap::new(),
            last: None,
            lookup_error: None,
            column_additions: Vec::new(),
            refreshed_at: None,
            limits,
            is_connection_lost: false,
            end_reading: None,
            omits_unchanged: false,
            rereads: 0,
        };
        Ok(Router { state: RefCell::new(state) })
    }

    /// Checks that each name of `--tables` fits a table of the target. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] for a name that fits none. The run would leave out events that are
    /// meant, and a later run would count them as applied.
    pub(crate) fn check_named_tables(&self) -> Result<()> {
        let state = &*self.state.borrow();
        state.runtime.block_on(named_tables::check(&state.table_map, &state.connection))
    }

    /// Makes the router wait for an unreachable target until `end_reading` is set.
    pub(crate) fn wait_for_target_until(&self, end_reading: &StopFlag) {
        self.state.borrow_mut().end_reading = Some(end_reading.clone());
    }

    /// Allows updates to leave out, without naming them, columns that did not change.
    pub(crate) fn expect_omitted_columns(&self) {
        self.state.borrow_mut().omits_unchanged = true;
    }

    /// Returns the SQL that gives a session the settings that the encoders expect.
    pub(crate) fn value_settings_sql(&self) -> String {
        value_settings_sql(&self.state.borrow().session)
    }

    /// Returns the event's target table, if known, and the event in pgspate's own format.
    pub(crate) fn describe_dead_letter(&self, event: &ChangeEvent) -> (Option<String>, String) {
        let state = &*self.state.borrow();
        let at = state.target_by_name.get(&*event.table).copied().flatten();
        match at.map(|at| &state.targets[at].facts.table) {
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

    /// Adds an event to the log. Returns false if its table is left out.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] when the event cannot be applied. Other kinds when the target cannot
    /// be read or has no such table. The log is unchanged after an error.
    pub(crate) fn add(
        &self,
        event: &ChangeEvent,
        log: &mut EventLog,
        at: LoggedPlace,
    ) -> Result<bool> {
        let state = &mut *self.state.borrow_mut();
        let Some(table) = state.find_target(&event.table)? else { return Ok(false) };
        state.add_event_layouts(event, table, log.changes().is_empty())?;
        let omits_unchanged = state.omits_unchanged;
        let target = &mut state.targets[table];
        let width = target.facts.columns.len();
        let mut first: Option<LoggedRow> = None;
        let mut add = |row: &Option<EventRow>, log: &mut EventLog| -> Result<Option<LoggedRow>> {
            let Some(row) = row else { return Ok(None) };
            let layout = target.layout(row)?;
            let at = log.add_row(width, &layout.columns, &row.values)?;
            first.get_or_insert(at);
            Ok(Some(at))
        };
        let new = add(&event.new, log)?;
        let old = add(&event.old, log)?;
        let is_complete = match &event.new {
            Some(row) => {
                target.is_complete(row, omits_unchanged && event.op == ChangeKind::Update)?
            }
            None => false,
        };
        if let (ChangeKind::Update, Some(key)) = (event.op, &event.key) {
            target.check_old_key(key, event.old.as_ref()).inspect_err(|_| {
                first.into_iter().for_each(|first| log.remove_last_row(first));
            })?;
        }
        let change = LoggedEvent {
            table,
            op: event.op,
            new,
            old,
            width: width as u16,
            is_complete,
            ends_transaction: event.ends_transaction,
            event_place: at.event_place,
            ordinal: at.ordinal,
        };
        let all: Vec<usize> = match target.facts.has_key() {
            true => Vec::new(),
            false => (0..width).collect(),
        };
        if let Err(error) =
            fold::check_row_is_identified(log, &change, &target.facts.fold_key, &all)
        {
            first.into_iter().for_each(|first| log.remove_last_row(first));
            let (op, name) = (event.op.name(), &target.facts.table.sql_name);
            let message = format!("could not apply the {op} of {name}");
            return Err(Error::new(error.kind(), message).because(error));
        }
        log.push(change);
        Ok(true)
    }

    /// Returns the target of a source table, or `None` if the table is left out.
    ///
    /// # Errors
    /// When the target cannot be read, or has no such table.
    pub(crate) fn table_for(&self, name: &SourceTable) -> Result<Option<Arc<ApplyTable>>> {
        let state = &mut *self.state.borrow_mut();
        let at = state.find_target(&Arc::new(name.clone()))?;
        Ok(at.map(|at| Arc::clone(&state.targets[at].facts)))
    }

    /// Notes the columns of an event that is applied already, without adding the event.
    pub(crate) fn note_columns(&self, event: &ChangeEvent) -> Result<()> {
        let state = &mut *self.state.borrow_mut();
        let found = match state.find_target(&event.table) {
            // An earlier run has set the event aside.
            Err(error) if is_missing_table(&error) => None,
            found => found?,
        };
        let Some(at) = found else { return Ok(()) };
        state.targets[at].limit_layouts();
        for row in [&event.new, &event.old].into_iter().flatten() {
            // An earlier run applied the event or set it aside. So no column is rejected here.
            let _ = state.targets[at].add_layout(
                row,
                UnknownColumns::Ignore,
                &mut state.column_additions,
            );
        }
        Ok(())
    }

    /// Forgets layouts with unknown columns, which were allowed for events applied already.
    pub(crate) fn forget_replayed_layouts(&self) {
        self.state.borrow_mut().targets.iter_mut().for_each(RoutedTable::forget_partial_layouts);
    }

    /// Takes the error of a lookup that a decoder asked for.
    pub(crate) fn take_lookup_error(&self) -> Option<Error> {
        self.state.borrow_mut().lookup_error.take()
    }

    /// Returns the target tables so far.
    pub(crate) fn tables(&self) -> Vec<Arc<ApplyTable>> {
        self.state.borrow().targets.iter().map(|target| Arc::clone(&target.facts)).collect()
    }

    /// Takes the statements that add unknown columns, since the last call.
    pub(crate) fn take_column_additions(&self) -> Vec<String> {
        std::mem::take(&mut self.state.borrow_mut().column_additions)
    }
}

impl TargetTypes for Router {
    fn type_of(&self, table: &SourceTable, column: &str) -> Option<Arc<str>> {
        let state = &mut *self.state.borrow_mut();
        let found = match state.target_by_name.get(table) {
            Some(found) => Ok(*found),
            None => state.look_up_target(table),
        };
        match found {
            Ok(at) => {
                let facts = &state.targets[at?].facts;
                let found = facts.columns.iter().find(|known| known.name == column)?;
                Some(Arc::clone(&found.typname))
            }
            // The event itself is refused, and may become a dead letter.
            Err(error) if is_missing_table(&error) => None,
            Err(error) => {
                state.lookup_error = Some(error);
                None
            }
        }
    }

    fn version(&self) -> u64 {
        self.state.borrow().rereads
    }

    fn ignores_column(&self, table: &SourceTable, column: &str) -> bool {
        self.state.borrow().ignores(table, column)
    }
}

impl RouterState {
    /// Checks whether the target lacks a column and `--unknown-columns` allows that.
    fn ignores(&self, table: &SourceTable, column: &str) -> bool {
        let lacks = |at: usize| !self.targets[at].facts.has_column(column);
        match self.target_by_name.get(table) {
            Some(at) => self.unknown_columns == UnknownColumns::Ignore && at.is_none_or(lacks),
            None => false,
        }
    }

    /// Returns the position of the target; `None` if the table is left out.
    fn find_target(&mut self, name: &Arc<SourceTable>) -> Result<Option<usize>> {
        if let Some((last, at)) = &self.last
            && Arc::ptr_eq(last, name)
        {
            return Ok(*at);
        }
        let at = match self.target_by_name.get(&**name) {
            Some(at) => *at,
            None => self.look_up_target(name)?,
        };
        self.last = Some((Arc::clone(name), at));
        Ok(at)
    }

    /// Adds the layouts of the event's rows to its target, and checks that the target can take the
    /// event. `is_first` is whether the event is the first of its batch: tables that were altered
    /// are read again then.
    fn add_event_layouts(&mut self, event: &ChangeEvent, at: usize, is_first: bool) -> Result<()> {
        if is_first {
            self.refresh_tables()?;
        }
        if event.op == ChangeKind::Truncate {
            self.check_truncate(&event.table, at)?;
        }
        let rows = [&event.new, &event.old];
        self.targets[at].limit_layouts();
        if rows.into_iter().flatten().any(|row| self.targets[at].has_new_column(row)) {
            self.reread_table(at, is_first)?;
        }
        let target = &mut self.targets[at];
        for row in rows.into_iter().flatten() {
            target.add_layout(row, self.unknown_columns, &mut self.column_additions)?;
        }
        match (event.op, &event.new) {
            (ChangeKind::Insert | ChangeKind::Snapshot, Some(row)) => target.check_all_given(row),
            _ => Ok(()),
        }
    }

    /// Checks that no other source table has rows in the target of a truncated table.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if another table has, or if `--map` allows that.
    fn check_truncate(&self, name: &SourceTable, at: usize) -> Result<()> {
        // Events may name one table with and without its schema.
        let is_other = |(other, of_other): (&SourceTable, &Option<usize>)| {
            let mut schemas = other.schema.iter().zip(&name.schema);
            *of_other == Some(at) && (other.table != name.table || schemas.any(|(a, b)| a != b))
        };
        if !self.table_map.may_share_target(name) && !self.target_by_name.iter().any(is_other) {
            return Ok(());
        }
        let target = &self.targets[at].facts.table.sql_name;
        let message = format!(
            "could not apply the truncate of {}: {target} may have rows of other source tables",
            table_map::sql_name(name.schema.as_deref(), &name.table)
        );
        Err(Error::new(ErrorKind::Format, message).hint(
            "Delete the rows of this source table from the target yourself, and set the event \
             aside with `--max-dead-letters N`. Or map each source table to a table of its own.",
        ))
    }

    /// Reads a table. Opens a new session if the session was lost.
    fn read_table(&mut self, sql: &str) -> Result<Option<ApplyTable>> {
        let mut backoff = ReconnectBackoff::new(self.limits.retry_for);
        let (runtime, end_reading) = (self.runtime.clone(), self.end_reading.clone());
        let is_over = || end_reading.as_ref().is_some_and(StopFlag::is_requested);
        loop {
            match runtime.block_on(self.read_table_once(sql, is_over)) {
                Err(_) if is_over() => return Err(stopped_error()),
                Err(error) if error.is_retryable() => {
                    if end_reading.is_none() || !backoff.wait(is_over) {
                        return Err(error);
                    }
                    self.is_connection_lost = true;
                }
                read => return read,
            }
        }
    }

    /// Reads a table once. Waits for locks as long as `--lock-timeout` says, or until `is_over`.
    async fn read_table_once(
        &mut self,
        sql: &str,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<ApplyTable>> {
        if self.is_connection_lost || self.connection.is_closed() {
            self.connection = open_session(&self.dsn, &self.limits).await?;
            let settings = value_settings_sql(&self.session);
            let set = self.connection.client.batch_execute(&settings).await;
            set.map_err(|error| self.connection.explain("could not set up the session", error))?;
            self.is_connection_lost = false;
        }
        let read = ApplyTable::read(&self.connection.client, &self.session, sql);
        cancel_when(is_over, &[self.connection.canceller()], read).await
    }

    /// Reads tables again that were altered. The log names columns by their positions, so this is
    /// done before the first event of a batch. The writer marks altered tables. Tables that lack
    /// columns of the stream are checked each time, because the values of a column that exists by
    /// now would be ignored.
    fn refresh_tables(&mut self) -> Result<()> {
        let ignoring = self.targets.iter().filter(|target| target.ignores_columns);
        let ignoring: Vec<_> = ignoring.map(|target| Arc::clone(&target.facts)).collect();
        if !ignoring.is_empty() {
            let known = ApplyTable::known_definitions(ignoring.iter().map(|facts| &**facts));
            let client = &self.connection.client;
            // If the session is lost, reading the tables again opens a new one.
            let altered = self.runtime.block_on(known.find_altered(client)).ok();
            let is_altered = |oid| altered.as_ref().is_none_or(|altered| altered.contains(oid));
            for facts in ignoring.iter().filter(|facts| is_altered(&facts.table.oid)) {
                facts.is_outdated.store(true, Relaxed);
            }
        }
        for at in 0..self.targets.len() {
            let facts = &self.targets[at].facts;
            if facts.is_outdated.load(Relaxed) {
                let name = facts.table.sql_name.clone();
                if let Some(new) = self.read_table(&name)? {
                    self.rereads += 1;
                    self.targets[at].replace_facts(new);
                }
            }
        }
        Ok(())
    }

    /// Reads a table again that lacks a column, because the column may exist by now. Within a
    /// batch, only a table that got more columns is taken.
    fn reread_table(&mut self, at: usize, is_first: bool) -> Result<()> {
        // The writer may have added a column in a transaction that waits for events of this thread.
        // Reading a partitioned table would wait for that transaction.
        if !self.targets[at].facts.has_fingerprint() {
            return Ok(());
        }
        if self.refreshed_at.is_some_and(|last| last.elapsed() < REFRESH_INTERVAL) {
            return Ok(());
        }
        self.refreshed_at = Some(Instant::now());
        let name = self.targets[at].facts.table.sql_name.clone();
        let Some(new) = self.read_table(&name)? else { return Ok(()) };
        let target = &mut self.targets[at];
        if new.table.fingerprint == target.facts.table.fingerprint {
            return Ok(());
        }
        self.rereads += 1;
        if is_first {
            target.replace_facts(new);
        } else if new.extends(&target.facts) {
            target.named_columns.resize(new.columns.len(), false);
            target.facts = Arc::new(new);
            target.forget_partial_layouts();
        }
        Ok(())
    }

    /// Reads the target of a table that the stream names for the first time.
    fn look_up_target(&mut self, name: &SourceTable) -> Result<Option<usize>> {
        let mut at = None;
        if self.table_map.includes(name) {
            let sql = self.table_map.target_sql_name(name);
            let Some(facts) = self.read_table(&sql)? else {
                let error = missing_table_error(&sql).hint(
                    "Create the table, map the events to another table with \
                     `--map 'SCHEMA.TABLE=SCHEMA.TABLE'`, leave them out with `--tables`, or set \
                     them aside with `--max-dead-letters N`.",
                );
                let suggested = suggest_table(&self.connection.client, &sql, error);
                return Err(self.runtime.block_on(suggested));
            };
            let oid = facts.table.oid;
            let found = self.targets.iter().position(|known| known.facts.table.oid == oid);
            at = Some(found.unwrap_or_else(|| {
                let named_columns = vec![false; facts.columns.len()];
                let facts = Arc::new(facts);
                self.targets.push(RoutedTable::new(facts, named_columns));
                self.targets.len() - 1
            }));
        }
        self.target_by_name.insert(name.clone(), at);
        Ok(at)
    }
}
