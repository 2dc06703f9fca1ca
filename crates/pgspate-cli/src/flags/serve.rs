//! Flags of `pgspate serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::value_parser;
use pgspate::writer::WriterOptions;
use pgspate_serve::{BODY_BYTES_MAX, HttpLimits, ListenAddress, ServeOptions, TlsFiles};

use super::doctor::{parse_size, parse_time};
use super::shared::{CommonArgs, limits, output, target};
use super::{CommandFlags, Flag, part, path, switch, text, under, value, values};

/// The arguments of `pgspate serve`.
#[derive(Default)]
pub(crate) struct ServeArgs {
    pub(crate) common: CommonArgs,
    pub(crate) options: ServeOptions,
}

impl CommandFlags for ServeArgs {
    fn flags() -> Vec<Vec<Flag<ServeArgs>>> {
        let common = |flags| part(|it: &mut ServeArgs| &mut it.common, flags);
        let options = |flags| part(|it: &mut ServeArgs| &mut it.options, flags);
        let writer = |flags| part(|it: &mut ServeOptions| &mut it.writer, flags);
        let http = |flags| part(|it: &mut ServeOptions| &mut it.limits, flags);
        let waits = limits(
            "Keep records that were not sent for this long while the server is unreachable; then \
             answer that it is away",
        );
        vec![
            options(vec![table(), listen()]),
            common(vec![target()]),
            options(under("Access", access())),
            options(under("Writing", writer(writing()))),
            options(under("Limits", http(client_limits()))),
            options(writer(part(|it: &mut WriterOptions| &mut it.limits, waits))),
            common(output("Print the summary as JSON on stdout at the end")),
        ]
    }
}

fn table() -> Flag<ServeOptions> {
    values("table", "TABLE", text(), |it: &mut ServeOptions, names| it.tables = names)
        .with(|arg| arg.short('t').required(true))
        .help("Let clients write into this table, spelled as in SQL; repeat for each table")
}

fn listen() -> Flag<ServeOptions> {
    value("listen", "ADDR", str::parse::<ListenAddress>, |it: &mut ServeOptions, at| it.listen = at)
        .default("127.0.0.1:8480")
        .help("Listen on this address and port, or on unix:/path")
}

fn access() -> Vec<Flag<ServeOptions>> {
    let tls = |it: &mut ServeOptions, set: fn(&mut TlsFiles, PathBuf), path| {
        set(it.tls.get_or_insert_default(), path);
    };
    vec![
        value("tokens", "FILE", path(), |it: &mut ServeOptions, path| it.tokens = Some(path)).help(
            "Answer only requests with a token of this file, one in each line; its mode must be \
             0600",
        ),
        value("tls-cert", "FILE", path(), move |it, path| {
            tls(it, |files, path| files.certificate = path, path);
        })
        .with(|arg| arg.requires("tls-key"))
        .help("Serve HTTPS with this certificate, in PEM"),
        value("tls-key", "FILE", path(), move |it, path| {
            tls(it, |files, path| files.key = path, path);
        })
        .with(|arg| arg.requires("tls-cert"))
        .help("The private key of the certificate, in PEM"),
        value("client-ca", "FILE", path(), move |it, path| {
            tls(it, |files, path| files.client_authority = Some(path), path);
        })
        .with(|arg| arg.requires("tls-cert"))
        .help("Accept only clients with a certificate of this authority, in PEM"),
    ]
}

fn writing() -> Vec<Flag<WriterOptions>> {
    let connections = value_parser!(u16).range(1..).map(usize::from);
    vec![
        value("connections", "N", connections, |it: &mut WriterOptions, n| it.connections = n)
            .default("32")
            .help("Write with at most this many connections"),
        value("keep", "TIME", parse_keep, |it: &mut WriterOptions, time| it.keep_keys = time)
            .default("1d")
            .help("Remember the outcome of a request with an Idempotency-Key for this long"),
        switch("share-triggers", |it: &mut WriterOptions| it.shares_triggers = true).help(
            "Write records of several requests by one statement although the table has triggers",
        ),
    ]
}

fn client_limits() -> Vec<Flag<HttpLimits>> {
    let size = |value: &str| parse_size(value).map(|it| usize::try_from(it).unwrap_or(usize::MAX));
    let body = move |value: &str| match size(value)? {
        bytes if bytes <= BODY_BYTES_MAX => Ok(bytes),
        _ => Err("expected less than 4GiB".to_owned()),
    };
    let connections = value_parser!(u32).range(1..).map(|it| it as usize);
    let seconds = value_parser!(u32).range(1..).map(|it| Duration::from_secs(it.into()));
    vec![
        value("max-connections", "N", connections, |it: &mut HttpLimits, n| it.connections = n)
            .default("2000")
            .help("Serve at most this many connections of clients"),
        value("max-body", "SIZE", body, |it: &mut HttpLimits, bytes| it.body_bytes = bytes)
            .default("16MiB")
            .help("Refuse larger bodies"),
        value("queue", "SIZE", size, |it: &mut HttpLimits, bytes| it.queue_bytes = bytes)
            .default("64MiB")
            .help("Hold at most this many bytes of bodies; refuse further requests for now"),
        value("request-timeout", "SECONDS", seconds, |it: &mut HttpLimits, limit| {
            it.request_timeout = limit;
        })
        .default("60")
        .help("Close a connection whose next request, or its body, does not arrive in this time"),
    ]
}

/// Parses a time of up to a year: 60s, 5min, 12h or 7d.
fn parse_keep(value: &str) -> Result<Duration, String> {
    let Some(days) = value.trim().strip_suffix('d') else { return parse_time(value) };
    match days.parse::<u32>() {
        Ok(days @ 1..=366) => Ok(Duration::from_secs(u64::from(days) * 86_400)),
        _ => Err("expected a time such as 12h or 7d, a year at most".to_owned()),
    }
}
