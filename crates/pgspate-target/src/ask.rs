//! Questions that say of which types their parameters are.
//!
//! Such a question is one round trip, where a statement that is prepared first is two, and leaves
//! nothing behind in the session. Questions that are polled together travel together, and are
//! answered in their order.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

/// A parameter that knows its type in SQL.
pub trait Parameter: ToSql + Sync {
    /// Its type in SQL.
    fn sql_type(&self) -> Type;
}

macro_rules! parameters {
    ($($rust:ty => $sql:ident, $array:ident;)*) => {$(
        impl Parameter for $rust {
            fn sql_type(&self) -> Type {
                Type::$sql
            }
        }
        impl Parameter for Option<$rust> {
            fn sql_type(&self) -> Type {
                Type::$sql
            }
        }
        impl Parameter for Vec<$rust> {
            fn sql_type(&self) -> Type {
                Type::$array
            }
        }
        impl Parameter for Vec<Option<$rust>> {
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

/// Asks a server.
#[allow(async_fn_in_trait, reason = "it is for `Client` alone, whose futures can be sent")]
pub trait Ask {
    /// All rows of the answer.
    async fn ask_all(&self, sql: &str, of: &[&dyn Parameter]) -> Result<Vec<Row>, Error>;
    /// The one row; an error if there is another number of them.
    async fn ask_one(&self, sql: &str, of: &[&dyn Parameter]) -> Result<Row, Error>;
    /// The row, if there is one.
    async fn ask_opt(&self, sql: &str, of: &[&dyn Parameter]) -> Result<Option<Row>, Error>;
    /// Has something done; how many rows it was done with.
    async fn tell(&self, sql: &str, of: &[&dyn Parameter]) -> Result<u64, Error>;
}

impl Ask for Client {
    async fn ask_all(&self, sql: &str, of: &[&dyn Parameter]) -> Result<Vec<Row>, Error> {
        self.query_typed(sql, &typed(of)).await
    }

    async fn ask_one(&self, sql: &str, of: &[&dyn Parameter]) -> Result<Row, Error> {
        self.query_typed_one(sql, &typed(of)).await
    }

    async fn ask_opt(&self, sql: &str, of: &[&dyn Parameter]) -> Result<Option<Row>, Error> {
        self.query_typed_opt(sql, &typed(of)).await
    }

    async fn tell(&self, sql: &str, of: &[&dyn Parameter]) -> Result<u64, Error> {
        self.execute_typed(sql, &typed(of)).await
    }
}

type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

fn typed<'a>(of: &[&'a dyn Parameter]) -> Vec<Typed<'a>> {
    of.iter().map(|it| (*it as &(dyn ToSql + Sync), it.sql_type())).collect()
}
