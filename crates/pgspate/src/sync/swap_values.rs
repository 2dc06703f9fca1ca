//! Updates rows that exchange unique values.
//!
//! The server checks a unique index row by row, so a single UPDATE cannot exchange values. If the
//! server refuses the UPDATE for this reason, pgspate deletes the rows whose values other rows
//! need, updates the other rows, and inserts the deleted rows again. pgspate never deletes rows
//! that a foreign key refers to, so no foreign key's action is fired.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::PreparedSync;
use super::statements::{DIFF, IN_SOURCE, PARTITION, SyncStatements, TID, list};
use crate::stage::{keys, referrers};
use crate::{Error, Result};
use pgspate_target::measure::{StatementCost, TransactionCounters};
use pgspate_target::{
    TargetTable, TypedQuery, pin_transaction_sql, quote_ident, server_error, users_path_sql,
};

/// The temporary table of rows that are deleted and inserted again.
const REINSERTED: &str = "pg_temp.pgspate_moved";

/// Query for the unique indexes and exclusion constraints that the server checks row by row.
/// Columns: the index's columns if it is a unique index without expressions, otherwise NULL; all
/// table columns that the index depends on.
const INDEXES_SQL: &str = "\
with parts(oid) as (select relid::oid from pg_partition_tree($1::oid::regclass)
                    union select $1::oid)
select case when i.indisunique and not i.indisexclusion and i.indexprs is null then
            array(select a.attname::text
                  from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
                  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where k.nth <= i.indnkeyatts) end,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = i.indrelid and a.attnum > 0
               and (a.attnum = any(i.indkey)
                    or exists (select from pg_depend d
                               where d.refclassid = 'pg_class'::regclass
                                 and d.refobjid = i.indrelid and d.refobjsubid = a.attnum
                                 and (d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
                                      or d.classid = 'pg_constraint'::regclass
                                         and d.objid = con.oid))))
from pg_index i left join pg_constraint con on con.conindid = i.indexrelid
                                           and con.conrelid = i.indrelid
where i.indrelid in (select oid from parts) and (i.indisunique or i.indisexclusion)
  and i.indimmediate and i.indisvalid";

/// A row of [`INDEXES_SQL`]: an index that the server checks row by row.
struct ImmediateIndex {
    /// The index's columns; `None` for an exclusion constraint or an index on expressions.
    equality_columns: Option<Vec<String>>,
    /// All table columns that the index depends on.
    all_columns: Vec<String>,
}

/// The constraints that decide which rows are deleted and inserted again.
struct SwapConstraints {
    indexes: Vec<ImmediateIndex>,
    /// For each foreign key that refers to the table, the SQL condition that some row refers to
    /// row `t`.
    referrers: Vec<String>,
}

/// What statements have written.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrittenChanges {
    pub(super) cost: StatementCost,
    /// Work that was rolled back. The server counts it nevertheless.
    pub(super) undone: TransactionCounters,
}

/// Updates the rows that differ. If the server refuses the update because rows exchange unique
/// values, deletes some of the rows and inserts them again.
pub(super) async fn update(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
) -> Result<WrittenChanges> {
    let written = |cost| WrittenChanges { cost, undone: TransactionCounters::default() };
    let failed = || server_error("could not update rows".to_owned());
    let update = statements.update();
    let planned = statements.planned(client);
    if !statements.storage.has_row_addresses || !may_exchange_values(sync) {
        return planned.execute(&update).await.map(written).map_err(failed());
    }
    let constraints = SwapConstraints::read(sync).await?;
    if constraints.conditions(statements).is_empty() {
        return planned.execute(&update).await.map(written).map_err(failed());
    }
    let oid = sync.staging.table.oid;
    let before = TransactionCounters::read(client, oid).await?;
    client.batch_execute("savepoint pgspate_update").await.map_err(failed())?;
    let refused = match planned.execute(&update).await {
        Ok(cost) => {
            client.batch_execute("release savepoint pgspate_update").await.map_err(failed())?;
            return Ok(written(cost));
        }
        Err(error) => error,
    };
    let conflicts = [&SqlState::UNIQUE_VIOLATION, &SqlState::EXCLUSION_VIOLATION];
    if !refused.code().is_some_and(|code| conflicts.contains(&code)) {
        return Err(failed()(refused));
    }
    let refused = failed()(refused);
    client.batch_execute("rollback to savepoint pgspate_update").await.map_err(failed())?;
    let undone = TransactionCounters::read(client, oid).await?.since(before);
    match swap_by_reinserting(client, sync, statements, &constraints).await {
        Ok(Some(cost)) => Ok(WrittenChanges { cost, undone }),
        // The refusal of the UPDATE names values of the source, so this error is reported.
        Ok(None) => Err(constraints.explain(refused)),
        Err(error) if error.sqlstate().is_some_and(|code| conflicts.contains(&code)) => {
            Err(constraints.explain(refused))
        }
        Err(error) => Err(error),
    }
}

