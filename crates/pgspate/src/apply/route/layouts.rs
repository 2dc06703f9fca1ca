//! Kinds of rows that the events of a table have, and where their columns are in the target.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ApplyTable, UnknownColumns};
use crate::{Error, ErrorKind, Result};
use pgspate_events::{EventRow, EventValue};
use pgspate_target::quote_ident;

/// More kinds of rows are not kept: rows of many columns of which each gives others have a great
/// many.
const LAYOUTS_MAX: usize = 4096;
/// Among so many the one is looked for by its address.
const LAYOUTS_FEW: usize = 8;

/// The columns of a kind of row.
pub(super) struct RowLayout {
    names: Arc<[Box<str>]>,
    pub(super) columns: Vec<Option<u16>>,
    /// How many of the target's columns it has.
    count: usize,
}

/// A table that events go to.
pub(super) struct TargetTable {
    pub(super) facts: Arc<ApplyTable>,
    /// Columns that any event has named.
    pub(super) seen: Vec<bool>,
    layouts: Vec<RowLayout>,
    /// Where in `layouts` these columns are.
    by_names: HashMap<Arc<[Box<str>]>, usize>,
    last: usize,
}

impl TargetTable {
    pub(super) fn new(facts: Arc<ApplyTable>, seen: Vec<bool>) -> TargetTable {
        TargetTable { facts, seen, layouts: Vec::new(), by_names: HashMap::new(), last: 0 }
    }

    /// Forgets layouts with columns that the target does not have.
    pub(super) fn forget_ignored(&mut self) {
        let generated = &self.facts.generated;
        self.layouts.retain(|layout| {
            let mut columns = layout.names.iter().zip(&layout.columns);
            columns.all(|(name, at)| at.is_some() || generated.iter().any(|it| **it == **name))
        });
        self.last = 0;
        let places = self.layouts.iter().enumerate();
        self.by_names = places.map(|(at, layout)| (Arc::clone(&layout.names), at)).collect();
    }

    /// Whether a row of a kind that is new has a column that the table has not.
    pub(super) fn lacks(&mut self, row: &EventRow) -> bool {
        let facts = Arc::clone(&self.facts);
        self.find(row).is_none() && !row.columns.iter().all(|name| facts.has_column(name))
    }

    /// Makes room for the layouts of another event.
    pub(super) fn make_room(&mut self) {
        if self.layouts.len() >= LAYOUTS_MAX {
            self.layouts.clear();
            self.by_names.clear();
            self.last = 0;
        }
    }

    /// Makes the layout of a row, if it is a new one.
    pub(super) fn learn(
        &mut self,
        row: &EventRow,
        unknown: UnknownColumns,
        additions: &mut Vec<String>,
    ) -> Result<()> {
        if self.find(row).is_some() {
            return Ok(());
        }
        let mut columns = Vec::with_capacity(row.columns.len());
        for name in &row.columns[..] {
            let position = self.facts.columns.iter().position(|column| column.name == **name);
            let is_generated = self.facts.generated.iter().any(|column| **column == **name);
            let position = match (position, unknown) {
                (Some(position), _) => Some(position),
                (None, _) if is_generated => None,
                (None, UnknownColumns::Ignore) => None,
                (None, UnknownColumns::Fail) => return Err(self.unknown(name)),
                (None, UnknownColumns::Add) => {
                    self.facts = Arc::new(self.facts.with_column(name));
                    self.seen.push(false);
                    additions.push(format!(
                        "alter table {} add column if not exists {} text",
                        self.facts.table.sql_name,
                        quote_ident(name)
                    ));
                    Some(self.facts.columns.len() - 1)
                }
            };
            columns.push(position.map(|position| position as u16));
        }
        for position in columns.iter().flatten() {
            self.seen[usize::from(*position)] = true;
        }
        let count = columns.iter().flatten().count();
        self.layouts.push(RowLayout { names: Arc::clone(&row.columns), columns, count });
        self.last = self.layouts.len() - 1;
        self.by_names.insert(Arc::clone(&row.columns), self.last);
        Ok(())
    }

