//! The numbers of the live page, as JSON.

use std::sync::atomic::Ordering;

use serde::Serialize;

use pgspate::writer::SET_SIZES;

use crate::options::ServeReport;
use crate::state::{DURATIONS, ServeState};

/// What the page `/stats` has.
#[derive(Serialize)]
struct LiveStats {
    #[serde(flatten)]
    report: ServeReport,
    version: &'static str,
    /// Whether records can be written now.
    ready: bool,
    /// Why no records can be written now. Empty if records can be written.
    not_ready: String,
    connections_open: usize,
    /// Requests that are being answered.
    in_flight: usize,
    /// Bytes of bodies that are being read or written.
    queued_bytes: u64,
    queue_bytes: usize,
    /// The upper limits of the classes in `writer.sets`.
    set_sizes: [usize; SET_SIZES.len()],
    /// The number of requests with records in each class of durations, and the classes' limits in
    /// seconds.
    durations: Vec<u64>,
    duration_limits: [f64; DURATIONS.len()],
}

/// Returns the page `/stats`.
pub(crate) fn page(state: &ServeState) -> String {
    let not_ready = state.check_ready().err().map_or(String::new(), |it| it.message);
    let stats = LiveStats {
        report: state.report(),
        version: env!("CARGO_PKG_VERSION"),
        ready: not_ready.is_empty(),
        not_ready,
        connections_open: state.counters.connections_open.load(Ordering::Relaxed),
        in_flight: state.counters.in_flight.load(Ordering::Relaxed),
        queued_bytes: state.queued_bytes(),
        queue_bytes: state.limits.queue_bytes,
        set_sizes: SET_SIZES,
        durations: state.counters.durations().0,
        duration_limits: DURATIONS,
    };
    serde_json::to_string(&stats).unwrap_or_default()
}
