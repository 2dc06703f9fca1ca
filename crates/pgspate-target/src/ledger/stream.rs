//! Streams of changes: the position up to which each stream is applied, and which process may
//! advance the position.
//!
//! The transaction that applies events also writes the position after these events. Only the
//! process with the newest fence may write the position. Opening a stream raises the fence, and so
//! stops every earlier process.

use std::hash::{BuildHasher, RandomState};

use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::job::ledger_error;
use super::{dropped_keys, identity, lock, schema, trust, unlogged};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, quote_literal};
use pgspate_base::numbers::counted;

/// A position in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// The number of events before the position.
    pub ordinal: u64,
    /// The position in the source's own format.
    pub source: String,
    /// A digest that identifies the records before the position.
    pub digest: String,
}

/// A stream that this process may advance.
#[derive(Debug, Clone)]
pub struct AppliedStream {
    name: String,
    partition: String,
    fence: i64,
    /// The fence that [`AppliedStream::reopen`] tries to set. A lost session may have set it.
    claimed_fence: Option<i64>,
    /// The position up to which events are applied.
    pub mark: StreamPosition,
}

/// A rejected event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The event's number in the stream.
    pub position: u64,
    /// The event's origin: a file, a slot, a topic.
    pub source: String,
    /// The line or offset in the origin.
    pub line: u64,
    /// The table that the event names.
    pub table: Option<String>,
    /// The SQLSTATE, if the server refused the event.
    pub sqlstate: Option<String>,
    /// Why the event was rejected.
    pub message: String,
    /// The event as `pgspate apply` reads it, or the record if it is not an event.
    pub payload: String,
}

/// A stream as `pgspate status` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct StreamStatus {
    /// The stream's name.
    pub stream: String,
    /// The partition; empty for a stream without partitions.
    pub partition: String,
    /// Number of events that are applied or rejected.
    pub events: i64,
    /// The position in the source's own format.
    pub position: String,
    /// Number of rejected events.
    pub dead_letters: i64,
    /// When the stream last advanced, in the session's time zone.
    pub updated: String,
    /// Whether a later server crash has emptied unlogged tables that the stream wrote to.
    pub emptied: bool,
}

const OPEN: &str = "\
update pgspate.stream set fence = coalesce($4, fence + 1)
where stream = $1 and partition = $2 and ($3::bigint is null or fence in ($3, $4))
returning fence, ordinal, source, digest";

const ADVANCE: &str = "\
update pgspate.stream
set ordinal = $5, source = $6, digest = $7, dead_letters = dead_letters + $8,
    updated = clock_timestamp()
where stream = $1 and partition = $2 and fence = $3 and ordinal = $4";

/// Writes the stream's row without a change, so that the commit has something to wait for.
const TOUCH: &str = "\
update pgspate.stream set updated = clock_timestamp()
where stream = $1 and partition = $2 and fence = $3 and ordinal = $4";

/// Returns the statement that advances a stream, unless keys are dropped of a table that the
/// transaction has written.
fn guarded_advance() -> String {
    format!("{ADVANCE} and not {}", dropped_keys::writes_without_keys_sql(0))
}

/// Returns a statement that advances a stream if `condition` is true, and returns a row if it did.
/// Does not advance the stream if keys are dropped of the only table that the transaction writes,
/// which is `table`, an OID in SQL. Its first eight parameters are those of
/// [`AppliedStream::move_parameters`].
pub fn advance_if_sql(table: &str, condition: &str) -> String {
    let is_without_keys = dropped_keys::is_without_keys_sql(table);
    format!("{ADVANCE} and not {is_without_keys} and {condition} returning 1")
}

/// A condition: the row of `pgspate.stream` is the stream in the parameters, at the position before
/// its move, and no other process has taken the stream over.
pub const IS_BEFORE_MOVE: &str = "stream = $1 and partition = $2 and fence = $3 and ordinal = $4";

/// Parameters of a statement that is sent before an earlier statement is answered.
pub type OwnedParameters = Vec<Box<dyn ToSql + Send + Sync>>;

