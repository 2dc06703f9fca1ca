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
    /// In chunks of a hypertable, some of which are compressed.
    CompressedChunks,
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
    /// Why rows have no addresses, in words that follow the table's name.
    pub lack_of_addresses: &'static str,
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
            lack_of_addresses: "",
            explains_joins_with_temporary_tables: true,
            may_set_key: true,
            is_measured_here: true,
            can_restore_keys: true,
            lanes_wait_for_new_parts: false,
            hides_sqlstate_of_violations: false,
        };
        let chunks = StorageFacts {
            extension: Some("TimescaleDB"),
            description: Some("in chunks of TimescaleDB: keys stay, indexes can be dropped"),
            can_restore_keys: false,
            lanes_wait_for_new_parts: true,
            ..plain
        };
        match self {
            TableStorage::Plain => plain,
            TableStorage::Chunks => chunks,
            TableStorage::CompressedChunks => StorageFacts {
                description: Some(
                    "in chunks of TimescaleDB, some of them compressed: keys stay, indexes can be \
                     dropped, and rows are found by key",
                ),
                has_row_addresses: false,
                lack_of_addresses: "has compressed chunks",
                ..chunks
            },
            TableStorage::Shards => StorageFacts {
                extension: Some("Citus"),
                description: Some(
                    "on the nodes of Citus: commits wait for the disk, and rows are found by key",
                ),
                has_row_addresses: false,
                lack_of_addresses: "is on several servers",
                explains_joins_with_temporary_tables: false,
                may_set_key: false,
                is_measured_here: false,
                hides_sqlstate_of_violations: true,
                ..plain
            },
        }
    }

    /// Returns whether TimescaleDB stores the rows.
    pub const fn is_in_chunks(self) -> bool {
        matches!(self, TableStorage::Chunks | TableStorage::CompressedChunks)
    }

    /// Reads where the rows of the table with this oid are stored.
    ///
    /// # Errors
    /// The driver's error, if the server refuses a query or the connection fails.
    pub async fn read(client: &Client, oid: u32) -> Result<TableStorage, tokio_postgres::Error> {
        let (has_shards, has_chunks) = TableStorage::find_extensions(client).await?;
        if has_shards && client.fetch_one(IN_CITUS, &[&oid]).await?.get(0) {
            return Ok(TableStorage::Shards);
        }
        if !has_chunks || client.fetch_opt(IN_TIMESCALEDB, &[&oid]).await?.is_none() {
            return Ok(TableStorage::Plain);
        }
        let has_view = format!("select {}", extension_has_sql("timescaledb_information.chunks"));
        let has_view: bool = client.fetch_one(&has_view, &[]).await?.get(0);
        if has_view && client.fetch_one(IS_COMPRESSED, &[&oid]).await?.get(0) {
            return Ok(TableStorage::CompressedChunks);
        }
        Ok(TableStorage::Chunks)
    }

    /// Returns whether Citus and whether TimescaleDB may store rows of this database.
    ///
    /// # Errors
    /// The driver's error, if the server refuses the query or the connection fails.
    pub async fn find_extensions(client: &Client) -> Result<(bool, bool), tokio_postgres::Error> {
        let catalogs = format!(
            "select to_regclass('pg_catalog.pg_dist_partition') is not null, {}",
            extension_has_sql("_timescaledb_catalog.hypertable")
        );
        let catalogs = client.fetch_one(&catalogs, &[]).await?;
        Ok((catalogs.get(0), catalogs.get(1)))
    }
}

/// Returns a condition: TimescaleDB has the relation, and its owner is trusted. Any role that may
/// create schemas can create a relation of that name.
fn extension_has_sql(relation: &str) -> String {
    format!(
        "exists (select from pg_extension e \
         join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid \
                         and d.classid = 'pg_class'::regclass and d.deptype = 'e' \
         join pg_class c on c.oid = d.objid \
         where e.extname = 'timescaledb' and c.relkind in ('r', 'v') and {} \
           and c.oid = to_regclass('{relation}'))",
        is_trusted_sql("c.relowner")
    )
}

const IN_CITUS: &str = "select exists (select from pg_catalog.pg_dist_partition \
                        where logicalrelid::oid = $1::oid)";

/// A row for a hypertable, and none for another table.
const IN_TIMESCALEDB: &str = "select from _timescaledb_catalog.hypertable h \
                              join pg_class c on c.relname = h.table_name \
                              join pg_namespace n on n.oid = c.relnamespace \
                              and n.nspname = h.schema_name where c.oid = $1::oid";

/// Whether a chunk of the hypertable is compressed.
const IS_COMPRESSED: &str = "\
select exists (select from timescaledb_information.chunks k
               join pg_class c on c.relname = k.hypertable_name
               join pg_namespace n on n.oid = c.relnamespace and n.nspname = k.hypertable_schema
               where c.oid = $1::oid and k.is_compressed)";
