//! Reads what a table's pages hold, cell by cell.

use tokio_postgres::{Client, Row};

use super::{PageContents, PictureSource};
use crate::Result;
use pgspate_target::{TargetTable, quote_ident, server_error};

/// How many pages are read at most: 512 MiB, which takes a few seconds.
const PAGES_MAX: u64 = 65_536;
/// The first version with TID range scans, which read some pages without the rest of the table.
const TID_RANGE_SCAN_VERSION: u32 = 140_000;

/// A table whose pages are read.
pub(super) struct TablePages {
    pub(super) pages: u64,
    pub(super) page_bytes: u64,
    sql_name: String,
    oid: u32,
    version: u32,
    /// The schema of `pageinspect` and the type of its block numbers, if the role may use it.
    pageinspect: Option<(String, String)>,
    /// An SQL expression for the bytes of a row without its header.
    width: String,
}

/// A role that may create functions in the schema of `pageinspect` could add an overload for block
/// numbers of another type. So the query finds the block number type of the extension's function.
const SURFACE: &str = "\
select pg_relation_size($1::oid::regclass, 'main') / current_setting('block_size')::int8,
       current_setting('block_size')::int8, current_setting('server_version_num')::int8,
       i.schema, i.block_type
from (values (1)) one
left join (select quote_ident(n.nspname) as schema,
                  format_type(p.proargtypes[1], null) as block_type
           from pg_extension e join pg_namespace n on n.oid = e.extnamespace
           join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
                           and d.classid = 'pg_proc'::regclass and d.deptype = 'e'
           join pg_proc p on p.oid = d.objid
           where e.extname = 'pageinspect' and p.proname = 'get_raw_page' and p.pronargs = 2
             and (select rolsuper from pg_roles where rolname = current_user)) i on true";

impl TablePages {
    pub(super) async fn read(client: &Client, table: &TargetTable) -> Result<TablePages> {
        let failed = server_error(format!("could not look up the pages of {}", table.sql_name));
        let row = client.query_one(SURFACE, &[&table.oid]).await.map_err(failed)?;
        let number = |nth: usize| row.get::<_, i64>(nth).unsigned_abs();
        let columns = table.columns.iter().filter(|column| !column.is_generated);
        let widths: Vec<String> = columns
            .map(|column| format!("coalesce(pg_column_size(t.{}), 0)", quote_ident(&column.name)))
            .collect();
        Ok(TablePages {
            pages: number(0),
            page_bytes: number(1),
            sql_name: table.sql_name.clone(),
            oid: table.oid,
            version: number(2) as u32,
            pageinspect: row.get::<_, Option<String>>(3).map(|schema| (schema, row.get(4))),
            width: if widths.is_empty() { "0".to_owned() } else { widths.join(" + ") },
        })
    }

    /// Returns whether the pages themselves can be read.
    pub(super) fn can_read_pages(&self) -> bool {
        self.pageinspect.is_some()
    }

    /// Reads the cells in order. Each cell stands for `per_cell` pages. Of a large table, only the
    /// first pages of each cell are read.
    pub(super) async fn cells(
        &self,
        client: &Client,
        per_cell: u64,
    ) -> Result<(PictureSource, Vec<PageContents>)> {
        self.sampled_cells(client, per_cell, PAGES_MAX).await
    }

    async fn sampled_cells(
        &self,
        client: &Client,
        per_cell: u64,
        pages_max: u64,
    ) -> Result<(PictureSource, Vec<PageContents>)> {
        let count = self.pages.div_ceil(per_cell);
        let read_per_cell = per_cell.min((pages_max / count.max(1)).max(1));
        let sql = match &self.pageinspect {
            Some(pageinspect) => {
                (PictureSource::Pages, self.pages_query(pageinspect, per_cell, read_per_cell))
            }
            None => (PictureSource::LiveRows, self.live_rows_query(per_cell, read_per_cell)),
        };
        let mut cells: Vec<PageContents> = (0..count)
            .map(|cell| PageContents {
                pages: read_per_cell.min(self.pages - cell * per_cell),
                dead_rows: (sql.0 == PictureSource::Pages).then_some(0),
                dead_bytes: (sql.0 == PictureSource::Pages).then_some(0),
                ..PageContents::default()
            })
            .collect();
        let is_sampled = read_per_cell < per_cell;
        let by_range = is_sampled
            && sql.0 == PictureSource::LiveRows
            && self.version >= TID_RANGE_SCAN_VERSION;
        let statements =
            if by_range { self.range_queries(per_cell, read_per_cell, count) } else { vec![sql.1] };
        let rows = self.rows(client, &statements).await;
        let _ = client.batch_execute("rollback").await;
        for row in rows? {
            let number = |nth: usize| row.get::<_, i64>(nth).unsigned_abs();
            // The table may have grown since its pages were counted.
            let Some(cell) = cells.get_mut(number(0) as usize) else { continue };
            cell.live_rows = number(1);
            cell.live_bytes = number(2).min(cell.pages * self.page_bytes);
            if sql.0 == PictureSource::Pages {
                cell.dead_rows = Some(number(3));
                cell.dead_bytes = Some(number(4));
            }
        }
        Ok((sql.0, cells))
    }

