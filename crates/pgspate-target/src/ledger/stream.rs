//! Streams of changes: how far each has been applied, and by whom.
//!
//! The position is written by the transaction that applies the events before it, and by nobody who
//! has not the newest fence: whoever opens a stream raises that, and so ends all who had it before.

use std::hash::{BuildHasher, RandomState};

use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::job::failed;
use super::{bound, identity, keys, lock, schema, trust};
use crate::{Ask, Error, ErrorKind, Parameter, Result, quote_literal};

/// A place in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    /// Events before it.
    pub ordinal: u64,
    /// The source's own word for it.
    pub source: String,
    /// Tells the records before it from others.
    pub digest: String,
}

/// A stream that this process may advance.
#[derive(Debug, Clone)]
pub struct Stream {
    name: String,
    partition: String,
    fence: i64,
    /// The fence that a session which was lost may have raised it to.
    claimed: Option<i64>,
    /// Up to here its events are applied.
    pub mark: Mark,
}

/// An event that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its ordinal in the stream.
    pub position: u64,
    /// Where it came from: a file, a slot, a topic.
    pub source: String,
    /// The line or offset there.
    pub line: u64,
    /// The table that it names.
    pub table: Option<String>,
    /// The SQLSTATE of the refusal, if the server refused it.
    pub sqlstate: Option<String>,
    /// Why it was set aside.
    pub message: String,
    /// The event, as `pgspate apply` reads it; or the record, where it is no event.
    pub payload: String,
}

/// A stream as `pgspate status` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct StreamStatus {
    /// Its name.
    pub stream: String,
    /// Which part of it; empty for a stream of one part.
    pub partition: String,
    /// Events that are applied or set aside.
    pub events: i64,
    /// Where that is, in the source's words.
    pub position: String,
    /// Events that were set aside.
    pub dead_letters: i64,
    /// When it last advanced, in the session's time zone.
    pub updated: String,
    /// The server has crashed since, and has emptied the unlogged tables that it wrote to.
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

/// What moves a stream on, unless keys of a table are down that the transaction has written.
fn guarded_advance() -> String {
    format!("{ADVANCE} and not {}", keys::is_down_sql(0))
}

/// What a transaction is called that moves a stream on without looking first whether it began.
pub const TRANSACTION: &str = "pgspate.at";

const BURY: &str = "\
insert into pgspate.dead_letter
       (stream, partition, position, source, line, table_name, sqlstate, message, payload)
select $1, $2, * from unnest($3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[],
                             $8::text[], $9::text[])";

const LIST: &str = "\
select stream, partition, ordinal, source, dead_letters, updated::timestamptz(0)::text
from pgspate.stream order by stream, partition";

/// Takes a stream over from whoever had it, and makes it if there is none of that name.
pub async fn open_stream(client: &Client, name: &str, partition: &str) -> Result<Stream> {
    schema::ensure(client).await?;
    check_role(client, name, partition).await?;
    if let Some(stream) = take(client, name, partition, None, None).await? {
        return Ok(stream);
    }
    bound::release_stream(client, name).await?;
    let sql = "insert into pgspate.stream (stream, partition) values ($1, $2)";
    match client.tell(sql, &[&name, &partition]).await {
        Ok(_) => {}
        // Another process made it at the same time.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            check_role(client, name, partition).await?;
        }
        Err(error) => return Err(schema::refused(failed()(error))),
    }
    take(client, name, partition, None, None).await?.ok_or_else(fenced)
}

/// Refuses a stream of a role that is not to be trusted: that role says how far it is applied.
async fn check_role(client: &Client, name: &str, partition: &str) -> Result<()> {
    let row = format!(
        "pgspate.stream where stream = {} and partition = {}",
        quote_literal(name),
        quote_literal(partition)
    );
    let Some(role) = trust::doubtful_role(client, &row).await? else { return Ok(()) };
    let message = format!("stream \"{name}\" is applied by role \"{role}\"");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Apply it as \"{role}\", or give this one a name of its own with `--stream NAME`."
    )))
}

/// Lets no other session hold the stream as long as this one lives.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when another session does.
pub async fn hold_stream(client: &Client, name: &str, partition: &str) -> Result<()> {
    let key = identity::digest(["stream", name, partition]);
    lock::hold_for(client, identity::lock_key(&key), "this stream").await
}

/// Up to where a stream is applied; the beginning of one that is not known. Changes nothing.
pub async fn read_mark(client: &Client, name: &str, partition: &str) -> Result<Mark> {
    if !schema::exists(client).await? {
        return Ok(Mark::default());
    }
    let sql = "select ordinal, source, digest from pgspate.stream \
               where stream = $1 and partition = $2";
    let row = client.ask_opt(sql, &[&name, &partition]).await;
    let row = row.map_err(|error| schema::refused(failed()(error)))?;
    Ok(row.map_or_else(Mark::default, |row| Mark {
        ordinal: row.get::<_, i64>(0).unsigned_abs(),
        source: row.get(1),
        digest: row.get(2),
    }))
}

