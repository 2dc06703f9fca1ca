//! Decodes Debezium's JSON: envelopes and flattened rows, with and without schemas and keys.
//!
//! A record is a value, or an object of key and value, as consoles and dumps of Kafka topics write
//! it. Columns whose value the source did not send are absent. Messages of one table do not tell
//! where a transaction ends, so a commit may follow each event. Debezium writes a changed key as a
//! delete and an insert. The decoder joins the delete and the insert to one update, so that columns
//! that the insert omits keep their values.

mod flat;
mod message;
mod moved_rows;
mod placeholder;
mod schema;
mod tombstone;
mod value;
mod value_kind;

use std::borrow::Cow;
use std::sync::Arc;

pub(super) use self::message::is_metadata;
use self::message::{DebeziumMessage, DebeziumSource, find};
use self::moved_rows::DeletedRow;
use self::placeholder::Placeholder;
use self::schema::{ConnectSchema, SchemaCache};
use self::tombstone::EnvelopeTables;
use self::value::{ConnectorModes, read};
use self::value_kind::ValueKind;
use super::json::{Json, JsonStr, has_no_value, malformed};
use super::moments::TimeUnit;
use super::source_tables::{SourceTableColumns, SourceTables, cells};
use super::{Decode, KeyedRecord, RecordGrouping, TargetTypes};
use crate::{ChangeEvent, ChangeKind, EventOrigin, EventRow, EventValue, Result, SourceTable};

/// Facts that Debezium's records do not state.
#[derive(Debug, Clone, Default)]
pub struct DebeziumOptions {
    /// The table of rows that name no table.
    pub table: Option<SourceTable>,
    /// The connector's `unavailable.value.placeholder`, if it is set.
    pub placeholder: Option<String>,
    /// The unit of times and timestamps without a schema. `None` means microseconds, and numbers
    /// that are unlikely to be microseconds are then refused.
    pub unit: Option<TimeUnit>,
    /// Whether decimals without a schema are text (`decimal.handling.mode=string`).
    pub text_decimals: Option<bool>,
    /// Whether bytes without a schema are hexadecimal digits (`binary.handling.mode=hex`).
    pub hex_bytes: Option<bool>,
}

/// Decodes Debezium's JSON.
#[derive(Debug)]
pub struct Debezium {
    table: Option<SourceTable>,
    placeholder: Placeholder,
    modes: ConnectorModes,
    schemas: SchemaCache,
    tables: SourceTables<DebeziumColumn>,
    /// Whether the last rows were flattened.
    is_flat: Option<bool>,
    /// The tables of the envelopes that were read from a topic.
    envelope_tables: EnvelopeTables,
    /// The key of the topic's last message, if that message is an envelope of a deleted row.
    deleted_key: Option<Box<[u8]>>,
    /// Whether rows have columns `key` and `value`, like records that hold a key and a value.
    has_pairs: bool,
    /// The row that the last event deleted, if the next event may insert it under another key.
    deleted: Option<DeletedRow>,
    grouping: RecordGrouping,
}

/// How the values of a column are read.
#[derive(Debug)]
struct DebeziumColumn {
    kind: ValueKind,
    /// The placeholder for values that the source did not send, if the column's schema names one.
    placeholder: Option<Placeholder>,
}

impl Default for Debezium {
    fn default() -> Debezium {
        Debezium::new(DebeziumOptions::default())
    }
}

impl Debezium {
    /// Returns a decoder at the beginning of a stream.
    pub fn new(options: DebeziumOptions) -> Debezium {
        Debezium {
            table: options.table,
            placeholder: Placeholder::new(
                options.placeholder.as_deref().unwrap_or(placeholder::DEFAULT_PLACEHOLDER),
            ),
            modes: ConnectorModes {
                text_decimals: options.text_decimals,
                hex_bytes: options.hex_bytes,
                unit: options.unit,
            },
            schemas: SchemaCache::default(),
            tables: SourceTables::default(),
            is_flat: None,
            envelope_tables: EnvelopeTables::None,
            deleted_key: None,
            has_pairs: false,
            deleted: None,
            grouping: RecordGrouping::ByEvents,
        }
    }

