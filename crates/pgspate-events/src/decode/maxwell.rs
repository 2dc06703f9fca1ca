//! Decodes Maxwell's JSON: rows of MySQL's binary log.
//!
//! Rows are whole. An update also gives the old values of the changed columns, so the whole old row
//! is known. The last row of a transaction is marked.

use super::json::{Json, JsonStr, has_no_value, malformed};
use super::json_values::{ByteSpelling, JsonSpelling, TypeFamily};
use super::mysql_record::MysqlRecord;
use super::source_tables::{SourceTableColumns, SourceTables, cells, overlay};
use super::{Decode, TargetTypes};
use crate::{ChangeEvent, ChangeKind, EventOrigin, EventRow, Result, SourceTable};

const SPELLING: JsonSpelling =
    JsonSpelling { json_strings: true, ..JsonSpelling::of_bytes(ByteSpelling::Base64) };

/// Decodes Maxwell's JSON.
#[derive(Debug, Default)]
pub struct Maxwell {
    tables: SourceTables<TypeFamily>,
    /// The table of records that name no table.
    table: Option<SourceTable>,
}

impl Maxwell {
    /// Returns a decoder at the beginning of a stream.
    pub fn new() -> Maxwell {
        Maxwell::default()
    }

    /// Returns a decoder that uses `table` for records that name no table.
    pub(super) fn for_table(table: Option<SourceTable>) -> Maxwell {
        Maxwell { table, ..Maxwell::default() }
    }

    fn event(
        &mut self,
        record: &MysqlRecord<'_>,
        op: ChangeKind,
        types: &dyn TargetTypes,
    ) -> Result<ChangeEvent> {
        let Some(data) = record.data else { return Err(malformed("a row has no \"data\"")) };
        let table = record.table(&mut self.tables, &self.table)?;
        let event = ChangeEvent {
            key: record.key(table)?,
            origin: EventOrigin { transaction: record.xid.clone(), ..EventOrigin::default() },
            ends_transaction: record.is_last || !record.is_inside,
            ..ChangeEvent::of(table.name.clone(), op, None, None)
        };
        let data = row(table, data, types)?;
        if op == ChangeKind::Delete {
            return Ok(ChangeEvent { old: Some(data), ..event });
        }
        let mut old = None;
        if let (ChangeKind::Update, Some(changed)) =
            (op, record.old.filter(|old| *old != Json::Null))
        {
            let changed = cells(changed, "\"old\"")?;
            old = Some(overlay(&data, &cast(table, &changed, types)?));
        }
        Ok(ChangeEvent { new: Some(data), old, ..event })
    }
}

impl Decode for Maxwell {
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        if has_no_value(record) {
            return Ok(());
        }
        let record = MysqlRecord::read(record)?;
        let Some(ty) = record.ty else {
            return Err(malformed("the Maxwell record has no \"type\""));
        };
        let ty = ty.text()?;
        let op = match ty.as_ref() {
            "insert" => ChangeKind::Insert,
            "update" => ChangeKind::Update,
            "delete" => ChangeKind::Delete,
            "bootstrap-insert" => ChangeKind::Snapshot,
            "bootstrap-start" | "bootstrap-complete" | "heartbeat" => return Ok(()),
            // Schema changes: the target's tables may differ from the source's.
            _ if ty.starts_with("table-") || ty.starts_with("database-") => return Ok(()),
            _ => return Err(malformed("unknown \"type\" of a record")),
        };
        events.push(self.event(&record, op, types)?);
        Ok(())
    }

    /// With MySQL's `binlog_row_image` set to minimal or noblob, updates omit unchanged columns.
    fn omits_unchanged(&self) -> bool {
        true
    }
}

fn row(
    table: &mut SourceTableColumns<TypeFamily>,
    row: Json<'_>,
    types: &dyn TargetTypes,
) -> Result<EventRow> {
    cast(table, &cells(row, "\"data\"")?, types)
}

fn cast(
    table: &mut SourceTableColumns<TypeFamily>,
    row: &[(JsonStr<'_>, Json<'_>)],
    types: &dyn TargetTypes,
) -> Result<EventRow> {
    let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
    table.row(row, types, &learn, &mut |value, family| SPELLING.cast(value, family))
}
