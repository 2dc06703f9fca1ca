//! Partitions of a stream, such as the partitions of Kafka topics. Each partition has a position of
//! its own.
//!
//! A partition's row is written after the stream's own row, in the same transaction. So a process
//! without the stream's newest fence writes no partition row. A process that takes the stream over
//! waits until that transaction ends.

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::StreamPosition;
use super::job::ledger_error;
use super::stream::AppliedStream;
use crate::{Error, ErrorKind, Result, TypedQuery};

/// The move of one partition's position by a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMove {
    /// The partition's name.
    pub part: String,
    /// The position before; `None` if the ledger does not know the partition.
    pub from: Option<StreamPosition>,
    /// The position after the commit.
    pub to: StreamPosition,
}

const INSERT: &str = "\
insert into pgspate.stream (stream, partition, ordinal, source, digest)
select $1, * from unnest($2::text[], $3::bigint[], $4::text[], $5::text[])";

const MOVE: &str = "\
update pgspate.stream
set ordinal = moved.ordinal, source = moved.source, digest = moved.digest,
    updated = clock_timestamp()
from unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[])
     as moved(part, ordinal, source, digest, from_ordinal, from_source)
where stream.stream = $1 and stream.partition = moved.part
      and stream.ordinal = moved.from_ordinal and stream.source = moved.from_source";

/// The columns of several moves, for `unnest`.
struct MoveColumns<'a> {
    parts: Vec<&'a str>,
    ordinals: Vec<i64>,
    sources: Vec<&'a str>,
    digests: Vec<&'a str>,
}

impl<'a> MoveColumns<'a> {
    fn of(moves: &[&'a PartitionMove]) -> MoveColumns<'a> {
        MoveColumns {
            parts: moves.iter().map(|partition| partition.part.as_str()).collect(),
            ordinals: moves.iter().map(|partition| partition.to.ordinal.cast_signed()).collect(),
            sources: moves.iter().map(|partition| partition.to.source.as_str()).collect(),
            digests: moves.iter().map(|partition| partition.to.digest.as_str()).collect(),
        }
    }
}

impl AppliedStream {
    /// Moves the positions of partitions. Must follow [`AppliedStream::advance`] in the same
    /// transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a partition is not at its expected position.
    pub async fn advance_partitions(&self, client: &Client, moves: &[PartitionMove]) -> Result<()> {
        let (known, new): (Vec<&PartitionMove>, Vec<_>) =
            moves.iter().partition(|partition| partition.from.is_some());
        if !new.is_empty() {
            let MoveColumns { parts, ordinals, sources, digests } = MoveColumns::of(&new);
            let values: [&(dyn ToSql + Sync); 5] =
                [&self.name(), &parts, &ordinals, &sources, &digests];
            client.execute(INSERT, &values).await.map_err(ledger_error())?;
        }
        if known.is_empty() {
            return Ok(());
        }
        let MoveColumns { parts, ordinals, sources, digests } = MoveColumns::of(&known);
        let from = || known.iter().filter_map(|partition| partition.from.as_ref());
        let from_ordinals: Vec<_> = from().map(|position| position.ordinal.cast_signed()).collect();
        let from_sources: Vec<_> = from().map(|position| position.source.as_str()).collect();
        let values: [&(dyn ToSql + Sync); 7] =
            [&self.name(), &parts, &ordinals, &sources, &digests, &from_ordinals, &from_sources];
        let moved = client.execute(MOVE, &values).await.map_err(ledger_error())?;
        if moved == known.len() as u64 {
            return Ok(());
        }
        let message = format!(
            "found {moved} of {} partitions at the positions where this run left them",
            known.len()
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(
            "Another program changed their rows in pgspate.stream. Run the same command again: it \
             starts at the positions in the ledger.",
        ))
    }
}

/// Returns the stream other than `name` that has applied messages of one of `topics`, and this
/// topic. Topics of which stream `name` has positions do not count. Only streams that are named
/// after their first topic count: the user distinguishes the others.
pub async fn find_stream_of_topics(
    client: &Client,
    name: &str,
    topics: &[String],
) -> Result<Option<(String, String)>> {
    if !super::schema::check_exists(client).await? {
        return Ok(None);
    }
    let sql = "select stream, topic from pgspate.stream as other cross join lateral \
               regexp_replace(partition, '/[0-9]+$', '') as topic \
               where stream <> $1 and stream like 'topic %' and partition <> '' \
               and topic = any($2) and ordinal > 0 \
               and not exists (select from pgspate.stream as own \
               where own.stream = $1 and starts_with(own.partition, topic || '/')) \
               order by updated desc, partition limit 1";
    let row = client.fetch_opt(sql, &[&name, &topics.to_vec()]).await;
    let row = row.map_err(|error| super::schema::with_grant_hint(ledger_error()(error)))?;
    Ok(row.map(|row| (row.get(0), row.get(1))))
}

/// Reads the positions of all partitions of a stream from the ledger, by name.
pub async fn read_partitions(
    client: &Client,
    stream: &str,
) -> Result<Vec<(String, StreamPosition)>> {
    if !super::schema::check_exists(client).await? {
        return Ok(Vec::new());
    }
    let sql = "select partition, ordinal, source, digest from pgspate.stream \
               where stream = $1 and partition <> ''";
    let rows = client.query(sql, &[&stream]).await;
    let rows = rows.map_err(|error| super::schema::with_grant_hint(ledger_error()(error)))?;
    let read_position = |row: &tokio_postgres::Row| StreamPosition {
        ordinal: row.get::<_, i64>(1).unsigned_abs(),
        source: row.get(2),
        digest: row.get(3),
    };
    Ok(rows.iter().map(|row| (row.get(0), read_position(row))).collect())
}
