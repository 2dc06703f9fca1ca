//! The summary on top of the page: for each case who is faster, and by how much.
//!
//! A case is compared with its fastest other contender, also where pgspate is slower. Nothing
//! depends on colour: each row has its verdict in words.

use std::fmt::Write as _;

use super::svg::{Svg, escape};
use super::{caution, words};
use crate::comparison::{ComparedContender, Comparison};
use crate::dataset::DataKind;
use crate::experiment::Experiment;
use crate::results::Results;

/// Pixels of a drawn ratio. Its middle stands for equal speeds.
const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 14.0;

/// Writes the banner for results that are too small to judge, and the table.
pub(super) fn write(all: &[(&dyn Experiment, Results)], html: &mut String) {
    banner(all, html);
    let compared = all.iter().map(|(experiment, results)| experiment.comparisons(results));
    let compared: Vec<Vec<Comparison>> = compared.collect();
    html.push_str(
        "<h2 class=\"over\">Summary</h2>\n<p class=\"note\">Where pgspate takes part, it is \
         compared with the fastest other contender of each case. A bar to the right is faster, a \
         bar to the left slower; bars are drawn to the scale of their experiment.</p>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Summary\">\
         <table class=\"summary\">\n<tr><th>case</th><th class=\"level\">result</th><th></th>\
         <th class=\"level\">contender</th><th class=\"level\">compared with</th></tr>\n",
    );
    for ((experiment, results), rows) in all.iter().zip(&compared) {
        group(*experiment, results, html);
        if rows.is_empty() {
            let none = "no two contenders were measured in the same case";
            let _ = writeln!(html, "<tr><td colspan=\"5\" class=\"none\">{none}</td></tr>");
        }
        // The longest bar is at least a factor of two, so that small differences look small.
        let longest = rows.iter().map(|it| distance(it).abs()).fold(1.0, f64::max);
        rows.iter().for_each(|compared| row(compared, longest, html));
    }
    html.push_str("</table></div>\n");
}

/// Returns the scale of results: `scale 0.2`, or `your own files`.
pub(super) fn scale(results: &Results) -> String {
    let conditions = results.lines().first().map(|line| &line.conditions);
    match conditions {
        Some(it) if it.data.kind == DataKind::Files => "your own files".to_owned(),
        Some(it) => format!("scale {}", it.scale),
        None => String::new(),
    }
}

fn banner(all: &[(&dyn Experiment, Results)], html: &mut String) {
    let small = |(experiment, results): &(&dyn Experiment, Results)| {
        caution::too_small(*experiment, results)?;
        Some(format!("{} ({})", experiment.name(), scale(results)))
    };
    let small: Vec<String> = all.iter().filter_map(small).collect();
    if small.is_empty() {
        return;
    }
    let _ = writeln!(
        html,
        "<p class=\"banner\"><b>Too small to judge: {}.</b> Typical trials took less than {} s, so \
         the fixed costs of a start decide which is faster. Each section names a larger scale.</p>",
        escape(&words::listed(&small)),
        caution::SECONDS_LEAST
    );
}

/// Writes the heading of an experiment's rows.
fn group(experiment: &dyn Experiment, results: &Results, html: &mut String) {
    let small = match caution::too_small(experiment, results) {
        Some(_) => " <span class=\"small\">too small to judge</span>",
        None => "",
    };
    let _ = writeln!(
        html,
        "<tr class=\"group\"><th colspan=\"5\"><a href=\"#{}\">{}</a> <span class=\"at\">{}</span>\
         {small}</th></tr>",
        escape(experiment.name()),
        escape(experiment.title_with(results.data().kind)),
        escape(&scale(results))
    );
}

fn row(compared: &Comparison, longest: f64, html: &mut String) {
    let contender = |it: &ComparedContender| {
        let value = words::value(it.value.median, compared.unit);
        format!("<td class=\"level\"><b>{}</b> {}</td>", escape(&value), escape(&it.name))
    };
    let verdict = words::verdict(compared);
    let kind = match () {
        () if verdict.starts_with("equal") => "equal",
        () if compared.speed_ratio() > 1.0 => "faster",
        () => "slower",
    };
    let _ = writeln!(
        html,
        "<tr><td>{}</td><td class=\"level verdict {kind}\">{}</td><td>{}</td>{}{}</tr>",
        escape(&compared.case),
        escape(&verdict),
        drawn(compared, longest, kind),
        contender(&compared.ours),
        contender(&compared.theirs)
    );
}

/// Returns the ratio of speeds as a distance from zero, alike for twice as fast and half as fast.
fn distance(compared: &Comparison) -> f64 {
    let log = compared.speed_ratio().log2();
    if log.is_finite() { log } else { 0.0 }
}

/// Draws the ratio of speeds: a bar from the middle to the right if faster, to the left if slower.
fn drawn(compared: &Comparison, longest: f64, kind: &str) -> String {
    let middle = WIDTH / 2.0;
    let length = (distance(compared) / longest * (middle - 2.0)).clamp(2.0 - middle, middle - 2.0);
    let mut svg = Svg::new(WIDTH);
    let (x, width) = (middle + length.min(0.0), length.abs().max(1.0));
    let bar = format!(
        "class=\"gain {kind}\" x=\"{x:.1}\" y=\"2\" width=\"{width:.1}\" height=\"{:.0}\"",
        HEIGHT - 4.0
    );
    svg.shape("rect", bar, "");
    svg.line("axis-line", (middle, 0.0), (middle, HEIGHT));
    svg.finish("ratio", HEIGHT, &words::verdict(compared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Unit;
    use crate::spread::Spread;

    fn compared(ours: f64, theirs: f64) -> Comparison {
        let of = Spread::exactly;
        Comparison::new("a <case>", ("pgspate", of(ours)), ("COPY", of(theirs)), Unit::Seconds)
    }

    #[test]
    fn a_row_says_who_is_faster_and_by_how_much() {
        let mut html = String::new();
        row(&compared(13.1, 11.1), 1.0, &mut html);
        assert!(html.contains("<td>a &lt;case&gt;</td>"), "{html}");
        assert!(html.contains("verdict slower\">18 % slower</td>"), "{html}");
        assert!(html.contains("<b>13.1 s</b> pgspate") && html.contains("<b>11.1 s</b> COPY"));
    }

    #[test]
    fn bars_of_gains_stay_within_their_width() {
        for (ours, theirs) in [(1.0, 1000.0), (1000.0, 1.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)] {
            let svg = drawn(&compared(ours, theirs), 2.0, "faster");
            let number = |name: &str| -> f64 {
                let found = svg.split(&format!(" {name}=\"")).nth(if name == "x" { 1 } else { 2 });
                found.unwrap().split('"').next().unwrap().parse().unwrap()
            };
            let (x, width) = (number("x"), number("width"));
            assert!(x >= 0.0 && x + width <= WIDTH, "{svg}");
        }
    }
}
