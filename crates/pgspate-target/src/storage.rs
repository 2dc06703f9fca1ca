//! Where the rows of a table are stored, and what follows for the statements that write them.
//!
//! Plans read [`StorageFacts`]. No plan asks which extension a database has.

use tokio_postgres::Client;

use super::{TypedQuery, is_trusted_sql};

/// Where the rows of a table are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TableStorage {
    /// In the table itself or in its partitions.
    #[default]
    Plain,
    /// In the chunks of a TimescaleDB hypertable. Chunks are tables that inherit from the
    /// hypertable.
    Chunks,
    /// In tables that Citus keeps on the servers of its cluster: the shards of a distributed table,
    /// or the copies of a reference table.
    Shards,
}

/// What holds for statements on a table, depending on its storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageFacts {
    /// The extension that stores the rows, if one does.
    pub extension: Option<&'static str>,
    /// Where the rows are stored, and what that means for a load, in words for the user. `None`
    /// without an extension.
    pub description: Option<&'static str>,
    /// Whether `ctid` and `tableoid` identify a row.
    pub has_row_addresses: bool,
    /// Whether EXPLAIN accepts a statement that joins the table with a temporary table, and reports
    /// what the statement costs.
    pub explains_joins_with_temporary_tables: bool,
    /// Whether an UPDATE may set a key column to an equal value.
    pub may_set_key: bool,
    /// Whether this server's counters and sizes include the table's rows.
    pub is_measured_here: bool,
    /// Whether a key can be dropped, and added again by an index that was built before.
    pub can_restore_keys: bool,
    /// Whether a lane that writes the first row of a part of the table makes other lanes wait until
    /// it commits.
    pub lanes_wait_for_new_parts: bool,
    /// Whether the server reports a violated constraint as an internal error, XX000, with the
    /// DETAIL of the violation but without the row.
    pub hides_sqlstate_of_violations: bool,
}

impl TableStorage {
    /// Returns the facts of this storage.
    pub const fn facts(self) -> StorageFacts {
        let plain = StorageFacts {
            extension: None,
            description: None,
            has_row_addresses: true,
            explains_joins_with_temporary_tables: true,
            may_set_key: true,
            is_measured_here: true,
            can_restore_keys: true,
            lanes_wait_for_new_parts: false,
            hides_sqlstate_of_violations: false,
        };
        match self {
            TableStorage::Plain => plain,
            TableStorage::Chunks => StorageFacts {
                extension: Some("TimescaleDB"),
                description: Some("in chunks of TimescaleDB: keys stay, indexes can be dropped"),
                can_restore_keys: false,
                lanes_wait_for_new_parts: true,
                ..plain
            },
            TableStorage::Shards => StorageFacts {
                extension: Some("Citus"),
                description: Some(
                    "on the nodes of Citus: commits wait for the disk, and rows are found by key",
                ),
                has_row_addresses: false,
                explains_joins_with_temporary_tables: false,
                may_set_key: false,
                is_measured_here: false,
                hides_sqlstate_of_violations: true,
                ..plain
            },
        }
    }

    /// Reads where the rows of the table with this oid are stored.
    ///
    /// # Errors
    /// The driver's error, if the server refuses a query or the connection fails.
    pub async fn read(client: &Client, oid: u32) -> Result<TableStorage, tokio_postgres::Error> {
        let catalogs = CATALOGS.replace("{is_trusted}", &is_trusted_sql("c.relowner"));
        let catalogs = client.fetch_one(&catalogs, &[]).await?;
        for (nth, storage, sql) in
            [(0, TableStorage::Shards, IN_CITUS), (1, TableStorage::Chunks, IN_TIMESCALEDB)]
        {
            if catalogs.get(nth) && client.fetch_one(sql, &[&oid]).await?.get(0) {
                return Ok(storage);
            }
        }
        Ok(TableStorage::Plain)
    }
}

/// Whether the catalogs of Citus and of TimescaleDB exist. TimescaleDB's catalog counts only if its
/// owner is trusted, since any role that may create schemas can create a schema of that name.
const CATALOGS: &str = "\
select to_regclass('pg_catalog.pg_dist_partition') is not null,
       exists (select from pg_extension e
               join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
                               and d.classid = 'pg_class'::regclass and d.deptype = 'e'
               join pg_class c on c.oid = d.objid
               where e.extname = 'timescaledb' and c.relkind = 'r' and {is_trusted}
                 and c.oid = to_regclass('_timescaledb_catalog.hypertable'))";

const IN_CITUS: &str = "select exists (select from pg_catalog.pg_dist_partition \
                        where logicalrelid::oid = $1::oid)";

const IN_TIMESCALEDB: &str = "select exists (select from _timescaledb_catalog.hypertable h \
                              join pg_class c on c.relname = h.table_name \
                              join pg_namespace n on n.oid = c.relnamespace \
                              and n.nspname = h.schema_name where c.oid = $1::oid)";
