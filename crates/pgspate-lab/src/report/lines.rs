//! Lines: values along an axis, each line with its own marks and its name.
//!
//! On a wide page a line's name is at its end, on a narrow one below the frame. Names never
//! overlap: those that would are pushed apart and keep their order. Lines differ in colour and in
//! marks.

use std::fmt::Write as _;

use super::axis_unit::AxisUnit;
use super::figure::{Axis, Curve, Lines};
use super::scale::AxisScale;
use super::svg::{FONT, Svg, colours, fitted, strong_width, width};
use super::words;
use crate::spread::Spread;

const TOP: f64 = 26.0;
const HEIGHT: f64 = 250.0;
const BOTTOM: f64 = 44.0;
const LEGEND_ROW: f64 = 20.0;
const NAME_HEIGHT: f64 = 17.0;

struct LinesFrame {
    left: f64,
    right: f64,
    x: AxisScale,
    y: AxisScale,
    x_unit: AxisUnit,
    y_unit: AxisUnit,
}

impl LinesFrame {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        self.at_amounts(self.x_unit.amount(x), self.y_unit.amount(y))
    }

    /// Returns the place of values that are already in the units of the axes, such as ticks.
    fn at_amounts(&self, x: f64, y: f64) -> (f64, f64) {
        let across = self.left + self.x.place(x) * (self.right - self.left);
        (across, TOP + (1.0 - self.y.place(y)) * HEIGHT)
    }
}

/// Draws the lines at a width of `pixels`.
pub(super) fn draw(lines: &Lines, pixels: f64, class: &str, label: &str) -> String {
    let shown: Vec<&Curve> = lines.lines.iter().filter(|it| !it.points.is_empty()).collect();
    let names: Vec<&str> = shown.iter().map(|line| line.name.as_str()).collect();
    let colours = colours(&names);
    let widest = names.iter().map(|name| strong_width(name)).fold(0.0, f64::max);
    let names_beside = widest + 18.0 < pixels * 0.3;
    let frame = frame(lines, &shown, pixels, if names_beside { widest + 18.0 } else { 14.0 });
    let mut svg = Svg::new(pixels);
    axes(&mut svg, lines, &frame, pixels);
    for (line, colour) in shown.iter().zip(&colours) {
        curve(&mut svg, &frame, line, *colour, lines);
    }
    let mut height = TOP + HEIGHT + BOTTOM;
    if names_beside {
        name_ends(&mut svg, &frame, &shown, &colours);
    } else {
        height = legend(&mut svg, &names, &colours, pixels, height);
    }
    svg.finish(class, height, label)
}

fn frame(lines: &Lines, shown: &[&Curve], pixels: f64, beside: f64) -> LinesFrame {
    let points = || shown.iter().flat_map(|line| &line.points);
    let unit = |axis: &Axis, values: &dyn Fn(&(f64, Spread)) -> f64| {
        AxisUnit::of(axis.unit, points().map(values).fold(0.0, f64::max), axis.is_log)
    };
    let (x_unit, y_unit) = (unit(&lines.x, &|it| it.0), unit(&lines.y, &|it| it.1.max));
    let xs = || points().map(|(x, _)| x_unit.amount(*x));
    let x = if lines.x.is_log { AxisScale::log(xs(), true) } else { AxisScale::linear(xs()) };
    let least = points().map(|(_, y)| y_unit.amount(y.min));
    let most = || points().map(|(_, y)| y_unit.amount(y.max));
    let y = match lines.y.is_log {
        true => AxisScale::log(least.chain(most()), false),
        false => AxisScale::from_zero(most(), 5),
    };
    let ticks = y.ticks(6).into_iter().map(|tick| width(&y_unit.tick(tick)));
    let left = ticks.fold(0.0, f64::max) + 10.0;
    LinesFrame { left, right: pixels - beside, x, y, x_unit, y_unit }
}

