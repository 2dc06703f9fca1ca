//! Flags of `pgspate apply`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::value_parser;
use pgspate::apply::decode::{DecodeOptions, TimeUnit};
use pgspate::apply::{ApplyOptions, AtEnd, EventFormat, SourceTable, UnknownColumns};

use super::reading::byte;
use super::shared::{CommonArgs, limits, output, plan, source_option, sources, target};
use super::{
    CommandFlags, Flag, choice, column_names, part, split_outside_quotes, switch, text, under,
    value, values,
};

/// The arguments of `pgspate apply`.
#[derive(Default)]
pub(crate) struct ApplyArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: ApplyOptions,
    pub(crate) metrics: Option<SocketAddr>,
}

impl CommandFlags for ApplyArgs {
    fn flags() -> Vec<Vec<Flag<ApplyArgs>>> {
        let common = |flags| part(|it: &mut ApplyArgs| &mut it.common, flags);
        let options = |flags| part(|it: &mut ApplyArgs| &mut it.options, flags);
        let files = sources(
            "Files in the stream's order, globs, folders, `-` for stdin, or URLs as for load; or a \
             replication slot, postgres://user@host/dbname?slot=NAME&publication=NAME; or topics, \
             kafka://broker:9092/topic,topic, in a build with the feature `kafka`",
            |it: &mut ApplyArgs, all| it.options.sources = all,
        );
        let limits = limits(
            "Keep trying for this long while the server is unreachable or another session is in \
             the way",
        );
        let metrics = value("metrics", "ADDR", str::parse, |it: &mut ApplyArgs, at| {
            it.metrics = Some(at)
        })
        .under("Output")
        .help(
            "Serve Prometheus metrics at http://ADDR/metrics; ADDR is for example 127.0.0.1:9187",
        );
        vec![
            vec![files],
            common(vec![target()]),
            options(stream()),
            options(under("Tables", tables())),
            options(under("Safety", safety())),
            options(part(|it: &mut ApplyOptions| &mut it.limits, limits)),
            options(under("Batches", batches())),
            options(vec![follow()]),
            common(vec![plan("Show what would be done, then stop")]),
            options(under("Replication slot", slot())),
            options(part(|it: &mut ApplyOptions| &mut it.decode, under("Formats", formats()))),
            options(part(
                |it: &mut ApplyOptions| &mut it.source,
                under("Formats", vec![source_option()]),
            )),
            vec![metrics],
            common(output("Print the report as JSON on stdout")),
        ]
    }
}

fn stream() -> Vec<Flag<ApplyOptions>> {
    let format = PossibleValuesParser::new(EventFormat::ALL.map(EventFormat::name));
    let format = format.try_map(|name| EventFormat::by_name(&name));
    vec![
        value("stream", "NAME", text(), |it: &mut ApplyOptions, name| it.stream = Some(name))
            .help("Name the stream in the ledger; by default after the first source"),
        value("format", "FORMAT", format, |it: &mut ApplyOptions, format| it.format = Some(format))
            .help("Read events in this format [default: detected]"),
    ]
}

fn table_names(list: String) -> Vec<String> {
    split_outside_quotes(&list).into_iter().map(str::to_owned).collect()
}

/// Returns the flags that choose events and their tables.
fn tables() -> Vec<Flag<ApplyOptions>> {
    let unknown_columns = choice([
        ("fail", "Refuse the event", UnknownColumns::Fail),
        ("ignore", "Ignore the column", UnknownColumns::Ignore),
        ("add", "Add the column to the table, of type text", UnknownColumns::Add),
    ]);
    vec![
        values("map", "FROM=TO", text(), |it: &mut ApplyOptions, maps| it.maps = maps).help(
            "Apply the events of one table to another; `*` on both sides stands for the same text",
        ),
        values("tables", "TABLES", text().map(table_names), |it: &mut ApplyOptions, names| {
            it.tables = names.concat();
        })
        .help(
            "Apply the events of these tables only, as the stream names them; `*` stands for any \
             text",
        ),
        value("unknown-columns", "WHAT", unknown_columns, |it: &mut ApplyOptions, what| {
            it.unknown_columns = what
        })
        .default("fail")
        .help("Choose what to do with columns that the table does not have"),
    ]
}

fn safety() -> Vec<Flag<ApplyOptions>> {
    let at_end = choice([
        ("hold", "Leave the transaction out, and end with an error", AtEnd::Hold),
        ("apply", "Apply the part that is there", AtEnd::Apply),
    ]);
    vec![
        value("at-end", "WHAT", at_end, |it: &mut ApplyOptions, what| it.at_end = what)
            .default("hold")
            .help("Choose what to do if the input ends within a source transaction"),
        value("max-dead-letters", "N", value_parser!(u64), |it: &mut ApplyOptions, max| {
            it.dead_letters_max = max
        })
        .default("0")
        .help("Set up to N bad events aside in pgspate.dead_letter, and apply the others"),
    ]
}

