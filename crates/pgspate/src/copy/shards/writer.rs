//! A session with a node, which writes rows into the shards of that node.
//!
//! Each shard has one session for the whole copy. So two rows with the same key meet in one
//! session, and no two sessions wait for each other.

use std::collections::HashMap;
use std::pin::pin;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::mpsc::Receiver;
use tokio_postgres::Statement;

use super::ShardRoute;
use super::split::ShardPiece;
use crate::copy::CopyJob;
use crate::copy::stream::{BEGIN_READ_COMMITTED, BINARY_HEADER, BINARY_TRAILER, copy_error};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::shards::{ShardSession, lock_shards};

/// A session that writes into some of a node's shards.
pub(super) struct ShardWriter {
    pub(super) connection: Connection,
    pub(super) identity: ShardSession,
    /// The ordinals of the shards, ascending.
    shards: Vec<usize>,
    /// The COPY statements of shards that have got rows.
    statements: HashMap<usize, Statement>,
    /// Rows that the server has written since the transaction began.
    pub(super) rows: u64,
}

impl ShardWriter {
    /// Connects to the node of the shards.
    pub(super) async fn open(
        job: &CopyJob,
        route: &ShardRoute,
        node: usize,
        shards: Vec<usize>,
    ) -> Result<ShardWriter> {
        let connection = route.openers[node].open().await?;
        let identity = ShardSession::read(&connection.client, &route.table.nodes[node]).await?;
        let settings = format!(
            "{}; set citus.enable_manual_changes_to_shards = on",
            job.setup.session_settings_sql()
        );
        let set = connection.client.batch_execute(&settings).await;
        set.map_err(|error| connection.explain("could not prepare a session to copy", error))?;
        Ok(ShardWriter { connection, identity, shards, statements: HashMap::new(), rows: 0 })
    }

    /// Begins a transaction that locks the shards.
    pub(super) async fn begin(&mut self, route: &ShardRoute) -> Result<()> {
        self.rows = 0;
        // A transaction without rows was not prepared, and is still open.
        let begin = format!("rollback; {BEGIN_READ_COMMITTED}");
        let begun = self.connection.client.batch_execute(&begin).await;
        begun.map_err(|error| self.connection.explain("could not begin to copy", error))?;
        let mut shards: Vec<_> = self.shards.iter().map(|it| &route.table.shards[*it]).collect();
        shards.sort_by_key(|shard| shard.id);
        lock_shards(&self.connection, &route.sql_name, &shards).await
    }

    /// Writes the pieces that arrive, until the channel closes.
    pub(super) async fn write_all(
        mut self,
        route: &ShardRoute,
        mut pieces: Receiver<ShardPiece>,
    ) -> Result<ShardWriter> {
        while let Some(piece) = pieces.recv().await {
            self.write(route, piece).await?;
        }
        Ok(self)
    }

    /// Writes one piece in a COPY of its own.
    async fn write(&mut self, route: &ShardRoute, piece: ShardPiece) -> Result<()> {
        let ShardPiece { shard, bytes, rows } = piece;
        let client = &self.connection.client;
        let failed = |error| copy_error(&self.connection, error);
        let statement = match self.statements.get(&shard) {
            Some(statement) => statement.clone(),
            None => {
                let statement = client.prepare(&route.copy_sql[shard]).await.map_err(failed)?;
                self.statements.insert(shard, statement.clone());
                statement
            }
        };
        let mut sink = pin!(client.copy_in::<_, Bytes>(&statement).await.map_err(failed)?);
        for part in [Bytes::from_static(BINARY_HEADER), bytes.into(), BINARY_TRAILER.into()] {
            sink.feed(part).await.map_err(failed)?;
        }
        let written = sink.finish().await.map_err(failed)?;
        if written != rows {
            let message = format!("sent {rows} rows but the server wrote {written}");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.rows += written;
        Ok(())
    }
}
