//! Row layouts: which columns an event's row has, and which columns of the target table these are.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ApplyTable, UnknownColumns};
use crate::{Error, ErrorKind, Result};
use pgspate_events::{EventRow, EventValue};
use pgspate_target::quote_ident;

/// The most layouts to keep for a table. If each row has other columns, there are very many
/// layouts.
const LAYOUTS_MAX: usize = 4096;
/// The number of layouts that are compared by address before the hash table is used.
const LAYOUTS_SCANNED_MAX: usize = 8;

/// The columns of an event's row. Rows with the same columns share a layout.
pub(super) struct RowLayout {
    names: Arc<[Box<str>]>,
    /// The position of each column in the target table; `None` if the column is left out.
    pub(super) columns: Vec<Option<u16>>,
    /// The number of columns that are not left out.
    count: usize,
}

/// A target table, with the layouts of its events' rows.
pub(super) struct RoutedTable {
    pub(super) facts: Arc<ApplyTable>,
    /// Whether any event has named the column.
    pub(super) named_columns: Vec<bool>,
    layouts: Vec<RowLayout>,
    /// Positions in `layouts`, by column names.
    by_names: HashMap<Arc<[Box<str>]>, usize>,
    /// The position in `layouts` of the layout that was found last.
    last: usize,
    /// Whether a layout leaves out columns that the target lacks.
    pub(super) ignores_columns: bool,
}

impl RoutedTable {
    pub(super) fn new(facts: Arc<ApplyTable>, named_columns: Vec<bool>) -> RoutedTable {
        RoutedTable {
            facts,
            named_columns,
            layouts: Vec::new(),
            by_names: HashMap::new(),
            last: 0,
            ignores_columns: false,
        }
    }

    /// Takes new facts of the table. Forgets all layouts.
    pub(super) fn replace_facts(&mut self, new: ApplyTable) {
        let known = self.facts.columns.iter().zip(&self.named_columns);
        let named: Vec<&str> =
            known.filter(|(_, is_named)| **is_named).map(|(it, _)| it.name.as_str()).collect();
        let is_named = new.columns.iter().map(|it| named.contains(&it.name.as_str())).collect();
        *self = RoutedTable::new(Arc::new(new), is_named);
    }

    /// Forgets layouts with columns that the target lacks. Generated columns do not count as
    /// lacking.
    pub(super) fn forget_partial_layouts(&mut self) {
        let generated = &self.facts.generated;
        self.layouts.retain(|layout| {
            let mut columns = layout.names.iter().zip(&layout.columns);
            columns.all(|(name, at)| at.is_some() || generated.iter().any(|it| **it == **name))
        });
        self.last = 0;
        self.ignores_columns = false;
        let places = self.layouts.iter().enumerate();
        self.by_names = places.map(|(at, layout)| (Arc::clone(&layout.names), at)).collect();
    }

    /// Checks whether a row of a new layout has a column that the table lacks.
    pub(super) fn has_new_column(&mut self, row: &EventRow) -> bool {
        let facts = Arc::clone(&self.facts);
        self.find_layout(row).is_none() && !row.columns.iter().all(|name| facts.has_column(name))
    }

    /// Forgets all layouts if there are too many, to make room for the layouts of another event.
    pub(super) fn limit_layouts(&mut self) {
        if self.layouts.len() >= LAYOUTS_MAX {
            self.layouts.clear();
            self.by_names.clear();
            self.last = 0;
        }
    }

    /// Adds the row's layout, if the layout is new. For [`UnknownColumns::Add`], adds the
    /// statements that add missing columns to `column_additions`.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for [`UnknownColumns::Fail`], if the target lacks a column.
    pub(super) fn add_layout(
        &mut self,
        row: &EventRow,
        unknown: UnknownColumns,
        column_additions: &mut Vec<String>,
    ) -> Result<()> {
        if self.find_layout(row).is_some() {
            return Ok(());
        }
        let mut columns = Vec::with_capacity(row.columns.len());
        for name in &row.columns[..] {
            let position = self.facts.columns.iter().position(|column| column.name == **name);
            let is_generated = self.facts.generated.iter().any(|column| **column == **name);
            let position = match (position, unknown) {
                (Some(position), _) => Some(position),
                (None, _) if is_generated => None,
                (None, UnknownColumns::Ignore) => {
                    self.ignores_columns = true;
                    None
                }
                (None, UnknownColumns::Fail) => return Err(self.unknown_column_error(name)),
                (None, UnknownColumns::Add) => {
                    self.facts = Arc::new(self.facts.with_column(name));
                    self.named_columns.push(false);
                    let table = &self.facts.table;
                    if table.commits_across_nodes {
                        // ALTER TABLE on Citus first locks the table as a reader. It would deadlock
                        // with a session that has read the table and wants the table for itself.
                        let lock = "in access exclusive mode";
                        column_additions.push(format!("lock table only {} {lock}", table.sql_name));
                    }
                    column_additions.push(format!(
                        "alter table {} add column if not exists {} text",
                        table.sql_name,
                        quote_ident(name)
                    ));
                    Some(self.facts.columns.len() - 1)
                }
            };
            columns.push(position.map(|position| position as u16));
        }
        for position in columns.iter().flatten() {
            self.named_columns[usize::from(*position)] = true;
        }
        let count = columns.iter().flatten().count();
        self.layouts.push(RowLayout { names: Arc::clone(&row.columns), columns, count });
        self.last = self.layouts.len() - 1;
        self.by_names.insert(Arc::clone(&row.columns), self.last);
        Ok(())
    }

