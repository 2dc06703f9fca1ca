//! Maxwell's JSON: rows of MySQL's binary log.
//!
//! Rows are whole. An update tells the columns that it changed as they were before, so that the old
//! row is known, too: by whatever columns the target finds its rows. The last row of a transaction
//! says so.

use super::cast::{ByteSpelling, TypeFamily, JsonSpelling};
use super::json::{Json, Str, is_nothing, malformed};
use super::mysql::Record;
use super::shape::{SourceTableColumns, SourceTables, cells, overlay};
use super::{Decode, TargetTypes};
use crate::{ChangeEvent, SourceTable, ChangeKind, EventOrigin, Result, EventRow};

const SPELLING: JsonSpelling = JsonSpelling { bytes: ByteSpelling::Base64, json_strings: true };

/// Decodes Maxwell's JSON.
#[derive(Debug, Default)]
pub struct Maxwell {
    tables: SourceTables<TypeFamily>,
    /// Of records that name none.
    table: Option<SourceTable>,
}

impl Maxwell {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Maxwell {
        Maxwell::default()
    }

    /// The same, of records that do not name their table.
    pub(super) fn of_table(table: Option<SourceTable>) -> Maxwell {
        Maxwell { table, ..Maxwell::default() }
    }

    fn event(&mut self, record: &Record<'_>, op: ChangeKind, types: &dyn TargetTypes) -> Result<ChangeEvent> {
        let Some(data) = record.data else { return Err(malformed("a row has no \"data\"")) };
        let table = record.table(&mut self.tables, &self.table)?;
        let event = ChangeEvent {
            key: record.key(table)?,
            position: EventOrigin { transaction: record.xid.clone(), ..EventOrigin::default() },
            ends_transaction: record.is_last || !record.is_inside,
            ..ChangeEvent::of(table.name.clone(), op, None, None)
        };
        let data = row(table, data, types)?;
        if op == ChangeKind::Delete {
            return Ok(ChangeEvent { old: Some(data), ..event });
        }
        let mut old = None;
        if let (ChangeKind::Update, Some(changed)) = (op, record.old.filter(|old| *old != Json::Null)) {
            let changed = cells(changed, "\"old\"")?;
            old = Some(overlay(&data, &cast(table, &changed, types)?));
        }
        Ok(ChangeEvent { new: Some(data), old, ..event })
    }
}

impl Decode for Maxwell {
    fn decode(&mut self, record: &[u8], types: &dyn TargetTypes, events: &mut Vec<ChangeEvent>) -> Result<()> {
        if is_nothing(record) {
            return Ok(());
        }
        let record = Record::read(record)?;
        let Some(ty) = record.ty else {
            return Err(malformed("a record of Maxwell's has a \"type\", this one has none"));
        };
        let ty = ty.text()?;
        let op = match ty.as_ref() {
            "insert" => ChangeKind::Insert,
            "update" => ChangeKind::Update,
            "delete" => ChangeKind::Delete,
            "bootstrap-insert" => ChangeKind::Snapshot,
            "bootstrap-start" | "bootstrap-complete" | "heartbeat" => return Ok(()),
            // What is done to tables, of which the target may have none.
            _ if ty.starts_with("table-") || ty.starts_with("database-") => return Ok(()),
            _ => return Err(malformed("unknown \"type\" of a record")),
        };
        events.push(self.event(&record, op, types)?);
        Ok(())
    }

    /// With `binlog_row_image` of minimal or noblob.
    fn leaves_out(&self) -> bool {
        true
    }
}

fn row(table: &mut SourceTableColumns<TypeFamily>, row: Json<'_>, types: &dyn TargetTypes) -> Result<EventRow> {
    cast(table, &cells(row, "\"data\"")?, types)
}

fn cast(table: &mut SourceTableColumns<TypeFamily>, row: &[(Str<'_>, Json<'_>)], types: &dyn TargetTypes) -> Result<EventRow> {
    let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
    table.row(row, types, &learn, &mut |value, form| SPELLING.cast(value, form))
}
