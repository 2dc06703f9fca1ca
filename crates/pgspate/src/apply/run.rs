//! A stream from its inputs to its tables.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::batch::Batch;
use super::decode::Format;
use super::facts::Facts;
use super::feed::{Cuts, Feed};
use super::names::Names;
use super::report::Report;
use super::route::{Router, UnknownColumns};
use super::watch::Watch;
use super::write::{Settings, Writer};
use super::{lines, order};
use crate::copy::Limits;
use crate::source::{self, Input};
use crate::target::connect::Dsn;
use crate::{Error, Kind, Result};

/// Blocks of input that may wait.
const BLOCKS_AHEAD: usize = 8;

/// What to apply, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Paths, globs, folders, `-`, or URLs, in the order of the stream.
    pub sources: Vec<String>,
    /// Inputs that a program has itself, after those.
    pub inputs: Vec<Input>,
    /// How they are found and read.
    pub source: source::Options,
    /// The format; found out by default.
    pub format: Option<Format>,
    /// `from=to`, with `*` for parts of names.
    pub maps: Vec<String>,
    /// Patterns of the tables whose events count; all by default.
    pub tables: Vec<String>,
    /// What becomes of columns that the target does not have.
    pub unknown_columns: UnknownColumns,
    /// The name under which the ledger keeps the position; made from the sources' names by default.
    pub stream: Option<String>,
    /// So many events may be set aside.
    pub dead_letters_max: u64,
    /// Events of a batch, at most.
    pub batch_rows: u64,
    /// Bytes of input of a batch, at most. A batch takes about four times as much memory, twice.
    pub batch_bytes: u64,
    /// How long a batch waits for more events when nothing is being written.
    pub batch_delay: Duration,
    /// Go on when the input ends: what is appended to the last file is applied, too.
    pub follows: bool,
    /// How long to wait for what may never come.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sources: Vec::new(),
            inputs: Vec::new(),
            source: source::Options::default(),
            format: None,
            maps: Vec::new(),
            tables: Vec::new(),
            unknown_columns: UnknownColumns::default(),
            stream: None,
            dead_letters_max: 0,
            batch_rows: 500_000,
            batch_bytes: 64 << 20,
            batch_delay: Duration::from_millis(10),
            follows: false,
            limits: Limits::default(),
        }
    }
}

/// A stream that is ready to be applied.
pub struct Apply {
    options: Options,
    inputs: Vec<Input>,
    router: Router,
    writer: Writer,
    stream: String,
}

/// Finds the inputs, connects, and takes the stream over: whoever applied it is fenced out. Blocks;
/// call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Inputs that are not there, mappings that are none, a server that cannot be reached, a role that
/// may not write the ledger.
pub fn prepare(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Apply> {
    let names = Names::parse(&options.maps, &options.tables)?;
    let mut inputs = source::resolve(&options.sources, &options.source, runtime.clone())?;
    inputs.extend(options.inputs.iter().cloned());
    if options.batch_rows == 0 || options.batch_bytes == 0 {
        return Err(Error::new(Kind::Usage, "a batch needs room for an event"));
    }
    let stream = options.stream.clone().unwrap_or_else(|| {
        let names = inputs.iter().map(Input::name).collect::<Vec<_>>();
        names.first().map_or_else(|| "-".to_owned(), |first| (*first).to_owned())
    });
    let router = Router::new(dsn.clone(), names, options.unknown_columns, runtime.clone());
    let router = runtime.block_on(router)?;
    let settings = Settings {
        dsn,
        limits: options.limits,
        dead_letters_max: options.dead_letters_max,
        inputs: inputs.iter().map(|input| input.name().to_owned()).collect(),
    };
    let writer = Writer::open(settings, &stream, "", runtime.clone());
    let writer = runtime.block_on(writer)?;
    Ok(Apply { options, inputs, router, writer, stream })
}

impl Apply {
    /// The stream's name in the ledger.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Events of it that are applied already.
    pub fn events_before(&self) -> u64 {
        self.writer.mark().ordinal
    }

    /// Applies it to its end, or until it is stopped. Blocks.
    ///
    /// # Errors
    /// What cannot be read, decoded or applied, with its place. Batches before it are committed.
    pub fn run(self, watch: &Arc<Watch>, runtime: &Handle) -> Result<Report> {
        let started = Instant::now();
        let Apply { options, inputs, router, mut writer, stream } = self;
        let events_before = writer.mark().ordinal;
        let (block_tx, block_rx) = sync_channel(BLOCKS_AHEAD);
        // The writer takes a batch when it has nothing else to do, so that the next one grows.
        let (batch_tx, batch_rx) = sync_channel(0);
        let feed = Feed {
            blocks: block_rx,
            batches: batch_tx,
            router,
            decoder: None,
            format: options.format,
            cuts: Cuts {
                rows: options.batch_rows,
                bytes: options.batch_bytes,
                delay: options.batch_delay,
            },
            inputs: inputs.iter().map(|input| input.name().to_owned()).collect(),
            from: writer.mark().clone(),
            dead_letters_max: options.dead_letters_max,
            watch: Arc::clone(watch),
        };
        let follows = options.follows;
        std::thread::spawn(move || lines::read(&inputs, follows, &block_tx));
        let feed = std::thread::spawn(move || feed.run());
        let mut tables: Vec<Arc<Facts>> = Vec::new();
        let written = write_all(&batch_rx, &mut writer, watch, &mut tables);
        drop(batch_rx);
        watch.gone.store(true, Relaxed);
        let fed = feed.join();
        written?;
        if fed.is_err() {
            return Err(Error::new(Kind::Bug, "the thread that decodes events died"));
        }
        let counts = runtime.block_on(writer.close());
        let is_stopped = watch.is_cancelled();
        if is_stopped && !follows {
            return Err(Error::new(Kind::Cancelled, "stopped by the user").hint(format!(
                "{} events are applied; run the same command again to go on.",
                events_before + counts.events
            )));
        }
        let mut warnings = Vec::new();
        if counts.missing > 0 {
            warnings.push(format!(
                "{} updates or deletes found no row: the tables were not as the stream takes them \
                 to be",
                counts.missing
            ));
        }
        if let Some(facts) = order::circle(&tables.iter().map(|it| &**it).collect::<Vec<_>>()) {
            warnings.push(format!(
                "foreign keys lead from {} in a circle: where no order of statements will do, \
                 events are applied in smaller steps; a deferrable key would spare that",
                facts.table.sql_name
            ));
        }
        let tables = tables.iter().map(|facts| facts.table.sql_name.clone()).collect();
        let seconds = started.elapsed().as_secs_f64();
        Ok(Report { stream, events_before, counts, tables, seconds, is_stopped, warnings })
    }
}

fn write_all(
    batches: &Receiver<Result<Batch>>,
    writer: &mut Writer,
    watch: &Watch,
    tables: &mut Vec<Arc<Facts>>,
) -> Result<()> {
    while let Ok(batch) = batches.recv() {
        let batch = batch?;
        watch.busy.store(true, Relaxed);
        writer.apply(&batch, || watch.is_cancelled())?;
        watch.busy.store(false, Relaxed);
        let counts = &writer.counts;
        watch.events.store(counts.events, Relaxed);
        watch.bytes.store(counts.bytes, Relaxed);
        watch.batches.store(counts.batches, Relaxed);
        watch.dead_letters.store(counts.dead_letters, Relaxed);
        watch.batch_events.store(batch.events, Relaxed);
        tables.clone_from(&batch.tables);
    }
    Ok(())
}
