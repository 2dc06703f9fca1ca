//! What the WAL consists of, and whether its buffers are large enough.

use super::checkpoints::larger_wal_size;
use super::finding::Check;
use super::scene::{Found, Scene};
use pgspate_base::numbers::{bytes, thousands};
use pgspate_target::server::{Flavour, compression, words};

const IMAGES: Check = Check {
    id: "full-page-images",
    question: "How much of the WAL is whole pages?",
    rule: "PostgreSQL manual, WAL configuration: full_page_writes and the distance of checkpoints",
};
const COMPRESSION: Check = Check {
    id: "wal-compression",
    question: "Are whole pages in the WAL compressed?",
    rule: "PostgreSQL manual, wal_compression; lz4 and zstd from 15 on",
};
const BUFFERS: Check = Check {
    id: "wal-buffers",
    question: "Do sessions have to write WAL because its buffers are full?",
    rule: "PostgreSQL manual, pg_stat_wal.wal_buffers_full",
};

/// Less WAL than this says nothing.
const WAL_MIN: u64 = 64 << 20;
/// A page in the WAL without the hole in its middle, as a rule.
const IMAGE_BYTES: u64 = 8 << 10;
/// From that share on it is worth a word.
const SHARE_MIN: f64 = 0.4;
/// Checkpoints that many seconds apart are far enough apart.
const TIMEOUT: f64 = 900.0;

/// Whole pages, their compression, and the buffers.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    if scene.flavour == Flavour::Aurora {
        let text = "Aurora writes no whole pages, and keeps its WAL where there are no files of it";
        return Ok([IMAGES, COMPRESSION, BUFFERS].map(|it| it.ok(text)).to_vec());
    }
    let wal = &scene.now.wal;
    let (Some(all), Some(images)) = (wal.bytes, wal.full_page_images) else {
        let why = match scene.version {
            ..140_000 => "the server counts WAL from PostgreSQL 14 on",
            _ => "pg_stat_wal cannot be read",
        };
        return Ok([IMAGES, COMPRESSION, BUFFERS].map(|it| it.cannot_see(why)).to_vec());
    };
    let mut found = Vec::new();
    let is_compressed = scene.setting("wal_compression").is_some_and(|value| value != "off");
    // Compressed or with a hole it is less, so this is at most.
    let image_bytes = (images * IMAGE_BYTES).min(all);
    let share = image_bytes as f64 / all.max(1) as f64;
    let text = format!(
        "about {:.0} % of {} of WAL is {} whole pages",
        share * 100.0,
        bytes(all),
        thousands(images)
    );
    let is_much = all >= WAL_MIN && share >= SHARE_MIN && !is_compressed;
    if is_much {
        found.push(images_apart(scene, &text, share, images, image_bytes).await?);
        let method = compression(&scene.settings);
        let mut finding = COMPRESSION
            .note(format!("wal_compression is off, and {text}"))
            .weighs(image_bytes as f64)
            .advice("Compressing them takes some CPU, and as a rule less time than writing them.");
        for sql in scene.set("wal_compression", method) {
            finding = finding.run(sql);
        }
        found.push(finding);
    } else {
        found.push(IMAGES.ok(text.clone()).number("share", share));
        let state = if is_compressed { "on" } else { "off" };
        found.push(COMPRESSION.ok(format!("it is {state}, and {text}")));
    }
    found.push(buffers(scene, all));
    Ok(found)
}

/// Checkpoints further apart, where they are not yet.
async fn images_apart(
    scene: &Scene<'_>,
    text: &str,
    share: f64,
    images: u64,
    image_bytes: u64,
) -> Result<super::Finding, tokio_postgres::Error> {
    let timeout = scene.setting_number("checkpoint_timeout").unwrap_or(300.0);
    let mut remedy = Vec::new();
    if timeout < TIMEOUT {
        remedy.extend(scene.set("checkpoint_timeout", "15min"));
    }
    let mut advice = "Checkpoints further apart make fewer of them; recovery after a crash has \
                      more to do again then."
        .to_owned();
    if let Some(size) = larger_wal_size(scene, timeout.max(TIMEOUT)).await? {
        remedy.extend(scene.set("max_wal_size", &words(size)));
        let room = words(size);
        advice.push_str(&format!(" pg_wal may take {room} of disk: see that it is there."));
    }
    if remedy.is_empty() {
        let text = format!("{text}; checkpoints are far apart already");
        return Ok(IMAGES.ok(text).number("share", share));
    }
    let finding = IMAGES
        .note(text)
        .number("share", share)
        .count("full_page_images", images)
        .weighs(image_bytes as f64)
        .advice(advice);
    Ok(remedy.into_iter().fold(finding, super::Finding::run))
}

fn buffers(scene: &Scene<'_>, all: u64) -> super::Finding {
    let Some(full) = scene.now.wal.buffers_full else {
        return BUFFERS.cannot_see("pg_stat_wal does not tell");
    };
    let size = scene.setting_bytes("wal_buffers").unwrap_or(16 << 20);
    let text = format!(
        "they were full {} times in {} of WAL; wal_buffers is {}",
        thousands(full),
        bytes(all),
        words(size)
    );
    // Once in a hundred pages of WAL, or in ten where the buffers are as large as by default.
    let is_small = size < 16 << 20;
    let pages = all / IMAGE_BYTES;
    let limit = if is_small { pages / 100 } else { pages / 10 };
    // Buffers larger than this have never been of use.
    if all < WAL_MIN || full <= limit || size >= 64 << 20 {
        return BUFFERS.ok(text).count("buffers_full", full);
    }
    let wanted = if is_small { "16MB" } else { "64MB" };
    let finding = BUFFERS.note(text).count("buffers_full", full).weighs(all as f64);
    scene.set("wal_buffers", wanted).into_iter().fold(finding, super::Finding::run)
}
