//! Ways to load several compressed files.
//!
//! All of them load the same files into the same empty tables, read COPY text of the server's own,
//! and decompress beside the sending, as `gzip -dc | psql` would.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use futures_util::SinkExt as _;
use futures_util::future::try_join_all;
use pgspate::format::sniff::{Format, Overrides};
use pgspate::load;
use pgspate::plan::When;
use pgspate::target::connect::Connection;
use pgspate::{Error, Kind, Result};
use tokio::sync::mpsc;

use crate::data::imdb::{TABLES, Table};
use crate::experiment::{Outcome, Phase};
use crate::ground::Ground;

/// One session loads one file after the other.
pub(crate) const ONE: &str = "one session";
/// A session for each file, all at once.
pub(crate) const EACH: &str = "a session per file";
/// One file after the other, each by all lanes.
pub(crate) const PGSPATE: &str = "pgspate";

/// Bytes in a message.
const PIECE_BYTES: usize = 256 << 10;
/// Messages that may wait for the server.
const PIECES_AHEAD: usize = 8;

/// Loads the seven files by one of the strategies. Each file is a phase, but where all are loaded
/// at once; returns rows, and the seconds of the largest file.
pub(crate) fn load(
    strategy: &str,
    files: &[PathBuf],
    ground: &Ground,
    outcome: &mut Outcome,
) -> Result<(u64, f64)> {
    match strategy {
        ONE => one(files, ground, outcome),
        EACH => each(files, ground, outcome),
        PGSPATE => pgspate(files, ground, outcome),
        other => Err(Error::new(Kind::Bug, format!("there is no strategy \"{other}\""))),
    }
}

fn one(files: &[PathBuf], ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let connection = ground.connect()?;
    let mut all = 0;
    for (table, file) in TABLES.iter().zip(files) {
        all +=
            outcome.phase(table.name, || Ok(ground.block_on(copy(&connection, table, file))?.0))?;
    }
    Ok((all, largest(outcome)))
}

fn each(files: &[PathBuf], ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let connections = ground.block_on(try_join_all(TABLES.iter().map(|_| ground.open())))?;
    let copied = outcome.phase("all files at once", || {
        let sessions = TABLES.iter().zip(files).zip(&connections);
        let copies = sessions.map(|((table, file), connection)| copy(connection, table, file));
        ground.block_on(try_join_all(copies))
    })?;
    let rows = copied.iter().map(|(rows, _)| rows).sum();
    Ok((rows, copied.first().map_or(0.0, |(_, seconds)| *seconds)))
}

fn pgspate(files: &[PathBuf], ground: &Ground, outcome: &mut Outcome) -> Result<(u64, f64)> {
    let mut all = 0;
    for (table, file) in TABLES.iter().zip(files) {
        let options = load::Options {
            sources: vec![file.display().to_string()],
            table: Some(ground.table(table.name)),
            read: Overrides {
                format: Some(Format::Text),
                header: Some(true),
                ..Overrides::default()
            },
            columns: Some(columns(table)),
            // Nobody else does one.
            analyze: When::Never,
            restart: true,
            ..load::Options::default()
        };
        let report = outcome.phase(table.name, || ground.load(options))?;
        all += report.rows_written;
    }
    Ok((all, largest(outcome)))
}

/// The columns by the header, whose names have capitals where those of the table have `_`.
fn columns(table: &Table) -> Vec<String> {
    let name = |field: &str| {
        let mut name = String::new();
        for c in field.chars() {
            if c.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    };
    table.header.split('\t').map(name).collect()
}

fn largest(outcome: &Outcome) -> f64 {
    let is_largest = |phase: &&Phase| phase.name == TABLES[0].name;
    outcome.phases.iter().find(is_largest).map_or(0.0, |phase| phase.seconds)
}

/// Copies a file into its table; rows and seconds.
async fn copy(connection: &Connection, table: &Table, file: &Path) -> Result<(u64, f64)> {
    let began = Instant::now();
    let name = table.name;
    let failed = |error| connection.explain(format!("could not copy into {name}"), error);
    let mut pieces = inflate(file);
    let sql = format!("copy {name} from stdin");
    let sink = connection.client.copy_in(&sql).await.map_err(failed)?;
    let mut sink = Box::pin(sink);
    while let Some(piece) = pieces.recv().await {
        sink.send(piece?).await.map_err(failed)?;
    }
    let rows = sink.as_mut().finish().await.map_err(failed)?;
    Ok((rows, began.elapsed().as_secs_f64()))
}

/// The file's rows without its header, decompressed by a thread of their own. It ends when nobody
/// wants them any more.
fn inflate(path: &Path) -> mpsc::Receiver<Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let path = path.to_owned();
    std::thread::spawn(move || {
        let send = |piece| sender.blocking_send(piece).is_ok();
        if let Err(error) = read(&path, &|piece| send(Ok(piece))) {
            let message = format!("could not read \"{}\"", path.display());
            send(Err(Error::new(Kind::Source, message).because(error)));
        }
    });
    receiver
}

fn read(path: &Path, send: &dyn Fn(Bytes) -> bool) -> std::io::Result<()> {
    let file = BufReader::with_capacity(PIECE_BYTES, File::open(path)?);
    let mut text = BufReader::with_capacity(PIECE_BYTES, MultiGzDecoder::new(file));
    text.read_until(b'\n', &mut Vec::new())?;
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        text.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        if piece.is_empty() || !send(Bytes::from(piece)) {
            return Ok(());
        }
    }
}
