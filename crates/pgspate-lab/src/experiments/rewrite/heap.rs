//! Small pictures of the table's pages after each night. The report shows them side by side.
//!
//! All pictures of a scale have the same number of pages per cell, so a growing table fills more
//! cells. On the lab's own server the pages are read from the table's file after a checkpoint.
//! Thus the server's cache is unchanged for the next night.

use std::fmt::Write as _;

use pgspate::target::connect::Connection;

use crate::TrialPicture;

/// The number of cells in a picture, and in one row of the picture.
const CELLS: usize = 192;
const COLUMNS: usize = 24;
/// The width and height of a cell, and the gap between two rows of cells.
const WIDTH: usize = 3;
const HEIGHT: usize = 8;
const GAP: usize = 1;
/// The number of sampled pages of a cell.
const PAGES_LOOKED: u64 = 4;
/// The number of rows on a page, and the greatest growth of the table that the pictures allow.
/// Ten nights that rewrite all rows make the table about eleven times as large.
const ROWS_PER_PAGE: u64 = 150;
const GROWTH: u64 = 12;
/// The number of pages in a segment file. A larger table has several segment files.
const PAGES_PER_FILE: u64 = 131_072;

const STYLE: &str = "\
.live{fill:#2f6fb5}.dead{fill:#cf3f4f}.free{fill:#d5dce3}\
@media(prefers-color-scheme:dark){.live{fill:#5aa0e6}.dead{fill:#f26d6d}.free{fill:#343d47}}";

/// The bytes of each kind in the sampled pages of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HeapCell {
    all: u64,
    live: u64,
    dead: u64,
}

/// Returns the name of a night's picture.
pub(super) fn name(night: u32) -> String {
    format!("heap-{night:02}")
}

/// Returns the number of pages for each cell, from the number of rows before the first night.
pub(super) fn pages_per_cell(rows: u64) -> u64 {
    (rows.div_ceil(ROWS_PER_PAGE) * GROWTH).div_ceil(CELLS as u64).max(1)
}

/// Reads the table's cells after a night.
///
/// Returns `None` if the extension `pageinspect` is missing or the role may not use it.
pub(super) async fn take(
    connection: &Connection,
    table: u32,
    per_cell: u64,
    has_files: bool,
) -> Option<Vec<HeapCell>> {
    let client = &connection.client;
    let size = "select pg_relation_size($1::oid::regclass, 'main'), \
                       current_setting('block_size')::int8";
    let row = client.query_one(size, &[&table]).await.ok()?;
    let [bytes, page_bytes] = [0, 1].map(|nth| row.get::<_, i64>(nth).unsigned_abs());
    let pages = bytes / page_bytes.max(1);
    let sql = sql(table, pages, page_bytes, per_cell, has_files);
    let rows = client.query(&sql, &[]).await.ok()?;
    let looked = PAGES_LOOKED.min(per_cell);
    let count = pages.div_ceil(per_cell);
    let mut cells: Vec<HeapCell> = (0..count)
        .map(|nth| HeapCell {
            all: looked.min(pages - nth * per_cell) * page_bytes,
            ..HeapCell::default()
        })
        .collect();
    for row in rows {
        let [nth, live, dead] = [0, 1, 2].map(|nth| row.get::<_, i64>(nth).unsigned_abs());
        if let Some(cell) = cells.get_mut(nth as usize) {
            (cell.live, cell.dead) = (live, dead);
        }
    }
    Some(cells)
}

/// Returns a query for the live and dead bytes of each cell.
///
/// No session writes meanwhile, and all transactions are committed. So a row version is live if no
/// transaction has deleted it. A row version that was only locked is live, too.
fn sql(table: u32, pages: u64, page_bytes: u64, per_cell: u64, has_files: bool) -> String {
    let page = match has_files {
        true => format!(
            "pg_read_binary_file(pg_relation_filepath({table}) || \
             case when b < {PAGES_PER_FILE} then '' else '.' || b / {PAGES_PER_FILE} end, \
             b % {PAGES_PER_FILE} * {page_bytes}, {page_bytes})"
        ),
        false => format!("get_raw_page({table}::regclass::text, b::int)"),
    };
    // HEAP_XMAX_INVALID (2048): no transaction has deleted the row version.
    // HEAP_XMAX_LOCK_ONLY (128): a transaction has only locked the row version.
    let live = "i.lp_flags = 1 and (i.t_xmax = '0' or i.t_infomask & (2048 | 128) <> 0)";
    format!(
        "select b / {per_cell}, \
                coalesce(sum(i.lp_len + 4) filter (where {live}), 0)::int8, \
                coalesce(sum(i.lp_len + 4) filter (where not ({live})), 0)::int8 \
         from generate_series(0, {pages}::int8 - 1) b \
         cross join lateral heap_page_items({page}) i \
         where b % {per_cell} < {PAGES_LOOKED} and i.lp_flags in (1, 3) \
         group by 1"
    )
}

