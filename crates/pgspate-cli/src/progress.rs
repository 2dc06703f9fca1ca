//! The progress line: one line on a terminal, redrawn ten times a second. A narrow terminal gets
//! the most important parts.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pgspate::apply;
use pgspate::copy::{ProgressSnapshot, Waiting};
use pgspate::load::LoadWatch;
use pgspate::numbers::{bytes, clock, rate, seconds, short};
use pgspate::target::connect::{Dsn, LockWatch};
use tokio::runtime::Handle;

use crate::output::draw_line;
use crate::terminal::LinePart;

const INTERVAL: Duration = Duration::from_millis(100);
/// The rate is smoothed over about this many seconds.
const SMOOTHING_SECONDS: f64 = 2.0;

/// The number of cells of the bar.
const BAR_CELLS: usize = 10;

/// What a command does to the table, for the first word of its line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressVerb {
    Load,
    /// The rows are staged first; then the sync compares and writes.
    Sync,
}

/// The locks that a command waits for, if there is a terminal to show them on.
pub(crate) struct TerminalLocks(Option<Arc<LockWatch>>);

impl TerminalLocks {
    /// Watches the sessions that are opened with `dsn` from now on, if stderr is a terminal and
    /// `quiet` is false.
    pub(crate) fn watch(dsn: &mut Dsn, quiet: bool, runtime: &Handle) -> TerminalLocks {
        let is_shown = !quiet && std::io::stderr().is_terminal();
        TerminalLocks(is_shown.then(|| {
            let locks = Arc::new(LockWatch::default());
            *dsn = locks.start(dsn, runtime);
            locks
        }))
    }
}

/// A thread that draws the progress line. Dropping it clears the line.
pub(crate) struct ProgressLine {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts drawing the progress of a load or a sync, if stderr is a terminal.
    pub(crate) fn start(
        work: ProgressVerb,
        table: &str,
        watch: &Arc<LoadWatch>,
        locks: &TerminalLocks,
    ) -> ProgressLine {
        let (table, watch, started) = (table.to_owned(), Arc::clone(watch), Instant::now());
        let mut phase_began: Option<(String, Instant)> = None;
        ProgressLine::start_with(locks, move |speed, lock_holders| {
            let snapshot = watch.copy.snapshot();
            let (stored, total) = watch.stored_bytes();
            speed.update(snapshot.bytes.saturating_sub(snapshot.bytes_before), stored);
            phase_began = snapshot.phase.clone().map(|phase| match phase_began.take() {
                Some((known, began)) if known == phase => (known, began),
                _ => (phase, Instant::now()),
            });
            let total = total.filter(|_| started.elapsed() > Duration::from_secs(1));
            let left = total.and_then(|total| {
                let left = total.saturating_sub(stored) as f64 / speed.stored_rate;
                (left.is_finite() && left < 1e7).then(|| Duration::from_secs_f64(left))
            });
            let timing = LineTiming {
                rate: speed.rate,
                share: total.filter(|total| *total > 0).map(|total| stored as f64 / total as f64),
                left,
                phase: phase_began.as_ref().map(|(_, began)| began.elapsed()),
                lock_holders,
            };
            render(work, &table, &snapshot, &timing)
        })
    }

    /// Starts drawing the progress of a stream of changes, if stderr is a terminal.
    pub(crate) fn start_stream(
        stream: &str,
        watch: &Arc<apply::ApplyWatch>,
        locks: &TerminalLocks,
    ) -> ProgressLine {
        let (stream, watch) = (stream.to_owned(), Arc::clone(watch));
        ProgressLine::start_with(locks, move |speed, lock_holders| {
            let progress = watch.progress();
            speed.update(progress.events, progress.bytes);
            render_stream(&stream, &progress, speed.rate, lock_holders.as_deref())
        })
    }

    /// Starts drawing a line while a command waits for a lock before it writes, if stderr is a
    /// terminal. `work` is what the command is about to do.
    pub(crate) fn start_preparation(work: String, locks: &TerminalLocks) -> ProgressLine {
        ProgressLine::start_with(locks, move |_, lock_holders| match lock_holders {
            Some(holders) => vec![LinePart::new(0, work.as_str()), lock_part(&holders)],
            None => Vec::new(),
        })
    }

