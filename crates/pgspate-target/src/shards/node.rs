//! A session with a node of the cluster: whether it is the node that the coordinator means, and
//! whether the node still has the shards.

use tokio_postgres::Client;

use super::{ClusterNode, Shard};
use crate::connect::Connection;
use crate::{Error, ErrorKind, Result, TypedQuery, server_error};

/// What identifies a session of a node among all sessions of all servers: the backend's process id
/// and its start, to the microsecond.
#[derive(Debug, Clone)]
pub struct ShardSession {
    node: ClusterNode,
    pid: i32,
    started: String,
}

impl ShardSession {
    /// Reads the identity of this session.
    ///
    /// # Errors
    /// The errors of the query.
    pub async fn read(client: &Client, node: &ClusterNode) -> Result<ShardSession> {
        let sql = "select pid, extract(epoch from backend_start)::numeric(20, 6)::text \
                   from pg_stat_activity where pid = pg_backend_pid()";
        let failed = server_error(format!("could not look up a session of {node}"));
        let row = client.fetch_one(sql, &[]).await.map_err(failed)?;
        Ok(ShardSession { node: node.clone(), pid: row.get(0), started: row.get(1) })
    }
}

/// Returns the first session that the coordinator does not see on the session's node. The name of a
/// node may lead the client to another server than the coordinator.
///
/// # Errors
/// [`ErrorKind::Connect`] if the coordinator cannot ask a node.
pub async fn find_other_server(
    coordinator: &Client,
    sessions: &[ShardSession],
) -> Result<Option<ClusterNode>> {
    let commands: Vec<String> = (sessions.iter())
        .map(|session| {
            format!(
                "select pg_catalog.count(*) from pg_catalog.pg_stat_activity \
                 where pid operator(pg_catalog.=) {} \
                   and extract(epoch from backend_start)::pg_catalog.numeric(20, 6) \
                       operator(pg_catalog.=) {}",
                session.pid, session.started
            )
        })
        .collect();
    let nodes: Vec<&ClusterNode> = sessions.iter().map(|session| &session.node).collect();
    let answers = run_on_nodes(coordinator, &nodes, commands).await?;
    for (node, answer) in nodes.iter().zip(answers) {
        let count = answer.map_err(|why| node_error(node, &why))?;
        if count != "1" {
            return Ok(Some((*node).clone()));
        }
    }
    Ok(None)
}

/// Runs one command on each node, through the coordinator. Returns the first value of each result,
/// or the node's error in words.
///
/// # Errors
/// The errors of the query on the coordinator.
pub(super) async fn run_on_nodes(
    coordinator: &Client,
    nodes: &[&ClusterNode],
    commands: Vec<String>,
) -> Result<Vec<Result<String, String>>> {
    let hosts: Vec<String> = nodes.iter().map(|node| node.host.clone()).collect();
    let ports: Vec<i32> = nodes.iter().map(|node| i32::from(node.port)).collect();
    let sql = "select success, coalesce(result, '') from pg_catalog.master_run_on_worker(\
               $1::text[], $2::integer[], $3::text[], true)";
    let failed = server_error("could not query the nodes of the cluster".to_owned());
    let rows = coordinator.fetch_all(sql, &[&hosts, &ports, &commands]).await.map_err(failed)?;
    if rows.len() != nodes.len() {
        return Err(Error::new(ErrorKind::Bug, "the cluster answered for another number of nodes"));
    }
    Ok(rows.iter().map(|row| if row.get(0) { Ok(row.get(1)) } else { Err(row.get(1)) }).collect())
}

/// Returns whether the coordinator can reach a node now.
///
/// # Errors
/// The errors of the query on the coordinator.
pub async fn is_reached_by_coordinator(coordinator: &Client, node: &ClusterNode) -> Result<bool> {
    let answers = run_on_nodes(coordinator, &[node], vec!["select 1".to_owned()]).await?;
    Ok(answers.iter().all(Result::is_ok))
}

/// Returns the error for a node that did not answer the coordinator. Retrying may help.
pub(super) fn node_error(node: &ClusterNode, why: &str) -> Error {
    let message = format!("the coordinator could not query {node}");
    Error::new(ErrorKind::Connect, message).because(Error::new(ErrorKind::Connect, why))
}

/// Locks shards until the transaction ends, as writes through the coordinator do, and checks that
/// this node has them. While the locks are held, no shard is moved or split.
///
/// # Errors
/// [`ErrorKind::Plan`] if the node has no longer all the shards. The errors of the statements.
pub async fn lock_shards(connection: &Connection, table: &str, shards: &[&Shard]) -> Result<()> {
    let failed = |error| connection.explain("could not lock the shards", error);
    let ids: Vec<i64> = shards.iter().map(|shard| shard.id).collect();
    // Mode 5 is a ShareLock.
    let lock = "select pg_catalog.lock_shard_metadata(5, $1::pg_catalog.int8[])";
    connection.client.fetch_all(lock, &[&ids]).await.map_err(failed)?;
    // The session has the user's search path.
    let sql = "select s.shardid, s.shardminvalue::pg_catalog.int4, \
                      s.shardmaxvalue::pg_catalog.int4 \
               from pg_catalog.pg_dist_shard s \
               join pg_catalog.pg_dist_placement p \
                   on p.shardid operator(pg_catalog.=) s.shardid \
                   and p.shardstate operator(pg_catalog.=) 1 \
               join pg_catalog.pg_dist_local_group g \
                   on g.groupid operator(pg_catalog.=) p.groupid \
               where s.shardid operator(pg_catalog.=) any($1) \
                 and s.logicalrelid operator(pg_catalog.=) \
                     $2::pg_catalog.text::pg_catalog.regclass";
    let rows = connection.client.fetch_all(sql, &[&ids, &table]).await.map_err(failed)?;
    let found: Vec<(i64, i32, i32)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let has = |shard: &&Shard| found.contains(&(shard.id, shard.lowest, shard.highest));
    match found.len() == shards.len() && shards.iter().all(has) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Plan, "shards were moved or split meanwhile")),
    }
}

impl std::fmt::Display for ClusterNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}:{}", self.host, self.port)
    }
}
