//! Any bytes as records of change events, for each decoder: no panic, and no event of a refused
//! record. The values have at most 64 bytes for each byte of the record.

use std::sync::Arc;

use pgspate::apply::decode::own_format::OwnFormat;
use pgspate::apply::decode::{
    Canal, Debezium, DebeziumOptions, Decode, Dms, DmsOptions, Maxwell, TargetTypes, Wal2json,
    sniff,
};
use pgspate::apply::{ChangeEvent, EventRow, EventValue, SourceTable};
use pgspate_replication::postgres::Pgoutput;

/// Columns whose types depend on the first letters of their names.
struct ByLetter;

impl TargetTypes for ByLetter {
    fn type_of(&self, _: &SourceTable, column: &str) -> Option<Arc<str>> {
        let name = match column.as_bytes().first()? {
            b'a' => "_text",
            b'b' => "bytea",
            b'd' => "date",
            b'h' => "hstore",
            b'i' => "interval",
            b'j' => "jsonb",
            b'n' => "numeric",
            b't' => "time",
            b'u' => "_numeric",
            b'v' => "varbit",
            b'x' => return None,
            b'z' => "timestamptz",
            _ => "text",
        };
        Some(name.into())
    }
}

/// The most bytes of values for each byte of a record. In an array, a date can be one digit and a
/// comma, and becomes about thirty characters.
const GROWTH_MAX: usize = 64;

/// Returns the bytes of all values.
fn text_len(events: &[ChangeEvent]) -> usize {
    let rows = events.iter().flat_map(|event| [&event.new, &event.old]).flatten();
    let len = |value: &EventValue| if let EventValue::Text(text) = value { text.len() } else { 0 };
    rows.flat_map(|row: &EventRow| row.values.iter().map(len)).sum()
}

fn decoder(which: u8) -> Box<dyn Decode> {
    let table = || Some(SourceTable { schema: None, table: "t".to_owned() });
    match which % 7 {
        0 => Box::new(Wal2json::new()),
        1 => Box::new(Maxwell::new()),
        2 => Box::new(Canal::new()),
        3 => {
            let columns = Some(["id", "b", "n"].map(str::to_owned).to_vec());
            Box::new(Dms::new(DmsOptions { table: table(), columns, ..DmsOptions::default() }))
        }
        4 => Box::new(Pgoutput::new()),
        5 => Box::new(OwnFormat::default()),
        _ => Box::new(Debezium::new(DebeziumOptions { table: table(), ..Default::default() })),
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else { return };
    let mut decoder = decoder(which);
    let mut events = Vec::new();
    for record in rest.split(|byte| *byte == 0xFE) {
        let before = events.len();
        if decoder.decode(record, &ByLetter, &mut events).is_err() {
            assert_eq!(events.len(), before);
        }
        assert!(text_len(&events[before..]) <= GROWTH_MAX * record.len());
        let _ = sniff(record);
    }
    for event in events {
        for row in [event.new, event.old].into_iter().flatten() {
            assert_eq!(row.columns.len(), row.values.len());
        }
    }
}
