//! Runs a stream from its sources to its target tables.
//!
//! Three threads work on a stream: one reads, one makes batches, and the caller's thread writes
//! them. An error on one thread ends the others. It is reported after the earlier batches are
//! committed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::batch::{
    self, BatchBuilder, BuilderContext, EventBatch, LineFeed, SlotFeed, SourceFeed, TopicFeed,
};
use super::initial_copy::InitialCopy;
use super::line_source::{LinePosition, LineSource};
use super::options::ApplyOptions;
use super::plan::read_partition_positions;
use super::report::{ApplyReport, warnings};
use super::route::{ApplyTable, Router, TableMap};
use super::stream_origin::{self, StreamOrigin};
use super::watch::ApplyWatch;
use super::write::{ApplyCounts, BatchWriter, WriterSettings};
use crate::numbers::counted;
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_replication::kafka::{self, KafkaTopics, TopicPosition, TopicSource};
use pgspate_replication::slot::{ConfirmedPosition, Slot, SlotPosition, SlotSource, SlotStart};
use pgspate_replication::{EventSender, EventSource, SourcePoint};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::StreamPosition;
use pgspate_target::session::stopped_error;

/// The most pieces of input that may wait.
const PIECES_AHEAD: usize = 8;
/// How often answers are looked for while no batch comes.
const ANSWER_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A stream that is ready to be applied.
pub struct Apply {
    options: ApplyOptions,
    origin: StreamOrigin,
    router: Router,
    settings: WriterSettings,
    stream: String,
    /// The ledger's position when the run was prepared.
    mark: StreamPosition,
}

/// Resolves the sources, connects, and reads the stream's position. Does not take the stream over;
/// [`Apply::run`] does. Blocks; do not call it from a thread of `runtime`.
///
/// # Errors
/// When a source is missing, a mapping is invalid, the server cannot be reached, or the slot has
/// moved on without the stream.
pub fn prepare(options: ApplyOptions, dsn: Dsn, runtime: &Handle) -> Result<Apply> {
    let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
    let names = TableMap::parse(&options.maps, &options.tables)?;
    let origin = stream_origin::find_origin(&options, runtime)?;
    let stream = stream_origin::stream_name(&options, &origin)?;
    let (unknown, limits) = (options.unknown_columns, options.limits);
    let router = Router::new(dsn.clone(), names, unknown, limits, runtime.clone());
    let router = runtime.block_on(router)?;
    router.check_named_tables()?;
    let settings = WriterSettings {
        dsn,
        limits,
        value_settings: router.value_settings_sql(),
        dead_letters_max: options.dead_letters_max,
        direct_rows: options.direct_rows,
        inputs: stream_origin::source_names(&origin),
    };
    let mark = stream_origin::find_position(&options, &origin, &stream, &settings.dsn);
    let mark = runtime.block_on(mark)?;
    if let StreamOrigin::Slot(slot) = &origin {
        SlotStart::choose(slot, &mark, options.creates_slot, options.copies_rows)?;
    }
    Ok(Apply { options, origin, router, settings, stream, mark })
}

impl Apply {
    /// Returns the stream's name in the ledger.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Returns the number of events that are applied already.
    pub fn events_before(&self) -> u64 {
        self.mark.ordinal
    }

    /// Applies the stream to its end, or until it is stopped. Blocks.
    ///
    /// # Errors
    /// When input cannot be read, decoded or applied, with its place; the batches before are
    /// committed. When another process has the stream, or the role may not write the ledger.
    pub fn run(self, watch: &Arc<ApplyWatch>, runtime: &Handle) -> Result<ApplyReport> {
        let started = Instant::now();
        let Apply { options, origin, router, settings, stream, mark } = self;
        router.wait_for_target_until(&watch.end_reading);
        let options = Arc::new(options);
        let run = ApplyRun { options, settings, stream, watch, runtime, started };
        match origin {
            StreamOrigin::Inputs(inputs) => run.run_inputs(inputs, router),
            StreamOrigin::Slot(slot) => run.run_slot(*slot, &mark, router),
            StreamOrigin::KafkaTopics(topics) => run.run_topics(*topics, router),
        }
    }
}

/// A running stream, from any kind of source.
pub(super) struct ApplyRun<'a> {
    pub(super) options: Arc<ApplyOptions>,
    pub(super) settings: WriterSettings,
    pub(super) stream: String,
    pub(super) watch: &'a Arc<ApplyWatch>,
    pub(super) runtime: &'a Handle,
    started: Instant,
}

