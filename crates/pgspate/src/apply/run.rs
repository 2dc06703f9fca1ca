//! A stream from its inputs to its tables.
//!
//! Three threads: one reads, one makes batches, and the caller's writes them. What goes wrong on
//! one of them ends the others, and is told when what came before it is committed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use tokio::runtime::Handle;

use super::backfill::InitialCopy;
use super::batch::{self, EventBatch, BatchBuilder, SourceFeed, LineFeed, SlotFeed, TopicFeed, BuilderContext};
use super::inputs::{LinePosition, LineSource};
use super::options::ApplyOptions;
use super::origin::{self, StreamOrigin};
use super::plan::{read_mark, read_parts};
use super::report::{ApplyReport, warnings};
use super::route::{ApplyTable, TableMap, Router};
use super::watch::ApplyWatch;
use super::write::{WriterSettings, BatchWriter};
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_replication::kafka::{self, TopicPosition, TopicSource, Topics};
use pgspate_replication::slot::{Begin, Confirmed, Slot, SlotPosition, SlotSource};
use pgspate_replication::{EventSource, Pieces, SourcePoint};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::Mark;
use pgspate_target::session::stopped;

/// Pieces of input that may wait.
const PIECES_AHEAD: usize = 8;

/// A stream that is ready to be applied.
pub struct Apply {
    options: ApplyOptions,
    origin: StreamOrigin,
    router: Router,
    settings: WriterSettings,
    stream: String,
    /// Where the ledger was when it was asked.
    mark: Mark,
}

/// Finds the inputs, connects, and looks where the stream is, which is taken over when it runs.
/// Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Inputs that are not there, mappings that are none, a server that cannot be reached; a slot that
/// has gone on without the stream.
pub fn prepare(options: ApplyOptions, dsn: Dsn, runtime: &Handle) -> Result<Apply> {
    let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
    let names = TableMap::parse(&options.maps, &options.tables)?;
    let origin = origin::find(&options, runtime)?;
    let stream = origin::name(&options, &origin)?;
    let (unknown, limits) = (options.unknown_columns, options.limits);
    let router = Router::new(dsn.clone(), names, unknown, limits, runtime.clone());
    let router = runtime.block_on(router)?;
    let settings = WriterSettings {
        dsn,
        limits,
        dead_letters_max: options.dead_letters_max,
        direct_rows: options.direct_rows,
        inputs: origin::names(&origin),
    };
    let mark = runtime.block_on(read_mark(&settings.dsn, &stream))?;
    if let StreamOrigin::Slot(slot) = &origin {
        Begin::choose(slot, &mark, options.creates_slot, options.copies_rows)?;
    }
    Ok(Apply { options, origin, router, settings, stream, mark })
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
    pub fn run(self, watch: &Arc<ApplyWatch>, runtime: &Handle) -> Result<ApplyReport> {
        let started = Instant::now();
        let Apply { options, origin, router, settings, stream, mark } = self;
        router.wait_until(&watch.unwanted);
        let options = Arc::new(options);
        let run = ApplyRun { options, settings, stream, watch, runtime, started };
        match origin {
            StreamOrigin::Inputs(inputs) => run.inputs(inputs, router),
            StreamOrigin::Slot(slot) => run.slot(*slot, &mark, router),
            StreamOrigin::Topics(topics) => run.topics(*topics, router),
        }
    }
}

/// A run, whatever its source.
pub(super) struct ApplyRun<'a> {
    pub(super) options: Arc<ApplyOptions>,
    pub(super) settings: WriterSettings,
    pub(super) stream: String,
    pub(super) watch: &'a Arc<ApplyWatch>,
    pub(super) runtime: &'a Handle,
    started: Instant,
}

