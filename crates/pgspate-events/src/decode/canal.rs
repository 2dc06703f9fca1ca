//! Canal's flat messages: rows of MySQL's binary log, many in a message.
//!
//! Every value is a string, bytes with a character for each of them. What Flink writes in this
//! format names no types, and often no table; its bytes are base64. Rows are whole, and an update
//! tells the columns that it changed as they were before. Statements about tables are passed over,
//! but for TRUNCATE.

use super::cast::{Bytes, Form, Spelling};
use super::json::{Json, Str, is_nothing, malformed, object};
use super::maxwell::{named, names};
use super::room::Room;
use super::shape::{Tables, cells, overlay};
use super::{Decode, Types};
use crate::{Event, Name, Op, Position, Result};

const SPELLING: Spelling = Spelling { bytes: Bytes::Latin1, json_strings: false };
/// Flink's.
const TYPELESS: Spelling = Spelling { bytes: Bytes::Base64, json_strings: false };

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
    tables: Tables<Form>,
    /// Of messages that name none.
    table: Option<Name>,
}

/// The fields of a message that mean something here.
#[derive(Default)]
struct Message<'a> {
    ty: Option<Str<'a>>,
    database: Option<Str<'a>>,
    table: Option<Str<'a>>,
    data: Option<Json<'a>>,
    old: Option<Json<'a>>,
    key: Option<Vec<Str<'a>>>,
    is_ddl: bool,
    /// It says of what types the source's columns are.
    has_types: bool,
}

impl Canal {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Canal {
        Canal::default()
    }

    /// The same, of messages that do not name their table.
    pub(super) fn of_table(table: Option<Name>) -> Canal {
        Canal { table, ..Canal::default() }
    }

    fn rows(
        &mut self,
        message: &Message<'_>,
        op: Op,
        types: &dyn Types,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        let table = named(&mut self.tables, message.database, message.table, &self.table)?;
        let spelling = if message.has_types { SPELLING } else { TYPELESS };
        let key = message.key.as_deref().filter(|key| !key.is_empty());
        let shared = key.map(|key| table.key(key)).transpose()?;
        let name = table.name.clone();
        let event = |new, old| Event {
            table: name.clone(),
            op,
            new,
            old,
            key: shared.clone(),
            position: Position::default(),
            ends_transaction: false,
        };
        if op == Op::Truncate {
            events.push(Event { ends_transaction: true, ..event(None, None) });
            return Ok(());
        }
        let Some(mut rows) = message.data.and_then(Json::array) else {
            return Err(malformed("a message has no list \"data\""));
        };
        let mut olds = message.old.and_then(Json::array);
        let learn = |_: &str, ty: Option<&str>| ty.map_or(Form::Other, Form::of);
        let mut room = Room::default();
        while let Some(mut row) = rows.next_object("a row")? {
            let cast = &mut |value, form: &Form| spelling.cast(value, form);
            let data = table.row(&row.rest()?, types, &learn, cast)?;
            rows.close_object(row);
            let changed = olds.as_mut().map(|olds| olds.next()).transpose()?.flatten();
            let mut old = None;
            if let (Op::Update, Some(changed @ Json::Object(_))) = (op, changed) {
                let changed = cells(changed, "\"old\"")?;
                old = Some(overlay(&data, &table.row(&changed, types, &learn, cast)?));
            }
            let (new, old) = if op == Op::Delete { (None, Some(data)) } else { (Some(data), old) };
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
    fn decode(&mut self, record: &[u8], types: &dyn Types, events: &mut Vec<Event>) -> Result<()> {
        if is_nothing(record) {
            return Ok(());
        }
        let message = Message::read(record)?;
        let Some(ty) = message.ty else {
            return Err(malformed("a message of Canal's has a \"type\", this one has none"));
        };
        let op = match ty.text()?.as_ref() {
            "TRUNCATE" => Op::Truncate,
            _ if message.is_ddl => return Ok(()),
            "INSERT" => Op::Insert,
            "UPDATE" => Op::Update,
            "DELETE" => Op::Delete,
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

impl<'a> Message<'a> {
    fn read(record: &'a [u8]) -> Result<Message<'a>> {
        let mut fields = object(record)?;
        let mut found = Message::default();
        while let Some((key, value)) = fields.next()? {
            match value {
                Json::String(value) if key.is("type") => found.ty = Some(value),
                Json::String(value) if key.is("database") => found.database = Some(value),
                Json::String(value) if key.is("table") => found.table = Some(value),
                _ if key.is("data") => found.data = Some(value),
                _ if key.is("old") => found.old = Some(value),
                _ if key.is("pkNames") => found.key = Some(names(value)?),
                _ if key.is("isDdl") => {
                    found.is_ddl = value == Json::Bool(true);
                    found.has_types = true;
                }
                _ if key.is("mysqlType") || key.is("sqlType") => found.has_types = true,
                _ => {}
            }
        }
        Ok(found)
    }
}