impl ApplyRun<'_> {
    /// Applies the events of files.
    fn run_inputs(self, inputs: Vec<Input>, router: Router) -> Result<ApplyReport> {
        let mut writer = self.open_writer(false)?;
        let files = stream_origin::file_names(&inputs);
        if !files.is_empty() {
            self.runtime.block_on(writer.record_files(&files))?;
        }
        self.runtime.block_on(writer.check_unlogged_kept())?;
        let (follows, stream) = (self.options.follows, self.stream.clone());
        let source = LineSource { inputs, follows, stream };
        self.run_pipeline(writer, router, source, &ConfirmedPosition::default(), |context, from| {
            LineFeed::new(BatchBuilder::new(context, from, LinePosition::default(), true))
        })
    }

    /// Applies the events of a slot, after the initial copy if there is one.
    fn run_slot(
        self,
        mut slot: Slot,
        mark: &StreamPosition,
        router: Router,
    ) -> Result<ApplyReport> {
        let ApplyRun { options, watch, runtime, .. } = &self;
        let (mut writer, begin, stream) = self.open_slot(&mut slot, mark)?;
        let copying = InitialCopy { run: &self, slot: &slot, router: &router };
        let (from, copied) = match begin {
            SlotStart::ContinueStream(from) => (from, Vec::new()),
            SlotStart::CreateSlot => copying.run(&mut writer, false)?,
            SlotStart::InitialCopy { .. } => copying.run(&mut writer, true)?,
        };
        runtime.block_on(writer.check_unlogged_kept())?;
        let until = (!options.follows).then_some(slot.log_end);
        let position = SlotPosition::new(&slot);
        let confirmed = Arc::new(ConfirmedPosition::default());
        let (limits, lag) = (options.limits, &watch.lag);
        let source = SlotSource::new(slot, from, stream, &confirmed, limits, lag, runtime);
        let report = self.run_pipeline(writer, router, source, &confirmed, |context, mark| {
            SlotFeed::new(BatchBuilder::new(context, mark, position, false), from, until)
        })?;
        Ok(ApplyReport { copied, ..report })
    }

    /// Applies the messages of topics.
    fn run_topics(self, mut topics: KafkaTopics, router: Router) -> Result<ApplyReport> {
        let ApplyRun { options, settings, stream, watch, runtime, .. } = &self;
        let mut writer = self.open_writer(false)?;
        runtime.block_on(writer.check_unlogged_kept())?;
        // Read the positions after taking the stream over, so that no other process changes them.
        let rows = runtime.block_on(read_partition_positions(&settings.dsn, stream))?;
        topics.refresh(options.limits.stall_timeout)?;
        let mut partitions = topics.begin(stream, writer.mark(), &rows)?;
        runtime.block_on(writer.begin_partitions(&kafka::begin_partitions(&mut partitions)))?;
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
        self.run_pipeline(writer, router, source, &ConfirmedPosition::default(), |context, from| {
            let position = TopicPosition::new(from);
            TopicFeed::new(BatchBuilder::new(context, from, position, false), stream)
        })
    }

    /// Runs `source` to its end. A feed makes batches of its events, and the writer applies them.
    fn run_pipeline<S: EventSource, F: SourceFeed<S>>(
        self,
        mut writer: BatchWriter,
        router: Router,
        mut source: S,
        confirmed: &ConfirmedPosition,
        feed: impl FnOnce(BuilderContext, &StreamPosition) -> F,
    ) -> Result<ApplyReport> {
        let ApplyRun { watch, runtime, .. } = self;
        let events_before = writer.mark().ordinal;
        let (piece_tx, piece_rx) = sync_channel(PIECES_AHEAD);
        // The channel has room for no batch, so the next batch grows until the writer is idle.
        let (batches, batch_rx) = sync_channel(0);
        let (options, names) = (Arc::clone(&self.options), self.settings.inputs.clone());
        let context = BuilderContext { options, router, names, batches, watch: Arc::clone(watch) };
        let feed = feed(context, writer.mark());
        let pieces = EventSender::new(piece_tx, watch.end_reading.clone());
        let reading = std::thread::spawn(move || {
            read_all(&mut source, &pieces);
            source
        });
        let feeding = std::thread::spawn(move || batch::run_feed(feed, &piece_rx));
        let mut tables: Vec<Arc<ApplyTable>> = Vec::new();
        let written = write_all(&batch_rx, &mut writer, watch, confirmed, &mut tables);
        drop(batch_rx);
        watch.end_reading.request();
        let fed = feeding.join();
        // A silent pipe may never end, so the run does not wait for its reader.
        if S::ENDS_ON_STOP
            && let Ok(source) = reading.join()
        {
            source.close();
        }
        match written {
            // The batch is not applied. The report below says so.
            Err(error) if error.kind() == ErrorKind::Cancelled && watch.is_cancelled() => {}
            written => {
                let committed = writer.mark().ordinal;
                written.map_err(|error| hint_committed(error, events_before, committed))?;
            }
        }
        if fed.is_err() {
            return Err(Error::new(ErrorKind::Bug, "the thread that decodes events died"));
        }
        if writer.has_noted_unlogged_writes {
            runtime.block_on(writer.check_unlogged_kept())?;
        }
        self.report(writer, events_before, &tables)
    }

    /// Ends the writer's session. Returns the report of the run.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if a run that has an end was stopped before its end.
    fn report(
        self,
        writer: BatchWriter,
        events_before: u64,
        tables: &[Arc<ApplyTable>],
    ) -> Result<ApplyReport> {
        let position = writer.mark().source.clone();
        let uncounted = writer.uncounted;
        let counts = self.runtime.block_on(writer.close());
        let is_stopped = self.watch.is_cancelled();
        if is_stopped && !self.options.follows {
            return Err(stopped_error().hint(format!(
                "Applied so far: {}. Run the same command again to go on.",
                counted(events_before + counts.events, "event")
            )));
        }
        let warnings = warnings(&counts, uncounted, tables);
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

/// Adds a hint, if this run has committed events: how many, and how many the stream has now. An
/// error of the ledger says itself what it knows of the stream.
fn hint_committed(error: Error, before: u64, committed: u64) -> Error {
    let by_this_run = committed.saturating_sub(before);
    if by_this_run == 0 || error.kind() == ErrorKind::Ledger {
        return error;
    }
    let events = counted(by_this_run, "event");
    let are = if by_this_run == 1 { "is" } else { "are" };
    error.hint_also(&format!(
        "{events} of this run {are} committed, {committed} of the stream; the next run continues \
         after them."
    ))
}

/// Reads the source. Sends an error if the reader panics, as silence would mean the end of the
/// input.
fn read_all<S: EventSource>(source: &mut S, pieces: &EventSender<S::Piece>) {
    if catch_unwind(AssertUnwindSafe(|| source.read(pieces))).is_err() {
        // This fails if the run has ended for another reason.
        let _ =
            pieces.send(Err(Error::new(ErrorKind::Bug, "the thread that reads the source died")));
    }
}

/// Applies batches as they arrive, and shows the progress.
fn write_all(
    batches: &Receiver<Result<EventBatch>>,
    writer: &mut BatchWriter,
    watch: &ApplyWatch,
    confirmed: &ConfirmedPosition,
    tables: &mut Vec<Arc<ApplyTable>>,
) -> Result<()> {
    loop {
        let received = match writer.keeps_batches() {
            true => batches.recv_timeout(ANSWER_CHECK_INTERVAL),
            false => batches.recv().map_err(RecvTimeoutError::from),
        };
        let is_end = matches!(received, Err(RecvTimeoutError::Disconnected));
        let written = match received {
            Ok(Ok(batch)) => writer.push(batch, watch),
            // Report the error after the batches before it.
            Ok(Err(error)) => writer.finish(watch).and(Err(error)),
            Err(RecvTimeoutError::Timeout) => writer.take_answers(watch),
            Err(RecvTimeoutError::Disconnected) => writer.finish(watch),
        };
        while let Some(batch) = writer.take_applied() {
            report_applied(batch, &writer.counts, watch, confirmed, tables);
        }
        written?;
        if is_end {
            return Ok(());
        }
    }
}

/// Confirms an applied batch to the source, and shows the progress.
fn report_applied(
    batch: EventBatch,
    counts: &ApplyCounts,
    watch: &ApplyWatch,
    confirmed: &ConfirmedPosition,
    tables: &mut Vec<Arc<ApplyTable>>,
) {
    watch.keep_batch();
    if let (Some(reached), true) = (batch.reached, batch.ends_transaction) {
        if let SourcePoint::Log(lsn) = reached {
            confirmed.note(lsn);
        }
        watch.lag.note_applied(reached);
    }
    if let Some(at) = batch.committed_at {
        watch.lag.note_committed(at);
    }
    watch.events.store(counts.events, Relaxed);
    watch.bytes.store(counts.bytes, Relaxed);
    watch.batches.store(counts.batches, Relaxed);
    watch.dead_letters.store(counts.dead_letters, Relaxed);
    if batch.events > 0 {
        watch.batch_events.store(batch.events, Relaxed);
        *tables = batch.tables;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgspate_target::session::StopFlag;

    struct PanickingSource;

    impl EventSource for PanickingSource {
        type Position = LinePosition;
        type Piece = ();

        fn read(&mut self, _: &EventSender<()>) {
            panic!("on purpose");
        }

        fn close(self) {}
    }

    #[test]
    fn a_panicking_reader_sends_an_error() {
        let (pieces, read) = sync_channel(1);
        read_all(&mut PanickingSource, &EventSender::new(pieces, StopFlag::default()));
        assert_eq!(read.recv().unwrap().unwrap_err().kind(), ErrorKind::Bug);
    }
}