    /// Returns the event of a message, if the message has one.
    fn message(
        &mut self,
        message: &DebeziumMessage<'_>,
        types: &dyn TargetTypes,
    ) -> Result<Option<ChangeEvent>> {
        let of_row = message.empty_pair.as_deref().filter(|_| self.has_pairs);
        let Some(value) = message.value.as_deref().or(of_row) else {
            return self.tombstone(message, types);
        };
        let op = find(value, "op");
        let is_envelope = matches!(op, Some(Json::String(_)))
            && ["after", "before", "source"].iter().any(|name| find(value, name).is_some());
        if let (Some(Json::String(op)), true) = (op, is_envelope) {
            return self.envelope(message, value, op, types);
        }
        if is_metadata(value) {
            return Ok(None);
        }
        self.is_flat = Some(true);
        let has = |name| find(value, name).is_some();
        self.has_pairs |= message.is_bare && has("key") && has("value");
        self.flat(message, value, types)
    }

    /// Returns the event of an envelope, if the envelope has one.
    fn envelope(
        &mut self,
        message: &DebeziumMessage<'_>,
        value: &[(JsonStr<'_>, Json<'_>)],
        op: JsonStr<'_>,
        types: &dyn TargetTypes,
    ) -> Result<Option<ChangeEvent>> {
        self.is_flat = Some(false);
        let op = match op.text()?.as_ref() {
            "c" => ChangeKind::Insert,
            "u" => ChangeKind::Update,
            "d" => ChangeKind::Delete,
            "r" => ChangeKind::Snapshot,
            "t" => ChangeKind::Truncate,
            "m" => return Ok(None),
            _ => return Err(malformed("unknown \"op\" of an envelope")),
        };
        if op == ChangeKind::Delete {
            self.deleted_key = message.raw_key.map(Into::into);
        }
        // In an ordered stream, the delete under the old key has no event of its own. The event of
        // the new row gives the old key. Columns that the new row omits keep the old row's values.
        let is_ordered = !message.is_unordered;
        if op == ChangeKind::Delete && message.moves_to_another_key()? {
            return Ok(None);
        }
        let source = DebeziumSource::read(value)?;
        let schema = message.schema_of(&mut self.schemas)?;
        let names = self.table_of(message, &source, schema.as_deref())?;
        let row = |name| find(value, name).filter(|row| *row != Json::Null);
        let mut new = None;
        if let ChangeKind::Insert | ChangeKind::Update | ChangeKind::Snapshot = op {
            let Some(after) = row("after") else {
                return Err(malformed("an envelope has no \"after\""));
            };
            new = Some(self.row(&names, after, schema.as_deref(), types)?);
        }
        let key = self.key(message, &names, types)?;
        let moved = message.header("__debezium.oldkey")?;
        let (mut op, mut old) = (op, None);
        if moved.is_some() && !is_ordered {
            check_moved(new.as_ref())?;
        } else if let (ChangeKind::Insert, Some(moved)) = (op, &moved) {
            old = Some(self.read_old_key(&names, moved, types)?);
            op = ChangeKind::Update;
        } else if let (ChangeKind::Update | ChangeKind::Delete, None) = (op, &key) {
            // Beside a key, `before` is not read: without `replica identity full`, its other
            // columns are NULL, or 0 and empty text if they cannot be NULL.
            if let Some(before) = row("before") {
                old = Some(self.row(&names, before, schema.as_deref(), types)?);
            }
        } else if op == ChangeKind::Delete {
            old = key.clone();
        }
        if op == ChangeKind::Delete && old.is_none() {
            return Err(malformed("a delete does not identify its row").hint(
                "Keep the messages' keys in the dump, give the source's table a primary key, or \
                 run `alter table ... replica identity full` there.",
            ));
        }
        let event = self.finish_event(message, &names, source, op, (old, new), key)?;
        if message.raw_key.is_some() && !self.envelope_tables.know(&event.table) {
            let key_schema = message.key_schema_of(&mut self.schemas)?;
            self.envelope_tables.add(&event.table, key_schema.as_deref());
        }
        Ok(Some(event))
    }

