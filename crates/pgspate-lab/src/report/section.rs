//! One experiment's part of the page.
//!
//! It has the question, the conditions, the answer, published results, figures, a table of all
//! trials, and the command to repeat them. The conditions with the scale stay in sight.

use std::fmt::Write as _;

use super::figure::{Figure, Plot, PlotTable, Strip};
use super::svg::escape;
use super::{bars, caution, lines, reproduce, summary, words};
use crate::dataset::DataKind;
use crate::experiment::{Experiment, LabTrial, PublishedResults, TrialPicture, Unit};
use crate::results::Results;
use crate::spread::Spread;

/// Pixels of a figure on a wide and on a narrow page.
const WIDE: f64 = 780.0;
const NARROW: f64 = 348.0;
/// A table's cell with more bytes than this is a sentence.
const SENTENCE_MIN: usize = 60;

/// A factor with the levels that were tried.
pub(super) struct TriedFactor<'a> {
    pub(super) name: &'a str,
    pub(super) levels: Vec<&'a str>,
}

/// Writes the section.
pub(super) fn write(experiment: &dyn Experiment, results: &Results, html: &mut String) {
    let data = results.data().kind;
    let _ = write!(
        html,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"conditions\">{}</p>\n\
         <p class=\"question\">{}</p>\n",
        escape(experiment.name()),
        escape(experiment.title_with(data)),
        conditions(experiment, results),
        escape(experiment.question_with(data))
    );
    if let Some(caution) = caution::too_small(experiment, results) {
        let _ = writeln!(html, "<p class=\"banner\">{}</p>", escape(&caution));
    }
    if results.is_empty() {
        html.push_str("<p class=\"answer\">No trial could be measured on this server.</p>\n");
    } else {
        let _ = writeln!(html, "<p class=\"answer\">{}</p>", escape(&experiment.answer(results)));
        if let Some(published) = experiment.published().filter(|_| data == DataKind::default()) {
            write_published(&published, html);
        }
        let scale = summary::scale(results);
        for figure in experiment.figures(results).iter().filter(|figure| !figure.is_empty()) {
            draw(figure, &scale, html);
        }
        trials(experiment, results, html);
    }
    reproduce::write(experiment, results, html);
    html.push_str("</section>\n");
}

/// Returns the line that stays on top while its section is read: `bulk · scale 0.2, …`.
fn conditions(experiment: &dyn Experiment, results: &Results) -> String {
    let Some(first) = results.lines().first() else { return String::new() };
    let part = match (results.data().kind, first.conditions.scale) {
        (DataKind::Files, _) => String::new(),
        (_, 1.0) => ", the published size".to_owned(),
        (_, scale) => {
            format!(", {} of the published size", words::value(scale * 100.0, Unit::Percent))
        }
    };
    let repeats = results.lines().iter().map(|line| line.repeat + 1).max().unwrap_or(1);
    let repeats = match repeats {
        1 => "made once".to_owned(),
        many => format!("{many} repeats"),
    };
    format!(
        "{} · <b>{}</b>{part} · {repeats} · PostgreSQL {}",
        escape(experiment.name()),
        escape(&summary::scale(results)),
        escape(&first.conditions.postgres)
    )
}

/// Opens an element that scrolls sideways where the table in it is wider than the page.
fn open_scroll(label: &str, html: &mut String) {
    let label = escape(label);
    let _ = write!(
        html,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">"
    );
}

fn write_published(published: &PublishedResults, html: &mut String) {
    let (setting, source) = (escape(published.setting), &published.source);
    let _ = writeln!(
        html,
        "<div class=\"published\">\n<p><b>What others have published.</b> {setting} Source: \
         <a href=\"{}\">{}</a>.</p>",
        escape(source.url),
        escape(source.title)
    );
    open_scroll("What others have published", html);
    html.push_str("<table>\n");
    for (what, figure) in &published.figures {
        let _ = writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(what), escape(figure));
    }
    html.push_str("</table></div>\n</div>\n");
}

