//! The fields that Maxwell's records and Canal's messages share: rows of MySQL's binary log.

use std::sync::Arc;

use super::json::{Json, JsonStr, malformed, object};
use super::json_values::TypeFamily;
use super::source_tables::{SourceTableColumns, SourceTables};
use crate::{Result, SourceTable};

/// The fields of a record that Maxwell or Canal give a meaning.
#[derive(Default)]
pub(super) struct MysqlRecord<'a> {
    pub(super) ty: Option<JsonStr<'a>>,
    database: Option<JsonStr<'a>>,
    table: Option<JsonStr<'a>>,
    pub(super) data: Option<Json<'a>>,
    pub(super) old: Option<Json<'a>>,
    key: Option<Vec<JsonStr<'a>>>,
    pub(super) xid: Option<Box<str>>,
    /// Whether the record gives its offset in the transaction.
    pub(super) is_inside: bool,
    pub(super) is_last: bool,
    pub(super) is_ddl: bool,
    /// Whether the record names the types of the source's columns.
    pub(super) has_types: bool,
}

impl<'a> MysqlRecord<'a> {
    /// Reads the fields of a record.
    pub(super) fn read(record: &'a [u8]) -> Result<MysqlRecord<'a>> {
        let mut fields = object(record)?;
        let mut found = MysqlRecord::default();
        while let Some((key, value)) = fields.next()? {
            match value {
                Json::String(value) if key.is("type") => found.ty = Some(value),
                Json::String(value) if key.is("database") => found.database = Some(value),
                Json::String(value) if key.is("table") => found.table = Some(value),
                _ if key.is("data") => found.data = Some(value),
                _ if key.is("old") => found.old = Some(value),
                _ if key.is("xid") => found.xid = value.word()?.map(Into::into),
                _ if key.is("xoffset") => found.is_inside = true,
                _ if key.is("commit") => found.is_last = value == Json::Bool(true),
                _ if key.is("primary_key_columns") || key.is("pkNames") => {
                    found.key = Some(names(value)?);
                }
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

    /// Returns the record's table, or `other` if the record names none.
    pub(super) fn table<'t>(
        &self,
        tables: &'t mut SourceTables<TypeFamily>,
        other: &Option<SourceTable>,
    ) -> Result<&'t mut SourceTableColumns<TypeFamily>> {
        match (self.table, other) {
            (Some(table), _) => {
                let schema = self.database.map(JsonStr::text).transpose()?;
                Ok(tables.of(schema.as_deref(), &table.text()?, 0))
            }
            (None, Some(name)) => Ok(tables.of(name.schema.as_deref(), &name.table, 0)),
            (None, None) => Err(malformed("a record does not name its table")
                .hint("Name it with `--source-table`.")),
        }
    }

    /// Returns the key's columns, if the record names any.
    pub(super) fn key(
        &self,
        table: &mut SourceTableColumns<TypeFamily>,
    ) -> Result<Option<Arc<[Box<str>]>>> {
        let key = self.key.as_deref().filter(|key| !key.is_empty());
        key.map(|key| table.key(key)).transpose()
    }
}

/// Reads a list of names.
fn names<'a>(list: Json<'a>) -> Result<Vec<JsonStr<'a>>> {
    let mut found = Vec::new();
    let Some(mut items) = list.array() else { return Ok(found) };
    while let Some(item) = items.next()? {
        match item {
            Json::String(name) => found.push(name),
            _ => return Err(malformed("expected the name of a key's column to be a string")),
        }
    }
    Ok(found)
}
