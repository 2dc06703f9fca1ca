//! Finds checkpoints that start because WAL reaches `max_wal_size`, before `checkpoint_timeout`.

use super::context::{CheckContext, CheckResult};
use super::finding::Check;
use pgspate_base::numbers::{counted, seconds};
use pgspate_target::server::{Flavour, format_size_setting};

const CHECKPOINTS: Check = Check {
    id: "checkpoints",
    question: "Do checkpoints start after checkpoint_timeout, or because WAL reaches max_wal_size?",
    rule: "PostgreSQL manual, WAL configuration: with a sufficient max_wal_size, checkpoints start \
           after checkpoint_timeout",
};

/// Fewer requested checkpoints are ignored. The server also counts CHECKPOINT commands and base
/// backups here.
const REQUESTED_MIN: u64 = 5;
/// The largest `max_wal_size` that is proposed. Never propose more: free disk space is unknown.
const WAL_SIZE_MAX: u64 = 64 << 30;
/// Seconds of the shortest sample whose WAL rate is used. Shorter samples vary too much.
const SAMPLE_SECONDS_MIN: f64 = 10.0;

/// Checks whether `max_wal_size` makes checkpoints start too early.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    if context.flavour == Flavour::Aurora {
        let text = "Aurora instances write no data pages, so checkpoints cost nothing";
        return Ok(vec![CHECKPOINTS.ok(text)]);
    }
    let checkpoints = &context.now.checkpoints;
    let (Some(timed), Some(requested)) = (checkpoints.timed, checkpoints.requested) else {
        let why = "the server does not show its checkpoint counters";
        return Ok(vec![CHECKPOINTS.cannot_see(why).remedy(context.grant_statement("pg_monitor"))]);
    };
    let meanwhile = context.sampled.checkpoints.requested.unwrap_or_default();
    let size = context.setting_bytes("max_wal_size").unwrap_or(1 << 30);
    let timeout = context.setting_number("checkpoint_timeout").unwrap_or(300.0);
    let text = format!(
        "{} requested, by WAL volume or by command; {timed} started by timeout (max_wal_size {}, \
         checkpoint_timeout {})",
        counted(requested, "checkpoint"),
        format_size_setting(size),
        seconds(timeout)
    );
    let view = if context.version >= 170_000 { "pg_stat_checkpointer" } else { "pg_stat_bgwriter" };
    let elapsed = seconds_since_reset(context, view).await?;
    // Requested checkpoints that are far apart on average do no harm.
    let is_dense = elapsed.is_none_or(|elapsed| elapsed / (requested as f64) < timeout / 2.0);
    let is_often = requested >= REQUESTED_MIN && requested * 4 >= timed && is_dense;
    if !is_often && meanwhile < 2 {
        return Ok(vec![CHECKPOINTS.ok(text)]);
    }
    let wanted = match needed_bytes(context, timeout).await? {
        Some(needed) if needed <= size => {
            let enough = format!("{text}; max_wal_size holds the WAL of one checkpoint_timeout");
            return Ok(vec![CHECKPOINTS.ok(enough)]);
        }
        needed => needed.map(proposed_wal_size).filter(|wanted| *wanted > size),
    };
    let finding = CHECKPOINTS
        .note_or_warning(requested > timed || meanwhile > 1, text)
        .count("requested", requested)
        .count("timed", timed)
        .count("requested_meanwhile", meanwhile)
        .weight(wanted.unwrap_or(size) as f64);
    let why = "After each checkpoint, the first change to a page writes the whole page to WAL.";
    let Some(wanted) = wanted else {
        return Ok(vec![finding.advice(format!(
            "{why} A larger max_wal_size makes checkpoints rarer. Run `pgspate doctor --watch 60s` \
             during a load to learn the size, and check how much disk is free."
        ))]);
    };
    let finding = finding.advice(format!(
        "{why} With a max_wal_size of {0}, checkpoints start after checkpoint_timeout. Then pg_wal \
         may take {0} of disk: check that it is free. Recovery after a crash may have to read as \
         much WAL.",
        format_size_setting(wanted)
    ));
    let set = context.statements_to_set("max_wal_size", &format_size_setting(wanted));
    Ok(vec![set.into_iter().fold(finding, super::Finding::remedy)])
}

/// Returns the seconds since the counters of a statistics view were reset.
async fn seconds_since_reset(
    context: &CheckContext<'_>,
    view: &str,
) -> Result<Option<f64>, tokio_postgres::Error> {
    let sql =
        format!("select extract(epoch from clock_timestamp() - stats_reset)::float8 from {view}");
    Ok(context.client.query_one(&sql, &[]).await?.get(0))
}

/// Returns the `max_wal_size` at which checkpoints start every `timeout` seconds. That is twice the
/// WAL of this time, because a checkpoint starts when about half of `max_wal_size` is written.
///
/// The WAL rate is the higher one of the sample, if it was long enough, and of the time since the
/// statistics began. Returns `None` if the server does not count WAL.
async fn needed_bytes(
    context: &CheckContext<'_>,
    timeout: f64,
) -> Result<Option<u64>, tokio_postgres::Error> {
    let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds.max(1.0);
    let sampled =
        context.sampled.wal_bytes.filter(|_| context.sampled.seconds >= SAMPLE_SECONDS_MIN);
    let sampled = sampled.map(|wal| rate(wal, context.sampled.seconds));
    let ever = match context.now.wal.bytes {
        Some(wal) if context.version >= 140_000 => {
            let elapsed = seconds_since_reset(context, "pg_stat_wal").await?;
            elapsed.map(|elapsed| rate(wal, elapsed.max(timeout)))
        }
        _ => None,
    };
    let rate = match (sampled, ever) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    Ok(rate.map(|rate| (2.0 * rate * timeout) as u64))
}

/// Rounds up to whole GiB, at most [`WAL_SIZE_MAX`].
fn proposed_wal_size(needed: u64) -> u64 {
    (needed.div_ceil(1 << 30) << 30).min(WAL_SIZE_MAX)
}

/// Returns a larger `max_wal_size` if checkpoints every `timeout` seconds need one.
pub(super) async fn larger_wal_size(
    context: &CheckContext<'_>,
    timeout: f64,
) -> Result<Option<u64>, tokio_postgres::Error> {
    let size = context.setting_bytes("max_wal_size").unwrap_or(1 << 30);
    let needed = needed_bytes(context, timeout).await?.filter(|needed| *needed > size);
    Ok(needed.map(proposed_wal_size).filter(|wanted| *wanted > size))
}