/// Returns whether an update may change a value of a unique index or exclusion constraint. It does
/// not if the table's only one is on the key, and no column of the key is set.
fn may_exchange_values(sync: &PreparedSync) -> bool {
    let (table, columns) = (&sync.staging.table, &sync.columns);
    let unique = table.indexes.iter().filter(|(_, is_unique)| *is_unique).count();
    unique > 1 || !columns.key_is_unique || columns.set().any(|it| columns.key.contains(it))
}

/// Deletes rows that may block the update, updates the other rows, and inserts the deleted rows
/// again. Returns `None` if no row may be deleted.
async fn swap_by_reinserting(
    client: &Client,
    sync: &PreparedSync,
    statements: &SyncStatements<'_>,
    constraints: &SwapConstraints,
) -> Result<Option<StatementCost>> {
    let failed = || server_error("could not exchange unique values of rows".to_owned());
    let planned = statements.planned(client);
    let table = &sync.staging.table;
    let find = statements.select_reinserted(table, constraints);
    let drop = format!("drop table if exists {REINSERTED}");
    client.batch_execute(&drop).await.map_err(failed())?;
    planned.allow_nested_loop(&find).await.map_err(failed())?;
    client.batch_execute(&find).await.map_err(failed())?;
    let analyze = format!("analyze {REINSERTED} ({TID})");
    client.batch_execute(&analyze).await.map_err(failed())?;
    let deleted = planned.execute(&statements.delete_reinserted()).await.map_err(failed())?;
    if deleted.rows == 0 {
        return Ok(None);
    }
    let mut cost = planned.execute(&statements.update_others()).await.map_err(failed())?;
    let inserted = planned.execute(&statements.reinsert(table)).await.map_err(failed())?;
    cost.add(inserted);
    cost.add(StatementCost { rows: 0, ..deleted });
    Ok(Some(cost))
}

impl SwapConstraints {
    /// Reads the constraints in the control session, under pgspate's own search path.
    async fn read(sync: &PreparedSync) -> Result<SwapConstraints> {
        if !sync.staging.has_one_session() {
            return SwapConstraints::read_pinned(sync).await;
        }
        let failed = || server_error("could not look up the table's constraints".to_owned());
        let client = &sync.staging.control().client;
        client.batch_execute(&pin_transaction_sql()).await.map_err(failed())?;
        let constraints = SwapConstraints::read_pinned(sync).await?;
        client.batch_execute(&users_path_sql(true)).await.map_err(failed())?;
        Ok(constraints)
    }

    async fn read_pinned(sync: &PreparedSync) -> Result<SwapConstraints> {
        let (client, table) = (&sync.staging.control().client, &sync.staging.table);
        let failed = server_error("could not look up the table's constraints".to_owned());
        let indexes = async { client.fetch_all(INDEXES_SQL, &[&table.oid]).await };
        let (indexes, referrers) = tokio::join!(biased; indexes, referrers(client, table));
        let index = |row: &tokio_postgres::Row| ImmediateIndex {
            equality_columns: row.get(0),
            all_columns: row.get(1),
        };
        Ok(SwapConstraints {
            indexes: indexes.map_err(failed)?.iter().map(index).collect(),
            referrers: referrers?.into_iter().map(|it| it.condition).collect(),
        })
    }

    /// Returns, for each index that may refuse the update, the condition that the update frees
    /// values of row `t` in the index.
    fn conditions(&self, statements: &SyncStatements<'_>) -> Vec<String> {
        self.indexes.iter().filter_map(|index| statements.frees_needed_values(index)).collect()
    }