    /// Returns the event of a change from the `old` row to the `new` row.
    fn finish_event(
        &mut self,
        message: &DebeziumMessage<'_>,
        names: &DebeziumTable<'_>,
        source: DebeziumSource<'_>,
        op: ChangeKind,
        (old, new): (Option<EventRow>, Option<EventRow>),
        key: Option<EventRow>,
    ) -> Result<ChangeEvent> {
        let table = self.tables.of(names.schema(), &names.table, 0).name.clone();
        let origin = EventOrigin { transaction: source.transaction, ..EventOrigin::default() };
        let key = key.map(|key| key.columns);
        let event = ChangeEvent { key, origin, ..ChangeEvent::of(table, op, old, new) };
        self.join_moved_row(event, source.log_place, message)
    }

    /// Reads the old key of a row from a header.
    fn read_old_key(
        &mut self,
        names: &DebeziumTable<'_>,
        moved: &str,
        types: &dyn TargetTypes,
    ) -> Result<EventRow> {
        let moved = DebeziumMessage::of_value(moved)?;
        let schema = moved.schema_of(&mut self.schemas)?;
        let Some(fields) = &moved.value else {
            return Err(malformed("the old key in the headers is empty"));
        };
        self.fields(names, fields, schema.as_deref(), types)
    }

    /// Reads a message's key as a row.
    fn key(
        &mut self,
        message: &DebeziumMessage<'_>,
        names: &DebeziumTable<'_>,
        types: &dyn TargetTypes,
    ) -> Result<Option<EventRow>> {
        let Some(key) = message.key.as_deref().filter(|key| !key.is_empty()) else {
            return Ok(None);
        };
        let schema = message.key_schema_of(&mut self.schemas)?;
        self.fields(names, key, schema.as_deref(), types).map(Some)
    }

    /// Returns the table of a message: from its source, its schema, its topic, or the options.
    fn table_of<'a>(
        &self,
        message: &DebeziumMessage<'a>,
        source: &DebeziumSource<'a>,
        schema: Option<&ConnectSchema>,
    ) -> Result<DebeziumTable<'a>> {
        if let Some(table) = &source.table {
            let schema = source.schema.clone().or_else(|| source.database.clone());
            return Ok(DebeziumTable { schema, table: table.clone() });
        }
        let of_schema = |schema: &ConnectSchema| {
            let name = schema.name.as_deref()?;
            let (name, _) = name.rsplit_once('.')?;
            split_topic(name).map(|(schema, table)| DebeziumTable {
                schema: Some(Cow::Owned(schema.to_owned())),
                table: Cow::Owned(table.to_owned()),
            })
        };
        if let Some(names) = schema.and_then(of_schema) {
            return Ok(names);
        }
        if let Some((schema, table)) = message.topic.as_deref().and_then(split_topic) {
            return Ok(DebeziumTable {
                schema: Some(Cow::Owned(schema.to_owned())),
                table: Cow::Owned(table.to_owned()),
            });
        }
        match (&self.table, &message.topic) {
            (Some(name), _) => Ok(DebeziumTable {
                schema: name.schema.clone().map(Cow::Owned),
                table: Cow::Owned(name.table.clone()),
            }),
            // A message routed to a topic that has the table's name.
            (None, Some(topic)) => Ok(DebeziumTable { schema: None, table: topic.clone() }),
            (None, None) => Err(no_table_error()),
        }
    }

    /// Reads the object of a row.
    fn row(
        &mut self,
        names: &DebeziumTable<'_>,
        row: Json<'_>,
        schema: Option<&ConnectSchema>,
        types: &dyn TargetTypes,
    ) -> Result<EventRow> {
        self.fields(names, &cells(row, "a row")?, schema, types)
    }

    /// Reads the fields of a row or of a key as columns of the table.
    fn fields(
        &mut self,
        names: &DebeziumTable<'_>,
        fields: &[(JsonStr<'_>, Json<'_>)],
        schema: Option<&ConnectSchema>,
        types: &dyn TargetTypes,
    ) -> Result<EventRow> {
        let Debezium { tables, modes, placeholder, .. } = self;
        let variant = schema.map_or(0, |schema| schema.id);
        let table: &mut SourceTableColumns<DebeziumColumn> =
            tables.of(names.schema(), &names.table, variant);
        let learn = |column: &str, ty: Option<&str>| {
            let field = schema.and_then(|schema| schema.fields.get(column));
            let own = field.and_then(|field| field.placeholder.as_deref());
            DebeziumColumn {
                kind: field.map_or_else(|| ValueKind::guess(ty), |field| ValueKind::of(field, ty)),
                placeholder: own.map(Placeholder::new),
            }
        };
        table.row(fields, types, &learn, &mut |value, column: &DebeziumColumn| {
            read(value, &column.kind, column.placeholder.as_ref().unwrap_or(placeholder), modes)
        })
    }
}