/// The setting that marks a transaction which was sent as a whole. The statement that advances the
/// stream checks the setting, and so notices if the transaction did not begin.
pub const TRANSACTION_SETTING: &str = "pgspate.at";

const INSERT_DEAD_LETTERS: &str = "\
insert into pgspate.dead_letter
       (stream, partition, position, source, line, table_name, sqlstate, message, payload)
select $1, $2, * from unnest($3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[],
                             $8::text[], $9::text[])";

const LIST: &str = "\
select stream, partition, ordinal, source, dead_letters, updated::timestamptz(0)::text
from pgspate.stream order by stream, partition";

/// Takes a stream over from any other process. Creates the stream if it does not exist.
pub async fn open_stream(client: &Client, name: &str, partition: &str) -> Result<AppliedStream> {
    schema::ensure_ledger(client).await?;
    check_role(client, name, partition).await?;
    if let Some(stream) = raise_fence(client, name, partition, None, None).await? {
        return Ok(stream);
    }
    unlogged::release_stream(client, name).await?;
    let sql = "insert into pgspate.stream (stream, partition) values ($1, $2)";
    match client.run_statement(sql, &[&name, &partition]).await {
        Ok(_) => {}
        // Another process created the stream at the same time.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            check_role(client, name, partition).await?;
        }
        Err(error) => return Err(schema::with_grant_hint(ledger_error()(error))),
    }
    raise_fence(client, name, partition, None, None).await?.ok_or_else(taken_over_error)
}

/// Refuses a stream of an untrusted role, since that role controls the stream's position.
async fn check_role(client: &Client, name: &str, partition: &str) -> Result<()> {
    let row = format!(
        "pgspate.stream where stream = {} and partition = {}",
        quote_literal(name),
        quote_literal(partition)
    );
    let Some(role) = trust::untrusted_role(client, &row).await? else { return Ok(()) };
    let message = format!("stream \"{name}\" is applied by role \"{role}\"");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Apply the stream as \"{role}\", or name another stream with `--stream NAME`."
    )))
}

/// Locks the stream for as long as this session lives.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session has locked the stream.
pub async fn hold_stream(client: &Client, name: &str, partition: &str) -> Result<()> {
    let key = identity::digest_texts(["stream", name, partition]);
    lock::hold_lock(client, identity::lock_key(&key), "this stream").await
}

/// Reads the position of a stream; the beginning if the ledger does not know the stream. Changes
/// nothing.
pub async fn read_stream_position(
    client: &Client,
    name: &str,
    partition: &str,
) -> Result<StreamPosition> {
    if !schema::check_exists(client).await? {
        return Ok(StreamPosition::default());
    }
    let sql = "select ordinal, source, digest from pgspate.stream \
               where stream = $1 and partition = $2";
    let row = client.fetch_opt(sql, &[&name, &partition]).await;
    let row = row.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    Ok(row.map_or_else(StreamPosition::default, |row| StreamPosition {
        ordinal: row.get::<_, i64>(0).unsigned_abs(),
        source: row.get(1),
        digest: row.get(2),
    }))
}

/// Raises the fence of a stream and returns the stream. `None` if the stream does not exist, or if
/// `expected_fence` is given and the fence is neither `expected_fence` nor `claimed_fence`. The new
/// fence is `claimed_fence` if given.
async fn raise_fence(
    client: &Client,
    name: &str,
    partition: &str,
    expected_fence: Option<i64>,
    claimed_fence: Option<i64>,
) -> Result<Option<AppliedStream>> {
    let values: [&dyn TypedParameter; 4] = [&name, &partition, &expected_fence, &claimed_fence];
    let row = client.fetch_opt(OPEN, &values).await;
    let row = row.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    Ok(row.map(|row| AppliedStream {
        name: name.to_owned(),
        partition: partition.to_owned(),
        fence: row.get(0),
        claimed_fence: None,
        mark: StreamPosition {
            ordinal: row.get::<_, i64>(1).unsigned_abs(),
            source: row.get(2),
            digest: row.get(3),
        },
    }))
}