/// Draws a figure. The scale is beside its title, so that a copy of the figure alone has the scale.
fn draw(figure: &Figure, scale: &str, html: &mut String) {
    let (title, scale) = (escape(&figure.title), escape(scale));
    let _ = writeln!(
        html,
        "<div class=\"figure\">\n<h3>{title} <span class=\"at\">{scale}</span></h3>"
    );
    if !figure.note.is_empty() {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(&figure.note));
    }
    let widths = [(WIDE, "wide"), (NARROW, "narrow")];
    match &figure.plot {
        Plot::Bars(plot) => widths.iter().for_each(|(pixels, class)| {
            html.push_str(&bars::draw(plot, *pixels, class, &figure.title));
        }),
        Plot::Lines(plot) => widths.iter().for_each(|(pixels, class)| {
            html.push_str(&lines::draw(plot, *pixels, class, &figure.title));
        }),
        Plot::Table(plot) => table(plot, &figure.title, html),
        Plot::Pictures(all) => pictures(all, html),
        Plot::Strips(all) => all.iter().for_each(|one| strip(one, html)),
    }
    html.push_str("\n</div>\n");
}

fn table(table: &PlotTable, label: &str, html: &mut String) {
    open_scroll(label, html);
    html.push_str("<table>\n<tr>");
    // Sentences begin at the left, numbers end at the right.
    let has_sentences = |nth: usize| {
        table.rows.iter().any(|row| row.get(nth).is_some_and(|cell| cell.len() > SENTENCE_MIN))
    };
    let class = |nth: usize| if has_sentences(nth) { " class=\"sentence\"" } else { "" };
    for (nth, column) in table.columns.iter().enumerate() {
        let _ = write!(html, "<th{}>{}</th>", class(nth), escape(column));
    }
    html.push_str("</tr>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for (nth, cell) in row.iter().enumerate() {
            let _ = write!(html, "<td{}>{}</td>", class(nth), escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
}

/// Embeds SVG documents as images, so that no script in them can run. Each has the whole width,
/// because its text cannot be read at a fraction of its size. Only the first one is open.
fn pictures(all: &[(String, TrialPicture)], html: &mut String) {
    for (nth, (caption, picture)) in all.iter().enumerate() {
        let open = if nth == 0 { " open" } else { "" };
        let caption = escape(caption);
        let _ = write!(html, "<details class=\"picture\"{open}><summary>{caption}</summary>");
        open_scroll(&caption, html);
        let _ = writeln!(html, "{}</div></details>", image(picture, &caption));
    }
}

fn strip(strip: &Strip, html: &mut String) {
    if strip.pictures.is_empty() {
        return;
    }
    let name = escape(&strip.name);
    let _ = writeln!(html, "<div class=\"strip\"><div class=\"caption\">{name}</div>");
    for (word, picture) in &strip.pictures {
        let image = image(picture, &format!("{}: {word}", strip.name));
        let _ = writeln!(html, "<div>{image}<span>{}</span></div>", escape(word));
    }
    html.push_str("</div>\n");
}

fn image(picture: &TrialPicture, said: &str) -> String {
    let data = base64(picture.svg.as_bytes());
    format!("<img alt=\"{}\" src=\"data:image/svg+xml;base64,{data}\">", escape(said))
}

/// Writes the table of all trials. Factors that most trials leave at their baseline share one
/// column, `changed`.
fn trials(experiment: &dyn Experiment, results: &Results, html: &mut String) {
    let trials = results.trials();
    let factors = factors(&trials);
    let is_rare = |factor: &&TriedFactor<'_>| {
        let base = factor.levels.first().copied().unwrap_or_default();
        let changed = trials.iter().filter(|trial| !trial.is(factor.name, base)).count();
        factor.levels.len() > 1 && changed * 4 <= trials.len()
    };
    let (rare, own): (Vec<&TriedFactor<'_>>, Vec<&TriedFactor<'_>>) =
        factors.iter().partition(is_rare);
    let has_any = |name: &&str| results.spread(&[], name).is_some();
    let numbers: Vec<&str> = experiment.columns().into_iter().filter(has_any).collect();
    html.push_str("<details open><summary>All trials: median, minimum and maximum</summary>\n");
    open_scroll("All trials", html);
    html.push_str("<table class=\"trials\">\n<tr>");
    let headings =
        own.iter().map(|factor| factor.name).chain((!rare.is_empty()).then_some("changed"));
    for heading in headings {
        let _ = write!(html, "<th class=\"level\">{}</th>", escape(heading));
    }
    for name in &numbers {
        let _ = write!(html, "<th>{}</th>", escape(name.trim_start_matches("phase: ")));
    }
    html.push_str("</tr>\n");
    for trial in trials {
        html.push_str("<tr>");
        let mut levels: Vec<String> =
            own.iter().map(|factor| trial.level(factor.name).to_owned()).collect();
        if !rare.is_empty() {
            levels.push(changed(trial, &rare));
        }
        for level in levels {
            let _ = write!(html, "<td class=\"level\">{}</td>", escape(&level));
        }
        let levels: Vec<(&str, &str)> = trial.levels().collect();
        for name in &numbers {
            cell(results.spread(&levels, name), results, name, html);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div></details>\n");
}

/// Returns the factors of these trials with their levels, the baseline first.
pub(super) fn factors<'a>(trials: &[&'a LabTrial]) -> Vec<TriedFactor<'a>> {
    let mut factors: Vec<TriedFactor<'a>> = Vec::new();
    for (name, level) in trials.iter().flat_map(|trial| trial.levels()) {
        match factors.iter_mut().find(|factor| factor.name == name) {
            Some(factor) if factor.levels.contains(&level) => {}
            Some(factor) => factor.levels.push(level),
            None => factors.push(TriedFactor { name, levels: vec![level] }),
        }
    }
    factors
}