/// A table's schema and name, as a message gives them.
struct DebeziumTable<'a> {
    schema: Option<Cow<'a, str>>,
    table: Cow<'a, str>,
}

impl DebeziumTable<'_> {
    fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }
}

/// Returns the schema and the table of `server.schema.table`.
fn split_topic(name: &str) -> Option<(&str, &str)> {
    let (rest, table) = name.rsplit_once('.')?;
    let schema = rest.rsplit_once('.').map_or(rest, |(_, schema)| schema);
    Some((schema, table))
}

/// Returns the error for a row whose table is unknown.
fn no_table_error() -> crate::Error {
    malformed("a row does not name its table").hint(
        "Let the connector add it with `transforms.unwrap.add.fields=op,table,schema`, or write \
         schemas beside the values.",
    )
}

/// Checks that a row with a new key is complete. In a stream without order, the row under the old
/// key may be deleted already or may still change, so omitted columns cannot be taken from it.
fn check_moved(new: Option<&EventRow>) -> Result<()> {
    if !new.is_some_and(has_absent) {
        return Ok(());
    }
    let message = "a row whose key has changed lacks columns";
    Err(malformed(message).hint(
        "Between partitions there is no order, so that the row cannot be looked up under its old \
         key. Run `alter table ... replica identity full` on the source, or write its changes to \
         a topic of one partition, and apply that by itself.",
    ))
}

/// Returns whether a row omits a value.
fn has_absent(row: &EventRow) -> bool {
    row.values.contains(&EventValue::Absent)
}

impl Decode for Debezium {
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        self.grouping = RecordGrouping::ByEvents;
        if has_no_value(record) {
            return Ok(());
        }
        let likely: Option<Arc<ConnectSchema>> = self.schemas.last();
        let known = likely.as_ref().map(|schema| &*schema.text);
        let mut inner = None;
        let message = DebeziumMessage::read(record, known, &mut inner)?;
        let event = self.message(&message, types);
        drop(message);
        if event.is_err() {
            self.deleted = None;
        }
        events.extend(event?);
        Ok(())
    }

    fn grouping(&self) -> RecordGrouping {
        self.grouping
    }

    fn decode_keyed(
        &mut self,
        record: &KeyedRecord<'_>,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        // The caller may have committed the previous message already, so this event must not be
        // joined to that message's delete.
        self.deleted = None;
        let deleted_key = self.deleted_key.take();
        if record.value.is_none() && deleted_key.as_deref() == record.key {
            return Ok(());
        }
        let likely: Option<Arc<ConnectSchema>> = self.schemas.last();
        let known = likely.as_ref().map(|schema| &*schema.text);
        let message = DebeziumMessage::of_keyed(record, known)?;
        events.extend(self.message(&message, types)?);
        self.grouping = RecordGrouping::ByEvents;
        Ok(())
    }
}
