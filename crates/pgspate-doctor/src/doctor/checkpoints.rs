//! Checkpoints that come because there is much WAL, not because it is time.

use super::finding::Check;
use super::scene::{Found, Scene};
use pgspate_base::numbers::seconds;
use pgspate_target::server::{Flavour, words};

const CHECKPOINTS: Check = Check {
    id: "checkpoints",
    question: "Do checkpoints come by the clock, or because the WAL is full?",
    rule: "PostgreSQL manual, WAL configuration: max_wal_size should make checkpoints come by time",
};

/// Fewer are not worth a word: a CHECKPOINT by hand and a base backup are counted, too.
const REQUESTED_MIN: u64 = 5;
/// More is nobody's to propose who does not see the disk.
const WAL_SIZE_MAX: u64 = 64 << 30;
/// Shorter samples are too much by chance to tell a rate.
const SAMPLE_MIN: f64 = 10.0;

/// Whether max_wal_size makes checkpoints come too early.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    if scene.flavour == Flavour::Aurora {
        let text = "Aurora writes no pages, so that checkpoints cost nothing";
        return Ok(vec![CHECKPOINTS.ok(text)]);
    }
    let counted = &scene.now.checkpoints;
    let (Some(timed), Some(requested)) = (counted.timed, counted.requested) else {
        let why = "the server does not tell how many checkpoints there were";
        return Ok(vec![CHECKPOINTS.cannot_see(why).run(scene.grant("pg_monitor"))]);
    };
    let meanwhile = scene.sampled.checkpoints.requested.unwrap_or_default();
    let size = scene.setting_bytes("max_wal_size").unwrap_or(1 << 30);
    let timeout = scene.setting_number("checkpoint_timeout").unwrap_or(300.0);
    let text = format!(
        "{requested} checkpoints were forced by WAL or by hand, {timed} came by the clock \
         (max_wal_size {}, checkpoint_timeout {})",
        words(size),
        seconds(timeout)
    );
    let view = if scene.version >= 170_000 { "pg_stat_checkpointer" } else { "pg_stat_bgwriter" };
    let elapsed = seconds_since_reset(scene, view).await?;
    // Old ones are no matter when they are far apart on average.
    let is_dense = elapsed.is_none_or(|elapsed| elapsed / (requested as f64) < timeout / 2.0);
    let is_often = requested >= REQUESTED_MIN && requested * 4 >= timed && is_dense;
    if !is_often && meanwhile < 2 {
        return Ok(vec![CHECKPOINTS.ok(text)]);
    }
    let wanted = match needed_bytes(scene, timeout).await? {
        Some(needed) if needed <= size => {
            let enough = format!("{text}; there is room for the WAL of that time");
            return Ok(vec![CHECKPOINTS.ok(enough)]);
        }
        needed => needed.map(proposed).filter(|wanted| *wanted > size),
    };
    let finding = CHECKPOINTS
        .worse(requested > timed || meanwhile > 1, text)
        .count("requested", requested)
        .count("timed", timed)
        .count("requested_meanwhile", meanwhile)
        .weighs(wanted.unwrap_or(size) as f64);
    let why = "After each checkpoint the first change of a page writes the whole page to the WAL.";
    let Some(wanted) = wanted else {
        return Ok(vec![finding.advice(format!(
            "{why} A larger max_wal_size makes them fewer; look with `--watch 60s` during a load \
             for how large, and at the disk for how large it can be."
        ))]);
    };
    let finding = finding.advice(format!(
        "{why} Room for {0} of WAL lets checkpoints come by the clock. pg_wal may take {0} of disk \
         then: see that it is there. Recovery after a crash may have to read as much.",
        words(wanted)
    ));
    let set = scene.set("max_wal_size", &words(wanted));
    Ok(vec![set.into_iter().fold(finding, super::Finding::run)])
}

/// For how long a view has counted.
async fn seconds_since_reset(
    scene: &Scene<'_>,
    view: &str,
) -> Result<Option<f64>, tokio_postgres::Error> {
    let sql =
        format!("select extract(epoch from clock_timestamp() - stats_reset)::float8 from {view}");
    Ok(scene.client.query_one(&sql, &[]).await?.get(0))
}

/// The `max_wal_size` at which checkpoints come every `timeout` seconds: twice what is written in
/// that time, as they begin at half of it. By what was written while it was looked for long, else
/// since the statistics began, and not made more than was ever written. `None` where the server
/// does not count it.
async fn needed_bytes(
    scene: &Scene<'_>,
    timeout: f64,
) -> Result<Option<u64>, tokio_postgres::Error> {
    let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds.max(1.0);
    let sampled = scene.sampled.wal_bytes.filter(|_| scene.sampled.seconds >= SAMPLE_MIN);
    let sampled = sampled.map(|wal| rate(wal, scene.sampled.seconds));
    let ever = match scene.now.wal.bytes {
        Some(wal) if scene.version >= 140_000 => {
            let elapsed = seconds_since_reset(scene, "pg_stat_wal").await?;
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

/// In whole GiB, and not without end.
fn proposed(needed: u64) -> u64 {
    (needed.div_ceil(1 << 30) << 30).min(WAL_SIZE_MAX)
}

/// A larger `max_wal_size`, where checkpoints every `timeout` seconds need one.
pub(super) async fn larger_wal_size(
    scene: &Scene<'_>,
    timeout: f64,
) -> Result<Option<u64>, tokio_postgres::Error> {
    let size = scene.setting_bytes("max_wal_size").unwrap_or(1 << 30);
    let needed = needed_bytes(scene, timeout).await?.filter(|needed| *needed > size);
    Ok(needed.map(proposed).filter(|wanted| *wanted > size))
}
