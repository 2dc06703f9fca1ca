//! Flags of `pgspate apply`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::value_parser;
use pgspate::apply::decode::{DecodeOptions, Unit};
use pgspate::apply::{AtEnd, Format, Name, Options, UnknownColumns};

use super::reading::byte;
use super::shared::{CommonArgs, limits, output, plan, source_option, sources, target};
use super::{Flag, Flagged, choice, names, part, switch, text, under, value, values};

/// What `pgspate apply` is asked for.
#[derive(Default)]
pub(crate) struct ApplyArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: Options,
    pub(crate) metrics: Option<SocketAddr>,
}

impl Flagged for ApplyArgs {
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
            "How long to go on trying when the server is away or another session in the way",
        );
        let metrics =
            value("metrics", "ADDR", str::parse, |it: &mut ApplyArgs, at| it.metrics = Some(at))
                .under("Output")
                .help(
                    "Serve metrics for Prometheus at http://ADDR/metrics, such as 127.0.0.1:9187",
                );
        vec![
            vec![files],
            common(vec![target()]),
            options(stream()),
            options(under("Tables", tables())),
            options(under("Safety", safety())),
            options(part(|it: &mut Options| &mut it.limits, limits)),
            options(under("Batches", batches())),
            options(vec![follow()]),
            common(vec![plan("Show what would be done, and stop")]),
            options(under("Replication slot", slot())),
            options(part(|it: &mut Options| &mut it.decode, under("Formats", formats()))),
            options(part(
                |it: &mut Options| &mut it.source,
                under("Formats", vec![source_option()]),
            )),
            vec![metrics],
            common(output("Print the report as JSON on stdout")),
        ]
    }
}

fn stream() -> Vec<Flag<Options>> {
    let format = PossibleValuesParser::new(Format::ALL.map(Format::name));
    let format = format.try_map(|name| Format::by_name(&name));
    vec![
        value("stream", "NAME", text(), |it: &mut Options, name| it.stream = Some(name))
            .help("The name by which the ledger knows the stream; the first source's by default"),
        value("format", "FORMAT", format, |it: &mut Options, format| it.format = Some(format))
            .help("Format of the events; found out by default"),
    ]
}

/// Which events, and what they are for.
fn tables() -> Vec<Flag<Options>> {
    let unknown_columns = choice([
        ("fail", "Refuse the event", UnknownColumns::Fail),
        ("ignore", "Pass over the column", UnknownColumns::Ignore),
        ("add", "Add the column to the table, of type text", UnknownColumns::Add),
    ]);
    vec![
        values("map", "FROM=TO", text(), |it: &mut Options, maps| it.maps = maps).help(
            "Apply the events of a table to another one; `*` on both sides stands for the same",
        ),
        names("tables", "TABLES", |it: &mut Options, names| it.tables = names).help(
            "Apply the events of these tables only, as the stream names them; `*` stands for \
             anything",
        ),
        value("unknown-columns", "WHAT", unknown_columns, |it: &mut Options, what| {
            it.unknown_columns = what
        })
        .default("fail")
        .help("What to do about columns that the table does not have"),
    ]
}

fn safety() -> Vec<Flag<Options>> {
    let at_end = choice([
        ("hold", "Leave the transaction out, and end with an error", AtEnd::Hold),
        ("apply", "Apply what there is of it", AtEnd::Apply),
    ]);
    vec![
        value("at-end", "WHAT", at_end, |it: &mut Options, what| it.at_end = what)
            .default("hold")
            .help("What to do when the input ends within a transaction of the source"),
        value("max-dead-letters", "N", value_parser!(u64), |it: &mut Options, max| {
            it.dead_letters_max = max
        })
        .default("0")
        .help("Set up to so many bad events aside in pgspate.dead_letter, and apply the others"),
    ]
}