    /// Adds a hint if foreign keys refer to the table, because pgspate does not delete rows that a
    /// foreign key refers to.
    fn explain(&self, refused: Error) -> Error {
        if self.referrers.is_empty() {
            return refused;
        }
        refused.hint_also(
            "If rows exchange values: pgspate does not delete and re-insert rows that a foreign \
             key refers to, because that could fire the foreign key's action. Make the unique \
             constraint `deferrable`, or give these rows other values first.",
        )
    }
}

impl SyncStatements<'_> {
    /// Returns the statement that selects the rows to delete and insert again. These are rows to
    /// update whose old values other rows may need, and that no row refers to.
    fn select_reinserted(&self, table: &TargetTable, constraints: &SwapConstraints) -> String {
        let unreferenced = constraints.referrers.iter().map(|refers| format!(" and not {refers}"));
        // Rows are inserted into the table itself, so rows of inheriting tables must not be
        // deleted.
        let is_own_row = match table.kind {
            'p' => String::new(),
            _ => format!(" and t.tableoid operator(pg_catalog.=) {}::pg_catalog.oid", table.oid),
        };
        format!(
            "create temporary table pgspate_moved on commit drop as \
             select t.*, t.ctid as {TID}, t.tableoid as {PARTITION} from {} t join {DIFF} s on {} \
             where s.{IN_SOURCE} and s.{TID} is not null{} and ({}){is_own_row}{}",
            self.table,
            self.same_row_version(),
            self.in_this_transaction(),
            constraints.conditions(self).join(" or "),
            unreferenced.collect::<String>()
        )
    }

    /// Returns the condition that the update changes values of row `t` in the index, and that
    /// another row to update may need the old values. Returns `None` if the update sets no column
    /// of the index.
    fn frees_needed_values(&self, index: &ImmediateIndex) -> Option<String> {
        let set = |names: &[String]| {
            let quoted: Vec<_> = names.iter().map(|name| quote_ident(name)).collect();
            let columns =
                self.columns.set().filter(|it| quoted.iter().any(|name| it.name == *name));
            columns.cloned().collect::<Vec<_>>()
        };
        let changed = set(&index.all_columns);
        if changed.is_empty() {
            return None;
        }
        let (old, new) = (list(changed.iter(), "t"), list(changed.iter(), "s"));
        let changes = keys::image_differs_sql(&old, &new);
        let Some(equal) = &index.equality_columns else { return Some(changes) };
        let needed: String =
            set(equal).iter().map(|it| format!(" and {}", it.matches("n", "t"))).collect();
        Some(format!(
            "({changes} and exists (select from {DIFF} n where n.{IN_SOURCE} \
             and n.{TID} is not null and (n.{TID} operator(pg_catalog.<>) s.{TID} \
                  or n.{PARTITION} operator(pg_catalog.<>) s.{PARTITION}){needed}))"
        ))
    }

    fn delete_reinserted(&self) -> String {
        format!(
            "delete from {} t using {REINSERTED} m where {}",
            self.table,
            is_address_of_reinserted("t.ctid", "t.tableoid")
        )
    }

    /// Returns the statement that updates the rows that are not deleted and inserted again.
    fn update_others(&self) -> String {
        let place = is_address_of_reinserted(&format!("s.{TID}"), &format!("s.{PARTITION}"));
        format!("{} and not exists (select from {REINSERTED} m where {place})", self.update())
    }

    fn reinsert(&self, table: &TargetTable) -> String {
        let set: Vec<_> = self.columns.set().map(|column| column.name.as_str()).collect();
        let names = table.columns.iter().filter(|column| !column.is_generated);
        let names: Vec<_> = names.map(|column| quote_ident(&column.name)).collect();
        let values = names.iter().map(|name| match set.contains(&name.as_ref()) {
            true => format!("s.{name}"),
            false => format!("m.{name}"),
        });
        format!(
            "insert into {} ({}) overriding system value select {} \
             from {REINSERTED} m join {DIFF} s on {} where s.{IN_SOURCE}",
            self.table,
            names.join(", "),
            values.collect::<Vec<_>>().join(", "),
            is_address_of_reinserted(&format!("s.{TID}"), &format!("s.{PARTITION}"))
        )
    }
}

/// Returns the condition that `tid` and `part` are the address of row `m` of [`REINSERTED`].
fn is_address_of_reinserted(tid: &str, part: &str) -> String {
    format!("{tid} operator(pg_catalog.=) m.{TID} and {part} operator(pg_catalog.=) m.{PARTITION}")
}
