//! Debezium's JSON: envelopes and flattened rows, with schemas and without, keys beside them.
//!
//! A record is a value, or an object of key and value as consoles and dumps of Kafka's topics write
//! them. Columns whose value the source did not tell are absent. Messages of one table say nothing
//! of where a transaction ends, so a commit may follow each. A row whose key changed comes as a
//! delete and an insert, which are made one update: what the insert leaves out is the old row's.

mod flat;
mod kind;
mod message;
mod pairs;
mod placeholder;
mod schema;
mod value;

use std::borrow::Cow;
use std::sync::Arc;

use self::kind::Kind;
pub(super) use self::message::is_metadata;
use self::message::{Message, Source, find};
use self::pairs::Deleted;
use self::placeholder::Placeholder;
use self::schema::{Schema, Schemas};
use self::value::{Modes, read};
use super::json::{Json, Str, is_nothing, malformed};
use super::moments::TimeUnit;
use super::shape::{SourceTableColumns, SourceTables, cells};
use super::{Decode, Grouping, KeyedRecord, TargetTypes};
use crate::{ChangeEvent, SourceTable, ChangeKind, EventOrigin, Result, EventRow, EventValue};

/// What cannot be read from the records.
#[derive(Debug, Clone, Default)]
pub struct DebeziumOptions {
    /// The table of rows that do not name theirs.
    pub table: Option<SourceTable>,
    /// The connector's `unavailable.value.placeholder`, where it is set.
    pub placeholder: Option<String>,
    /// What times and timestamps are counted in where no schema says it; left out, microseconds,
    /// and what is unlikely to be those is refused.
    pub unit: Option<TimeUnit>,
    /// Whether decimals are text where no schema says it (`decimal.handling.mode=string`).
    pub text_decimals: Option<bool>,
    /// Whether bytes are hexadecimal digits where no schema says it (`binary.handling.mode=hex`).
    pub hex_bytes: Option<bool>,
}

/// Decodes Debezium's JSON.
#[derive(Debug)]
pub struct Debezium {
    table: Option<SourceTable>,
    placeholder: Placeholder,
    modes: Modes,
    schemas: Schemas,
    tables: SourceTables<Column>,
    /// The last rows were flattened, so that a key without a value is a row that is gone.
    is_flat: Option<bool>,
    /// Rows have columns `key` and `value`, as records that are both a key and a value have.
    has_pairs: bool,
    /// The last row, if it was deleted and may come again under another key.
    deleted: Option<Deleted>,
    grouping: Grouping,
}

/// What is known of a column.
#[derive(Debug)]
struct Column {
    kind: Kind,
    /// What its schema says stands for a value that is not told.
    placeholder: Option<Placeholder>,
}

impl Default for Debezium {
    fn default() -> Debezium {
        Debezium::new(DebeziumOptions::default())
    }
}

impl Debezium {
    /// A decoder at the beginning of a stream.
    pub fn new(options: DebeziumOptions) -> Debezium {
        Debezium {
            table: options.table,
            placeholder: Placeholder::new(
                options.placeholder.as_deref().unwrap_or(placeholder::USUAL),
            ),
            modes: Modes {
                text_decimals: options.text_decimals,
                hex_bytes: options.hex_bytes,
                unit: options.unit,
            },
            schemas: Schemas::default(),
            tables: SourceTables::default(),
            is_flat: None,
            has_pairs: false,
            deleted: None,
            grouping: Grouping::AsEvents,
        }
    }

    fn message(&mut self, message: &Message<'_>, types: &dyn TargetTypes) -> Result<Option<ChangeEvent>> {
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

    fn envelope(
        &mut self,
        message: &Message<'_>,
        value: &[(Str<'_>, Json<'_>)],
        op: Str<'_>,
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
        // The new row's event will know the old key, and take over what it does not tell; unless
        // it may have come already, or other events of the old key may come yet.
        let is_ordered = !message.is_scattered;
        if op == ChangeKind::Delete && message.leaves_for_another_key()? {
            return Ok(None);
        }
        let source = Source::read(value)?;
        let schema = message.schema_of(&mut self.schemas)?;
        let names = self.names(message, &source, schema.as_deref())?;
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
            old = Some(self.moved(&names, moved, types)?);
            op = ChangeKind::Update;
        } else if let (ChangeKind::Update | ChangeKind::Delete, None) = (op, &key) {
            if let Some(before) = row("before") {
                old = Some(self.row(&names, before, schema.as_deref(), types)?);
            }
        } else if op == ChangeKind::Delete {
            old = key.clone();
        }
        if op == ChangeKind::Delete && old.is_none() {
            return Err(malformed("a deleted row is not identified").hint(
                "Keep the messages' keys in the dump, give the source's table a primary key, or \
                 run `alter table ... replica identity full` there.",
            ));
        }
        self.told(message, &names, source, op, (old, new), key)
    }

