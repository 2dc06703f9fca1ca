//! The move of a stream's position as a part of the statement that writes the events' rows.
//!
//! Such a statement is a transaction of its own. If the stream is not at the expected position, or
//! if a target table was altered, the move changes no row, and neither does the rest of the
//! statement. So statements may follow each other before the server answers.
//!
//! To look at a table's definition takes longer than to write a row. So the session remembers the
//! tables that it has checked, and its last transaction. While no other transaction gets an id, no
//! definition changes, and no load drops a key.

use tokio_postgres::types::ToSql;

use super::{StreamPosition, dropped_keys};
use crate::table::unaltered_condition;

/// The session's setting with the id of its last transaction, and the numbers of the tables that it
/// has checked: `731,4,7,`. Empty if a transaction with a lower id was in progress then.
const CHECKED_TABLES_SETTING: &str = "pgspate.checked";

/// Once the setting has so many characters, it begins again.
const CHECKED_TABLES_LEN_MAX: usize = 4000;

/// Makes the session forget the tables that it has checked.
pub const FORGET_CHECKED_TABLES: &str =
    "select pg_catalog.set_config('pgspate.checked', '', false)";

/// How a statement makes sure that its tables were not altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionCheck {
    /// The statement compares the definitions. Its parameters from [`StreamMove::PARAMETERS`] on
    /// are those of [`crate::KnownDefinitions`].
    Compare,
    /// The session has checked the tables, and no other transaction has begun since.
    NothingElseRan,
}

/// A move of a stream's position.
#[derive(Debug, Clone)]
pub struct StreamMove {
    pub(super) name: String,
    pub(super) partition: String,
    pub(super) fence: i64,
    pub(super) from: i64,
    pub(super) to: StreamPosition,
}

impl StreamMove {
    /// The number of the move's parameters, with the one for the commit.
    pub const PARAMETERS: usize = 8;

    /// Returns the parameters of [`stream_move_sql`]. `ordinal` is [`StreamMove::ordinal`], and
    /// `commit_level` is the level of `synchronous_commit`, or NULL for the session's.
    pub fn parameters<'a>(
        &'a self,
        ordinal: &'a i64,
        commit_level: &'a Option<&'static str>,
    ) -> [&'a (dyn ToSql + Sync); StreamMove::PARAMETERS] {
        let StreamMove { name, partition, fence, from, to } = self;
        [name, partition, fence, from, ordinal, &to.source, &to.digest, commit_level]
    }

    /// Returns the number of events before the new position.
    pub fn ordinal(&self) -> i64 {
        self.to.ordinal.cast_signed()
    }
}

/// SQL about the transaction of a statement.
struct TransactionSql {
    id: &'static str,
    /// The tables that the session has checked.
    checked: String,
    /// A condition: no transaction with a lower id is in progress, and no higher id was given when
    /// the statement began.
    is_last: String,
    /// A condition: the session's last transaction has the id before.
    follows: String,
    /// The checked tables, after the id.
    kept: String,
}

impl TransactionSql {
    fn new() -> TransactionSql {
        let id = "pg_catalog.pg_current_xact_id()::text";
        let checked = format!("pg_catalog.current_setting('{CHECKED_TABLES_SETTING}', true)");
        TransactionSql {
            is_last: format!(
                "pg_catalog.pg_current_snapshot()::text = pg_catalog.concat({id}, ':', {id}, ':')"
            ),
            follows: format!("pg_catalog.split_part({checked}, ',', 1) = ({id}::int8 - 1)::text"),
            kept: format!("pg_catalog.substr({checked}, pg_catalog.strpos({checked}, ','))"),
            id,
            checked,
        }
    }
}

/// Returns the statement that commits a change of the stream's row. Its commit waits for the disk.
pub(super) fn flush_sql() -> String {
    let TransactionSql { id, is_last, follows, kept, .. } = TransactionSql::new();
    format!(
        "update pgspate.stream set updated = pg_catalog.clock_timestamp() \
         where stream = $1 and partition = $2 and fence = $3 \
         returning pg_catalog.set_config('{CHECKED_TABLES_SETTING}', \
             case when {is_last} and {follows} then pg_catalog.concat({id}, {kept}) else '' end, \
             false)"
    )
}

