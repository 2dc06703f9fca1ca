//! The fields that Maxwell's records and Canal's messages have: rows of MySQL's binary log.

use std::sync::Arc;

use super::cast::TypeFamily;
use super::json::{Json, Str, malformed, object};
use super::shape::{SourceTableColumns, SourceTables};
use crate::{SourceTable, Result};

/// The fields of a record that mean something in either format.
#[derive(Default)]
pub(super) struct Record<'a> {
    pub(super) ty: Option<Str<'a>>,
    database: Option<Str<'a>>,
    table: Option<Str<'a>>,
    pub(super) data: Option<Json<'a>>,
    pub(super) old: Option<Json<'a>>,
    key: Option<Vec<Str<'a>>>,
    pub(super) xid: Option<Box<str>>,
    /// It says where in its transaction it stands.
    pub(super) is_inside: bool,
    pub(super) is_last: bool,
    pub(super) is_ddl: bool,
    /// It says of what types the source's columns are.
    pub(super) has_types: bool,
}

impl<'a> Record<'a> {
    /// Reads the fields of a record.
    pub(super) fn read(record: &'a [u8]) -> Result<Record<'a>> {
        let mut fields = object(record)?;
        let mut found = Record::default();
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

    /// The record's table, or `other` if the record names none.
    pub(super) fn table<'t>(
        &self,
        tables: &'t mut SourceTables<TypeFamily>,
        other: &Option<SourceTable>,
    ) -> Result<&'t mut SourceTableColumns<TypeFamily>> {
        match (self.table, other) {
            (Some(table), _) => {
                let schema = self.database.map(Str::text).transpose()?;
                Ok(tables.of(schema.as_deref(), &table.text()?, 0))
            }
            (None, Some(name)) => Ok(tables.of(name.schema.as_deref(), &name.table, 0)),
            (None, None) => Err(malformed("a record does not name its table")
                .hint("Name it with `--source-table`.")),
        }
    }

    /// The key's columns, if the record names any.
    pub(super) fn key(&self, table: &mut SourceTableColumns<TypeFamily>) -> Result<Option<Arc<[Box<str>]>>> {
        let key = self.key.as_deref().filter(|key| !key.is_empty());
        key.map(|key| table.key(key)).transpose()
    }
}

/// A list of names.
fn names<'a>(list: Json<'a>) -> Result<Vec<Str<'a>>> {
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