    /// Returns the error for a column that the target lacks.
    fn unknown_column_error(&self, name: &str) -> Error {
        let message =
            format!("column \"{name}\" of relation \"{}\" does not exist", self.facts.table.name);
        Error::new(ErrorKind::Format, message)
            .with_sqlstate(tokio_postgres::error::SqlState::UNDEFINED_COLUMN)
            .hint(
                "Add the column to the table, or give `--unknown-columns ignore` or \
                 `--unknown-columns add`.",
            )
    }

    /// Returns the position of the row's layout in `layouts`, if the layout was added.
    fn find_layout(&mut self, row: &EventRow) -> Option<usize> {
        let is_it = |layout: &RowLayout| Arc::ptr_eq(&layout.names, &row.columns);
        if self.layouts.get(self.last).is_some_and(is_it) {
            return Some(self.last);
        }
        let found = self.layouts.iter().take(LAYOUTS_SCANNED_MAX).position(is_it);
        let found = found.or_else(|| self.by_names.get(&row.columns).copied())?;
        self.last = found;
        Some(found)
    }

    /// Returns the layout of a row. The layout must have been added before.
    pub(super) fn layout(&mut self, row: &EventRow) -> Result<&RowLayout> {
        let found = self.find_layout(row);
        found
            .and_then(|at| self.layouts.get(at))
            .ok_or_else(|| Error::new(ErrorKind::Bug, "the columns of a row were not looked up"))
    }

    /// Checks that the old value of each key column of the target is known. Without the old value,
    /// a row whose key changes would stay in the target under its old key. `names` are the columns
    /// by which the source identifies rows; their old values are known. `old` has old values of
    /// other columns.
    pub(super) fn check_old_key(&self, names: &[Box<str>], old: Option<&EventRow>) -> Result<()> {
        let is_given = |name: &str| {
            let says = |row: &EventRow| {
                let mut cells = row.columns.iter().zip(&row.values);
                cells.any(|(column, value)| **column == *name && *value != EventValue::Absent)
            };
            names.iter().any(|it| **it == *name) || old.is_some_and(says)
        };
        let mut key =
            self.facts.fold_key.columns.iter().map(|(at, _)| &self.facts.columns[*at].name);
        match key.find(|name| !is_given(name)) {
            Some(name) if !names.is_empty() => {
                let message = format!(
                    "the source identifies rows by ({}), and the event lacks the old \
                     value of \"{name}\" in the target's key",
                    names.join(", ")
                );
                Err(Error::new(ErrorKind::Format, message).hint(format!(
                    "Give {} a primary key on the columns by which the source identifies rows, or \
                     have the source send whole old rows. Debezium's `message.key.columns` must \
                     also name the target's key.",
                    self.facts.table.sql_name
                )))
            }
            _ => Ok(()),
        }
    }

    /// Checks whether a row has all columns that the stream has named for the table. With
    /// `omits_unchanged`, checks for all columns of the table.
    pub(super) fn is_complete(&mut self, row: &EventRow, omits_unchanged: bool) -> Result<bool> {
        let named = self.named_columns.iter().filter(|is_named| **is_named).count();
        let all = if omits_unchanged { self.facts.columns.len() } else { named };
        let count = self.layout(row)?.count;
        Ok(count == all && !row.values.contains(&EventValue::Absent))
    }

    /// Checks that a new row has a value for each of its columns. There is no earlier row
    /// to take an absent value from, and NULL would be an invented value.
    pub(super) fn check_all_given(&mut self, row: &EventRow) -> Result<()> {
        if !row.values.contains(&EventValue::Absent) {
            return Ok(());
        }
        let columns = &self.layout(row)?.columns;
        let mut cells = columns.iter().zip(row.columns.iter()).zip(&row.values);
        let absent =
            cells.find(|((column, _), value)| column.is_some() && **value == EventValue::Absent);
        let Some(((_, name), _)) = absent else { return Ok(()) };
        let table = &self.facts.table.sql_name;
        let message =
            format!("the event has no value for column \"{name}\" of a new row of {table}");
        Err(Error::new(ErrorKind::Format, message).hint(
            "The source leaves out large values that a change of the key did not change. Keep the \
             order of messages and their headers (`__debezium.oldkey`), or run \
             `alter table ... replica identity full` on the source.",
        ))
    }
}