    /// The event of a change from the `old` row to the `new` one, as a message tells it.
    fn told(
        &mut self,
        message: &Message<'_>,
        names: &Names<'_>,
        source: Source<'_>,
        op: ChangeKind,
        (old, new): (Option<EventRow>, Option<EventRow>),
        key: Option<EventRow>,
    ) -> Result<Option<ChangeEvent>> {
        let table = self.tables.of(names.schema(), &names.table, 0).name.clone();
        let position = EventOrigin { transaction: source.transaction, ..EventOrigin::default() };
        let key = key.map(|key| key.columns);
        let event = ChangeEvent { key, position, ..ChangeEvent::of(table, op, old, new) };
        self.pair(event, source.written, message).map(Some)
    }

    /// A key without a value: for rows that are flattened, all that is left of a deleted one.
    fn tombstone(&mut self, message: &Message<'_>, types: &dyn TargetTypes) -> Result<Option<ChangeEvent>> {
        if self.is_flat == Some(false)
            || message.key.is_none()
            || message.leaves_for_another_key()?
        {
            return Ok(None);
        }
        let schema = message.key_schema_of(&mut self.schemas)?;
        let Ok(names) = self.names(message, &Source::default(), schema.as_deref()) else {
            return match self.is_flat {
                Some(_) => Err(unnamed()),
                None => Ok(None),
            };
        };
        let Some(key) = self.key(message, &names, types)? else { return Ok(None) };
        self.told(
            message,
            &names,
            Source::default(),
            ChangeKind::Delete,
            (Some(key.clone()), None),
            Some(key),
        )
    }

    /// The row of an old key, as a header tells it.
    fn moved(&mut self, names: &Names<'_>, moved: &str, types: &dyn TargetTypes) -> Result<EventRow> {
        let moved = Message::of_value(moved)?;
        let schema = moved.schema_of(&mut self.schemas)?;
        let Some(fields) = &moved.value else { return Err(malformed("an empty old key")) };
        self.fields(names, fields, schema.as_deref(), types)
    }

    /// The row of a message's key.
    fn key(
        &mut self,
        message: &Message<'_>,
        names: &Names<'_>,
        types: &dyn TargetTypes,
    ) -> Result<Option<EventRow>> {
        let Some(key) = message.key.as_deref().filter(|key| !key.is_empty()) else {
            return Ok(None);
        };
        let schema = message.key_schema_of(&mut self.schemas)?;
        self.fields(names, key, schema.as_deref(), types).map(Some)
    }

