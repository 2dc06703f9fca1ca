//! A stream from its inputs to its tables.
//!
//! Three threads: one reads, one makes batches, and the caller's writes them. What goes wrong on
//! one of them ends the others, and is told when what came before it is committed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use tokio::runtime::Handle;

use super::batch::Batch;
use super::facts::Facts;
use super::feed::{AtEnd, Cuts, Feed, SlotFeed};
use super::inputs::Inputs;
use super::kafka;
use super::names::Names;
use super::open::Opening;
use super::piece::Piece;
use super::plan::{read_mark, read_parts};
use super::replication::{Lsn, Replication};
use super::report::Report;
use super::route::{Router, UnknownColumns};
use super::slot::{Begin, Confirmed, Copied, Copying, Pump, Slot, spawn_look};
use super::watch::Watch;
use super::write::{Settings, Writer};
use super::{lines, order};
use crate::ledger::Mark;
use crate::session::{Limits, stopped};
use crate::source::{self, Input};
use crate::target::connect::Dsn;
use crate::{Error, Kind, Result};
use pgspate_events::decode::{DecodeOptions, Format};

/// Blocks of input that may wait.
const BLOCKS_AHEAD: usize = 8;

/// What to apply, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Paths, globs, folders, `-`, or URLs, in the order of the stream; or one replication slot,
    /// `postgres://...?slot=...&publication=...`; or topics of Kafka,
    /// `kafka://broker:port/topic,topic`, where the feature `kafka` is on.
    pub sources: Vec<String>,
    /// Inputs that a program has itself, after those.
    pub inputs: Vec<Input>,
    /// How they are found and read.
    pub source: source::Options,
    /// The format; found out by default.
    pub format: Option<Format>,
    /// What it does not say of itself.
    pub decode: DecodeOptions,
    /// `from=to`, with `*` for parts of names.
    pub maps: Vec<String>,
    /// Patterns of the tables whose events count; all by default.
    pub tables: Vec<String>,
    /// What becomes of columns that the target does not have.
    pub unknown_columns: UnknownColumns,
    /// What becomes of a transaction of the source that the input ends within.
    pub at_end: AtEnd,
    /// The name under which the ledger keeps the position; made from the sources' names by default.
    pub stream: Option<String>,
    /// So many events may be set aside.
    pub dead_letters_max: u64,
    /// Events of a batch, at most.
    pub batch_rows: u64,
    /// Bytes of input of a batch, at most, and of what its events take. A batch takes about four
    /// times as much memory, twice.
    pub batch_bytes: u64,
    /// Batches of up to so many rows are written without a temporary table.
    pub direct_rows: u64,
    /// How long a batch waits for more events when nothing is being written.
    pub batch_delay: Duration,
    /// Go on when the input ends: what is appended to the last file is applied, too. A slot and
    /// topics are read up to where they ended at first otherwise.
    pub follows: bool,
    /// Make the slot when it is not there.
    pub creates_slot: bool,
    /// Make the slot, and copy the rows that there are first.
    pub copies_rows: bool,
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
            decode: DecodeOptions::default(),
            maps: Vec::new(),
            tables: Vec::new(),
            unknown_columns: UnknownColumns::default(),
            at_end: AtEnd::default(),
            stream: None,
            dead_letters_max: 0,
            batch_rows: 500_000,
            batch_bytes: 64 << 20,
            direct_rows: 1000,
            batch_delay: Duration::from_millis(2),
            follows: false,
            creates_slot: false,
            copies_rows: false,
            limits: Limits::default(),
        }
    }
}

/// A stream that is ready to be applied.
pub struct Apply {
    options: Options,
    origin: Origin,
    dsn: Dsn,
    router: Router,
    settings: Settings,
    stream: String,
    /// Where the ledger was when it was asked.
    mark: Mark,
}

/// What is read.
pub(super) enum Origin {
    Inputs(Vec<Input>),
    Slot(Box<Slot>, Begin),
    /// With where each partition begins, once that is known.
    Topics(Box<kafka::Topics>, Vec<kafka::Partition>),
}

