//! The memory and disk space that trials may use, so that no trial brings a server down.
//!
//! If the server runs on another machine, the lab knows only `shared_buffers`. The lab assumes that
//! the machine has a multiple of `shared_buffers`.

use std::fs;

use super::super::sending::number;
use crate::{Machine, TrialContext};

/// Returns the bytes that all sessions may use together, and a description of this limit.
///
/// Returns `None` if the memory is unknown.
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

/// Returns the free bytes on the file system of the data directory, if the lab can read them.
pub(super) fn disk(context: &TrialContext) -> Option<u64> {
    let space = rustix::fs::statvfs(context.data_folder()?).ok()?;
    Some(space.f_bavail * space.f_frsize)
}
