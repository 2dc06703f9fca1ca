//! Change events as lines that can be compared.

use std::fmt::Write as _;

use pgspate::apply::{Event, Row, Value};

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