fn axes(svg: &mut Svg, lines: &Lines, frame: &LinesFrame, pixels: f64) {
    let mut name = lines.y.name.clone();
    if lines.y.is_log {
        name += ", each step is ten times the last";
    }
    svg.text("axis", (0.0, 13.0), "start", &fitted(&name, pixels));
    for tick in frame.y.ticks(6) {
        let y = frame.at_amounts(0.0, tick).1;
        svg.line("grid", (frame.left, y), (frame.right, y));
        let text = frame.y_unit.tick(tick);
        svg.text("tick", (frame.left - 8.0, y + 4.5), "end", &text);
    }
    let bottom = TOP + HEIGHT;
    let steps = ((frame.right - frame.left) / 80.0).max(2.0) as usize;
    let mut free_from = f64::NEG_INFINITY;
    for tick in frame.x.ticks(steps) {
        let x = frame.at_amounts(tick, 0.0).0;
        let text = frame.x_unit.tick(tick);
        let half = width(&text) / 2.0;
        svg.line("axis-line", (x, bottom), (x, bottom + 4.0));
        let middle = x.min(pixels - half);
        if middle - half > free_from + 6.0 {
            svg.text("tick", (middle, bottom + 18.0), "middle", &text);
            free_from = middle + half;
        }
    }
    svg.line("axis-line", (frame.left, bottom), (frame.right, bottom));
    let name = fitted(&lines.x.name, frame.right - frame.left);
    svg.text("axis", (frame.right, bottom + 37.0), "end", &name);
}

fn curve(svg: &mut Svg, frame: &LinesFrame, line: &Curve, colour: usize, lines: &Lines) {
    let mut path = String::new();
    for (nth, (x, y)) in line.points.iter().enumerate() {
        let (x, y) = frame.at(*x, y.median);
        let _ = write!(path, "{}{x:.1} {y:.1}", if nth == 0 { "M" } else { "L" });
    }
    svg.shape("path", format!("class=\"curve c{colour}\" d=\"{path}\""), "");
    for (x, y) in &line.points {
        let (low, high) = (frame.at(*x, y.min), frame.at(*x, y.max));
        if low.1 - high.1 > 6.0 {
            svg.line(&format!("spread c{colour}"), low, high);
        }
        let at = words::value(*x, lines.x.unit);
        let said = format!("{}, {at}: {}", line.name, words::spread(y, lines.y.unit));
        if y.count > 1 {
            for value in &y.values {
                let (x, y) = frame.at(*x, *value);
                let class = format!("class=\"point c{colour}\"");
                svg.shape("circle", format!("{class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.2\""), "");
            }
        }
        mark(svg, colour, frame.at(*x, y.median), &said);
    }
}

/// Each colour has its own shape.
fn mark(svg: &mut Svg, colour: usize, (x, y): (f64, f64), said: &str) {
    let class = format!("class=\"mark c{colour}\"");
    let around = |points: &[(f64, f64)]| {
        let points = points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
        points.collect::<Vec<_>>().join(" ")
    };
    let polygon: &[(f64, f64)] = match colour {
        0 => {
            svg.shape("circle", format!("{class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\""), said);
            return;
        }
        1 => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
        2 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
        3 => &[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)],
        4 => &[(0.0, 5.0), (5.0, -4.0), (-5.0, -4.0)],
        5 => &[(-5.0, -2.0), (5.0, -2.0), (5.0, 2.0), (-5.0, 2.0)],
        6 => &[(-2.0, -5.0), (2.0, -5.0), (2.0, 5.0), (-2.0, 5.0)],
        _ => &[(-5.0, 0.0), (4.0, -5.0), (4.0, 5.0)],
    };
    svg.shape("polygon", format!("{class} points=\"{}\"", around(polygon)), said);
}

fn name_ends(svg: &mut Svg, frame: &LinesFrame, shown: &[&Curve], colours: &[usize]) {
    let ends = shown.iter().filter_map(|line| line.points.last());
    let wanted: Vec<f64> = ends.map(|(x, y)| frame.at(*x, y.median).1).collect();
    let places = apart(&wanted, NAME_HEIGHT, (TOP, TOP + HEIGHT));
    for ((line, colour), y) in shown.iter().zip(colours).zip(places) {
        let class = format!("name t{colour}");
        svg.text(&class, (frame.right + 10.0, y + 4.5), "start", &line.name);
    }
}

