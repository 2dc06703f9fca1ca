//! Decodes Canal's flat messages: rows of MySQL's binary log, many in a message.
//!
//! Every value is a string; bytes have one character each. Flink's messages in this format name no
//! types, often no table, and spell bytes as base64. Rows are whole. An update also gives the old
//! values of the changed columns. Among statements about tables, only TRUNCATE gives an event.

use super::json::{Json, has_no_value, malformed};
use super::json_values::{ByteSpelling, JsonSpelling, TypeFamily};
use super::mysql_record::MysqlRecord;
use super::record_budget::RecordBudget;
use super::source_tables::{SourceTables, cells, overlay};
use super::{Decode, TargetTypes};
use crate::{ChangeEvent, ChangeKind, Result, SourceTable};

const SPELLING: JsonSpelling =
    JsonSpelling { decimal_bits: true, ..JsonSpelling::of_bytes(ByteSpelling::Latin1) };
/// The spelling of messages without types, which Flink writes.
const TYPELESS: JsonSpelling = JsonSpelling::of_bytes(ByteSpelling::Base64);

/// The `type`s of messages without an event: schema changes, and messages of Canal and TiCDC about
/// themselves.
const TYPES_WITHOUT_EVENTS: [&str; 12] = [
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
/// The usual `type`s of messages.
pub(super) const TYPES: [&str; 11] = [
    "INSERT", "UPDATE", "DELETE", "TRUNCATE", "CREATE", "ALTER", "ERASE", "RENAME", "QUERY",
    "CINDEX", "DINDEX",
];

/// Decodes Canal's flat messages.
#[derive(Debug, Default)]
pub struct Canal {
    tables: SourceTables<TypeFamily>,
    /// The table of messages that name no table.
    table: Option<SourceTable>,
}

impl Canal {
    /// Returns a decoder at the beginning of a stream.
    pub fn new() -> Canal {
        Canal::default()
    }

    /// Returns a decoder that uses `table` for messages that name no table.
    pub(super) fn for_table(table: Option<SourceTable>) -> Canal {
        Canal { table, ..Canal::default() }
    }

    fn rows(
        &mut self,
        message: &MysqlRecord<'_>,
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
        let mut budget = RecordBudget::default();
        while let Some(mut row) = rows.next_object("a row")? {
            let cast = &mut |value, family: &TypeFamily| spelling.cast(value, family);
            let data = table.row(&row.rest()?, types, &learn, cast)?;
            rows.close_object(row);
            let changed = olds.as_mut().map(|olds| olds.next()).transpose()?.flatten();
            let mut old = None;
            if let (ChangeKind::Update, Some(changed @ Json::Object(_))) = (op, changed) {
                let changed = cells(changed, "\"old\"")?;
                old = Some(overlay(&data, &table.row(&changed, types, &learn, cast)?));
            }
            let (new, old) =
                if op == ChangeKind::Delete { (None, Some(data)) } else { (Some(data), old) };
            let event = event(new, old);
            budget.take_event(&event)?;
            events.push(event);
        }
        if let Some(last) = events.last_mut() {
            last.ends_transaction = true;
        }
        Ok(())
    }
}

impl Decode for Canal {
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        if has_no_value(record) {
            return Ok(());
        }
        let message = MysqlRecord::read(record)?;
        let Some(ty) = message.ty else {
            return Err(malformed("the Canal message has no \"type\""));
        };
        let op = match ty.text()?.as_ref() {
            "TRUNCATE" => ChangeKind::Truncate,
            _ if message.is_ddl => return Ok(()),
            "INSERT" => ChangeKind::Insert,
            "UPDATE" => ChangeKind::Update,
            "DELETE" => ChangeKind::Delete,
            ty if TYPES_WITHOUT_EVENTS.contains(&ty) => return Ok(()),
            _ => return Err(malformed("unknown \"type\" of a message")),
        };
        let before = events.len();
        let done = self.rows(&message, op, types, events);
        if done.is_err() {
            events.truncate(before);
        }
        done
    }

    /// With MySQL's `binlog_row_image` set to minimal or noblob, updates omit unchanged columns.
    fn omits_unchanged(&self) -> bool {
        true
    }
}
