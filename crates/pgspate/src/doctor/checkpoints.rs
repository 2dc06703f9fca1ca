//! Checkpoints that come because there is much WAL, not because it is time.

use super::finding::Check;
use super::scene::{Found, Scene, words};
use crate::numbers::seconds;

const CHECKPOINTS: Check = Check {
    id: "checkpoints",
    question: "Do checkpoints come by the clock, or because the WAL is full?",
    rule: "PostgreSQL manual, WAL configuration: max_wal_size should make checkpoints come by time",
};

/// Fewer are not worth a word: a CHECKPOINT by hand and a base backup are counted, too.
const REQUESTED_MIN: u64 = 5;

/// Whether max_wal_size makes checkpoints come too early.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
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
    let is_often = requested >= REQUESTED_MIN && requested * 4 >= timed;
    if !is_often && meanwhile == 0 {
        return Ok(vec![CHECKPOINTS.ok(text)]);
    }
    let wanted = wanted_bytes(scene, size, timeout);
    let mut finding = CHECKPOINTS
        .worse(requested > timed || meanwhile > 1, text)
        .count("requested", requested)
        .count("timed", timed)
        .count("requested_meanwhile", meanwhile)
        .weighs(wanted as f64)
        .advice(format!(
            "After each checkpoint the first change of a page writes the whole page to the WAL. \
             Room for {} of WAL lets checkpoints come by the clock; recovery after a crash may \
             then have to read as much.",
            words(wanted)
        ));
    for sql in scene.set("max_wal_size", &format!("{}GB", wanted >> 30)) {
        finding = finding.run(sql);
    }
    Ok(vec![finding])
}

/// Twice what is written between two checkpoints by the clock, as they begin at half of it; in
/// whole GiB. Where the rate is not known, four times of what is set.
fn wanted_bytes(scene: &Scene<'_>, size: u64, timeout: f64) -> u64 {
    let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds.max(1.0);
    let sampled = scene.sampled.wal_bytes.map(|wal| rate(wal, scene.sampled.seconds));
    let wanted = sampled.map_or(0.0, |rate| rate * timeout * 2.0) as u64;
    wanted.clamp(4 * size, 64 * size).div_ceil(1 << 30) << 30
}