impl AppliedStream {
    /// Returns the stream's name in the ledger.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Locks the stream for as long as the session lives.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another session has locked the stream.
    pub async fn hold(&self, client: &Client) -> Result<()> {
        hold_stream(client, &self.name, &self.partition).await
    }

    /// Opens the stream again in a new session, and reads its position. The position is unchanged,
    /// or one of `pending` if the lost session has committed the batch before this position. Waits
    /// for a commit that may be in progress. After that the lost session can write nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another process has taken the stream over, or if the ledger has any
    /// other position. Then the database is not in the state in which this process left it.
    pub async fn reopen(&mut self, client: &Client, pending: &[&StreamPosition]) -> Result<()> {
        // If the answer is lost, this process must recognise the raised fence as its own. So it
        // raises the fence to a random number that no other process uses.
        let claimed = *self.claimed_fence.get_or_insert_with(|| {
            self.fence + 2 + i64::from(RandomState::new().hash_one(&self.name) as u32)
        });
        let (expected, claimed) = (Some(self.fence), Some(claimed));
        let reopened = raise_fence(client, &self.name, &self.partition, expected, claimed).await?;
        let reopened = reopened.ok_or_else(taken_over_error)?;
        if reopened.mark != self.mark && !pending.contains(&&reopened.mark) {
            return Err(position_changed_error(&self.mark, &reopened.mark));
        }
        *self = reopened;
        Ok(())
    }

    /// Advances the stream, as the last statement of the transaction that applies the events. The
    /// caller stores the new position in `mark` after the commit.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another process has taken the stream over.
    pub async fn advance(
        &self,
        client: &Client,
        to: &StreamPosition,
        letters: &[DeadLetter],
    ) -> Result<()> {
        if !letters.is_empty() {
            self.insert_dead_letters(client, letters).await?;
        }
        let numbers = [self.mark.ordinal, to.ordinal, letters.len() as u64].map(u64::cast_signed);
        match client
            .run_statement(&guarded_advance(), &self.values(to, &numbers))
            .await
            .map_err(ledger_error())?
        {
            1 => Ok(()),
            _ => Err(taken_over_error()),
        }
    }

    /// Returns the first statement of a transaction that is sent as a whole.
    pub fn mark_transaction_sql(&self) -> String {
        format!("set local {TRANSACTION_SETTING} = '{}'", self.mark.ordinal)
    }

    /// Returns the statement that advances the stream in a transaction that is sent as a whole. The
    /// caller prepares the statement for [`AppliedStream::advance_within`].
    pub fn advance_sql() -> String {
        format!(
            "with moved as ({} \
             and current_setting('{TRANSACTION_SETTING}', true) = ($4::bigint)::text returning 1) \
             select 1 / count(*)::int4 from moved",
            guarded_advance()
        )
    }