/// Returns the statement that moves a stream, for a common table expression. It returns one row, or
/// none if the stream is not at its position, if one of `tables` was altered, or if that is
/// unknown. `tables` has a number for each definition of a table.
pub fn stream_move_sql(tables: &[u32], check: DefinitionCheck) -> String {
    let TransactionSql { id, checked, is_last, follows, kept } = TransactionSql::new();
    let numbers: String = tables.iter().map(|number| format!("{number},")).collect();
    let (condition, remembered) = match check {
        DefinitionCheck::NothingElseRan => {
            let is_known =
                |number: &u32| format!(" and pg_catalog.strpos({checked}, ',{number},') > 0");
            let known: String = tables.iter().map(is_known).collect();
            (format!("{is_last} and {follows}{known}"), format!("pg_catalog.concat({id}, {kept})"))
        }
        DefinitionCheck::Compare => {
            let unaltered = unaltered_condition(StreamMove::PARAMETERS + 1);
            let keys_dropped = dropped_keys::writes_without_keys_sql(0);
            let joins =
                format!("{follows} and pg_catalog.length({checked}) < {CHECKED_TABLES_LEN_MAX}");
            let remembered = format!(
                "case when not {is_last} then '' \
                      when {joins} then pg_catalog.concat({id}, {kept}, '{numbers}') \
                      else pg_catalog.concat({id}, ',{numbers}') end"
            );
            (format!("{unaltered} and not {keys_dropped}"), remembered)
        }
    };
    format!(
        "update pgspate.stream set ordinal = $5, source = $6, digest = $7, \
                                   updated = pg_catalog.clock_timestamp() \
         where stream = $1 and partition = $2 and fence = $3 and ordinal = $4 and {condition} \
         returning pg_catalog.set_config('{CHECKED_TABLES_SETTING}', {remembered}, false), \
                   pg_catalog.set_config('synchronous_commit', coalesce($8, \
                       pg_catalog.current_setting('synchronous_commit')), true)"
    )
}

#[cfg(test)]
mod tests {
    use pgspate_embedded::testing;
    use tokio_postgres::Client;

    use super::super::{AppliedStream, open_stream};
    use super::*;
    use crate::connect::{Dsn, Environment};
    use crate::{KnownDefinitions, TargetTable};

    /// Moves the stream by one event. Returns whether that was done.
    async fn advance(
        client: &Client,
        stream: &mut AppliedStream,
        table: &TargetTable,
        check: DefinitionCheck,
    ) -> bool {
        let to = StreamPosition { ordinal: stream.mark.ordinal + 1, ..StreamPosition::default() };
        let stream_move = stream.move_to(stream.mark.ordinal, &to);
        let (ordinal, level) = (stream_move.ordinal(), Some("off"));
        let mut values = stream_move.parameters(&ordinal, &level).to_vec();
        let mut known = KnownDefinitions::default();
        known.add(table, true);
        let (oids, fingerprints, childless) = known.owned_parameters();
        if check == DefinitionCheck::Compare {
            values.extend([&oids as &(dyn ToSql + Sync), &fingerprints, &childless]);
        }
        let sql =
            format!("with moved as ({}) select count(*) from moved", stream_move_sql(&[7], check));
        let is_moved = client.query_one(&sql, &values).await.unwrap().get::<_, i64>(0) == 1;
        if is_moved {
            stream.mark = to;
        }
        is_moved
    }

    #[test]
    fn definitions_are_compared_again_once_another_transaction_ran() {
        use DefinitionCheck::{Compare, NothingElseRan};
        let server = testing::server("autovacuum = off");
        let dsn = Dsn::resolve(Some(&server.dsn()), &Environment::default()).unwrap().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (own, other) =
                (dsn.connect("test").await.unwrap(), dsn.connect("test").await.unwrap());
            let client = &own.client;
            other.client.batch_execute("create table public.t (id int primary key)").await.unwrap();
            let table = TargetTable::read(client, "public.t").await.unwrap().unwrap();
            let mut stream = open_stream(client, "s", "").await.unwrap();
            client.batch_execute(FORGET_CHECKED_TABLES).await.unwrap();
            let stream = &mut stream;
            assert!(!advance(client, stream, &table, NothingElseRan).await);
            assert!(advance(client, stream, &table, Compare).await);
            for _ in 0..3 {
                assert!(advance(client, stream, &table, NothingElseRan).await);
                stream.flush(client).await.unwrap();
                // A transaction that only reads has no id.
                other.client.batch_execute("select from public.t").await.unwrap();
            }
            assert!(advance(client, stream, &table, NothingElseRan).await);
            // A transaction is in progress, and began before.
            other.client.batch_execute("begin; select pg_current_xact_id()").await.unwrap();
            assert!(!advance(client, stream, &table, NothingElseRan).await);
            assert!(advance(client, stream, &table, Compare).await);
            assert!(!advance(client, stream, &table, NothingElseRan).await);
            other
                .client
                .batch_execute("alter table public.t add later text; commit")
                .await
                .unwrap();
            assert!(!advance(client, stream, &table, NothingElseRan).await);
            assert!(!advance(client, stream, &table, Compare).await);
            let table = TargetTable::read(client, "public.t").await.unwrap().unwrap();
            assert!(advance(client, stream, &table, Compare).await);
            assert!(advance(client, stream, &table, NothingElseRan).await);
            // A move from another position.
            stream.mark.ordinal += 1;
            assert!(!advance(client, stream, &table, Compare).await);
            assert!(!advance(client, stream, &table, NothingElseRan).await);
        });
    }
}
