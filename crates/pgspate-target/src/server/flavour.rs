//! The kind of PostgreSQL that a server runs, and the limits of that kind.

use serde::Serialize;
use tokio_postgres::Client;

/// A kind of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// PostgreSQL as released by its community.
    Plain,
    /// Amazon RDS.
    Rds,
    /// Amazon Aurora.
    Aurora,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database.
    Azure,
    /// PostgreSQL with the Citus extension.
    Citus,
    /// PostgreSQL with the TimescaleDB extension.
    Timescale,
}

/// Looks for functions, settings and databases of each provider, and for extensions. The result has
/// one column for each flavour except [`Flavour::Plain`].
///
/// A role of a provider's name alone proves nothing: whoever restores a provider's dump elsewhere
/// creates the role. `pg_settings` has a setting such as `rds.extensions` only if the server has
/// loaded a library that defines it.
const FLAVOUR_QUERY: &str = "\
select exists (select from pg_proc where proname = 'aurora_version'
                 and pronamespace = 'pg_catalog'::regnamespace),
       exists (select from pg_settings where name like 'rds.%')
           or exists (select from pg_roles where rolname = 'rds_superuser')
              and exists (select from pg_database where datname = 'rdsadmin'),
       exists (select from pg_settings where name like 'cloudsql.%')
           or exists (select from pg_roles where rolname = 'cloudsqlsuperuser')
              and exists (select from pg_database where datname = 'cloudsqladmin'),
       exists (select from pg_settings where name like 'azure.%')
           or exists (select from pg_roles where rolname = 'azure_pg_admin')
              and exists (select from pg_database where datname = 'azure_maintenance'),
       exists (select from pg_extension where extname = 'citus'),
       exists (select from pg_extension where extname = 'timescaledb')";

impl Flavour {
    /// Detects the kind of the server. Returns [`Flavour::Plain`] if the query fails.
    pub async fn detect(client: &Client) -> Flavour {
        let Ok(row) = client.query_one(FLAVOUR_QUERY, &[]).await else { return Flavour::Plain };
        let columns = [
            (0, Flavour::Aurora),
            (1, Flavour::Rds),
            (2, Flavour::CloudSql),
            (3, Flavour::Azure),
            (4, Flavour::Citus),
            (5, Flavour::Timescale),
        ];
        let found = columns.into_iter().find(|(column, _)| row.get(*column));
        found.map_or(Flavour::Plain, |(_, flavour)| flavour)
    }

    /// Returns the product's name.
    pub fn name(self) -> &'static str {
        match self {
            Flavour::Plain => "PostgreSQL",
            Flavour::Rds => "Amazon RDS for PostgreSQL",
            Flavour::Aurora => "Amazon Aurora PostgreSQL",
            Flavour::CloudSql => "Cloud SQL for PostgreSQL",
            Flavour::Azure => "Azure Database for PostgreSQL",
            Flavour::Citus => "PostgreSQL with Citus",
            Flavour::Timescale => "PostgreSQL with TimescaleDB",
        }
    }

    /// Returns whether `ALTER SYSTEM` can change the server's settings.
    pub fn has_alter_system(self) -> bool {
        matches!(self, Flavour::Plain | Flavour::Citus | Flavour::Timescale)
    }

    /// Returns how the server's settings are changed, such as `with ALTER SYSTEM`.
    pub fn how_to_change_settings(self) -> &'static str {
        match self {
            Flavour::Rds => "in the DB parameter group",
            Flavour::Aurora => "in the DB cluster parameter group",
            Flavour::CloudSql => "with gcloud sql instances patch --database-flags",
            Flavour::Azure => "with az postgres flexible-server parameter set",
            Flavour::Plain | Flavour::Citus | Flavour::Timescale => "with ALTER SYSTEM",
        }
    }

    /// Returns restrictions and differences that matter for writing.
    pub fn peculiarities(self) -> &'static [&'static str] {
        match self {
            Flavour::Plain => &[],
            Flavour::Rds => &[
                "server settings are changed in the DB parameter group, not with ALTER SYSTEM",
                "no superuser: no DISABLE TRIGGER ALL, no pageinspect, no COPY from server files",
                "wal_level and the WAL disk cannot be chosen; the volume's IOPS and throughput can \
                 be chosen (tell doctor the volume with `--storage`)",
            ],
            Flavour::Aurora => &[
                "only WAL is written to storage, billed in units of 4 KiB; pages are never \
                 written, so checkpoints and full-page images cost nothing",
                "commits wait for four of six copies (IO:XactSync): use fewer, larger transactions",
                "unlogged tables and fewer indexes save I/Os; with synchronous_commit = off, \
                 commits of a session do not wait for the storage",
                "server settings are changed in the cluster's parameter group",
            ],
            Flavour::CloudSql => &[
                "server settings are flags of the instance, not changed with ALTER SYSTEM",
                "no superuser: cloudsqlsuperuser has fewer privileges; no COPY from server files",
            ],
            Flavour::Azure => &[
                "server settings are parameters of the instance, not changed with ALTER SYSTEM",
                "no superuser; extensions must first be allowed in azure.extensions",
            ],
            Flavour::Citus => &[
                "sizes and dead rows of shards are those of all nodes (check `parts`); all other \
                 checks see this node alone, so run doctor on each node",
                "COPY into a distributed table is routed by the coordinator, row by row; `load \
                 --into-shards` writes straight into the shards where it can",
                "unique constraints and keys must contain the distribution column",
            ],
            Flavour::Timescale => &[
                "a hypertable stores its rows in chunks; sizes and dead rows of chunks are in the \
                 check `parts`, and all other checks leave them alone",
                "rows cannot be written cheaply into compressed chunks: load before compressing",
            ],
        }
    }
}
