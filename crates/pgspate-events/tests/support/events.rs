//! Writes change events as lines for comparison, and applies them to a table in memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgspate_events::{ChangeEvent, ChangeKind, EventRow, EventValue};

/// Writes an event as `Update shop.orders {id=1 note=- paid=NULL} was {id=0} by [id] in 7 end`.
pub(crate) fn line(event: &ChangeEvent) -> String {
    let mut out = format!("{:?} ", event.op);
    if let Some(schema) = &event.table.schema {
        let _ = write!(out, "{schema}.");
    }
    out.push_str(&event.table.table);
    if let Some(new) = &event.new {
        let _ = write!(out, " {}", row(new));
    }
    if let Some(old) = &event.old {
        let _ = write!(out, " was {}", row(old));
    }
    if let Some(key) = &event.key {
        let _ = write!(out, " by [{}]", key.join(" "));
    }
    if let Some(transaction) = &event.origin.transaction {
        let _ = write!(out, " in {transaction}");
    }
    if event.ends_transaction {
        out.push_str(" end");
    }
    out
}

fn row(row: &EventRow) -> String {
    assert_eq!(row.columns.len(), row.values.len());
    let cells = row.columns.iter().zip(&row.values).map(|(column, value)| match value {
        EventValue::Absent => format!("{column}=-"),
        EventValue::Null => format!("{column}=NULL"),
        EventValue::Text(text) => format!("{column}={text}"),
    });
    format!("{{{}}}", cells.collect::<Vec<_>>().join(" "))
}

/// The rows of a table by their `id`.
pub(crate) type TableContents = BTreeMap<String, BTreeMap<String, Option<String>>>;

/// Applies events one after another to an empty table.
pub(crate) fn apply(events: &[ChangeEvent]) -> TableContents {
    let mut table = TableContents::new();
    let key = |row: &EventRow| {
        let at = row.columns.iter().position(|column| &**column == "id")?;
        match &row.values[at] {
            EventValue::Text(id) => Some(id.to_string()),
            _ => None,
        }
    };
    for event in events {
        let of_old = event.old.as_ref().and_then(key);
        let of_new = event.new.as_ref().and_then(key);
        if event.op == ChangeKind::Truncate {
            table.clear();
            continue;
        }
        let mut row =
            of_old.or(of_new.clone()).and_then(|id| table.remove(&id)).unwrap_or_default();
        let Some(new) = &event.new else { continue };
        if event.op == ChangeKind::Insert || event.op == ChangeKind::Snapshot {
            row.clear();
        }
        for (column, value) in new.columns.iter().zip(&new.values) {
            match value {
                EventValue::Absent => continue,
                EventValue::Null => row.insert(column.to_string(), None),
                EventValue::Text(text) => row.insert(column.to_string(), Some(text.to_string())),
            };
        }
        table.insert(of_new.unwrap(), row);
    }
    table
}
