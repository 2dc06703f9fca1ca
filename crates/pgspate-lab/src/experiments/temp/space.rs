//! A tablespace for temporary files, away from the data.
//!
//! The tablespace is on the memory file system of Linux, which stands for a fast local disk.
//! If that file system is missing, too small or has the data directory, the tablespace is on the
//! disk of the data directory. The results then say so.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::Duration;

use pgspate::{Error, ErrorKind, Result};
use tempfile::TempDir;

use super::super::sending::failed;
use crate::TrialContext;

/// The tablespace's name.
pub(super) const NAME: &str = "pgspate_lab_temp";

/// The mount point of Linux's file system in memory.
const MEMORY: &str = "/dev/shm";

const PREFIX: &str = "pgspate-lab-";

/// A tablespace in a temporary folder. Dropping the value removes the folder.
///
/// The folder is locked while the lab runs. A later lab removes the unlocked folders of labs that
/// were killed.
pub(super) struct TempTablespace {
    folder: TempDir,
    is_other_device: bool,
    _lock: File,
}

impl TempTablespace {
    /// Creates the folder and the tablespace. Queries may write `bytes` bytes to it, so the file
    /// system in memory is used only if more than that is free.
    pub(super) fn make(context: &TrialContext, bytes: u64) -> Result<TempTablespace> {
        let (Some(data), Some(beside)) = (context.data_folder(), context.server_folder()) else {
            return Err(Error::new(
                ErrorKind::Bug,
                "only a server of the lab can get a tablespace",
            ));
        };
        let memory = Path::new(MEMORY);
        let is_other_device = is_apart(memory, data, bytes);
        let base = if is_other_device { memory } else { beside };
        let failed_at = |error| {
            let message = format!("could not make a folder in \"{}\"", base.display());
            Error::new(ErrorKind::Usage, message).because(error)
        };
        let (folder, lock) = locked(base).map_err(failed_at)?;
        let owner = fs::metadata(data).map_err(failed_at)?;
        // As root, the lab runs the server as another user, who must own the folder.
        if fs::metadata(folder.path()).map_err(failed_at)?.uid() != owner.uid() {
            chown(folder.path(), Some(owner.uid()), Some(owner.gid())).map_err(failed_at)?;
        }
        let path = folder.path().display().to_string().replace('\'', "''");
        let sql = format!("create tablespace {NAME} location '{path}'");
        context.sql("make a tablespace", &sql)?;
        Ok(TempTablespace { folder, is_other_device, _lock: lock })
    }

    /// Returns a sentence for the report that says where the tablespace is.
    pub(super) fn note(&self) -> String {
        match self.is_other_device {
            true => "The tablespace is in memory, as a stand-in for a fast local disk.".to_owned(),
            false => "There is no second device here: the tablespace is on the disk of the data, \
                      so it cannot be faster."
                .to_owned(),
        }
    }

    /// Drops the tablespace and removes the folder.
    pub(super) fn remove(self, context: &TrialContext) -> Result<()> {
        let connection = context.connect()?;
        context.block_on(async {
            let sql = format!("drop tablespace {NAME}");
            for _ in 0..100 {
                // Temporary tables of sessions that have just ended may still be there.
                if connection.client.batch_execute(&sql).await.is_ok() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let dropped = connection.client.batch_execute(&sql).await;
            dropped.map_err(failed(&connection, "drop the tablespace"))
        })?;
        self.folder.close().map_err(|error| {
            Error::new(ErrorKind::Usage, "could not remove the tablespace's folder").because(error)
        })
    }
}

/// Creates a folder in `base` and locks the folder, so that other labs do not remove it.
fn locked(base: &Path) -> std::io::Result<(TempDir, File)> {
    loop {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
        let locked = File::open(folder.path()).and_then(|lock| lock.lock().map(|()| lock));
        match locked {
            // Another lab removed the folder before this lab had locked it. Try again.
            _ if !folder.path().exists() => {}
            locked => return Ok((folder, locked?)),
        }
    }
}

/// Removes the folders that killed labs left in memory.
///
/// The server and the data directory of a killed lab end with that lab. These folders are outside
/// the data directory, so they stay and take memory.
pub(super) fn remove_left_over() {
    remove_unlocked(Path::new(MEMORY));
}

fn remove_unlocked(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        // The folder of another user cannot be opened. A folder in use cannot be locked.
        let Some(folder) = is_ours.then(|| File::open(entry.path()).ok()).flatten() else {
            continue;
        };
        if folder.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns whether a folder is on another device than the data and has over `bytes` bytes free.
fn is_apart(folder: &Path, data: &Path, bytes: u64) -> bool {
    let (Ok(folder_metadata), Ok(data_metadata)) = (fs::metadata(folder), fs::metadata(data))
    else {
        return false;
    };
    let Ok(space) = rustix::fs::statvfs(folder) else { return false };
    folder_metadata.dev() != data_metadata.dev() && space.f_bavail * space.f_frsize > bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlocked_folders_are_removed_and_other_folders_stay() {
        let base = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = base.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "x").unwrap();
            path
        };
        let (dead, alive, other) = (folder("pgspate-lab-a"), folder("pgspate-lab-b"), folder("c"));
        let lock = File::open(&alive).unwrap();
        lock.lock().unwrap();
        remove_unlocked(base.path());
        assert!(!dead.exists() && alive.exists() && other.exists());
        // A process that another test starts may have a copy of the file, with its lock.
        lock.unlock().unwrap();
        remove_unlocked(base.path());
        assert!(!alive.exists());
    }
}
