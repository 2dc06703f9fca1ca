//! Settings of the C library's allocator.

/// Has the allocator return freed blocks of 4 MiB and more to the system. glibc keeps them by
/// default, and later blocks often do not fit there: `pgspate apply` then needs up to half as much
/// memory more.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the C library has no other interface; the arguments are integers")]
pub(crate) fn return_large_blocks() {
    const LARGE_BYTES_MIN: libc::c_int = 4 << 20;
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES_MIN) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn return_large_blocks() {}
