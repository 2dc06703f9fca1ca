//! The shards of a hash-distributed table of Citus: which shard a row belongs to, and which node
//! has the shard.
//!
//! A row may be written straight into its shard only if nothing but the distribution column decides
//! where the row goes, and if each shard is stored once. [`ShardedTable::read`] says why, if not.

mod hash;
mod node;
mod prepared;

use tokio_postgres::{Client, Row};

pub use hash::ColumnHash;
pub use node::{ShardSession, find_other_server, is_reached_by_coordinator, lock_shards};
pub use prepared::{
    LeftPrepared, LeftPreparedList, PreparedName, PreparedOrigin, PreparedScope, ResolvedPrepared,
    is_coordinator, list_prepared, resolve_prepared,
};

use crate::{Result, TargetTable, TypedQuery, server_error};

/// A hash-distributed table whose rows can be written straight into the shards.
#[derive(Debug, Clone)]
pub struct ShardedTable {
    /// The distribution column, unquoted.
    pub column: String,
    /// The hash function of the distribution column's type.
    pub hash: ColumnHash,
    /// The shards, ordered by their ranges.
    pub shards: Vec<Shard>,
    /// The nodes that have the shards.
    pub nodes: Vec<ClusterNode>,
}

/// A shard, and the range of hashes of the rows that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The shard's number in the cluster.
    pub id: i64,
    /// The lowest hash.
    pub lowest: i32,
    /// The highest hash.
    pub highest: i32,
    /// The ordinal of the node that has the shard.
    pub node: usize,
    /// The shard's name on the node, as SQL takes it.
    pub sql_name: String,
}

/// A node of the cluster, as the coordinator reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNode {
    /// The node's group in the cluster's catalog.
    pub group: i32,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// How a table is distributed. The columns are those of [`Distribution`], in the same order.
const DISTRIBUTION: &str = "\
select p.partmethod::text = 'h', p.repmodel::text = 's',
       case when p.partkey is not null then column_to_column_name(p.logicalrelid, p.partkey) end,
       coalesce(am.amname = 'heap', false), pg_has_role(c.relowner, 'usage'),
       coalesce((select l.collisdeterministic
                 from pg_attribute a join pg_collation l on l.oid = a.attcollation
                 where a.attrelid = c.oid and p.partkey is not null
                   and a.attname = column_to_column_name(p.logicalrelid, p.partkey)), true),
       to_regprocedure('pg_catalog.lock_shard_metadata(integer,bigint[])') is not null
           and to_regprocedure('pg_catalog.master_run_on_worker(text[],integer[],text[],boolean)')
               is not null,
       hashint8(-4294967297), hashtext('a text of some length')
from pg_catalog.pg_dist_partition p join pg_class c on c.oid = p.logicalrelid::oid
left join pg_am am on am.oid = c.relam
where p.logicalrelid::oid = $1";

/// The shards of a table and their placements. A shard in the schema `public` has no schema in its
/// name.
const SHARDS: &str = "\
select s.shardid, s.shardminvalue::integer, s.shardmaxvalue::integer, p.groupid,
       case when n.nspname = 'public' then 'public.' else '' end
           || shard_name(s.logicalrelid, s.shardid)
from pg_catalog.pg_dist_shard s join pg_class c on c.oid = s.logicalrelid::oid
join pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_dist_placement p on p.shardid = s.shardid and p.shardstate = 1
where s.logicalrelid::oid = $1 order by 2, 4";

/// The cluster's nodes, and whether each one knows where the shards are.
const NODES: &str = "\
select groupid, nodename::text, nodeport, isactive and hasmetadata and metadatasynced
from pg_catalog.pg_dist_node where noderole::text = 'primary'";

/// How a table is distributed.
struct Distribution {
    is_by_hash: bool,
    has_one_copy: bool,
    /// The distribution column.
    column: Option<String>,
    is_heap: bool,
    /// Whether the role owns the table.
    is_owner: bool,
    /// Whether the column's collation is deterministic.
    is_deterministic: bool,
    /// Whether the functions for writing into shards exist.
    has_functions: bool,
    /// The hashes of a number and of a text, as this server computes them.
    hashes: (i32, i32),
}

impl ShardedTable {
    /// Reads how a table of Citus is distributed. Returns the reason, in words, if rows cannot be
    /// written straight into its shards. `server_encoding` is the server's encoding.
    ///
    /// # Errors
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses a query,
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
    pub async fn read(
        client: &Client,
        table: &TargetTable,
        server_encoding: &str,
    ) -> Result<Result<ShardedTable, String>> {
        let failed = || server_error(format!("could not look up the shards of {}", table.sql_name));
        let row = client.fetch_opt(DISTRIBUTION, &[&table.oid]).await.map_err(failed())?;
        let Some(row) = row else { return Ok(Err("it is not distributed".to_owned())) };
        let (column, hash) = match Distribution::of(&row).hashed_column(table, server_encoding) {
            Ok(column) => column,
            Err(reason) => return Ok(Err(reason)),
        };
        let shards = client.fetch_all(SHARDS, &[&table.oid]).await.map_err(failed())?;
        let nodes = client.fetch_all(NODES, &[]).await.map_err(failed())?;
        Ok(place_shards(&shards, &nodes).map(|(shards, nodes)| ShardedTable {
            column,
            hash,
            shards,
            nodes,
        }))
    }

    /// Returns the ordinal of the shard for a value in binary COPY format. `None` if no shard is
    /// known to have the value.
    pub fn shard_of(&self, value: &[u8]) -> Option<usize> {
        let hash = self.hash.hash(value)?;
        let after = self.shards.partition_point(|shard| shard.lowest <= hash);
        let shard = after.checked_sub(1)?;
        (hash <= self.shards[shard].highest).then_some(shard)
    }