/// What the sources name.
pub(super) enum Found {
    Inputs(Vec<Input>),
    Slot(Box<Slot>),
    Topics(Box<kafka::Topics>),
}

pub(super) fn find(options: &Options, runtime: &Handle) -> Result<Found> {
    if options.batch_rows == 0 || options.batch_bytes == 0 {
        return Err(Error::new(Kind::Usage, "a batch needs room for an event"));
    }
    let alone = |what: &str| match options.sources.len() {
        1 => Ok(()),
        _ => Err(Error::new(Kind::Usage, format!("{what} is a stream of its own"))
            .hint("Name it alone, and apply files under another `--stream`.")),
    };
    let stall = options.limits.stall_timeout;
    for source in &options.sources {
        let looked = Slot::look(source, stall);
        let Some(slot) = runtime.block_on(looked)? else { continue };
        alone("a replication slot")?;
        return Ok(Found::Slot(Box::new(slot)));
    }
    if options.creates_slot || options.copies_rows {
        let message = "no source is a replication slot";
        return Err(Error::new(Kind::Usage, message)
            .hint("Write postgres://user@host/dbname?slot=NAME&publication=NAME."));
    }
    if let Some(source) = options.sources.iter().find(|source| kafka::is_topics(source)) {
        alone("a list of topics")?;
        let topics = kafka::Topics::look(source, options.follows, stall)?;
        return Ok(Found::Topics(Box::new(topics)));
    }
    // The stream's position says what of a file that has grown is new.
    let growing = source::Options { may_grow: true, ..options.source.clone() };
    let mut inputs = source::resolve(&options.sources, &growing, runtime.clone())?;
    inputs.extend(options.inputs.iter().cloned());
    Ok(Found::Inputs(inputs))
}

/// The stream's name in the ledger.
///
/// # Errors
/// Of [`Kind::Usage`] when the name of its source could be another source's, too.
pub(super) fn name(options: &Options, found: &Found) -> Result<String> {
    if let Some(name) = &options.stream {
        return Ok(name.clone());
    }
    Ok(match found {
        Found::Slot(slot) => slot.title(),
        Found::Topics(topics) => topics.title(),
        Found::Inputs(inputs) => match inputs.first() {
            Some(first) if first.hidden().is_some() => {
                let message = format!("the stream of \"{}\" has no name of its own", first.name());
                return Err(Error::new(Kind::Usage, message).hint(
                    "What a URL says of its user and behind the question mark is not kept, as it \
                     may be secret. Give the stream a name with `--stream NAME`.",
                ));
            }
            first => first.map_or("-", Input::name).to_owned(),
        },
    })
}

