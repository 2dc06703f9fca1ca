//! Where the rows of a table go: into the table itself, its partitions, or the relations beneath a
//! view.

use tokio_postgres::{Client, Row};

use super::{TypedQuery, server_error};
use crate::Result;

/// How much of a table a server crash empties: the unlogged partitions, or the table itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnloggedExtent {
    /// All of the table is logged.
    #[default]
    Nothing,
    /// Some partitions are unlogged.
    SomePartitions,
    /// The table or all its partitions are unlogged.
    Everything,
}

impl UnloggedExtent {
    /// Reads the current extent for a table.
    ///
    /// # Errors
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query,
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
    pub async fn read(client: &Client, oid: u32) -> Result<UnloggedExtent> {
        let sql = format!("select {} from pg_class c where c.oid = $1", row_places_sql());
        let failed = server_error("could not check whether the table is unlogged".to_owned());
        let row = client.fetch_opt(&sql, &[&oid]).await.map_err(failed)?;
        Ok(row.map_or(UnloggedExtent::Nothing, |row| RowPlaces::parse(&row, 0).unlogged))
    }
}

/// Where the rows of a table or view are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPlaces {
    pub(super) unlogged: UnloggedExtent,
    /// Whether the table, or a partition, is a foreign table.
    pub(super) has_foreign_parts: bool,
    /// Whether a trigger of a view runs instead of an INSERT.
    pub(super) is_written_by_triggers: bool,
}

impl RowPlaces {
    /// Parses column `column` of a query for [`row_places_sql`].
    pub(super) fn parse(row: &Row, column: usize) -> RowPlaces {
        let flags: Vec<Option<bool>> = row.get(column);
        let is_set = |nth: usize| flags.get(nth).copied().flatten() == Some(true);
        let unlogged = match (is_set(0), is_set(1)) {
            (true, true) => UnloggedExtent::Everything,
            (true, false) => UnloggedExtent::SomePartitions,
            (false, _) => UnloggedExtent::Nothing,
        };
        RowPlaces { unlogged, has_foreign_parts: is_set(2), is_written_by_triggers: is_set(3) }
    }
}

/// Returns an expression for the [`RowPlaces`] of the relation `c`. A table that inherits gets no
/// rows of its parent, so it does not count.
pub(super) fn row_places_sql() -> String {
    format!(
        "(select array[bool_or(p.relpersistence = 'u'), \
                       bool_and(p.relpersistence = 'u') filter (where p.relkind <> 'v'), \
                       bool_or(p.relkind = 'f'), \
                       bool_or(p.relkind = 'v' and exists (select from pg_trigger t \
                           where t.tgrelid = p.oid and t.tgtype & 68 = 68 \
                             and t.tgenabled <> 'D'))] \
          from pg_class p where p.relkind in ('r', 'f', 'v') and p.oid in ({}))",
        parts_sql("c.oid")
    )
}

/// Returns a query for the oids of a relation and, if it is a view, of all relations beneath it.
/// The rules of a view name them: those that it reads, and those that a rule for INSERT writes.
/// `oid` is SQL.
pub(crate) fn beneath_sql(oid: &str) -> String {
    format!(
        "with recursive beneath(oid) as (\
             select {oid}::oid \
             union \
             select d.refobjid from beneath b \
             join pg_class v on v.oid = b.oid and v.relkind = 'v' \
             join pg_rewrite r on r.ev_class = v.oid \
             join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid \
                             and d.refclassid = 'pg_class'::regclass) \
         select oid from beneath"
    )
}

/// Returns the query of [`beneath_sql`] with all partitions.
pub(crate) fn parts_sql(oid: &str) -> String {
    format!(
        "{} union select p.relid::oid from beneath b, pg_partition_tree(b.oid::regclass) p",
        beneath_sql(oid)
    )
}
