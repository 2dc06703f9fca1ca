//! Flags of `pgspate load`.

use clap::builder::TypedValueParser;
use pgspate::copy::{Commit, RejectsMax};
use pgspate::load::Options;
use pgspate::plan::Replace;

use super::reading::reading;
use super::shared::{CommonArgs, files, limits, output, plan, table, target, when};
use super::{Flag, Flagged, choice, part, path, switch, under, value};

/// What `pgspate load` is asked for.
#[derive(Default)]
pub(crate) struct LoadArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: Options,
}

impl Flagged for LoadArgs {
    fn flags() -> Vec<Vec<Flag<LoadArgs>>> {
        let common = |flags| part(|it: &mut LoadArgs| &mut it.common, flags);
        let options = |flags| part(|it: &mut LoadArgs| &mut it.options, flags);
        let limits = limits("How long to go on trying when the server is away");
        vec![
            options(part(|it: &mut Options| &mut it.reading, files())),
            options(part(|it: &mut Options| &mut it.table, table())),
            common(vec![target()]),
            options(rows()),
            common(vec![plan("Show what would be done, and why, and stop")]),
            options(vec![lanes()]),
            options(safety()),
            options(part(|it: &mut Options| &mut it.limits, limits)),
            options(care()),
            options(part(|it: &mut Options| &mut it.reading, reading())),
            common(output("Print the report, or with --plan the plan, as JSON on stdout")),
        ]
    }
}

/// What becomes of the table's rows.
fn rows() -> Vec<Flag<Options>> {
    vec![
        switch("create", |it: &mut Options| it.create = true)
            .help("Make the table when it is missing, with the types that the input needs"),
        value("replace", "HOW", replace(), |it: &mut Options, how| it.plan.replace = Some(how))
            .with(|arg| arg.num_args(0..=1).require_equals(true).default_missing_value("auto"))
            .help(
                "The input's rows instead of those that the table has, which stay until all are \
                 there",
            ),
        switch("atomic", |it: &mut Options| it.plan.atomic = true)
            .help("All rows become visible at once, or with --replace instead of the old ones"),
    ]
}

fn lanes() -> Flag<Options> {
    let number = |said: &str| match said.parse() {
        _ if said == "auto" => Ok(None),
        Ok(lanes @ 1..=64) => Ok(Some(lanes)),
        _ => Err("expected auto, or a number from 1 to 64"),
    };
    value("lanes", "N", number, |it: &mut Options, lanes| it.plan.lanes = lanes)
        .default("auto")
        .help("Connections that load at the same time: a number, or auto")
}

fn safety() -> Vec<Flag<Options>> {
    let flags = vec![
        value("commit", "COMMIT", commit(), |it: &mut Options, commit| it.plan.commit = commit)
            .default("auto")
            .help("When to commit: at the end, with each chunk, or auto by the size of the input"),
        value("rejects", "FILE", path(), |it: &mut Options, file| it.rejects = Some(file))
            .help("Set rows that are refused aside in this file, and load the rest"),
        value("max-rejects", "N|P%", rejects_max, |it: &mut Options, max| {
            it.rejects_max = Some(max)
        })
        .with(|arg| arg.requires("rejects"))
        .help("Stop when more rows are refused than this: a number, or a share such as 0.5%"),
        switch("restart", |it: &mut Options| it.restart = true)
            .help("Begin anew, whatever the ledger says of earlier runs; what they wrote stays"),
        switch("no-ledger", |it: &mut Options| it.plan.no_ledger = true).help(
            "Keep no ledger: in one piece, not resumable, and loaded as often as it is asked for",
        ),
    ];
    under("Safety", flags)
}

/// What is done to the table around the load.
fn care() -> Vec<Flag<Options>> {
    let flags = vec![
        value("rebuild-indexes", "WHEN", when(), |it: &mut Options, when| {
            it.plan.rebuild_indexes = when
        })
        .default("auto")
        .help(
            "Drop indexes and foreign keys for the load and make them again: auto where that pays",
        ),
        value("pause-autovacuum", "WHEN", when(), |it: &mut Options, when| {
            it.plan.pause_autovacuum = when
        })
        .default("auto")
        .help("Switch autovacuum off for the table meanwhile: auto from 8 GiB of input on"),
        value("analyze", "WHEN", when(), |it: &mut Options, when| it.plan.analyze = when)
            .default("auto")
            .help("Run ANALYZE afterwards: auto when a tenth of the rows is new"),
        switch("vacuum", |it: &mut Options| it.plan.vacuum = true)
            .help("Run VACUUM (FREEZE, ANALYZE) afterwards"),
    ];
    under("Table", flags)
}

fn replace() -> impl TypedValueParser<Value = Replace> {
    let truncate = "In one transaction that empties the table first; readers wait for its end";
    let swap = "By a shadow table that takes its place; readers wait for the exchange only";
    choice([
        ("auto", "As the table allows", Replace::Auto),
        ("truncate", truncate, Replace::Truncate),
        ("swap", swap, Replace::Swap),
    ])
}

fn commit() -> impl TypedValueParser<Value = Option<Commit>> {
    let end = "All at the end: a load that fails leaves nothing behind";
    let chunk = "Each chunk: a load that stops goes on from there when it is run again";
    choice([
        ("auto", "At the end below 1 GiB, with each chunk above", None),
        ("end", end, Some(Commit::AtEnd)),
        ("chunk", chunk, Some(Commit::EachChunk)),
    ])
}

fn rejects_max(value: &str) -> Result<RejectsMax, String> {
    let expected = || "expected a number of rows, or a share of them such as 0.5%".to_owned();
    match value.strip_suffix('%') {
        None => value.parse().map(RejectsMax::Rows).map_err(|_| expected()),
        Some(share) => match share.trim().parse::<f64>() {
            Ok(share) if (0.0..=100.0).contains(&share) => Ok(RejectsMax::Percent(share)),
            _ => Err(expected()),
        },
    }
}