    /// Starts drawing the lines that `line` returns, again and again. `line` gets the holders of
    /// the locks that the command waits for.
    fn start_with(
        locks: &TerminalLocks,
        mut line: impl FnMut(&mut ProgressRates, Option<String>) -> Vec<LinePart> + Send + 'static,
    ) -> ProgressLine {
        let Some(locks) = locks.0.clone() else {
            return ProgressLine { stop: Arc::default(), thread: None };
        };
        let stop = Arc::new(AtomicBool::new(false));
        let must_stop = Arc::clone(&stop);
        let draw = move || {
            let updated_at = Instant::now();
            let mut speed =
                ProgressRates { bytes: 0, stored: 0, updated_at, rate: 0.0, stored_rate: 0.0 };
            let mut is_drawn = false;
            while !must_stop.load(Relaxed) {
                let parts = line(&mut speed, locks.holders());
                // Without a line, the terminal may have a prompt of another program.
                if is_drawn || !parts.is_empty() {
                    draw_line(&parts);
                }
                is_drawn = !parts.is_empty();
                std::thread::park_timeout(INTERVAL);
            }
            if is_drawn {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        };
        ProgressLine { stop, thread: Some(std::thread::spawn(draw)) }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A failure to draw is ignored.
            let _ = thread.join();
        }
    }
}

fn render_stream(
    stream: &str,
    progress: &apply::ApplyProgress,
    events_per_second: f64,
    lock_holders: Option<&str>,
) -> Vec<LinePart> {
    let mut parts = vec![LinePart::new(0, format!("applying {stream}"))];
    if let Some(holders) = lock_holders {
        let events = LinePart::new(2, short_counted(progress.events, "event"));
        parts.extend([events, lock_part(holders)]);
        return parts;
    }
    if let Some(waits_for) = &progress.waits_for {
        parts.push(LinePart::new(1, waits_for.as_str()));
        return parts;
    }
    if let Some((table, rows)) = &progress.copying {
        parts.push(LinePart::new(2, format!("copying {table}")));
        parts.push(LinePart::new(1, short_counted(*rows, "row")));
        return parts;
    }
    let lag = match &progress.lag {
        None => String::new(),
        Some(lag) if !lag.is_connected => "source lost".to_owned(),
        Some(lag) if lag.bytes == 0 && lag.messages.is_none_or(|it| it == 0) => "no lag".to_owned(),
        Some(lag) => {
            let behind = match lag.messages {
                Some(messages) => short_counted(messages, "message"),
                None => bytes(lag.bytes),
            };
            format!("{behind} behind, {}", seconds(lag.seconds))
        }
    };
    let letters = match progress.dead_letters {
        0 => String::new(),
        number => format!("{} set aside", short(number)),
    };
    parts.extend([
        LinePart::new(3, short_counted(progress.events, "event")),
        LinePart::new(5, bytes(progress.bytes)),
        LinePart::new(4, format!("{}/s", short(events_per_second as u64))),
        LinePart::new(6, format!("batches of {}", short(progress.batch_events))),
        LinePart::new(2, lag),
        LinePart::new(1, letters),
    ]);
    parts
}

/// Says who holds the lock that the command waits for.
fn lock_part(holders: &str) -> LinePart {
    part_without_details(format!("waits for a lock of {holders}"))
}

/// Returns a part that a narrow terminal shows without the words in parentheses.
fn part_without_details(text: String) -> LinePart {
    let short = text.split(" (").next().unwrap_or_default().to_owned();
    LinePart::new(1, text).or(short)
}

/// Formats a count and its noun: `1 event`, `1.23M events`.
fn short_counted(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {noun}{s}", short(count))
}

/// The smoothed rates: bytes (or events) a second, and stored bytes a second.
struct ProgressRates {
    bytes: u64,
    stored: u64,
    updated_at: Instant,
    rate: f64,
    stored_rate: f64,
}

impl ProgressRates {
    fn update(&mut self, bytes: u64, stored: u64) {
        let elapsed = self.updated_at.elapsed().as_secs_f64();
        if elapsed < 0.05 {
            return;
        }
        let weight = if self.rate == 0.0 { 1.0 } else { (elapsed / SMOOTHING_SECONDS).min(1.0) };
        let smooth = |old: f64, new: f64| old + (new - old) * weight;
        self.rate = smooth(self.rate, bytes.saturating_sub(self.bytes) as f64 / elapsed);
        let stored_now = stored.saturating_sub(self.stored) as f64 / elapsed;
        self.stored_rate = smooth(self.stored_rate, stored_now);
        (self.bytes, self.stored, self.updated_at) = (bytes, stored, Instant::now());
    }
}

