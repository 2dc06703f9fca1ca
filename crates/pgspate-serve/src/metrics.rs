//! The metrics for Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use pgspate::writer::SET_SIZES;

use crate::state::{DURATIONS, ServeState};

/// A page of metrics in Prometheus' text format. Writing to a String cannot fail.
#[derive(Default)]
struct MetricsPage(String);

impl MetricsPage {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP pgspate_serve_{name} {help}");
        let _ = writeln!(self.0, "# TYPE pgspate_serve_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "pgspate_serve_{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.begin(name, kind, help);
        self.value(name, "", value);
    }

    /// Writes a histogram. `counts` has one class more than `limits`.
    fn histogram(&mut self, name: &str, help: &str, limits: &[f64], counts: &[u64], sum: f64) {
        self.begin(name, "histogram", help);
        let (bucket, mut total) = (format!("{name}_bucket"), 0);
        for (nth, count) in counts.iter().enumerate() {
            total += count;
            let limit = limits.get(nth).map_or("+Inf".to_owned(), ToString::to_string);
            self.value(&bucket, &format!("{{le=\"{limit}\"}}"), total as f64);
        }
        self.value(&format!("{name}_sum"), "", sum);
        self.value(&format!("{name}_count"), "", total as f64);
    }
}

/// Returns the page `/metrics`.
pub(crate) fn page(state: &ServeState) -> String {
    let (report, counters) = (state.report(), &state.counters);
    let mut page = MetricsPage::default();
    let is_up = f64::from(u8::from(state.is_server_up.load(Ordering::Relaxed)));
    page.single("server_up", "gauge", "Whether the PostgreSQL server answers.", is_up);
    page.begin("requests_total", "counter", "Answered requests by status.");
    for (status, count) in &report.statuses {
        page.value("requests_total", &format!("{{status=\"{status}\"}}"), *count as f64);
    }
    for (name, help) in [
        ("table_rows_total", "Rows written, or updated on conflict."),
        ("table_requests_total", "Requests with records."),
        ("table_refused_total", "Refused records; a refused request counts once."),
    ] {
        page.begin(name, "counter", help);
        for table in &report.tables {
            let value = match name {
                "table_rows_total" => table.rows,
                "table_requests_total" => table.requests,
                _ => table.refused,
            };
            let label = table.table.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            page.value(name, &format!("{{table=\"{label}\"}}"), value as f64);
        }
    }
    let mut count = |name, help, value: u64| page.single(name, "counter", help, value as f64);
    count("connections_total", "Accepted connections.", report.connections);
    let help = "Connections closed because there were too many.";
    count("connections_refused_total", help, report.refused_connections);
    count("unknown_total", "Calls with an unknown outcome.", report.writer.unknown);
    count("refused_sets_total", "Sets written again in parts.", report.writer.refused_sets);
    count("lock_waits_total", "Calls that waited for a lock.", report.writer.lock_waits);
    let help = "Statements that wrote the records of one call.";
    count("statements_total", help, report.writer.statements);
    let mut gauge = |name, help, value: f64| page.single(name, "gauge", help, value);
    let open = counters.connections_open.load(Ordering::Relaxed);
    gauge("connections_open", "Open connections.", open as f64);
    let in_flight = counters.in_flight.load(Ordering::Relaxed);
    gauge("in_flight", "Requests that are being answered.", in_flight as f64);
    gauge("queued_bytes", "Bytes of bodies in the queue.", state.queued_bytes() as f64);
    gauge("waiting_records", "Records that wait for a lane.", report.writer.waiting as f64);
    gauge("lanes", "Lanes that write now.", report.writer.lanes as f64);
    gauge("lanes_allowed", "Lanes that may write at once.", report.writer.lanes_allowed as f64);
    let sizes = SET_SIZES.map(|size| size as f64);
    let help = "Records of statements that wrote several calls.";
    page.histogram("set_rows", help, &sizes, &report.writer.sets, report.writer.set_rows as f64);
    let (durations, sum) = counters.durations();
    let help = "Seconds from the head of a request with records to its answer.";
    page.histogram("request_seconds", help, &DURATIONS, &durations, sum);
    page.0
}
