//! What is in a table's pages, cell by cell.

use tokio_postgres::{Client, Row};

use super::{Look, Share};
use crate::Result;
use pgspate_target::{Table, quote_ident, server_error};

/// Pages looked at, at most: 512 MiB, which takes a few seconds.
const PAGES_MAX: u64 = 65_536;
/// The first version that scans a range of places without the rest of the table.
const SCANS_RANGES: u32 = 140_000;

/// A table to look at.
pub(super) struct Surface {
    pub(super) pages: u64,
    pub(super) page_bytes: u64,
    sql_name: String,
    oid: u32,
    version: u32,
    /// The schema of `pageinspect`, if it may be used, and the type of its block numbers.
    pageinspect: Option<(String, String)>,
    /// Bytes of a row beside its header, as an expression.
    width: String,
}

/// Whoever may create functions in the schema of `pageinspect` can offer one that takes block
/// numbers of another type. So they are of the type that the extension's own function takes.
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

impl Surface {
    pub(super) async fn read(client: &Client, table: &Table) -> Result<Surface> {
        let failed = server_error(format!("could not look up the pages of {}", table.sql_name));
        let row = client.query_one(SURFACE, &[&table.oid]).await.map_err(failed)?;
        let number = |nth: usize| row.get::<_, i64>(nth).unsigned_abs();
        let columns = table.columns.iter().filter(|column| !column.is_generated);
        let widths: Vec<String> = columns
            .map(|column| format!("coalesce(pg_column_size(t.{}), 0)", quote_ident(&column.name)))
            .collect();
        Ok(Surface {
            pages: number(0),
            page_bytes: number(1),
            sql_name: table.sql_name.clone(),
            oid: table.oid,
            version: number(2) as u32,
            pageinspect: row.get::<_, Option<String>>(3).map(|schema| (schema, row.get(4))),
            width: if widths.is_empty() { "0".to_owned() } else { widths.join(" + ") },
        })
    }

    /// Whether pages themselves can be looked at.
    pub(super) fn sees_pages(&self) -> bool {
        self.pageinspect.is_some()
    }

    /// The cells' shares, in order, of so many pages each or as many of them as can be looked at.
    pub(super) async fn cells(&self, client: &Client, per_cell: u64) -> Result<(Look, Vec<Share>)> {
        self.sampled_cells(client, per_cell, PAGES_MAX).await
    }

    async fn sampled_cells(
        &self,
        client: &Client,
        per_cell: u64,
        pages_max: u64,
    ) -> Result<(Look, Vec<Share>)> {
        let count = self.pages.div_ceil(per_cell);
        let looked = per_cell.min((pages_max / count.max(1)).max(1));
        let sql = match &self.pageinspect {
            Some(pageinspect) => (Look::Pages, self.by_pages(pageinspect, per_cell, looked)),
            None => (Look::LiveRows, self.by_live_rows(per_cell, looked)),
        };
        let mut cells: Vec<Share> = (0..count)
            .map(|cell| Share {
                pages: looked.min(self.pages - cell * per_cell),
                dead_rows: (sql.0 == Look::Pages).then_some(0),
                dead_bytes: (sql.0 == Look::Pages).then_some(0),
                ..Share::default()
            })
            .collect();
        let is_sampled = looked < per_cell;
        let by_range = is_sampled && sql.0 == Look::LiveRows && self.version >= SCANS_RANGES;
        let statements = if by_range { self.ranges(per_cell, looked, count) } else { vec![sql.1] };
        let rows = self.rows(client, &statements).await;
        let _ = client.batch_execute("rollback").await;
        for row in rows? {
            let number = |nth: usize| row.get::<_, i64>(nth).unsigned_abs();
            // A table may have grown since its pages were counted.
            let Some(cell) = cells.get_mut(number(0) as usize) else { continue };
            cell.live_rows = number(1);
            cell.live_bytes = number(2).min(cell.pages * self.page_bytes);
            if sql.0 == Look::Pages {
                cell.dead_rows = Some(number(3));
                cell.dead_bytes = Some(number(4));
            }
        }
        Ok((sql.0, cells))
    }