/// Returns positions near the wanted positions, in their order and at least `distance` apart.
fn apart(wanted: &[f64], distance: f64, (from, to): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = wanted.to_vec();
    let mut least = f64::NEG_INFINITY;
    for nth in &order {
        places[*nth] = places[*nth].max(least);
        least = places[*nth] + distance;
    }
    // Names that are now below the end move up again, and push the names above them.
    let mut most = to.max(from + distance * wanted.len().saturating_sub(1) as f64);
    for nth in order.iter().rev() {
        places[*nth] = places[*nth].min(most);
        most = places[*nth] - distance;
    }
    places
}

fn legend(svg: &mut Svg, names: &[&str], colours: &[usize], pixels: f64, from: f64) -> f64 {
    let (mut x, mut y) = (0.0, from + FONT);
    for (name, colour) in names.iter().zip(colours) {
        let name = fitted(name, (pixels - 24.0) / 1.1);
        let needed = 20.0 + strong_width(&name) + 14.0;
        if x > 0.0 && x + needed > pixels {
            (x, y) = (0.0, y + LEGEND_ROW);
        }
        mark(svg, *colour, (x + 7.0, y - 4.5), "");
        svg.text(&format!("name t{colour}"), (x + 20.0, y), "start", &name);
        x += needed;
    }
    y + 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Unit;

    fn lines(names: &[&str]) -> Lines {
        let points = |nth: usize| {
            [1.0, 10.0, 100.0].map(|x| (x, Spread::exactly(x * (nth + 1) as f64))).to_vec()
        };
        Lines {
            x: Axis::log("events in a batch", Unit::Count),
            y: Axis::log("events a second", Unit::PerSecond),
            lines: names
                .iter()
                .enumerate()
                .map(|(nth, name)| Curve { name: (*name).to_owned(), points: points(nth) })
                .collect(),
        }
    }

    #[test]
    fn names_are_pushed_apart_and_keep_their_order() {
        assert_eq!(apart(&[10.0, 50.0], 15.0, (0.0, 100.0)), [10.0, 50.0]);
        assert_eq!(apart(&[50.0, 48.0, 49.0], 15.0, (0.0, 100.0)), [78.0, 48.0, 63.0]);
        assert_eq!(apart(&[99.0, 98.0], 15.0, (0.0, 100.0)), [100.0, 85.0]);
        let many = apart(&[1.0; 9], 15.0, (0.0, 60.0));
        assert!(many.windows(2).all(|pair| pair[1] - pair[0] >= 15.0), "{many:?}");
    }

    #[test]
    fn every_line_is_named_at_every_width() {
        let lines = lines(&["pgspate", "a <b>", "one prepared statement for each event"]);
        for (pixels, class) in [(760.0, "wide"), (340.0, "narrow")] {
            let svg = draw(&lines, pixels, class, "");
            for name in ["pgspate", "a &lt;b&gt;", "one prepared statement for each event"] {
                assert_eq!(svg.matches(&format!(">{name}</text>")).count(), 1, "{name}");
            }
            assert_eq!(svg.matches("class=\"curve").count(), 3);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn each_repeat_has_a_point() {
        let mut lines = lines(&["a"]);
        lines.lines[0].points[1].1 = Spread::of([4.0, 10.0, 30.0]).unwrap();
        let svg = draw(&lines, 760.0, "wide", "");
        assert_eq!(svg.matches("class=\"point c2\"").count(), 3);
        // All ticks of a logarithmic axis have one unit: never k/s and M/s in turn.
        assert!(svg.contains(">100/s</text>") && !svg.contains("k/s"), "{svg}");
    }

    #[test]
    fn short_names_are_at_the_lines_ends_and_a_figure_may_be_empty() {
        let svg = draw(&lines(&["a", "b"]), 760.0, "wide", "");
        assert_eq!(svg.matches("class=\"mark").count(), 6);
        let none = draw(&lines(&[]), 760.0, "wide", "");
        assert!(!none.contains("NaN"), "{none}");
    }
}