impl ApplyRun<'_> {
    fn inputs(self, inputs: Vec<Input>, router: Router) -> Result<ApplyReport> {
        let mut writer = self.writer(false)?;
        self.runtime.block_on(writer.check_kept())?;
        let source = LineSource { inputs, follows: self.options.follows };
        self.pipe(writer, router, source, &Confirmed::default(), |wiring, from| {
            LineFeed::new(BatchBuilder::new(wiring, from, LinePosition::default(), true))
        })
    }

    fn slot(self, mut slot: Slot, mark: &Mark, router: Router) -> Result<ApplyReport> {
        let ApplyRun { options, watch, runtime, .. } = &self;
        let (mut writer, begin, begun) = self.open_slot(&mut slot, mark)?;
        let copying = InitialCopy { run: &self, slot: &slot, router: &router };
        let (from, copied) = match begin {
            Begin::Stream(from) => (from, Vec::new()),
            Begin::Slot => copying.run(&mut writer, false)?,
            Begin::Copy { .. } => copying.run(&mut writer, true)?,
        };
        runtime.block_on(writer.check_kept())?;
        let until = (!options.follows).then_some(slot.log_end);
        let position = SlotPosition::new(&slot);
        let confirmed = Arc::new(Confirmed::default());
        let (limits, lag) = (options.limits, &watch.lag);
        let source = SlotSource::new(slot, from, begun, &confirmed, limits, lag, runtime);
        let report = self.pipe(writer, router, source, &confirmed, |wiring, mark| {
            SlotFeed::new(BatchBuilder::new(wiring, mark, position, false), from, until)
        })?;
        Ok(ApplyReport { copied, ..report })
    }

    fn topics(self, mut topics: Topics, router: Router) -> Result<ApplyReport> {
        let ApplyRun { options, settings, stream, watch, runtime, .. } = &self;
        let mut writer = self.writer(false)?;
        runtime.block_on(writer.check_kept())?;
        // Where partitions begin, which nobody else moves on from now on.
        let rows = runtime.block_on(read_parts(&settings.dsn, stream))?;
        topics.ask(options.limits.stall_timeout)?;
        let mut partitions = topics.begin(stream, writer.mark(), &rows)?;
        runtime.block_on(writer.begin_parts(&kafka::begin_partitions(&mut partitions)))?;
        let applied = partitions.iter().map(|it| it.next.unsigned_abs()).sum();
        watch.lag.note_applied(SourcePoint::Messages(applied));
        let source = TopicSource {
            topics,
            stream: stream.clone(),
            partitions,
            follows: options.follows,
            limits: options.limits,
            lag: Arc::clone(&watch.lag),
        };
        let stream = stream.clone();
        self.pipe(writer, router, source, &Confirmed::default(), |wiring, from| {
            let position = TopicPosition::new(from);
            TopicFeed::new(BatchBuilder::new(wiring, from, position, false), stream)
        })
    }

    /// Reads `source` to its end: its events go to a feed, whose batches go to the writer.
    fn pipe<S: EventSource, F: SourceFeed<S>>(
        self,
        mut writer: BatchWriter,
        router: Router,
        mut source: S,
        confirmed: &Confirmed,
        feed: impl FnOnce(BuilderContext, &Mark) -> F,
    ) -> Result<ApplyReport> {
        let ApplyRun { watch, runtime, .. } = self;
        let events_before = writer.mark().ordinal;
        let (piece_tx, piece_rx) = sync_channel(PIECES_AHEAD);
        // The writer takes a batch when it has nothing else to do, so that the next one grows.
        let (batches, batch_rx) = sync_channel(0);
        let (options, names) = (Arc::clone(&self.options), self.settings.inputs.clone());
        let wiring = BuilderContext { options, router, names, batches, watch: Arc::clone(watch) };
        let feed = feed(wiring, writer.mark());
        let pieces = Pieces::new(piece_tx, watch.unwanted.clone());
        let reading = std::thread::spawn(move || {
            read_all(&mut source, &pieces);
            source
        });
        let feeding = std::thread::spawn(move || batch::run(feed, &piece_rx));
        let mut tables: Vec<Arc<ApplyTable>> = Vec::new();
        let written = write_all(&batch_rx, &mut writer, watch, confirmed, &mut tables);
        drop(batch_rx);
        watch.unwanted.request();
        let fed = feeding.join();
        // Of a silent pipe nobody knows when it ends.
        if S::HEEDS_STOP
            && let Ok(source) = reading.join()
        {
            source.close();
        }
        match written {
            // The batch is not applied; what follows says so.
            Err(error) if error.kind() == ErrorKind::Cancelled && watch.is_cancelled() => {}
            written => written?,
        }
        if fed.is_err() {
            return Err(Error::new(ErrorKind::Bug, "the thread that decodes events died"));
        }
        if writer.is_bound {
            runtime.block_on(writer.check_kept())?;
        }
        let position = writer.mark().source.clone();
        let uncounted = writer.uncounted;
        let counts = runtime.block_on(writer.close());
        let is_stopped = watch.is_cancelled();
        if is_stopped && !self.options.follows {
            return Err(stopped().hint(format!(
                "{} events are applied; run the same command again to go on.",
                events_before + counts.events
            )));
        }
        let warnings = warnings(counts.missing, uncounted, &tables);
        Ok(ApplyReport {
            stream: self.stream,
            events_before,
            counts,
            tables: tables.iter().map(|facts| facts.table.sql_name.clone()).collect(),
            position,
            copied: Vec::new(),
            uncounted,
            seconds: self.started.elapsed().as_secs_f64(),
            is_stopped,
            warnings,
        })
    }
}

/// Reads the source. A reader that dies says so: its silence would pass for the end of the input.
fn read_all<S: EventSource>(source: &mut S, pieces: &Pieces<S::Piece>) {
    if catch_unwind(AssertUnwindSafe(|| source.read(pieces))).is_err() {
        // Nobody listens any more where the run has ended for another reason.
        let _ =
            pieces.send(Err(Error::new(ErrorKind::Bug, "the thread that reads the source died")));
    }
}

fn write_all(
    batches: &Receiver<Result<EventBatch>>,
    writer: &mut BatchWriter,
    watch: &ApplyWatch,
    confirmed: &Confirmed,
    tables: &mut Vec<Arc<ApplyTable>>,
) -> Result<()> {
    while let Ok(batch) = batches.recv() {
        let batch = batch?;
        writer.apply(&batch, watch)?;
        watch.end_batch();
        if let (Some(reached), true) = (batch.reached, batch.commits) {
            if let SourcePoint::Log(lsn) = reached {
                confirmed.note(lsn);
            }
            watch.lag.note_applied(reached);
        }
        if let Some(at) = batch.committed {
            watch.lag.note_committed(at);
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
    use pgspate_target::session::Stop;

    struct Dying;

    impl EventSource for Dying {
        type Position = LinePosition;
        type Piece = ();

        fn read(&mut self, _: &Pieces<()>) {
            panic!("on purpose");
        }

        fn close(self) {}
    }

    #[test]
    fn a_reader_that_dies_says_so() {
        let (pieces, read) = sync_channel(1);
        read_all(&mut Dying, &Pieces::new(pieces, Stop::default()));
        assert_eq!(read.recv().unwrap().unwrap_err().kind(), ErrorKind::Bug);
    }
}
