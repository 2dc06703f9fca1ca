//! A target's types, and events as lines that can be compared.

use std::fmt::Write as _;
use std::sync::Arc;

use pgspate::apply::decode::{Decode, Types};
use pgspate::apply::{Event, Name, Row, Value};

/// A target whose tables all have these columns.
pub(crate) struct Columns(pub(crate) &'static [(&'static str, &'static str)]);

impl Types for Columns {
    fn of(&self, _: &Name, column: &str) -> Option<Arc<str>> {
        let found = self.0.iter().find(|(name, _)| *name == column);
        found.map(|(_, ty)| Arc::from(*ty))
    }
}

/// The events of records, or the error of the first that is refused with its hint.
pub(crate) fn try_decode(
    decoder: &mut dyn Decode,
    types: &dyn Types,
    records: &[&str],
) -> Result<Vec<Event>, String> {
    let mut events = Vec::new();
    for record in records {
        let before = events.len();
        if let Err(error) = decoder.decode(record.as_bytes(), types, &mut events) {
            assert_eq!(error.kind(), pgspate::Kind::Format);
            assert_eq!(events.len(), before, "a refused record leaves no events");
            let hint = error.hint_text().map(|hint| format!(" | {hint}")).unwrap_or_default();
            return Err(format!("{error}{hint}"));
        }
    }
    Ok(events)
}

/// The events of records as lines.
pub(crate) fn decode(decoder: &mut dyn Decode, types: &dyn Types, records: &[&str]) -> Vec<String> {
    match try_decode(decoder, types, records) {
        Ok(events) => events.iter().map(line).collect(),
        Err(error) => vec![format!("error: {error}")],
    }
}

/// `Update shop.orders {id=1 note=- paid=NULL} was {id=0} by [id] in 7 end`
pub(crate) fn line(event: &Event) -> String {
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
    if let Some(transaction) = &event.position.transaction {
        let _ = write!(out, " in {transaction}");
    }
    if event.ends_transaction {
        out.push_str(" end");
    }
    out
}

fn row(row: &Row) -> String {
    assert_eq!(row.columns.len(), row.values.len());
    let cells = row.columns.iter().zip(&row.values).map(|(column, value)| match value {
        Value::Absent => format!("{column}=-"),
        Value::Null => format!("{column}=NULL"),
        Value::Text(text) => format!("{column}={text}"),
    });
    format!("{{{}}}", cells.collect::<Vec<_>>().join(" "))
}
