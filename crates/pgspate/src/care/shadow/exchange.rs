//! The exchange: one short transaction that drops the table and gives its name to the shadow.
//!
//! Under the lock, both tables are compared in every property of the catalog. If they differ,
//! nothing is changed.

use std::fmt;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::begin_sql;
use super::build::no_timeouts_sql;
use super::recipe::{self, ShadowNames, generate};
use crate::{Error, ErrorKind};
use pgspate_target::ledger::{self, JobId, shadow};
use pgspate_target::table_properties::{differing_properties, table_properties};
use pgspate_target::{ServerRefusal, TypedQuery, ends_session, server_error};

/// Lock timeout while the exchange is tried with an empty shadow.
const TRIAL_LOCK: &str = "set local lock_timeout = '1s'";

/// The reason why the exchange failed.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The server, or the connection.
    Server(tokio_postgres::Error),
    /// The table and its shadow differ in these properties.
    Differs(Vec<String>),
    /// The table has changed since the load was planned.
    Changed(String),
    /// An error of the ledger, or the user's request to stop.
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
                format!("the table was changed during the load: {}", what.join(", "))
            }
            ExchangeError::Changed(why) => format!("the table was changed during the load: {why}"),
        };
        Error::new(ErrorKind::Plan, message)
            .because(Error::new(ErrorKind::Plan, cause))
            .hint("Run the same command again; it starts from the beginning.")
    }
}

/// Creates the table's shadow, records the table's `state` with it, and commits.
pub(super) async fn create_shadow(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
    state: &str,
    checks_keys: bool,
) -> Result<(), ExchangeError> {
    client.batch_execute(&begin_sql()).await?;
    let made = async {
        create_in_transaction(client, job, names, state).await?;
        if checks_keys {
            for sql in [recipe::BUILD_INDEXES, recipe::ADD_CONSTRAINTS] {
                run(client, recipe::generate_keys(client, names, sql).await?).await?;
            }
        }
        Ok(())
    };
    let made = made.await;
    let end = if made.is_ok() { "commit" } else { "rollback" };
    client.batch_execute(end).await?;
    made
}

/// Creates the shadow in the open transaction.
pub(super) async fn create_in_transaction(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
    state: &str,
) -> Result<(), ExchangeError> {
    client.batch_execute(&shadow::create_schema_sql(job, &names.table, state)).await?;
    run(client, generate(client, names, recipe::CREATE).await?).await?;
    for it in recipe::identities(client, names).await? {
        let recipe::IdentitySequences { schema: old_schema, name, new_name, ty } = &it;
        let schema = &names.schema;
        if name != new_name {
            let sql = format!("alter sequence {schema}.{new_name} rename to {name}");
            client.batch_execute(&sql).await?;
        }
        // LIKE does not copy the type and the position of a sequence.
        let sql = format!("alter sequence {schema}.{name} as {ty}");
        client.batch_execute(&sql).await?;
        let new = format!("{schema}.{name}").replace('\'', "''");
        let sql = format!("select setval('{new}', last_value, is_called) from {old_schema}.{name}");
        client.fetch_all(&sql, &[]).await?;
    }
    Ok(())
}

/// Tries the exchange: runs all steps with an empty shadow, and rolls back.
pub(super) async fn try_exchange(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
    server_version: u32,
) -> Result<(), ExchangeError> {
    client.batch_execute(&begin_sql()).await?;
    let tried = async {
        client.batch_execute(&format!("{}; {TRIAL_LOCK}", no_timeouts_sql())).await?;
        create_in_transaction(client, job, names, "").await?;
        run(client, generate(client, names, recipe::BUILD_INDEXES).await?).await?;
        run(client, generate(client, names, recipe::ADD_CONSTRAINTS).await?).await?;
        lock(client, job, names).await?;
        exchange(client, names, server_version).await.map(drop)
    };
    let tried = tried.await;
    client.batch_execute("rollback").await?;
    tried
}

