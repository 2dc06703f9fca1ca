//! Canal's flat messages: rows of MySQL's binary log, many in a message.
//!
//! Every value is a string, bytes with a character for each of them. What Flink writes in this
//! format names no types, and often no table; its bytes are base64. Rows are whole, and an update
//! tells the columns that it changed as they were before. Statements about tables are passed over,
//! but for TRUNCATE.

use super::cast::{ByteSpelling, TypeFamily, JsonSpelling};
use super::json::{Json, is_nothing, malformed};
use super::mysql::Record;
use super::room::RecordBudget;
use super::shape::{SourceTables, cells, overlay};
use super::{Decode, TargetTypes};
use crate::{ChangeEvent, SourceTable, ChangeKind, Result};

const SPELLING: JsonSpelling = JsonSpelling { bytes: ByteSpelling::Latin1, json_strings: false };
/// Flink's.
const TYPELESS: JsonSpelling = JsonSpelling { bytes: ByteSpelling::Base64, json_strings: false };

/// What is done to tables, and what Canal and TiCDC say of themselves.
const PASSED_OVER: [&str; 12] = [
    "CREATE",
    "ALTER",
    "ERASE",
    "RENAME",
    "QUERY",
    "CINDEX",
    "DINDEX",
    "GTID",
    "XACOMMIT",
    "XAROLLBACK",
    "MHEARTBEAT",
    "TIDB_WATERMARK",
];
/// What a message's `type` is, but for the rare ones.
pub(super) const TYPES: [&str; 11] = [
    "INSERT", "UPDATE", "DELETE", "TRUNCATE", "CREATE", "ALTER", "ERASE", "RENAME", "QUERY",
    "CINDEX", "DINDEX",
];

/// Decodes Canal's flat messages.
#[derive(Debug, Default)]
pub struct Canal {
    tables: SourceTables<TypeFamily>,
    /// Of messages that name none.
    table: Option<SourceTable>,
}

impl Canal {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Canal {
        Canal::default()
    }

    /// The same, of messages that do not name their table.
    pub(super) fn of_table(table: Option<SourceTable>) -> Canal {
        Canal { table, ..Canal::default() }
    }

    fn rows(
        &mut self,
        message: &Record<'_>,
        op: ChangeKind,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let table = message.table(&mut self.tables, &self.table)?;
        let spelling = if message.has_types { SPELLING } else { TYPELESS };
        let shared = message.key(table)?;
        let name = table.name.clone();
        let event = |new, old| ChangeEvent {
            key: shared.clone(),
            ends_transaction: false,
            ..ChangeEvent::of(name.clone(), op, old, new)
        };
        if op == ChangeKind::Truncate {
            events.push(ChangeEvent { ends_transaction: true, ..event(None, None) });
            return Ok(());
        }
        let Some(mut rows) = message.data.and_then(Json::array) else {
            return Err(malformed("a message has no list \"data\""));
        };
        let mut olds = message.old.and_then(Json::array);
        let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
        let mut room = RecordBudget::default();
        while let Some(mut row) = rows.next_object("a row")? {
            let cast = &mut |value, form: &TypeFamily| spelling.cast(value, form);
            let data = table.row(&row.rest()?, types, &learn, cast)?;
            rows.close_object(row);
            let changed = olds.as_mut().map(|olds| olds.next()).transpose()?.flatten();
            let mut old = None;
            if let (ChangeKind::Update, Some(changed @ Json::Object(_))) = (op, changed) {
                let changed = cells(changed, "\"old\"")?;
                old = Some(overlay(&data, &table.row(&changed, types, &learn, cast)?));
            }
            let (new, old) = if op == ChangeKind::Delete { (None, Some(data)) } else { (Some(data), old) };
            let event = event(new, old);
            room.take_event(&event)?;
            events.push(event);
        }
        if let Some(last) = events.last_mut() {
            last.ends_transaction = true;
        }
        Ok(())
    }
}

impl Decode for Canal {
    fn decode(&mut self, record: &[u8], types: &dyn TargetTypes, events: &mut Vec<ChangeEvent>) -> Result<()> {
        if is_nothing(record) {
            return Ok(());
        }
        let message = Record::read(record)?;
        let Some(ty) = message.ty else {
            return Err(malformed("a message of Canal's has a \"type\", this one has none"));
        };
        let op = match ty.text()?.as_ref() {
            "TRUNCATE" => ChangeKind::Truncate,
            _ if message.is_ddl => return Ok(()),
            "INSERT" => ChangeKind::Insert,
            "UPDATE" => ChangeKind::Update,
            "DELETE" => ChangeKind::Delete,
            ty if PASSED_OVER.contains(&ty) => return Ok(()),
            _ => return Err(malformed("unknown \"type\" of a message")),
        };
        let before = events.len();
        let done = self.rows(&message, op, types, events);
        if done.is_err() {
            events.truncate(before);
        }
        done
    }

    /// With `binlog_row_image` of minimal or noblob.
    fn leaves_out(&self) -> bool {
        true
    }
}
