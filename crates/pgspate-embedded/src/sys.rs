//! System calls that the standard library does not have.
//!
//! The crate's only unsafe code. The arguments are integers, or a structure on the stack that the
//! call fills. Errors are reported by return values. So no argument causes undefined behaviour.

use std::io;

/// Returns the effective user id of this process.
pub(crate) fn effective_uid() -> u32 {
    // Safety: no arguments, and the call cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends `signal` to one process. Ids up to 1 are rejected: zero and negative ids mean groups of
/// processes, and 1 is init.
pub(crate) fn signal(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // Safety: two integers, no memory. The check above ensures that one process gets the signal.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Removes a System V shared memory segment that a killed server has left. The id comes from a file
/// that the server's user can write, so only a segment of the user `owner` is removed.
pub(crate) fn remove_shared_memory(id: i32, owner: u32) -> io::Result<()> {
    // Safety: the structure consists of integers, for which zeros are valid. The call fills it.
    let mut status: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // Safety: IPC_STAT writes one structure, which is on the stack during the call.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if status.shm_perm.uid != owner {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    // Safety: IPC_RMID does not use the buffer, which is null.
    match unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
