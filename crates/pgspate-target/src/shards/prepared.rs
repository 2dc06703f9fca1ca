//! Transactions that pgspate has prepared on the nodes of a cluster, and how they end.
//!
//! Rows that go straight into shards are written by transactions on several nodes. Each one is
//! prepared under a name. Then one transaction on the coordinator records the chunks in the ledger.
//! Its commit decides: if the ledger has the chunks, the prepared transactions are committed, and
//! otherwise rolled back. The name has the coordinator's transaction id, which the row in the
//! ledger has as its `xmin`. So after any fault the decision is read, never guessed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

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
    /// This job. All its transactions are ended.
    Job(i64),
    /// None in particular. Transactions whose decision is not known stay.
    AnyJob,
}

/// Ends transactions that earlier runs have left prepared on the cluster's nodes, as their jobs'
/// rows in the ledger say. Until then the rows of a chunk that the ledger has are invisible.
/// Returns whether the job of `scope` had such transactions. Does nothing in a database without
/// Citus.
///
/// # Errors
/// [`ErrorKind::Connect`], which is retryable, if a node cannot be reached, or if a transaction of
/// the job cannot be ended now.
pub async fn resolve_prepared(client: &Client, scope: PreparedScope) -> Result<bool> {
    let failed = server_error("could not look up the cluster".to_owned());
    let sql = "select to_regclass('pg_catalog.pg_dist_node') is not null \
               and to_regclass('pgspate.ledger') is not null";
    let has_nodes = client.fetch_one(sql, &[]).await.map_err(failed)?.get::<_, bool>(0);
    if !has_nodes || !is_coordinator(client).await? {
        return Ok(false);
    }
    let started = Instant::now();
    let mut had_prepared = false;
    loop {
        let found = resolve_once(client, scope).await?;
        had_prepared |= found.has_own;
        let limit = match scope {
            PreparedScope::Job(_) => DECISION_TIMEOUT,
            PreparedScope::AnyJob => OTHERS_TIMEOUT,
        };
        if !found.is_pending || (scope == PreparedScope::AnyJob && started.elapsed() > limit) {
            return Ok(had_prepared);
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
#[derive(Default)]
struct PreparedFound {
    /// Whether transactions of the job were found.
    has_own: bool,
    /// Whether one of them has not been decided yet.
    is_pending: bool,
}

/// Ends those transactions whose decision is known.
async fn resolve_once(client: &Client, scope: PreparedScope) -> Result<PreparedFound> {
    let failed = || server_error("could not look up prepared transactions".to_owned());
    // A node that is disabled may still have transactions of the job.
    let is_any = scope == PreparedScope::AnyJob;
    let nodes = "select groupid, nodename::text, nodeport from pg_catalog.pg_dist_node \
                 where noderole::text = 'primary' and (isactive or not $1)";
    let rows = client.fetch_all(nodes, &[&is_any]).await.map_err(failed())?;
    let node = |row: &tokio_postgres::Row| ClusterNode {
        group: row.get(0),
        host: row.get(1),
        port: u16::try_from(row.get::<_, i32>(2)).unwrap_or_default(),
    };
    let nodes: Vec<ClusterNode> = rows.iter().map(node).collect();
    let prefix = PreparedOrigin::read(client).await?.prefix();
    let list = format!(
        "select coalesce(pg_catalog.string_agg(gid, ' '), '') from pg_catalog.pg_prepared_xacts \
         where database operator(pg_catalog.=) pg_catalog.current_database() \
           and pg_catalog.starts_with(gid, '{prefix}')"
    );
    let every: Vec<&ClusterNode> = nodes.iter().collect();
    let answers = run_on_nodes(client, &every, vec![list; nodes.len()]).await?;
    let mut names_found: Vec<(&ClusterNode, PreparedName)> = Vec::new();
    for (node, answer) in nodes.iter().zip(answers) {
        let names = match answer {
            Ok(names) => names,
            // Loads that do not depend on the node need not wait for it.
            Err(_) if is_any => continue,
            Err(why) => return Err(node_error(node, &why)),
        };
        names_found
            .extend(names.split(' ').filter_map(|name| Some((node, PreparedName::parse(name)?))));
    }
    let mut decisions = HashMap::new();
    let mut found = PreparedFound::default();
    for (node, name) in names_found {
        let is_ours = scope == PreparedScope::Job(name.job);
        found.has_own |= is_ours;
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
                found.is_pending |= is_ours || scope == PreparedScope::AnyJob;
                continue;
            }
            Decision::Unknown => continue,
        };
        let ended =
            run_on_nodes(client, &[node], vec![format!("{word} prepared '{name}'")]).await?;
        match ended.into_iter().next() {
            Some(Err(why)) if is_ours => return Err(node_error(node, &why)),
            _ => {}
        }
    }
    Ok(found)
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
