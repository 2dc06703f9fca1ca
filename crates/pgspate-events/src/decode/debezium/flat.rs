//! Decodes rows without an envelope, which the transformation ExtractNewRecordState writes.
//!
//! The fields that the transformation adds, such as `__op`, `__deleted` and `__table`, are not
//! columns. A row without `__op` exists after the change: it may have been inserted or updated.

use super::message::{DebeziumMessage, DebeziumSource, find};
use super::{Debezium, check_moved, has_absent};
use crate::decode::TargetTypes;
use crate::decode::json::{Json, JsonStr, malformed};
use crate::{ChangeEvent, ChangeKind, Result};

/// The names of fields that the setting `add.fields` adds, without their two underscores.
const ADDED: [&str; 34] = [
    "op",
    "deleted",
    "table",
    "schema",
    "db",
    "name",
    "connector",
    "version",
    "lsn",
    "txId",
    "xmin",
    "ts_ms",
    "ts_us",
    "ts_ns",
    "snapshot",
    "sequence",
    "query",
    "file",
    "pos",
    "row",
    "gtid",
    "server_id",
    "thread",
    "change_lsn",
    "commit_lsn",
    "event_serial_no",
    "scn",
    "commit_scn",
    "rs_id",
    "ssn",
    "redo_thread",
    "user_name",
    "collection",
    "ord",
];

/// Returns whether the transformation added a field to the row.
fn is_added(key: &str) -> bool {
    key.strip_prefix("__").is_some_and(|name| {
        ADDED.contains(&name) || name.starts_with("source_") || name.starts_with("transaction_")
    })
}

impl Debezium {
    pub(super) fn flat(
        &mut self,
        message: &DebeziumMessage<'_>,
        value: &[(JsonStr<'_>, Json<'_>)],
        types: &dyn TargetTypes,
    ) -> Result<Option<ChangeEvent>> {
        let mut row = Vec::with_capacity(value.len());
        for (key, value) in value {
            let text = key.text()?;
            if !is_added(&text) {
                row.push((*key, *value));
            }
        }
        let source = source(value)?;
        let schema = message.schema_of(&mut self.schemas)?;
        let key_schema = message.key_schema_of(&mut self.schemas)?;
        let named = schema.as_deref().filter(|schema| schema.name.is_some());
        let names = self.table_of(message, &source, named.or(key_schema.as_deref()))?;
        let op = match find(value, "__op") {
            Some(Json::String(op)) => Some(op.text()?),
            _ => None,
        };
        let is_deleted = match find(value, "__deleted") {
            Some(Json::String(deleted)) => deleted.is("true"),
            Some(deleted) => deleted == Json::Bool(true),
            None => op.as_deref() == Some("d"),
        };
        if is_deleted && message.moves_to_another_key()? {
            return Ok(None);
        }
        let key = self.key(message, &names, types)?;
        let mut new = None;
        if !row.is_empty() && op.as_deref() != Some("t") {
            new = Some(self.fields(&names, &row, schema.as_deref(), types)?);
        }
        let mut old = None;
        let op = match (op.as_deref(), &new) {
            (Some("t"), _) => ChangeKind::Truncate,
            (Some("m"), _) => return Ok(None),
            _ if is_deleted => {
                old = key.clone().or(new.take());
                ChangeKind::Delete
            }
            (_, None) => return Err(malformed("a row has no columns")),
            (Some("c"), _) => ChangeKind::Insert,
            (Some("u"), _) => ChangeKind::Update,
            (Some("r"), _) => ChangeKind::Snapshot,
            (Some(_), _) => return Err(malformed("unknown \"__op\" of a row")),
            (None, Some(row)) if has_absent(row) => ChangeKind::Update,
            (None, Some(_)) => ChangeKind::Snapshot,
        };
        if op == ChangeKind::Delete && old.is_none() {
            return Err(malformed("a delete does not identify its row"));
        }
        let mut op = op;
        if let (ChangeKind::Insert | ChangeKind::Update | ChangeKind::Snapshot, Some(moved)) =
            (op, message.header("__debezium.oldkey")?)
        {
            if message.is_unordered {
                check_moved(new.as_ref())?;
            } else {
                old = Some(self.read_old_key(&names, &moved, types)?);
                op = ChangeKind::Update;
            }
        }
        self.finish_event(message, &names, source, op, (old, new), key).map(Some)
    }
}

/// Reads the source of a flattened row from the added fields.
fn source<'a>(value: &[(JsonStr<'a>, Json<'a>)]) -> Result<DebeziumSource<'a>> {
    let word = |names: [&str; 2]| -> Result<_> {
        for name in names {
            if let Some(found) = find(value, name) {
                return found.word();
            }
        }
        Ok(None)
    };
    Ok(DebeziumSource {
        schema: word(["__schema", "__source_schema"])?,
        database: word(["__db", "__source_db"])?,
        table: word(["__table", "__source_table"])?,
        transaction: word(["__txId", "__source_txId"])?.map(Into::into),
        log_place: match word(["__lsn", "__source_lsn"])? {
            Some(lsn) => Some(lsn.into()),
            None => word(["__scn", "__source_scn"])?.map(Into::into),
        },
    })
}
