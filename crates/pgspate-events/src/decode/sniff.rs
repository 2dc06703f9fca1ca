//! Detects the format of a stream by one of its first records, and makes the decoder for it.
//!
//! A format is detected by fields that no other format has. A record without such fields is an
//! error: a wrong guess would write rows that the source never had.

use super::canal;
use super::debezium::is_metadata;
use super::json::{Json, JsonFields, JsonStr, malformed, object};
use super::{Canal, Debezium, DebeziumOptions, Decode, Dms, DmsOptions, Maxwell, Wal2json};
use crate::{Error, ErrorKind, Result};

/// A format of change events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFormat {
    /// Debezium's JSON, envelopes or flattened.
    Debezium,
    /// wal2json, version 1 or 2.
    Wal2json,
    /// Maxwell's JSON.
    Maxwell,
    /// Canal's flat messages.
    Canal,
    /// AWS DMS: lines of csv or messages of JSON.
    Dms,
    /// pgspate's own JSON lines.
    Pgspate,
}

impl EventFormat {
    /// All formats, in the order in which messages name them.
    pub const ALL: [EventFormat; 6] = [
        EventFormat::Debezium,
        EventFormat::Wal2json,
        EventFormat::Maxwell,
        EventFormat::Canal,
        EventFormat::Dms,
        EventFormat::Pgspate,
    ];

    /// Returns the format's name, as `--format` takes it.
    pub fn name(self) -> &'static str {
        match self {
            EventFormat::Debezium => "debezium",
            EventFormat::Wal2json => "wal2json",
            EventFormat::Maxwell => "maxwell",
            EventFormat::Canal => "canal",
            EventFormat::Dms => "dms",
            EventFormat::Pgspate => "pgspate",
        }
    }

    /// Returns the format of this name.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an unknown name.
    pub fn by_name(name: &str) -> Result<EventFormat> {
        let found = EventFormat::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let names = EventFormat::ALL.map(EventFormat::name).join(", ");
            Error::new(ErrorKind::Usage, format!("unknown format of events: \"{name}\""))
                .hint(format!("The formats are {names}."))
        })
    }
}

/// Facts that the records of some formats do not state.
#[derive(Debug, Clone, Default)]
pub struct DecodeOptions {
    /// For Debezium's records; its table also for Maxwell and Canal.
    pub debezium: DebeziumOptions,
    /// For records of AWS DMS.
    pub dms: DmsOptions,
}

/// Returns the decoder of a format. Returns `None` for pgspate's own format: see
/// [`OwnFormat`](super::own_format::OwnFormat).
pub fn decoder_of(format: EventFormat, options: &DecodeOptions) -> Option<Box<dyn Decode>> {
    Some(match format {
        EventFormat::Debezium => Box::new(Debezium::new(options.debezium.clone())),
        EventFormat::Wal2json => Box::new(Wal2json::new()),
        EventFormat::Maxwell => Box::new(Maxwell::for_table(options.debezium.table.clone())),
        EventFormat::Canal => Box::new(Canal::for_table(options.debezium.table.clone())),
        EventFormat::Dms => Box::new(Dms::new(options.dms.clone())),
        EventFormat::Pgspate => return None,
    })
}

/// Detects the format of a record. Returns the format and the reason.
///
/// # Errors
/// [`ErrorKind::Format`] if the record fits no format, or more than one.
pub fn sniff(record: &[u8]) -> Result<(EventFormat, &'static str)> {
    let unmarked = record.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(record);
    if !unmarked.trim_ascii_start().starts_with(b"{") {
        return line(record).ok_or_else(|| unknown_format_error(record));
    }
    let Ok(fields) = object(record).and_then(JsonFields::all) else {
        return Err(unknown_format_error(record));
    };
    let fields = RecordKeys(&fields);
    let found = [
        (EventFormat::Wal2json, fields.has("change"), "it has a list of changes"),
        (EventFormat::Wal2json, fields.is_text("action"), "it has an \"action\""),
        (EventFormat::Dms, fields.has("metadata"), "it has \"data\" and \"metadata\""),
        (EventFormat::Canal, fields.has("isDdl"), "it has \"isDdl\""),
        (EventFormat::Canal, fields.is_canal(), "its \"type\" is one of Canal's"),
        (EventFormat::Maxwell, fields.is_maxwell(), "its \"type\" is one of Maxwell's"),
        (EventFormat::Debezium, fields.is_envelope(), ENVELOPE),
        (
            EventFormat::Debezium,
            fields.has("schema") && fields.has("payload"),
            "it has \"schema\" and \"payload\"",
        ),
        (
            EventFormat::Debezium,
            fields.has("key") && fields.has("value") && !fields.has("op"),
            "it has \"key\" and \"value\"",
        ),
        (
            EventFormat::Debezium,
            fields.has("topic") && fields.has("payload"),
            "it has a \"topic\" and its \"payload\"",
        ),
        (
            EventFormat::Debezium,
            fields.has("__op") || fields.has("__deleted"),
            "it has \"__op\" or \"__deleted\"",
        ),
        (
            EventFormat::Debezium,
            fields.is_about_no_row(),
            "it is a schema change, a heartbeat, or the begin or end of a transaction",
        ),
        (
            EventFormat::Pgspate,
            fields.is_text("op")
                && fields.is_text("table")
                && !fields.has("source")
                && !fields.has("after"),
            "it has an \"op\" and a \"table\"",
        ),
    ];
    let found: Vec<_> = found.into_iter().filter(|(_, is_it, _)| *is_it).collect();
    match found.first() {
        Some((format, _, why)) if found.iter().all(|(other, ..)| other == format) => {
            Ok((*format, why))
        }
        _ => Err(unknown_format_error(record)),
    }
}

