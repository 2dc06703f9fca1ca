//! Queries that state the SQL types of their parameters.
//!
//! Such a query takes one round trip and leaves no prepared statement in the session. A query that
//! is prepared first takes two round trips. Queries that are polled together are sent together. The
//! server answers the queries in order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use futures_util::future::{MaybeDone, maybe_done};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

/// A query parameter that knows its SQL type.
pub trait TypedParameter: ToSql + Sync {
    /// Returns the SQL type of the parameter.
    fn sql_type(&self) -> Type;
}

macro_rules! parameters {
    ($($rust:ty => $sql:ident, $array:ident;)*) => {$(
        impl TypedParameter for $rust {
            fn sql_type(&self) -> Type {
                Type::$sql
            }
        }
        impl TypedParameter for Option<$rust> {
            fn sql_type(&self) -> Type {
                Type::$sql
            }
        }
        impl TypedParameter for Vec<$rust> {
            fn sql_type(&self) -> Type {
                Type::$array
            }
        }
        impl TypedParameter for Vec<Option<$rust>> {
            fn sql_type(&self) -> Type {
                Type::$array
            }
        }
    )*};
}

parameters! {
    bool => BOOL, BOOL_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    u32 => OID, OID_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
}

/// Runs queries whose parameters state their types.
#[allow(
    async_fn_in_trait,
    reason = "only `Client` implements it, and the futures of `Client` are `Send`"
)]
pub trait TypedQuery {
    /// Runs a query and returns all rows.
    async fn fetch_all(&self, sql: &str, values: &[&dyn TypedParameter])
    -> Result<Vec<Row>, Error>;
    /// Runs a query that returns one row. Any other number of rows is an error.
    async fn fetch_one(&self, sql: &str, values: &[&dyn TypedParameter]) -> Result<Row, Error>;
    /// Runs a query that returns at most one row.
    async fn fetch_opt(
        &self,
        sql: &str,
        values: &[&dyn TypedParameter],
    ) -> Result<Option<Row>, Error>;
    /// Runs a statement and returns the number of affected rows.
    async fn run_statement(&self, sql: &str, values: &[&dyn TypedParameter]) -> Result<u64, Error>;
}

impl TypedQuery for Client {
    async fn fetch_all(
        &self,
        sql: &str,
        values: &[&dyn TypedParameter],
    ) -> Result<Vec<Row>, Error> {
        self.query_typed(sql, &with_types(values)).await
    }

    async fn fetch_one(&self, sql: &str, values: &[&dyn TypedParameter]) -> Result<Row, Error> {
        self.query_typed_one(sql, &with_types(values)).await
    }

    async fn fetch_opt(
        &self,
        sql: &str,
        values: &[&dyn TypedParameter],
    ) -> Result<Option<Row>, Error> {
        self.query_typed_opt(sql, &with_types(values)).await
    }

    async fn run_statement(&self, sql: &str, values: &[&dyn TypedParameter]) -> Result<u64, Error> {
        self.execute_typed(sql, &with_types(values)).await
    }
}

type ValueAndType<'a> = (&'a (dyn ToSql + Sync), Type);

fn with_types<'a>(values: &[&'a dyn TypedParameter]) -> Vec<ValueAndType<'a>> {
    values.iter().map(|value| (*value as &(dyn ToSql + Sync), value.sql_type())).collect()
}

/// Runs queries that are sent in this order, each before the answer to the one before it. Returns
/// their results in the same order.
pub async fn send_in_order<F: Future>(queries: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut queries: Vec<Pin<Box<MaybeDone<F>>>> =
        queries.into_iter().map(|query| Box::pin(maybe_done(query))).collect();
    // The first poll of a query sends its message.
    poll_fn(|context| {
        for query in &mut queries {
            let _ = query.as_mut().poll(context);
        }
        Poll::Ready(())
    })
    .await;
    let mut results = Vec::with_capacity(queries.len());
    for mut query in queries {
        query.as_mut().await;
        results.extend(query.as_mut().take_output());
    }
    results
}
