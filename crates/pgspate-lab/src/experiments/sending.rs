//! Ways of sending rows to a server that several experiments compare, and a check of the result.
//!
//! Values are sent in text format, as most drivers send values of types that they do not know.
//! Pipelined statements are all sent before the client waits for the first reply.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use bytes::BytesMut;
use futures_util::future::{LocalBoxFuture, maybe_done, try_join_all};
use pgspate::target::connect::Connection;
use pgspate::{Error, ErrorKind, Result};
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Statement};

use crate::data::{self, GeneratedRows};

/// A parameter value in PostgreSQL's text format.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextValue<'a>(pub(super) &'a str);

impl ToSql for TextValue<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// The greatest number of pipelined statements. Their replies are kept in memory.
const IN_FLIGHT_MAX: usize = 1000;

/// Executes a prepared statement once for each row, pipelined. Returns the number of written rows.
pub(super) async fn pipelined<V: AsRef<str>>(
    client: &Client,
    statement: &Statement,
    rows: impl IntoIterator<Item = impl AsRef<[V]>>,
) -> Result<u64, tokio_postgres::Error> {
    let mut rows = rows.into_iter();
    let mut written = 0;
    loop {
        let batch: Vec<_> = rows.by_ref().take(IN_FLIGHT_MAX).collect();
        if batch.is_empty() {
            return Ok(written);
        }
        let executions = batch.iter().map(|row| execute(client, statement, row.as_ref()));
        written += try_join_all(executions).await?.iter().sum::<u64>();
    }
}

/// Executes different statements, pipelined in their order. Returns the number of written rows.
pub(super) async fn in_order<'a>(
    statements: impl IntoIterator<Item = LocalBoxFuture<'a, Result<u64, tokio_postgres::Error>>>,
) -> Result<u64, tokio_postgres::Error> {
    let mut statements = statements.into_iter();
    let mut written = 0;
    loop {
        let mut batch: Vec<_> = statements.by_ref().take(IN_FLIGHT_MAX).map(maybe_done).collect();
        if batch.is_empty() {
            return Ok(written);
        }
        // A statement is sent when its future is polled for the first time.
        poll_fn(|context| {
            for statement in &mut batch {
                let _ = Pin::new(statement).poll(context);
            }
            Poll::Ready(())
        })
        .await;
        for statement in &mut batch {
            let mut statement = Pin::new(statement);
            statement.as_mut().await;
            written += statement.take_output().transpose()?.unwrap_or_default();
        }
    }
}

/// Executes a prepared statement with values in text format. Returns the number of written rows.
pub(super) async fn execute<V: AsRef<str>>(
    client: &Client,
    statement: &Statement,
    values: &[V],
) -> Result<u64, tokio_postgres::Error> {
    client.execute_raw(statement, values.iter().map(|value| TextValue(value.as_ref()))).await
}

/// Returns parameter placeholders for `rows` rows, such as `($1::int, $2::text), ($3::int, ...)`.
///
/// `types` has the type of each column.
pub(super) fn placeholders(rows: usize, types: &[&str]) -> String {
    let mut text = String::with_capacity(rows * types.len() * 16);
    for row in 0..rows {
        text += if row == 0 { "(" } else { ", (" };
        for (column, kind) in types.iter().enumerate() {
            let comma = if column == 0 { "" } else { ", " };
            text += &format!("{comma}${}::{kind}", row * types.len() + column + 1);
        }
        text.push(')');
    }
    text
}

/// Prepared multi-row statements, by their number of rows.
#[derive(Default)]
pub(super) struct StatementCache(HashMap<usize, Statement>);

impl StatementCache {
    /// Returns the statement for `rows` rows. The first call prepares the text that `sql` returns.
    pub(super) async fn of(
        &mut self,
        client: &Client,
        rows: usize,
        sql: impl FnOnce() -> String,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.0.get(&rows) {
            return Ok(statement.clone());
        }
        let statement = client.prepare(&sql()).await?;
        self.0.insert(rows, statement.clone());
        Ok(statement)
    }
}

/// Returns the greatest number of rows of `columns` values in one statement.
pub(super) fn rows_per_statement(columns: usize) -> usize {
    // The protocol counts parameters in 16 bits.
    usize::from(u16::MAX) / columns
}

/// Returns a function that turns a statement's error into "could not `what`" with its cause.
pub(super) fn failed<'a>(
    connection: &'a Connection,
    what: &'a str,
) -> impl Fn(tokio_postgres::Error) -> Error + 'a {
    move |error| connection.explain(format!("could not {what}"), error)
}

/// Runs a query that returns one integer. An error says "could not `what`".
pub(super) async fn number(connection: &Connection, what: &str, sql: &str) -> Result<i64> {
    let row = connection.client.query_one(sql, &[]).await;
    Ok(row.map_err(failed(connection, what))?.get(0))
}

/// Returns the server's WAL position in bytes.
pub(super) async fn wal_bytes(connection: &Connection) -> Result<i64> {
    let sql = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8";
    number(connection, "look where the WAL is", sql).await
}

/// Checks that a table has exactly these rows, so that an incorrect contender fails.
pub(super) async fn expect(
    connection: &Connection,
    table: &str,
    rows: &mut dyn GeneratedRows,
) -> Result<()> {
    let client = &connection.client;
    let create_table = format!("create temp table expected (like {table})");
    client
        .batch_execute(&create_table)
        .await
        .map_err(failed(connection, "make a table to compare with"))?;
    data::copy(client, "expected", rows).await?;
    let count_differences = format!(
        "select count(*) from ((table {table} except all table expected) \
         union all (table expected except all table {table})) different"
    );
    let different = number(connection, "compare the tables", &count_differences).await?;
    let dropped = client.batch_execute("drop table expected").await;
    dropped.map_err(failed(connection, "drop the table to compare with"))?;
    if different == 0 {
        return Ok(());
    }
    let message = format!("{different} rows of {table} differ from the expected rows");
    Err(Error::new(ErrorKind::Bug, message))
}