    /// Which table a message is about: by its source, its schema, its topic, or as told.
    fn names<'a>(
        &self,
        message: &Message<'a>,
        source: &Source<'a>,
        schema: Option<&Schema>,
    ) -> Result<Names<'a>> {
        if let Some(table) = &source.table {
            let schema = source.schema.clone().or_else(|| source.database.clone());
            return Ok(Names { schema, table: table.clone() });
        }
        let of_schema = |schema: &Schema| {
            let name = schema.name.as_deref()?;
            let (name, _) = name.rsplit_once('.')?;
            dotted(name).map(|(schema, table)| Names {
                schema: Some(Cow::Owned(schema.to_owned())),
                table: Cow::Owned(table.to_owned()),
            })
        };
        if let Some(names) = schema.and_then(of_schema) {
            return Ok(names);
        }
        if let Some((schema, table)) = message.topic.as_deref().and_then(dotted) {
            return Ok(Names {
                schema: Some(Cow::Owned(schema.to_owned())),
                table: Cow::Owned(table.to_owned()),
            });
        }
        match (&self.table, &message.topic) {
            (Some(name), _) => Ok(Names {
                schema: name.schema.clone().map(Cow::Owned),
                table: Cow::Owned(name.table.clone()),
            }),
            // Routed to a topic of the table's name.
            (None, Some(topic)) => Ok(Names { schema: None, table: topic.clone() }),
            (None, None) => Err(unnamed()),
        }
    }

    fn row(
        &mut self,
        names: &Names<'_>,
        row: Json<'_>,
        schema: Option<&Schema>,
        types: &dyn TargetTypes,
    ) -> Result<EventRow> {
        self.fields(names, &cells(row, "a row")?, schema, types)
    }

    fn fields(
        &mut self,
        names: &Names<'_>,
        fields: &[(Str<'_>, Json<'_>)],
        schema: Option<&Schema>,
        types: &dyn TargetTypes,
    ) -> Result<EventRow> {
        let Debezium { tables, modes, placeholder, .. } = self;
        let variant = schema.map_or(0, |schema| schema.id);
        let table: &mut SourceTableColumns<Column> = tables.of(names.schema(), &names.table, variant);
        let learn = |column: &str, ty: Option<&str>| {
            let field = schema.and_then(|schema| schema.fields.get(column));
            let own = field.and_then(|field| field.placeholder.as_deref());
            Column {
                kind: field.map_or_else(|| Kind::guess(ty), |field| Kind::of(field, ty)),
                placeholder: own.map(Placeholder::new),
            }
        };
        table.row(fields, types, &learn, &mut |value, column: &Column| {
            read(value, &column.kind, column.placeholder.as_ref().unwrap_or(placeholder), modes)
        })
    }
}

/// A table's names.
struct Names<'a> {
    schema: Option<Cow<'a, str>>,
    table: Cow<'a, str>,
}

impl Names<'_> {
    fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }
}

/// The last two parts of `server.schema.table`.
fn dotted(name: &str) -> Option<(&str, &str)> {
    let (rest, table) = name.rsplit_once('.')?;
    let schema = rest.rsplit_once('.').map_or(rest, |(_, schema)| schema);
    Some((schema, table))
}

fn unnamed() -> crate::Error {
    malformed("a row does not name its table").hint(
        "Let the connector add it with `transforms.unwrap.add.fields=op,table,schema`, or write \
         schemas beside the values.",
    )
}

/// A row with a new key, whose old one may be gone, or yet to change: nothing can be taken over.
fn check_moved(new: Option<&EventRow>) -> Result<()> {
    if !new.is_some_and(has_absent) {
        return Ok(());
    }
    let message = "a row whose key has changed does not tell all that is in it";
    Err(malformed(message).hint(
        "Between partitions there is no order, so that the row cannot be looked up under its old \
         key. Run `alter table ... replica identity full` on the source, or write its changes to \
         a topic of one partition, and apply that by itself.",
    ))
}

/// Whether a row leaves something out.
fn has_absent(row: &EventRow) -> bool {
    row.values.contains(&EventValue::Absent)
}

impl Decode for Debezium {
    fn decode(&mut self, record: &[u8], types: &dyn TargetTypes, events: &mut Vec<ChangeEvent>) -> Result<()> {
        self.grouping = Grouping::AsEvents;
        if is_nothing(record) {
            return Ok(());
        }
        let likely: Option<Arc<Schema>> = self.schemas.last();
        let known = likely.as_ref().map(|schema| &*schema.text);
        let mut inner = None;
        let message = Message::read(record, known, &mut inner)?;
        let event = self.message(&message, types);
        drop(message);
        if event.is_err() {
            self.deleted = None;
        }
        events.extend(event?);
        Ok(())
    }

    fn grouping(&self) -> Grouping {
        self.grouping
    }

    fn decode_keyed(
        &mut self,
        record: &KeyedRecord<'_>,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        if record.value.is_none() && self.is_flat == Some(false) {
            return Ok(());
        }
        let likely: Option<Arc<Schema>> = self.schemas.last();
        let known = likely.as_ref().map(|schema| &*schema.text);
        let message = Message::of_keyed(record, known)?;
        events.extend(self.message(&message, types)?);
        // Of a message that was committed nothing can be taken back.
        self.grouping = Grouping::AsEvents;
        Ok(())
    }
}
