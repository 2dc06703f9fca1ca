//! How much memory and disk trials may take, so that no server is brought down by measuring it.
//!
//! Of a machine that is not seen only the server's cache is known: whoever sized it had some
//! multiple of it.

use std::fs;

use super::super::ways::number;
use crate::{Machine, TrialContext};

/// Bytes that all sessions may take together, and what that is. Nothing where it cannot be found.
pub(super) fn memory(context: &TrialContext) -> Option<(u64, &'static str)> {
    if context.is_local() {
        let all = Machine::here(None).memory_bytes;
        let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
        let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
        let all = all.min(limit.unwrap_or(u64::MAX));
        return (all > 0).then_some((all / 2, "half of what the machine has"));
    }
    let bytes = shared_buffers(context).ok()?;
    Some((bytes.saturating_mul(2), "twice the server's shared_buffers"))
}

fn shared_buffers(context: &TrialContext) -> pgspate::Result<u64> {
    let connection = context.connect()?;
    let sql = "select pg_size_bytes(current_setting('shared_buffers'))";
    let bytes = context.block_on(number(&connection, "look up the server's memory", sql))?;
    Ok(bytes.unsigned_abs())
}

/// Bytes that are free where the server's data are, if that is seen.
pub(super) fn disk(context: &TrialContext) -> Option<u64> {
    let space = rustix::fs::statvfs(context.data_folder()?).ok()?;
    Some(space.f_bavail * space.f_frsize)
}