/// Returns the changed levels, as in `settings tuned`, or a dash.
fn changed(trial: &LabTrial, rare: &[&TriedFactor<'_>]) -> String {
    let of = |factor: &&TriedFactor<'_>| {
        let level = trial.level(factor.name);
        let is_base = factor.levels.first().is_none_or(|base| *base == level);
        (!is_base).then(|| format!("{} {level}", factor.name))
    };
    let all: Vec<String> = rare.iter().filter_map(of).collect();
    if all.is_empty() { "–".to_owned() } else { all.join(", ") }
}

fn cell(spread: Option<Spread>, results: &Results, name: &str, html: &mut String) {
    let Some(spread) = spread else {
        html.push_str("<td>–</td>");
        return;
    };
    let unit = results.unit(name);
    let median = escape(&words::value(spread.median, unit));
    let (min, max) = (words::value(spread.min, unit), words::value(spread.max, unit));
    let range = match spread.count {
        0 | 1 => String::new(),
        _ if min == max => String::new(),
        _ => format!("<span class=\"range\">{} – {}</span>", escape(&min), escape(&max)),
    };
    let _ = write!(html, "<td>{median}{range}</td>");
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |nth: usize| u32::from(three.get(nth).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for nth in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * nth)) as usize & 63] as char;
            text.push(if nth <= three.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::experiment::tests::SampleExperiment;
    use crate::results::tests::line;

    fn section(seconds: f64) -> String {
        let lines = vec![line(&[("way", "a")], 0, seconds)];
        let mut html = String::new();
        write(&SampleExperiment, &Results::new(lines, Path::new(".")), &mut html);
        html
    }

    #[test]
    fn the_scale_is_in_sight_and_a_small_one_has_a_banner() {
        let html = section(0.5);
        let conditions = "sample · <b>scale 0.5</b>, 50 % of the published size · made once · \
                          PostgreSQL 15.1";
        assert!(html.contains(conditions), "{html}");
        assert!(html.contains("<h3>Times <span class=\"at\">scale 0.5</span></h3>"), "{html}");
        assert!(html.contains("<p class=\"banner\">Too small to judge: "), "{html}");
        assert!(!section(60.0).contains("banner"));
    }

    #[test]
    fn published_figures_have_their_source() {
        let html = section(60.0);
        let source = "Source: <a href=\"https://example.org/?a=1&amp;b\">A paper</a>.";
        assert!(html.contains(source) && html.contains("<td>5 s</td>"), "{html}");
    }

    #[test]
    fn sentences_in_a_table_begin_at_the_left() {
        let row = vec!["order by".to_owned(), "12 ms".to_owned(), "many words ".repeat(9)];
        let columns = ["query", "time", "result"].map(str::to_owned).to_vec();
        let mut html = String::new();
        table(&PlotTable { columns, rows: vec![row] }, "results", &mut html);
        assert!(html.contains("<th class=\"sentence\">result</th>"), "{html}");
        assert!(html.contains("<td>12 ms</td><td class=\"sentence\">many"), "{html}");
    }

    #[test]
    fn every_table_scrolls_on_a_narrow_screen() {
        let html = section(60.0);
        let before: Vec<&str> = html.split("<table").collect();
        assert!(before.len() > 2, "{html}");
        let (_, before) = before.split_last().unwrap();
        assert!(before.iter().all(|text| text.rsplit('<').next().unwrap().contains("scroll")));
    }

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