/// Draws the pictures of all nights. All pictures are as high as the largest picture.
pub(super) fn pictures(nights: &[(u32, Vec<HeapCell>)]) -> Vec<TrialPicture> {
    let most = nights.iter().map(|(_, cells)| cells.len()).max().unwrap_or_default();
    let rows = most.div_ceil(COLUMNS).max(1);
    let picture = |(night, cells): &(u32, Vec<HeapCell>)| TrialPicture {
        name: name(*night),
        svg: draw(cells, rows, *night),
    };
    nights.iter().map(picture).collect()
}

/// Draws rows of cells. Each cell shows live bytes at the bottom, then dead bytes, then free space.
fn draw(cells: &[HeapCell], rows: usize, night: u32) -> String {
    let (width, height) = (COLUMNS * WIDTH, rows * (HEIGHT + GAP) - GAP);
    let [mut free, mut dead, mut live] = [const { String::new() }; 3];
    for (nth, row) in cells.chunks(COLUMNS).enumerate() {
        let bottom = nth * (HEIGHT + GAP) + HEIGHT;
        let part = |cell: &HeapCell, bytes: u64| {
            let share = bytes as f64 / cell.all.max(1) as f64;
            (share * HEIGHT as f64).round().min(HEIGHT as f64) as usize
        };
        profile(&mut free, bottom, row.iter().map(|_| HEIGHT));
        profile(&mut dead, bottom, row.iter().map(|cell| part(cell, cell.live + cell.dead)));
        profile(&mut live, bottom, row.iter().map(|cell| part(cell, cell.live)));
    }
    let sum = |of: &dyn Fn(&HeapCell) -> u64| cells.iter().map(of).sum::<u64>() as f64;
    let percent = |part: f64| 100.0 * part / sum(&|cell| cell.all).max(1.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         shape-rendering=\"crispEdges\"><title>After night {night}: {:.0} % live, {:.0} % dead\
         </title><style>{STYLE}</style><path class=\"free\" d=\"{free}\"/>\
         <path class=\"dead\" d=\"{dead}\"/><path class=\"live\" d=\"{live}\"/></svg>\n",
        percent(sum(&|cell| cell.live)),
        percent(sum(&|cell| cell.dead)),
    )
}

/// Appends one shape for a row of cells. Neighbouring cells of one height share a path segment.
fn profile(path: &mut String, bottom: usize, heights: impl Iterator<Item = usize>) {
    let mut steps: Vec<(usize, usize)> = Vec::new();
    for height in heights {
        match steps.last_mut() {
            Some((known, cells)) if *known == height => *cells += 1,
            _ => steps.push((height, 1)),
        }
    }
    if steps.iter().all(|(height, _)| *height == 0) {
        return;
    }
    // Writing to a String cannot fail.
    let _ = write!(path, "M0 {bottom}");
    for (height, cells) in steps {
        let _ = write!(path, "V{}h{}", bottom - height, cells * WIDTH);
    }
    let _ = write!(path, "V{bottom}z");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_filled_from_below() {
        let cell = |live, dead| HeapCell { all: 800, live, dead };
        let svg = draw(&[cell(800, 0), cell(400, 400), cell(400, 0), cell(0, 0)], 2, 3);
        assert!(svg.contains("class=\"free\" d=\"M0 8V0h12V8z\""), "{svg}");
        assert!(svg.contains("class=\"dead\" d=\"M0 8V0h6V4h3V8h3V8z\""), "{svg}");
        assert!(svg.contains("class=\"live\" d=\"M0 8V0h3V4h6V8h3V8z\""), "{svg}");
        assert!(svg.contains("After night 3: 50 % live, 12 % dead"), "{svg}");
        assert!(svg.contains("viewBox=\"0 0 72 17\""), "{svg}");
    }

    #[test]
    fn a_picture_is_small() {
        let mixed: Vec<HeapCell> =
            (0..192).map(|nth| HeapCell { all: 8, live: nth % 8, dead: nth % 3 }).collect();
        let size = draw(&mixed, 8, 10).len();
        assert!(size < 3500, "{size}");
        assert!(draw(&[], 1, 1).contains("0 % live"));
        let few = mixed[..30].to_vec();
        let pictures = pictures(&[(1, few), (2, mixed)]);
        assert!(pictures.iter().all(|picture| picture.svg.contains("viewBox=\"0 0 72 71\"")));
        assert_eq!(pictures[1].name, "heap-02");
        // The published number of rows, a hundredth of it, and very few rows.
        assert_eq!([300_000, 3000, 20].map(pages_per_cell), [125, 2, 1]);
    }
}
