//! Flags of `pgspate load`.

use clap::builder::TypedValueParser;
use pgspate::copy::{Commit, RejectsMax};
use pgspate::load::{ChangedFiles, LoadOptions};
use pgspate::plan::ReplaceMode;

use super::fleet::member;
use super::reading::reading;
use super::shared::{CommonArgs, files, limits, new_table, output, plan, table, target, when};
use super::{CommandFlags, Flag, choice, part, path, switch, under, value};

/// The arguments of `pgspate load`.
#[derive(Default)]
pub(crate) struct LoadArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: LoadOptions,
}

impl CommandFlags for LoadArgs {
    fn flags() -> Vec<Vec<Flag<LoadArgs>>> {
        let common = |flags| part(|it: &mut LoadArgs| &mut it.common, flags);
        let options = |flags| part(|it: &mut LoadArgs| &mut it.options, flags);
        let limits = limits("Keep trying for this long while the server is unreachable");
        vec![
            options(part(|it: &mut LoadOptions| &mut it.reading, files())),
            options(part(|it: &mut LoadOptions| &mut it.table, table())),
            common(vec![target()]),
            options(rows()),
            common(vec![plan("Show what would be done and why, then stop")]),
            options(vec![lanes()]),
            options(safety()),
            options(part(|it: &mut LoadOptions| &mut it.limits, limits)),
            options(care()),
            options(part(|it: &mut LoadOptions| &mut it.fleet, member())),
            options(part(|it: &mut LoadOptions| &mut it.reading, reading())),
            common(output("Print the report, or with --plan the plan, as JSON on stdout")),
        ]
    }
}

/// Returns the flags that decide which rows the table has after the load.
fn rows() -> Vec<Flag<LoadOptions>> {
    let create = switch("create", |it: &mut LoadOptions| it.create = true)
        .help("Create the table if it is missing, with types that fit the input");
    let mut flags = vec![create];
    let key = "Make these columns the primary key of the created table";
    flags.extend(part(|it: &mut LoadOptions| &mut it.new_table, new_table(key)));
    flags.extend([
        value("replace", "HOW", replace(), |it: &mut LoadOptions, how| it.plan.replace = Some(how))
            .with(|arg| arg.num_args(0..=1).require_equals(true).default_missing_value("auto"))
            .help("Replace all rows; readers see the old rows, or wait, until the new are loaded"),
        switch("atomic", |it: &mut LoadOptions| it.plan.atomic = true)
            .help("Make all new rows visible at once: no transaction sees only a part of them"),
    ]);
    flags
}

fn lanes() -> Flag<LoadOptions> {
    let number = |value: &str| match value.parse() {
        _ if value == "auto" => Ok(None),
        Ok(lanes @ 1..=64) => Ok(Some(lanes)),
        _ => Err("expected auto, or a number from 1 to 64"),
    };
    value("lanes", "N", number, |it: &mut LoadOptions, lanes| it.plan.lanes = lanes)
        .default("auto")
        .help("Load over this many connections at the same time: a number, or auto")
}

fn safety() -> Vec<Flag<LoadOptions>> {
    let flags = vec![
        value("commit", "COMMIT", commit(), |it: &mut LoadOptions, commit| it.plan.commit = commit)
            .default("auto")
            .help("Choose when to commit"),
        value("rejects", "FILE", path(), |it: &mut LoadOptions, file| it.rejects = Some(file))
            .help("Write rejected rows to this file, and load the rest"),
        value("max-rejects", "N|P%", rejects_max, |it: &mut LoadOptions, max| {
            it.rejects_max = Some(max)
        })
        .help("Stop after more than this many rejected rows: a number, or a share such as 0.5%"),
        value("changed", "ACTION", changed(), |it: &mut LoadOptions, action| it.changed = action)
            .default("error")
            .help("Refuse, leave out or load again files that have changed since they were loaded"),
        switch("allow-empty", |it: &mut LoadOptions| it.may_empty = true)
            .help("With --replace, allow an input without rows to empty the table"),
        switch("restart", |it: &mut LoadOptions| it.restart = true)
            .help("Start over and ignore earlier runs in the ledger; the rows of these runs stay"),
        switch("no-ledger", |it: &mut LoadOptions| it.plan.no_ledger = true)
            .help("Keep no ledger: commit at the end; each run loads all rows, and cannot resume"),
        switch("into-shards", |it: &mut LoadOptions| it.plan.into_shards = true)
            .help("Write to the nodes of a distributed table of Citus, past the coordinator"),
    ];
    under("Safety", flags)
}

/// Returns the flags for indexes, autovacuum and statistics of the table.
fn care() -> Vec<Flag<LoadOptions>> {
    let flags = vec![
        value(
            "rebuild-indexes",
            "WHEN",
            when("If that is faster"),
            |it: &mut LoadOptions, when| it.plan.rebuild_indexes = when,
        )
        .default("auto")
        .help("Drop indexes and foreign keys and rebuild them after the load"),
        value(
            "pause-autovacuum",
            "WHEN",
            when("If the input has 8 GiB or more"),
            |it: &mut LoadOptions, when| it.plan.pause_autovacuum = when,
        )
        .default("auto")
        .help("Switch autovacuum off for the table during the load"),
        value(
            "analyze",
            "WHEN",
            when("If at least a tenth of the rows is new"),
            |it: &mut LoadOptions, when| it.plan.analyze = when,
        )
        .default("auto")
        .help("Run ANALYZE afterwards"),
        switch("vacuum", |it: &mut LoadOptions| it.plan.vacuum = true)
            .help("Run VACUUM (FREEZE, ANALYZE) afterwards"),
    ];
    under("Table", flags)
}

fn replace() -> impl TypedValueParser<Value = ReplaceMode> {
    let truncate = "Empty and fill the table in one transaction; readers wait until it ends";
    let swap = "Fill a shadow table and exchange the two; readers wait for the exchange";
    choice([
        ("auto", "Choose the way that the table allows", ReplaceMode::Auto),
        ("truncate", truncate, ReplaceMode::Truncate),
        ("swap", swap, ReplaceMode::Swap),
    ])
}

fn commit() -> impl TypedValueParser<Value = Option<Commit>> {
    let end = "Commit once at the end: a load that fails leaves nothing behind";
    let chunk = "Commit each chunk: after a stop, the next run loads only the rest";
    choice([
        ("auto", "At the end below 1 GiB, with each chunk above", None),
        ("end", end, Some(Commit::AtEnd)),
        ("chunk", chunk, Some(Commit::EachChunk)),
    ])
}

fn changed() -> impl TypedValueParser<Value = ChangedFiles> {
    let reload = "Load changed files again; the table then has the rows of both versions";
    choice([
        ("error", "Load nothing and name the changed files", ChangedFiles::Error),
        ("skip", "Leave changed files out", ChangedFiles::Skip),
        ("reload", reload, ChangedFiles::Reload),
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