fn batches() -> Vec<Flag<Options>> {
    let mebibytes = value_parser!(u64).range(1..=1024).map(|it| it << 20);
    let millis = value_parser!(u64).map(Duration::from_millis);
    vec![
        value("batch-rows", "N", value_parser!(u64).range(1..), |it: &mut Options, max| {
            it.batch_rows = max
        })
        .default("500000")
        .help("Events that are committed together, at most"),
        value("batch-bytes", "MIB", mebibytes, |it: &mut Options, max| it.batch_bytes = max)
            .default("64")
            .help(
                "MiB of input that are committed together, at most, and of what its events take; \
                 memory is some eight times that",
            ),
        value("direct-rows", "N", value_parser!(u64), |it: &mut Options, max| it.direct_rows = max)
            .default("1000")
            .help("Batches of up to so many rows are written without a temporary table"),
        value("batch-delay", "MS", millis, |it: &mut Options, delay| it.batch_delay = delay)
            .default("2")
            .help("How many milliseconds an event waits for others when nothing is being written"),
    ]
}

fn follow() -> Flag<Options> {
    switch("follow", |it: &mut Options| it.follows = true).help(
        "Go on when the input ends, until stopped: with what is appended to the last file, what is \
         committed on the source, or what is written to the topics",
    )
}

fn slot() -> Vec<Flag<Options>> {
    vec![
        switch("create-slot", |it: &mut Options| it.creates_slot = true).help(
            "Make the replication slot when it is not there, and apply what changes from then on",
        ),
        switch("snapshot", |it: &mut Options| it.copies_rows = true).help(
            "Make the replication slot when it is not there, and copy the rows of its tables first",
        ),
    ]
}

/// What some formats do not say of themselves.
fn formats() -> Vec<Flag<DecodeOptions>> {
    let mut flags = vec![
        value("source-table", "TABLE", text(), |it: &mut DecodeOptions, table| {
            let (schema, table) = match table.split_once('.') {
                Some((schema, table)) => (Some(schema.to_owned()), table.to_owned()),
                None => (None, table),
            };
            it.debezium.table = Some(Name { schema, table });
            it.dms.table = it.debezium.table.clone();
        })
        .help(
            "The table of rows that do not name theirs: flattened rows of Debezium, files of DMS",
        ),
    ];
    flags.extend(debezium());
    flags.extend(dms());
    flags
}

fn debezium() -> Vec<Flag<DecodeOptions>> {
    let unit = choice([
        ("ms", "Milliseconds, as with `time.precision.mode=connect`", Unit::Milli),
        ("us", "Microseconds", Unit::Micro),
        ("ns", "Nanoseconds", Unit::Nano),
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
        .help("Debezium's `unavailable.value.placeholder`, where the connector sets it"),
        value("debezium-time", "UNIT", unit, |it: &mut DecodeOptions, unit| {
            it.debezium.unit = Some(unit)
        })
        .help("What Debezium's times are counted in, where no schema says it"),
        value("debezium-decimals", "FORM", decimals_are_text, |it: &mut DecodeOptions, are| {
            it.debezium.text_decimals = Some(are)
        })
        .help("What Debezium's decimals are, where no schema says it"),
        value("debezium-bytes", "FORM", bytes_are_hex, |it: &mut DecodeOptions, are| {
            it.debezium.hex_bytes = Some(are);
        })
        .help("What Debezium's bytes are, where no schema says it"),
    ]
}

fn dms() -> Vec<Flag<DecodeOptions>> {
    vec![
        names("dms-columns", "COLUMNS", |it: &mut DecodeOptions, names| {
            it.dms.columns = Some(names)
        })
        .with(|arg| arg.conflicts_with("dms-header"))
        .help("The columns of DMS's csv, where no header names them"),
        switch("dms-header", |it: &mut DecodeOptions| it.dms.has_header = true).help(
            "The first line of DMS's csv names the columns, even if `Op` is not the first of them",
        ),
        value("dms-null", "STRING", text(), |it: &mut DecodeOptions, null| it.dms.null = null)
            .default("NULL")
            .help("The unquoted field of DMS's csv that means NULL (`CsvNullValue`)"),
        value("dms-absent", "STRING", text(), |it: &mut DecodeOptions, field| {
            it.dms.absent = Some(field)
        })
        .help("The unquoted field of DMS's csv for a column that is not told (`CsvNoSupValue`)"),
        value("dms-delimiter", "CHAR", byte, |it: &mut DecodeOptions, byte| {
            it.dms.delimiter = byte
        })
        .default(",")
        .help("Between two fields of DMS's csv: one byte, or \\t (`CsvDelimiter`)"),
    ]
}
