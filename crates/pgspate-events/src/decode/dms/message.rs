//! Decodes DMS's messages for Kafka and Kinesis: `{"data": {...}, "metadata": {...}}`.
//!
//! By default DMS omits columns that are NULL or empty, so an absent column may be either. An
//! update is refused if it lacks a column that earlier rows of its table had.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::json::{Json, JsonStr, malformed, object};
use super::super::json_values::TypeFamily;
use super::super::source_tables::cells;
use super::{Dms, SPELLING};
use crate::decode::TargetTypes;
use crate::{ChangeEvent, ChangeKind, EventOrigin, EventRow, Result, SourceTable};

/// The columns that the rows of each table have had.
#[derive(Debug, Default)]
pub(super) struct SeenColumns(HashMap<Arc<SourceTable>, TableSeenColumns>);

#[derive(Debug, Default)]
struct TableSeenColumns {
    all: HashSet<Box<str>>,
    /// A list that has all of these columns.
    whole: Option<Arc<[Box<str>]>>,
}

/// The most tables that are kept. When one more is added, all earlier tables are forgotten.
const TABLES_MAX: usize = 16_384;

impl SeenColumns {
    fn check(&mut self, table: &Arc<SourceTable>, op: ChangeKind, row: &EventRow) -> Result<()> {
        if self.0.len() > TABLES_MAX {
            self.0.clear();
        }
        let columns = self.0.entry(table.clone()).or_default();
        if columns.whole.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, &row.columns)) {
            return Ok(());
        }
        columns.all.extend(row.columns.iter().cloned());
        if columns.all.len() == row.columns.len() {
            columns.whole = Some(row.columns.clone());
        } else if op == ChangeKind::Update {
            return Err(malformed("a row lacks columns that other rows of its table have").hint(
                "They may be NULL or empty. Set `IncludeNullAndEmpty=true` on the DMS endpoint, so \
                 that DMS writes them.",
            ));
        }
        Ok(())
    }
}

impl Dms {
    pub(super) fn message(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
    ) -> Result<Option<ChangeEvent>> {
        let mut fields = object(record)?;
        let [mut data, mut before, mut metadata] = [None; 3];
        while let Some((key, value)) = fields.next()? {
            if key.is("data") {
                data = Some(value);
            } else if key.is("before-image") || key.is("before") {
                before = Some(value);
            } else if key.is("metadata") {
                metadata = Some(value);
            }
        }
        let Some(metadata) = metadata else {
            return Err(malformed("the DMS message has no \"metadata\""));
        };
        let metadata = DmsMetadata::read(metadata)?;
        let Some(operation) = metadata.operation else {
            return Err(malformed("a message does not name its \"operation\""));
        };
        let op = match operation.text()?.as_ref() {
            "load" => ChangeKind::Snapshot,
            "insert" => ChangeKind::Insert,
            "update" => ChangeKind::Update,
            "delete" => ChangeKind::Delete,
            "truncate-table" => ChangeKind::Truncate,
            // Schema changes: the target's tables may differ from the source's.
            _ if metadata.is_control => return Ok(None),
            _ => return Err(malformed("unknown \"operation\" of a message")),
        };
        let Some(name) = metadata.table else {
            return Err(malformed("a message does not name its table"));
        };
        let schema = metadata.schema.map(JsonStr::text).transpose()?;
        let table = self.tables.of(schema.as_deref(), &name.text()?, 0);
        let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
        let mut row = |json: Json<'_>| {
            let cast = &mut |value, family: &TypeFamily| SPELLING.cast(value, family);
            table.row(&cells(json, "\"data\"")?, types, &learn, cast)
        };
        let before = before.filter(|before| *before != Json::Null).map(&mut row).transpose()?;
        let (mut new, mut old) = (None, before);
        match (op, data) {
            (ChangeKind::Truncate, _) => {}
            (ChangeKind::Delete, Some(data)) if old.is_none() => old = Some(row(data)?),
            (ChangeKind::Delete, _) if old.is_some() => {}
            (ChangeKind::Insert | ChangeKind::Update | ChangeKind::Snapshot, Some(data)) => {
                new = Some(row(data)?)
            }
            _ => return Err(malformed("a message has no \"data\"")),
        }
        let table = table.name.clone();
        if let Some(new) = &new {
            self.seen.check(&table, op, new)?;
        }
        let origin = EventOrigin { transaction: metadata.transaction, ..EventOrigin::default() };
        Ok(Some(ChangeEvent { table, op, new, old, key: None, origin, ends_transaction: true }))
    }
}

/// The metadata of a message.
#[derive(Default)]
struct DmsMetadata<'a> {
    is_control: bool,
    operation: Option<JsonStr<'a>>,
    schema: Option<JsonStr<'a>>,
    table: Option<JsonStr<'a>>,
    transaction: Option<Box<str>>,
}

impl<'a> DmsMetadata<'a> {
    fn read(json: Json<'a>) -> Result<DmsMetadata<'a>> {
        let Some(mut fields) = json.object() else {
            return Err(malformed("expected \"metadata\" to be an object"));
        };
        let mut found = DmsMetadata::default();
        while let Some((key, value)) = fields.next()? {
            match value {
                Json::String(ty) if key.is("record-type") => found.is_control = ty.is("control"),
                Json::String(name) if key.is("operation") => found.operation = Some(name),
                Json::String(name) if key.is("schema-name") => found.schema = Some(name),
                Json::String(name) if key.is("table-name") => found.table = Some(name),
                _ if key.is("transaction-id") => {
                    found.transaction = value.word()?.map(Into::into);
                }
                _ => {}
            }
        }
        Ok(found)
    }
}