async fn take(
    client: &Client,
    name: &str,
    partition: &str,
    fence: Option<i64>,
    claims: Option<i64>,
) -> Result<Option<Stream>> {
    let row = client.ask_opt(OPEN, &[&name, &partition, &fence, &claims]).await;
    let row = row.map_err(|error| schema::refused(failed()(error)))?;
    Ok(row.map(|row| Stream {
        name: name.to_owned(),
        partition: partition.to_owned(),
        fence: row.get(0),
        claimed: None,
        mark: Mark {
            ordinal: row.get::<_, i64>(1).unsigned_abs(),
            source: row.get(2),
            digest: row.get(3),
        },
    }))
}

impl Stream {
    /// What the ledger calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets nobody else hold it as long as the session lives.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when another session does.
    pub async fn hold(&self, client: &Client) -> Result<()> {
        hold_stream(client, &self.name, &self.partition).await
    }

    /// In a new session: where the stream is now, which is where it was or, when a lost session
    /// has committed what it had in hand, at `pending`. Waits for what that may still be
    /// committing, and lets it do nothing after that.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when the stream is another process's now, or anywhere else: then
    /// this is not the state of the database in which it was left.
    pub async fn reopen(&mut self, client: &Client, pending: Option<&Mark>) -> Result<()> {
        // The answer may be lost, and must then not pass for another process's doing: nobody else
        // raises it to this number.
        let claims = *self.claimed.get_or_insert_with(|| {
            self.fence + 2 + i64::from(RandomState::new().hash_one(&self.name) as u32)
        });
        let (fence, claims) = (Some(self.fence), Some(claims));
        let taken = take(client, &self.name, &self.partition, fence, claims).await?;
        let taken = taken.ok_or_else(fenced)?;
        if taken.mark != self.mark && Some(&taken.mark) != pending {
            return Err(moved(&self.mark, &taken.mark));
        }
        *self = taken;
        Ok(())
    }

    /// Moves it on; the last statement of the transaction that applies the events. The caller notes
    /// the new mark when that has committed.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when the stream is another process's now.
    pub async fn advance(&self, client: &Client, to: &Mark, letters: &[DeadLetter]) -> Result<()> {
        if !letters.is_empty() {
            self.bury(client, letters).await?;
        }
        let numbers = [self.mark.ordinal, to.ordinal, letters.len() as u64].map(u64::cast_signed);
        match client.tell(&guarded_advance(), &self.values(to, &numbers)).await.map_err(failed())? {
            1 => Ok(()),
            _ => Err(fenced()),
        }
    }

    /// Of a transaction that is sent as a whole: what is to be run at its beginning.
    pub fn call_transaction(&self) -> String {
        format!("set local {TRANSACTION} = '{}'", self.mark.ordinal)
    }

    /// What moves the stream on in such a transaction, to be prepared for
    /// [`Stream::advance_within`].
    pub fn advance_sql() -> String {
        format!(
            "with moved as ({} \
             and current_setting('{TRANSACTION}', true) = ($4::bigint)::text returning 1) \
             select 1 / count(*)::int4 from moved",
            guarded_advance()
        )
    }

