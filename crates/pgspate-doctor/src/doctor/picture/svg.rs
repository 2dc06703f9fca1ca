//! Draws a picture as SVG: each cell is a column, filled from below with live rows, then dead rows.
//!
//! All fillings of one colour are one path, so that the file stays below 200 kB.

use std::fmt::Write as _;

use super::{PictureSource, TablePicture};
use pgspate_base::numbers::{bytes, thousands};

/// The space between two cells.
const GAP: f64 = 2.0;
const MARGIN: f64 = 24.0;
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

/// The number of cells in a row and their size, for a picture of about 900 pixels in width.
#[derive(Clone, Copy)]
struct CellGrid {
    columns: usize,
    cell: f64,
}

impl CellGrid {
    fn of(cells: usize) -> CellGrid {
        let (columns, cell) = match cells {
            0..=128 => (16, 54.0),
            129..=512 => (32, 26.0),
            _ => (64, 12.0),
        };
        CellGrid { columns: columns.min(cells.max(1)), cell }
    }
}

/// Returns the picture as the text of an SVG file.
pub(super) fn draw(picture: &TablePicture) -> String {
    let grid = CellGrid::of(picture.cells.len());
    let rows = picture.cells.len().div_ceil(grid.columns).max(1);
    let step = grid.cell + GAP;
    let width = (grid.columns as f64 * step - GAP + 2.0 * MARGIN).max(WIDTH_MIN);
    let legend = TOP + rows as f64 * step + 22.0;
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
    let CellGrid { columns, cell: side } = grid;
    for (nth, cell) in picture.cells.iter().enumerate() {
        let x = MARGIN + (nth % columns) as f64 * (side + GAP);
        let bottom = TOP + (nth / columns) as f64 * (side + GAP) + side;
        let bytes = (cell.pages * picture.page_bytes).max(1) as f64;
        let height = |part: u64| (part as f64 / bytes * side).clamp(0.0, side);
        let live_height = height(cell.live_bytes);
        let dead_height = height(cell.dead_bytes.unwrap_or_default()).min(side - live_height);
        column(&mut free, x, bottom, side, side);
        column(&mut live, x, bottom, side, live_height);
        column(&mut dead, x, bottom - live_height, side, dead_height);
    }
    let rest = if picture.look == PictureSource::Pages { "free" } else { "rest" };
    let paths = [(rest, free), ("dead", dead), ("live", live)];
    paths.into_iter().filter(|(_, path)| !path.is_empty()).collect()
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
        1 => "one cell is one page".to_owned(),
        pages => format!("one cell is {} pages", thousands(pages)),
    };
    format!(
        "{} pages, {}; {cell}; the first is at the top left; cells fill from below",
        thousands(picture.pages),
        bytes(picture.pages * picture.page_bytes)
    )
}

fn notes(picture: &TablePicture) -> Vec<String> {
    let mut notes = Vec::new();
    match picture.look {
        PictureSource::Pages => notes.push("Each page was read with pageinspect.".to_owned()),
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
            svg.contains("class=\"live\" d=\"M24 132h54v-54h-54zM80 132h54v-27h-54z\""),
            "{svg}"
        );
        assert!(svg.contains("class=\"dead\" d=\"M80 105h54v-27h-54z\""), "{svg}");
        assert!(svg.contains("public.&quot;a&lt;b&quot;"));
        let sentence = "public.\"a<b\": 3 pages, 50 % live, 17 % dead, 33 % free";
        assert_eq!(picture.sentence(), sentence);
    }

    #[test]
    fn the_largest_picture_stays_below_200_kb() {
        let cell = PageContents {
            pages: 99,
            live_rows: 1,
            live_bytes: 77_777,
            dead_rows: Some(5),
            dead_bytes: Some(99_999),
        };
        let size = picture(vec![cell; 2048]).svg().len();
        assert!(size < 200_000, "{size}");
    }
}
