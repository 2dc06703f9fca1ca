//! Any records to any decoder of change events: no panic, and no events of one that is refused.

use std::sync::Arc;

use pgspate::apply::Name;
use pgspate::apply::decode::plain::Plain;
use pgspate::apply::decode::{
    Canal, Debezium, DebeziumOptions, Decode, Dms, DmsOptions, Maxwell, Types, Wal2json, sniff,
};
use pgspate::apply::replication::Pgoutput;

/// The first letter of a column's name says its type.
struct ByLetter;

impl Types for ByLetter {
    fn of(&self, _: &Name, column: &str) -> Option<Arc<str>> {
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

fn decoder(which: u8) -> Box<dyn Decode> {
    let table = || Some(Name { schema: None, table: "t".to_owned() });
    match which % 7 {
        0 => Box::new(Wal2json::new()),
        1 => Box::new(Maxwell::new()),
        2 => Box::new(Canal::new()),
        3 => {
            let columns = Some(["id", "b", "n"].map(str::to_owned).to_vec());
            Box::new(Dms::new(DmsOptions { table: table(), columns, ..DmsOptions::default() }))
        }
        4 => Box::new(Pgoutput::new()),
        5 => Box::new(Plain::default()),
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
        let _ = sniff(record);
    }
    for event in events {
        for row in [event.new, event.old].into_iter().flatten() {
            assert_eq!(row.columns.len(), row.values.len());
        }
    }
}
