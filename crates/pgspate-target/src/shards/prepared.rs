//! Transactions that pgspate has prepared on the nodes of a cluster, and how they end.
//!
//! Rows that go straight into shards are written by transactions on several nodes. Each one is
//! prepared under a name. Then one transaction on the coordinator records the chunks in the ledger.
//! Its commit decides: if the ledger has the chunks, the prepared transactions are committed, and
//! otherwise rolled back. The name has the coordinator's transaction id, which the row in the
//! ledger has as its `xmin`. So after any fault the decision is read, never guessed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_postgres::Client;

use super::ClusterNode;
use super::node::{node_error, run_on_nodes};
use crate::{Error, ErrorKind, Result, TypedQuery, server_error};

/// How long to wait for the end of a transaction on the coordinator that decides.
const DECISION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for decisions about other jobs. This run does not depend on them.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The database whose ledger decides about a prepared transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedOrigin {
    /// The system identifier of the server.
    system: String,
    /// The oid of the database.
    database: u32,
}

impl PreparedOrigin {
    /// Returns the database of the connection.
    ///
    /// # Errors
    /// The errors of the query.
    pub async fn read(client: &Client) -> Result<PreparedOrigin> {
        let sql = "select system_identifier::text, d.oid \
                   from pg_catalog.pg_control_system(), pg_catalog.pg_database d \
                   where datname operator(pg_catalog.=) pg_catalog.current_database()";
        let failed = server_error("could not look up the database".to_owned());
        let row = client.fetch_one(sql, &[]).await.map_err(failed)?;
        Ok(PreparedOrigin { system: row.get(0), database: row.get(1) })
    }

    /// Returns what all names of the database begin with.
    fn prefix(&self) -> String {
        format!("pgspate:{}:{}:", self.system, self.database)
    }
}

/// The name of a prepared transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedName {
    /// The coordinator's database.
    pub origin: PreparedOrigin,
    /// The job in the ledger.
    pub job: i64,
    /// The first of the chunks whose rows in the ledger say that the transaction is to be
    /// committed.
    pub chunk: u64,
    /// The id of the transaction on the coordinator that inserts this row.
    pub xid: u64,
    /// The ordinal of the session among those that the coordinator's transaction decides about.
    pub session: usize,
}

impl std::fmt::Display for PreparedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PreparedName { origin, job, chunk, xid, session } = self;
        write!(f, "{}{job}:{chunk}:{xid}:{session}", origin.prefix())
    }
}

impl PreparedName {
    /// Parses a name. Returns `None` for a name of another form.
    fn parse(name: &str) -> Option<PreparedName> {
        let mut parts = name.strip_prefix("pgspate:")?.split(':');
        let parsed = PreparedName {
            origin: PreparedOrigin {
                system: parts.next()?.to_owned(),
                database: parts.next()?.parse().ok()?,
            },
            job: parts.next()?.parse().ok()?,
            chunk: parts.next()?.parse().ok()?,
            xid: parts.next()?.parse().ok()?,
            session: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(parsed)
    }
}

/// How a prepared transaction is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Commit,
    RollBack,
    /// The transaction on the coordinator is in progress.
    Pending,
    /// The transaction is another role's or job's, and the ledger does not show the decision.
    Unknown,
}

/// The job whose prepared transactions must be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreparedScope {
    /// This job. All its transactions are ended, except those on nodes that the cluster has
    /// disabled and that cannot be reached.
    Job(i64),
    /// This job, whose rows in the ledger are about to be deleted. All its transactions are ended.
    ForgottenJob(i64),
    /// None in particular. Transactions whose decision is not known stay.
    AnyJob,
}