fn batches() -> Vec<Flag<ApplyOptions>> {
    let mebibytes = value_parser!(u64).range(1..=1024).map(|it| it << 20);
    let millis = value_parser!(u64).map(Duration::from_millis);
    vec![
        value("batch-rows", "N", value_parser!(u64).range(1..), |it: &mut ApplyOptions, max| {
            it.batch_rows = max
        })
        .default("500000")
        .help("Commit at most this many events together"),
        value("batch-bytes", "MIB", mebibytes, |it: &mut ApplyOptions, max| it.batch_bytes = max)
            .default("64")
            .help(
                "Commit at most this many MiB of events together, as read or as decoded; pgspate \
                 uses three to four times as much memory",
            ),
        value("direct-rows", "N", value_parser!(u64), |it: &mut ApplyOptions, max| {
            it.direct_rows = max
        })
        .default("1000")
        .help("Write batches of up to this many rows without a temporary table"),
        value("batch-delay", "MS", millis, |it: &mut ApplyOptions, delay| it.batch_delay = delay)
            .default("2")
            .help(
                "Let a batch wait this many milliseconds for more events while no batch is written",
            ),
    ]
}

fn follow() -> Flag<ApplyOptions> {
    switch("follow", |it: &mut ApplyOptions| it.follows = true).help(
        "Continue after the end of the input, until stopped: with lines appended to the last file, \
         transactions committed on the source, or messages written to the topics",
    )
}

fn slot() -> Vec<Flag<ApplyOptions>> {
    vec![
        switch("create-slot", |it: &mut ApplyOptions| it.creates_slot = true)
            .help("Create the replication slot if it is missing, and apply changes from then on"),
        switch("snapshot", |it: &mut ApplyOptions| it.copies_rows = true).help(
            "Create the replication slot if it is missing, and first copy the rows of the \
             publication's tables",
        ),
    ]
}

/// Returns the flags for facts that some formats do not carry themselves.
fn formats() -> Vec<Flag<DecodeOptions>> {
    let mut flags = vec![
        value("source-table", "TABLE", text(), |it: &mut DecodeOptions, table| {
            let (schema, table) = match table.split_once('.') {
                Some((schema, table)) => (Some(schema.to_owned()), table.to_owned()),
                None => (None, table),
            };
            it.debezium.table = Some(SourceTable { schema, table });
            it.dms.table = it.debezium.table.clone();
        })
        .help(
            "Apply rows without a table name to this table: flattened rows of Debezium, files of \
             DMS",
        ),
    ];
    flags.extend(debezium());
    flags.extend(dms());
    flags
}

fn debezium() -> Vec<Flag<DecodeOptions>> {
    let unit = choice([
        ("ms", "Milliseconds, as with `time.precision.mode=connect`", TimeUnit::Milli),
        ("us", "Microseconds", TimeUnit::Micro),
        ("ns", "Nanoseconds", TimeUnit::Nano),
    ]);
    let decimals_are_text = choice([
        ("bytes", "Bytes, as with `decimal.handling.mode=precise`", false),
        ("text", "Digits, as with `decimal.handling.mode=string`", true),
    ]);
    let bytes_are_hex = choice([
        ("base64", "Base64, as with `binary.handling.mode=bytes` and `base64`", false),
        ("hex", "Hexadecimal digits, as with `binary.handling.mode=hex`", true),
    ]);
    vec![
        value("debezium-placeholder", "TEXT", text(), |it: &mut DecodeOptions, text| {
            it.debezium.placeholder = Some(text)
        })
        .help("Recognize this text as Debezium's `unavailable.value.placeholder`"),
        value("debezium-time", "UNIT", unit, |it: &mut DecodeOptions, unit| {
            it.debezium.unit = Some(unit)
        })
        .help("Read Debezium's times in this unit if no schema gives it"),
        value("debezium-decimals", "FORM", decimals_are_text, |it: &mut DecodeOptions, are| {
            it.debezium.text_decimals = Some(are)
        })
        .help("Read Debezium's decimals in this form if no schema gives it"),
        value("debezium-bytes", "FORM", bytes_are_hex, |it: &mut DecodeOptions, are| {
            it.debezium.hex_bytes = Some(are);
        })
        .help("Read Debezium's bytes in this form if no schema gives it"),
    ]
}

fn dms() -> Vec<Flag<DecodeOptions>> {
    vec![
        column_names("dms-columns", "COLUMNS", |it: &mut DecodeOptions, names| {
            it.dms.columns = Some(names)
        })
        .with(|arg| arg.conflicts_with("dms-header"))
        .help("Name the columns of DMS's csv if it has no header"),
        switch("dms-header", |it: &mut DecodeOptions| it.dms.has_header = true).help(
            "Take the first line of DMS's csv as column names, even if `Op` is not the first of \
             them",
        ),
        value("dms-null", "STRING", text(), |it: &mut DecodeOptions, null| it.dms.null = null)
            .default("NULL")
            .help("Read this unquoted field of DMS's csv as NULL (`CsvNullValue`)"),
        value("dms-absent", "STRING", text(), |it: &mut DecodeOptions, field| {
            it.dms.absent = Some(field)
        })
        .help("Read this unquoted field of DMS's csv as a missing column (`CsvNoSupValue`)"),
        value("dms-delimiter", "CHAR", byte, |it: &mut DecodeOptions, byte| {
            it.dms.delimiter = byte
        })
        .default(",")
        .help("Separate fields of DMS's csv by this byte, or \\t (`CsvDelimiter`)"),
    ]
}