    /// Advances the stream, or fails the transaction. So the commit may be sent before the server
    /// answers. Also fails if the server refused to begin the transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another process has taken the stream over.
    pub async fn advance_within(
        &self,
        client: &Client,
        statement: &Statement,
        to: &StreamPosition,
    ) -> Result<()> {
        let numbers = [self.mark.ordinal, to.ordinal, 0].map(u64::cast_signed);
        let values = self.values(to, &numbers).map(|value| value as &(dyn ToSql + Sync));
        match client.query_one(statement, &values).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => {
                Err(taken_over_error())
            }
            Err(error) => Err(ledger_error()(error)),
        }
    }

    /// Returns why the stream was not advanced: another process has taken it over, or a load has
    /// dropped keys of a written table. Must run after the transaction.
    pub async fn explain(&self, client: &Client, error: Error) -> Error {
        let sql = "select exists (select from pgspate.stream \
                   where stream = $1 and partition = $2 and fence = $3)";
        let values: [&dyn TypedParameter; 3] = [&self.name, &self.partition, &self.fence];
        let is_ours = client.fetch_one(sql, &values).await.is_ok_and(|row| row.get(0));
        match dropped_keys::dropped_keys(client, None, 0).await {
            Ok(dropped) if is_ours && !dropped.is_empty() => dropped[0].to_error(),
            _ => error,
        }
    }

    /// Returns the parameters of a statement that moves the stream from one position to another.
    pub fn move_parameters(&self, from: &StreamPosition, to: &StreamPosition) -> OwnedParameters {
        let [before, after] = [from.ordinal, to.ordinal].map(u64::cast_signed);
        vec![
            Box::new(self.name.clone()),
            Box::new(self.partition.clone()),
            Box::new(self.fence),
            Box::new(before),
            Box::new(after),
            Box::new(to.source.clone()),
            Box::new(to.digest.clone()),
            Box::new(0_i64),
        ]
    }

    /// Waits until the commits of this session are on the disk. The stream is at the position `at`.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another process has taken the stream over.
    pub async fn wait_for_disk(&self, client: &Client, at: &StreamPosition) -> Result<()> {
        let ordinal = at.ordinal.cast_signed();
        let values: [&dyn TypedParameter; 4] = [&self.name, &self.partition, &self.fence, &ordinal];
        match client.run_statement(TOUCH, &values).await.map_err(ledger_error())? {
            1 => Ok(()),
            _ => Err(taken_over_error()),
        }
    }

    /// Returns the parameters of the statement that advances the stream. `numbers` are the ordinals
    /// before and after, and the number of new dead letters.
    fn values<'a>(
        &'a self,
        to: &'a StreamPosition,
        numbers: &'a [i64; 3],
    ) -> [&'a dyn TypedParameter; 8] {
        let [from, ordinal, letters] = numbers;
        let (name, partition) = (&self.name, &self.partition);
        [name, partition, &self.fence, from, ordinal, &to.source, &to.digest, letters]
    }

    async fn insert_dead_letters(&self, client: &Client, letters: &[DeadLetter]) -> Result<()> {
        let numbers = |field: fn(&DeadLetter) -> u64| -> Vec<i64> {
            letters.iter().map(|letter| field(letter).cast_signed()).collect()
        };
        // A text value cannot contain a zero byte.
        let texts = |field: fn(&DeadLetter) -> &str| -> Vec<String> {
            letters.iter().map(|letter| field(letter).replace('\0', "\\0")).collect()
        };
        let tables: Vec<_> = letters.iter().map(|letter| letter.table.as_deref()).collect();
        let codes: Vec<_> = letters.iter().map(|letter| letter.sqlstate.as_deref()).collect();
        let values: [&dyn TypedParameter; 9] = [
            &self.name,
            &self.partition,
            &numbers(|letter| letter.position),
            &texts(|letter| &letter.source),
            &numbers(|letter| letter.line),
            &tables,
            &codes,
            &texts(|letter| &letter.message),
            &texts(|letter| &letter.payload),
        ];
        client.run_statement(INSERT_DEAD_LETTERS, &values).await.map(drop).map_err(ledger_error())
    }
}

fn taken_over_error() -> Error {
    Error::new(ErrorKind::Ledger, "the stream was taken over by another pgspate").hint(
        "Only one process applies a stream at a time. For files and topics, it is the process \
         started last. For a slot, it is the process that reads the slot.",
    )
}

/// Forgets a stream without rejected events, whose source will never send its events again.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn forget_stream(client: &Client, name: &str) -> Result<()> {
    let sql = "delete from pgspate.stream where stream = $1 and dead_letters = 0";
    match client.run_statement(sql, &[&name]).await.map_err(ledger_error())? {
        0 => Ok(()),
        _ => unlogged::release_stream(client, name).await,
    }
}

fn position_changed_error(from: &StreamPosition, to: &StreamPosition) -> Error {
    let describe = |position: &StreamPosition| match position.source.as_str() {
        "" => "its beginning".to_owned(),
        source => format!("{source} ({})", counted(position.ordinal, "event")),
    };
    let message = format!(
        "the stream was applied up to {}, but the ledger is now at {}",
        describe(from),
        describe(to)
    );
    Error::new(ErrorKind::Ledger, message).hint(
        "The target database was restored to an older state, or failed over to a server that was \
         behind. Run the same command again. It continues at the ledger's position, if the \
         source still has the events after it.",
    )
}

