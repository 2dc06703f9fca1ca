//! Draws a picture as SVG: each cell is filled from below with live rows, then dead rows.
//!
//! A cell of a small table is a square. The cells of a large table stand side by side, so that each
//! row of the picture shows the profile of a part of the table. A label before each row says where
//! in the table this row begins. All fillings of one colour are one path, so that the file stays
//! below 200 kB.

use std::fmt::Write as _;

use super::{PictureSource, TablePicture};
use pgspate_base::numbers::{bytes, thousands};

const MARGIN: f64 = 24.0;
/// The width of the labels before the rows of cells.
const LABELS: f64 = 76.0;
/// The left edge of the cells.
const LEFT: f64 = MARGIN + LABELS;
/// The upper edge of the grid, below the title.
const TOP: f64 = 78.0;
/// The height of a line of the legend.
const LEGEND_LINE: f64 = 24.0;
/// The smallest width; the legend fits even for a table of few pages.
const WIDTH_MIN: f64 = 640.0;

const STYLE: &str = "\
svg{--paper:#fff;--ink:#1f2328;--soft:#59636e;--live:#2f6fb5;--dead:#cf3f4f;--free:#d5dce3;\
--rest:#c5b68e;font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
@media (prefers-color-scheme:dark){svg{--paper:#0f1419;--ink:#e6edf3;--soft:#9aa5b1;\
--live:#5aa0e6;--dead:#f26d6d;--free:#343d47;--rest:#6d6345}}
.paper{fill:var(--paper)}.live{fill:var(--live)}.dead{fill:var(--dead)}.free{fill:var(--free)}\
.rest{fill:var(--rest)}
text{fill:var(--ink);font-size:14px}.title{font-size:19px;font-weight:600}.soft{fill:var(--soft);\
font-size:13px}.number{text-anchor:end;font-variant-numeric:tabular-nums}";

/// The number of cells in a row, their size and their distances, for a picture of about 950 pixels
/// in width.
#[derive(Clone, Copy)]
struct CellGrid {
    columns: usize,
    width: f64,
    height: f64,
    /// The space between two cells of a row.
    gap: f64,
    /// The space between two rows.
    row_gap: f64,
}

impl CellGrid {
    fn of(cells: usize) -> CellGrid {
        let square =
            |columns, side| CellGrid { columns, width: side, height: side, gap: 2.0, row_gap: 2.0 };
        let grid = match cells {
            0..=128 => square(16, 51.0),
            129..=512 => square(32, 24.0),
            // 1,024 squares would be too small to show a filling. These cells are 30 pixels high.
            _ => CellGrid { columns: 64, width: 13.0, height: 30.0, gap: 0.0, row_gap: 8.0 },
        };
        CellGrid { columns: grid.columns.min(cells.max(1)), ..grid }
    }

    /// Returns the left edge and the lower edge of a cell.
    fn corner(&self, nth: usize) -> (f64, f64) {
        let (row, column) = (nth / self.columns, nth % self.columns);
        let x = LEFT + column as f64 * (self.width + self.gap);
        (x, TOP + row as f64 * (self.height + self.row_gap) + self.height)
    }
}

/// Returns the picture as the text of an SVG file.
pub(super) fn draw(picture: &TablePicture) -> String {
    let grid = CellGrid::of(picture.cells.len());
    let rows = picture.cells.len().div_ceil(grid.columns).max(1);
    let cells_width = grid.columns as f64 * (grid.width + grid.gap) - grid.gap;
    let width = (LEFT + cells_width + MARGIN).max(WIDTH_MIN);
    let legend = TOP + rows as f64 * (grid.height + grid.row_gap) + 22.0;
    let lines = legend_lines(picture);
    let notes = notes(picture);
    let height = legend + lines.len() as f64 * LEGEND_LINE + notes.len() as f64 * 20.0 + 22.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(&picture.sentence()),
    );
    // Writing to a String cannot fail.
    let _ = write!(
        svg,
        "<text class=\"title\" x=\"{MARGIN}\" y=\"38\">{}</text>\n\
         <text class=\"soft\" x=\"{MARGIN}\" y=\"60\">{}</text>\n",
        escape(&picture.table),
        escape(&subtitle(picture)),
    );
    for (class, path) in paths(picture, grid) {
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
    }
    row_labels(picture, grid, rows, &mut svg);
    for (nth, line) in lines.iter().enumerate() {
        let y = legend + nth as f64 * LEGEND_LINE;
        let _ = write!(
            svg,
            "<rect class=\"{}\" x=\"{MARGIN}\" y=\"{y}\" width=\"12\" height=\"12\"/>\
             <text x=\"{}\" y=\"{baseline}\">{}</text>",
            line.class,
            MARGIN + 22.0,
            line.name,
            baseline = y + 11.0,
        );
        for (nth, number) in line.numbers.iter().enumerate() {
            let x = MARGIN + 210.0 + nth as f64 * 120.0;
            let _ =
                write!(svg, "<text class=\"number\" x=\"{x}\" y=\"{}\">{number}</text>", y + 11.0);
        }
        svg.push('\n');
    }
    let below = legend + lines.len() as f64 * LEGEND_LINE + 14.0;
    for (nth, note) in notes.iter().enumerate() {
        let y = below + nth as f64 * 20.0;
        let _ =
            writeln!(svg, "<text class=\"soft\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", escape(note));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns a path for each CSS class, from the back to the front.
fn paths(picture: &TablePicture, grid: CellGrid) -> Vec<(&'static str, String)> {
    let (mut free, mut dead, mut live) = (String::new(), String::new(), String::new());
    for (nth, cell) in picture.cells.iter().enumerate() {
        let (x, bottom) = grid.corner(nth);
        let bytes = (cell.pages * picture.page_bytes).max(1) as f64;
        let height = |part: u64| (part as f64 / bytes * grid.height).clamp(0.0, grid.height);
        let live_height = height(cell.live_bytes);
        let dead_height =
            height(cell.dead_bytes.unwrap_or_default()).min(grid.height - live_height);
        column(&mut free, x, bottom, grid.width, grid.height);
        column(&mut live, x, bottom, grid.width, live_height);
        column(&mut dead, x, bottom - live_height, grid.width, dead_height);
    }
    let rest = if picture.look == PictureSource::Pages { "free" } else { "rest" };
    let paths = [(rest, free), ("dead", dead), ("live", live)];
    paths.into_iter().filter(|(_, path)| !path.is_empty()).collect()
}

/// Writes before each row where in the table the row begins: a page, or bytes of a large table.
fn row_labels(picture: &TablePicture, grid: CellGrid, rows: usize, svg: &mut String) {
    for row in 0..rows {
        let nth = row * grid.columns;
        let page = nth as u64 * picture.pages_per_cell;
        let label = match picture.pages_per_cell {
            1 => format!("page {}", thousands(page)),
            _ => position(page * picture.page_bytes, row_bytes(picture, grid)),
        };
        let (x, bottom) = grid.corner(nth);
        let (x, y) = (x - 10.0, bottom - grid.height / 2.0 + 4.5);
        let _ = writeln!(svg, "<text class=\"soft number\" x=\"{x}\" y=\"{y}\">{label}</text>");
    }
}

/// Returns the bytes of the pages that a row of cells stands for.
fn row_bytes(picture: &TablePicture, grid: CellGrid) -> u64 {
    grid.columns as u64 * picture.pages_per_cell * picture.page_bytes
}

/// Formats a position in the table. All positions have the unit of the distance between two rows.
fn position(at: u64, distance: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (divisor, unit) =
        units.into_iter().find(|it| distance as f64 >= it.0).unwrap_or((1.0, "B"));
    match at as f64 / divisor {
        0.0 => "0".to_owned(),
        at if distance as f64 / divisor < 10.0 => format!("{at:.1} {unit}"),
        at => format!("{} {unit}", thousands(at.round() as u64)),
    }
}

/// Appends a rectangle with the lower edge `bottom` to a path, unless it is too low to be visible.
fn column(path: &mut String, x: f64, bottom: f64, width: f64, height: f64) {
    if height >= 0.05 {
        let _ = write!(path, "M{x} {}h{width}v-{}h-{width}z", round(bottom), round(height));
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A line of the legend: its colour, name, and percentage, bytes and rows.
struct LegendLine {
    class: &'static str,
    name: &'static str,
    numbers: [String; 3],
}

fn legend_lines(picture: &TablePicture) -> Vec<LegendLine> {
    let (live, dead, rest) = picture.percents();
    let factor = picture.pages as f64 / picture.all.pages.max(1) as f64;
    let all_bytes = (picture.pages * picture.page_bytes) as f64;
    let line = |class, name, percent: f64, rows: Option<u64>| LegendLine {
        class,
        name,
        numbers: [
            format!("{percent:.1} %"),
            bytes((all_bytes * percent / 100.0) as u64),
            rows.map_or(String::new(), |rows| {
                format!("{} rows", thousands((rows as f64 * factor).round() as u64))
            }),
        ],
    };
    let mut lines = vec![line("live", "live", live, Some(picture.all.live_rows))];
    match dead {
        Some(dead) => {
            lines.push(line("dead", "dead", dead, picture.all.dead_rows));
            lines.push(line("free", "free", rest, None));
        }
        None => lines.push(line("rest", "dead or free", rest, None)),
    }
    lines
}

fn subtitle(picture: &TablePicture) -> String {
    let cell = match picture.pages_per_cell {
        1 => "each cell is one page".to_owned(),
        pages => {
            let size = bytes(pages * picture.page_bytes);
            format!("each cell is {} pages ({size})", thousands(pages))
        }
    };
    format!(
        "{} pages, {}; {cell}, filled from below; from left to right, then down",
        thousands(picture.pages),
        bytes(picture.pages * picture.page_bytes)
    )
}

fn notes(picture: &TablePicture) -> Vec<String> {
    let mut notes = Vec::new();
    match picture.look {
        PictureSource::Pages => notes.push("Pages were read with pageinspect.".to_owned()),
        PictureSource::LiveRows => {
            let limit = "Only live rows could be read, so dead and free space have one colour;";
            notes.push(match picture.totals {
                Some(totals) => format!(
                    "{limit} pgstattuple says {:.1} % dead, {:.1} % free.",
                    totals.dead_percent, totals.free_percent
                ),
                None => format!(
                    "{limit} a superuser sees more after \u{201c}create extension \
                     pageinspect\u{201d}."
                ),
            });
        }
    }
    if picture.is_sampled() {
        notes.push(format!(
            "{} of {} pages were read, the first ones of each cell; numbers are estimates for the \
             whole table.",
            thousands(picture.all.pages),
            thousands(picture.pages)
        ));
    }
    notes
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::picture::PageContents;

    fn picture(cells: Vec<PageContents>) -> TablePicture {
        let mut all =
            PageContents { dead_rows: Some(0), dead_bytes: Some(0), ..PageContents::default() };
        cells.iter().for_each(|cell| all.add(cell));
        TablePicture {
            table: "public.\"a<b\"".to_owned(),
            pages: cells.len() as u64,
            page_bytes: 8192,
            pages_per_cell: 1,
            look: PictureSource::Pages,
            cells,
            all,
            totals: None,
        }
    }

    #[test]
    fn cells_show_live_and_dead_bytes() {
        let cell = |live_bytes, dead: u64| PageContents {
            pages: 1,
            live_rows: 10,
            live_bytes,
            dead_rows: Some(dead / 100),
            dead_bytes: Some(dead),
        };
        let picture = picture(vec![cell(8192, 0), cell(4096, 4096), cell(0, 0)]);
        let svg = picture.svg();
        assert!(
            svg.contains("class=\"live\" d=\"M100 129h51v-51h-51zM153 129h51v-25.5h-51z\""),
            "{svg}"
        );
        assert!(svg.contains("class=\"dead\" d=\"M153 103.5h51v-25.5h-51z\""), "{svg}");
        assert!(svg.contains("public.&quot;a&lt;b&quot;"));
        let sentence = "public.\"a<b\": 3 pages, 50 % live, 17 % dead, 33 % free";
        assert_eq!(picture.sentence(), sentence);
    }

    /// Returns the picture of a table of a gigabyte, of which a half was rewritten.
    fn gigabyte() -> TablePicture {
        let cell = |nth: u64| PageContents {
            pages: 64,
            live_rows: 1000,
            live_bytes: if nth < 512 { 500_000 - nth * 900 } else { 60_000 },
            dead_rows: Some(5),
            dead_bytes: Some(if nth < 512 { nth * 900 } else { 77_777 }),
        };
        let cells = (0..1024).map(cell).collect();
        TablePicture { pages: 131_072, pages_per_cell: 128, ..picture(cells) }
    }

    /// Returns the places of row labels: the number after `y="` of each.
    fn label_places(svg: &str) -> Vec<f64> {
        let labels = svg.split("class=\"soft number\"").skip(1);
        labels.map(|it| it.split('"').nth(3).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn a_gigabyte_has_cells_that_show_their_filling_and_labels_of_each_row() {
        let svg = gigabyte().svg();
        assert!(svg.contains("131,072 pages, 1.07 GB; each cell is 128 pages (1.05 MB)"), "{svg}");
        assert!(svg.contains("class=\"free\" d=\"M100 108h13v-30h-13z"), "{svg}");
        assert!(svg.contains(">0</text>") && svg.contains(">67 MB</text>"), "{svg}");
        assert!(svg.contains(">1,007 MB</text>"), "one unit for all labels: {svg}");
        let places = label_places(&svg);
        assert_eq!(places.len(), 16);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > 20.0), "{places:?}");
    }

    #[test]
    fn the_largest_picture_stays_below_200_kb() {
        let size = gigabyte().svg().len();
        assert!(size < 200_000, "{size}");
    }
}