    /// Returns the ordinals of the shards that a node has.
    pub fn shards_on(&self, node: usize) -> impl Iterator<Item = usize> {
        let shards = self.shards.iter().enumerate();
        shards.filter(move |(_, shard)| shard.node == node).map(|(ordinal, _)| ordinal)
    }
}

impl Distribution {
    fn of(row: &Row) -> Distribution {
        Distribution {
            is_by_hash: row.get(0),
            has_one_copy: row.get(1),
            column: row.get(2),
            is_heap: row.get(3),
            is_owner: row.get(4),
            is_deterministic: row.get(5),
            has_functions: row.get(6),
            hashes: (row.get(7), row.get(8)),
        }
    }

    /// Returns the distribution column and its hash function, or why rows cannot be assigned here.
    fn hashed_column(
        self,
        table: &TargetTable,
        server_encoding: &str,
    ) -> Result<(String, ColumnHash), String> {
        let refuse = |reason: &str| Err(reason.to_owned());
        let Some(column) = self.column.filter(|_| self.is_by_hash) else {
            return refuse("the table is not distributed by hash");
        };
        if !self.has_one_copy {
            return refuse("a shard has more than one copy");
        }
        if !self.is_heap || table.kind != 'r' {
            return refuse("the shards are partitioned, or not stored in heaps");
        }
        if !self.is_owner {
            return refuse("only the table's owner may lock its shards");
        }
        if !self.has_functions {
            return refuse("this version of Citus lacks the functions for writing into shards");
        }
        let ty = table.columns.iter().find(|it| it.name == column).map(|it| &it.ty);
        let Some((ty, hash)) = ty.and_then(|ty| Some((ty, ColumnHash::of(ty)?))) else {
            return Err(format!("the hash of column \"{column}\" is not known"));
        };
        let is_plain_text = self.is_deterministic && server_encoding == "UTF8";
        if ColumnHash::is_of_text(ty) && !is_plain_text {
            return Err(format!("the hash of column \"{column}\" depends on its collation"));
        }
        let own = (
            ColumnHash::Int8.hash(&(-4_294_967_297_i64).to_be_bytes()),
            ColumnHash::Bytes.hash(b"a text of some length"),
        );
        if own != (Some(self.hashes.0), Some(self.hashes.1)) {
            return refuse("the server computes other hashes");
        }
        Ok((column, hash))
    }
}

/// Returns the shards with their nodes, or why the shards cannot be written to.
fn place_shards(shards: &[Row], nodes: &[Row]) -> Result<(Vec<Shard>, Vec<ClusterNode>), String> {
    let mut used: Vec<ClusterNode> = Vec::new();
    let mut placed: Vec<Shard> = Vec::with_capacity(shards.len());
    for row in shards {
        let (id, lowest, highest): (i64, Option<i32>, Option<i32>) =
            (row.get(0), row.get(1), row.get(2));
        let (Some(lowest), Some(highest), Some(group)) =
            (lowest, highest, row.get::<_, Option<i32>>(3))
        else {
            return Err(format!("shard {id} has no range or no node"));
        };
        if placed.last().is_some_and(|last| last.id == id || last.highest >= lowest) {
            return Err(format!("shard {id} has more than one copy"));
        }
        let node = match used.iter().position(|node| node.group == group) {
            Some(node) => node,
            None => {
                let row = nodes.iter().find(|row| row.get::<_, i32>(0) == group && row.get(3));
                let Some(row) = row else {
                    return Err(format!("the node of shard {id} has no current metadata"));
                };
                let port = u16::try_from(row.get::<_, i32>(2)).unwrap_or_default();
                used.push(ClusterNode { group, host: row.get(1), port });
                used.len() - 1
            }
        };
        placed.push(Shard { id, lowest, highest, node, sql_name: row.get(4) });
    }
    match placed.is_empty() {
        true => Err("the table has no shards".to_owned()),
        false => Ok((placed, used)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ranges: &[(i32, i32)]) -> ShardedTable {
        let shard = |(id, (lowest, highest)): (usize, &(i32, i32))| Shard {
            id: id as i64,
            lowest: *lowest,
            highest: *highest,
            node: id % 2,
            sql_name: format!("public.t_{id}"),
        };
        ShardedTable {
            column: "id".to_owned(),
            hash: ColumnHash::Int4,
            shards: ranges.iter().enumerate().map(shard).collect(),
            nodes: Vec::new(),
        }
    }

    #[test]
    fn a_row_goes_to_the_shard_whose_range_has_its_hash() {
        // The hash of 42 is 1509752520, the hash of 0 is -272711505.
        let halves = table(&[(i32::MIN, -1), (0, i32::MAX)]);
        assert_eq!(halves.shard_of(&42_i32.to_be_bytes()), Some(1));
        assert_eq!(halves.shard_of(&0_i32.to_be_bytes()), Some(0));
        let edges = table(&[(i32::MIN, 1_509_752_519), (1_509_752_520, i32::MAX)]);
        assert_eq!(edges.shard_of(&42_i32.to_be_bytes()), Some(1));
    }

    #[test]
    fn a_row_whose_hash_is_in_no_range_has_no_shard() {
        let gap = table(&[(i32::MIN, -1), (0, 1_509_752_519), (1_509_752_521, i32::MAX)]);
        assert_eq!(gap.shard_of(&42_i32.to_be_bytes()), None);
        assert_eq!(table(&[(0, i32::MAX)]).shard_of(&0_i32.to_be_bytes()), None);
        assert_eq!(gap.shard_of(&[1]), None);
    }
}