/// Reads all streams that were applied to this database. Empty without a ledger.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn list_streams(client: &Client) -> Result<Vec<StreamStatus>> {
    if !schema::check_exists(client).await? {
        return Ok(Vec::new());
    }
    let rows = client.fetch_all(LIST, &[]).await.map_err(ledger_error())?;
    let (_, emptied) = unlogged::emptied_writers(client).await?;
    let status = |row: &tokio_postgres::Row| StreamStatus {
        stream: row.get(0),
        partition: row.get(1),
        events: row.get(2),
        position: row.get(3),
        dead_letters: row.get(4),
        updated: row.get(5),
        emptied: emptied.contains(&row.get(0)),
    };
    Ok(rows.iter().map(status).collect())
}

#[cfg(test)]
mod tests {
    use pgspate_embedded::testing;

    use super::*;
    use crate::connect::{Dsn, Environment};

    /// Runs a test with a session in a new database.
    fn run_with_session(test: impl AsyncFnOnce(&Client)) {
        let db = testing::database();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let connection = dsn.connect("test").await.unwrap();
            test(&connection.client).await;
            connection.close().await;
        });
    }

    #[test]
    fn only_the_last_opener_advances_a_stream_within_its_transaction() {
        run_with_session(async |client| {
            let mut stream = open_stream(client, "s", "").await.unwrap();
            let advance = client.prepare(&AppliedStream::advance_sql()).await.unwrap();
            let to =
                StreamPosition { ordinal: 5, source: "five".to_owned(), digest: "d".to_owned() };
            // The beginning of the transaction was refused.
            let refused = stream.advance_within(client, &advance, &to).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Ledger);
            assert_eq!(
                read_stream_position(client, "s", "").await.unwrap(),
                StreamPosition::default()
            );
            let begin = format!("begin; {}", stream.mark_transaction_sql());
            client.batch_execute(&begin).await.unwrap();
            stream.advance_within(client, &advance, &to).await.unwrap();
            client.batch_execute("commit").await.unwrap();
            assert_eq!(read_stream_position(client, "s", "").await.unwrap(), to);
            stream.mark = to.clone();
            open_stream(client, "s", "").await.unwrap();
            let begin = format!("begin; {}", stream.mark_transaction_sql());
            client.batch_execute(&begin).await.unwrap();
            let further = StreamPosition { ordinal: 6, ..to.clone() };
            let error = stream.advance_within(client, &advance, &further).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Ledger);
            // The commit that follows the failed statement commits nothing.
            client.batch_execute("commit").await.unwrap();
            assert_eq!(read_stream_position(client, "s", "").await.unwrap(), to);
        });
    }

    #[test]
    fn a_transaction_does_not_advance_if_keys_of_its_table_are_dropped() {
        run_with_session(async |client| {
            client
                .batch_execute("create table public.t (id int); create table public.other (id int)")
                .await
                .unwrap();
            let stream = open_stream(client, "s", "").await.unwrap();
            let advance = client.prepare(&AppliedStream::advance_sql()).await.unwrap();
            let record = "insert into pgspate.change \
                          (job, ordinal, table_oid, kind, object, steps, done, beside) \
                          values (7, 1, 'public.t'::regclass, 'primary key', 't_pkey', '{x}', 0, \
                                  false)";
            client.batch_execute(record).await.unwrap();
            let to = StreamPosition { ordinal: 5, ..StreamPosition::default() };
            for (write, done, is_refused) in [
                ("insert into public.t values (1)", 0, true),
                ("insert into public.other values (1)", 0, false),
                ("insert into public.t values (1)", 1, false),
            ] {
                let begin = format!(
                    "update pgspate.change set done = {done}; begin; {}; {write}",
                    stream.mark_transaction_sql()
                );
                client.batch_execute(&begin).await.unwrap();
                let advanced = stream.advance_within(client, &advance, &to).await;
                assert_eq!(advanced.is_err(), is_refused, "{write}, {done} steps undone");
                client.batch_execute("rollback").await.unwrap();
            }
        });
    }
}
