//! Ways to load several files.
//!
//! All of them load the same files into the same empty tables, are told the same about the files,
//! and decompress beside the sending, as `gzip -dc | psql` would.

use std::time::Instant;

use bytes::Bytes;
use futures_util::SinkExt as _;
use futures_util::future::try_join_all;
use pgspate::load;
use pgspate::plan::{self, RowRequest, When};
use pgspate::reading;
use pgspate::source::{Input, error_of};
use pgspate::target::connect::Connection;
use pgspate::target::quote_ident;
use pgspate::{Error, Kind, Result};
use tokio::sync::mpsc;

use crate::dataset::{LoadFile, Loadable};
use crate::experiment::{Outcome, Phase};
use crate::ground::Ground;

/// One session loads one file after the other.
pub(crate) const ONE: &str = "one session";
/// A session for each file, all at once.
pub(crate) const EACH: &str = "a session per file";
/// One table after the other, each by all lanes.
pub(crate) const PGSPATE: &str = "pgspate";

/// The phase in which all tables are loaded.
pub(super) const AT_ONCE: &str = "all files at once";

/// Bytes in a message.
const PIECE_BYTES: usize = 256 << 10;
/// Messages that may wait for the server.
const PIECES_AHEAD: usize = 8;

/// Sessions that a server takes beside those of others, if it is as it comes.
const SESSIONS_MAX: usize = 80;

/// Why a strategy cannot load the files, if it cannot.
pub(crate) fn refusal(strategy: &str, ground: &Ground) -> Option<String> {
    let files = ground.data().files();
    match strategy {
        EACH if files > SESSIONS_MAX => {
            Some(format!("{files} files are more than the sessions that a server has room for"))
        }
        ONE | EACH => ground.data().not_copied(),
        _ => None,
    }
}

/// Loads all files by one of the strategies. Each table is a phase, but where all are loaded at
/// once; returns rows, and the seconds of the largest table.
pub(crate) fn load(strategy: &str, ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let tables = ground.tables()?;
    match strategy {
        ONE => one(tables, ground, outcome),
        EACH => each(tables, ground, outcome),
        PGSPATE => pgspate(tables, ground, outcome),
        other => Err(Error::new(Kind::Bug, format!("there is no strategy \"{other}\""))),
    }
}

fn one(tables: &[Loadable], ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let connection = ground.connect()?;
    let mut all = 0;
    for table in tables {
        all += outcome.phase(&table.name, || {
            ground.block_on(async {
                let mut rows = 0;
                for file in &table.files {
                    rows += copy(&connection, ground, table, file).await?.0;
                }
                Ok(rows)
            })
        })?;
    }
    Ok((all, largest(tables, outcome)))
}

fn each(tables: &[Loadable], ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let files: Vec<(&Loadable, &LoadFile)> =
        tables.iter().flat_map(|table| table.files.iter().map(move |file| (table, file))).collect();
    let connections = ground.block_on(try_join_all(files.iter().map(|_| ground.open())))?;
    let copied = outcome.phase(AT_ONCE, || {
        let sessions = files.iter().zip(&connections);
        let copies =
            sessions.map(|((table, file), connection)| copy(connection, ground, table, file));
        ground.block_on(try_join_all(copies))
    })?;
    let rows = copied.iter().map(|(rows, _)| rows).sum();
    let of_the_largest = tables.first().map_or(0, |table| table.files.len());
    let last = copied.iter().take(of_the_largest).map(|(_, seconds)| *seconds);
    Ok((rows, last.fold(0.0, f64::max)))
}

fn pgspate(tables: &[Loadable], ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let mut all = 0;
    for table in tables {
        let options = load::Options {
            reading: reading::Options {
                read: table.read.clone(),
                rows: RowRequest { columns: table.columns.clone(), ..RowRequest::default() },
                ..reading::Options::of_sources(
                    table.files.iter().map(|file| file.source.clone()).collect(),
                )
            },
            table: Some(ground.table(&quote_ident(&table.name))),
            // Nobody else does one.
            plan: plan::Options { analyze: When::Never, ..plan::Options::default() },
            restart: true,
            ..load::Options::default()
        };
        let report = outcome.phase(&table.name, || ground.load(options))?;
        all += report.rows_written;
    }
    Ok((all, largest(tables, outcome)))
}

fn largest(tables: &[Loadable], outcome: &Outcome) -> f64 {
    let is_largest = |phase: &&Phase| tables.first().is_some_and(|table| table.name == phase.name);
    outcome.phases.iter().find(is_largest).map_or(0.0, |phase| phase.seconds)
}

/// Copies a file into its table; rows and seconds.
async fn copy(
    connection: &Connection,
    ground: &Ground,
    table: &Loadable,
    file: &LoadFile,
) -> Result<(u64, f64)> {
    let began = Instant::now();
    let name = ground.table(&quote_ident(&table.name));
    let failed = |error| connection.explain(format!("could not copy into {name}"), error);
    let form = file.copy.as_ref().ok_or_else(|| {
        Error::new(Kind::Bug, format!("COPY was to read \"{}\"", file.input.name()))
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

/// The file's bytes but for the first so many, decompressed by a thread of their own. It ends when
/// nobody wants them any more.
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
    let failed = |error| error_of(error, input.name());
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