/// The rate and the times of a line.
#[derive(Default)]
struct LineTiming {
    /// Bytes of input a second.
    rate: f64,
    /// The share of the input that is read, from 0 to 1, if its size is known.
    share: Option<f64>,
    left: Option<Duration>,
    /// How long the phase has lasted.
    phase: Option<Duration>,
    /// The sessions that hold the locks that the command waits for, in words.
    lock_holders: Option<String>,
}

fn render(
    work: ProgressVerb,
    table: &str,
    snapshot: &ProgressSnapshot,
    timing: &LineTiming,
) -> Vec<LinePart> {
    let verb = if work == ProgressVerb::Load { "loading" } else { "syncing" };
    let mut parts = vec![LinePart::new(0, format!("{verb} {table}"))];
    let rows = |rank| LinePart::new(rank, format!("{} rows", short(snapshot.rows)));
    if let Some(holders) = &timing.lock_holders {
        // Rates and times have no meaning now.
        parts.extend((snapshot.rows > 0).then(|| rows(2)));
        parts.push(lock_part(holders));
        return parts;
    }
    if let Some(phase) = &snapshot.phase {
        parts.extend((snapshot.rows > 0).then(|| rows(3)));
        parts.push(part_without_details(phase.clone()));
        parts.extend(timing.phase.map(|lasted| LinePart::new(2, clock(lasted))));
        return parts;
    }
    if work == ProgressVerb::Sync {
        parts.push(LinePart::new(1, "staging"));
    }
    if let Some(share) = timing.share.map(|share| share.clamp(0.0, 1.0)) {
        let full = (share * BAR_CELLS as f64) as usize;
        let bar = format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_CELLS - full));
        parts.push(LinePart::new(7, bar));
        parts.push(LinePart::new(1, format!("{}%", (share * 100.0) as u64)));
    }
    let s = if snapshot.lanes == 1 { "" } else { "s" };
    parts.extend([
        rows(4),
        LinePart::new(6, bytes(snapshot.bytes)),
        LinePart::new(2, rate(timing.rate)),
        LinePart::new(8, format!("{} lane{s}", snapshot.lanes)),
    ]);
    let waiting = match &snapshot.waiting {
        Waiting::Unknown => String::new(),
        Waiting::Source => "source".to_owned(),
        Waiting::Encode => "encode".to_owned(),
        Waiting::Network => "network".to_owned(),
        Waiting::Server(event) => format!("server ({event})"),
    };
    if !waiting.is_empty() {
        parts.push(LinePart::new(5, format!("waiting on: {waiting}")).or(waiting));
    }
    parts.extend(timing.left.map(|left| LinePart::new(3, format!("{} left", clock(left)))));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::fit_line;

    fn snapshot() -> ProgressSnapshot {
        ProgressSnapshot {
            rows: 12_412_345,
            bytes: 1_900_000_000,
            lanes: 8,
            waiting: Waiting::Server("WALWrite".to_owned()),
            ..ProgressSnapshot::default()
        }
    }

    fn timing() -> LineTiming {
        let left = Some(Duration::from_secs(38));
        LineTiming { rate: 412.0e6, share: Some(0.473), left, ..LineTiming::default() }
    }

    #[test]
    fn the_line_of_a_load() {
        let parts = render(ProgressVerb::Load, "orders", &snapshot(), &timing());
        insta::assert_snapshot!(
            fit_line(&parts, 160),
            @"loading orders  [####------]  47%  12.4M rows  1.90 GB  412 MB/s  8 lanes  waiting on: server (WALWrite)  00:38 left"
        );
        insta::assert_snapshot!(
            fit_line(&parts, 79),
            @"loading orders  47%  12.4M rows  412 MB/s  server (WALWrite)  00:38 left"
        );
        insta::assert_snapshot!(fit_line(&parts, 41), @"loading orders  47%  412 MB/s  00:38 left");
        let unknown = LineTiming { share: None, left: None, ..timing() };
        insta::assert_snapshot!(
            fit_line(&render(ProgressVerb::Load, "orders", &snapshot(), &unknown), 79),
            @"loading orders  12.4M rows  1.90 GB  412 MB/s  waiting on: server (WALWrite)"
        );
        let phase = Some("building index \"orders_day\"".to_owned());
        let building = LineTiming { phase: Some(Duration::from_secs(72)), ..timing() };
        let parts = render(
            ProgressVerb::Load,
            "orders",
            &ProgressSnapshot { phase, ..snapshot() },
            &building,
        );
        insta::assert_snapshot!(
            fit_line(&parts, 79),
            @r#"loading orders  12.4M rows  building index "orders_day"  01:12"#
        );
    }

    #[test]
    fn a_lock_is_named_in_a_narrow_line() {
        let session = "session 24685 ('psql', role postgres, idle in transaction)";
        let snapshot = ProgressSnapshot { rows: 3, lanes: 1, ..ProgressSnapshot::default() };
        let waiting = LineTiming { lock_holders: Some(session.to_owned()), ..timing() };
        let parts = render(ProgressVerb::Load, "public.lk", &snapshot, &waiting);
        insta::assert_snapshot!(
            fit_line(&parts, 160),
            @"loading public.lk  3 rows  waits for a lock of session 24685 ('psql', role postgres, idle in transaction)"
        );
        insta::assert_snapshot!(
            fit_line(&parts, 79),
            @"loading public.lk  3 rows  waits for a lock of session 24685"
        );
    }

    #[test]
    fn the_line_of_a_sync_names_its_step() {
        let line = |phase: Option<&str>| {
            let snapshot =
                ProgressSnapshot { phase: phase.map(str::to_owned), lanes: 1, ..snapshot() };
            let phase = phase.map(|_| Duration::from_secs(5));
            let timing = LineTiming { phase, ..timing() };
            fit_line(&render(ProgressVerb::Sync, "orders", &snapshot, &timing), 79)
        };
        insta::assert_snapshot!(
            line(None),
            @"syncing orders  staging  47%  12.4M rows  1.90 GB  412 MB/s  1 lane  00:38 left"
        );
        insta::assert_snapshot!(
            line(Some("comparing")),
            @"syncing orders  12.4M rows  comparing  00:05"
        );
        insta::assert_snapshot!(
            line(Some("writing 1200 differences")),
            @"syncing orders  12.4M rows  writing 1200 differences  00:05"
        );
        let waits = "exchange waits for a lock of session 7 ('psql', role meters, active)";
        insta::assert_snapshot!(
            line(Some(waits)),
            @"syncing orders  12.4M rows  exchange waits for a lock of session 7  00:05"
        );
    }

    #[test]
    fn the_line_of_a_stream() {
        let progress = apply::ApplyProgress {
            events: 1_234_567,
            bytes: 98_000_000,
            batches: 7,
            batch_events: 150_000,
            dead_letters: 2,
            ..apply::ApplyProgress::default()
        };
        insta::assert_snapshot!(
            fit_line(&render_stream("changes.ndjson", &progress, 187_000.0, None), 160),
            @"applying changes.ndjson  1.23M events  98.0 MB  187k/s  batches of 150k  2 set aside"
        );
        let mut lag =
            apply::StreamLag { bytes: 5_300_000, seconds: 1.42, ..apply::StreamLag::default() };
        lag.is_connected = true;
        let behind = apply::ApplyProgress { lag: Some(lag), dead_letters: 0, ..progress.clone() };
        insta::assert_snapshot!(
            fit_line(&render_stream("slot s", &behind, 187_000.0, None), 160),
            @"applying slot s  1.23M events  98.0 MB  187k/s  batches of 150k  5.30 MB behind, 1.42 s"
        );
        let of_topics = apply::StreamLag { bytes: 0, messages: Some(5300), ..lag };
        let of_topics = apply::ApplyProgress { lag: Some(of_topics), ..behind };
        insta::assert_snapshot!(
            fit_line(&render_stream("topic t", &of_topics, 187_000.0, None), 160),
            @"applying topic t  1.23M events  98.0 MB  187k/s  batches of 150k  5.30k messages behind, 1.42 s"
        );
        let waits_for = Some("waiting up to 60 s: another process reads the slot".to_owned());
        let waiting = apply::ApplyProgress { waits_for, ..progress.clone() };
        insta::assert_snapshot!(
            fit_line(&render_stream("slot s", &waiting, 0.0, None), 79),
            @"applying slot s  waiting up to 60 s: another process reads the slot"
        );
        let copying = Some(("public.orders".to_owned(), 4_200_000));
        let copying = apply::ApplyProgress { copying, ..progress };
        insta::assert_snapshot!(
            fit_line(&render_stream("slot s", &copying, 0.0, None), 160),
            @"applying slot s  copying public.orders  4.20M rows"
        );
    }
}
