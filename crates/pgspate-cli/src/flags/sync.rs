//! Flags of `pgspate sync`.

use clap::builder::TypedValueParser;
use clap::value_parser;
use pgspate::sync::{Scope, SyncOptions};

use super::fleet::member;
use super::reading::reading;
use super::shared::{CommonArgs, files, limits, new_table, output, plan, table, target, when};
use super::{CommandFlags, Flag, choice, column_names, part, switch, text, value};

/// The arguments of `pgspate sync`.
#[derive(Default)]
pub(crate) struct SyncArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: SyncOptions,
    pub(crate) advise_only: bool,
}

impl CommandFlags for SyncArgs {
    const ONE_OF: &'static [&'static str] = &["scope-by", "scope", "no-delete", "insert-only"];

    fn flags() -> Vec<Vec<Flag<SyncArgs>>> {
        let common = |flags| part(|it: &mut SyncArgs| &mut it.common, flags);
        let options = |flags| part(|it: &mut SyncArgs| &mut it.options, flags);
        let limits = limits(
            "Keep trying for this long after deadlocks, lost connections and similar errors",
        );
        let advise_only = switch("advise-only", |it: &mut SyncArgs| {
            (it.advise_only, it.options.is_check) = (true, true)
        })
        .with(|arg| arg.conflicts_with("check"))
        .help(
            "Change nothing: show what would make such a sync cheaper; exit with 1 if there is \
             any advice",
        );
        vec![
            options(part(|it: &mut SyncOptions| &mut it.reading, files())),
            options(part(|it: &mut SyncOptions| &mut it.table, table())),
            common(vec![target()]),
            options(creation()),
            options(rows()),
            vec![advise_only],
            common(vec![plan("Show the statements, then stop")]),
            options(writing()),
            options(part(|it: &mut SyncOptions| &mut it.limits, limits)),
            options(part(|it: &mut SyncOptions| &mut it.fleet, member())),
            options(part(|it: &mut SyncOptions| &mut it.reading, reading())),
            options(vec![price()]),
            common(output("Print the report as JSON on stdout")),
        ]
    }
}

/// Returns the flags that create the table.
fn creation() -> Vec<Flag<SyncOptions>> {
    let create = switch("create", |it: &mut SyncOptions| it.create = true)
        .with(|arg| arg.conflicts_with_all(["check", "advise-only", "plan"]))
        .help("Create the table if it is missing, with types that fit the source");
    let key = "Make these columns the primary key of the created table; by default those of --key";
    let mut flags = vec![create];
    flags.extend(part(|it: &mut SyncOptions| &mut it.new_table, new_table(key)));
    flags
}

/// Returns the flags that choose rows and what may be done to them.
fn rows() -> Vec<Flag<SyncOptions>> {
    vec![
        column_names("key", "COLUMNS", |it: &mut SyncOptions, names| it.key = names)
            .help("Identify rows by these columns; by default by the primary key"),
        column_names("scope-by", "COLUMNS", |it: &mut SyncOptions, names| {
            it.scope = Scope::By(names)
        })
        .help("Sync the rows whose values in these columns occur in the source"),
        value("scope", "PREDICATE", text(), |it: &mut SyncOptions, predicate| {
            it.scope = match predicate.trim() {
                "all" => Scope::All,
                _ => Scope::Where(predicate),
            }
        })
        .help("Sync the rows that match this SQL predicate; `all` for the whole table"),
        switch("no-delete", |it: &mut SyncOptions| it.scope = Scope::NoDelete)
            .help("Update and insert rows, but delete none"),
        switch("insert-only", |it: &mut SyncOptions| it.scope = Scope::InsertOnly)
            .help("Insert missing rows only"),
        column_names("ignore-columns", "COLUMNS", |it: &mut SyncOptions, names| it.ignored = names)
            .help("Do not compare these columns; write them only if another column differs"),
        value(
            "keep",
            "WHICH",
            choice([("last", "The last row in the order of the source", true)]),
            |it: &mut SyncOptions, last| it.keeps_last = last,
        )
        .help("Keep one of several source rows with the same key [default: refuse such a source]"),
        switch("check", |it: &mut SyncOptions| it.is_check = true).help(
            "Change nothing: count differences and show examples; exit with 1 if there are any",
        ),
    ]
}

/// Returns the flags for how the rows are written.
fn writing() -> Vec<Flag<SyncOptions>> {
    let sessions = value_parser!(u8).range(1..=64).map(usize::from);
    let transactions = value_parser!(u16).range(1..=1000).map(usize::from);
    vec![
        value("lanes", "N", sessions, |it: &mut SyncOptions, lanes| it.lanes = lanes)
            .default("1")
            .help(
                "Share the scopes of --scope-by among this many sessions, each with its own \
                 transaction",
            ),
        value(
            "read-ahead",
            "WHEN",
            when("If the table has most of the rows"),
            |it: &mut SyncOptions, when| it.read_ahead = when,
        )
        .default("auto")
        .help("Read the table first, and stage only rows that the table lacks"),
        value("max-delete", "P%", share, |it: &mut SyncOptions, share| it.max_delete = share)
            .under("Safety")
            .default("50%")
            .help("Refuse to delete more than this share of the scope"),
        switch("vacuum", |it: &mut SyncOptions| it.vacuums = true).help(
            "Vacuum the table afterwards, so that the next sync reuses the space of dead rows",
        ),
        value("transactions", "N", transactions, |it: &mut SyncOptions, n| it.transactions = n)
            .default("1")
            .help(
                "Write the scopes of --scope-by in this many transactions, one after the other; \
                 with --vacuum, each transaction reuses the space of rows that died in the \
                 previous one",
            ),
        switch("allow-empty", |it: &mut SyncOptions| it.may_empty = true)
            .under("Safety")
            .help("Allow a source without rows to empty the scope, whatever --max-delete says"),
    ]
}

fn price() -> Flag<SyncOptions> {
    let dollars = |value: &str| match value.trim().trim_start_matches('$').parse() {
        Ok(price) if (0.0..1e9).contains(&price) => Ok(price),
        _ => Err("expected a price such as 0.20"),
    };
    value("price-per-million-io", "DOLLARS", dollars, |it: &mut SyncOptions, price| {
        it.price_per_million = price
    })
    .under("Output")
    .default("0.20")
    .help("Estimate the cost of the sync at this price for a million I/Os, as on Aurora Standard")
}

fn share(value: &str) -> Result<f64, String> {
    match value.trim().trim_end_matches('%').trim_end().parse() {
        Ok(share) if (0.0..=100.0).contains(&share) => Ok(share),
        _ => Err("expected a share from 0% to 100%".to_owned()),
    }
}
