//! A disk that is soon full, for servers to run into.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk, mounted for as long as the value lives.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// `None` where we may not mount one.
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
