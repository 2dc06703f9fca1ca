//! The exchange: one short transaction in which the table goes and its shadow gets its name.
//!
//! Under the lock the two are compared in everything that the catalog knows; unless they agree,
//! nothing happens.

use std::fmt;

use tokio_postgres::Client;

use super::BEGIN;
use super::recipe::{self, ShadowNames, write};
use crate::{Error, ErrorKind};
use pgspate_target::ledger::{JobId, shadow};
use pgspate_target::likeness::{differences, likeness};
use pgspate_target::{Ask, ServerRefusal, server_error};

/// How long the trial waits for a lock.
const TRIAL_LOCK: &str = "set local lock_timeout = '1s'";

/// Why there is no exchange.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The server, or the connection.
    Server(tokio_postgres::Error),
    /// The two differ in these properties.
    Differs(Vec<String>),
    /// The table is not what it was when the load was planned.
    Changed(String),
    /// The ledger, or the user.
    Other(Error),
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExchangeError::Server(error) => match error.as_db_error() {
                Some(said) => write!(f, "{}", ServerRefusal::new(said)),
                None => write!(f, "{error}"),
            },
            ExchangeError::Differs(what) => write!(f, "{}", what.join(", ")),
            ExchangeError::Changed(why) => f.write_str(why),
            ExchangeError::Other(error) => write!(f, "{error}"),
        }
    }
}

impl From<tokio_postgres::Error> for ExchangeError {
    fn from(error: tokio_postgres::Error) -> ExchangeError {
        ExchangeError::Server(error)
    }
}

impl ExchangeError {
    pub(super) fn into_error(self, message: String) -> Error {
        let cause = match self {
            ExchangeError::Server(error) => return server_error(message)(error),
            ExchangeError::Other(error) => return error,
            ExchangeError::Differs(what) => {
                format!("the table was changed meanwhile: {}", what.join(", "))
            }
            ExchangeError::Changed(why) => format!("the table was changed meanwhile: {why}"),
        };
        Error::new(ErrorKind::Plan, message)
            .because(Error::new(ErrorKind::Plan, cause))
            .hint("Run the same command again; it begins anew.")
    }
}

/// Makes the shadow of a table in this state, for good.
pub(super) async fn make(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
    state: &str,
) -> Result<(), ExchangeError> {
    client.batch_execute(BEGIN).await?;
    let made = make_within(client, job, names, state).await;
    let end = if made.is_ok() { "commit" } else { "rollback" };
    client.batch_execute(end).await?;
    made
}

async fn make_within(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
    state: &str,
) -> Result<(), ExchangeError> {
    client.batch_execute(&shadow::make_sql(job, &names.table, state)).await?;
    run(client, write(client, names, recipe::MAKE).await?).await?;
    for it in recipe::identities(client, names).await? {
        let recipe::IdentitySequences { schema: old_schema, name, new_name, ty } = &it;
        let schema = &names.schema;
        if name != new_name {
            let sql = format!("alter sequence {schema}.{new_name} rename to {name}");
            client.batch_execute(&sql).await?;
        }
        // Which a copy does not take on. Numbers go on from where they are.
        let sql = format!("alter sequence {schema}.{name} as {ty}");
        client.batch_execute(&sql).await?;
        let new = format!("{schema}.{name}").replace('\'', "''");
        let sql = format!("select setval('{new}', last_value, is_called) from {old_schema}.{name}");
        client.ask_all(&sql, &[]).await?;
    }
    Ok(())
}

/// Goes through everything with a shadow that has no rows, and rolls back.
pub(super) async fn try_out(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
    server_version: u32,
) -> Result<(), ExchangeError> {
    client.batch_execute(BEGIN).await?;
    let tried = async {
        client.batch_execute(TRIAL_LOCK).await?;
        make_within(client, job, names, "").await?;
        run(client, write(client, names, recipe::BUILD).await?).await?;
        run(client, write(client, names, recipe::CONSTRAIN).await?).await?;
        lock(client, names).await?;
        exchange(client, names, server_version).await.map(drop)
    };
    let tried = tried.await;
    client.batch_execute("rollback").await?;
    tried
}

/// Shuts everybody out of the table.
pub(super) async fn lock(client: &Client, names: &ShadowNames) -> Result<(), ExchangeError> {
    let sql = format!("lock table {} in access exclusive mode", names.table);
    client.batch_execute(&sql).await?;
    let look = "select to_regclass($1)::oid is not distinct from $2";
    if client.ask_one(look, &[&names.table, &names.oid]).await?.get(0) {
        return Ok(());
    }
    Err(ExchangeError::Changed("it is another table by that name".to_owned()))
}

/// Puts the shadow in the place of the table, which is locked. The shadow's oid.
pub(super) async fn exchange(
    client: &Client,
    names: &ShadowNames,
    server_version: u32,
) -> Result<u32, ExchangeError> {
    let before = likeness(client, names.oid, server_version).await?;
    let detach = write(client, names, recipe::DETACH).await?;
    let dress = write(client, names, recipe::DRESS).await?;
    for (nth, it) in recipe::identities(client, names).await?.iter().enumerate() {
        go_on_counting(client, names, it, nth).await?;
    }
    run(client, detach).await?;
    let look = "select to_regclass($1)::oid, \
                (select quote_ident(nspname) from pg_class c join pg_namespace n \
                 on n.oid = relnamespace where c.oid = $2)";
    let row = client.ask_one(look, &[&names.shadow, &names.oid]).await?;
    let (new, schema): (Option<u32>, String) = (row.get(0), row.get(1));
    let new = new.ok_or_else(|| ExchangeError::Changed("its shadow is gone".to_owned()))?;
    let (table, shadow) = (&names.table, &names.shadow);
    let swap = format!("drop table {table}; alter table {shadow} set schema {schema}");
    client.batch_execute(&swap).await?;
    run(client, dress).await?;
    let after = likeness(client, new, server_version).await?;
    if before != after {
        let mut what = differences(&before, &after);
        what.truncate(5);
        return Err(ExchangeError::Differs(what));
    }
    client.batch_execute(&format!("drop schema {}", names.schema)).await?;
    Ok(new)
}

/// Has the shadow's identity column go on with whichever number is further. The old sequence gets
/// another name, which locks it: nobody can draw a number from it any more.
async fn go_on_counting(
    client: &Client,
    names: &ShadowNames,
    it: &recipe::IdentitySequences,
    nth: usize,
) -> Result<(), ExchangeError> {
    let recipe::IdentitySequences { schema, name, new_name, .. } = it;
    let locked = format!("pgspate_old_{nth}");
    client.batch_execute(&format!("alter sequence {schema}.{name} rename to {locked}")).await?;
    let new = format!("{}.{new_name}", names.schema);
    let literal = new.replace('\'', "''");
    let sql = format!(
        "select setval('{literal}', last_value, is_called) from ( \
             select last_value, is_called from ( \
                 select last_value, is_called from {schema}.{locked} \
                 union all select last_value, is_called from {new}) both_of_them, pg_sequence \
             where seqrelid = '{literal}'::regclass \
             order by sign(seqincrement) * last_value desc, is_called desc limit 1) further"
    );
    client.ask_all(&sql, &[]).await?;
    Ok(())
}

/// Runs statements that the server has written.
pub(super) async fn run(client: &Client, all: Vec<Option<String>>) -> Result<(), ExchangeError> {
    for sql in all {
        let Some(sql) = sql else {
            let why = "the server describes an index or statistics in an unknown way";
            return Err(ExchangeError::Changed(why.to_owned()));
        };
        client.batch_execute(&sql).await?;
    }
    Ok(())
}
