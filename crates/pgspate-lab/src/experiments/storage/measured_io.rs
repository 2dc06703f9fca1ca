//! The I/O of a load, counted by the disk or by the server.
//!
//! The disk's counters include everything. If the disk is not visible, as on another machine, the
//! server's counters are used: WAL and written pages.

use serde_json::Value;

use crate::results::{ResultLine, Results};
use crate::spread::Spread;

/// The size of a page. Few servers are built with another page size than this default.
const PAGE_BYTES: f64 = 8192.0;

/// The source of the I/O counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterSource {
    /// The disk, in operations and bytes.
    Disk,
    /// The server, in bytes.
    Server,
}

/// The measured I/O of a load. Reads are included only if the disk counted them.
#[derive(Debug, Clone)]
pub(super) struct MeasuredDiskIo {
    pub(super) bytes: Spread,
    /// Operations, if they were counted.
    pub(super) operations: Option<f64>,
}

/// Returns the source of the I/O counters in these results.
pub(super) fn counter_source(results: &Results) -> CounterSource {
    match results.spread(&[], "disk bytes") {
        Some(_) => CounterSource::Disk,
        None => CounterSource::Server,
    }
}

/// Returns the I/O of the trials with these levels.
pub(super) fn trial_io(results: &Results, levels: &[(&str, &str)]) -> Option<MeasuredDiskIo> {
    if counter_source(results) == CounterSource::Disk {
        let median = |number| results.median(levels, number);
        let operations = median("disk writes")? + median("disk reads")?;
        let bytes = results.spread(levels, "disk bytes")?;
        return Some(MeasuredDiskIo { bytes, operations: Some(operations) });
    }
    let is_one =
        |line: &&ResultLine| levels.iter().all(|(factor, level)| line.trial.is(factor, level));
    let bytes = Spread::of(results.measured().filter(is_one).filter_map(bytes_by_server))?;
    Some(MeasuredDiskIo { bytes, operations: None })
}

/// Returns the bytes of WAL, plus the pages that checkpoints, sessions and the background writer
/// wrote, including pages that extend files. If the tables grew by more than these pages, their
/// growth counts instead, because the other pages are written later. pg_stat_io has precedence over
/// the checkpoint counters, which lack the pages that sessions write from version 17 on.
fn bytes_by_server(line: &ResultLine) -> Option<f64> {
    let count = |of: &Value, path: &str| of.pointer(path).and_then(Value::as_f64);
    let wal = count(&line.measured, "/wal_bytes")?;
    let pages = ["buffers_written", "buffers_by_sessions", "buffers_cleaned"];
    let pages =
        pages.iter().filter_map(|name| count(&line.measured, &format!("/checkpoints/{name}")));
    let io =
        ["write_bytes", "extend_bytes"].map(|name| count(&line.measured, &format!("/io/{name}")));
    let written = match io.iter().any(Option::is_some) {
        true => io.iter().flatten().sum::<f64>(),
        false => pages.sum::<f64>() * PAGE_BYTES,
    };
    let size = |when: &str| {
        let parts = ["table_bytes", "index_bytes", "toast_bytes"];
        let part = |name: &&str| count(&line.measured, &format!("/tables/{when}/{name}"));
        parts.iter().filter_map(part).sum::<f64>()
    };
    Some(wal + written.max(size("after") - size("before")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::results::tests::line;

    #[test]
    fn the_server_s_counters_give_written_bytes() {
        let mut line = line(&[], 0, 1.0);
        assert_eq!(bytes_by_server(&line), None);
        line.measured = json!({"wal_bytes": 1000, "checkpoints": {"buffers_written": 3,
            "buffers_by_sessions": 2}, "tables": {"before": {"table_bytes": 8192},
            "after": {"table_bytes": 16384, "index_bytes": 8192}}});
        assert_eq!(bytes_by_server(&line), Some(1000.0 + 5.0 * PAGE_BYTES));
        // No checkpoint, and nothing was written so far.
        line.measured["checkpoints"] = json!({});
        assert_eq!(bytes_by_server(&line), Some(1000.0 + 2.0 * PAGE_BYTES));
        line.measured["tables"]["after"]["toast_bytes"] = json!(8192);
        assert_eq!(bytes_by_server(&line), Some(1000.0 + 3.0 * PAGE_BYTES));
    }

    #[test]
    fn pages_that_sessions_write_are_counted_on_every_version() {
        let mut line = line(&[], 0, 1.0);
        let pages = |count: u64| count * PAGE_BYTES as u64;
        // Version 16 has both counters, version 17 only pg_stat_io.
        let io = json!({"write_bytes": pages(5), "extend_bytes": pages(4)});
        for checkpoints in
            [json!({"buffers_written": 3, "buffers_by_sessions": 6}), json!({"buffers_written": 3})]
        {
            line.measured = json!({"wal_bytes": 1000, "checkpoints": checkpoints, "io": io});
            assert_eq!(bytes_by_server(&line), Some(1000.0 + 9.0 * PAGE_BYTES));
        }
    }
}
