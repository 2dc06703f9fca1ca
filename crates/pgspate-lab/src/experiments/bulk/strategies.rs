//! Ways to load several files.
//!
//! All strategies load the same files into the same empty tables, with the same format options. All
//! decompress in parallel with sending, as `gzip -dc | psql` would.

use std::time::Instant;

use bytes::Bytes;
use futures_util::SinkExt as _;
use futures_util::future::try_join_all;
use pgspate::load;
use pgspate::plan::{self, AutoChoice, RowRequest};
use pgspate::reading;
use pgspate::source::{Input, read_error};
use pgspate::target::connect::Connection;
use pgspate::target::quote_ident;
use pgspate::{Error, ErrorKind, Result};
use tokio::sync::mpsc;

use crate::context::TrialContext;
use crate::dataset::{LoadFile, TableToLoad};
use crate::experiment::{TrialOutcome, TrialPhase};

/// The strategy in which one session loads one file after the other.
pub(crate) const ONE: &str = "one session";
/// The strategy in which a session for each file loads at the same time.
pub(crate) const EACH: &str = "a session per file";
/// The strategy in which pgspate loads one table after the other, each by all lanes.
pub(crate) const PGSPATE: &str = "pgspate";

/// The phase in which all tables are loaded.
pub(super) const AT_ONCE: &str = "all files at once";

/// The number of bytes in a CopyData message.
const PIECE_BYTES: usize = 256 << 10;
/// The greatest number of messages that wait to be sent to the server.
const PIECES_AHEAD: usize = 8;

/// The greatest number of sessions that the lab opens. A server with default settings allows 100.
const SESSIONS_MAX: usize = 80;

/// Why a strategy cannot load the files, if it cannot.
pub(crate) fn refusal(strategy: &str, context: &TrialContext) -> Option<String> {
    let files = context.data().files();
    match strategy {
        EACH if files > SESSIONS_MAX => {
            let most = SESSIONS_MAX;
            Some(format!("{files} files need {files} sessions; the lab opens at most {most}"))
        }
        ONE | EACH => context.data().copy_refusal(),
        _ => None,
    }
}

/// Loads all files by one of the strategies. Returns the rows, and the largest table's seconds.
///
/// Each table is a phase, unless the strategy loads all tables at once.
pub(crate) fn load(
    strategy: &str,
    context: &TrialContext,
    outcome: &mut TrialOutcome,
) -> Result<(u64, f64)> {
    let tables = context.tables()?;
    match strategy {
        ONE => one(tables, context, outcome),
        EACH => each(tables, context, outcome),
        PGSPATE => pgspate(tables, context, outcome),
        other => Err(Error::new(ErrorKind::Bug, format!("there is no strategy \"{other}\""))),
    }
}

fn one(
    tables: &[TableToLoad],
    context: &TrialContext,
    outcome: &mut TrialOutcome,
) -> Result<(u64, f64)> {
    let connection = context.connect()?;
    let mut all = 0;
    for table in tables {
        all += outcome.phase(&table.name, || {
            context.block_on(async {
                let mut rows = 0;
                for file in &table.files {
                    rows += copy(&connection, context, table, file).await?.0;
                }
                Ok(rows)
            })
        })?;
    }
    Ok((all, largest(tables, outcome)))
}

fn each(
    tables: &[TableToLoad],
    context: &TrialContext,
    outcome: &mut TrialOutcome,
) -> Result<(u64, f64)> {
    let files: Vec<(&TableToLoad, &LoadFile)> =
        tables.iter().flat_map(|table| table.files.iter().map(move |file| (table, file))).collect();
    let connections = context.block_on(try_join_all(files.iter().map(|_| context.open())))?;
    let copied = outcome.phase(AT_ONCE, || {
        let sessions = files.iter().zip(&connections);
        let copies =
            sessions.map(|((table, file), connection)| copy(connection, context, table, file));
        context.block_on(try_join_all(copies))
    })?;
    let rows = copied.iter().map(|(rows, _)| rows).sum();
    let of_the_largest = tables.first().map_or(0, |table| table.files.len());
    let last = copied.iter().take(of_the_largest).map(|(_, seconds)| *seconds);
    Ok((rows, last.fold(0.0, f64::max)))
}

fn pgspate(
    tables: &[TableToLoad],
    context: &TrialContext,
    outcome: &mut TrialOutcome,
) -> Result<(u64, f64)> {
    let mut all = 0;
    for table in tables {
        let options = load::LoadOptions {
            reading: reading::ReadingOptions {
                read: table.read.clone(),
                rows: RowRequest { columns: table.columns.clone(), ..RowRequest::default() },
                ..reading::ReadingOptions::of_sources(
                    table.files.iter().map(|file| file.source.clone()).collect(),
                )
            },
            table: Some(context.table(&quote_ident(&table.name))),
            // The other strategies do not analyze either.
            plan: plan::PlanOptions { analyze: AutoChoice::Never, ..plan::PlanOptions::default() },
            restart: true,
            ..load::LoadOptions::default()
        };
        let report = outcome.phase(&table.name, || context.load(options))?;
        all += report.rows_written;
    }
    Ok((all, largest(tables, outcome)))
}

fn largest(tables: &[TableToLoad], outcome: &TrialOutcome) -> f64 {
    let is_largest =
        |phase: &&TrialPhase| tables.first().is_some_and(|table| table.name == phase.name);
    outcome.phases.iter().find(is_largest).map_or(0.0, |phase| phase.seconds)
}

/// Copies a file into its table. Returns the number of rows and the seconds.
async fn copy(
    connection: &Connection,
    context: &TrialContext,
    table: &TableToLoad,
    file: &LoadFile,
) -> Result<(u64, f64)> {
    let began = Instant::now();
    let name = context.table(&quote_ident(&table.name));
    let failed = |error| connection.explain(format!("could not copy into {name}"), error);
    let form = file.copy.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::Bug, format!("COPY was to read \"{}\"", file.input.name()))
    })?;
    let mut pieces = read_ahead(file, form.skip);
    let sql = format!("copy {name} {} from stdin {}", form.columns, form.options);
    let sink = connection.client.copy_in(&sql).await.map_err(failed)?;
    let mut sink = Box::pin(sink);
    while let Some(piece) = pieces.recv().await {
        sink.send(piece?).await.map_err(failed)?;
    }
    let rows = sink.as_mut().finish().await.map_err(failed)?;
    Ok((rows, began.elapsed().as_secs_f64()))
}

/// Reads the file after its first `skip` bytes in a separate thread, which also decompresses. The
/// thread ends when the receiver is dropped.
fn read_ahead(file: &LoadFile, skip: u64) -> mpsc::Receiver<Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let input = file.input.clone();
    std::thread::spawn(move || {
        let send = |piece| sender.blocking_send(piece).is_ok();
        if let Err(error) = read(&input, skip, &|piece| send(Ok(piece))) {
            send(Err(error));
        }
    });
    receiver
}

fn read(input: &Input, skip: u64, send: &dyn Fn(Bytes) -> bool) -> Result<()> {
    let mut reader = input.reader()?;
    let failed = |error| read_error(error, input.name());
    let mut left = skip as usize;
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        while piece.len() < PIECE_BYTES {
            let missing = PIECE_BYTES - piece.len();
            if reader.read_into(&mut piece, missing).map_err(failed)? == 0 {
                break;
            }
        }
        if piece.is_empty() {
            return Ok(());
        }
        let passed = left.min(piece.len());
        left -= passed;
        if !send(Bytes::from(piece).slice(passed..)) {
            return Ok(());
        }
    }
}
