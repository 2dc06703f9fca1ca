//! Ways of sending rows to a server that several experiments compare, and what they leave.
//!
//! Values travel as text, as most drivers send what has no type of their language. Statements that
//! are sent one behind the other are all sent before the first answer is waited for.

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

/// A value as PostgreSQL reads it.
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

/// Messages that are on their way at once, at most: what is answered to them is kept meanwhile.
const IN_FLIGHT_MAX: usize = 1000;

/// A prepared statement for each row, one behind the other; how many rows they wrote.
pub(super) async fn pipelined<V: AsRef<str>>(
    client: &Client,
    statement: &Statement,
    rows: impl IntoIterator<Item = impl AsRef<[V]>>,
) -> Result<u64, tokio_postgres::Error> {
    let mut rows = rows.into_iter();
    let mut written = 0;
    loop {
        let some: Vec<_> = rows.by_ref().take(IN_FLIGHT_MAX).collect();
        if some.is_empty() {
            return Ok(written);
        }
        let sent = some.iter().map(|row| execute(client, statement, row.as_ref()));
        written += try_join_all(sent).await?.iter().sum::<u64>();
    }
}

/// Different statements, one behind the other in their order; how many rows they wrote.
pub(super) async fn in_order<'a>(
    statements: impl IntoIterator<Item = LocalBoxFuture<'a, Result<u64, tokio_postgres::Error>>>,
) -> Result<u64, tokio_postgres::Error> {
    let mut statements = statements.into_iter();
    let mut written = 0;
    loop {
        let mut some: Vec<_> = statements.by_ref().take(IN_FLIGHT_MAX).map(maybe_done).collect();
        if some.is_empty() {
            return Ok(written);
        }
        // A statement is sent when its future is asked for the first time.
        poll_fn(|context| {
            for statement in &mut some {
                let _ = Pin::new(statement).poll(context);
            }
            Poll::Ready(())
        })
        .await;
        for statement in &mut some {
            let mut statement = Pin::new(statement);
            statement.as_mut().await;
            written += statement.take_output().transpose()?.unwrap_or_default();
        }
    }
}

/// One prepared statement, with its values as text.
pub(super) async fn execute<V: AsRef<str>>(
    client: &Client,
    statement: &Statement,
    values: &[V],
) -> Result<u64, tokio_postgres::Error> {
    client.execute_raw(statement, values.iter().map(|value| TextValue(value.as_ref()))).await
}

/// `($1, $2), ($3, $4)`: places for so many rows of values, each with its type.
pub(super) fn places(rows: usize, types: &[&str]) -> String {
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

/// Statements for several rows, by how many they are for.
#[derive(Default)]
pub(super) struct StatementCache(HashMap<usize, Statement>);

impl StatementCache {
    /// The statement for so many rows, which `sql` makes when it is wanted for the first time.
    pub(super) async fn of(
        &mut self,
        client: &Client,
        rows: usize,
        sql: impl FnOnce() -> String,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(known) = self.0.get(&rows) {
            return Ok(known.clone());
        }
        let statement = client.prepare(&sql()).await?;
        self.0.insert(rows, statement.clone());
        Ok(statement)
    }
}

/// Rows of so many values that one statement has room for.
pub(super) fn rows_per_statement(columns: usize) -> usize {
    // The protocol counts parameters in 16 bits.
    usize::from(u16::MAX) / columns
}

/// Turns what a statement met into an error that says what was being done.
pub(super) fn failed<'a>(
    connection: &'a Connection,
    what: &'a str,
) -> impl Fn(tokio_postgres::Error) -> Error + 'a {
    move |error| connection.explain(format!("could not {what}"), error)
}

/// One number.
pub(super) async fn number(connection: &Connection, what: &str, sql: &str) -> Result<i64> {
    let row = connection.client.query_one(sql, &[]).await;
    Ok(row.map_err(failed(connection, what))?.get(0))
}

/// Fails where a table has not exactly these rows: then the contender has not done its work.
pub(super) async fn expect(
    connection: &Connection,
    table: &str,
    rows: &mut dyn GeneratedRows,
) -> Result<()> {
    let client = &connection.client;
    let make = format!("create temp table expected (like {table})");
    client
        .batch_execute(&make)
        .await
        .map_err(failed(connection, "make a table to compare with"))?;
    data::copy(client, "expected", rows).await?;
    let differ = format!(
        "select count(*) from ((table {table} except all table expected) \
         union all (table expected except all table {table})) different"
    );
    let different = number(connection, "compare the tables", &differ).await?;
    let gone = client.batch_execute("drop table expected").await;
    gone.map_err(failed(connection, "drop the table to compare with"))?;
    if different == 0 {
        return Ok(());
    }
    let message = format!("{different} rows of {table} are not as they should be");
    Err(Error::new(ErrorKind::Bug, message))
}