/// Finds the inputs, connects, and looks where the stream is, which is taken over when it runs.
/// Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Inputs that are not there, mappings that are none, a server that cannot be reached; a slot that
/// has gone on without the stream.
pub fn prepare(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Apply> {
    let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
    let names = Names::parse(&options.maps, &options.tables)?;
    let found = find(&options, runtime)?;
    let stream = name(&options, &found)?;
    let (unknown, limits) = (options.unknown_columns, options.limits);
    let router = Router::new(dsn.clone(), names, unknown, limits, runtime.clone());
    let router = runtime.block_on(router)?;
    let settings = Settings {
        dsn: dsn.clone(),
        limits: options.limits,
        dead_letters_max: options.dead_letters_max,
        direct_rows: options.direct_rows,
        inputs: match &found {
            Found::Slot(slot) => Inputs::Slot(slot.title()),
            Found::Inputs(inputs) => {
                Inputs::Files(inputs.iter().map(|it| it.name().to_owned()).collect())
            }
            Found::Topics(_) => Inputs::Topics(Arc::default()),
        },
    };
    let mark = runtime.block_on(read_mark(&dsn, &stream))?;
    let origin = match found {
        Found::Inputs(inputs) => Origin::Inputs(inputs),
        Found::Topics(topics) => Origin::Topics(topics, Vec::new()),
        Found::Slot(slot) => {
            let (creates, copies) = (options.creates_slot, options.copies_rows);
            let begin = Begin::choose(&slot, &mark, creates, copies)?;
            Origin::Slot(slot, begin)
        }
    };
    Ok(Apply { options, origin, dsn, router, settings, stream, mark })
}

/// What reads, and gives back what is to be closed at the very end.
struct Reading {
    thread: JoinHandle<Option<Replication>>,
    confirmed: Arc<Confirmed>,
    look: Option<tokio::task::JoinHandle<()>>,
    /// It reads a source that ends when it is told to.
    ends: bool,
}

impl Apply {
    /// The stream's name in the ledger.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Events of it that are applied already.
    pub fn events_before(&self) -> u64 {
        self.mark.ordinal
    }

    /// Applies it to its end, or until it is stopped. Blocks.
    ///
    /// # Errors
    /// What cannot be read, decoded or applied, with its place. Batches before it are committed. A
    /// stream that somebody else has; a role that may not write the ledger.
    pub fn run(mut self, watch: &Arc<Watch>, runtime: &Handle) -> Result<Report> {
        let started = Instant::now();
        self.router.heed(watch);
        let (mut writer, begun) = self.open(watch, runtime)?;
        let events_before = writer.mark().ordinal;
        let (slot, copied) = self.begin(&mut writer, watch, runtime)?;
        runtime.block_on(writer.check_kept())?;
        self.begin_topics(&mut writer, watch, runtime)?;
        let follows = self.options.follows;
        let (piece_tx, piece_rx) = sync_channel(BLOCKS_AHEAD);
        // The writer takes a batch when it has nothing else to do, so that the next one grows.
        let (batch_tx, batch_rx) = sync_channel(0);
        let confirmed = Arc::new(Confirmed::default());
        let from = slot.as_ref().map(|slot| slot.from);
        confirmed.note(from.unwrap_or_default());
        watch.reach(from.unwrap_or_default());
        let Apply { options, origin, router, stream, .. } = self;
        let (pieces, batches) = (piece_rx, batch_tx);
        let feed = feed(&options, router, &writer, slot, pieces, batches, watch);
        let reading = Reading::start(Starting {
            origin,
            stream: &stream,
            options: &options,
            from,
            begun,
            confirmed,
            pieces: piece_tx,
            watch,
            runtime,
        });
        let feed = std::thread::spawn(move || feed.run());
        let mut tables: Vec<Arc<Facts>> = Vec::new();
        let written = write_all(&batch_rx, &mut writer, watch, &reading.confirmed, &mut tables);
        drop(batch_rx);
        watch.gone.store(true, Relaxed);
        let fed = feed.join();
        let read = reading.end(runtime);
        match written {
            // The batch is not applied; what follows says so.
            Err(error) if error.kind() == Kind::Cancelled && watch.is_cancelled() => {}
            written => written?,
        }
        read?;
        if fed.is_err() {
            return Err(Error::new(Kind::Bug, "the thread that decodes events died"));
        }
        if writer.is_bound {
            runtime.block_on(writer.check_kept())?;
        }
        let position = writer.mark().source.clone();
        let uncounted = writer.uncounted;
        let counts = runtime.block_on(writer.close());
        let is_stopped = watch.is_cancelled();
        if is_stopped && !follows {
            return Err(stopped().hint(format!(
                "{} events are applied; run the same command again to go on.",
                events_before + counts.events
            )));
        }
        let warnings = warnings(counts.missing, uncounted, &tables);
        let tables = tables.iter().map(|facts| facts.table.sql_name.clone()).collect();
        let seconds = started.elapsed().as_secs_f64();
        Ok(Report {
            stream,
            events_before,
            counts,
            tables,
            position,
            copied,
            uncounted,
            seconds,
            is_stopped,
            warnings,
        })
    }

    fn open(&mut self, watch: &Watch, runtime: &Handle) -> Result<(Writer, Option<Replication>)> {
        let Apply { options, settings, stream, origin, mark, .. } = self;
        Opening { options, settings, stream, watch, runtime }.open(origin, mark)
    }

    /// Finds out where partitions begin, which nobody else moves on from now on.
    fn begin_topics(&mut self, writer: &mut Writer, watch: &Watch, runtime: &Handle) -> Result<()> {
        let Origin::Topics(topics, partitions) = &mut self.origin else { return Ok(()) };
        let rows = runtime.block_on(read_parts(&self.dsn, &self.stream))?;
        topics.ask(self.options.limits.stall_timeout)?;
        *partitions = topics.begin(&self.stream, writer.mark(), &rows)?;
        runtime.block_on(writer.begin_parts(&kafka::rows(partitions)))?;
        watch.counts_messages.store(true, Relaxed);
        let reached = partitions.iter().map(|it| it.next.unsigned_abs()).sum();
        watch.reach(Lsn(reached));
        Ok(())
    }

    /// Makes the slot and copies rows, where that is to be done.
    fn begin(
        &self,
        writer: &mut Writer,
        watch: &Watch,
        runtime: &Handle,
    ) -> Result<(Option<SlotFeed>, Vec<Copied>)> {
        let Apply { options, origin, dsn, router, .. } = self;
        let Origin::Slot(slot, begin) = origin else { return Ok((None, Vec::new())) };
        let copying = Copying {
            slot,
            target: dsn,
            router,
            unknown: options.unknown_columns,
            limits: options.limits,
            watch,
            runtime,
        };
        let (from, copied) = match *begin {
            Begin::Stream(from) => (from, Vec::new()),
            Begin::Slot => copying.run(writer, false)?,
            Begin::Copy { .. } => copying.run(writer, true)?,
        };
        let until = (!options.follows).then_some(slot.log_end);
        let (identity, read_from) = (slot.identity.clone(), Arc::clone(&slot.read_from));
        Ok((Some(SlotFeed { identity, read_from, from, until }), copied))
    }
}

/// What makes batches of what is read, after what `writer` has applied.
fn feed(
    options: &Options,
    router: Router,
    writer: &Writer,
    slot: Option<SlotFeed>,
    pieces: Receiver<Result<Piece>>,
    batches: SyncSender<Result<Batch>>,
    watch: &Arc<Watch>,
) -> Feed {
    Feed {
        pieces,
        batches,
        router,
        decoder: None,
        dms: None,
        format: options.format,
        found: None,
        decode: options.decode.clone(),
        cuts: Cuts {
            rows: options.batch_rows,
            bytes: options.batch_bytes,
            delay: options.batch_delay,
        },
        at_end: options.at_end,
        inputs: writer.inputs().clone(),
        slot,
        from: writer.mark().clone(),
        stream: writer.stream().to_owned(),
        dead_letters_max: options.dead_letters_max,
        watch: Arc::clone(watch),
    }
}

/// What it takes to read.
struct Starting<'a> {
    origin: Origin,
    stream: &'a str,
    options: &'a Options,
    from: Option<Lsn>,
    /// The slot's stream, where it has been begun.
    begun: Option<Replication>,
    confirmed: Arc<Confirmed>,
    pieces: SyncSender<Result<Piece>>,
    watch: &'a Arc<Watch>,
    runtime: &'a Handle,
}

