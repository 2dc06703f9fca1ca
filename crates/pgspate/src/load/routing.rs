//! Prepares to copy rows straight into the shards of a table of Citus.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;

use super::Load;
use crate::copy::{SessionOpener, ShardRoute};
use crate::format::EncodeMode;
use crate::plan::Routing;
use crate::{Error, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::shards::{
    ClusterNode, PreparedScope, ShardSession, ShardedTable, find_other_server, is_coordinator,
    resolve_prepared,
};
use pgspate_target::{SessionSettings, TableStorage, TargetTable, TypedQuery, server_error};

/// How long connecting to a node may take. A node that is not reachable from here at all must not
/// delay the plan for long.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Reads the shards of a table of Citus; `None` for another table.
pub(super) async fn read_shards(
    connection: &Connection,
    table: &TargetTable,
    session: &SessionSettings,
) -> Result<Option<Result<ShardedTable, String>>> {
    if table.storage != TableStorage::Shards {
        return Ok(None);
    }
    if !is_coordinator(&connection.client).await? {
        return Ok(Some(Err("the connection is not to the coordinator".to_owned())));
    }
    let read = ShardedTable::read(&connection.client, table, &session.server_encoding);
    read.await.map(Some)
}

impl Load {
    /// Checks that the nodes with the shards can be reached. If they cannot, the plan is that the
    /// coordinator routes the rows.
    pub(super) fn check_nodes(&mut self) {
        let Some(Routing::ByPgspate { table, .. }) = &self.plan.routing else { return };
        if self.is_loaded() {
            return;
        }
        let (dsn, client) = (&self.job.control_session.dsn, self.job.client());
        let checked = self.job.control_session.runtime.block_on(check_nodes(client, dsn, table));
        if let Err(reason) = checked {
            self.set_routing_by_coordinator(reason);
        }
    }

    /// Has the coordinator route the rows, after they could not go straight into the shards.
    pub(super) fn route_by_coordinator(&mut self, error: &Error) {
        let reason = describe(error);
        self.set_routing_by_coordinator(reason.clone());
        self.plan.warnings.push(format!("the coordinator routed the rows: {reason}"));
    }

    fn set_routing_by_coordinator(&mut self, reason: String) {
        self.plan.routing = Some(Routing::ByCoordinator(reason.clone()));
        self.request.shards = Some(Err(reason));
    }

    /// Returns the way straight into the shards, if the plan is to take it.
    pub(super) fn shard_route(&self) -> Option<Arc<ShardRoute>> {
        let Some(Routing::ByPgspate { table, field }) = &self.plan.routing else { return None };
        let name = format!("pgspate load {}", self.table.name);
        let opener = |node: &ClusterNode| {
            SessionOpener::new(
                &self.job.control_session.dsn.with_host(&node.host, node.port),
                name.clone(),
            )
        };
        let copy = |name: &str| self.plan.rows.copy_sql(EncodeMode::Binary, name);
        Some(Arc::new(ShardRoute {
            sql_name: self.table.sql_name.clone(),
            field: *field,
            openers: table.nodes.iter().map(opener).collect(),
            copy_sql: table.shards.iter().map(|shard| copy(&shard.sql_name)).collect(),
            table: table.clone(),
        }))
    }

    /// Ends transactions that other loads have left prepared on the nodes, as the ledger says.
    /// Before that their rows are invisible, and the table may seem to be empty.
    pub(super) fn resolve_prepared(&self) -> Result<()> {
        if self.table.storage != TableStorage::Shards {
            return Ok(());
        }
        let client = self.job.client();
        let resolving = resolve_prepared(client, PreparedScope::AnyJob);
        self.job.control_session.runtime.block_on(resolving).map(drop)
    }

    /// Ends transactions that this job has left prepared on the nodes, and reads again which chunks
    /// are written.
    pub(super) fn resolve_own_prepared(&mut self) -> Result<()> {
        let job = self.job.opened.as_ref().map(|opened| opened.job);
        let Some(job) = job.filter(|_| self.table.storage == TableStorage::Shards) else {
            return Ok(());
        };
        let resolved = self.job.with_client(async |client: &Client| {
            resolve_prepared(client, PreparedScope::Job(job.0)).await
        })?;
        if resolved.of_job { self.job.reopen() } else { Ok(()) }
    }
}

/// Connects to each node, and checks that the coordinator sees the sessions there. Returns the
/// reason, in words, if a node cannot be used.
async fn check_nodes(client: &Client, dsn: &Dsn, table: &ShardedTable) -> Result<(), String> {
    let mut connections = Vec::with_capacity(table.nodes.len());
    let mut sessions = Vec::with_capacity(table.nodes.len());
    let opening = table.nodes.iter().map(async |node| {
        let dsn = dsn.with_host(&node.host, node.port).with_connect_limit(CONNECT_LIMIT);
        let connection = dsn.connect("pgspate load").await?;
        let session = ShardSession::read(&connection.client, node).await?;
        let prepares = can_prepare(&connection.client).await?;
        Ok::<_, Error>((connection, session, prepares))
    });
    for (opened, node) in
        futures_util::future::join_all(opening).await.into_iter().zip(&table.nodes)
    {
        let (connection, session, prepares) =
            opened.map_err(|error| unreachable_node(node, &error))?;
        if !prepares {
            return Err(format!("max_prepared_transactions is 0 on {node}"));
        }
        connections.push(connection);
        sessions.push(session);
    }
    match find_other_server(client, &sessions).await {
        Ok(None) => Ok(()),
        Ok(Some(node)) => Err(format!("the name of {node} leads to another server from here")),
        Err(error) => Err(describe(&error)),
    }
}

/// Returns whether the server accepts PREPARE TRANSACTION at all.
async fn can_prepare(client: &Client) -> Result<bool> {
    let failed = server_error("could not look up the settings of a node".to_owned());
    let sql = "select current_setting('max_prepared_transactions')::int > 0";
    client.fetch_one(sql, &[]).await.map(|row| row.get(0)).map_err(failed)
}

fn unreachable_node(node: &ClusterNode, error: &Error) -> String {
    format!("{node} cannot be reached from here: {}", describe(error))
}

/// Returns an error's message with its causes, on one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text.replace('\n', " ")
}