const ENVELOPE: &str = "it has an \"op\" with \"before\", \"after\" or \"source\"";

/// The `type`s of Maxwell's records about rows and about Maxwell itself. The types of schema
/// changes begin with `table-` or `database-`.
const MAXWELL: [&str; 7] = [
    "insert",
    "update",
    "delete",
    "bootstrap-insert",
    "bootstrap-start",
    "bootstrap-complete",
    "heartbeat",
];

/// The keys of a record.
struct RecordKeys<'a>(&'a [(JsonStr<'a>, Json<'a>)]);

impl RecordKeys<'_> {
    fn get(&self, name: &str) -> Option<Json<'_>> {
        self.0.iter().find(|(key, _)| key.is(name)).map(|(_, value)| *value)
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn is_text(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Json::String(_)))
    }

    fn ty(&self) -> String {
        match self.get("type") {
            Some(Json::String(ty)) => ty.text().unwrap_or_default().into_owned(),
            _ => String::new(),
        }
    }

    /// Returns whether Canal, or Flink and others that imitate Canal but omit `isDdl`, wrote the
    /// record.
    fn is_canal(&self) -> bool {
        let has_rows = matches!(self.get("data"), Some(Json::Array(_)));
        canal::TYPES.contains(&self.ty().as_str()) && (has_rows || self.is_text("sql"))
    }

    fn is_maxwell(&self) -> bool {
        let ty = self.ty();
        let has_row = matches!(self.get("data"), Some(Json::Object(_)));
        if MAXWELL.contains(&ty.as_str()) {
            return has_row || self.is_text("database");
        }
        let is_of_tables = ty.starts_with("table-") || ty.starts_with("database-");
        is_of_tables && self.is_text("database")
    }

    fn is_envelope(&self) -> bool {
        let parts = ["source", "after", "before"];
        self.is_text("op") && parts.iter().any(|name| self.has(name))
    }

    /// Returns whether the record is a Debezium record that describes no row.
    fn is_about_no_row(&self) -> bool {
        !self.0.is_empty() && is_metadata(self.0)
    }
}

/// Detects csv of DMS: rows that begin with an operation, or a header with a column for it.
fn line(record: &[u8]) -> Option<(EventFormat, &'static str)> {
    let first = record.split(|byte| matches!(byte, b',' | b';' | b'\t' | b'|')).next()?;
    if first.len() == record.trim_ascii_end().len() {
        return None;
    }
    match first {
        b"I" | b"U" | b"D" => Some((EventFormat::Dms, "its first field is I, U or D")),
        b"Op" => Some((EventFormat::Dms, "its first column is \"Op\"")),
        b"INSERT" | b"UPDATE" | b"DELETE" => {
            Some((EventFormat::Dms, "its first field is INSERT, UPDATE or DELETE"))
        }
        _ => None,
    }
}

/// The most keys that the error for an unknown record names.
const KEYS_MAX: usize = 8;

/// Returns the error for a record of unknown format. The error names the record's keys, but no
/// value.
fn unknown_format_error(record: &[u8]) -> Error {
    let description = match object(record).and_then(JsonFields::all) {
        Ok(fields) if fields.is_empty() => "an empty object".to_owned(),
        Ok(fields) => {
            let keys = fields.iter().take(KEYS_MAX).map(|(key, _)| {
                let key = key.text().unwrap_or_default();
                format!("\"{}\"", key.chars().take(40).collect::<String>())
            });
            let more = if fields.len() > KEYS_MAX { " and others" } else { "" };
            format!("an object with {}{more}", keys.collect::<Vec<_>>().join(", "))
        }
        Err(error) if record.trim_ascii_start().starts_with(b"{") => {
            format!("not a complete JSON object: {error}")
        }
        Err(_) => "neither a JSON object nor a csv row that begins with I, U or D".to_owned(),
    };
    let names = EventFormat::ALL.map(EventFormat::name).join(", ");
    malformed(format!(
        "could not detect the format of the events: the first record is {description}"
    ))
    .hint(format!("Name the format with `--format`: {names}."))
}
