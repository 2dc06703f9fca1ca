//! Bars: lengths from zero, each with its name, its value, and a point for each repeat.
//!
//! On a wide page names are to the left of the bars, on a narrow one above them. Nothing depends on
//! colour: every bar has its name and its value in words.

use super::axis_unit::AxisUnit;
use super::figure::{Bar, BarGroup, Bars};
use super::scale::AxisScale;
use super::svg::{Svg, colours, fitted, strong_width, width};
use super::words;
use crate::experiment::Unit;

const BAR: f64 = 16.0;
const GAP: f64 = 8.0;
const HEADING: f64 = 26.0;
const AXIS: f64 = 26.0;
/// The share of the width for names; longer names go above their bars.
const NAMES_SHARE: f64 = 0.38;

struct BarsFrame<'a> {
    left: f64,
    length: f64,
    scale: AxisScale,
    unit: Unit,
    axis: AxisUnit,
    names_above: bool,
    colours: Vec<(&'a str, usize)>,
}

/// Draws the bars at a width of `pixels`.
pub(super) fn draw(bars: &Bars, pixels: f64, class: &str, label: &str) -> String {
    let frame = frame(bars, pixels);
    let mut svg = Svg::new(pixels);
    let bottom: f64 = bars.groups.iter().map(|group| height(group, &frame)).sum();
    axis(&mut svg, &frame, bottom);
    let mut y = 0.0;
    for group in &bars.groups {
        if !group.name.is_empty() {
            svg.text("group", (0.0, y + HEADING - 9.0), "start", &fitted(&group.name, pixels));
            y += HEADING;
        }
        for bar in &group.bars {
            y += draw_bar(&mut svg, &frame, bar, y, pixels);
        }
        y += GAP;
    }
    svg.finish(class, bottom + AXIS, label)
}

fn frame(bars: &Bars, pixels: f64) -> BarsFrame<'_> {
    let unit = bars.unit.unwrap_or(Unit::Plain);
    let all = || bars.groups.iter().flat_map(|group| &group.bars);
    let widest = |of: &dyn Fn(&Bar) -> f64| all().map(of).fold(0.0, f64::max);
    let names = widest(&|bar| width(&bar.name)) + 10.0;
    let axis = AxisUnit::of(unit, widest(&|bar| bar.value.max), false);
    let values = widest(&|bar| strong_width(&axis.value(bar.value.median))) + 16.0;
    let names_above = names > pixels * NAMES_SHARE;
    let left = if names_above { 0.0 } else { names };
    let mut names: Vec<&str> = Vec::new();
    for bar in all() {
        if !names.contains(&bar.name.as_str()) {
            names.push(&bar.name);
        }
    }
    let colours = names.iter().copied().zip(colours(&names)).collect();
    let length = (pixels - left - values).max(40.0);
    let scale = AxisScale::to_greatest(all().map(|bar| axis.amount(bar.value.max)));
    BarsFrame { left, length, scale, unit, axis, names_above, colours }
}

fn height(group: &BarGroup, frame: &BarsFrame<'_>) -> f64 {
    let heading = if group.name.is_empty() { 0.0 } else { HEADING };
    heading + group.bars.len() as f64 * row(frame) + GAP
}

fn row(frame: &BarsFrame<'_>) -> f64 {
    if frame.names_above { BAR + 18.0 + GAP } else { BAR + GAP }
}

fn axis(svg: &mut Svg, frame: &BarsFrame<'_>, bottom: f64) {
    let steps = (frame.length / 90.0).clamp(2.0, 6.0) as usize;
    let mut free_from = f64::NEG_INFINITY;
    for tick in frame.scale.ticks(steps) {
        let x = frame.left + frame.scale.place(tick) * frame.length;
        svg.line("grid", (x, 0.0), (x, bottom));
        let text = frame.axis.tick(tick);
        let half = width(&text) / 2.0;
        let (at, anchor) = if x - half < 0.0 { (x, "start") } else { (x, "middle") };
        let begin = if anchor == "start" { at } else { at - half };
        // Two names of an axis never touch.
        if begin > free_from + 6.0 {
            svg.text("tick", (at, bottom + 17.0), anchor, &text);
            free_from = begin + 2.0 * half;
        }
    }
}

