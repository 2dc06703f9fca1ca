//! What the report shows of nightly rewrites.

use super::super::plots::{bar, faster, said, series};
use super::ways::Way;
use super::{AUTOVACUUM, CONTENDER, NIGHTS};
use crate::report::figure::{Axis, Bars, Figure, Group, Lines, Plot};
use crate::report::words;
use crate::{Results, Unit};

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let mut all = vec![
        Figure::new(
            "Time of ten nights",
            "pgspate reads its rows from a file and connects each night; the others have theirs in \
             memory, and a session that is open. Row by row, the rows are compared in this \
             program; a mapper's own work in a slower language comes on top.",
            bars(results, "seconds", Unit::Seconds),
        ),
        Figure::new(
            "What ten nights would be billed as",
            "Where I/Os are billed: each page that is not in the server's cache, and each 4 KiB of \
             WAL. There is a checkpoint between two nights, so the first change of each page logs \
             the whole page, which such a service does not bill: fewer are better all the same.",
            bars(results, "billed I/Os", Unit::Count),
        ),
        Figure::new(
            "Pages written by ten nights",
            "What the checkpoints between the nights had to write.",
            bars(results, "pages written", Unit::Count),
        ),
    ];
    let lines = [
        ("dead rows", "Dead rows after each night", Unit::Count),
        ("table size", "Size of the table after each night", Unit::Bytes),
        ("index size", "Size of its index after each night", Unit::Bytes),
    ];
    for (name, title, unit) in lines {
        all.push(Figure::new(title, "Without autovacuum.", curves(results, name, unit)));
    }
    let pictures = results.trials().into_iter().filter_map(|trial| {
        let caption = match trial.is(AUTOVACUUM, "on") {
            true => format!("{}, with autovacuum", trial.level(CONTENDER)),
            false => trial.level(CONTENDER).to_owned(),
        };
        Some((caption, results.picture(trial, "heap")?))
    });
    all.push(Figure::new(
        "The table's pages after the last night",
        "Each cell is one or more pages in the table's order, filled from below: rows that are \
         seen, then dead ones; the rest is free.",
        Plot::Pictures(pictures.collect()),
    ));
    all
}

fn bars(results: &Results, number: &str, unit: Unit) -> Plot {
    let group = |(name, level): (&str, &str)| {
        let of = |way: &Way| {
            let levels = [(CONTENDER, way.name()), (AUTOVACUUM, level)];
            bar(results, way.name(), &levels, number)
        };
        Group { name: name.to_owned(), bars: Way::ALL.iter().filter_map(of).collect() }
    };
    let groups = [("without autovacuum", "off"), ("with autovacuum between the nights", "on")];
    let groups = groups.map(group).into_iter().filter(|group| !group.bars.is_empty());
    Plot::Bars(Bars { unit: Some(unit), groups: groups.collect() })
}

fn curves(results: &Results, name: &str, unit: Unit) -> Plot {
    let of = |way: &Way| {
        let levels = [(CONTENDER, way.name()), (AUTOVACUUM, "off")];
        series(results, way.name(), &levels, name)
    };
    Plot::Lines(Lines {
        x: Axis::linear("night", Unit::Plain),
        y: Axis::linear(name, unit),
        lines: Way::ALL.iter().filter_map(of).collect(),
    })
}

pub(super) fn answer(results: &Results) -> String {
    let at = |way: Way| [(CONTENDER, way.name()), (AUTOVACUUM, "off")];
    let seconds = |way: Way| results.median(&at(way), "seconds");
    let Some(ours) = seconds(Way::Sync) else {
        return "pgspate sync has not been measured.".to_owned();
    };
    let others = [Way::DeleteInsert, Way::Upsert, Way::Orm, Way::Merge];
    let compared: Vec<String> = others
        .into_iter()
        .filter_map(|way| {
            let name = if way == Way::Orm { "row by row" } else { way.name() };
            Some(format!("{} {name}", faster(ours, seconds(way)?)))
        })
        .collect();
    let number = |way: Way, name: &str, unit: Unit| said(results, &at(way), name, unit);
    format!(
        "{NIGHTS} nights took pgspate sync {}: {}; its WAL was {}, against {} of delete + insert, \
         {} row by row and {} of stage + MERGE, and it left {} dead rows ({} with fillfactor 60) \
         against {}, {} and {}.",
        words::value(ours, Unit::Seconds),
        compared.join(", "),
        number(Way::Sync, "WAL of the nights", Unit::Bytes),
        number(Way::DeleteInsert, "WAL of the nights", Unit::Bytes),
        number(Way::Orm, "WAL of the nights", Unit::Bytes),
        number(Way::Merge, "WAL of the nights", Unit::Bytes),
        number(Way::Sync, "dead rows", Unit::Count),
        number(Way::SyncWithRoom, "dead rows", Unit::Count),
        number(Way::DeleteInsert, "dead rows", Unit::Count),
        number(Way::Orm, "dead rows", Unit::Count),
        number(Way::Merge, "dead rows", Unit::Count),
    )
}
