//! Flags of `pgspate sync`.

use clap::builder::TypedValueParser;
use clap::value_parser;
use pgspate::sync::{Options, Scope};

use super::reading::reading;
use super::shared::{CommonArgs, files, limits, output, plan, table, target, when};
use super::{Flag, Flagged, choice, names, part, switch, text, value};

/// What `pgspate sync` is asked for.
#[derive(Default)]
pub(crate) struct SyncArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: Options,
    pub(crate) advise_only: bool,
}

impl Flagged for SyncArgs {
    const ONE_OF: &'static [&'static str] = &["scope-by", "scope", "no-delete", "insert-only"];

    fn flags() -> Vec<Vec<Flag<SyncArgs>>> {
        let common = |flags| part(|it: &mut SyncArgs| &mut it.common, flags);
        let options = |flags| part(|it: &mut SyncArgs| &mut it.options, flags);
        let limits = limits("How long to go on trying when another session is in the way");
        let advise_only = switch("advise-only", |it: &mut SyncArgs| {
            (it.advise_only, it.options.is_check) = (true, true)
        })
        .with(|arg| arg.conflicts_with("check"))
        .help(
            "Change nothing: say what would make syncs like this one cheaper; exit 1 if anything \
             would",
        );
        vec![
            options(part(|it: &mut Options| &mut it.reading, files())),
            options(part(|it: &mut Options| &mut it.table, table())),
            common(vec![target()]),
            options(rows()),
            vec![advise_only],
            common(vec![plan("Show the statements, and stop")]),
            options(ways()),
            options(part(|it: &mut Options| &mut it.limits, limits)),
            options(part(|it: &mut Options| &mut it.reading, reading())),
            options(vec![price()]),
            common(output("Print the report as JSON on stdout")),
        ]
    }
}

/// Which rows, and what of them.
fn rows() -> Vec<Flag<Options>> {
    vec![
        names("key", "COLUMNS", |it: &mut Options, names| it.key = names)
            .help("The columns that identify a row; the primary key's by default"),
        names("scope-by", "COLUMNS", |it: &mut Options, names| it.scope = Scope::By(names))
            .help("Rows whose values in these columns occur in the source"),
        value("scope", "PREDICATE", text(), |it: &mut Options, predicate| {
            it.scope = match predicate.trim() {
                "all" => Scope::All,
                _ => Scope::Where(predicate),
            }
        })
        .help("`all` for the whole table, or an SQL predicate over its columns"),
        switch("no-delete", |it: &mut Options| it.scope = Scope::NoDelete)
            .help("Update and insert, and delete nothing"),
        switch("insert-only", |it: &mut Options| it.scope = Scope::InsertOnly).help("Insert only"),
        names("ignore-columns", "COLUMNS", |it: &mut Options, names| it.ignored = names)
            .help("Columns that are not compared, and written only when something else differs"),
        value(
            "keep",
            "WHICH",
            choice([("last", "The last one in the source", true)]),
            |it: &mut Options, last| it.keeps_last = last,
        )
        .help("Which of rows with the same key counts; they are refused otherwise"),
        switch("check", |it: &mut Options| it.is_check = true)
            .help("Change nothing: count what differs, with examples; exit 1 if anything does"),
    ]
}

/// How they are written.
fn ways() -> Vec<Flag<Options>> {
    let sessions = value_parser!(u8).range(1..=64).map(usize::from);
    let transactions = value_parser!(u16).range(1..=1000).map(usize::from);
    vec![
        value("lanes", "N", sessions, |it: &mut Options, lanes| it.lanes = lanes)
            .default("1")
            .help(
                "Sessions that share the scopes of --scope-by, each with a transaction of its own",
            ),
        value("read-ahead", "WHEN", when(), |it: &mut Options, when| it.read_ahead = when)
            .default("auto")
            .help(
                "Read the table first and stage only rows that it does not have: auto where \
                 most are there",
            ),
        value("max-delete", "P%", share, |it: &mut Options, share| it.max_delete = share)
            .under("Safety")
            .default("50%")
            .help("Refuse to delete more of the scope than this"),
        switch("vacuum", |it: &mut Options| it.vacuums = true)
            .help("Vacuum the table afterwards, so that the next sync writes where rows died"),
        value("transactions", "N", transactions, |it: &mut Options, n| it.transactions = n)
            .default("1")
            .help(
                "Write the scopes of --scope-by in so many transactions, one after the other: \
                 with --vacuum each one writes where rows of the one before died",
            ),
        switch("allow-empty", |it: &mut Options| it.may_empty = true)
            .under("Safety")
            .help("Let a source without rows empty the scope"),
    ]
}

fn price() -> Flag<Options> {
    let dollars = |said: &str| match said.trim().trim_start_matches('$').parse() {
        Ok(price) if (0.0..1e9).contains(&price) => Ok(price),
        _ => Err("expected a price such as 0.20"),
    };
    value("price-per-million-io", "DOLLARS", dollars, |it: &mut Options, price| {
        it.price_per_million = price
    })
    .under("Output")
    .default("0.20")
    .help("What a million I/Os cost, for an estimate of what this costs where they are billed")
}

fn share(value: &str) -> Result<f64, String> {
    match value.trim().trim_end_matches('%').trim_end().parse() {
        Ok(share) if (0.0..=100.0).contains(&share) => Ok(share),
        _ => Err("expected a share from 0% to 100%".to_owned()),
    }
}
