//! Parts of a stream, each with a place of its own: the partitions of topics.
//!
//! A part's row is written by the transaction that moves the stream itself on, after that. So
//! whoever does not have the stream's newest fence writes none of them, and who takes the stream
//! over waits for who does.

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::Mark;
use super::job::failed;
use super::stream::Stream;
use crate::{Error, ErrorKind, Result};

/// What becomes of one part with a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartMove {
    /// The part's name: a partition of a topic.
    pub part: String,
    /// Where it is; `None` for one that the ledger does not know.
    pub from: Option<Mark>,
    /// Where it is after the commit.
    pub to: Mark,
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

/// The columns of some moves.
struct Columns<'a> {
    parts: Vec<&'a str>,
    ordinals: Vec<i64>,
    sources: Vec<&'a str>,
    digests: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(moves: &[&'a PartMove]) -> Columns<'a> {
        Columns {
            parts: moves.iter().map(|it| it.part.as_str()).collect(),
            ordinals: moves.iter().map(|it| it.to.ordinal.cast_signed()).collect(),
            sources: moves.iter().map(|it| it.to.source.as_str()).collect(),
            digests: moves.iter().map(|it| it.to.digest.as_str()).collect(),
        }
    }
}

impl Stream {
    /// Moves parts on, each exactly once; after [`Stream::advance`], in its transaction.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when one of them is not where it was.
    pub async fn advance_parts(&self, client: &Client, moves: &[PartMove]) -> Result<()> {
        let (known, new): (Vec<&PartMove>, Vec<_>) = moves.iter().partition(|it| it.from.is_some());
        if !new.is_empty() {
            let Columns { parts, ordinals, sources, digests } = Columns::of(&new);
            let values: [&(dyn ToSql + Sync); 5] =
                [&self.name(), &parts, &ordinals, &sources, &digests];
            client.execute(INSERT, &values).await.map_err(failed())?;
        }
        if known.is_empty() {
            return Ok(());
        }
        let Columns { parts, ordinals, sources, digests } = Columns::of(&known);
        let from = || known.iter().filter_map(|it| it.from.as_ref());
        let from_ordinals: Vec<_> = from().map(|mark| mark.ordinal.cast_signed()).collect();
        let from_sources: Vec<_> = from().map(|mark| mark.source.as_str()).collect();
        let values: [&(dyn ToSql + Sync); 7] =
            [&self.name(), &parts, &ordinals, &sources, &digests, &from_ordinals, &from_sources];
        let moved = client.execute(MOVE, &values).await.map_err(failed())?;
        if moved == known.len() as u64 {
            return Ok(());
        }
        let message = format!(
            "{moved} of {} partitions are in the ledger where this run left them",
            known.len()
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(
            "Their rows in pgspate.stream were changed by something else. Run the same command \
             again: it begins where the ledger is.",
        ))
    }
}

/// All parts of a stream that the ledger knows, and where they are.
pub async fn read_parts(client: &Client, stream: &str) -> Result<Vec<(String, Mark)>> {
    if !super::schema::exists(client).await? {
        return Ok(Vec::new());
    }
    let sql = "select partition, ordinal, source, digest from pgspate.stream \
               where stream = $1 and partition <> ''";
    let rows = client.query(sql, &[&stream]).await;
    let rows = rows.map_err(|error| super::schema::refused(failed()(error)))?;
    let mark = |row: &tokio_postgres::Row| Mark {
        ordinal: row.get::<_, i64>(1).unsigned_abs(),
        source: row.get(2),
        digest: row.get(3),
    };
    Ok(rows.iter().map(|row| (row.get(0), mark(row))).collect())
}