/// Ends transactions that earlier runs have left prepared on the cluster's nodes, as their jobs'
/// rows in the ledger say. Until then the rows of a chunk that the ledger has are invisible.
/// Does nothing in a database without Citus.
///
/// # Errors
/// [`ErrorKind::Connect`], which is retryable, if a node cannot be reached, or if a transaction of
/// the job cannot be ended now.
pub async fn resolve_prepared(client: &Client, scope: PreparedScope) -> Result<ResolvedPrepared> {
    let mut resolved = ResolvedPrepared::default();
    if !has_prepared_names(client).await? {
        return Ok(resolved);
    }
    let started = Instant::now();
    loop {
        let is_pending = resolve_once(client, scope, &mut resolved).await?;
        let limit = match scope {
            PreparedScope::AnyJob => OTHERS_TIMEOUT,
            PreparedScope::Job(_) | PreparedScope::ForgottenJob(_) => DECISION_TIMEOUT,
        };
        if !is_pending || (scope == PreparedScope::AnyJob && started.elapsed() > limit) {
            return Ok(resolved);
        }
        if started.elapsed() > limit {
            let message = "an earlier run of this load is still committing";
            return Err(Error::new(ErrorKind::Connect, message)
                .hint("Wait until that run is done. Then run the same command again."));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether the connection is to the coordinator. Other nodes take COPY, too, but their
/// ledgers are others.
///
/// # Errors
/// The errors of the query.
pub async fn is_coordinator(client: &Client) -> Result<bool> {
    let failed = server_error("could not look up the cluster".to_owned());
    let sql = "select coalesce((select groupid = 0 from pg_catalog.pg_dist_local_group), false)";
    client.fetch_one(sql, &[]).await.map(|row| row.get(0)).map_err(failed)
}

/// What was found among the prepared transactions.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResolvedPrepared {
    /// Whether the job of the scope had such transactions.
    pub of_job: bool,
    /// The number of transactions that were ended.
    pub ended: u64,
}

/// A prepared transaction, and the node that has it.
struct PreparedOnNode {
    node: ClusterNode,
    name: PreparedName,
    age_seconds: u64,
}

/// The nodes, also those that are disabled, and whether each one may have rows of a job. That is
/// so if the node has shards of the job's table: no shard is moved, and no table is renamed, while
/// rows in it are prepared. The argument is the job.
const NODES: &str = "\
select n.groupid, n.nodename::text, n.nodeport, n.isactive,
       exists (select from pgspate.job j
               join pg_catalog.pg_dist_shard s
                   on s.logicalrelid::oid = to_regclass(j.table_name)::oid
               join pg_catalog.pg_dist_placement p on p.shardid = s.shardid
               where j.job = $1 and p.groupid = n.groupid)
from pg_catalog.pg_dist_node n where n.noderole::text = 'primary'";

/// Returns the prepared transactions of this database's ledger on the cluster's nodes, and the
/// nodes that did not answer the coordinator, each with the reason. `job` is the job that the
/// answers matter for.
async fn find_prepared(
    client: &Client,
    job: Option<i64>,
) -> Result<(Vec<PreparedOnNode>, Vec<(ClusterNode, UnheardNode)>)> {
    let failed = server_error("could not look up prepared transactions".to_owned());
    let rows = client.fetch_all(NODES, &[&job]).await.map_err(failed)?;
    let node = |row: &tokio_postgres::Row| ClusterNode {
        group: row.get(0),
        host: row.get(1),
        port: u16::try_from(row.get::<_, i32>(2)).unwrap_or_default(),
    };
    let nodes: Vec<ClusterNode> = rows.iter().map(node).collect();
    let prefix = PreparedOrigin::read(client).await?.prefix();
    let list = format!(
        "select coalesce(pg_catalog.string_agg(gid || '=' || greatest(0, \
             extract(epoch from pg_catalog.clock_timestamp() - prepared)::pg_catalog.int8), ' '), '') \
         from pg_catalog.pg_prepared_xacts \
         where database operator(pg_catalog.=) pg_catalog.current_database() \
           and pg_catalog.starts_with(gid, '{prefix}')"
    );
    let every: Vec<&ClusterNode> = nodes.iter().collect();
    let answers = run_on_nodes(client, &every, vec![list; nodes.len()]).await?;
    let (mut found, mut unheard) = (Vec::new(), Vec::new());
    for ((node, row), answer) in nodes.into_iter().zip(rows).zip(answers) {
        match answer {
            Ok(names) => found.extend(names.split(' ').filter_map(|entry| {
                let (name, age) = entry.split_once('=')?;
                let (name, age_seconds) = (PreparedName::parse(name)?, age.parse().ok()?);
                Some(PreparedOnNode { node: node.clone(), name, age_seconds })
            })),
            Err(why) => {
                let (is_active, may_have_rows) = (row.get(3), row.get(4));
                unheard.push((node, UnheardNode { is_active, may_have_rows, why }));
            }
        }
    }
    Ok((found, unheard))
}

/// Why a node did not answer the coordinator.
struct UnheardNode {
    /// Whether the cluster uses the node.
    is_active: bool,
    /// Whether the node may have rows of the job.
    may_have_rows: bool,
    why: String,
}

/// Ends those transactions whose decision is known. Returns whether one of those that must be ended
/// has not been decided yet.
async fn resolve_once(
    client: &Client,
    scope: PreparedScope,
    resolved: &mut ResolvedPrepared,
) -> Result<bool> {
    let job = match scope {
        PreparedScope::Job(job) | PreparedScope::ForgottenJob(job) => Some(job),
        PreparedScope::AnyJob => None,
    };
    let (prepared, unheard) = find_prepared(client, job).await?;
    // Loads of other jobs need not wait for a node. A node that is disabled may never come back; if
    // it does, the ledger still decides about its transactions.
    let must_be_heard = |unheard: &UnheardNode| match scope {
        PreparedScope::AnyJob => false,
        PreparedScope::Job(_) => unheard.may_have_rows && unheard.is_active,
        PreparedScope::ForgottenJob(_) => unheard.may_have_rows,
    };
    if let Some((node, unheard)) = unheard.iter().find(|(_, unheard)| must_be_heard(unheard)) {
        return Err(node_error(node, &unheard.why).hint(node_hint(node, unheard)));
    }
    let (mut decisions, mut is_pending) = (HashMap::new(), false);
    for PreparedOnNode { node, name, .. } in prepared {
        let is_ours = job == Some(name.job);
        resolved.of_job |= is_ours;
        let key = (name.job, name.xid);
        let decision = match decisions.get(&key) {
            Some(decision) => *decision,
            None => decide(client, &name, is_ours).await?,
        };
        decisions.insert(key, decision);
        let word = match decision {
            Decision::Commit => "commit",
            Decision::RollBack => "rollback",
            Decision::Pending => {
                is_pending |= is_ours || scope == PreparedScope::AnyJob;
                continue;
            }
            Decision::Unknown => continue,
        };
        let ended =
            run_on_nodes(client, &[&node], vec![format!("{word} prepared '{name}'")]).await?;
        match ended.into_iter().next() {
            Some(Err(why)) if is_ours => return Err(node_error(&node, &why)),
            Some(Err(_)) | None => {}
            Some(Ok(_)) => resolved.ended += 1,
        }
    }
    Ok(is_pending)
}

/// Says what to do about a node that must answer and does not.
fn node_hint(ClusterNode { host, port, .. }: &ClusterNode, unheard: &UnheardNode) -> String {
    let hint = "Start the node again: it may have prepared rows of this job. If it is \
                permanently lost, run on the coordinator";
    match unheard.is_active {
        true => format!("{hint} `select citus_update_node(NODE_ID, 'NEW_HOST', NEW_PORT)`."),
        false => format!("{hint} `select citus_remove_node('{host}', {port})`."),
    }
}

/// A transaction that a load has left prepared on a node, or is about to end.
#[derive(Debug, Clone, Serialize)]
pub struct LeftPrepared {
    /// The node's host name or address.
    pub host: String,
    /// The node's port.
    pub port: u16,
    /// The job in the ledger.
    pub job: i64,
    /// The transaction's name.
    pub name: String,
    /// Seconds since the transaction was prepared.
    pub age_seconds: u64,
    /// What the ledger has decided: `commit` or `roll back`, `pending` while the load commits;
    /// `unknown` if the ledger has forgotten the job.
    pub decision: &'static str,
}

/// The prepared transactions on the nodes of a cluster.
#[derive(Debug, Clone, Default)]
pub struct LeftPreparedList {
    /// The transactions.
    pub transactions: Vec<LeftPrepared>,
    /// The nodes that did not answer the coordinator.
    pub unheard_nodes: Vec<ClusterNode>,
}

/// Lists the transactions that loads of this database have left prepared on the cluster's nodes.
/// Ends none of them. Empty for a role that may not query the nodes, and in a database that is not
/// the coordinator's or has no ledger.
///
/// # Errors
/// The errors of the queries.
pub async fn list_prepared(client: &Client) -> Result<LeftPreparedList> {
    if !has_prepared_names(client).await? {
        return Ok(LeftPreparedList::default());
    }
    let (prepared, unheard) = find_prepared(client, None).await?;
    let mut list = LeftPreparedList {
        unheard_nodes: unheard.into_iter().map(|(node, _)| node).collect(),
        ..LeftPreparedList::default()
    };
    for PreparedOnNode { node, name, age_seconds } in prepared {
        let decision = match decide(client, &name, false).await? {
            Decision::Commit => "commit",
            Decision::RollBack => "roll back",
            Decision::Pending => "pending",
            Decision::Unknown => "unknown",
        };
        list.transactions.push(LeftPrepared {
            host: node.host,
            port: node.port,
            job: name.job,
            name: name.to_string(),
            age_seconds,
            decision,
        });
    }
    Ok(list)
}

/// Returns whether this is a coordinator of Citus whose database has a ledger. Only then loads
/// prepare transactions.
async fn has_prepared_names(client: &Client) -> Result<bool> {
    let failed = server_error("could not look up the cluster".to_owned());
    let sql = "select to_regclass('pg_catalog.pg_dist_node') is not null \
               and to_regclass('pgspate.ledger') is not null";
    let has_nodes = client.fetch_one(sql, &[]).await.map_err(failed)?.get::<_, bool>(0);
    Ok(has_nodes && is_coordinator(client).await?)
}

/// Reads what was decided about a prepared transaction.
async fn decide(client: &Client, name: &PreparedName, is_ours: bool) -> Result<Decision> {
    let failed = || server_error("could not look up a prepared transaction".to_owned());
    // After a failover, the coordinator may never have assigned the id. The id of this query's own
    // transaction is higher than all that were assigned before.
    let sql = "select case when $1::text::xid8 >= pg_current_xact_id() then 'aborted' \
                           else coalesce(pg_xact_status($1::text::xid8), 'committed') end";
    let xid = name.xid.to_string();
    let row = client.fetch_one(sql, &[&xid]).await.map_err(failed())?;
    match row.get(0) {
        "in progress" => return Ok(Decision::Pending),
        "aborted" => return Ok(Decision::RollBack),
        _ => {}
    }
    let sql = "select exists (select from pgspate.ledger where job = $1 \
                              and xmin::text::bigint = $2)";
    let xid = (name.xid & 0xffff_ffff).cast_signed();
    let row = client.fetch_one(sql, &[&name.job, &xid]).await.map_err(failed())?;
    Ok(match row.get(0) {
        true => Decision::Commit,
        false if is_ours => Decision::RollBack,
        false => Decision::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_they_are_written() {
        let origin = PreparedOrigin { system: "71".to_owned(), database: 5 };
        let name = PreparedName { origin, job: 12, chunk: 7, xid: u64::MAX, session: 3 };
        assert_eq!(name.to_string(), "pgspate:71:5:12:7:18446744073709551615:3");
        assert_eq!(PreparedName::parse(&name.to_string()), Some(name));
        for other in ["", "pgspate:", "pgspate:1:2:3:4:5", "pgspate:1:2:3:4:5:6:7", "citus_0_1_2_3"]
        {
            assert_eq!(PreparedName::parse(other), None, "{other}");
        }
    }
}
