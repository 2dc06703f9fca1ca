//! The progress line: one line on a terminal, redrawn ten times a second.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pgspate::apply;
use pgspate::copy::{ProgressSnapshot, Waiting};
use pgspate::load::LoadWatch;
use pgspate::numbers::{bytes, clock, rate, seconds, short};

use crate::output::draw_line;

const INTERVAL: Duration = Duration::from_millis(100);
/// The rate is smoothed over about this many seconds.
const SMOOTHING_SECONDS: f64 = 2.0;

/// A thread that draws the progress line. Dropping it clears the line.
pub(crate) struct ProgressLine {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts drawing the progress of a load, if stderr is a terminal and `quiet` is false.
    pub(crate) fn start(table: &str, watch: &Arc<LoadWatch>, quiet: bool) -> ProgressLine {
        let (table, watch, started) = (table.to_owned(), Arc::clone(watch), Instant::now());
        ProgressLine::start_with(quiet, move |speed| {
            let snapshot = watch.copy.snapshot();
            let (stored, total) = watch.stored_bytes();
            speed.update(snapshot.bytes, stored);
            let total = total.filter(|_| started.elapsed() > Duration::from_secs(1));
            let left = total.and_then(|total| {
                let left = total.saturating_sub(stored) as f64 / speed.stored_rate;
                (left.is_finite() && left < 1e7).then(|| Duration::from_secs_f64(left))
            });
            render(&table, &snapshot, speed.rate, left)
        })
    }

    /// Starts drawing the progress of a stream of changes.
    pub(crate) fn start_stream(stream: &str, watch: &Arc<apply::ApplyWatch>, quiet: bool) -> Self {
        let (stream, watch) = (stream.to_owned(), Arc::clone(watch));
        ProgressLine::start_with(quiet, move |speed| {
            let progress = watch.progress();
            speed.update(progress.events, progress.bytes);
            render_stream(&stream, &progress, speed.rate)
        })
    }

    /// Starts drawing the lines that `line` returns, again and again.
    fn start_with(
        quiet: bool,
        mut line: impl FnMut(&mut ProgressRates) -> String + Send + 'static,
    ) -> ProgressLine {
        let stop = Arc::new(AtomicBool::new(false));
        let must_stop = Arc::clone(&stop);
        let draw = move || {
            let updated_at = Instant::now();
            let mut speed =
                ProgressRates { bytes: 0, stored: 0, updated_at, rate: 0.0, stored_rate: 0.0 };
            while !must_stop.load(Relaxed) {
                draw_line(&line(&mut speed));
                std::thread::park_timeout(INTERVAL);
            }
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        };
        let is_drawn = !quiet && std::io::stderr().is_terminal();
        ProgressLine { stop, thread: is_drawn.then(|| std::thread::spawn(draw)) }
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

fn render_stream(stream: &str, progress: &apply::ApplyProgress, events_per_second: f64) -> String {
    if let Some((table, rows)) = &progress.copying {
        return format!("applying {stream}  copying {table}  {} rows", short(*rows));
    }
    let lag = match &progress.lag {
        None => String::new(),
        Some(lag) if !lag.is_connected => "  source lost".to_owned(),
        Some(lag) if lag.bytes == 0 && lag.messages.is_none_or(|it| it == 0) => {
            "  no lag".to_owned()
        }
        Some(lag) => {
            let behind = match lag.messages {
                Some(messages) => format!("{} messages", short(messages)),
                None => bytes(lag.bytes),
            };
            format!("  {behind} behind, {}", seconds(lag.seconds))
        }
    };
    let letters = match progress.dead_letters {
        0 => String::new(),
        number => format!("  {} set aside", short(number)),
    };
    format!(
        "applying {stream}  {} events  {}  {}/s  batches of {}{lag}{letters}",
        short(progress.events),
        bytes(progress.bytes),
        short(events_per_second as u64),
        short(progress.batch_events),
    )
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

fn render(table: &str, snapshot: &ProgressSnapshot, speed: f64, left: Option<Duration>) -> String {
    if let Some(phase) = &snapshot.phase {
        return format!("loading {table}  {} rows  {phase}", short(snapshot.rows));
    }
    let lanes = snapshot.lanes;
    let plural = if lanes == 1 { "" } else { "s" };
    let mut line = format!(
        "loading {table}  {} rows  {}  {}  {lanes} lane{plural}",
        short(snapshot.rows),
        bytes(snapshot.bytes),
        rate(speed),
    );
    let waiting = match &snapshot.waiting {
        Waiting::Unknown => String::new(),
        Waiting::Source => "source".to_owned(),
        Waiting::Encode => "encode".to_owned(),
        Waiting::Network => "network".to_owned(),
        Waiting::Server(event) => format!("server ({event})"),
    };
    if !waiting.is_empty() {
        line += &format!("  waiting on: {waiting}");
    }
    if let Some(left) = left {
        line += &format!("  {} left", clock(left));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_load() {
        let snapshot = ProgressSnapshot {
            rows: 12_412_345,
            bytes: 1_900_000_000,
            rejected: 0,
            lanes: 8,
            waiting: Waiting::Server("WALWrite".to_owned()),
            phase: None,
        };
        let left = Some(Duration::from_secs(38));
        insta::assert_snapshot!(
            render("orders", &snapshot, 412.0e6, left),
            @"loading orders  12.4M rows  1.90 GB  412 MB/s  8 lanes  waiting on: server (WALWrite)  00:38 left"
        );
        let phase = Some("building index \"orders_day\"".to_owned());
        insta::assert_snapshot!(
            render("orders", &ProgressSnapshot { phase, ..snapshot }, 412.0e6, left),
            @r#"loading orders  12.4M rows  building index "orders_day""#
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
            render_stream("changes.ndjson", &progress, 187_000.0),
            @"applying changes.ndjson  1.23M events  98.0 MB  187k/s  batches of 150k  2 set aside"
        );
        let mut lag =
            apply::StreamLag { bytes: 5_300_000, seconds: 1.42, ..apply::StreamLag::default() };
        lag.is_connected = true;
        let behind = apply::ApplyProgress { lag: Some(lag), dead_letters: 0, ..progress.clone() };
        insta::assert_snapshot!(
            render_stream("slot s", &behind, 187_000.0),
            @"applying slot s  1.23M events  98.0 MB  187k/s  batches of 150k  5.30 MB behind, 1.42 s"
        );
        let of_topics = apply::StreamLag { bytes: 0, messages: Some(5300), ..lag };
        let of_topics = apply::ApplyProgress { lag: Some(of_topics), ..behind };
        insta::assert_snapshot!(
            render_stream("topic t", &of_topics, 187_000.0),
            @"applying topic t  1.23M events  98.0 MB  187k/s  batches of 150k  5.30k messages behind, 1.42 s"
        );
        let copying = Some(("public.orders".to_owned(), 4_200_000));
        insta::assert_snapshot!(
            render_stream("slot s", &apply::ApplyProgress { copying, ..progress }, 0.0),
            @"applying slot s  copying public.orders  4.20M rows"
        );
    }
}
