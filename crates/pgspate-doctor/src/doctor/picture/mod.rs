//! A picture of a table's pages: what is live, what is dead, what is free, and where.
//!
//! Pages are looked at with `pageinspect` where it is there and the role is a superuser; else the
//! places of live rows say how full each page is, and dead and free space are not told apart.
//! Large tables are sampled evenly, so that the work and the picture stay small.

mod pages;
mod svg;

use std::fmt::Write as _;

use serde::Serialize;
use tokio_postgres::Client;

use super::scene::tuples;
use crate::{Error, Kind, Result};
use pgspate_target::{Table, server_error};

/// Cells of a picture at most: 64 in a row, 32 rows.
const CELLS_MAX: u64 = 2048;

/// How the pages were looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Look {
    /// Page by page, with `pageinspect`.
    Pages,
    /// By the places of live rows.
    LiveRows,
}

/// Bytes of pages by what they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Share {
    /// Pages that were looked at.
    pub pages: u64,
    /// Rows that are seen.
    pub live_rows: u64,
    /// Bytes of these.
    pub live_bytes: u64,
    /// Row versions that are not seen; `None` where they are not told apart from free space.
    pub dead_rows: Option<u64>,
    /// Bytes of these.
    pub dead_bytes: Option<u64>,
}

impl Share {
    fn add(&mut self, other: &Share) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a.unwrap_or(0) + b?);
        self.pages += other.pages;
        self.live_rows += other.live_rows;
        self.live_bytes += other.live_bytes;
        self.dead_rows = sum(self.dead_rows, other.dead_rows);
        self.dead_bytes = sum(self.dead_bytes, other.dead_bytes);
    }
}

/// What totals `pgstattuple` has, where the pages themselves could not be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Totals {
    /// Percent of the table that is dead.
    pub dead_percent: f64,
    /// Percent of the table that is free.
    pub free_percent: f64,
}

/// A table's pages.
#[derive(Debug, Clone, Serialize)]
pub struct Picture {
    /// The table, as SQL writes it.
    pub table: String,
    /// Pages of the table.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages that a cell stands for.
    pub pages_per_cell: u64,
    /// How they were looked at.
    pub look: Look,
    /// The cells, in the table's order.
    pub cells: Vec<Share>,
    /// All that was looked at, together.
    pub all: Share,
    /// Exact totals, where only live rows could be looked at but these are to be had.
    pub totals: Option<Totals>,
}

impl Picture {
    /// Looks at a table's pages.
    ///
    /// # Errors
    /// When it has no pages of its own, or the role may not read it.
    pub async fn take(client: &Client, table: &Table) -> Result<Picture> {
        if !matches!(table.kind, 'r' | 'm') {
            let message = format!("{} has no pages of its own", table.sql_name);
            let hint = match table.kind {
                'p' => "Name one of its partitions with `--table`; `\\d+` in psql lists them.",
                _ => "Name a table with `--table`.",
            };
            return Err(Error::new(Kind::Plan, message).hint(hint));
        }
        let surface = pages::Surface::read(client, table).await?;
        let pages_per_cell = surface.pages.div_ceil(CELLS_MAX).max(1);
        // Before the rows are read, by which pages are cleaned.
        let totals = match surface.sees_pages() {
            true => None,
            false => {
                super::begin(client).await?;
                let totals = tuples(client, table.oid).await;
                let failed = server_error("could not look at the table's space".to_owned());
                client.batch_execute("rollback").await.map_err(failed)?;
                totals
            }
        };
        let (look, cells) = surface.cells(client, pages_per_cell).await?;
        let mut all = match look {
            Look::Pages => Share { dead_rows: Some(0), dead_bytes: Some(0), ..Share::default() },
            Look::LiveRows => Share::default(),
        };
        cells.iter().for_each(|cell| all.add(cell));
        Ok(Picture {
            table: table.sql_name.clone(),
            pages: surface.pages,
            page_bytes: surface.page_bytes,
            pages_per_cell,
            look,
            cells,
            all,
            totals: totals
                .map(|(dead_percent, free_percent)| Totals { dead_percent, free_percent }),
        })
    }

    /// Whether only some of the pages were looked at.
    pub fn is_sampled(&self) -> bool {
        self.all.pages < self.pages
    }

    /// Bytes that were looked at.
    fn bytes(&self) -> f64 {
        (self.all.pages * self.page_bytes).max(1) as f64
    }

    /// Percent of what was looked at that is live, dead (where known) and the rest.
    pub fn percents(&self) -> (f64, Option<f64>, f64) {
        let share = |bytes: u64| 100.0 * bytes as f64 / self.bytes();
        let live = share(self.all.live_bytes);
        let dead = self.all.dead_bytes.map(share);
        (live, dead, (100.0 - live - dead.unwrap_or_default()).max(0.0))
    }

    /// The picture in a sentence.
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

    /// As SVG, for light and dark backgrounds.
    pub fn svg(&self) -> String {
        svg::draw(self)
    }
}
