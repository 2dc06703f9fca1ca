//! The three system calls that the standard library lacks.
//!
//! The crate's only unsafe code. Each call takes plain integers, touches no memory of ours, and
//! reports failure by its return value, so no argument can make it undefined.

use std::io;

/// The user id that this process acts as.
pub(crate) fn effective_uid() -> u32 {
    // Safety: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends `signal` to one process. Zero and negative ids mean groups of processes, and are refused.
pub(crate) fn signal(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // Safety: two integers in, no memory involved; the guard above keeps it to one process.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Removes a System V shared memory segment that a killed server left behind.
pub(crate) fn remove_shared_memory(id: i32) -> io::Result<()> {
    // Safety: IPC_RMID does not read or write through the (null) buffer.
    match unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
