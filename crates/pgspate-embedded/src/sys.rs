//! The three system calls that the standard library lacks.
//!
//! The crate's only unsafe code. Each call takes plain integers, or a structure of ours to fill,
//! and reports failure by its return value, so no argument can make it undefined.

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

/// Removes a System V shared memory segment that a killed server left behind. The id comes from a
/// file that the server's user can write, so the segment must be that user's.
pub(crate) fn remove_shared_memory(id: i32, owner: u32) -> io::Result<()> {
    // Safety: the structure is plain integers, for which zeros are values; the call fills it.
    let mut facts: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // Safety: IPC_STAT writes one structure, which lives on the stack for the call.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut facts) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if facts.shm_perm.uid != owner {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    // Safety: IPC_RMID does not read or write through the (null) buffer.
    match unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