impl Reading {
    /// Starts to read.
    fn start(starting: Starting<'_>) -> Reading {
        let Starting { origin, stream, options, from, begun, confirmed, pieces, watch, runtime } =
            starting;
        match (origin, from) {
            (Origin::Topics(topics, partitions), _) => {
                let pump = kafka::Pump {
                    topics: *topics,
                    stream: stream.to_owned(),
                    partitions,
                    follows: options.follows,
                    retry_for: options.limits.retry_for,
                    stall_timeout: options.limits.stall_timeout,
                    watch: Arc::clone(watch),
                };
                let read = move || {
                    pump.run(&pieces);
                    None
                };
                let thread = std::thread::spawn(read);
                Reading { thread, confirmed, look: None, ends: true }
            }
            (Origin::Slot(slot, _), Some(from)) => {
                let look = spawn_look((*slot).clone(), Arc::clone(watch), runtime);
                let pump = Pump {
                    slot: *slot,
                    from,
                    begun,
                    confirmed: Arc::clone(&confirmed),
                    limits: options.limits,
                    watch: Arc::clone(watch),
                    runtime: runtime.clone(),
                };
                let thread = std::thread::spawn(move || pump.run(&pieces));
                Reading { thread, confirmed, look: Some(look), ends: true }
            }
            (Origin::Slot(..), None) => {
                let thread = std::thread::spawn(|| None);
                Reading { thread, confirmed, look: None, ends: true }
            }
            (Origin::Inputs(inputs), _) => {
                let follows = options.follows;
                let read = move || {
                    lines::read(&inputs, follows, &pieces);
                    None
                };
                let thread = std::thread::spawn(read);
                Reading { thread, confirmed, look: None, ends: false }
            }
        }
    }

