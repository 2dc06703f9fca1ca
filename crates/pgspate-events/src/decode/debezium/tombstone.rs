//! Tombstones: messages with a key and without a value.
//!
//! Debezium writes a tombstone after the event of a deleted row. Once the topic is compacted, only
//! the tombstone is left, so it must delete the row too. A tombstone directly after the event of
//! its key has nothing left to delete.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::json::malformed;
use super::message::{DebeziumMessage, DebeziumSource};
use super::schema::ConnectSchema;
use super::{Debezium, DebeziumTable, no_table_error};
use crate::decode::TargetTypes;
use crate::{ChangeEvent, ChangeKind, Result, SourceTable};

/// The tables of the envelopes that were read from a topic.
#[derive(Debug)]
pub(super) enum EnvelopeTables {
    None,
    One {
        table: Arc<SourceTable>,
        /// The name of the schema that its first key had.
        key_schema: Option<Box<str>>,
    },
    Several,
}

impl EnvelopeTables {
    /// Returns whether an envelope of `table` adds nothing to what is known.
    pub(super) fn know(&self, table: &Arc<SourceTable>) -> bool {
        match self {
            EnvelopeTables::None => false,
            EnvelopeTables::One { table: one, .. } => Arc::ptr_eq(one, table) || one == table,
            EnvelopeTables::Several => true,
        }
    }

    /// Adds the table of an envelope, which is not known yet.
    pub(super) fn add(&mut self, table: &Arc<SourceTable>, key_schema: Option<&ConnectSchema>) {
        *self = match self {
            EnvelopeTables::None => EnvelopeTables::One {
                table: Arc::clone(table),
                key_schema: key_schema.and_then(|schema| schema.name.clone()),
            },
            EnvelopeTables::One { .. } | EnvelopeTables::Several => EnvelopeTables::Several,
        };
    }
}

impl Debezium {
    /// Returns the event of a key without a value: a delete. In a dump, only a tombstone of
    /// flattened rows is a delete: other messages may be between an envelope and its tombstone.
    pub(super) fn tombstone(
        &mut self,
        message: &DebeziumMessage<'_>,
        types: &dyn TargetTypes,
    ) -> Result<Option<ChangeEvent>> {
        let is_dumped_envelope = self.is_flat == Some(false) && message.raw_key.is_none();
        if is_dumped_envelope || message.key.is_none() || message.moves_to_another_key()? {
            return Ok(None);
        }
        let Some(names) = self.table_of_tombstone(message)? else { return Ok(None) };
        let Some(key) = self.key(message, &names, types)? else { return Ok(None) };
        let event = self.finish_event(
            message,
            &names,
            DebeziumSource::default(),
            ChangeKind::Delete,
            (Some(key.clone()), None),
            Some(key),
        )?;
        Ok(Some(event))
    }

    /// Returns the table of a tombstone. It is the topic's only table, unless the tombstone's key
    /// has another schema than the keys of that table. Otherwise it is the table that the key's
    /// schema or the topic names. Returns `None` if neither does, and no row came before.
    ///
    /// # Errors
    /// If the tombstone does not name its table, and rows of other tables came before.
    fn table_of_tombstone<'a>(
        &mut self,
        message: &DebeziumMessage<'a>,
    ) -> Result<Option<DebeziumTable<'a>>> {
        let schema = message.key_schema_of(&mut self.schemas)?;
        match (&self.envelope_tables, &schema) {
            // The topic may have another name than the table.
            (EnvelopeTables::One { table, key_schema }, schema)
                if self.is_flat == Some(false)
                    && schema.as_ref().is_none_or(|schema| schema.name == *key_schema) =>
            {
                return Ok(Some(DebeziumTable {
                    schema: table.schema.clone().map(Cow::Owned),
                    table: Cow::Owned(table.table.clone()),
                }));
            }
            (EnvelopeTables::Several, None) if self.is_flat == Some(false) => {
                let message = "a message without a value does not name its table, and the topic \
                               has rows of several tables";
                return Err(malformed(message).hint(
                    "Let the connector write schemas beside its keys \
                     (`key.converter.schemas.enable=true`), or give each table a topic.",
                ));
            }
            _ => {}
        }
        match self.table_of(message, &DebeziumSource::default(), schema.as_deref()) {
            Ok(names) => Ok(Some(names)),
            Err(_) if self.is_flat.is_none() => Ok(None),
            Err(_) => Err(no_table_error()),
        }
    }
}