/// Returns why the trial says that the tables cannot be exchanged, if it does. A lock that blocks
/// the trial may be free when it is needed.
///
/// # Errors
/// The error that ended the session, or that is not about the tables: a lack of resources, or a
/// cancelled statement.
pub(super) fn trial_refusal(
    tried: Result<(), ExchangeError>,
) -> Result<Option<ExchangeError>, tokio_postgres::Error> {
    match tried {
        Err(ExchangeError::Server(error)) if error.code().is_none_or(ends_session) => Err(error),
        Err(ExchangeError::Server(error))
            if [&SqlState::LOCK_NOT_AVAILABLE, &SqlState::T_R_DEADLOCK_DETECTED]
                .map(Some)
                .contains(&error.code()) =>
        {
            Ok(None)
        }
        Err(ExchangeError::Server(error))
            if error.code().is_some_and(|it| ["53", "57", "58"].contains(&&it.code()[..2])) =>
        {
            Err(error)
        }
        tried => Ok(tried.err()),
    }
}

/// Locks the table exclusively, for the exchange by `job`.
///
/// # Errors
/// [`ExchangeError::Changed`] if another table has the table's name by now. The same if another job
/// has dropped indexes or changed options of the table. The shadow would lack them, and the ledger
/// would forget them with the old table. The same if a job of another role writes to the table: it
/// would lose its table. The server's error, for example if the lock is not granted
/// in time.
pub(super) async fn lock(
    client: &Client,
    job: JobId,
    names: &ShadowNames,
) -> Result<(), ExchangeError> {
    let sql = format!("lock table {} in access exclusive mode", names.table);
    client.batch_execute(&sql).await?;
    let look = "select to_regclass($1)::oid is not distinct from $2";
    if !client.fetch_one(look, &[&names.table, &names.oid]).await?.get::<_, bool>(0) {
        return Err(ExchangeError::Changed("another table has its name now".to_owned()));
    }
    let is_outstanding = ledger::has_outstanding_on(client, names.oid, job.0).await;
    if is_outstanding.map_err(ExchangeError::Other)? {
        let why = "another load has not put back its indexes and options";
        return Err(ExchangeError::Changed(why.to_owned()));
    }
    let other = ledger::fleet_job_of_other_role(client, names.oid).await;
    other.map_err(ExchangeError::Other)?.map_or(Ok(()), |why| Err(ExchangeError::Changed(why)))
}

/// Replaces the locked table by its shadow. Returns the shadow's oid.
pub(super) async fn exchange(
    client: &Client,
    names: &ShadowNames,
    server_version: u32,
) -> Result<u32, ExchangeError> {
    let before = table_properties(client, names.oid, server_version).await?;
    let detach = generate(client, names, recipe::DETACH_SEQUENCES).await?;
    let properties = generate(client, names, recipe::ADD_PROPERTIES).await?;
    for (nth, it) in recipe::identities(client, names).await?.iter().enumerate() {
        continue_identity(client, names, it, nth).await?;
    }
    run(client, detach).await?;
    let look = "select to_regclass($1)::oid, \
                (select quote_ident(nspname) from pg_class c join pg_namespace n \
                 on n.oid = relnamespace where c.oid = $2)";
    let row = client.fetch_one(look, &[&names.shadow, &names.oid]).await?;
    let (new, schema): (Option<u32>, String) = (row.get(0), row.get(1));
    let new =
        new.ok_or_else(|| ExchangeError::Changed("its shadow no longer exists".to_owned()))?;
    let (table, shadow) = (&names.table, &names.shadow);
    let swap = format!("drop table {table}; alter table {shadow} set schema {schema}");
    client.batch_execute(&swap).await?;
    run(client, properties).await?;
    let after = table_properties(client, new, server_version).await?;
    if before != after {
        let mut what = differing_properties(&before, &after);
        what.truncate(5);
        return Err(ExchangeError::Differs(what));
    }
    client.batch_execute(&format!("drop schema {}", names.schema)).await?;
    Ok(new)
}

/// Sets the shadow's identity sequence to the furthest number of both sequences. The old sequence
/// is renamed, which locks it, so that no session can draw another number from it.
async fn continue_identity(
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
    client.fetch_all(&sql, &[]).await?;
    Ok(())
}

/// Runs statements that a query of `recipe` has generated.
pub(super) async fn run(client: &Client, all: Vec<Option<String>>) -> Result<(), ExchangeError> {
    for sql in all {
        let Some(sql) = sql else {
            let why = "an index or statistics have a definition that pgspate does not know";
            return Err(ExchangeError::Changed(why.to_owned()));
        };
        client.batch_execute(&sql).await?;
    }
    Ok(())
}