    /// Rows of statements that see the same state of the table, in a transaction that stays open.
    async fn rows(&self, client: &Client, statements: &[String]) -> Result<Vec<Row>> {
        // Any other way to the rows would clean pages while they are looked at; and rows that a
        // policy hides would look dead.
        let begin = "begin isolation level repeatable read read only; \
                     set local enable_hashjoin = off; set local enable_mergejoin = off; \
                     set local enable_nestloop = on; set local enable_tidscan = on; \
                     set local row_security = off; set local jit = off; \
                     set local lock_timeout = '2s'; set local statement_timeout = '5min'";
        let failed = || server_error(format!("could not look at the rows of {}", self.sql_name));
        client.batch_execute(begin).await.map_err(failed())?;
        let mut rows = Vec::new();
        for statement in statements {
            let answer = client.query(statement, &[]).await;
            rows.extend(answer.map_err(|error| {
                failed()(error).hint(format!(
                    "The role needs `grant select on {}`, and must see all of its rows; a \
                     superuser sees dead ones, too, after `create extension pageinspect`.",
                    self.sql_name
                ))
            })?);
        }
        Ok(rows)
    }

    /// What a page holds and this snapshot does not see is dead, or not committed yet.
    fn by_pages(
        &self,
        (schema, block_type): &(String, String),
        per_cell: u64,
        looked: u64,
    ) -> String {
        let Surface { sql_name, oid, pages, .. } = self;
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
             where b % {per_cell} < {looked} and i.lp_flags <> 0 \
             group by 1"
        )
    }

    fn by_live_rows(&self, per_cell: u64, looked: u64) -> String {
        format!("{} where b % {per_cell} < {looked} group by 1", self.live_rows(per_cell, ""))
    }

    /// A statement for each cell, of which the first pages are read.
    fn ranges(&self, per_cell: u64, looked: u64, count: u64) -> Vec<String> {
        let range = |cell: u64| {
            let (first, end) = (cell * per_cell, cell * per_cell + looked);
            let range = format!("where t.ctid >= '({first},0)' and t.ctid < '({end},0)'");
            format!("{} group by 1", self.live_rows(per_cell, &range))
        };
        (0..count).map(range).collect()
    }

    /// A row takes its header of 24 bytes and its line pointer of 4, and is padded to 8.
    fn live_rows(&self, per_cell: u64, condition: &str) -> String {
        let Surface { sql_name, width, .. } = self;
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

    /// Cells of 16 pages, of which two are looked at, in each of the ways.
    #[tokio::test(flavor = "multi_thread")]
    async fn samples_are_like_the_whole() {
        let db = testing::database();
        db.run(
            "create table t (id int, v text) with (autovacuum_enabled = off); \
             insert into t select g, repeat('x', 100) from generate_series(1, 20000) g; \
             delete from t where id > 10000",
        );
        let dsn = Dsn::resolve(Some(&db.dsn()), &Environment::default()).unwrap().unwrap();
        let connection = dsn.connect("test").await.unwrap();
        let table = Table::read(&connection.client, "t").await.unwrap().unwrap();
        for extension in ["create extension pageinspect", "drop extension pageinspect"] {
            db.run(extension);
            let surface = Surface::read(&connection.client, &table).await.unwrap();
            let whole = surface.cells(&connection.client, 16).await.unwrap().1;
            let (look, cells) = surface.sampled_cells(&connection.client, 16, 44).await.unwrap();
            assert_eq!(look == Look::Pages, extension.starts_with("create"));
            assert_eq!((cells.len(), whole.len()), (22, 22));
            for (cell, whole) in cells.iter().zip(&whole).take(21) {
                assert_eq!((cell.pages, whole.pages), (2, 16));
                // The cell in which the deleted rows begin is as it happens to be.
                let is_edge = (1..16 * 58).contains(&whole.live_rows);
                assert!(is_edge || cell.live_rows * 8 == whole.live_rows, "{cell:?} {whole:?}");
                let dead = cell.dead_rows.map(|rows| rows * 8);
                assert!(is_edge || dead == whole.dead_rows, "{cell:?} {whole:?}");
            }
        }
    }
}