    /// Runs statements in one snapshot, and returns their rows. The transaction stays open.
    async fn rows(&self, client: &Client, statements: &[String]) -> Result<Vec<Row>> {
        // Other join methods would prune pages while they are read. Rows hidden by a policy would
        // look dead, so row security is off, which makes the server refuse the query.
        let begin = "begin isolation level repeatable read read only; \
                     set local enable_hashjoin = off; set local enable_mergejoin = off; \
                     set local enable_nestloop = on; set local enable_tidscan = on; \
                     set local row_security = off; set local jit = off; \
                     set local lock_timeout = '2s'; set local statement_timeout = '5min'";
        let failed = || server_error(format!("could not read the rows of {}", self.sql_name));
        client.batch_execute(begin).await.map_err(failed())?;
        let mut rows = Vec::new();
        for statement in statements {
            let answer = client.query(statement, &[]).await;
            rows.extend(answer.map_err(|error| {
                failed()(error).hint(format!(
                    "The role needs `grant select on {}` and must see all of its rows. After \
                     `create extension pageinspect`, a superuser also sees dead rows.",
                    self.sql_name
                ))
            })?);
        }
        Ok(rows)
    }

    /// Returns a query for the live and dead rows of each cell. A row version that the snapshot
    /// does not see counts as dead, also if it is not committed yet.
    fn pages_query(
        &self,
        (schema, block_type): &(String, String),
        per_cell: u64,
        read_per_cell: u64,
    ) -> String {
        let TablePages { sql_name, oid, pages, .. } = self;
        format!(
            "select b / {per_cell}, count(t.ctid), \
                    coalesce(sum(i.lp_len + 4) filter (where t.ctid is not null), 0)::int8, \
                    count(*) filter (where t.ctid is null and i.lp_flags in (1, 3)), \
                    coalesce(sum(i.lp_len + 4) filter \
                             (where t.ctid is null and i.lp_flags in (1, 3)), 0)::int8 \
             from generate_series(0, {pages}::int8 - 1) b \
             cross join lateral {schema}.heap_page_items( \
                 {schema}.get_raw_page({oid}::oid::regclass::text, b::{block_type})) i \
             left join only {sql_name} t on t.ctid = format('(%s,%s)', b, i.lp)::tid \
             where b % {per_cell} < {read_per_cell} and i.lp_flags <> 0 \
             group by 1"
        )
    }

    /// Returns a query for the live rows of each cell.
    fn live_rows_query(&self, per_cell: u64, read_per_cell: u64) -> String {
        let select = self.live_rows_select(per_cell, "");
        format!("{select} where b % {per_cell} < {read_per_cell} group by 1")
    }

    /// Returns one query for each cell, which reads only the cell's first pages.
    fn range_queries(&self, per_cell: u64, read_per_cell: u64, count: u64) -> Vec<String> {
        let range = |cell: u64| {
            let (first, end) = (cell * per_cell, cell * per_cell + read_per_cell);
            let range = format!("where t.ctid >= '({first},0)' and t.ctid < '({end},0)'");
            format!("{} group by 1", self.live_rows_select(per_cell, &range))
        };
        (0..count).map(range).collect()
    }

    /// Returns the beginning of a query for live rows. A row takes a header of 24 bytes and a line
    /// pointer of 4, and is padded to 8.
    fn live_rows_select(&self, per_cell: u64, condition: &str) -> String {
        let TablePages { sql_name, width, .. } = self;
        format!(
            "select b / {per_cell}, count(*), sum((28 + bytes + 7) / 8 * 8)::int8 \
             from (select (t.ctid::text::point)[0]::int8 as b, ({width})::int8 as bytes \
                   from only {sql_name} t {condition}) t"
        )
    }
}

#[cfg(test)]
mod tests {
    use pgspate_embedded::testing;

    use super::*;
    use pgspate_target::connect::{Dsn, Environment};

    /// Reads two pages of each cell of 16 pages, with and without `pageinspect`.
    #[tokio::test(flavor = "multi_thread")]
    async fn sampled_cells_agree_with_whole_cells() {
        let db = testing::database();
        db.run(
            "create table t (id int, v text) with (autovacuum_enabled = off); \
             insert into t select g, repeat('x', 100) from generate_series(1, 20000) g; \
             delete from t where id > 10000",
        );
        let dsn = Dsn::resolve(Some(&db.dsn()), &Environment::default()).unwrap().unwrap();
        let connection = dsn.connect("test").await.unwrap();
        let table = TargetTable::read(&connection.client, "t").await.unwrap().unwrap();
        for extension in ["create extension pageinspect", "drop extension pageinspect"] {
            db.run(extension);
            let surface = TablePages::read(&connection.client, &table).await.unwrap();
            let whole = surface.cells(&connection.client, 16).await.unwrap().1;
            let (look, cells) = surface.sampled_cells(&connection.client, 16, 44).await.unwrap();
            assert_eq!(look == PictureSource::Pages, extension.starts_with("create"));
            assert_eq!((cells.len(), whole.len()), (22, 22));
            for (cell, whole) in cells.iter().zip(&whole).take(21) {
                assert_eq!((cell.pages, whole.pages), (2, 16));
                // The cell in which the deleted rows begin may differ.
                let is_edge = (1..16 * 58).contains(&whole.live_rows);
                assert!(is_edge || cell.live_rows * 8 == whole.live_rows, "{cell:?} {whole:?}");
                let dead = cell.dead_rows.map(|rows| rows * 8);
                assert!(is_edge || dead == whole.dead_rows, "{cell:?} {whole:?}");
            }
        }
    }
}