    /// Moves it on, or fails the transaction: the commit may be sent before the answer is known.
    /// Fails also where there is no transaction, as its beginning was refused.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when the stream is another process's now.
    pub async fn advance_within(
        &self,
        client: &Client,
        statement: &Statement,
        to: &Mark,
    ) -> Result<()> {
        let numbers = [self.mark.ordinal, to.ordinal, 0].map(u64::cast_signed);
        let values = self.values(to, &numbers).map(|it| it as &(dyn ToSql + Sync));
        match client.query_one(statement, &values).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => Err(fenced()),
            Err(error) => Err(failed()(error)),
        }
    }

    /// Why the stream was not moved on: another process has it, or else a load has dropped keys of
    /// a table that was written. To be asked when the transaction is over.
    pub async fn explain(&self, client: &Client, error: Error) -> Error {
        let sql = "select exists (select from pgspate.stream \
                   where stream = $1 and partition = $2 and fence = $3)";
        let values: [&dyn Parameter; 3] = [&self.name, &self.partition, &self.fence];
        let is_ours = client.ask_one(sql, &values).await.is_ok_and(|row| row.get(0));
        match keys::keys_down(client, None, 0).await {
            Ok(down) if is_ours && !down.is_empty() => down[0].refuse(),
            _ => error,
        }
    }

    /// The statement's parameters: `numbers` are the ordinals before and after, and dead letters.
    fn values<'a>(&'a self, to: &'a Mark, numbers: &'a [i64; 3]) -> [&'a dyn Parameter; 8] {
        let [from, ordinal, letters] = numbers;
        let (name, partition) = (&self.name, &self.partition);
        [name, partition, &self.fence, from, ordinal, &to.source, &to.digest, letters]
    }

    async fn bury(&self, client: &Client, letters: &[DeadLetter]) -> Result<()> {
        let numbers = |of: fn(&DeadLetter) -> u64| -> Vec<i64> {
            letters.iter().map(|letter| of(letter).cast_signed()).collect()
        };
        // Text cannot hold a zero byte.
        let texts = |of: fn(&DeadLetter) -> &str| -> Vec<String> {
            letters.iter().map(|letter| of(letter).replace('\0', "\\0")).collect()
        };
        let tables: Vec<_> = letters.iter().map(|letter| letter.table.as_deref()).collect();
        let codes: Vec<_> = letters.iter().map(|letter| letter.sqlstate.as_deref()).collect();
        let values: [&dyn Parameter; 9] = [
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
        client.tell(BURY, &values).await.map(drop).map_err(failed())
    }
}

fn fenced() -> Error {
    Error::new(ErrorKind::Ledger, "the stream was taken over by another pgspate").hint(
        "One process applies a stream at a time: of files and topics the one that was started \
         last, of a slot the one that reads it.",
    )
}

/// Forgets a stream of which no event was set aside: whose events nobody will give again.
///
/// # Errors
/// When the server cannot be asked.
pub async fn forget_stream(client: &Client, name: &str) -> Result<()> {
    let sql = "delete from pgspate.stream where stream = $1 and dead_letters = 0";
    match client.tell(sql, &[&name]).await.map_err(failed())? {
        0 => Ok(()),
        _ => bound::release_stream(client, name).await,
    }
}

fn moved(from: &Mark, to: &Mark) -> Error {
    let place = |mark: &Mark| match mark.source.as_str() {
        "" => "its beginning".to_owned(),
        source => format!("{source} ({} events)", mark.ordinal),
    };
    let message = format!(
        "the stream was applied up to {}, but the ledger is now at {}",
        place(from),
        place(to)
    );
    Error::new(ErrorKind::Ledger, message).hint(
        "The target was put back to an older state, or has failed over to a server that was \
         behind. Run the same command again: it begins where the ledger is, if the source still \
         has what comes after that.",
    )
}

/// All streams that have been applied to this database. Empty where there is no ledger.
///
/// # Errors
/// When the server cannot be asked.
pub async fn streams(client: &Client) -> Result<Vec<StreamStatus>> {
    if !schema::exists(client).await? {
        return Ok(Vec::new());
    }
    let rows = client.ask_all(LIST, &[]).await.map_err(failed())?;
    let (_, emptied) = bound::emptied(client).await?;
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

    #[test]
    fn a_stream_moves_on_in_its_own_transaction_and_for_the_last_to_open_it() {
        let db = testing::database();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let connection = dsn.connect("test").await.unwrap();
            let client = &connection.client;
            let mut stream = open_stream(client, "s", "").await.unwrap();
            let advance = client.prepare(&Stream::advance_sql()).await.unwrap();
            let to = Mark { ordinal: 5, source: "five".to_owned(), digest: "d".to_owned() };
            // The beginning of the transaction was refused.
            let refused = stream.advance_within(client, &advance, &to).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Ledger);
            assert_eq!(read_mark(client, "s", "").await.unwrap(), Mark::default());
            let begin = format!("begin; {}", stream.call_transaction());
            client.batch_execute(&begin).await.unwrap();
            stream.advance_within(client, &advance, &to).await.unwrap();
            client.batch_execute("commit").await.unwrap();
            assert_eq!(read_mark(client, "s", "").await.unwrap(), to);
            stream.mark = to.clone();
            open_stream(client, "s", "").await.unwrap();
            let begin = format!("begin; {}", stream.call_transaction());
            client.batch_execute(&begin).await.unwrap();
            let further = Mark { ordinal: 6, ..to.clone() };
            let fenced = stream.advance_within(client, &advance, &further).await.unwrap_err();
            assert_eq!(fenced.kind(), ErrorKind::Ledger);
            // The commit that was sent after it commits nothing.
            client.batch_execute("commit").await.unwrap();
            assert_eq!(read_mark(client, "s", "").await.unwrap(), to);
            connection.close().await;
        });
    }
}
