//! A picture of a table's pages: where rows are live, where they are dead, and where space is free.
//!
//! If `pageinspect` is installed and the role is a superuser, the pages themselves are read. If
//! not, the positions of live rows show how full each page is, and dead and free space look the
//! same. Large tables are sampled evenly, so that the work and the picture stay small.

mod pages;
mod svg;

use std::fmt::Write as _;

use serde::Serialize;
use tokio_postgres::Client;

use super::context::dead_and_free_percent;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{TargetTable, server_error};

/// The largest number of cells in a picture: 16 rows of 64.
const CELLS_MAX: u64 = 1024;

/// How the pages were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureSource {
    /// Page by page, with `pageinspect`.
    Pages,
    /// By the positions of live rows.
    LiveRows,
}

/// How many rows and bytes of some pages are live and dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PageContents {
    /// Pages that were read.
    pub pages: u64,
    /// Rows that the snapshot sees.
    pub live_rows: u64,
    /// Bytes of live rows.
    pub live_bytes: u64,
    /// Row versions that the snapshot does not see; `None` if only live rows could be read.
    pub dead_rows: Option<u64>,
    /// Bytes of dead rows.
    pub dead_bytes: Option<u64>,
}

impl PageContents {
    fn add(&mut self, other: &PageContents) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a.unwrap_or(0) + b?);
        self.pages += other.pages;
        self.live_rows += other.live_rows;
        self.live_bytes += other.live_bytes;
        self.dead_rows = sum(self.dead_rows, other.dead_rows);
        self.dead_bytes = sum(self.dead_bytes, other.dead_bytes);
    }
}

/// Totals of `pgstattuple`, for a table whose pages could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpaceTotals {
    /// Percent of the table that is dead.
    pub dead_percent: f64,
    /// Percent of the table that is free.
    pub free_percent: f64,
}

/// A table's pages, as cells of a picture.
#[derive(Debug, Clone, Serialize)]
pub struct TablePicture {
    /// The table, as SQL writes it.
    pub table: String,
    /// Pages of the table.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// How many pages one cell stands for.
    pub pages_per_cell: u64,
    /// How the pages were read.
    pub look: PictureSource,
    /// The cells, in the table's order.
    pub cells: Vec<PageContents>,
    /// The sum of all cells.
    pub all: PageContents,
    /// Exact totals, if only live rows could be read and `pgstattuple` is installed.
    pub totals: Option<SpaceTotals>,
}

impl TablePicture {
    /// Reads a table's pages.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if the table has no pages of its own; [`ErrorKind::Server`] if the role
    /// may not read the table.
    pub async fn take(client: &Client, table: &TargetTable) -> Result<TablePicture> {
        if !matches!(table.kind, 'r' | 'm') {
            let message = format!("{} has no pages of its own", table.sql_name);
            let hint = match table.kind {
                'p' => "Name one of its partitions with `--table`; `\\d+` in psql lists them.",
                _ => "Name a table with `--table`.",
            };
            return Err(Error::new(ErrorKind::Plan, message).hint(hint));
        }
        let surface = pages::TablePages::read(client, table).await?;
        let pages_per_cell = surface.pages.div_ceil(CELLS_MAX).max(1);
        // Taken before the rows are read, because reading rows prunes pages.
        let totals = match surface.can_read_pages() {
            true => None,
            false => {
                super::begin_check(client).await?;
                let totals = dead_and_free_percent(client, table.oid).await;
                let failed = server_error("could not measure the table's free space".to_owned());
                client.batch_execute("rollback").await.map_err(failed)?;
                totals
            }
        };
        let (look, cells) = surface.cells(client, pages_per_cell).await?;
        let mut all = match look {
            PictureSource::Pages => {
                PageContents { dead_rows: Some(0), dead_bytes: Some(0), ..PageContents::default() }
            }
            PictureSource::LiveRows => PageContents::default(),
        };
        cells.iter().for_each(|cell| all.add(cell));
        Ok(TablePicture {
            table: table.sql_name.clone(),
            pages: surface.pages,
            page_bytes: surface.page_bytes,
            pages_per_cell,
            look,
            cells,
            all,
            totals: totals
                .map(|(dead_percent, free_percent)| SpaceTotals { dead_percent, free_percent }),
        })
    }

    /// Returns whether only some of the pages were read.
    pub fn is_sampled(&self) -> bool {
        self.all.pages < self.pages
    }

    /// Returns the bytes of the pages that were read.
    fn bytes(&self) -> f64 {
        (self.all.pages * self.page_bytes).max(1) as f64
    }

    /// Returns the percentages that are live, dead (if known), and the rest.
    pub fn percents(&self) -> (f64, Option<f64>, f64) {
        let share = |bytes: u64| 100.0 * bytes as f64 / self.bytes();
        let live = share(self.all.live_bytes);
        let dead = self.all.dead_bytes.map(share);
        (live, dead, (100.0 - live - dead.unwrap_or_default()).max(0.0))
    }

    /// Describes the picture in one sentence.
    pub fn sentence(&self) -> String {
        let (live, dead, rest) = self.percents();
        let mut text = format!("{}: {} pages, {live:.0} % live", self.table, self.pages);
        // Writing to a String cannot fail.
        let _ = match dead {
            Some(dead) => write!(text, ", {dead:.0} % dead, {rest:.0} % free"),
            None => write!(text, ", {rest:.0} % dead or free"),
        };
        text
    }

    /// Draws the picture as SVG, for light and dark backgrounds.
    pub fn svg(&self) -> String {
        svg::draw(self)
    }
}