    /// After the last commit: the source hears of it. A thread that reads a silent pipe is left
    /// to itself.
    ///
    /// # Errors
    /// Of [`Kind::Bug`] when the thread that reads a slot or topics died, which looks like their
    /// end.
    fn end(self, runtime: &Handle) -> Result<()> {
        if let Some(look) = self.look {
            look.abort();
        }
        if !self.ends {
            return Ok(());
        }
        match self.thread.join() {
            Ok(Some(stream)) => runtime.block_on(stream.close()),
            Ok(None) => {}
            Err(_) => return Err(Error::new(Kind::Bug, "the thread that reads the source died")),
        }
        Ok(())
    }
}

/// What the user should know in the end.
fn warnings(missing: u64, uncounted: u64, tables: &[Arc<Facts>]) -> Vec<String> {
    let mut warnings = Vec::new();
    if missing > 0 {
        warnings.push(format!(
            "{missing} updates or deletes found no row: the tables were not as the stream takes \
             them to be"
        ));
    }
    if uncounted > 0 {
        warnings.push(format!(
            "{uncounted} {} committed, but answers that say what was done were lost: rows may be \
             in the tables, or missing, that are not in the counts",
            if uncounted == 1 { "batch was" } else { "batches were" }
        ));
    }
    if let Some(facts) = order::circle(&tables.iter().map(|it| &**it).collect::<Vec<_>>()) {
        warnings.push(format!(
            "foreign keys lead from {} in a circle: where no order of statements will do, events \
             are applied in smaller steps; a deferrable key would spare that",
            facts.table.sql_name
        ));
    }
    warnings
}

fn write_all(
    batches: &Receiver<Result<Batch>>,
    writer: &mut Writer,
    watch: &Watch,
    confirmed: &Confirmed,
    tables: &mut Vec<Arc<Facts>>,
) -> Result<()> {
    while let Ok(batch) = batches.recv() {
        let batch = batch?;
        writer.apply(&batch, watch)?;
        watch.end_batch();
        if let (Some(lsn), true) = (batch.lsn, batch.commits) {
            confirmed.note(lsn);
            watch.reach(lsn);
        }
        if let Some(at) = batch.committed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()) {
            watch.committed.store(at.as_micros() as u64, Relaxed);
        }
        let counts = &writer.counts;
        watch.events.store(counts.events, Relaxed);
        watch.bytes.store(counts.bytes, Relaxed);
        watch.batches.store(counts.batches, Relaxed);
        watch.dead_letters.store(counts.dead_letters, Relaxed);
        if batch.events > 0 {
            watch.batch_events.store(batch.events, Relaxed);
            tables.clone_from(&batch.tables);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_reader_is_no_end_of_the_stream() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let thread = std::thread::spawn(|| panic!("on purpose"));
        let look = Some(runtime.spawn(async {}));
        let reading = Reading { thread, confirmed: Arc::default(), look, ends: true };
        assert_eq!(reading.end(runtime.handle()).unwrap_err().kind(), Kind::Bug);
    }
}