fn draw_bar(svg: &mut Svg, frame: &BarsFrame<'_>, bar: &Bar, top: f64, pixels: f64) -> f64 {
    let mut y = top + GAP / 2.0;
    if frame.names_above {
        svg.text("label", (0.0, y + 13.0), "start", &fitted(&bar.name, pixels));
        y += 18.0;
    } else {
        svg.text("label", (frame.left - 10.0, y + 12.5), "end", &bar.name);
    }
    let place =
        |value: f64| frame.left + frame.scale.place(frame.axis.amount(value)) * frame.length;
    let colour = frame.colours.iter().find(|it| it.0 == bar.name).map_or(0, |it| it.1);
    let kind = if bar.is_computed { "hollow" } else { "bar" };
    let (x, end) = (frame.left, place(bar.value.median));
    let said = format!("{}: {}", bar.name, words::spread(&bar.value, frame.unit));
    let length = (end - x).max(1.0);
    let rect = format!(
        "class=\"{kind} c{colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" \
         height=\"{BAR}\" rx=\"1.5\""
    );
    svg.shape("rect", rect, &said);
    let (low, high) = (place(bar.value.min), place(bar.value.max));
    let middle = y + BAR / 2.0;
    if high - low > 2.0 {
        svg.line("whisker", (low, middle), (high, middle));
    }
    if !bar.is_computed {
        repeats(svg, bar.value.values.iter().map(|value| place(*value)), middle);
    }
    let value = frame.axis.value(bar.value.median);
    svg.text("value", (end.max(high) + 8.0, y + 12.5), "start", &value);
    row(frame)
}

/// Draws a point for each repeat, from left to right. Points that would hide each other are drawn
/// above and below the middle.
fn repeats(svg: &mut Svg, places: impl Iterator<Item = f64>, middle: f64) {
    let (mut last, mut above) = (f64::NEG_INFINITY, 0.0);
    for x in places {
        above = match x - last {
            distance if distance >= 5.0 => 0.0,
            _ if above == -4.0 => 4.0,
            _ => -4.0,
        };
        last = x;
        let y = middle + above;
        let point = format!("class=\"repeat\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"");
        svg.shape("circle", point, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::Spread;

    fn bars() -> Bars {
        let bar = |name: &str, value: [f64; 3]| Bar::measured(name, Spread::of(value).unwrap());
        let bars = vec![bar("COPY", [4.0, 5.0, 6.0]), bar("pgspate", [1.0, 2.0, 2.5])];
        let computed = vec![Bar::computed("COPY", 9.0)];
        Bars {
            unit: Some(Unit::Seconds),
            groups: vec![
                BarGroup { name: "default".to_owned(), bars },
                BarGroup { name: "<tuned>".to_owned(), bars: computed },
            ],
        }
    }

    #[test]
    fn every_bar_has_its_name_and_its_value() {
        for (pixels, class) in [(760.0, "wide"), (340.0, "narrow")] {
            let svg = draw(&bars(), pixels, class, "seconds");
            assert_eq!(svg.matches("<rect").count(), 3);
            assert_eq!(svg.matches(">COPY</text>").count(), 2);
            assert!(svg.contains(">5.00 s</text>") && svg.contains(">&lt;tuned&gt;</text>"));
            assert!(svg.contains("pgspate: 2.00 s (1.00 s – 2.50 s)"));
            assert_eq!(svg.matches("class=\"hollow").count(), 1);
            assert_eq!(svg.matches("class=\"whisker\"").count(), 2);
            // Three repeats of two bars; the computed bar has none.
            assert_eq!(svg.matches("class=\"repeat\"").count(), 6);
        }
    }

    #[test]
    fn one_unit_is_on_the_axis_and_beside_the_bars() {
        let mut bars = bars();
        bars.groups[0].bars.push(Bar::measured("fast", Spread::exactly(0.042)));
        bars.groups[1].bars.push(Bar::measured("slow", Spread::exactly(119.0)));
        let svg = draw(&bars, 760.0, "wide", "");
        assert!(svg.contains(">119 s</text>") && svg.contains(">0.042 s</text>"), "{svg}");
        assert!(!svg.contains(" ms</text>"), "{svg}");
    }

    #[test]
    fn nothing_is_drawn_beyond_the_edge() {
        let svg = draw(&bars(), 340.0, "narrow", "");
        let numbers = svg.split("x2=\"").skip(1);
        let right = numbers.filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        assert!(right.fold(0.0, f64::max) <= 340.0);
        let empty = draw(&Bars::default(), 340.0, "narrow", "");
        assert!(!empty.contains("NaN"), "{empty}");
    }
}
