//! The lock by which one run alone writes a file.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

/// How long a killed run may hold its lock: a program that it was starting has the file open.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Locks the file. Returns false if another run holds the lock.
pub(crate) fn lock_soon(file: &File) -> bool {
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return true,
            Err(_) if started.elapsed() > LOCK_TIMEOUT => return false,
            Err(_) => thread::sleep(LOCK_TIMEOUT / 40),
        }
    }
}
