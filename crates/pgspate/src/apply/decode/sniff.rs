//! Which format a stream is in, by its first record, and the decoder for it.
//!
//! Formats are told apart by fields that only one of them has. A record that has those of none is
//! an error: a wrong guess would be rows that nobody wrote.

use super::json::{Json, malformed, object};
use super::{Canal, Debezium, DebeziumOptions, Decode, Dms, DmsOptions, Maxwell, Wal2json};
use crate::{Error, Kind, Result};

/// A format of change events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
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
    /// pgspate's own.
    Pgspate,
}

impl Format {
    /// All of them, in the order in which they are named to users.
    pub const ALL: [Format; 6] = [
        Format::Debezium,
        Format::Wal2json,
        Format::Maxwell,
        Format::Canal,
        Format::Dms,
        Format::Pgspate,
    ];

    /// Its name, as `--format` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Debezium => "debezium",
            Format::Wal2json => "wal2json",
            Format::Maxwell => "maxwell",
            Format::Canal => "canal",
            Format::Dms => "dms",
            Format::Pgspate => "pgspate",
        }
    }

    /// The format of this name.
    ///
    /// # Errors
    /// [`Kind::Usage`] when there is none.
    pub fn by_name(name: &str) -> Result<Format> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let names = Format::ALL.map(Format::name).join(", ");
            Error::new(Kind::Usage, format!("no format of events is called \"{name}\""))
                .hint(format!("The formats are {names}."))
        })
    }
}

/// What some formats do not say of themselves.
#[derive(Debug, Clone, Default)]
pub struct DecodeOptions {
    /// Of Debezium's.
    pub debezium: DebeziumOptions,
    /// Of those of AWS DMS.
    pub dms: DmsOptions,
}

/// The decoder of a format. `None` for pgspate's own, which has a module of its own.
pub fn of(format: Format, options: &DecodeOptions) -> Option<Box<dyn Decode>> {
    Some(match format {
        Format::Debezium => Box::new(Debezium::new(options.debezium.clone())),
        Format::Wal2json => Box::new(Wal2json::new()),
        Format::Maxwell => Box::new(Maxwell::new()),
        Format::Canal => Box::new(Canal::new()),
        Format::Dms => Box::new(Dms::new(options.dms.clone())),
        Format::Pgspate => return None,
    })
}

/// The format that a record is in, and by what it is known.
///
/// # Errors
/// [`Kind::Format`] when it is in none, or could be in several.
pub fn sniff(record: &[u8]) -> Result<(Format, &'static str)> {
    let unmarked = record.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(record);
    if !unmarked.trim_ascii_start().starts_with(b"{") {
        return line(record).ok_or_else(unknown);
    }
    let fields = object(record)?.all()?;
    let has = |name: &str| fields.iter().any(|(key, _)| key.is(name));
    let is_text = |name: &str| {
        fields.iter().any(|(key, value)| key.is(name) && matches!(value, Json::String(_)))
    };
    let added = fields.iter().any(|(key, _)| key.is("__op") || key.is("__deleted"));
    let found = [
        (Format::Wal2json, has("change"), "it has a list of changes"),
        (Format::Wal2json, is_text("action"), "it has an \"action\""),
        (Format::Dms, has("metadata"), "it has \"data\" and \"metadata\""),
        (Format::Canal, has("isDdl"), "it has \"isDdl\""),
        (
            Format::Maxwell,
            is_text("type") && is_text("database") && (has("ts") || has("data")) && !has("isDdl"),
            "it has a \"type\", a \"database\" and \"ts\"",
        ),
        (
            Format::Debezium,
            is_text("op") && (has("source") || has("after") || has("before")),
            "it has an \"op\" with \"before\", \"after\" or \"source\"",
        ),
        (Format::Debezium, has("schema") && has("payload"), "it has \"schema\" and \"payload\""),
        (
            Format::Debezium,
            has("key") && has("value") && !has("op"),
            "it has \"key\" and \"value\"",
        ),
        (
            Format::Debezium,
            has("topic") && has("payload"),
            "it has a \"topic\" and its \"payload\"",
        ),
        (Format::Debezium, added, "it has \"__op\" or \"__deleted\""),
        (Format::Debezium, has("status") && has("id") && has("event_count"), "it has a \"status\""),
        (
            Format::Pgspate,
            is_text("op") && is_text("table") && !has("source") && !has("after"),
            "it has an \"op\" and a \"table\"",
        ),
    ];
    let found: Vec<_> = found.into_iter().filter(|(_, is_it, _)| *is_it).collect();
    match found.first() {
        Some((format, _, why)) if found.iter().all(|(other, ..)| other == format) => {
            Ok((*format, why))
        }
        _ => Err(unknown()),
    }
}

/// DMS's files: an operation before each row, or a header that has a column for it.
fn line(record: &[u8]) -> Option<(Format, &'static str)> {
    let first = record.split(|byte| matches!(byte, b',' | b';' | b'\t' | b'|')).next()?;
    if first.len() == record.trim_ascii_end().len() {
        return None;
    }
    match first {
        b"I" | b"U" | b"D" => Some((Format::Dms, "its first field is I, U or D")),
        b"Op" => Some((Format::Dms, "its first column is \"Op\"")),
        b"INSERT" | b"UPDATE" | b"DELETE" => {
            Some((Format::Dms, "its first field is INSERT, UPDATE or DELETE"))
        }
        _ => None,
    }
}

fn unknown() -> Error {
    let names = Format::ALL.map(Format::name).join(", ");
    malformed("the format of the events is not known by their first record")
        .hint(format!("Name it with `--format`: {names}."))
}
