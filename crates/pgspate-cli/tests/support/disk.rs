//! A small disk, for tests of servers that run out of disk space.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs of 8 MiB. It is unmounted when the value is dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts a disk at `at`, for the user who owns the file `owner`.
    ///
    /// Returns `None` if the test is not allowed to mount a disk.
    pub(crate) fn mount(at: PathBuf, owner: &Path) -> Option<Disk> {
        std::fs::create_dir(&at).unwrap();
        let owner = std::fs::metadata(owner).unwrap();
        let options = format!("size=8m,mode=700,uid={},gid={}", owner.uid(), owner.gid());
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output().ok()?;
        done.status.success().then_some(Disk(at))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
