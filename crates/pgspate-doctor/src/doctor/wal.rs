//! Checks how much of WAL is full-page images, and whether the WAL buffers are large enough.

use super::checkpoints::larger_wal_size;
use super::context::{CheckContext, CheckResult};
use super::finding::Check;
use pgspate_base::numbers::{bytes, thousands};
use pgspate_target::server::{Flavour, best_wal_compression, format_size_setting};

const IMAGES: Check = Check {
    id: "full-page-images",
    question: "How much of WAL is full-page images?",
    rule: "PostgreSQL manual, WAL configuration: full_page_writes; time between checkpoints",
};
const COMPRESSION: Check = Check {
    id: "wal-compression",
    question: "Are full-page images in WAL compressed?",
    rule: "PostgreSQL manual, wal_compression; lz4 and zstd from 15 on",
};
const BUFFERS: Check = Check {
    id: "wal-buffers",
    question: "Do sessions have to write WAL because the WAL buffers are full?",
    rule: "PostgreSQL manual, pg_stat_wal.wal_buffers_full",
};

/// With less WAL than this, nothing is judged.
const WAL_BYTES_MIN: u64 = 64 << 20;
/// The size of a full-page image at most: a page. Its unused middle is left out of WAL.
const IMAGE_BYTES: u64 = 8 << 10;
/// The least share of full-page images at which the finding is a note.
const SHARE_MIN: f64 = 0.4;
/// Seconds between checkpoints that are enough.
const CHECKPOINT_SECONDS: f64 = 900.0;

/// Checks full-page images, their compression, and the WAL buffers.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    if context.flavour == Flavour::Aurora {
        let text = "Aurora writes no full-page images and has no WAL files";
        return Ok([IMAGES, COMPRESSION, BUFFERS].map(|it| it.ok(text)).to_vec());
    }
    let wal = &context.now.wal;
    let (Some(all), Some(images)) = (wal.bytes, wal.full_page_images) else {
        let why = match context.version {
            ..140_000 => "servers before PostgreSQL 14 do not count WAL",
            _ => "pg_stat_wal cannot be read",
        };
        return Ok([IMAGES, COMPRESSION, BUFFERS].map(|it| it.cannot_see(why)).to_vec());
    };
    let mut found = Vec::new();
    let is_compressed = context.setting("wal_compression").is_some_and(|value| value != "off");
    // An upper bound: compressed images, and pages with unused space, take less.
    let image_bytes = (images * IMAGE_BYTES).min(all);
    let share = image_bytes as f64 / all.max(1) as f64;
    let text = format!(
        "{} full-page images are about {:.0} % of {} of WAL",
        thousands(images),
        share * 100.0,
        bytes(all)
    );
    let is_much = all >= WAL_BYTES_MIN && share >= SHARE_MIN && !is_compressed;
    if is_much {
        found.push(propose_rarer_checkpoints(context, &text, share, images, image_bytes).await?);
        let method = best_wal_compression(&context.settings);
        let mut finding = COMPRESSION
            .note(format!("wal_compression is off, and {text}"))
            .weight(image_bytes as f64)
            .advice("Compression takes some CPU, but usually less time than writing whole pages.");
        for sql in context.statements_to_set("wal_compression", method) {
            finding = finding.remedy(sql);
        }
        found.push(finding);
    } else {
        found.push(IMAGES.ok(text.clone()).number("share", share));
        let state = if is_compressed { "on" } else { "off" };
        found.push(COMPRESSION.ok(format!("wal_compression is {state}, and {text}")));
    }
    found.push(check_buffers(context, all));
    Ok(found)
}

/// Proposes more time between checkpoints, unless they are far apart already.
async fn propose_rarer_checkpoints(
    context: &CheckContext<'_>,
    text: &str,
    share: f64,
    images: u64,
    image_bytes: u64,
) -> Result<super::Finding, tokio_postgres::Error> {
    let timeout = context.setting_number("checkpoint_timeout").unwrap_or(300.0);
    let mut remedy = Vec::new();
    if timeout < CHECKPOINT_SECONDS {
        remedy.extend(context.statements_to_set("checkpoint_timeout", "15min"));
    }
    let mut advice = "With more time between checkpoints, there are fewer full-page images. \
                      Recovery after a crash takes longer then."
        .to_owned();
    if let Some(size) = larger_wal_size(context, timeout.max(CHECKPOINT_SECONDS)).await? {
        remedy.extend(context.statements_to_set("max_wal_size", &format_size_setting(size)));
        let room = format_size_setting(size);
        advice.push_str(&format!(" pg_wal may take {room} of disk: check that it is free."));
    }
    if remedy.is_empty() {
        let text = format!("{text}; checkpoints are already far apart");
        return Ok(IMAGES.ok(text).number("share", share));
    }
    let finding = IMAGES
        .note(text)
        .number("share", share)
        .count("full_page_images", images)
        .weight(image_bytes as f64)
        .advice(advice);
    Ok(remedy.into_iter().fold(finding, super::Finding::remedy))
}

/// Checks how often sessions found the WAL buffers full.
fn check_buffers(context: &CheckContext<'_>, all: u64) -> super::Finding {
    let Some(full) = context.now.wal.buffers_full else {
        return BUFFERS.cannot_see("pg_stat_wal does not show wal_buffers_full");
    };
    let size = context.setting_bytes("wal_buffers").unwrap_or(16 << 20);
    let text = format!(
        "the WAL buffers were full {} times in {} of WAL; wal_buffers is {}",
        thousands(full),
        bytes(all),
        format_size_setting(size)
    );
    // The limit: once in a hundred pages of WAL; once in ten if wal_buffers is 16 MiB or more.
    let is_small = size < 16 << 20;
    let pages = all / IMAGE_BYTES;
    let limit = if is_small { pages / 100 } else { pages / 10 };
    // No measurement gained from more than 64 MiB.
    if all < WAL_BYTES_MIN || full <= limit || size >= 64 << 20 {
        return BUFFERS.ok(text).count("buffers_full", full);
    }
    let wanted = if is_small { "16MB" } else { "64MB" };
    let finding = BUFFERS.note(text).count("buffers_full", full).weight(all as f64);
    context
        .statements_to_set("wal_buffers", wanted)
        .into_iter()
        .fold(finding, super::Finding::remedy)
}
