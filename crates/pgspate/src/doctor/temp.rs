//! Temporary files: how much, where, and how long the space will last.

use super::finding::Check;
use super::flavour::Flavour;
use super::scene::{Found, Scene, words};
use crate::numbers::{bytes, rate, seconds, thousands};

const TEMP: Check = Check {
    id: "temporary-files",
    question: "Do sorts and hashes go to the disk?",
    rule: "pg_stat_database.temp_bytes: what does not fit in work_mem",
};
const OPTIMIZED: Check = Check {
    id: "optimized-reads",
    question: "Are temporary files on the instance's own disk?",
    rule: "Aurora and RDS Optimized Reads: temporary objects on local NVMe",
};

/// Less than that is not worth a word.
const BYTES_MIN: u64 = 100 << 20;

/// Temporary files of this database.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let mut found = Vec::new();
    let database = &scene.now.database;
    let (Some(files), Some(size)) = (database.temp_files, database.temp_bytes) else {
        return Ok(vec![TEMP.cannot_see("pg_stat_database cannot be read")]);
    };
    let memory = scene.setting_bytes("work_mem").unwrap_or(4 << 20);
    let limit = match scene.setting("temp_file_limit") {
        Some("-1") | None => "none".to_owned(),
        Some(_) => words(scene.setting_bytes("temp_file_limit").unwrap_or_default()),
    };
    let place = match scene.setting("temp_tablespaces") {
        Some("") | None => "beside the data".to_owned(),
        Some(names) => format!("in {names}"),
    };
    let meanwhile = scene.sampled.database.temp_bytes.unwrap_or_default();
    let speed = meanwhile as f64 / scene.sampled.seconds.max(0.1);
    let mut text = format!(
        "{} files of {} on average, {} in all since statistics began; {place}, temp_file_limit \
         {limit}, work_mem {}",
        thousands(files),
        bytes(size / files.max(1)),
        bytes(size),
        words(memory)
    );
    if meanwhile > 0 {
        text.push_str(&format!("; {} while it was looked", rate(speed)));
    }
    if let Some(left) = exhaustion(scene, speed) {
        text.push_str(&format!("; the volume would be full in {}", seconds(left)));
    }
    if size < BYTES_MIN {
        found.push(TEMP.ok(text));
    } else {
        // A sort in memory takes about twice what its file has.
        let wanted = (2 * size / files.max(1) / (1 << 20)).next_power_of_two().clamp(16, 1024);
        let finding = TEMP
            .worse(meanwhile > BYTES_MIN, text)
            .count("files", files)
            .count("bytes", size)
            .number("bytes_per_second", speed)
            .weighs(size as f64)
            .advice(
                "work_mem counts for each sort or hash of each session: raise it where it is \
                 needed rather than for all, and log_temp_files names the statements.",
            );
        found.push(match wanted << 20 > memory {
            true => {
                finding.run(format!("set work_mem = '{wanted}MB'; -- in the sessions that sort"))
            }
            false => finding,
        });
    }
    if matches!(scene.flavour, Flavour::Aurora | Flavour::Rds) {
        found.push(optimized(scene));
    }
    Ok(found)
}

/// Seconds until the volume is full, at this rate and with what the databases have; unknown where
/// its size is.
fn exhaustion(scene: &Scene<'_>, speed: f64) -> Option<f64> {
    let volume = scene.options.storage.as_ref()?;
    let free = (volume.gib * (1u64 << 30) as f64) - scene.now.database.bytes? as f64;
    (speed > 1.0 && free > 0.0).then(|| free / speed)
}

/// Aurora's local disk for temporary objects, and its cache in front of the storage.
fn optimized(scene: &Scene<'_>) -> super::Finding {
    let aurora =
        scene.setting("aurora_temp_tablespace_path").or(scene.setting("rds.temp_tablespace"));
    let cache = scene.setting("aurora_tiered_cache_size").filter(|it| !it.is_empty() && *it != "0");
    let is_there = |what: bool| if what { "on" } else { "off" };
    let text = format!(
        "temporary objects {}, tiered cache {}; temp_tablespaces {}",
        is_there(aurora.is_some()),
        is_there(cache.is_some()),
        scene.setting("temp_tablespaces").filter(|it| !it.is_empty()).unwrap_or("not set")
    );
    OPTIMIZED.ok(text)
}
