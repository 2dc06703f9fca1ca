//! Reads what a writer must know of a table, and sets what the meaning of texts depends on.

use tokio_postgres::error::SqlState;

use super::session::connect_error;
use super::shape::ShapeFacts;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::check_no_dropped_keys_for_writers;
use pgspate_target::{TargetTable, TypedQuery, read_session, server_error, suggest_table};

/// How long the session that reads facts waits for a lock, in milliseconds.
const FACTS_LOCK_TIMEOUT: i32 = 1000;

/// The columns of the primary key.
const PRIMARY_KEY: &str = "\
select a.attname::text
from pg_catalog.pg_constraint c,
     pg_catalog.unnest(c.conkey) with ordinality as k(number, place),
     pg_catalog.pg_attribute a
where c.conrelid operator(pg_catalog.=) $1 and c.contype operator(pg_catalog.=) 'p'
  and a.attrelid operator(pg_catalog.=) $1 and a.attnum operator(pg_catalog.=) k.number
order by k.place";

/// The triggers of a table and its partitions that run for an updated row: the name, and whether
/// the trigger may keep the row as it is.
const UPDATE_TRIGGERS: &str = "\
select t.tgname::text, (t.tgtype::int4 operator(pg_catalog.&) 2) operator(pg_catalog.<>) 0
from pg_catalog.pg_trigger t
where t.tgrelid operator(pg_catalog.=) any (
        select p.relid::pg_catalog.oid from pg_catalog.pg_partition_tree($1::pg_catalog.oid) p
        union all select $1::pg_catalog.oid)
  and not t.tgisinternal and t.tgenabled operator(pg_catalog.<>) 'D'
  and (t.tgtype::int4 operator(pg_catalog.&) 16) operator(pg_catalog.<>) 0
order by t.tgname";

/// The array types of types.
const ARRAY_TYPES: &str = "\
select oid, typarray from pg_catalog.pg_type
where oid operator(pg_catalog.=) any ($1) and typarray operator(pg_catalog.<>) 0";

/// Sets up the session that reads facts. It waits for no lock for long, as callers of other tables
/// wait for it.
pub(super) async fn set_up_facts(connection: &Connection, value_settings: &str) -> Result<()> {
    let failed = server_error("could not prepare a session to write records".to_owned());
    let sql = format!("{value_settings}; set lock_timeout = {FACTS_LOCK_TIMEOUT}");
    let set = connection.client.batch_execute(&sql).await.map_err(failed);
    set.map_err(|error| connect_error(&error))
}

/// Reads what a request must know.
pub(super) async fn read_facts(connection: &Connection, name: &str) -> Result<ShapeFacts> {
    let client = &connection.client;
    let Some(table) = TargetTable::read(client, name).await? else {
        let message = format!("table {name} does not exist");
        let missing =
            Error::new(ErrorKind::Usage, message).with_sqlstate(SqlState::UNDEFINED_TABLE);
        return Err(suggest_table(client, name, missing).await);
    };
    // A shape that is read without the table's keys would lack them later.
    check_no_dropped_keys_for_writers(client, table.oid).await?;
    let session = read_session(client).await?;
    let failed = server_error(format!("could not read the primary key of table {name}"));
    let key = client.fetch_all(PRIMARY_KEY, &[&table.oid]).await.map_err(failed)?;
    let failed = server_error(format!("could not read the triggers of table {name}"));
    let triggers = client.fetch_all(UPDATE_TRIGGERS, &[&table.oid]).await.map_err(failed)?;
    let update_triggers = triggers.iter().map(|row| (row.get(0), row.get(1))).collect();
    let failed = server_error(format!("could not read the types of table {name}"));
    let types: Vec<u32> = table.columns.iter().map(|column| column.ty.base().oid).collect();
    let arrays = client.fetch_all(ARRAY_TYPES, &[&types]).await.map_err(failed)?;
    Ok(ShapeFacts {
        primary_key: key.iter().map(|row| row.get(0)).collect(),
        table,
        session,
        update_triggers,
        arrays: arrays.iter().map(|row| (row.get(0), row.get(1))).collect(),
    })
}