    fn unknown(&self, name: &str) -> Error {
        let message =
            format!("column \"{name}\" of relation \"{}\" does not exist", self.facts.table.name);
        Error::new(ErrorKind::Format, message)
            .with_sqlstate(tokio_postgres::error::SqlState::UNDEFINED_COLUMN)
            .hint(
                "Add the column to the table, or say `--unknown-columns ignore` or \
                 `--unknown-columns add`.",
            )
    }

    fn find(&mut self, row: &EventRow) -> Option<usize> {
        let is_it = |layout: &RowLayout| Arc::ptr_eq(&layout.names, &row.columns);
        if self.layouts.get(self.last).is_some_and(is_it) {
            return Some(self.last);
        }
        let found = self.layouts.iter().take(LAYOUTS_FEW).position(is_it);
        let found = found.or_else(|| self.by_names.get(&row.columns).copied())?;
        self.last = found;
        Some(found)
    }

    pub(super) fn layout(&mut self, row: &EventRow) -> Result<&RowLayout> {
        let found = self.find(row);
        found
            .and_then(|at| self.layouts.get(at))
            .ok_or_else(|| Error::new(ErrorKind::Bug, "the columns of a row were not looked up"))
    }

    /// Whether an update says, of each column of the key, what it was: the source tells of those
    /// by which it identifies rows, or else `old` does. Otherwise the row would stay under its old
    /// key.
    pub(super) fn check_key(&self, names: &[Box<str>], old: Option<&EventRow>) -> Result<()> {
        let is_told = |name: &str| {
            let says = |row: &EventRow| {
                let mut cells = row.columns.iter().zip(&row.values);
                cells.any(|(column, value)| **column == *name && *value != EventValue::Absent)
            };
            names.iter().any(|it| **it == *name) || old.is_some_and(says)
        };
        let mut key = self.facts.keying.columns.iter().map(|(at, _)| &self.facts.columns[*at].name);
        match key.find(|name| !is_told(name)) {
            Some(name) if !names.is_empty() => {
                let message = format!(
                    "the source identifies rows by ({}), and the event does not say what \
                     \"{name}\" of the target's key was before",
                    names.join(", ")
                );
                Err(Error::new(ErrorKind::Format, message).hint(format!(
                    "Give {} a primary key of the columns by which the source identifies rows, or \
                     have the source send whole old rows.",
                    self.facts.table.sql_name
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether a row has all that the stream has ever said of rows of the table; where columns are
    /// left out without being named, all that the table has.
    pub(super) fn is_complete(&mut self, row: &EventRow, leaves_out: bool) -> Result<bool> {
        let seen = self.seen.iter().filter(|seen| **seen).count();
        let all = if leaves_out { self.facts.columns.len() } else { seen };
        let count = self.layout(row)?.count;
        Ok(count == all && !row.values.contains(&EventValue::Absent))
    }

    /// Whether a row that is new tells each of its columns: there is nothing from which a value
    /// could be taken over, and NULL would be made up.
    pub(super) fn check_told(&mut self, row: &EventRow) -> Result<()> {
        if !row.values.contains(&EventValue::Absent) {
            return Ok(());
        }
        let columns = &self.layout(row)?.columns;
        let mut cells = columns.iter().zip(row.columns.iter()).zip(&row.values);
        let untold =
            cells.find(|((column, _), value)| column.is_some() && **value == EventValue::Absent);
        let Some(((_, name), _)) = untold else { return Ok(()) };
        let table = &self.facts.table.sql_name;
        let message = format!("the event does not tell column \"{name}\" of a new row of {table}");
        Err(Error::new(ErrorKind::Format, message).hint(
            "The source leaves out large values that a change of the key left as they were. Keep \
             the messages in their order and with their headers (`__debezium.oldkey`), or run \
             `alter table ... replica identity full` on the source.",
        ))
    }
}
