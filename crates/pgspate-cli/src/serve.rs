//! The command `pgspate serve`: takes records over HTTP.

use std::fmt::Write as _;

use pgspate::numbers::{seconds, short};
use pgspate::{Error, ErrorKind, Result};
use pgspate_serve::{RecordServer, ServeNotice, ServeReport, ServeSwitch};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::errors::{self, TerminalStyle};
use crate::flags::{CommonArgs, ServeArgs};
use crate::load::{print_json, runtime};
use crate::output::{write_stderr, write_stderr_line};
use crate::summary::plural;
use crate::{CommandAnswer, target};

pub(crate) fn run(args: ServeArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let ServeArgs { common, mut options } = args;
    let CommonArgs { to, json, quiet, .. } = common;
    let target = target::resolve_and_ask(to.as_deref(), quiet, style)?;
    // Both queues have the same size, but the writer's queue must hold at least one set.
    options.writer.queue_bytes = options.limits.queue_bytes.max(options.writer.set_bytes);
    let runtime = runtime()?;
    let signals = {
        let _entered = runtime.enter();
        ServeSignals::catch()?
    };
    let has_tokens = options.tokens.is_some();
    let is_encrypted = options.tls.is_some();
    let opened = RecordServer::open(target.dsn, options, runtime.handle());
    let server = runtime.block_on(opened)?;
    if !quiet {
        write_stderr(describe_start(&server, has_tokens, style));
    }
    if has_tokens && !is_encrypted && !is_local(server.address()) {
        let warning = "tokens arrive unencrypted; use --tls-cert, or a proxy with TLS";
        write_stderr_line(format!("{} {warning}", style.warning("warning:")));
    }
    runtime.spawn(signals.obey(server.switch(), quiet, style));
    let notify = move |notice: ServeNotice| {
        write_stderr_line(match notice {
            ServeNotice::ServerAway => "the server does not answer; requests get status 503",
            ServeNotice::ServerReadOnly => "the server accepts no writes; requests get status 503",
            ServeNotice::ServerBack => "the server answers again, and accepts writes",
        });
    };
    let report = runtime.block_on(server.run(notify));
    if json {
        print_json(&report)?;
    }
    if !quiet {
        write_stderr(render(&report, style));
    }
    Ok(CommandAnswer::Yes)
}

fn is_local(address: &str) -> bool {
    ["unix:", "http://127.", "http://[::1]"].iter().any(|start| address.starts_with(start))
}

/// Returns the lines that say where records are taken, and how to send one.
fn describe_start(server: &RecordServer, has_tokens: bool, style: TerminalStyle) -> String {
    let (address, tables) = (server.address(), server.tables());
    let mut text = format!("listening on {}\n", style.strong(address));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  tables  {}", tables.join(", "));
    let (socket, base) = match address.strip_prefix("unix:") {
        Some(path) => {
            let path = path.replace('\'', r"'\''");
            (format!("--unix-socket '{path}' "), "http://localhost")
        }
        None => (String::new(), address),
    };
    let token = if has_tokens { "-H 'authorization: Bearer TOKEN' \\\n            " } else { "" };
    let table = tables.first().map_or(String::new(), |name| encode_path(name));
    let _ = writeln!(
        text,
        "  try     curl {socket}'{base}/tables/{table}/rows' \\\n            \
         {token}-H 'content-type: application/json' -d '{{\"COLUMN\": \"VALUE\"}}'"
    );
    if socket.is_empty() {
        let _ = writeln!(text, "  watch   {base}/");
    }
    text
}

/// Encodes a name for the path of a URL, which then has no meaning for a shell.
fn encode_path(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

/// The signals that are obeyed while records are served.
struct ServeSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl ServeSignals {
    fn catch() -> Result<ServeSignals> {
        let catch = |kind| {
            let message = "could not set up signals";
            signal(kind).map_err(|error| Error::new(ErrorKind::Bug, message).because(error))
        };
        Ok(ServeSignals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    /// Obeys signals: SIGHUP reads the files again, the first Ctrl-C or SIGTERM stops, the second
    /// one ends the process at once.
    async fn obey(mut self, switch: ServeSwitch, quiet: bool, style: TerminalStyle) {
        let mut is_stopping = false;
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = self.hang_up.recv() => {
                    let failed = switch.reload();
                    failed.iter().for_each(|error| errors::print(error, style));
                    if failed.is_empty() && !quiet {
                        write_stderr_line("tokens and certificates are read again");
                    }
                    continue;
                }
            }
            if is_stopping {
                write_stderr_line("stopped at once; requests in flight got no answer");
                std::process::exit(130);
            }
            is_stopping = true;
            if !quiet {
                let words = "stopping after the requests in flight";
                write_stderr_line(format!("\n{words}; press Ctrl-C again to stop at once"));
            }
            switch.stop();
        }
    }
}

/// Formats the report in a few lines.
fn render(report: &ServeReport, style: TerminalStyle) -> String {
    let rows: u64 = report.tables.iter().map(|table| table.rows).sum();
    let mut text = format!(
        "{}: {} by {} in {}, {}/s\n",
        style.strong(&report.address),
        plural(rows, "row"),
        plural(report.requests, "request"),
        seconds(report.seconds),
        short((rows as f64 / report.seconds.max(1e-9)) as u64),
    );
    // Writing to a String cannot fail.
    for table in &report.tables {
        let refused = match table.refused {
            0 => String::new(),
            refused => format!(", {refused} refused"),
        };
        let _ = writeln!(text, "  {}: {}{refused}", table.table, plural(table.rows, "row"));
    }
    let writer = &report.writer;
    let sets: u64 = writer.sets.iter().sum();
    let _ = writeln!(
        text,
        "  {} with {}, {} for one request each",
        plural(sets, "set"),
        plural(writer.set_rows, "record"),
        plural(writer.statements, "statement"),
    );
    if writer.unknown > 0 {
        let calls = plural(writer.unknown, "request");
        let _ = writeln!(text, "  {calls} with an unknown outcome");
    }
    text
}
